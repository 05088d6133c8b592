//! The measuring phase of a session: selects the next candidate, runs its trial, and handles hangs and crashes.

use super::recorder::Known;
use super::search_context::SearchContext;
use super::session::{Session, SessionError};
use super::watch::TrialWatch;
use crate::domain::candidate::VENDOR;
use crate::domain::protocol::Effort;
use crate::domain::{
    Candidate, CandidateId, JobRequest, Outcome, QuarantineScope, SearchStrategy, Stage, StoppedBy,
    Timestamp, discreet,
};
use crate::ops;
use crate::pool::PoolError;
use crate::search::{Budget, CandidateSelector};
use crate::store::{Quarantined, StoreError};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tracing::Instrument;

/// Time allowed for a first call in addition to the kernel itself: loading its module, poisoning buffers, comparing.
const SLACK: Duration = Duration::from_secs(3);

/// Number of candidates lowered and compiled ahead: enough to keep the compiler threads busy, few enough that their
/// packed arrays fit into memory.
const AHEAD: usize = 32;

/// Preparations per request, which the evaluator makes side by side: that of a large system takes seconds, and the budget is checked
/// in between.
const SIDE_BY_SIDE: usize = 4;

/// How long candidates are prepared before one is measured. Of what is prepared the budget may leave no time to measure anything, and
/// outcomes may show that others are better.
const PREPARING: Duration = Duration::from_millis(200);

/// Most bytes for the arrays of candidates lowered ahead, and of preparations made side by side, if each of them packs the whole matrix.
/// What is packed is made of several times as much.
const AHEAD_BYTES: u64 = 2 << 30;
const SIDE_BY_SIDE_BYTES: u64 = 512 << 20;

/// The candidates that have been lowered and compiled ahead.
struct Ahead {
    prepared: HashSet<CandidateId>,
    /// Their preparations, some of which candidates share.
    made: HashSet<String>,
    /// The maximum at any time.
    most: usize,
    /// Preparations made side by side.
    at_once: usize,
    /// The longest time that a request has taken.
    longest: Duration,
}

impl Ahead {
    fn of(context: &SearchContext, request: &JobRequest) -> Self {
        let bytes = ops::of(&request.problem).bytes_per_candidate(context.matrix.nnz);
        let fitting =
            |room: u64, most: usize| bytes.map_or(most, |bytes| most.min((room / bytes) as usize));
        let most = fitting(AHEAD_BYTES, AHEAD).max(4);
        // Where preprocessing counts, its time is that of a preparation which has the host for itself.
        let at_once = match request.expected_calls {
            Some(_) => 1,
            None => fitting(SIDE_BY_SIDE_BYTES, SIDE_BY_SIDE).max(1),
        };
        let (prepared, made) = (HashSet::new(), HashSet::new());
        Self { prepared, made, most, at_once, longest: Duration::ZERO }
    }

    /// What a trial takes longer because it has to prepare first: what no time was left to prepare ahead.
    fn in_the_trial(&self, preparation: &str) -> Duration {
        if self.made.contains(preparation) { Duration::ZERO } else { self.longest }
    }
}

