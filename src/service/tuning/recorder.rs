//! Stores a running job's trials, progress and best candidate, always guarded by the fence, and knows the trials of
//! earlier attempts.

use crate::domain::job::{Best, Outlook, Progress};
use crate::domain::{
    Candidate, CandidateId, Clock, EventKind, FunnelStep, Job, Outcome, Removal, Stage, Timestamp,
    Timing, Trial, TrialState, discreet,
};
use crate::service::Service;
use crate::service::lease::LeaseSignals;
use crate::store::{Fence, PageRequest, StoreError, TrialQuery};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The current state of the job and its trials.
pub struct Recorder {
    service: Service,
    pub job: Job,
    fence: Fence,
    /// By which a busy store is asked again.
    signals: LeaseSignals,
    trials: HashMap<CandidateId, Trial>,
    next_ordinal: u32,
}

/// What is known of a candidate before it is tried.
#[derive(Default)]
pub struct Known {
    pub predicted_us: Option<f64>,
    /// The rule that would have removed it.
    pub despite: Option<Removal>,
    pub features: Option<Vec<f32>>,
}

impl Recorder {
    /// Resumes a claimed job with all trials that earlier attempts recorded.
    pub async fn resume(
        service: Service,
        job: Job,
        fence: Fence,
        signals: LeaseSignals,
    ) -> Result<Self, StoreError> {
        let (store, all) = (service.store(), PageRequest::ALL);
        let trials = || store.trials(&job.id, &TrialQuery::All, &all);
        let recorded = signals.lasting(trials).await?.items;
        let next_ordinal = recorded.iter().map(|trial| trial.ordinal + 1).max().unwrap_or(0);
        let trials = recorded.into_iter().map(|trial| (trial.candidate.id(), trial)).collect();
        Ok(Self { service, job, fence, signals, trials, next_ordinal })
    }

    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The recorded outcome of a candidate, from this or an earlier attempt.
    pub fn known(&self, candidate: &Candidate) -> Option<&Outcome> {
        self.trials.get(&candidate.id()).and_then(|trial| trial.state.outcome())
    }

    /// The candidates that an earlier attempt left out, if it had made its choice; all others are to be tried.
    pub fn chosen_before(&self) -> Option<HashSet<CandidateId>> {
        let pruned = |trial: &&Trial| matches!(trial.state, TrialState::Pruned { .. });
        // Left-out candidates are stored before the first is tried, in one transaction.
        (!self.trials.is_empty())
            .then(|| self.trials.values().filter(pruned).map(|t| t.candidate.id()).collect())
    }

    /// The number of candidates that a constraint removed.
    pub fn dropped_by(&self, constraint: &str) -> usize {
        let by = |trial: &&Trial| matches!(&trial.state, TrialState::Pruned(removal) if removal.pruned_by == constraint);
        self.trials.values().filter(by).count()
    }

    /// Tried candidates with their outcomes, in the order they were tried.
    pub fn tried(&self) -> Vec<(&Candidate, &Outcome)> {
        let mut tried: Vec<&Trial> =
            self.trials.values().filter(|trial| trial.state.outcome().is_some()).collect();
        tried.sort_by_key(|trial| trial.ordinal);
        tried
            .into_iter()
            .filter_map(|trial| trial.state.outcome().map(|outcome| (&trial.candidate, outcome)))
            .collect()
    }

    /// Predicted and measured microseconds of all trials that have both; vendor routines have no prediction, and a trial that was
    /// cut may have but its first call.
    pub fn predictions(&self) -> Vec<(f64, f64)> {
        let mut trials: Vec<&Trial> = self.trials.values().collect();
        trials.sort_by_key(|trial| trial.ordinal);
        let pair = |trial: &Trial| {
            let timing = trial.state.outcome()?.timing().filter(|timing| !timing.cut)?;
            Some((trial.predicted_us?, timing.median_us))
        };
        trials.into_iter().filter_map(pair).collect()
    }

