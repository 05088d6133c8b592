//! Guided search: a first part that predictions choose, then candidates chosen one by one from all outcomes so far. What
//! `ranked` and `halving` have in common; they differ in how they choose.

use super::strategy::Strategy;
use crate::domain::Candidate;
use std::collections::{BTreeMap, BTreeSet};

/// Candidates that are named ahead of their turn: the next, and one to be compiled meanwhile. The next outcome may turn the
/// choice, and what was lowered for nothing stays in memory.
const LOOK_AHEAD: usize = 2;

/// What a choice is made from.
pub struct Observed {
    /// Candidates with their predictions, sorted.
    pub scored: Vec<(Candidate, f64)>,
    /// Medians in microseconds; `None` for a failure.
    pub outcomes: BTreeMap<Candidate, Option<f64>>,
}

/// Names the next few of those that are not among `seen`.
pub type Choose = fn(&Observed, seen: &BTreeSet<&Candidate>, count: usize) -> Vec<Candidate>;

pub struct Guided {
    observed: Observed,
    places: usize,
    /// The first part of the places, which outcomes do not change.
    first: usize,
    /// Handed out so far, then what is named ahead.
    queue: Vec<Candidate>,
    /// How many of the queue, from its start, an earlier attempt tried.
    replayed: usize,
    handed_out: usize,
    choose: Choose,
}

impl Guided {
    /// `queue` begins with the `replayed` candidates that an earlier attempt tried, in its order: they are handed out again,
    /// so that their outcomes are observed, and take their places. What follows depends on outcomes and predictions alone.
    pub fn boxed(
        scored: Vec<(Candidate, f64)>,
        (places, first): (usize, usize),
        queue: Vec<Candidate>,
        replayed: usize,
        choose: Choose,
    ) -> Box<dyn Strategy> {
        let observed = Observed { scored, outcomes: BTreeMap::new() };
        Box::new(Self { observed, places, first, queue, replayed, handed_out: 0, choose })
    }
}

impl Strategy for Guided {
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
        // What an earlier attempt tried has been paid for: none of it makes room for what today's choice would rather try.
        if self.handed_out < self.replayed {
            return;
        }
        // The vendor's routines are observed, too. While the first part of the queue lasts, nothing is chosen; after it,
        // each outcome may turn the choice.
        if self.handed_out == self.queue.len() || self.handed_out >= self.first {
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