impl Session<'_> {
    /// Tries the vendor routines for a complete baseline, then the selector's candidates until they or the budget are
    /// exhausted. The baseline and one candidate are tried regardless of the time budget.
    pub(super) async fn measure(
        &mut self,
        context: &SearchContext,
        selector: &mut dyn CandidateSelector,
        budget: &mut Budget,
    ) -> Result<StoppedBy, SessionError> {
        let own = selector.left();
        let fixed = context.always.len();
        let message = format!(
            "measuring {fixed} {} tried and {own} {}",
            if fixed == 1 { "routine that is always" } else { "routines that are always" },
            if own == 1 { "candidate" } else { "candidates" },
        );
        self.recorder.stage(Stage::Measuring, message).await?;
        let mut ahead = Ahead::of(context, &self.recorder.job.request);
        self.prepare(selector, &mut ahead, budget).await?;
        let mut always = context.always.iter().cloned();
        let mut handed_out = 0;
        loop {
            let candidate = match always.next() {
                Some(candidate) => candidate,
                None => {
                    handed_out += 1;
                    // Of large systems a few are prepared at a time. A hill climb announces a few ahead, and may change them after
                    // each outcome.
                    let next_unprepared = selector.upcoming().first().is_some_and(|first| {
                        self.recorder.known(first).is_none()
                            && !ahead.prepared.contains(&first.id())
                    });
                    if next_unprepared || handed_out % (ahead.most / 2) == 0 {
                        self.prepare(selector, &mut ahead, budget).await?;
                    }
                    match selector.next() {
                        Some(candidate) => candidate,
                        None => return Ok(StoppedBy::Completed),
                    }
                }
            };
            if self.recorder.known(&candidate).is_none() {
                let job = &self.recorder.job;
                if job.best.is_some() && self.service.concludes(&job.id) {
                    self.recorder
                        .log("ended early: the best so far is the answer".to_owned())
                        .await?;
                    return Ok(StoppedBy::Cancelled);
                }
                // Routines of vendors prepare themselves.
                let preparing = match candidate.family == VENDOR {
                    true => Duration::ZERO,
                    false => ahead.in_the_trial(&self.kernels().preparation(&candidate)),
                };
                budget.keep(self.finals_need(), self.usual_trial() + preparing);
                match budget.exhausted(self.recorder.tried_count()) {
                    // The baseline and one candidate are measured whatever the time.
                    Some(StoppedBy::Seconds) if handed_out <= 1 => {}
                    Some(StoppedBy::Seconds) if self.recorder.job.best.is_none() => {}
                    Some(stopped_by) => return Ok(stopped_by),
                    None => {}
                }
                let needed = handed_out <= 1 || self.recorder.job.best.is_none();
                self.try_one(context, &candidate, budget, needed).await?;
            }
            let median = self.recorder.known(&candidate).and_then(Outcome::median_us);
            selector.observe(&candidate, median);
        }
    }

    /// Lowers the next candidates, some preparations at a time, and compiles them while others are measured. A failure here only loses
    /// the head start.
    async fn prepare(
        &mut self,
        selector: &dyn CandidateSelector,
        ahead: &mut Ahead,
        budget: &mut Budget,
    ) -> Result<(), SessionError> {
        let kernels = self.kernels();
        let unknown = |c: &&Candidate| self.recorder.known(c).is_none();
        let next = selector.upcoming().iter().filter(unknown).take(ahead.most);
        let candidates: Vec<Candidate> =
            next.filter(|c| !ahead.prepared.contains(&c.id())).cloned().collect();
        let began = Instant::now();
        for portion in portions(&candidates, ahead.at_once, |c| kernels.preparation(c)) {
            let started = Instant::now();
            // Time to prepare, and then to measure one of them.
            budget.keep(self.finals_need(), self.usual_trial() + ahead.longest);
            let exhausted = budget.exhausted(self.recorder.tried_count()).is_some();
            if exhausted || began.elapsed() > PREPARING {
                break;
            }
            ahead.prepared.extend(portion.iter().map(Candidate::id));
            match self.evaluator.prepare(portion.to_vec(), &self.signals.stop).await {
                Ok(()) => {
                    ahead.longest = ahead.longest.max(started.elapsed());
                    ahead.made.extend(portion.iter().map(|c| kernels.preparation(c)));
                }
                Err(error @ (PoolError::Cancelled | PoolError::Unavailable { .. })) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let message = format!("candidates are not compiled ahead: {error}");
                    self.recorder.log(message).await?;
                    break;
                }
            }
        }
        Ok(())
    }

    async fn try_one(
        &mut self,
        context: &SearchContext,
        candidate: &Candidate,
        budget: &Budget,
        needed: bool,
    ) -> Result<(), SessionError> {
        if self.signals.stop.is_cancelled() {
            return Err(SessionError::Stopped);
        }
        let began = Instant::now();
        let watch = TrialWatch::start(self.recorder.next_ordinal(), candidate);
        let tried = self
            .try_watched(context, candidate, budget, needed)
            .instrument(watch.span.clone())
            .await;
        if tried.is_ok() {
            watch.end(self.recorder.known(candidate));
        }
        self.pace = (self.pace.0 + 1, self.pace.1 + began.elapsed());
        tried
    }

    async fn try_watched(
        &mut self,
        context: &SearchContext,
        candidate: &Candidate,
        budget: &Budget,
        needed: bool,
    ) -> Result<(), SessionError> {
        let outcome = if context.quarantined.contains(&candidate.id()) {
            let detail = "quarantined: it hung or killed this device before".to_owned();
            Outcome::Refused { detail }
        } else {
            let best_us = self.recorder.job.best.as_ref().map(|best| best.median_us);
            let request = &self.recorder.job.request;
            let give_up_us = best_us.map(|us| us * ops::of(&request.problem).hopeless_factor());
            let effort = match request.search.strategy {
                SearchStrategy::Halving | SearchStrategy::Sampled => self.measuring.brief,
                _ => self.measuring.effort,
            };
            let left_ms = budget.share().map(|share| share.as_secs_f64() * 1e3);
            let effort = Effort { give_up_us, clock: self.clock(), left_ms, needed, ..effort };
            let (patience, stop) = (self.patience(), &self.signals.stop);
            let measured = self.evaluator.measure(candidate, effort, patience, stop).await?;
            let resources = measured.compiled.and_then(|compiled| compiled.resources);
            self.compiled.extend(resources.map(|resources| (candidate.clone(), resources)));
            measured.outcome
        };
        self.tell_interruptions().await?;
        if let Outcome::TimedOut { detail, stopped: false, .. } | Outcome::Crashed { detail } =
            &outcome
        {
            self.quarantine(context, candidate, outcome.state(), detail).await?;
        }
        // A hang kills the child process; long-running jobs are monitored meanwhile.
        self.service.set_device_restarts(&self.device.id, self.evaluator.restarts());
        let id = candidate.id();
        let known = Known {
            predicted_us: context.predicted.get(&id).copied(),
            despite: context.space.despite.get(&id).cloned(),
            features: context.own.get(&id).cloned(),
        };
        self.recorder.outcome(candidate, outcome, known, budget.spent()).await?;
        Ok(())
    }

    /// The time limit of one call: much longer than the best so far, so that a hang costs only seconds. `None` while
    /// nothing has been measured on this matrix.
    pub(super) fn patience(&self) -> Option<Duration> {
        let best = self.recorder.job.best.as_ref()?;
        Some(SLACK + Duration::try_from_secs_f64(best.median_us * 200.0 / 1e6).ok()?)
    }

    /// Tells in the job's log how children were killed from outside since the last trial.
    pub(super) async fn tell_interruptions(&mut self) -> Result<(), StoreError> {
        for told in self.evaluator.take_interruptions() {
            self.recorder.log(told).await?;
        }
        Ok(())
    }

    /// Keeps later searches on this pattern from trying the candidate with the same kernel text, and others once it has hung or crashed
    /// on another pattern too: one matrix may be all that it is slow on. A vendor's routine is tried again by each: every
    /// plan is compared with it, and its text is not known here, so that nothing would ever lift its quarantine.
    async fn quarantine(
        &self,
        context: &SearchContext,
        candidate: &Candidate,
        state: &str,
        detail: &str,
    ) -> Result<(), StoreError> {
        if candidate.family == VENDOR {
            let message = format!(
                "{candidate} {state}, and is not quarantined: vendors' routines never are: {detail}"
            );
            return self.recorder.log(message).await;
        }
        let Some(kernel_digest) = self.device.kernels.get(&candidate.family).copied() else {
            tracing::warn!(%candidate, state, detail, "not quarantined: the kernel digest of its family is unknown");
            return Ok(());
        };
        let entry = Quarantined {
            class: self.device.class(),
            kernel_digest,
            candidate: candidate.clone(),
            scope: QuarantineScope::Pattern,
            reason: discreet(&format!("{state}: {detail}")),
            at: Timestamp::now(),
        };
        let store = self.service.store();
        let pattern = context.matrix.pattern_digest;
        self.signals.lasting(|| store.quarantine(&entry, &pattern)).await?;
        tracing::warn!(%candidate, state, detail, "candidate quarantined");
        Ok(())
    }
}

