//! Rewriting level by level: what [`super::rewrite`] makes of a system, and a survey of some of its levels.

mod later;
mod pattern;

use self::later::Later;
use self::pattern::Pattern;
use super::accumulate::Accumulators;
use super::alike::Alike;
use super::equations::{Equations, Place, Segment, coefficient};
use super::rewrite::{PARALLEL_ROWS, Rewrite, WindowCost, divide, divided};
use crate::ops::sptrsv::System;
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Terms of a segment that narrow levels append to, after which the next segment begins.
const SEGMENT_TERMS: usize = 1 << 20;

/// Memory of the accumulators of all threads together, bytes. Several systems may be rewritten at once.
const ACCUMULATOR_BYTES: usize = 1 << 30;

/// Most terms of a whole rewritten system: beyond it windows close at once.
const MOST_TERMS: usize = 600_000_000;

/// Largest multiple of the system's own terms: beyond it memory is spent for little.
const MOST_FILL: usize = 24;

/// Number of terms that any system may reach, however few its own are.
const FEW_TERMS: usize = 50_000_000;

pub(super) struct Rewriting<'a> {
    system: &'a Triangular,
    how: Rewrite,
    most_growth: f64,
    segments: Vec<Segment>,
    /// Narrow levels go on with the last segment.
    open: bool,
    /// Terms of all equations so far, built or left for later.
    pub(super) stored: usize,
    places: Vec<Place>,
    window: u32,
    begun: bool,
    window_of: Vec<u32>,
    /// Magnitude of each equation, see `GROWTH`.
    growth: Vec<f64>,
    alike: Alike,
    /// Levels of fewer rows are looked at by a pattern.
    narrow: usize,
    /// The open window, as long as no equation of it was built.
    pattern: Pattern,
    /// Closed windows whose equations are built at the end.
    later: Later,
    /// One per task that runs at the same time.
    accumulators: Vec<Accumulators>,
}

impl<'a> Rewriting<'a> {
    pub(super) fn new(system: &'a System, how: Rewrite, threads: usize) -> Self {
        let most_growth = how.most_growth(system.problem.dtype);
        let system = &*system.triangular;
        let rows = system.rows();
        let fitting = ACCUMULATOR_BYTES / (16 * rows.max(1));
        let threads = threads.min(fitting).max(1);
        Self {
            system,
            how,
            most_growth,
            segments: Vec::new(),
            open: false,
            stored: 0,
            places: vec![Place::default(); rows],
            window: 0,
            begun: false,
            window_of: vec![u32::MAX; rows],
            growth: vec![1.0; rows],
            alike: Alike::default(),
            narrow: PARALLEL_ROWS,
            pattern: Pattern::new(rows),
            later: Later::default(),
            accumulators: (0..threads).map(|_| Accumulators::new(rows)).collect(),
        }
    }

    /// Adds the next level: to the open window if that is cheaper, else to a new one; returns whether it is new.
    pub(super) fn take(&mut self, rows: &[u32], cost: &mut WindowCost) -> bool {
        let joined = cost.most_terms().is_some_and(|most| match self.join(rows, most) {
            Ok(Joined { terms, longest }) => {
                self.alike.joined(cost.least_ns(terms), longest);
                cost.add(terms);
                true
            }
            Err(Refused::Growth) => false,
            Err(Refused::Cost) => {
                self.alike.refused_by_cost();
                false
            }
            Err(Refused::Length) => {
                self.alike.refused_by_length();
                false
            }
        });
        if !joined {
            // The first window is there from the start.
            self.window += u32::from(self.begun);
            self.begun = true;
            cost.restart(self.begin(rows));
        }
        rows.iter().for_each(|&row| self.window_of[row as usize] = self.window);
        !joined
    }

    pub(super) fn into_equations(mut self) -> Equations {
        self.build_later();
        let windows = if self.window_of.is_empty() { 0 } else { self.window + 1 };
        let Self { segments, places, window_of, alike, .. } = self;
        Equations { segments, places, window_of, windows, alike, ..Equations::default() }
    }

    fn most_terms(&self) -> usize {
        let own = self.system.nnz() + self.system.rows();
        MOST_TERMS.min(FEW_TERMS.max(MOST_FILL * own))
    }

