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
use bytemuck::{Zeroable, zeroed_vec};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Terms of a segment that narrow levels append to, after which the next segment begins.
const SEGMENT_TERMS: usize = 1 << 20;

/// Fewest entries and rows of a level for which another task sums up equations.
const TASK_ENTRIES: usize = 512;
const TASK_ROWS: usize = 16;

/// Rows after which a task looks at what the others have built.
const ROWS_A_LOOK: usize = 64;

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
    rows: Vec<Row>,
    window: u32,
    begun: bool,
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

/// What is known of a row's equation. The tasks that build a level write those of its rows, and read those of earlier levels.
struct Row {
    /// Its window's number, counted from 1; 0 for none.
    window: AtomicU32,
    segment: AtomicU32,
    at: AtomicU32,
    /// Magnitude of the equation, see `GROWTH`: the bits of a float64.
    growth: AtomicU64,
}

// SAFETY: atomic integers, which may be zero.
unsafe impl Zeroable for Row {}

impl Row {
    fn window(&self) -> Option<u32> {
        self.window.load(Relaxed).checked_sub(1)
    }

    fn place(&self) -> Place {
        Place { segment: self.segment.load(Relaxed), row: self.at.load(Relaxed) }
    }

    fn growth(&self) -> f64 {
        f64::from_bits(self.growth.load(Relaxed))
    }

    fn enter(&self, window: u32, growth: f64) {
        self.window.store(window + 1, Relaxed);
        self.growth.store(growth.to_bits(), Relaxed);
    }
}

