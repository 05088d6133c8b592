//! One job from its claim to its end: load, prune, measure, finals, plan. Each step is recorded before the next begins.

use super::Measuring;
use super::answer;
use super::lease::Signals;
use super::recorder::Recorder;
use crate::domain::protocol::{Load, Loaded};
use crate::domain::{
    Candidate, CandidateId, Device, FunnelStep, Job, JobState, Matrix, Outcome, Plan, Stage,
    StoppedBy, Strategy as Wanted, Timestamp,
};
use crate::ops::{self, Space};
use crate::pool::{Evaluator, PoolError};
use crate::search::{self, Budget, Contender, Decision, Strategy};
use crate::service::Service;
use crate::sparse::canonical;
use crate::store::blobs::BlobError;
use crate::store::{Finish, Quarantined, StoreError};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

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

/// What is known once a job's matrix is loaded.
struct Field {
    matrix: Matrix,
    loaded: Loaded,
    space: Space,
    funnel: Vec<FunnelStep>,
    predicted: HashMap<CandidateId, f64>,
    quarantined: HashSet<CandidateId>,
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

    /// Loads the matrix in the evaluator, and meanwhile reads its pattern here to prune the space.
    async fn enter(&mut self, seed: u64) -> Result<Field, SessionError> {
        let request = self.recorder.job.request.clone();
        self.recorder.stage(Stage::Loading, format!("loading on {}", self.device.name)).await?;
        let matrix = self
            .service
            .store()
            .matrix(&request.matrix)
            .await?
            .ok_or_else(|| SessionError::Hopeless("the matrix has been deleted".to_owned()))?;
        let path = self.service.blobs().local_path(&request.matrix);
        let load = Load {
            path: path.clone(),
            digest: request.matrix,
            problem: request.problem,
            l2_policy: self.service.settings().l2_policy,
            seed,
        };
        let device = self.device.clone();
        let survey = tokio::task::spawn_blocking(move || {
            let (csr, _) = canonical::open(&path).map_err(|error| error.to_string())?;
            ops::space(&csr, &request.problem, &device).map_err(|error| error.to_string())
        });
        let loaded = self.evaluator.load(load, &self.signals.stop).await?;
        let space = survey
            .await
            .map_err(|error| SessionError::Hopeless(format!("pruning failed: {error}")))?
            .map_err(SessionError::Hopeless)?;
        let quarantined = self.quarantined().await?;
        Ok(Field {
            matrix,
            loaded,
            predicted: space.scored.iter().map(|(c, us)| (c.id(), *us)).collect(),
            funnel: space.pruned.funnel.clone(),
            space,
            quarantined,
        })
    }

    async fn quarantined(&self) -> Result<HashSet<CandidateId>, StoreError> {
        let entries = self.service.store().quarantined(&self.device.class()).await?;
        let still = |entry: &Quarantined| {
            self.device.kernels.get(&entry.candidate.family) == Some(&entry.kernel_digest)
        };
        Ok(entries.iter().filter(|entry| still(entry)).map(|entry| entry.candidate.id()).collect())
    }

