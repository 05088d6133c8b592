//! What a rewriting comes to, seen by rewriting a sample of the levels.
//!
//! Windows depend on what is near them alone, so that runs of levels can be rewritten as [`super::rewrite::rewrite`] would
//! rewrite all of them. A run stands for the stratum of levels that it lies in, however many terms its levels have: a
//! stratum of wide levels is seen in few of them, one of narrow levels in many, and neither counts for the other.

use super::equations::ByLevel;
use super::rewrite::{Rewrite, Rewriting, WindowCost};
use crate::ops::sptrsv::System;

/// What a rewriting comes to, as far as some of the levels tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Levels a window.
    pub levels: f64,
    /// Terms of an equation, in unknowns and in b.
    pub terms: f64,
    /// Terms in unknowns of a window's longest equation, in the mean over windows: others wait for it.
    pub longest: f64,
}

/// How much a survey looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Terms that are built, about.
    pub terms: usize,
    /// Strata of as many levels each, at most.
    pub strata: usize,
}

/// Chosen by the error over generated and real systems; the test `surveys_are_near_what_rewriting_comes_to` has the figures.
pub const EFFORT: Effort = Effort { terms: 180_000, strata: 3 };

/// Strata that there are in any case.
const FEWEST: usize = 3;

/// Levels of a stratum that are looked at whatever they cost: fewer do not tell whether one joins the other.
const LEVELS: usize = 2;

/// A window as it was seen, which may have been cut off at its end.
#[derive(Clone, Copy, Default)]
struct Window {
    first: usize,
    levels: usize,
    rows: usize,
    terms: usize,
    longest: usize,
}

/// Surveys a rewriting; a system that comes to few terms is rewritten whole, and what is told of it is exact.
pub fn survey(system: &System, by_level: &ByLevel, how: Rewrite) -> Reach {
    survey_by(system, by_level, how, EFFORT)
}

/// [`survey`] with an effort of one's own.
pub fn survey_by(system: &System, by_level: &ByLevel, how: Rewrite, effort: Effort) -> Reach {
    let levels = system.levels.widths.len();
    let strata = strata(system, by_level, effort);
    let edge = |stratum: usize| levels * stratum / strata;
    let mut work = Rewriting::new(&system.triangular, how, 1);
    let mut whole = Sums::default();
    let (mut stratum, mut from) = (0, 0);
    while from < levels {
        // From here on until the terms are spent: through several strata where they are few.
        let mut cost = WindowCost::of(system, how);
        let mut run: Vec<Window> = Vec::new();
        let mut level = from;
        let mut spent = false;
        while level < levels && !spent {
            while edge(stratum + 1) <= level {
                stratum += 1;
            }
            let (rows, built) = (by_level.rows(level), work.stored);
            let opened = work.take(rows, &mut cost);
            if opened || level == from {
                run.push(Window { first: level, ..Window::default() });
            }
            if let Some(window) = run.last_mut() {
                let lengths = rows.iter().map(|&row| work.unknowns(row as usize));
                window.longest = lengths.max().unwrap_or(0).max(window.longest);
                window.levels += 1;
                window.rows += rows.len();
                window.terms += work.stored - built;
            }
            level += 1;
            // Strata so far have a share each; what one leaves is the next one's.
            spent = work.stored > effort.terms * (stratum + 1) / strata
                && level - from.max(edge(stratum)) >= LEVELS.min(edge(stratum + 1) - edge(stratum));
        }
        let end = if spent { edge(stratum + 1) } else { levels };
        whole.add(run, edge(stratum), level, end, by_level);
        stratum += 1;
        from = end;
    }
    whole.reach(levels, system.triangular.rows())
}

/// So many strata that their first levels alone do not spend the terms.
fn strata(system: &System, by_level: &ByLevel, effort: Effort) -> usize {
    let levels = system.levels.widths.len();
    let triangular = &system.triangular;
    let own = |level: usize| -> usize {
        let rows = by_level.rows(level).iter().map(|&row| row as usize);
        rows.map(|row| 2 + triangular.indptr[row + 1] - triangular.indptr[row]).sum()
    };
    let least = |strata: usize| -> usize {
        let first = (0..strata).map(|stratum| levels * stratum / strata);
        first.flat_map(|from| from..levels.min(from + LEVELS)).map(own).sum()
    };
    let most = effort.strata.min(levels / (2 * LEVELS)).max(1);
    let mut strata = most;
    while strata > FEWEST && least(strata) > effort.terms / 2 {
        strata = (strata * 2 / 3).max(FEWEST);
    }
    strata
}

/// Sums over all levels, of what was seen and of what that stands for.
#[derive(Default)]
struct Sums {
    windows: f64,
    terms: f64,
    longest: f64,
}

impl Sums {
    /// Adds a run that was seen up to the level `seen` and stands for all up to `end`; of what was not seen, those windows
    /// tell that began in the last stratum, from `stratum` on.
    fn add(
        &mut self,
        mut run: Vec<Window>,
        stratum: usize,
        seen: usize,
        end: usize,
        by_level: &ByLevel,
    ) {
        let tail = run.iter().position(|window| window.first >= stratum);
        let tail = tail.unwrap_or(run.len().saturating_sub(1));
        let begin = run.get(tail).map_or(end, |window| window.first);
        if seen < end && run.len() > tail + 1 {
            // The last one is cut off: it tells something only where it is longer than those before it by then.
            let before = &run[tail..run.len() - 1];
            let mean = before.iter().map(|window| window.levels).sum::<usize>() / before.len();
            if run.last().is_some_and(|last| last.levels <= mean) {
                run.pop();
            }
        }
        let (exact, sample) = run.split_at(tail.min(run.len()));
        let rows = by_level.start[end] - by_level.start[begin];
        let seen_levels: usize = sample.iter().map(|window| window.levels).sum();
        let seen_rows: usize = sample.iter().map(|window| window.rows).sum();
        let of_levels = (end - begin) as f64 / seen_levels.max(1) as f64;
        let of_rows = rows as f64 / seen_rows.max(1) as f64;
        for (windows, of_levels, of_rows) in [(exact, 1.0, 1.0), (sample, of_levels, of_rows)] {
            let sum = |of: fn(&Window) -> usize| windows.iter().map(of).sum::<usize>() as f64;
            self.windows += of_levels * windows.len() as f64;
            self.longest += of_levels * sum(|window| window.longest);
            self.terms += of_rows * sum(|window| window.terms);
        }
    }

    fn reach(&self, levels: usize, rows: usize) -> Reach {
        // Of a system without rows there is nothing to say.
        let windows = self.windows.max(f64::MIN_POSITIVE);
        Reach {
            levels: (levels as f64 / windows).max(1.0),
            terms: self.terms / rows.max(1) as f64,
            longest: self.longest / windows,
        }
    }
}
