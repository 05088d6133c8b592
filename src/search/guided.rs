//! Guided search: a first part chosen by predictions, then candidates chosen one by one from all outcomes so far. `ranked` and
//! `halving` share it and differ in how they choose.

use super::selector::CandidateSelector;
use crate::domain::Candidate;
use std::collections::{BTreeMap, BTreeSet};

/// Candidates announced ahead of time: the next, and one to be compiled meanwhile. It is small because the next outcome may
/// change the choice, and candidates lowered in vain stay in memory.
const LOOK_AHEAD: usize = 2;

/// The data on which a choice is based.
pub struct Observed {
    /// Candidates with their predictions, sorted.
    pub scored: Vec<(Candidate, f64)>,
    /// Medians in microseconds; `None` for a failure.
    pub outcomes: BTreeMap<Candidate, Option<f64>>,
}

/// Chooses the next `count` candidates that are not in `seen`.
pub type Choose = fn(&Observed, seen: &BTreeSet<&Candidate>, count: usize) -> Vec<Candidate>;

/// Whether outcomes are reason enough to leave the queue.
pub type Doubt = Box<dyn Fn(&Observed) -> bool + Send + Sync>;

pub struct Guided {
    observed: Observed,
    places: usize,
    /// Number of trials in the first part, which outcomes do not change.
    first: usize,
    /// Candidates handed out so far, then those announced ahead.
    queue: Vec<Candidate>,
    /// Number of candidates at the start of the queue that an earlier attempt tried.
    replayed: usize,
    handed_out: usize,
    choose: Choose,
    /// Until this is so, the queue, which then has a candidate for each place, is followed. Absent: after the first part it is
    /// always left.
    doubt: Option<Doubt>,
}

impl Guided {
    /// `queue` begins with the `replayed` candidates that an earlier attempt tried, in its order: they are handed out again, so
    /// that their outcomes are observed, and count as trials. What follows depends only on outcomes and predictions.
    pub fn boxed(
        scored: Vec<(Candidate, f64)>,
        (places, first): (usize, usize),
        queue: Vec<Candidate>,
        replayed: usize,
        choose: Choose,
    ) -> Box<dyn CandidateSelector> {
        Box::new(Self::of(scored, (places, first), queue, replayed, choose, None))
    }

    /// As [`Self::boxed`], but the queue is left only if, after the first part, there is reason to doubt it.
    pub fn doubting(
        scored: Vec<(Candidate, f64)>,
        parts: (usize, usize),
        queue: Vec<Candidate>,
        replayed: usize,
        choose: Choose,
        doubt: Doubt,
    ) -> Box<dyn CandidateSelector> {
        Box::new(Self::of(scored, parts, queue, replayed, choose, Some(doubt)))
    }

    fn of(
        scored: Vec<(Candidate, f64)>,
        (places, first): (usize, usize),
        queue: Vec<Candidate>,
        replayed: usize,
        choose: Choose,
        doubt: Option<Doubt>,
    ) -> Self {
        let observed = Observed { scored, outcomes: BTreeMap::new() };
        Self { observed, places, first, queue, replayed, handed_out: 0, choose, doubt }
    }
}

impl CandidateSelector for Guided {
    fn next(&mut self) -> Option<Candidate> {
        if self.handed_out >= self.places {
            return None;
        }
        let candidate = self.queue.get(self.handed_out)?.clone();
        self.handed_out += 1;
        Some(candidate)
    }

    fn observe(&mut self, candidate: &Candidate, median_us: Option<f64>) {
        self.observed.outcomes.insert(candidate.clone(), median_us);
        // Trials of an earlier attempt are always replayed, even if today's predictions would choose other candidates.
        if self.handed_out < self.replayed {
            return;
        }
        // Vendor routines are observed too. Nothing is chosen during the first part of the queue; after it, each outcome may
        // change the choice.
        let chooses = self.handed_out == self.queue.len() || self.handed_out >= self.first;
        if chooses && self.doubt.as_ref().is_none_or(|doubt| doubt(&self.observed)) {
            self.queue.truncate(self.handed_out);
            let seen: BTreeSet<&Candidate> = self.queue.iter().collect();
            let chosen = (self.choose)(&self.observed, &seen, LOOK_AHEAD.min(self.left()));
            self.queue.extend(chosen);
        }
    }

    fn upcoming(&self) -> &[Candidate] {
        &self.queue[self.handed_out..]
    }

    fn left(&self) -> usize {
        self.places - self.handed_out.min(self.places)
    }
}