    /// Chooses what to measure and records what fell through the funnel.
    async fn narrow(
        &mut self,
        field: &mut Field,
        wanted: Wanted,
        top_k: u32,
    ) -> Result<Box<dyn Strategy>, SessionError> {
        let scored = field.space.scored.clone();
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
                let ranked = search::ranked(scored, top_k as usize);
                removed.extend(ranked.dropped.into_iter().map(|c| (c, "rank".to_owned())));
                field.funnel.push(ranked.step);
                ranked.strategy
            }
            Wanted::Predicted => {
                let why = "the strategy predicted needs a trained model, and there is none";
                return Err(SessionError::Hopeless(why.to_owned()));
            }
        };
        let (left, vendor) = (strategy.upcoming().len(), field.space.vendor.len());
        self.recorder.stage(Stage::Pruning, funnel_line(&field.funnel, left)).await?;
        self.recorder.pruned(&removed).await?;
        self.recorder.job.progress.total = (left + vendor) as u32;
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
        let message =
            format!("measuring {own} candidates and {} vendor routines", field.space.vendor.len());
        self.recorder.stage(Stage::Measuring, message).await?;
        let unknown = |c: &&Candidate| self.recorder.known(c).is_none();
        let ahead: Vec<Candidate> = strategy.upcoming().iter().filter(unknown).cloned().collect();
        self.evaluator.prepare(ahead, &self.signals.stop).await?;

        let mut vendor = field.space.vendor.iter().cloned();
        let mut vendor_next = true;
        loop {
            // In turn, so that a small budget has seen a baseline and a candidate of ours.
            let from_vendor = if vendor_next { vendor.next() } else { None };
            let candidate = match from_vendor {
                Some(candidate) => candidate,
                None => match strategy.next() {
                    Some(candidate) => candidate,
                    None => match vendor.next() {
                        Some(candidate) => candidate,
                        None => return Ok(StoppedBy::Completed),
                    },
                },
            };
            vendor_next = !vendor_next;
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
            let effort = self.measuring.effort;
            self.evaluator.measure(candidate, effort, None, &self.signals.stop).await?.outcome
        };
        if let Outcome::TimedOut { detail } | Outcome::Crashed { detail } = &outcome {
            self.quarantine(candidate, outcome.state(), detail).await?;
        }
        let predicted = field.predicted.get(&candidate.id()).copied();
        self.recorder.outcome(candidate, outcome, predicted, budget.spent()).await?;
        Ok(())
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

    /// Times the best few and the best vendor routine in turn, and decides.
    async fn finals(
        &mut self,
        budget: &Budget,
        expected_calls: Option<u64>,
    ) -> Result<(Vec<Contender>, Decision), SessionError> {
        let mut contenders = self.finalists(expected_calls);
        if contenders.is_empty() {
            return Err(SessionError::Hopeless(self.nothing_ran()));
        }
        let names: Vec<Candidate> = contenders.iter().map(|c| c.candidate.clone()).collect();
        self.recorder
            .stage(Stage::Finals, format!("{} finalists timed in turn", names.len()))
            .await?;
        let round_ms: f64 = contenders.iter().map(|c| c.timing.median_us / 1e3).sum();
        // A budget in seconds is kept to: what is left of it bounds the finals too.
        let left_ms = budget.left().map_or(f64::INFINITY, |left| left.as_secs_f64() * 1e3);
        let rounds = (self.measuring.finals_ms.min(left_ms) / round_ms.max(1e-6)) as u32;
        let rounds = if left_ms < self.measuring.finals_ms {
            rounds.clamp(5, self.measuring.rounds[1])
        } else {
            rounds.clamp(self.measuring.rounds[0], self.measuring.rounds[1])
        };
        match self.evaluator.pair(names, rounds, &self.signals.stop).await {
            Ok(timings) => {
                for (contender, timing) in contenders.iter_mut().zip(timings) {
                    contender.timing = timing;
                }
            }
            Err(PoolError::Cancelled) => return Err(SessionError::Stopped),
            // Each has a time of its own already: a finalist that fails only now must not cost the job its answer.
            Err(error) => {
                self.recorder.log(format!("finals failed ({error}); single timings decide")).await?
            }
        }
        let decision = search::decide(&contenders, expected_calls)
            .ok_or_else(|| SessionError::Hopeless(self.nothing_ran()))?;
        Ok((contenders, decision))
    }

    fn finalists(&self, expected_calls: Option<u64>) -> Vec<Contender> {
        let mut measured: Vec<Contender> = self
            .recorder
            .tried()
            .into_iter()
            .filter_map(|(candidate, outcome)| match outcome {
                Outcome::Measured { timing, preprocess_ms, .. } => Some(Contender {
                    candidate: candidate.clone(),
                    timing: timing.clone(),
                    preprocess_ms: *preprocess_ms,
                    complexity: ops::complexity(candidate),
                }),
                _ => None,
            })
            .collect();
        let cost = |c: &Contender| match expected_calls {
            Some(calls) => c.preprocess_ms * 1e3 + calls as f64 * c.timing.median_us,
            None => c.timing.median_us,
        };
        measured.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        let vendor = measured.iter().position(|c| c.candidate.family == "vendor");
        let vendor = vendor.map(|at| measured.remove(at));
        measured.retain(|c| c.candidate.family != "vendor");
        measured.truncate(self.measuring.finalists);
        measured.extend(vendor);
        measured
    }

    fn nothing_ran(&self) -> String {
        let mut counts: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
        let tried = self.recorder.tried();
        for (_, outcome) in &tried {
            *counts.entry(outcome.state()).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(state, n)| format!("{n} {state}")).collect();
        format!("none of {} candidates could be measured: {}", tried.len(), counts.join(", "))
    }
}

fn funnel_line(funnel: &[FunnelStep], left: usize) -> String {
    let steps: Vec<String> =
        funnel.iter().map(|step| format!("{} -{}", step.constraint, step.removed)).collect();
    format!("{}; {left} left", steps.join(", "))
}
