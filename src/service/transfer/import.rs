//! Takes an export in. It is read as a whole first, so that nothing of a damaged one is stored; then record by record, in
//! transactions of their own. What is there already stays as it is, so an import that was interrupted is simply done again.

use super::files::{Arriving, left_out};
use super::record::Record;
use super::unpack::{BadExport, Entry, Piece, Reader};
use crate::domain::plan::PlanKey;
use crate::domain::transfer::{Imported, Report, SentJob, SentPlan, SentTrial, Standing, standing};
use crate::domain::{Device, Digest, JobId, Plan, Timestamp};
use crate::service::ingest::receive;
use crate::service::{Coding, Result, Service, ServiceError};
use crate::store::{JobTaken, Place};
use bytes::Bytes;
use futures_util::Stream;
use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Trials that are stored in one transaction, which takes some milliseconds, and bytes of their lines, of which usual ones have few.
const TRIALS: usize = 500;
const BYTES: usize = 4 << 20;
/// Pieces that were read and wait to be stored; a plan may have 16 MiB.
const WAITING: usize = 4;

/// An id is one namespace's.
const ELSEWHERE: &str = "another namespace of this service has it";

impl From<BadExport> for ServiceError {
    fn from(error: BadExport) -> Self {
        match error {
            BadExport::Io(error) => Self::of_io("an export", error),
            BadExport::Large(_) => Self::TooLarge { message: format!("the export {error}") },
            error => Self::BadExport { message: format!("the export {error}") },
        }
    }
}

impl Service {
    /// [`Self::import`] of what a client sends.
    pub async fn import_body<S, E>(
        &self,
        body: S,
        coding: Option<Coding>,
        dry_run: bool,
    ) -> Result<Report>
    where
        S: Stream<Item = std::result::Result<Bytes, E>> + Send,
        E: Display,
    {
        let received = receive(body, &self.inner.settings).await?;
        let received = self.unpacked(received, coding).await?;
        let bytes = tokio::fs::metadata(&*received).await;
        let bytes = bytes.map_err(|error| ServiceError::of_io("an upload", error))?.len();
        let most = self.inner.settings.limits.unpacked(bytes);
        self.import_within(&received, dry_run, most).await
    }

    /// Takes in an export of whoever runs this, or says what it would take in.
    pub async fn import(&self, file: &Path, dry_run: bool) -> Result<Report> {
        self.import_within(file, dry_run, u64::MAX).await
    }

    /// [`Self::import`] of what unpacks to this many bytes at most.
    async fn import_within(&self, file: &Path, dry_run: bool, most: u64) -> Result<Report> {
        let path = file.to_owned();
        let header = tokio::task::spawn_blocking(move || -> std::result::Result<_, BadExport> {
            let mut reader = Reader::open(&path, most)?;
            while reader.next_entry()?.is_some() {}
            Ok(reader.header().clone())
        });
        let header = header.await??;
        let own = self.store.id().await?;
        let report = Report {
            store: header.store.clone(),
            made_at: header.made_at,
            dry_run,
            ..Report::default()
        };
        let mut import = Import {
            service: self.clone(),
            own,
            from: header.store,
            dry_run,
            report,
            job: None,
            trials: Vec::new(),
            trial_bytes: 0,
            file: None,
            brought: HashSet::new(),
        };
        let (out, mut entries) = mpsc::channel(WAITING);
        let path = file.to_owned();
        let reading = tokio::task::spawn_blocking(move || -> std::result::Result<_, BadExport> {
            let mut reader = Reader::open(&path, most)?;
            while let Some(entry) = reader.next_entry()? {
                // The importer has failed, and says why.
                if out.blocking_send(entry).is_err() {
                    break;
                }
            }
            Ok(())
        });
        while let Some(entry) = entries.recv().await {
            import.take(entry).await?;
        }
        reading.await??;
        import.flush().await?;
        Ok(import.report)
    }
}

pub(super) struct Import {
    pub(super) service: Service,
    /// The ids of this store and of the export's.
    own: String,
    from: String,
    pub(super) dry_run: bool,
    pub(super) report: Report,
    /// The job whose trials follow.
    job: Option<(JobId, JobTaken)>,
    trials: Vec<SentTrial>,
    /// Of their lines.
    trial_bytes: usize,
    pub(super) file: Option<Arriving>,
    /// Files of the export.
    pub(super) brought: HashSet<Digest>,
}

impl Import {
    async fn take(&mut self, entry: Entry) -> Result<()> {
        match entry.piece {
            Piece::Bytes(bytes) => self.bytes(bytes).await,
            Piece::FileEnd => match self.file.take() {
                Some(arrived) => self.arrived(arrived).await,
                None => Ok(()),
            },
            Piece::Record(Record::Trial(sent)) => {
                self.trials.push(*sent);
                self.trial_bytes += entry.bytes;
                match self.trials.len() >= TRIALS || self.trial_bytes >= BYTES {
                    true => self.flush().await,
                    false => Ok(()),
                }
            }
            Piece::Record(record) => {
                self.flush().await?;
                match record {
                    Record::Plan(sent) => self.plan(*sent).await,
                    Record::Job(sent) => self.job(&sent).await,
                    Record::File(file) => {
                        self.file(file.contents.digest, file.contents.bytes).await
                    }
                    Record::Model(sent) => self.model(sent).await,
                    Record::Matrix(sent) => self.matrix(sent).await,
                    Record::Header(_) | Record::Trial(_) | Record::Part(_) | Record::End(_) => {
                        Ok(())
                    }
                }
            }
        }
    }

