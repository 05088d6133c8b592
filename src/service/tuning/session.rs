//! One job from its claim to its end: load, prune, measure, finals, plan. Each step is recorded before the next begins.

use super::Measuring;
use super::answer;
use super::field::Field;
use super::lease::Signals;
use super::recorder::Recorder;
use crate::domain::job::Best;
use crate::domain::protocol::{Effort, Loaded};
use crate::domain::{
    Candidate, CandidateId, Device, FunnelStep, Job, JobState, Matrix, Outcome, Plan, Stage,
    StoppedBy, Strategy as Wanted, Timestamp,
};
use crate::pool::{Evaluator, PoolError};
use crate::search::{self, Budget, Contender, Decision, Strategy};
use crate::service::Service;
use crate::store::blobs::BlobError;
use crate::store::{Finish, Quarantined, StoreError};
use std::collections::HashMap;
use std::time::Duration;

/// A candidate this many times slower than the best so far is timed once and no more.
const HOPELESS: f64 = 8.0;

/// What prunes the candidates below the top K, as the funnel calls it.
const RANK: &str = "rank";

/// Time for a first call beyond the kernel itself: loading its module, poisoning, comparing.
const SLACK: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("the winner's program could not be kept: {0}")]
    Blobs(#[from] BlobError),
    /// The job cannot succeed, with the reason for the client.
    #[error("{0}")]
    Hopeless(String),
    /// Cancelled, lease lost, or the worker shuts down: `Signals` says which.
    #[error("the session was told to stop")]
    Stopped,
}

/// A worker's hold on one job.
pub struct Session<'a> {
    pub service: Service,
    pub evaluator: &'a mut Evaluator,
    pub device: &'a Device,
    pub recorder: Recorder,
    pub signals: Signals,
    pub measuring: Measuring,
}

/// Everything a plan is made of.
pub struct Outcomes {
    pub matrix: Matrix,
    pub loaded: Loaded,
    pub model: &'static str,
    pub funnel: Vec<FunnelStep>,
    pub predicted: HashMap<CandidateId, f64>,
    pub contenders: Vec<Contender>,
    pub decision: Decision,
    pub stopped_by: StoppedBy,
    pub seed: u64,
    pub search_seconds: f64,
}