    /// Begins a window with these rows, in whose equations nothing is substituted, and returns their number of terms. They may be left for
    /// later.
    fn begin(&mut self, rows: &[u32]) -> usize {
        self.close();
        let magnitudes = self.magnitudes(rows, |this, row| Some(this.magnitude(row, false).0));
        self.set_growth(rows, magnitudes.unwrap_or_default());
        if rows.len() < self.narrow
            && let Some(terms) = self.begin_pattern(rows)
        {
            self.stored += terms;
            return terms;
        }
        let terms = match rows.len() < 2 * PARALLEL_ROWS {
            true => {
                let (at, first) = self.last_segment();
                let (system, segment) = (self.system, &mut self.segments[at]);
                let terms = rows.iter().map(|&row| divide(system, row as usize, segment)).sum();
                self.put(rows, at, first);
                terms
            }
            false => {
                let tasks = rows.par_chunks(rows.len().div_ceil(rayon::current_num_threads()));
                let built: Vec<Segment> = tasks.map(|rows| divided(self.system, rows)).collect();
                self.add(rows, built)
            }
        };
        self.stored += terms;
        terms
    }

    /// Adds the rows to the open window, with their parents in it substituted; their equations may be left for later. Nothing is kept if
    /// that takes more terms than `most` in all, or one equation gets too long or grows too much.
    fn join(&mut self, rows: &[u32], most: usize) -> Result<Joined, Refused> {
        let most = most.min(self.most_terms().saturating_sub(self.stored));
        // Each row has a term at least.
        if rows.len() > most {
            return Err(Refused::Cost);
        }
        let magnitudes = self.magnitudes(rows, |this, row| {
            let (grown, plain) = this.magnitude(row, true);
            // Coefficients that overflow cannot be compared, and join nothing.
            (grown <= this.most_growth * plain && grown.is_finite()).then_some(grown)
        });
        self.set_growth(rows, magnitudes.ok_or(Refused::Growth)?);
        if !self.pattern.is_empty() {
            if rows.len() < self.narrow && !self.pattern.is_full() {
                return self.join_pattern(rows, most);
            }
            self.build_open();
        }
        let mut accumulators = std::mem::take(&mut self.accumulators);
        let tasks = accumulators.len().min(2 * rows.len() / PARALLEL_ROWS);
        let joined = match accumulators.first_mut() {
            Some(sums) if tasks < 2 => self.join_narrow(rows, most, sums),
            _ => self.join_wide(rows, most, &mut accumulators[..tasks]),
        };
        self.accumulators = accumulators;
        if let Ok(joined) = &joined {
            self.stored += joined.terms;
        }
        joined
    }

    /// A magnitude for each row; `None` if there is none for one of them.
    fn magnitudes(
        &self,
        rows: &[u32],
        of: impl Fn(&Self, usize) -> Option<f64> + Sync,
    ) -> Option<Vec<f64>> {
        match rows.len() < 2 * PARALLEL_ROWS {
            true => rows.iter().map(|&row| of(self, row as usize)).collect(),
            false => {
                let tasks = rows.par_iter().with_min_len(PARALLEL_ROWS);
                tasks.map(|&row| of(self, row as usize)).collect()
            }
        }
    }

    fn set_growth(&mut self, rows: &[u32], magnitudes: Vec<f64>) {
        rows.iter().zip(magnitudes).for_each(|(&row, grown)| self.growth[row as usize] = grown);
    }

    /// Magnitude of a row's equation, and of the row.
    fn magnitude(&self, row: usize, join: bool) -> (f64, f64) {
        let (columns, values) = self.system.row(row);
        let (mut plain, mut grown) = (1.0, 1.0);
        for (&parent, &value) in columns.iter().zip(values) {
            let factor = coefficient(self.system, row, value).abs();
            plain += factor;
            let substituted = join && self.window_of[parent as usize] == self.window;
            grown += factor * if substituted { self.growth[parent as usize] } else { 1.0 };
        }
        (grown, plain)
    }

    /// The segment that narrow levels append to, and how many equations it has.
    fn last_segment(&mut self) -> (usize, usize) {
        let full = |segment: &Segment| segment.terms() > SEGMENT_TERMS;
        if !self.open || self.segments.last().is_none_or(full) {
            self.segments.push(Segment::default());
            self.open = true;
        }
        let at = self.segments.len() - 1;
        (at, self.segments[at].len())
    }

    /// Adds segments of the same number of rows each, but for the last; returns their number of terms.
    fn add(&mut self, rows: &[u32], built: Vec<Segment>) -> usize {
        self.open = false;
        let (mut from, mut terms) = (0, 0);
        for segment in built {
            let end = from + segment.len();
            terms += segment.terms();
            self.segments.push(segment);
            self.put(&rows[from..end], self.segments.len() - 1, 0);
            from = end;
        }
        terms
    }