impl<'a> Rewriting<'a> {
    pub(super) fn new(system: &'a System, how: Rewrite, threads: usize) -> Self {
        let most_growth = how.most_growth(system.problem.dtype);
        let system = &*system.triangular;
        let rows = system.rows();
        Self {
            system,
            how,
            most_growth,
            segments: Vec::new(),
            open: false,
            stored: 0,
            rows: zeroed_vec(rows),
            window: 0,
            begun: false,
            alike: Alike::default(),
            narrow: PARALLEL_ROWS,
            pattern: Pattern::new(rows),
            later: Later::default(),
            accumulators: (0..threads.max(1)).map(|_| Accumulators::default()).collect(),
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
        !joined
    }

    pub(super) fn into_equations(mut self) -> Equations {
        self.build_later();
        let windows = if self.rows.is_empty() { 0 } else { self.window + 1 };
        let Self { segments, rows, alike, .. } = self;
        let places = rows.par_iter().map(Row::place).collect();
        let window_of = rows.par_iter().map(|row| row.window().unwrap_or(u32::MAX)).collect();
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
        let pattern = if rows.len() < self.narrow { self.begin_pattern(rows) } else { None };
        let terms = match pattern {
            Some(terms) => {
                self.enter_alone(rows);
                terms
            }
            None if rows.len() < 2 * PARALLEL_ROWS => {
                self.enter_alone(rows);
                let (at, first) = self.last_segment();
                self.put(rows, at, first);
                let (system, segment) = (self.system, &mut self.segments[at]);
                rows.iter().map(|&row| divide(system, row as usize, segment)).sum()
            }
            None => {
                let tasks = rows.par_chunks(rows.len().div_ceil(rayon::current_num_threads()));
                let (first, this) = (self.segments.len(), &*self);
                let build = |(at, rows): (usize, &[u32])| {
                    this.enter_alone(rows);
                    this.put(rows, first + at, 0);
                    divided(this.system, rows)
                };
                let built = tasks.enumerate().map(build).collect();
                self.add(built)
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
        if !self.pattern.is_empty() {
            if !self.all_enter(rows) {
                return Err(Refused::Growth);
            }
            if rows.len() < self.narrow && !self.pattern.is_full() {
                return self.join_pattern(rows, most);
            }
            self.build_open();
        }
        let mut accumulators = std::mem::take(&mut self.accumulators);
        let tasks = accumulators.len().min(self.tasks(rows));
        let joined = match accumulators.first_mut() {
            Some(sums) if tasks < 2 => self.join_narrow(rows, most, sums),
            _ => self.join_wide(rows, most, &mut accumulators[..tasks]),
        };
        self.accumulators = accumulators;
        match joined {
            Ok(joined) => self.stored += joined.terms,
            // What a level costs was looked at before all of it was seen.
            Err(Refused::Cost | Refused::Length) if !self.all_enter(rows) => {
                return Err(Refused::Growth);
            }
            Err(_) => (),
        }
        joined
    }

    /// How many tasks pay for a level: what a row costs goes by its entries, which are counted where rows are few.
    fn tasks(&self, rows: &[u32]) -> usize {
        let system = self.system;
        let entries = match rows.len() < PARALLEL_ROWS {
            true => rows.iter().map(|&row| system.row(row as usize).0.len() + 1).sum(),
            false => rows.len() * (system.nnz() + system.rows()) / system.rows().max(1),
        };
        (entries / TASK_ENTRIES).min(rows.len() / TASK_ROWS)
    }

    /// Enters the rows into the open window, as its first.
    fn enter_alone(&self, rows: &[u32]) {
        for &row in rows {
            let (grown, _) = self.magnitude(row as usize, false);
            self.rows[row as usize].enter(self.window, grown);
        }
    }

    /// Enters a row into the open window, with its parents in it substituted; false if its equation grows too much, and the row does not
    /// belong there.
    fn enters(&self, row: u32) -> bool {
        let (grown, plain) = self.magnitude(row as usize, true);
        self.rows[row as usize].enter(self.window, grown);
        // Coefficients that overflow cannot be compared, and join nothing.
        grown <= self.most_growth * plain && grown.is_finite()
    }

    fn all_enter(&self, rows: &[u32]) -> bool {
        match rows.len() < 2 * PARALLEL_ROWS {
            true => rows.iter().all(|&row| self.enters(row)),
            false => rows.par_iter().with_min_len(PARALLEL_ROWS).all(|&row| self.enters(row)),
        }
    }

    /// Magnitude of a row's equation, and of the row.
    fn magnitude(&self, row: usize, join: bool) -> (f64, f64) {
        let (columns, values) = self.system.row(row);
        let (mut plain, mut grown) = (1.0, 1.0);
        for (&parent, &value) in columns.iter().zip(values) {
            let factor = coefficient(self.system, row, value).abs();
            plain += factor;
            let substituted = join.then(|| &self.rows[parent as usize]);
            let substituted = substituted.filter(|it| it.window() == Some(self.window));
            grown += factor * substituted.map_or(1.0, Row::growth);
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

    /// Adds segments; returns their number of terms.
    fn add(&mut self, built: Vec<Segment>) -> usize {
        self.open = false;
        let terms = built.iter().map(Segment::terms).sum();
        self.segments.extend(built);
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
            let entered = self.enters(row);
            let length = self.sum(row as usize, sums, None);
            joined.terms += sums.terms();
            if !entered || length.is_none() || joined.terms > most {
                self.segments[at].truncate(first);
                return Err(match length {
                    _ if !entered => Refused::Growth,
                    None => Refused::Length,
                    Some(_) => Refused::Cost,
                });
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
        let (total, refused) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (first, this) = (self.segments.len(), &*self);
        let build = |rows: &[u32], sums: &mut Accumulators| {
            sums.built.truncate(0);
            let mut longest = 0;
            // A counter for each row would be what all tasks wait for.
            for rows in rows.chunks(ROWS_A_LOOK) {
                if refused.load(Relaxed) {
                    return Err(None);
                }
                let before = sums.built.terms();
                for &row in rows {
                    if !this.enters(row) {
                        return Err(Some(Refused::Growth));
                    }
                    let length = this.sum(row as usize, sums, None);
                    longest = longest.max(length.ok_or(Some(Refused::Length))?);
                    sums.take();
                }
                let own = sums.built.terms() - before;
                if total.fetch_add(own, Relaxed) + own > most {
                    return Err(Some(Refused::Cost));
                }
            }
            // As large as it is: what grows is copied, and its pages are given back, again and again.
            let built = sums.built.clone();
            if built.terms() > SEGMENT_TERMS {
                sums.built = Segment::default();
            }
            Ok((built, longest))
        };
        let tasks = rows.par_chunks(share).zip(accumulators.par_iter_mut()).enumerate();
        let built: Vec<Result<(Segment, usize), Option<Refused>>> = tasks
            .map(|(at, (rows, sums))| {
                this.put(rows, first + at, 0);
                let built = build(rows, sums);
                if built.is_err() {
                    refused.store(true, Relaxed);
                }
                built
            })
            .collect();
        // Whatever ended the others.
        if let Some(why) = built.iter().find_map(|it| it.as_ref().err().copied().flatten()) {
            return Err(why);
        }
        let (built, longest): (Vec<Segment>, Vec<usize>) = built.into_iter().flatten().unzip();
        let longest = longest.into_iter().max().unwrap_or_default();
        Ok(Joined { terms: self.add(built), longest })
    }

    /// Terms of the equation of a row of the open window, in b and in unknowns.
    pub(super) fn lengths(&self, row: usize) -> (usize, usize) {
        if !self.pattern.is_empty() {
            return self.pattern.lengths(row as u32);
        }
        let Place { segment, row } = self.rows[row].place();
        let segment = &self.segments[segment as usize];
        (segment.known.row(row as usize).0.len(), segment.unknown.row(row as usize).0.len())
    }

    /// Says where the equations of these rows are, or will be.
    fn put(&self, rows: &[u32], segment: usize, first: usize) {
        for (&row, at) in rows.iter().zip(first..) {
            self.rows[row as usize].segment.store(segment as u32, Relaxed);
            self.rows[row as usize].at.store(at as u32, Relaxed);
        }
    }

    /// Sums up one row's equation. Returns the limit of terms that it needs, 0 if no limit is too low; `None` where substituting has made
    /// it too long. All of its window before it is in `own`, if there is one.
    fn sum(&self, row: usize, sums: &mut Accumulators, own: Option<&Segment>) -> Option<usize> {
        let window = if own.is_some() { self.rows[row].window() } else { Some(self.window) };
        sums.begin();
        sums.known.add(self.system.original(row) as u32, 1.0 / self.system.diagonal[row]);
        let (columns, values) = self.system.row(row);
        let most = self.how.terms as usize;
        for (&parent, &value) in columns.iter().zip(values) {
            let factor = coefficient(self.system, row, value);
            let of_parent = &self.rows[parent as usize];
            if of_parent.window() == window {
                let Place { segment, row } = of_parent.place();
                let segment = own.unwrap_or_else(|| &self.segments[segment as usize]);
                let (known, unknown) =
                    (segment.known.row(row as usize), segment.unknown.row(row as usize));
                // Before it is added: one row of very many terms may be a parent of all others.
                if known.0.len() > most || unknown.0.len() > most.max(columns.len()) {
                    return None;
                }
                sums.known.add_all(known, factor);
                sums.unknown.add_all(unknown, factor);
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
