//! The effect of a rewriting, estimated by rewriting a sample of the levels.
//!
//! Windows depend only on nearby levels, so runs of levels can be rewritten as [`super::rewrite::rewrite`] would rewrite all
//! of them. A run represents the stratum of levels that it lies in, however many terms its levels have: a stratum of wide
//! levels is sampled by few of them, one of narrow levels by many, and neither counts for the other. Windows that were not
//! seen to their end are extrapolated to the length that they would have reached.

use super::equations::ByLevel;
use super::rewrite::{Rewrite, WindowCost};
use super::rewriting::Rewriting;
use crate::ops::sptrsv::System;
use std::ops::Range;

/// The effect of a rewriting, as far as some of the levels show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Levels per window.
    pub levels: f64,
    /// Terms of an equation, in unknowns and in b.
    pub terms: f64,
    /// Terms in unknowns of a window's longest equation, on average over windows: other equations wait for it.
    pub longest: f64,
}

/// How much a survey reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Approximate number of terms that are built.
    pub terms: usize,
    /// Most strata.
    pub strata: usize,
}

/// Chosen by the error over 22 generated systems, each rewritten with 250, 1000 and 4000 ns per window (`cargo bench --bench
/// survey`): the absolute logarithm of estimate over result is 0.28 for windows and 0.12 for terms in the median, and no more
/// than 0.69 and 0.39 for nine of ten. With 3 strata it is 0.19 and 0.24 (0.69 and 0.45), with 12 it is 0.38 and 0.12 (0.76
/// and 0.40).
pub const EFFORT: Effort = Effort { terms: 180_000, strata: 6 };

/// Fewest strata.
const FEWEST: usize = 3;

/// Levels of a stratum that are rewritten whatever they cost: fewer do not show whether one joins the other.
const LEVELS: usize = 2;

/// Largest factor by which a window that was cut off is extrapolated.
const MOST_GROWTH: f64 = 16.0;

/// A window as it was seen, which may have been cut off at its end.
#[derive(Clone, Copy, Default)]
struct Window {
    first: usize,
    levels: usize,
    /// Terms of its rows after rewriting.
    terms: usize,
    longest: usize,
    /// The longest equation, in unknowns or in b.
    most: usize,
}

impl Window {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.levels
    }
}

/// Sizes of all levels of a system as given, which a sample is compared with.
pub struct LevelProfile<'a> {
    system: &'a System,
    by_level: ByLevel,
    /// Terms of all levels before each level, including a row's own in b.
    terms: Vec<usize>,
    /// Unknowns of the longest row of each level, summed.
    longest: usize,
}

impl<'a> LevelProfile<'a> {
    pub fn of(system: &'a System) -> Self {
        let by_level = ByLevel::of(&system.levels);
        let (mut terms, mut before, mut longest) = (vec![0], 0, 0);
        let ends = &system.triangular.indptr;
        for level in 0..system.levels.widths.len() {
            let unknowns =
                by_level.rows(level).iter().map(|&row| ends[row as usize + 1] - ends[row as usize]);
            let (sum, most) = unknowns.fold((0, 0), |(sum, most), n| (sum + 1 + n, n.max(most)));
            (before, longest) = (before + sum, longest + most);
            terms.push(before);
        }
        Self { system, by_level, terms, longest }
    }

    fn levels(&self) -> usize {
        self.system.levels.widths.len()
    }

    fn terms(&self, levels: Range<usize>) -> usize {
        self.terms[levels.end] - self.terms[levels.start]
    }

    fn rows(&self, levels: Range<usize>) -> usize {
        self.by_level.start[levels.end] - self.by_level.start[levels.start]
    }

    /// The figures of no rewriting.
    fn plain(&self) -> Reach {
        let all = 0..self.levels();
        Reach {
            levels: 1.0,
            terms: self.terms(all.clone()) as f64 / self.system.triangular.rows().max(1) as f64,
            longest: self.longest as f64 / all.len().max(1) as f64,
        }
    }
}

/// Surveys a rewriting; a system with few rewritten terms is rewritten whole, and its figures are exact.
pub fn survey(profile: &LevelProfile<'_>, how: Rewrite) -> Reach {
    survey_by(profile, how, EFFORT)
}

/// [`survey`] with a chosen effort.
pub fn survey_by(profile: &LevelProfile<'_>, how: Rewrite, effort: Effort) -> Reach {
    if how.window_ns == 0 {
        return profile.plain();
    }
    let (system, by_level, levels) = (profile.system, &profile.by_level, profile.levels());
    let edges = edges(profile, effort);
    let (edge, strata) = (|stratum: usize| edges[stratum], edges.len() - 1);
    let mut work = Rewriting::new(system, how, 1);
    let mut whole = Sums::default();
    let (mut stratum, mut from) = (0, 0);
    while from < levels {
        // From here until the terms are spent: through several strata if they have few terms.
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
                window.levels += 1;
                window.terms += work.stored - built;
            }
            level += 1;
            // Strata so far have a share each; what one does not use is available to the next.
            spent = work.stored > effort.terms * (stratum + 1) / strata
                && level - from.max(edge(stratum)) >= LEVELS.min(edge(stratum + 1) - edge(stratum));
        }
        let end = if spent { edge(stratum + 1) } else { levels };
        let seen = Seen { stratum: edge(stratum), cut: spent && level < levels, end };
        whole.add(run, &seen, profile, &Growth { most: cost.window_terms(), how });
        stratum += 1;
        from = end;
    }
    whole.reach(levels, system.triangular.rows())
}