    pub fn tried_count(&self) -> u32 {
        self.trials.values().filter(|trial| trial.state.outcome().is_some()).count() as u32
    }

    /// The ordinal of the next trial.
    pub fn next_ordinal(&self) -> u32 {
        self.next_ordinal
    }

    pub async fn stage(&mut self, stage: Stage, message: String) -> Result<(), StoreError> {
        self.enter(stage, None, message).await
    }

    /// Enters a stage that takes about this long.
    pub async fn long_stage(
        &mut self,
        stage: Stage,
        expected: Duration,
        message: String,
    ) -> Result<(), StoreError> {
        let outlook = Outlook { began: Timestamp::now(), seconds: expected.as_secs_f64() };
        self.enter(stage, Some(outlook), message).await
    }

    async fn enter(
        &mut self,
        stage: Stage,
        outlook: Option<Outlook>,
        message: String,
    ) -> Result<(), StoreError> {
        (self.job.stage, self.job.outlook) = (stage, outlook);
        self.update().await?;
        self.log(message).await
    }

    pub async fn log(&self, message: String) -> Result<(), StoreError> {
        tracing::info!(job = %self.job.id, "{message}");
        // The log above is the operator's; what is stored is read by clients.
        let message = discreet(&message);
        self.tell(&EventKind::Log { message }).await
    }

    /// An event may be there twice where the answer to the first was lost.
    async fn tell(&self, kind: &EventKind) -> Result<(), StoreError> {
        let store = self.service.store();
        self.signals.lasting(|| store.log(&self.fence, kind)).await
    }

    async fn record(&self, trials: &[Trial]) -> Result<(), StoreError> {
        let store = self.service.store();
        self.signals.lasting(|| store.record_trials(&self.fence, trials)).await
    }

    /// Publishes the pruning steps, including the strategy's own, since the number of trials is known before measuring.
    pub async fn funnel(&self, steps: &[FunnelStep]) -> Result<(), StoreError> {
        self.tell(&EventKind::Funnel { steps: steps.to_vec() }).await
    }

    /// Records the pruned candidates in one transaction.
    pub async fn pruned(&mut self, removed: &[(Candidate, Removal)]) -> Result<(), StoreError> {
        let mut fresh = Vec::new();
        for (candidate, by) in removed {
            if !self.trials.contains_key(&candidate.id()) {
                let state = TrialState::Pruned(by.clone());
                fresh.push(self.trial(candidate, state, Known::default()));
            }
        }
        self.record(&fresh).await?;
        self.trials.extend(fresh.into_iter().map(|trial| (trial.candidate.id(), trial)));
        Ok(())
    }

    /// Records one tried candidate together with the job's progress.
    pub async fn outcome(
        &mut self,
        candidate: &Candidate,
        outcome: Outcome,
        known: Known,
        spent: Duration,
    ) -> Result<(), StoreError> {
        let outcome = outcome.told(discreet);
        let trial = self.trial(candidate, TrialState::Tried(outcome), known);
        self.record(std::slice::from_ref(&trial)).await?;
        self.trials.insert(candidate.id(), trial);
        self.job.search_seconds = spent.as_secs_f64();
        self.progress(None).await
    }

    /// Updates progress and best candidate, and `total` if given.
    pub async fn progress(&mut self, total: Option<u32>) -> Result<(), StoreError> {
        let total = total.unwrap_or(self.job.progress.total);
        self.job.progress = Progress { done: self.tried_count().min(total), total };
        self.job.best = self.best();
        self.update().await
    }

    /// Stores the job as it now stands.
    async fn update(&self) -> Result<(), StoreError> {
        let (store, work) = (self.service.store(), self.job.clone().into());
        self.signals.lasting(|| store.update(&self.fence, &work)).await
    }

