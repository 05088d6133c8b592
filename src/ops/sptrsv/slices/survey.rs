//! What a rewriting comes to, seen by rewriting a sample of the levels.
//!
//! Windows depend on what is near them alone, so that runs of levels can be rewritten as [`super::rewrite::rewrite`] would
//! rewrite all of them. A run stands for the stratum of levels that it lies in, however many terms its levels have: a
//! stratum of wide levels is seen in few of them, one of narrow levels in many, and neither counts for the other. Windows
//! that were not seen to their end are taken for as long as they would have become.

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

/// Chosen by the error over 46 generated and real systems, each rewritten with 250, 1000 and 4000 ns a window: the absolute
/// logarithm of what was seen over what came of it is 0.14 for windows and 0.09 for terms in the median, and no more than 0.71
/// and 0.44 for nine of ten. With 3 strata it is 0.15 and 0.13, with 12 it is 0.19 and 0.10.
pub const EFFORT: Effort = Effort { terms: 180_000, strata: 6 };

/// Strata that there are in any case.
const FEWEST: usize = 3;

/// Levels of a stratum that are looked at whatever they cost: fewer do not tell whether one joins the other.
const LEVELS: usize = 2;

/// A window that was cut off is taken for as many times longer at most.
const MOST_GROWTH: f64 = 16.0;

/// A window as it was seen, which may have been cut off at its end.
#[derive(Clone, Copy, Default)]
struct Window {
    first: usize,
    levels: usize,
    rows: usize,
    /// Terms that its rows have as they come, and those that they have rewritten.
    plain: usize,
    terms: usize,
    longest: usize,
    /// The longest equation, in unknowns or in b.
    most: usize,
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
                for &row in rows {
                    let (known, unknown) = work.lengths(row as usize);
                    window.longest = unknown.max(window.longest);
                    window.most = known.max(unknown).max(window.most);
                }
                window.plain += plain(system, rows);
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
        let seen = Seen { stratum: edge(stratum), cut: spent && level < levels, end };
        whole.add(run, &seen, by_level, &Growth { most: cost.window_terms(), how });
        stratum += 1;
        from = end;
    }
    whole.reach(levels, system.triangular.rows())
}

/// Terms of rows as they come, their own in b counted.
fn plain(system: &System, rows: &[u32]) -> usize {
    let ends = &system.triangular.indptr;
    rows.iter().map(|&row| 1 + ends[row as usize + 1] - ends[row as usize]).sum()
}

/// So many strata that their first levels alone do not spend the terms.
fn strata(system: &System, by_level: &ByLevel, effort: Effort) -> usize {
    let levels = system.levels.widths.len();
    let least = |strata: usize| -> usize {
        let first = (0..strata).map(|stratum| levels * stratum / strata);
        first
            .flat_map(|from| from..levels.min(from + LEVELS))
            .map(|level| plain(system, by_level.rows(level)))
            .sum()
    };
    let most = effort.strata.min(levels / (2 * LEVELS)).max(1);
    let mut strata = most;
    while strata > FEWEST && least(strata) > effort.terms / 2 {
        strata = (strata * 2 / 3).max(FEWEST);
    }
    strata
}

/// How far a run was seen.
struct Seen {
    /// Where the stratum begins in which it ended.
    stratum: usize,
    /// Whether its last window was left before it closed.
    cut: bool,
    /// The end of the levels that it stands for.
    end: usize,
}

/// How windows grow that were cut off before they closed.
struct Growth {
    /// Terms that cost as much as a window.
    most: f64,
    how: Rewrite,
}

impl Growth {
    /// How many times as long a window becomes that was cut off; its equations become longer as it does.
    ///
    /// Each level that joins has some more terms than the one before, so that what substituting adds rises with the square
    /// of the levels. A window closes where the last level has more terms than the mean and the window's own cost together,
    /// which is where the terms added come to what the window costs; or where an equation reaches the most terms.
    fn of(&self, window: &Window, left: usize) -> f64 {
        let added = window.terms.saturating_sub(window.plain).max(1) as f64;
        let by_cost = (self.most / added).sqrt();
        let by_length = f64::from(self.how.terms) / window.most.max(1) as f64;
        let by_levels = left as f64 / window.levels.max(1) as f64;
        by_cost.min(by_length).min(by_levels).clamp(1.0, MOST_GROWTH)
    }
}

/// Sums over all levels, of what was seen and of what that stands for.
#[derive(Default)]
struct Sums {
    windows: f64,
    terms: f64,
    longest: f64,
}

impl Sums {
    /// Adds a run; of what was not seen of its levels, those windows tell that began in the last stratum.
    fn add(&mut self, mut run: Vec<Window>, seen: &Seen, by_level: &ByLevel, growth: &Growth) {
        let tail = run.iter().position(|window| window.first >= seen.stratum);
        let tail = tail.unwrap_or(run.len().saturating_sub(1));
        let begin = run.get(tail).map_or(seen.end, |window| window.first);
        // The last one is cut off: it tells something only where it is longer than those before it by then.
        let mut cut = None;
        if seen.cut
            && let Some(last) = run.pop()
        {
            let before = run.get(tail..).unwrap_or_default();
            let levels: usize = before.iter().map(|window| window.levels).sum();
            cut = (last.levels * before.len() >= levels).then_some(last);
        }
        let (exact, sample) = run.split_at(tail.min(run.len()));
        for window in exact {
            self.windows += 1.0;
            self.longest += window.longest as f64;
            self.terms += window.terms as f64;
        }
        // Levels, rows, windows, terms and longest equations of the sample; a window cut off counts as it would close.
        let mut sums = [0.0; 5];
        let whole = sample.iter().map(|window| (window, 1.0));
        let levels = by_level.start.len() - 1;
        let grown = cut.iter().map(|last| (last, growth.of(last, levels - last.first)));
        for (window, times) in whole.chain(grown) {
            let added = window.terms as f64 - window.plain as f64;
            let of_window = [
                window.levels as f64 * times,
                window.rows as f64 * times,
                1.0,
                (window.plain as f64 + added * times) * times,
                window.longest as f64 * times,
            ];
            sums.iter_mut().zip(of_window).for_each(|(sum, one)| *sum += one);
        }
        let [sampled, sampled_rows, windows, terms, longest] = sums;
        let of_levels = (seen.end - begin) as f64 / sampled.max(1.0);
        let rows = by_level.start[seen.end] - by_level.start[begin];
        self.windows += of_levels * windows;
        self.longest += of_levels * longest;
        self.terms += rows as f64 / sampled_rows.max(1.0) * terms;
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