/// Where strata begin, and the end: few enough that their first levels alone do not spend the terms.
fn edges(profile: &LevelProfile<'_>, effort: Effort) -> Vec<usize> {
    let levels = profile.levels();
    let least = |edges: &[usize]| -> usize {
        let first = edges.windows(2).map(|ends| ends[0]..ends[1].min(ends[0] + LEVELS));
        first.map(|first| profile.terms(first)).sum()
    };
    let mut strata = effort.strata.min(levels / (2 * LEVELS)).max(1);
    let mut edges = even(profile, strata);
    while strata > FEWEST && least(&edges) > effort.terms / 2 {
        strata = (strata * 2 / 3).max(FEWEST);
        edges = even(profile, strata);
    }
    edges
}

/// Strata with equal shares of the mean of levels and terms: a dense end of few levels, which is most of the work of a
/// factor, becomes a stratum.
fn even(profile: &LevelProfile<'_>, strata: usize) -> Vec<usize> {
    let levels = profile.levels();
    let all = profile.terms(0..levels).max(1) as f64;
    let share = |level: usize| {
        let by_levels = level as f64 / levels.max(1) as f64;
        0.5 * (by_levels + profile.terms[level] as f64 / all)
    };
    let mut edges = vec![0];
    for stratum in 1..strata {
        let at = stratum as f64 / strata as f64;
        let (mut low, mut high) = (0, levels);
        while low < high {
            let middle = usize::midpoint(low, high);
            if share(middle) < at { low = middle + 1 } else { high = middle }
        }
        edges.push(low);
    }
    edges.push(levels);
    edges.dedup();
    edges
}

/// How far a run was seen.
struct Seen {
    /// Where the stratum begins in which it ended.
    stratum: usize,
    /// Whether its last window was abandoned before it closed.
    cut: bool,
    /// The end of the levels that it represents.
    end: usize,
}

/// How windows grow that were cut off before they closed.
struct Growth {
    /// Number of terms that cost as much as a window.
    most: f64,
    how: Rewrite,
}

impl Growth {
    /// Factor by which a window that was cut off becomes longer; its equations become longer by the same factor.
    ///
    /// Each level that joins has some more terms than the one before, so the terms that substituting adds rise with the
    /// square of the levels. A window closes at the level with more terms than the mean and the window's own cost together,
    /// which is where the added terms equal the cost of the window; or when an equation reaches the most terms.
    fn of(&self, window: &Window, profile: &LevelProfile<'_>) -> f64 {
        // A single level does not show whether others join.
        if window.levels < 2 {
            return 1.0;
        }
        let added = window.terms.saturating_sub(profile.terms(window.range())).max(1) as f64;
        let left = profile.levels() - window.first;
        let by_cost = (self.most / added).sqrt();
        let by_length = f64::from(self.how.terms) / window.most.max(1) as f64;
        let by_levels = left as f64 / window.levels.max(1) as f64;
        by_cost.min(by_length).min(by_levels).clamp(1.0, MOST_GROWTH)
    }
}

/// Sums over all levels: of what was seen, and of what that represents.
#[derive(Default)]
struct Sums {
    windows: f64,
    terms: f64,
    longest: f64,
}

impl Sums {
    /// Adds a run; for its levels that were not seen, the windows that began in the last stratum are representative.
    ///
    /// What rewriting adds is counted per row, and added to the terms that all of those levels have anyway.
    fn add(
        &mut self,
        mut run: Vec<Window>,
        seen: &Seen,
        profile: &LevelProfile<'_>,
        growth: &Growth,
    ) {
        let tail = run.iter().position(|window| window.first >= seen.stratum);
        let tail = tail.unwrap_or(run.len().saturating_sub(1));
        let begin = run.get(tail).map_or(seen.end, |window| window.first);
        // The last window is cut off. If it was seen up to the end it counts as it is: a heavy level that ends a stratum is
        // such a window. Otherwise it is informative only if it is already no shorter than those before it.
        let mut cut = None;
        if seen.cut
            && run.last().is_some_and(|last| last.range().end < seen.end)
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
        // Of the sample: levels, rows, windows, terms added and longest equations; a window that was cut off counts as it
        // would close.
        let mut sums = [0.0; 5];
        let whole = sample.iter().map(|window| (window, 1.0));
        let grown = cut.iter().map(|last| (last, growth.of(last, profile)));
        for (window, times) in whole.chain(grown) {
            let added = window.terms as f64 - profile.terms(window.range()) as f64;
            let of_window = [
                window.levels as f64 * times,
                profile.rows(window.range()) as f64 * times,
                1.0,
                added * times * times,
                window.longest as f64 * times,
            ];
            sums.iter_mut().zip(of_window).for_each(|(sum, one)| *sum += one);
        }
        let [levels, rows, windows, added, longest] = sums;
        let rest = begin..seen.end;
        let of_levels = rest.len() as f64 / levels.max(1.0);
        let of_rows = profile.rows(rest.clone()) as f64 / rows.max(1.0);
        self.windows += of_levels * windows;
        self.longest += of_levels * longest;
        self.terms += profile.terms(rest) as f64 + of_rows * added;
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