    /// The clock by which the job's candidates are timed and chosen.
    pub fn clock(&self) -> Clock {
        let asked = self.job.request.search.clock;
        asked.unwrap_or(Clock::of_earlier_versions()).under(self.service.settings().l2_policy)
    }

    fn best(&self) -> Option<Best> {
        let tried = self.tried();
        let timed = tried.into_iter().filter_map(|(c, outcome)| Some((c, outcome.timing()?)));
        let search = &self.job.request.search;
        best_of(timed, |candidate| search.admits(&candidate.family), self.clock())
    }

    fn trial(&mut self, candidate: &Candidate, state: TrialState, known: Known) -> Trial {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        Trial {
            job: self.job.id.clone(),
            ordinal,
            candidate: candidate.clone(),
            state,
            predicted_us: known.predicted_us,
            despite: known.despite,
            features: known.features,
            created_at: Timestamp::now(),
        }
    }
}

/// The fastest candidate that may win, with its speed-up over the fastest vendor routine. Only times by one clock are compared, the job's
/// unless no candidate has one: a trial that was cut may have but the time of one call alone.
fn best_of<'t>(
    timed: impl Iterator<Item = (&'t Candidate, &'t Timing)> + Clone,
    may_win: impl Fn(&Candidate) -> bool,
    clock: Clock,
) -> Option<Best> {
    let own = || timed.clone().filter(|(candidate, _)| may_win(candidate));
    let clock = clock.in_common(own().map(|(_, timing)| timing));
    let median = |timing: &Timing| timing.tells(clock).then_some(timing.median_us);
    let medians = own().filter_map(|(candidate, timing)| Some((candidate, median(timing)?)));
    let (candidate, median_us) = medians.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let baselines = timed.clone().filter(|(candidate, _)| candidate.is_baseline());
    let baseline = baselines.filter_map(|(_, timing)| median(timing)).min_by(f64::total_cmp);
    let speedup = baseline.map(|baseline| baseline / median_us);
    Some(Best { candidate: candidate.clone(), median_us, speedup })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::candidate::VENDOR;

    #[test]
    fn the_best_is_the_best_by_one_clock() {
        let (alone, row) = (Clock::Isolated, Clock::Pipelined);
        let best = |times: &[(&str, f64, Clock)]| {
            let timed: Vec<(Candidate, Timing)> = times
                .iter()
                .map(|(name, us, clock)| {
                    let candidate = Candidate::new(name).with_text("algorithm", "mkl_mm");
                    (candidate, Timing::of(vec![*us], 0).unwrap().by(*clock))
                })
                .collect();
            let best = best_of(timed.iter().map(|(c, t)| (c, t)), |_| true, row).unwrap();
            (best.candidate.family, best.speedup)
        };
        let is = |name: &str, speedup| (name.to_owned(), speedup);
        assert_eq!(
            best(&[("a", 10.0, row), ("b", 20.0, row), (VENDOR, 30.0, row)]),
            is("a", Some(3.0))
        );
        // A first call alone is no time by the job's clock.
        assert_eq!(
            best(&[("a", 10.0, alone), ("b", 20.0, row), (VENDOR, 30.0, row)]),
            is("b", Some(1.5))
        );
        assert_eq!(best(&[("a", 10.0, row), (VENDOR, 30.0, alone)]), is("a", None));
        assert_eq!(best(&[("a", 10.0, alone), (VENDOR, 30.0, row)]), is(VENDOR, Some(1.0)));
        assert_eq!(best(&[("a", 10.0, alone), (VENDOR, 30.0, alone)]), is("a", Some(3.0)));
        // A call this long is alone by either.
        assert_eq!(best(&[("a", 10.0, alone), (VENDOR, 3000.0, row)]), is("a", Some(300.0)));
        assert_eq!(
            best(&[("a", 1000.0, alone), (VENDOR, 30.0, row), ("b", 20.0, row)]),
            is("b", Some(1.5))
        );
    }
}
