//! Hints between the servers of one database, by LISTEN and NOTIFY: that work was queued, and that answers to lookups may differ.
//!
//! A hint makes others look earlier than they would have; whoever misses one polls. NOTIFY makes commits wait for each other, so it is a
//! transaction of its own, with what a fifth of a second brought together, and never of a trial or of a job's progress.

use super::SqlStore;
use crate::store::{Change, Upkeep as _};
use sqlx::postgres::{PgListener, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The shortest time between two hints of one process.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the listener waits before it connects again.
const AGAIN: Duration = Duration::from_secs(2);

const QUEUED: u8 = 1;
const REVISED: u8 = 2;

/// What is to be told to others.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    /// Marks what is told, so that nobody hears himself.
    own: uuid::Uuid,
    pending: Arc<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    what: AtomicU8,
    some: Notify,
}

impl Default for Hints {
    fn default() -> Self {
        Self { own: uuid::Uuid::now_v7(), pending: Arc::default() }
    }
}

impl Hints {
    pub(super) fn of(&self, change: &Change) {
        let what = match change {
            Change::Submitted(_) | Change::Released => QUEUED,
            Change::Revision(_) => REVISED,
            Change::Job(_) | Change::Ended(_) | Change::Trial { .. } | Change::Quarantined => {
                return;
            }
        };
        self.pending.what.fetch_or(what, Ordering::AcqRel);
        self.pending.some.notify_one();
    }

    /// Tells others of what happens here, until the end.
    pub(super) async fn tell(self, pool: PgPool, channel: String, end: CancellationToken) {
        let told = async {
            loop {
                self.pending.some.notified().await;
                let what = self.pending.what.swap(0, Ordering::AcqRel);
                if what == 0 {
                    continue;
                }
                let notify = sqlx::query("SELECT pg_notify($1, $2)");
                // Who is not told looks for itself.
                if let Err(error) =
                    notify.bind(&channel).bind(format!("{what} {}", self.own)).execute(&pool).await
                {
                    tracing::debug!(%error, "other servers were not told of a change");
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let _: Option<()> = end.run_until_cancelled(told).await;
    }
}

/// Passes the hints of others on to the listeners of this process, until the end. That a connection was lost counts as a hint, since
/// others may have been missed.
pub(super) async fn hear(
    pool: PgPool,
    channel: String,
    (store, own): (SqlStore, Hints),
    end: CancellationToken,
) {
    let heard = async {
        let mut missed = 0;
        loop {
            if let Err(error) = hear_on(&pool, &channel, &store, (&own, missed)).await {
                tracing::debug!(%error, "hints of other servers are not heard for a while");
            }
            missed = QUEUED | REVISED;
            tokio::time::sleep(AGAIN).await;
        }
    };
    let _: Option<()> = end.run_until_cancelled(heard).await;
}

async fn hear_on(
    pool: &PgPool,
    channel: &str,
    store: &SqlStore,
    (own, missed): (&Hints, u8),
) -> sqlx::Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    pass_on(store, missed).await;
    while let Some(hint) = listener.try_recv().await? {
        let (what, by) = hint.payload().split_once(' ').unwrap_or_default();
        if by != own.own.to_string() {
            pass_on(store, what.parse().unwrap_or(QUEUED | REVISED)).await;
        }
    }
    Ok(())
}

async fn pass_on(store: &SqlStore, what: u8) {
    if what & QUEUED > 0 {
        store.listeners.publish([Change::Released]);
    }
    // The number itself is read, which tells the listeners.
    if what & REVISED > 0
        && let Err(error) = store.revision().await
    {
        tracing::debug!(%error, "the revision was not read");
    }
}