impl Session<'_> {
    /// Runs the job to its end and records that end, whatever it is. `Err` only when the store fails.
    pub async fn run(mut self) -> Result<(), StoreError> {
        let end = self.search().await;
        let mut job = self.recorder.job.clone();
        let plan = match end {
            Ok(plan) => {
                job.state = JobState::Succeeded;
                job.stage = Stage::Done;
                job.plan = Some(plan.id.clone());
                // The finals decide, and may have turned the order of the single timings.
                job.best = Some(Best {
                    candidate: plan.candidate.clone(),
                    median_us: plan.measured.median_us,
                    speedup: plan.speedup,
                });
                job.stopped_by = Some(plan.provenance.stopped_by);
                Some(plan)
            }
            Err(SessionError::Store(error)) => return Err(error),
            Err(SessionError::Stopped | SessionError::Pool(PoolError::Cancelled)) => {
                if self.signals.lost.is_cancelled() {
                    return Ok(());
                }
                if !self.signals.cancelled.is_cancelled() {
                    tracing::info!(job = %job.id, "given back to the queue: the worker shuts down");
                    return self.service.store().release(self.recorder.fence()).await;
                }
                job.state = JobState::Cancelled;
                job.stopped_by = Some(StoppedBy::Cancelled);
                None
            }
            Err(error) => {
                tracing::warn!(job = %job.id, %error, "job failed");
                job.state = JobState::Failed;
                job.error = Some(error.to_string());
                None
            }
        };
        self.finish(job, plan).await
    }

    async fn finish(self, mut job: Job, plan: Option<Plan>) -> Result<(), StoreError> {
        job.finished_at = Some(Timestamp::now());
        self.service.store().finish(self.recorder.fence(), &Finish { job, plan }).await
    }

    async fn search(&mut self) -> Result<Plan, SessionError> {
        let request = self.recorder.job.request.clone();
        let defaults = &self.service.settings().search;
        let seconds = request.search.seconds.unwrap_or(defaults.seconds);
        let trials = request.search.trials.unwrap_or(defaults.trials);
        let top_k = request.search.top_k.unwrap_or(defaults.top_k);
        let seed = request.search.seed.unwrap_or(defaults.seed);
        let spent =
            Duration::try_from_secs_f64(self.recorder.job.search_seconds).unwrap_or_default();
        let budget = Budget::start(Some(seconds), Some(trials), spent);

        let mut field = self.enter(seed).await?;
        let mut strategy = self.narrow(&mut field, request.search.strategy, top_k).await?;
        let stopped_by = self.measure(&field, strategy.as_mut(), &budget).await?;
        let (contenders, decision) = self.finals(&budget, request.expected_calls).await?;
        let outcomes = Outcomes {
            matrix: field.matrix,
            loaded: field.loaded,
            model: field.space.model,
            funnel: field.funnel,
            predicted: field.predicted,
            contenders,
            decision,
            stopped_by,
            seed,
            search_seconds: budget.spent().as_secs_f64(),
        };
        let winner = &outcomes.contenders[outcomes.decision.winner].candidate;
        let exported = self.evaluator.export(winner, &self.signals.stop).await?;
        answer::plan(&self.service, self.device, &self.recorder, outcomes, exported).await
    }

    /// Chooses what to measure and records what fell through the funnel.
    async fn narrow(
        &mut self,
        field: &mut Field,
        wanted: Wanted,
        top_k: u32,
    ) -> Result<Box<dyn Strategy>, SessionError> {
        // What an earlier attempt chose stands: the device's bandwidth is measured at each start, so the model may rank
        // otherwise now, and what is on record as pruned cannot be tried.
        let mut scored = field.space.scored.clone();
        scored.retain(|(candidate, _)| self.recorder.pruned_by(candidate).is_none());
        let mut removed: Vec<(Candidate, String)> = field
            .space
            .pruned
            .removed
            .iter()
            .map(|(candidate, by)| (candidate.clone(), (*by).to_owned()))
            .collect();
        let strategy = match wanted {
            Wanted::Exhaustive => search::exhaustive(scored),
            Wanted::Ranked => {
                let mut ranked = search::ranked(scored, top_k as usize);
                let cut_before = |c: &Candidate| self.recorder.pruned_by(c) == Some(RANK);
                let cut_before = field.space.scored.iter().filter(|(c, _)| cut_before(c)).count();
                ranked.step.removed += cut_before as u64;
                removed.extend(ranked.dropped.into_iter().map(|c| (c, RANK.to_owned())));
                field.funnel.push(ranked.step);
                ranked.strategy
            }
            Wanted::Predicted => {
                let why = "the strategy predicted needs a trained model, and there is none";
                return Err(SessionError::Hopeless(why.to_owned()));
            }
        };
        let (left, always) = (strategy.upcoming().len(), field.always.len());
        self.recorder.stage(Stage::Pruning, funnel_line(&field.funnel, left)).await?;
        self.recorder.pruned(&removed).await?;
        self.recorder.job.progress.total = (left + always) as u32;
        Ok(strategy)
    }

    /// Tries the vendor's routines and the strategy's candidates in turn until both, or the budget, end.
    async fn measure(
        &mut self,
        field: &Field,
        strategy: &mut dyn Strategy,
        budget: &Budget,
    ) -> Result<StoppedBy, SessionError> {
        let own = strategy.upcoming().len();
        let fixed = field.always.len();
        let message = format!("measuring {own} ranked candidates and {fixed} fixed ones");
        self.recorder.stage(Stage::Measuring, message).await?;
        let unknown = |c: &&Candidate| self.recorder.known(c).is_none();
        let ahead: Vec<Candidate> = strategy.upcoming().iter().filter(unknown).cloned().collect();
        self.evaluator.prepare(ahead, &self.signals.stop).await?;

        let mut always = field.always.iter().cloned();
        let mut always_next = true;
        loop {
            // In turn, so that a small budget has seen a baseline and a candidate of ours.
            let fixed = if always_next { always.next() } else { None };
            let candidate = match fixed {
                Some(candidate) => candidate,
                None => match strategy.next() {
                    Some(candidate) => candidate,
                    None => match always.next() {
                        Some(candidate) => candidate,
                        None => return Ok(StoppedBy::Completed),
                    },
                },
            };
            always_next = !always_next;
            if self.recorder.known(&candidate).is_none() {
                if let Some(stopped_by) = budget.exhausted(self.recorder.tried_count()) {
                    return Ok(stopped_by);
                }
                self.try_one(field, &candidate, budget).await?;
            }
            let median = self.recorder.known(&candidate).and_then(Outcome::median_us);
            strategy.observe(&candidate, median);
        }
    }

    async fn try_one(
        &mut self,
        field: &Field,
        candidate: &Candidate,
        budget: &Budget,
    ) -> Result<(), SessionError> {
        if self.signals.stop.is_cancelled() {
            return Err(SessionError::Stopped);
        }
        let outcome = if field.quarantined.contains(&candidate.id()) {
            let detail = "quarantined: it hung or killed this device before".to_owned();
            Outcome::Refused { detail }
        } else {
            let best_us = self.recorder.job.best.as_ref().map(|best| best.median_us);
            let give_up_us = best_us.map(|us| us * HOPELESS);
            let effort = Effort { give_up_us, ..self.measuring.effort };
            let patience = self.patience();
            self.evaluator.measure(candidate, effort, patience, &self.signals.stop).await?.outcome
        };
        if let Outcome::TimedOut { detail } | Outcome::Crashed { detail } = &outcome {
            self.quarantine(candidate, outcome.state(), detail).await?;
        }
        let predicted = field.predicted.get(&candidate.id()).copied();
        self.recorder.outcome(candidate, outcome, predicted, budget.spent()).await?;
        Ok(())
    }

    /// How long one call may take: far beyond the best so far, so that a hang costs seconds and a slow kernel its place.
    /// `None` while nothing is known of this matrix.
    fn patience(&self) -> Option<Duration> {
        let best = self.recorder.job.best.as_ref()?;
        Some(SLACK + Duration::try_from_secs_f64(best.median_us * 200.0 / 1e6).ok()?)
    }

    async fn quarantine(
        &self,
        candidate: &Candidate,
        state: &str,
        detail: &str,
    ) -> Result<(), StoreError> {
        tracing::warn!(%candidate, state, detail, "candidate quarantined");
        let Some(kernel_digest) = self.device.kernels.get(&candidate.family).copied() else {
            return Ok(());
        };
        let entry = Quarantined {
            class: self.device.class(),
            kernel_digest,
            candidate: candidate.clone(),
            reason: format!("{state}: {detail}"),
            at: Timestamp::now(),
        };
        self.service.store().quarantine(&entry).await
    }
}

fn funnel_line(funnel: &[FunnelStep], left: usize) -> String {
    let steps: Vec<String> =
        funnel.iter().map(|step| format!("{} -{}", step.constraint, step.removed)).collect();
    format!("{}; {left} left", steps.join(", "))
}