    async fn plan(&mut self, sent: SentPlan) -> Result<()> {
        let SentPlan { mut plan, matrix, superseded } = sent;
        if self.service.store.plan(&plan.id).await?.is_some() {
            self.report.plans.known += 1;
            return Ok(());
        }
        // Another clock must not make its plan newer than any that is made here.
        plan.created_at = plan.created_at.min(Timestamp::now());
        let without_program = plan.launch.is_some() && !self.has_program(&plan).await?;
        if without_program {
            plan.launch = None;
            self.report.plans_without_program += 1;
        }
        let first = plan.provenance.imported.take();
        let store = first.map_or_else(|| self.from.clone(), |first| first.store);
        let (place, standing) = self.place(&plan, &store, superseded).await?;
        match place {
            Place::First if standing.is_some() => self.report.plans_before += 1,
            Place::Last if standing.is_some() => self.report.plans_behind += 1,
            _ => {}
        }
        self.report.plans.new += 1;
        if self.dry_run {
            return Ok(());
        }
        if store != self.own || without_program {
            let at = Timestamp::now();
            plan.provenance.imported = Some(Imported { store, at, standing, without_program });
        }
        let charged = self.charged(&plan).await?;
        let sent = SentPlan { plan, matrix, superseded };
        if !self.service.store.take_plan(&sent, place, charged).await? {
            self.report.plans.new -= 1;
            // Or another import has just taken it in.
            match self.service.store.plan(&sent.plan.id).await? {
                Some(_) => self.report.plans.known += 1,
                None => {
                    let what = format!("plan {}: {ELSEWHERE}", sent.plan.id);
                    left_out(&mut self.report.plans, &mut self.report.left_out, what);
                }
            }
        }
        Ok(())
    }

    /// Whether all that the plan's launch names is here; it counts as put, so that upkeep leaves it for the plan. What the export did
    /// not bring is looked for on behalf of the operator alone: others could name the files of another namespace, and then read them.
    async fn has_program(&self, plan: &Plan) -> Result<bool> {
        for digest in plan.launch.iter().flat_map(|launch| launch.blobs()) {
            let there = (self.brought.contains(digest) || self.service.caller.is_operators())
                && match self.dry_run {
                    true if self.brought.contains(digest) => true,
                    true => self.service.inner.blobs.exists(digest).await?,
                    false => self.service.inner.blobs.renew(digest).await?,
                };
            if !there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Bytes of what the plan's launch names.
    async fn charged(&self, plan: &Plan) -> Result<u64> {
        let named: Vec<Digest> =
            plan.launch.iter().flat_map(|launch| launch.blobs()).copied().collect();
        let facts = self.service.inner.blobs.facts(named).await?;
        Ok(facts.into_iter().flatten().map(|facts| facts.bytes).sum())
    }

    /// Where a plan of this store stands among those of its key, and why if one of another store is there.
    async fn place(
        &self,
        plan: &Plan,
        store: &str,
        superseded: bool,
    ) -> Result<(Place, Option<String>)> {
        let class = plan.device.class();
        let key = PlanKey {
            pattern_digest: plan.pattern_digest,
            problem: plan.problem,
            device_class: class.clone(),
            l2_policy: plan.l2_policy,
        };
        let Some(here) = self.service.measured_plan(&key).await? else {
            return Ok((Place::ByAge, None));
        };
        let imported = here.provenance.imported.as_ref();
        let of_here = imported.map_or(&self.own, |imported| &imported.store);
        // Of two plans of one store, its own order counts. What comes back to where it was measured is older than what is there.
        if of_here == store {
            let last = superseded || *store == self.own;
            return Ok((if last { Place::Last } else { Place::First }, None));
        }
        if superseded {
            let why = "another plan of its key answered in the store that it is of";
            return Ok((Place::Last, Some(why.to_owned())));
        }
        let known = self.service.known_lately().await?;
        let devices: Vec<&Device> =
            known.iter().filter(|known| known.class == class).map(|known| &known.device).collect();
        let suits =
            |plan: &Plan| !devices.is_empty() && Service::changes(plan, &devices).is_empty();
        Ok(match standing(plan, &here, suits) {
            Standing::Before(why) => (Place::First, Some(why)),
            Standing::Behind(why) => (Place::Last, Some(why)),
        })
    }

    async fn job(&mut self, sent: &SentJob) -> Result<()> {
        let store = sent.store.as_ref().unwrap_or(&self.from);
        let taken = match self.dry_run {
            true => self.service.store.would_take_job(&sent.id).await?,
            false => self.service.store.take_job(sent, store).await?,
        };
        match taken {
            JobTaken::New => self.report.jobs.new += 1,
            JobTaken::Own if self.service.store.job(&sent.id).await?.is_none() => {
                let what = format!("job {}: {ELSEWHERE}", sent.id);
                left_out(&mut self.report.jobs, &mut self.report.left_out, what);
            }
            JobTaken::Known | JobTaken::Own => self.report.jobs.known += 1,
        }
        self.job = Some((sent.id.clone(), taken));
        Ok(())
    }

    /// Stores the trials that have been read.
    async fn flush(&mut self) -> Result<()> {
        self.trial_bytes = 0;
        let trials = std::mem::take(&mut self.trials);
        let all = trials.len() as u64;
        let Some((job, taken)) = self.job.as_ref().filter(|_| all > 0) else { return Ok(()) };
        let store = &self.service.store;
        let new = match taken {
            JobTaken::Own => 0,
            _ if !self.dry_run => {
                let room = Arc::clone(&self.service.inner.room);
                tokio::task::spawn_blocking(move || room.check()).await??;
                store.take_trials(job, &trials).await?
            }
            JobTaken::New => all,
            JobTaken::Known => all.saturating_sub(store.trials_there(job, &trials).await?),
        };
        self.report.trials.new += new;
        self.report.trials.known += all.saturating_sub(new);
        Ok(())
    }
}
