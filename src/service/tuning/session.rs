//! Runs one job from its claim to its end: load, prune, measure, finals, plan. Each step is recorded before the next
//! begins.

use super::Measuring;
use super::answer;
use super::finals::Finals;
use super::keep;
use super::recorder::Recorder;
use super::search_context::SearchContext;
use crate::domain::funnel::{DRAW, RANK};
use crate::domain::job::Best;
use crate::domain::protocol::Loaded;
use crate::domain::{
    Candidate, CandidateId, Device, FunnelStep, Intensity, Job, JobId, JobState, Judged, Matrix,
    Plan, Removal, Resources, SearchStrategy, Stage, StoppedBy, Timestamp, Timing, discreet,
};
use crate::ops::Kernels;
use crate::pool::{Evaluator, PoolError};
use crate::search::{self, Budget, CandidateSelector, Contender, Decision, Draw, First};
use crate::service::lease::LeaseSignals;
use crate::service::predicted::Learned;
use crate::service::{Ranker, Service};
use crate::store::{BlobError, StoreError};
use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("{0}")]
    Blobs(#[from] BlobError),
    /// The job cannot succeed; the reason is shown to the client.
    #[error("{0}")]
    Hopeless(String),
    /// Cancelled, lease lost, or shutdown; `LeaseSignals` says which.
    #[error("the session was stopped")]
    Stopped,
}

/// How a session ended, for its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The job has ended, belongs to another worker, or was returned to the queue.
    Answered,
    /// The device failed, with the reason; the job can be claimed again once its lease has expired.
    DeviceGone(String),
    /// The blobs cannot be used now; the job was returned to the queue.
    Postponed,
}

/// A worker's processing of one job.
pub struct Session<'a> {
    pub service: Service,
    pub evaluator: &'a mut Evaluator,
    pub device: &'a Device,
    pub recorder: Recorder,
    pub signals: LeaseSignals,
    pub measuring: Measuring,
    /// Candidates compiled in this attempt, regardless of their outcome.
    pub compiled: Vec<(Candidate, Resources)>,
    /// The trials of this attempt, and how long they took together.
    pub pace: (u32, Duration),
    /// The job of the second part, if this attempt has queued it.
    pub queued: Option<JobId>,
}

/// Everything that a plan is built from.
pub struct Outcomes {
    pub matrix: Matrix,
    pub loaded: Loaded,
    pub model: String,
    pub learned: Option<Learned>,
    pub funnel: Vec<FunnelStep>,
    /// What the rules computed for the winner.
    pub judged: Vec<Judged>,
    /// Tiled SpMM's terms of the winner and of others.
    pub intensity: Vec<Intensity>,
    pub predicted: HashMap<CandidateId, f64>,
    pub contenders: Vec<Contender>,
    pub decision: Decision,
    /// As of [`Finals`].
    pub other: Vec<Option<Timing>>,
    /// As of [`Finals`].
    pub paired: bool,
    pub stopped_by: StoppedBy,
    pub seed: u64,
    pub search_seconds: f64,
}