/// Cuts candidates in order into runs of at most `most` preparations.
fn portions(
    candidates: &[Candidate],
    most: usize,
    preparation: impl Fn(&Candidate) -> String,
) -> Vec<&[Candidate]> {
    let mut portions = Vec::new();
    let (mut first, mut made) = (0, HashSet::new());
    for (at, candidate) in candidates.iter().enumerate() {
        let name = preparation(candidate);
        if made.len() == most && !made.contains(&name) {
            portions.push(&candidates[first..at]);
            (first, made) = (at, HashSet::new());
        }
        made.insert(name);
    }
    if first < candidates.len() {
        portions.push(&candidates[first..]);
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_ends_before_one_preparation_too_many() {
        let named = |name: &&str| Candidate::new(name);
        let all: Vec<Candidate> =
            ["a", "a", "b", "a", "c", "d", "c", "e"].iter().map(named).collect();
        let lengths = |most: usize| -> Vec<usize> {
            portions(&all, most, |c| c.family.clone()).iter().map(|part| part.len()).collect()
        };
        assert_eq!(lengths(1), [2, 1, 1, 1, 1, 1, 1]);
        assert_eq!(lengths(2), [4, 3, 1]);
        assert_eq!(lengths(5), [8]);
        assert!(portions(&[], 2, Candidate::to_string).is_empty());
    }

    #[test]
    fn only_what_was_not_prepared_ahead_takes_its_time_in_the_trial() {
        let longest = Duration::from_millis(300);
        let made = HashSet::from(["slices lanes=4".to_owned()]);
        let ahead = Ahead { prepared: HashSet::new(), made, most: 4, at_once: 1, longest };
        assert_eq!(ahead.in_the_trial("slices lanes=4"), Duration::ZERO);
        assert_eq!(ahead.in_the_trial("slices lanes=8"), longest);
    }
}
