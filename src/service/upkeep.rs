//! Upkeep: sends the devices' heartbeats, detects changes of other processes, and removes old data.

use super::ingest::UPLOAD_PREFIX;
use super::retention::Gone;
use super::settings::ServiceSettings;
use super::{Result, Service, ServiceError, webhooks};
use crate::domain::{Digest, Timestamp};
use crate::store::blobs::sweep;
use crate::store::{Pruned, Retention};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// The number of items that one round removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub rows: Pruned,
    /// By the rules of retention.
    pub retained: Gone,
    pub files: u64,
    /// Moved to the trash.
    pub blobs: u64,
    /// Deleted from it.
    pub trash: u64,
    /// Entries of the audit log.
    pub audit: u64,
    /// Revoked and expired tokens.
    pub tokens: u64,
}

impl Service {
    /// Runs until the token is cancelled. A failure is logged, and the next round tries again.
    pub async fn upkeep(self, stop: CancellationToken) {
        let settings = &self.inner.settings;
        let every = |period: Duration| {
            let mut ticks = interval(period.max(Duration::from_millis(10)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let (mut look, mut heartbeat, mut prune) =
            (every(settings.poll), every(settings.heartbeat), every(settings.upkeep));
        let looking = async {
            loop {
                let (what, done) = tokio::select! {
                    biased;
                    () = stop.cancelled() => {
                        told("uses of tokens", self.save_uses().await);
                        told("uses of plans", self.store_uses().await);
                        // Others give no more jobs to its devices. Where the store is gone, they notice by themselves.
                        self.drain();
                        let last = tokio::time::timeout(LAST_WORD, self.heartbeat_of_devices());
                        told("last heartbeat", last.await.unwrap_or(Ok(())));
                        return;
                    }
                    _ = look.tick() => ("revision", self.look_at_revision().await),
                    _ = heartbeat.tick() => {
                        told("uses of plans", self.store_uses().await);
                        ("heartbeat", self.heartbeat().await)
                    }
                };
                told(what, done);
            }
        };
        // In a large store it takes minutes, in which tokens are revoked and devices are to be seen.
        let removing = async {
            let rules = self.rules_of_upkeep();
            // The next one is due a period later; clocks differ a little.
            let within = settings.upkeep * 3 / 4;
            while stop.run_until_cancelled(prune.tick()).await.is_some() {
                match self.store.take_round(&rules, within).await {
                    Ok(true) => told("pruning", self.remove_old().await.map(drop)),
                    Ok(false) => told("temporary files", self.remove_own().await.map(drop)),
                    // Where the disk is full, temporary files may be what fills it.
                    Err(error) => {
                        told("a round of upkeep", Err(error.into()));
                        told("temporary files", self.remove_own().await.map(drop));
                    }
                }
                // Each process renews for its own devices, within the budget of all.
                told("renewal of plans", self.renew_outdated().await.map(drop));
            }
        };
        tokio::join!(looking, removing);
    }

    /// Other processes store plans and change tokens too.
    async fn look_at_revision(&self) -> Result<()> {
        self.store.revision().await?;
        self.look_at_tokens().await
    }

    async fn heartbeat(&self) -> Result<()> {
        self.save_uses().await?;
        self.heartbeat_of_devices().await
    }

    /// One round of removal.
    ///
    /// # Errors
    /// The first of those that its steps met; the others were done all the same.
    pub async fn remove_old(&self) -> Result<Removed> {
        let keep = self.inner.settings.keep;
        let retention = Retention {
            idempotency_keys: before(keep.idempotency_keys),
            events: before(keep.events),
            devices: before(keep.devices),
            predicted: before(keep.predicted),
            bundles: before(keep.bundles),
            deliveries: before(webhooks::WITHIN),
        };
        let mut round = Round::default();
        // One after the other, and each by itself: a bucket that is out of reach must not keep the audit log from being trimmed.
        let rows = round.done("rows", self.store.prune(&retention).await.map_err(Into::into));
        let retained = round.done("retention", self.retain().await);
        let files = round.done("staged files", self.remove_own().await);
        let swept = round.done("blobs", self.sweep_blobs(keep.blobs).await);
        let removed = Removed {
            rows,
            retained,
            files,
            blobs: swept.0,
            trash: swept.1,
            audit: round.done("audit log", self.trim_audit().await),
            tokens: round.done(
                "tokens",
                self.store.forget_tokens(before(keep.audit)).await.map_err(Into::into),
            ),
        };
        if removed != Removed::default() {
            tracing::info!(?removed, "removed old data");
        }
        round.failed.map_or(Ok(removed), Err)
    }

    /// What each process removes of its own: temporary files, whose number it returns, and what it has in memory.
    async fn remove_own(&self) -> Result<u64> {
        self.inner.built.expire();
        let (age, uploads) =
            (self.inner.settings.keep.temp_files, self.inner.settings.temp_dir.clone());
        let uploads = move || sweep(&uploads, UPLOAD_PREFIX, age);
        let uploads = tokio::task::spawn_blocking(uploads).await?;
        Ok(uploads + self.inner.blobs.sweep_staged(age).await?)
    }

    /// Names the rules by which old data is removed: one process of all that have the same does it for all of them.
    fn rules_of_upkeep(&self) -> String {
        let ServiceSettings { keep, retention, drift, upkeep, .. } = &self.inner.settings;
        Digest::of(format!("{upkeep:?} {keep:?} {retention:?} {drift:?}").as_bytes()).to_string()
    }

    /// The numbers of blobs that went to the trash and from there; none if another process is at it, since what one brings to the trash the other
    /// might delete from it while its row is just written.
    async fn sweep_blobs(&self, age: Duration) -> Result<(u64, u64)> {
        let Some(alone) = self.store.sweeping().await? else { return Ok((0, 0)) };
        // A store that was moved names nothing that came after, and its blobs are those of the one that it was moved to.
        self.store.check_writable().await?;
        // They may have been given to another database since they were opened.
        let (owner, own) = (self.inner.blobs.owner().await?, self.store.id().await?);
        if owner.is_some_and(|owner| owner != own) {
            return Err(ServiceError::internal(
                "the blobs are of another store by now, whose files upkeep of this one would remove",
            ));
        }
        let moved = self.remove_unnamed_blobs(age).await?;
        alone.is_still_held().await?;
        self.store.check_writable().await?;
        Ok((moved, self.empty_trash(age).await?))
    }

    /// Moves the blobs that no plan and no matrix names to the trash; they remain if a job ended after storing its program but before
    /// storing its plan. A blob is stored before it is named and is young at that time. Old blobs are listed before the
    /// names are read, so that a blob named in between is kept.
    async fn remove_unnamed_blobs(&self, age: Duration) -> Result<u64> {
        let old = self.inner.blobs.older_than(age).await?;
        if old.is_empty() {
            return Ok(0);
        }
        let named = self.store.named_blobs().await?;
        if named.is_empty() {
            // If everything looks unnamed, this is more likely the wrong store for these blobs than a store that lost all
            // names.
            return Ok(0);
        }
        let unnamed: Vec<_> = old.into_iter().filter(|digest| !named.contains(digest)).collect();
        Ok(self.inner.blobs.discard_old(unnamed, age).await?)
    }

    /// Deletes what has been in the trash for this long, but for what the database names, which comes back: a database of an earlier
    /// time may have been put back. The trash is listed before the names are read, so that what is named in between is kept.
    async fn empty_trash(&self, age: Duration) -> Result<u64> {
        let mut trash = self.inner.blobs.in_trash().await?;
        if trash.is_empty() {
            return Ok(0);
        }
        let named = self.store.named_blobs().await?;
        // As above.
        if named.is_empty() {
            return Ok(0);
        }
        // Nor may what is not named any more be named again after a loss of power.
        self.store.settle().await?;
        trash.retain(|digest| named.contains(digest));
        Ok(self.inner.blobs.empty_trash(trash, age).await?)
    }
}

/// The steps of a round of removal.
#[derive(Default)]
struct Round {
    /// What the first one that failed met.
    failed: Option<ServiceError>,
}

impl Round {
    /// What a step has done, which is nothing if it failed.
    fn done<T: Default>(&mut self, step: &str, done: Result<T>) -> T {
        done.unwrap_or_else(|error| {
            tracing::warn!(step, %error, "a step of upkeep failed");
            self.failed.get_or_insert(error);
            T::default()
        })
    }
}

/// The longest that a process that ends waits for its last heartbeat.
const LAST_WORD: Duration = Duration::from_secs(1);

fn told(what: &str, done: Result<()>) {
    if let Err(error) = done {
        tracing::warn!(what, %error, "upkeep failed");
    }
}

/// The time that is so long ago.
pub(super) fn before(age: Duration) -> Timestamp {
    let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    Timestamp::now().plus_millis(age.saturating_neg())
}