impl Session<'_> {
    /// Runs the job and records its end. `Err` only if the store fails; the worker then gives the job back.
    pub async fn run(mut self) -> Result<Ended, StoreError> {
        let end = match self.search().await {
            Ok(plan) => self.go_on(plan).await,
            end => end,
        };
        if self.signals.unanswered.is_cancelled() {
            // Nobody need have the job: its worker gives it back as soon as the store answers.
            let why = "the store did not answer for as long as the job's lease holds";
            return Err(StoreError::Busy(why.into()));
        }
        if !self.signals.lost.is_cancelled() {
            self.tell_interruptions().await?;
        }
        let mut job = self.recorder.job.clone();
        let plan = match end {
            Ok(plan) => {
                job.state = JobState::Succeeded;
                job.stage = Stage::Done;
                job.plan = Some(plan.id.clone());
                job.stopped_by = Some(plan.provenance.stopped_by);
                // The finals may have reversed the order of the individual timings.
                job.best = plan.median_us().map(|median_us| Best {
                    candidate: plan.candidate.clone(),
                    median_us,
                    speedup: plan.speedup,
                });
                Some(plan)
            }
            Err(SessionError::Store(error)) => return Err(error),
            Err(SessionError::Stopped | SessionError::Pool(PoolError::Cancelled)) => {
                if self.signals.lost.is_cancelled() {
                    return Ok(Ended::Answered);
                }
                if !self.signals.cancelled.is_cancelled() {
                    tracing::info!(job = %job.id, "job returned to the queue: the worker is shutting down");
                    self.release().await?;
                    return Ok(Ended::Answered);
                }
                job.state = JobState::Cancelled;
                job.stopped_by = Some(StoppedBy::Cancelled);
                None
            }
            Err(SessionError::Blobs(error @ BlobError::Unavailable(_))) => {
                // What was measured is stored: whoever has the job next goes on from there.
                tracing::warn!(job = %job.id, %error, "job returned to the queue");
                self.recorder.log(format!("the job goes on later: {error}")).await?;
                self.release().await?;
                return Ok(Ended::Postponed);
            }
            Err(SessionError::Pool(
                PoolError::Unavailable { last: detail, .. } | PoolError::Failed(detail),
            )) if !self.device_opens().await => {
                // The lease is left to expire rather than released, so that an attempt that brought the device down
                // counts.
                tracing::warn!(job = %job.id, detail, "job left until its lease expires: the device failed");
                return Ok(Ended::DeviceGone(detail));
            }
            Err(error) => {
                tracing::warn!(job = %job.id, %error, "job failed");
                job.state = JobState::Failed;
                job.error = Some(discreet(&error.to_string()));
                None
            }
        };
        self.finish(job, plan).await?;
        Ok(Ended::Answered)
    }

    /// Whether the device still opens without loading anything; if so, the job is the cause of the failure.
    async fn device_opens(&mut self) -> bool {
        self.evaluator.forget();
        self.evaluator.open(&self.signals.stop).await.is_ok()
    }

    async fn finish(self, mut job: Job, plan: Option<Plan>) -> Result<(), StoreError> {
        job.finished_at = Some(Timestamp::now());
        self.signals.ended.cancel();
        self.end(job, plan).await
    }

    /// Returns the job to the queue; the attempt is not counted.
    async fn release(&self) -> Result<(), StoreError> {
        self.signals.ended.cancel();
        let store = self.service.store();
        self.signals.lasting(|| store.release(self.recorder.fence())).await
    }

    async fn search(&mut self) -> Result<Plan, SessionError> {
        let request = self.recorder.job.request.clone();
        let defaults = &self.service.settings().search;
        let wanted = request.search.strategy;
        // Jobs have it from their submission, but for those of the first versions.
        let usual = defaults.seconds_of(wanted, self.device.kind, u64::MAX);
        let seconds = request.search.seconds.unwrap_or(usual);
        let trials = request.search.trials.unwrap_or(defaults.trials_of(wanted));
        let top_k = request.search.top_k.unwrap_or(defaults.top_k);
        let seed = request.search.seed.unwrap_or(defaults.seed);
        let spent =
            Duration::try_from_secs_f64(self.recorder.job.search_seconds).unwrap_or_default();

        // Loading counts: who asks for an answer within a minute does not mean a minute after loading.
        let mut budget = Budget::start(Some(seconds), Some(trials), spent);
        let mut context = self.enter(seed, seconds).await?;
        if wanted == SearchStrategy::Predicted {
            return self.predict(context, seed).await;
        }
        self.rank(&mut context, wanted).await?;
        let mut selector = self.narrow(&mut context, wanted, (top_k, trials)).await?;
        let stopped_by = self.measure(&context, selector.as_mut(), &mut budget).await?;
        if stopped_by == StoppedBy::Completed {
            self.leave_out(&context, wanted).await?;
        }
        self.record_kernel_figures().await?;
        let Finals { contenders, decision, other, paired } =
            self.finals(&budget, wanted, request.expected_calls, context.matrix.nnz).await?;
        let winner = &contenders[decision.winner].candidate;
        let (judged, intensity) = (context.space.judged(winner), context.space.intensity(winner));
        let outcomes = Outcomes {
            matrix: context.matrix,
            loaded: context.loaded,
            model: context.model,
            learned: context.learned.as_ref().map(Learned::of),
            funnel: context.funnel,
            judged,
            intensity,
            predicted: context.predicted,
            contenders,
            decision,
            other,
            paired,
            stopped_by,
            seed,
            search_seconds: budget.spent().as_secs_f64(),
        };
        let winner = &outcomes.contenders[outcomes.decision.winner].candidate;
        let program = self.program(winner).await?;
        answer::plan(&self.service, self.device, &self.recorder, outcomes, program).await
    }

    /// The winner's program. If it cannot be stored (full disk, timeout while writing arrays), the finished search is
    /// not lost: the plan then says what won and how fast it is, but not how to launch it.
    async fn program(&mut self, winner: &Candidate) -> Result<answer::Program, SessionError> {
        match self.kept(winner).await {
            Err(SessionError::Pool(PoolError::Cancelled) | SessionError::Stopped) => {
                Err(SessionError::Stopped)
            }
            Err(error @ SessionError::Store(_)) => Err(error),
            // That passes, and a plan without a launch stays.
            Err(error @ SessionError::Blobs(BlobError::Unavailable(_))) => Err(error),
            Err(error) => {
                tracing::warn!(job = %self.recorder.job.id, %error, "the plan has no launch");
                let message = "the winner's program could not be kept; the plan has no launch";
                self.recorder.log(format!("{message}: {error}")).await?;
                let exported = self.evaluator.export(winner, None, &self.signals.stop).await;
                if let Err(PoolError::Cancelled) = exported {
                    return Err(SessionError::Stopped);
                }
                let update_ms = exported.ok().and_then(|exported| exported.update_ms);
                Ok(answer::Program { launch: None, update_ms })
            }
            kept => kept,
        }
    }

    /// The winner's program, with source, cubin and arrays stored as blobs.
    pub(super) async fn kept(
        &mut self,
        winner: &Candidate,
    ) -> Result<answer::Program, SessionError> {
        let staged = self.service.blobs().stage_folder().await?;
        let folder = staged.path();
        let exported = self.evaluator.export(winner, Some(folder), &self.signals.stop).await?;
        let launch = keep::launch(&self.service, &exported, folder).await?;
        Ok(answer::Program { launch, update_ms: exported.update_ms })
    }

    /// Chooses what to measure, and records the pruned candidates.
    async fn narrow(
        &mut self,
        context: &mut SearchContext,
        wanted: SearchStrategy,
        (top_k, trials): (u32, u32),
    ) -> Result<Box<dyn CandidateSelector>, SessionError> {
        let mut scored = context.space.scored.clone();
        let chosen_before = self.recorder.chosen_before();
        if let Some(dropped) = &chosen_before {
            // Predictions depend on the measured copy bandwidth and may rank differently today, so the earlier choice
            // is kept.
            scored.retain(|(candidate, _)| !dropped.contains(&candidate.id()));
        }
        let selector = match wanted {
            SearchStrategy::Exhaustive => search::exhaustive(scored),
            SearchStrategy::Halving => self.halving(context, scored, trials),
            SearchStrategy::Ranked => {
                let warm = self.warm(context, top_k).await?;
                self.ranked(context, scored, top_k, warm)
            }
            SearchStrategy::Sampled => self.sampled(context, scored, trials),
            SearchStrategy::Full => self.full(context, scored, trials),
            SearchStrategy::Predicted => {
                let why = "a predicted plan has no candidates to measure";
                return Err(SessionError::Hopeless(why.to_owned()));
            }
        };
        if chosen_before.is_none() {
            let removed = context.space.pruned.removed.iter();
            let removed: Vec<_> =
                removed.map(|one| (one.candidate.clone(), one.removal())).collect();
            self.recorder.pruned(&removed).await?;
        }
        self.begin(context, selector).await
    }

    /// The kernels that the job's candidates are of.
    pub(super) fn kernels(&self) -> Kernels {
        Kernels::of(&self.recorder.job.request.problem, self.device.kind)
    }

    /// Continues from the trials of an earlier attempt.
    fn ranked(
        &self,
        context: &mut SearchContext,
        scored: Vec<(Candidate, f64)>,
        top_k: u32,
        warm: Vec<Candidate>,
    ) -> Box<dyn CandidateSelector> {
        let kernels = self.kernels();
        let preparation = |candidate: &Candidate| kernels.preparation(candidate);
        let variety = |candidate: &Candidate| kernels.variety(candidate);
        // If preprocessing counts, a candidate without any is always measured, regardless of its rank.
        let counts = self.recorder.job.request.expected_calls.is_some();
        let sure = |candidate: &Candidate| counts && kernels.needs_no_preparation(candidate);
        let before = self.tried_before(context);
        let first = First { before, warm };
        let mut ranked = match &context.learned {
            // A perceptron's times tell no more than an order, so they cannot be corrected.
            Some(Ranker::Borrowed(model)) if model.card.learner.tells_times() => {
                search::corrected_top(scored, top_k as usize, first, sure)
            }
            Some(model) => {
                let corrects = model.card().learner.tells_times();
                search::top(scored, top_k as usize, first, preparation, sure, corrects)
            }
            None => search::ranked(scored, top_k as usize, first, variety, sure),
        };
        // A finished search has recorded the candidates left out, so they are no longer among the scored.
        ranked.step.removed += self.recorder.dropped_by(RANK) as u64;
        context.funnel.push(ranked.step);
        ranked.selector
    }

    /// The candidates that a finished ranked search left out are known only now; they are recorded as the last pruning
    /// step.
    async fn leave_out(
        &mut self,
        context: &SearchContext,
        wanted: SearchStrategy,
    ) -> Result<(), SessionError> {
        if wanted == SearchStrategy::Ranked {
            let untried = context.space.scored.iter().map(|(candidate, _)| candidate);
            let untried = untried.filter(|candidate| self.recorder.known(candidate).is_none());
            let left_out: Vec<_> = untried.map(|c| (c.clone(), Removal::by(RANK))).collect();
            self.recorder.pruned(&left_out).await?;
        }
        Ok(())
    }

    /// The strategy's candidates that earlier attempts tried, in their order.
    fn tried_before(&self, context: &SearchContext) -> Vec<Candidate> {
        let tried = self.recorder.tried().into_iter().map(|(candidate, _)| candidate);
        tried.filter(|candidate| !context.always.contains(candidate)).cloned().collect()
    }

    /// Continues from the trials of an earlier attempt; routines that are always tried count as trials too.
    fn halving(
        &self,
        context: &mut SearchContext,
        scored: Vec<(Candidate, f64)>,
        trials: u32,
    ) -> Box<dyn CandidateSelector> {
        let kernels = self.kernels();
        let before = self.tried_before(context);
        let places = (trials as usize).saturating_sub(context.always.len());
        let by_time_alone = self.recorder.job.request.expected_calls.is_none();
        let preparation = |candidate: &Candidate| kernels.preparation(candidate);
        let halved = search::halving(scored, places, before, preparation, by_time_alone);
        context.funnel.push(halved.step);
        halved.selector
    }

    /// The choice depends on matrix, seed and analytic predictions, but not on learned models, which are trained on it.
    fn sampled(
        &self,
        context: &mut SearchContext,
        scored: Vec<(Candidate, f64)>,
        trials: u32,
    ) -> Box<dyn CandidateSelector> {
        let places = (trials as usize).saturating_sub(context.always.len());
        let request = &self.recorder.job.request;
        let (matrix, seed) = (request.matrix, request.search.seed);
        let draw = |candidate: &Candidate| search::lot(&format!("{matrix} {seed:?} {candidate}"));
        let kernels = self.kernels();
        let before = self.tried_before(context);
        let sampled = search::sampled(scored, places, before, |c| kernels.preparation(c), draw);
        context.funnel.push(sampled.step);
        sampled.selector
    }

    /// In random order, so that a search that ends early has tried an unbiased part of the space. The space was drawn before it
    /// was known which routines are always tried; these count as trials too.
    fn full(
        &self,
        context: &mut SearchContext,
        scored: Vec<(Candidate, f64)>,
        trials: u32,
    ) -> Box<dyn CandidateSelector> {
        let places = (trials as usize).saturating_sub(context.always.len()).max(1);
        let request = &self.recorder.job.request;
        let draw = Draw::of(&request.matrix, request.search.seed, places);
        if context.space.scored.len() > places {
            let kept = draw.keep(scored.clone(), |(candidate, _)| candidate);
            let despite = &context.space.despite;
            let against = kept.iter().filter(|(one, _)| despite.contains_key(&one.id())).count();
            if let Some(step) = context.funnel.iter_mut().find(|step| step.constraint == DRAW) {
                let all = step.removed + step.left;
                *step = Draw::step(all, kept.len() as u64, (kept.len() - against) as u64);
            }
        }
        search::drawn(scored, places, self.tried_before(context), &draw)
    }

    async fn begin(
        &mut self,
        context: &SearchContext,
        selector: Box<dyn CandidateSelector>,
    ) -> Result<Box<dyn CandidateSelector>, SessionError> {
        let (left, always) = (selector.left(), context.always.len());
        self.recorder.job.progress.total = (left + always) as u32;
        self.recorder.stage(Stage::Pruning, funnel_line(&context.funnel, left)).await?;
        self.recorder.funnel(&context.funnel).await?;
        Ok(selector)
    }
}

fn funnel_line(funnel: &[FunnelStep], left: usize) -> String {
    let steps: Vec<String> =
        funnel.iter().map(|step| format!("{} -{}", step.constraint, step.removed)).collect();
    format!("{}; {left} left", steps.join(", "))
}