    /// On this thread.
    fn join_narrow(
        &mut self,
        rows: &[u32],
        most: usize,
        sums: &mut Accumulators,
    ) -> Result<Joined, Refused> {
        let (at, first) = self.last_segment();
        let mut joined = Joined::default();
        for &row in rows {
            let length = self.sum(row as usize, sums, None);
            joined.terms += sums.terms();
            if length.is_none() || joined.terms > most {
                self.segments[at].truncate(first);
                return Err(if length.is_none() { Refused::Length } else { Refused::Cost });
            }
            joined.longest = joined.longest.max(length.unwrap_or_default());
            sums.take_into(&mut self.segments[at]);
        }
        self.put(rows, at, first);
        Ok(joined)
    }

    /// Distributed among tasks, each with a separate segment.
    fn join_wide(
        &mut self,
        rows: &[u32],
        most: usize,
        accumulators: &mut [Accumulators],
    ) -> Result<Joined, Refused> {
        let share = rows.len().div_ceil(accumulators.len().max(1));
        let (total, longest) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let too_long = AtomicBool::new(false);
        let this = &*self;
        let built: Option<Vec<Segment>> = rows
            .par_chunks(share)
            .zip(accumulators.par_iter_mut())
            .map(|(rows, sums)| {
                let mut segment = Segment::default();
                let kept = rows.iter().all(|&row| {
                    let length = this.sum(row as usize, sums, None);
                    match length {
                        Some(length) => longest.fetch_max(length, Relaxed),
                        None => usize::from(too_long.fetch_or(true, Relaxed)),
                    };
                    let own = if length.is_some() { sums.terms() } else { MOST_TERMS + 1 };
                    // More than the budget for all tasks: the others stop, too.
                    let kept = total.fetch_add(own, Relaxed) + own <= most;
                    if kept {
                        sums.take_into(&mut segment);
                    }
                    kept
                });
                kept.then_some(segment)
            })
            .collect();
        match built {
            Some(built) => {
                Ok(Joined { terms: self.add(rows, built), longest: longest.into_inner() })
            }
            None if too_long.into_inner() => Err(Refused::Length),
            None => Err(Refused::Cost),
        }
    }

    /// Terms of the equation of a row of the open window, in b and in unknowns.
    pub(super) fn lengths(&self, row: usize) -> (usize, usize) {
        if !self.pattern.is_empty() {
            return self.pattern.lengths(row as u32);
        }
        let Place { segment, row } = self.places[row];
        let segment = &self.segments[segment as usize];
        (segment.known.row(row as usize).0.len(), segment.unknown.row(row as usize).0.len())
    }

    fn put(&mut self, rows: &[u32], segment: usize, first: usize) {
        for (i, &row) in rows.iter().enumerate() {
            let row_in_segment = (first + i) as u32;
            self.places[row as usize] = Place { segment: segment as u32, row: row_in_segment };
        }
    }

    /// Sums up one row's equation. Returns the limit of terms that it needs, 0 if no limit is too low; `None` where substituting has made
    /// it too long. All of its window before it is in `own`, if there is one.
    fn sum(&self, row: usize, sums: &mut Accumulators, own: Option<&Segment>) -> Option<usize> {
        let window = if own.is_some() { self.window_of[row] } else { self.window };
        sums.begin();
        sums.known.add(self.system.original(row) as u32, 1.0 / self.system.diagonal[row]);
        let (columns, values) = self.system.row(row);
        for (&parent, &value) in columns.iter().zip(values) {
            let factor = coefficient(self.system, row, value);
            if self.window_of[parent as usize] == window {
                let Place { segment, row } = self.places[parent as usize];
                let segment = own.unwrap_or_else(|| &self.segments[segment as usize]);
                sums.known.add_all(segment.known.row(row as usize), factor);
                sums.unknown.add_all(segment.unknown.row(row as usize), factor);
            } else {
                sums.unknown.add(parent, factor);
            }
        }
        self.limit((sums.known.len(), sums.unknown.len()), columns.len())
    }

    /// The limit of terms that an equation of such lengths needs, 0 if no limit is too low; `None` if it is above the rewriting's. An
    /// equation may stay as long as it is without rewriting.
    fn limit(&self, (known, unknown): (usize, usize), own: usize) -> Option<usize> {
        let needed = known.max(if unknown > own { unknown } else { 0 });
        (needed <= self.how.terms as usize).then_some(needed)
    }
}

/// What a level that joins a window has: terms, and the limit of terms that its longest equation needs.
#[derive(Clone, Copy, Debug, Default)]
struct Joined {
    terms: usize,
    longest: usize,
}

/// Why a level does not join a window: what it costs, the length of an equation, or its growth. Where several reasons hold, any of them.
#[derive(Clone, Copy, Debug)]
enum Refused {
    Cost,
    Length,
    Growth,
}
