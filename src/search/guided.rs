//! Guided search: a first part chosen by predictions, then candidates chosen one by one from all outcomes so far. `ranked` and
//! `halving` share it and differ in how they choose.

use super::selector::CandidateSelector;
use crate::domain::Candidate;
use std::collections::{BTreeMap, BTreeSet};

/// Candidates announced ahead of time: the next, and one to be compiled meanwhile. It is small because the next outcome may
/// change the choice, and candidates lowered in vain stay in memory.
const LOOK_AHEAD: usize = 2;

/// How many times as fast as the best of every other family the best of one has to be for the first part to go on with it alone, and by how
/// many microseconds. By half as much a family's first candidate is sometimes behind its best one; and slow candidates have a single call,
/// the first, which may take some tens of microseconds more.
const FAR_AHEAD: f64 = 3.0;
const FAR_AHEAD_US: f64 = 200.0;

/// The data on which a choice is based.
pub struct Observed {
    /// Candidates with their predictions, sorted.
    pub scored: Vec<(Candidate, f64)>,
    /// Medians in microseconds; `None` for a failure.
    pub outcomes: BTreeMap<Candidate, Option<f64>>,
}

/// Chooses the next `count` candidates that are not in `seen`.
pub type Choose = fn(&Observed, seen: &BTreeSet<&Candidate>, count: usize) -> Vec<Candidate>;

/// The first part of a search: of all families, and as it would be of each alone.
#[derive(Default)]
pub struct FirstPart {
    pub all: Vec<Candidate>,
    pub of_family: BTreeMap<String, Vec<Candidate>>,
}

impl Observed {
    /// The best time of each family; infinite where all of its candidates failed.
    fn best(&self) -> BTreeMap<&str, f64> {
        let mut best = BTreeMap::new();
        for (candidate, us) in &self.outcomes {
            let of_family = best.entry(candidate.family.as_str()).or_insert(f64::INFINITY);
            *of_family = us.unwrap_or(f64::INFINITY).min(*of_family);
        }
        best
    }

    /// What is left of the first part if one family is far ahead of all others, each of which was tried: those families' candidates of
    /// which none has a time, for one that failed says little of the next, and then that family's own.
    fn led(&self, first: &FirstPart) -> Option<Vec<Candidate>> {
        // Vendor routines are observed, too, but are no candidates.
        let best = self.best();
        let mut times = Vec::new();
        for family in first.of_family.keys() {
            times.push((*best.get(family.as_str())?, family));
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [(us, leader), (next, _), ..] = times[..] else { return None };
        if !next.is_finite() || us * FAR_AHEAD > next || us + FAR_AHEAD_US > next {
            return None;
        }
        let untimed = |candidate: &&Candidate| {
            best.get(candidate.family.as_str()).is_some_and(|us| us.is_infinite())
        };
        let own = first.of_family.get(leader)?;
        Some(first.all.iter().filter(untimed).chain(own).cloned().collect())
    }
}

/// Whether outcomes are reason enough to leave the queue.
pub type Doubt = Box<dyn Fn(&Observed) -> bool + Send + Sync>;

pub struct Guided {
    observed: Observed,
    places: usize,
    /// Number of trials in the first part, which outcomes do not change unless a family is far ahead of all others.
    first: usize,
    /// Which such a family has from then on. Without families the queue's first part stays as it is.
    part: FirstPart,
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
    pub fn of(
        scored: Vec<(Candidate, f64)>,
        (places, first): (usize, usize),
        queue: Vec<Candidate>,
        replayed: usize,
        choose: Choose,
    ) -> Self {
        let observed = Observed { scored, outcomes: BTreeMap::new() };
        let (part, doubt) = (FirstPart::default(), None);
        Self { observed, places, first, part, queue, replayed, handed_out: 0, choose, doubt }
    }

    /// A family that is far ahead of all others gets the rest of the first part.
    pub fn among(self, part: FirstPart) -> Self {
        Self { part, ..self }
    }

    /// The queue is left only if, after the first part, there is reason to doubt it.
    pub fn doubting(self, doubt: Doubt) -> Self {
        Self { doubt: Some(doubt), ..self }
    }

    /// Leaves the rest of the first part to the family that is far ahead, if there is one.
    fn follow_the_leader(&mut self) {
        let Some(rest) = self.observed.led(&self.part) else { return };
        self.queue.truncate(self.handed_out);
        let seen: BTreeSet<&Candidate> = self.queue.iter().collect();
        let left = self.first.saturating_sub(self.handed_out);
        let unseen = rest.iter().filter(|candidate| !seen.contains(candidate)).take(left);
        let unseen: Vec<Candidate> = unseen.cloned().collect();
        self.queue.extend(unseen);
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
        if self.handed_out < self.first {
            self.follow_the_leader();
        }
        // Vendor routines are observed too. Nothing else is chosen during the first part of the queue; after it, each outcome may
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
