//! Rewriting: unknowns of the same window are substituted, so that many levels become one (the partitioned inverse of
//! Alvarado and Schreiber, SIAM J. Sci. Comput. 14(2), 1993, with windows chosen by what a level costs on the device).
//!
//! A level costs a hop, however few its rows. Substituting a row's parents by their own equations makes it depend on rows
//! further back: longer rows, fewer hops. Inverted diagonal blocks are the case of a window of consecutive rows, and a dense
//! tail is one where substituting hardly adds a term. A window takes in the next level as long as that lowers the mean cost
//! of a level; the first term of that mean is the fixed cost of a window, `window_ns`.
//!
//! Effect on rounding: within a window a row is summed from terms of earlier windows and of b, not from its parents' computed
//! values. Its rounding errors are relative to the window's terms, so the result is backward stable in the norm of a window;
//! row by row it is so only where rows do not cancel terms much larger than their result. Random right-hand sides do not
//! produce such rows in well-behaved systems; one constructed to cancel does. Plans therefore state the measured error, a
//! system that amplifies is rewritten only where its solution is refined ([`super::refine`]), and `window_ns = 0` is substitution,
//! row by row.
//!
//! Substituted coefficients are products along paths. Where they grow, so do the rounding errors of what cancels against
//! them (Higham and Pothen, SIAM J. Sci. Comput. 15(1), 1994: the method is stable where the inverted parts are well
//! conditioned), so a window closes before an equation that has grown by more than `GROWTH`.

use super::accumulate::Accumulators;
use super::equations::{ByLevel, Equations, Place, Segment, coefficient};
use super::refine;
use crate::domain::Dtype;
use crate::ops::sptrsv::System;
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Levels of at least this many rows are rewritten in parallel, by tasks of at least half as many.
const PARALLEL_ROWS: usize = 256;

/// Terms of a segment that narrow levels append to, after which the next segment begins.
const SEGMENT_TERMS: usize = 1 << 20;

/// Largest ratio of an equation's magnitude to that of the row it came from.
///
/// The magnitude is 1 + sum |m_j| g_j over the row's terms, where g_j is the parent's magnitude if it is substituted and else
/// 1: an upper bound of sum |P_k d_k| + sum |M_k|, and the same however rows of the system are scaled. The tolerance of the
/// verification leaves about eight bits, and refinement more ([`refine::growth`]).
pub(in crate::ops::sptrsv) const GROWTH: f64 = 256.0;

/// Memory of the accumulators of all threads together, bytes.
const ACCUMULATOR_BYTES: usize = 4 << 30;

/// Most terms of a whole rewritten system: beyond it windows close at once.
const MOST_TERMS: usize = 600_000_000;

/// Largest multiple of the system's own terms: beyond it memory is spent for little.
const MOST_FILL: usize = 24;

/// Number of terms that any system may reach, however few its own are.
const FEW_TERMS: usize = 50_000_000;

/// How far to rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rewrite {
    /// Fixed cost of a window, nanoseconds; 0 makes every level a window.
    pub window_ns: u32,
    /// Most terms of an equation in unknowns, and in b; an equation that is longer without rewriting may stay so.
    pub terms: u32,
    /// Whether the solution is refined afterwards ([`super::refine`]), so that coefficients may grow further.
    pub refine: bool,
}

impl Rewrite {
    /// Without refinement.
    pub const fn of(window_ns: u32, terms: u32) -> Self {
        Self { window_ns, terms, refine: false }
    }

    /// Largest growth of an equation, see [`GROWTH`].
    fn most_growth(self, dtype: Dtype) -> f64 {
        if self.refine { refine::growth(dtype) } else { GROWTH }
    }
}

/// Rewrites a system; with `window_ns` 0, every level is a window and only the diagonal is divided out.
pub fn rewrite(system: &System, how: Rewrite) -> Equations {
    let started = Instant::now();
    let triangular = &*system.triangular;
    let rows = triangular.rows();
    let by_level = ByLevel::of(&system.levels);
    let mut work = Rewriting::new(system, how, rayon::current_num_threads());
    let mut cost = WindowCost::of(system, how);
    for level in 0..system.levels.widths.len() {
        work.take(by_level.rows(level), &mut cost);
    }
    let windows = if rows == 0 { 0 } else { work.window + 1 };
    let rows = (0..rows).map(|row| Some(triangular.original(row) as u32)).collect();
    let Rewriting { segments, places, window_of, .. } = work;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    Equations { segments, places, rows, window_of, windows, ms }
}

/// The running mean cost of a level in the open window.
pub(super) struct WindowCost {
    ns_a_term: f64,
    window_ns: f64,
    spent_ns: f64,
    levels: u32,
}

impl WindowCost {
    pub(super) fn of(system: &System, how: Rewrite) -> Self {
        let element = system.problem.dtype.bytes() as f64;
        // An entry is streamed from memory; the unknown that it multiplies comes from L2, at a few times that rate.
        let bytes = 4.0 + element + 0.4 * element * f64::from(system.problem.rhs);
        // GB/s are bytes per nanosecond. A device that could not be measured counts as a slow one.
        let rate = if system.device.copy_gbps > 0.0 { system.device.copy_gbps } else { 100.0 };
        let window_ns = f64::from(how.window_ns);
        Self { ns_a_term: bytes / rate, window_ns, spent_ns: 0.0, levels: 0 }
    }

    /// Number of terms that cost as much as a window.
    pub(super) fn window_terms(&self) -> f64 {
        self.window_ns / self.ns_a_term
    }

    /// Most terms of the next level for which joining it lowers the mean; `None` if no level should join.
    fn most_terms(&self) -> Option<usize> {
        let most = (self.window_ns + self.spent_ns) / f64::from(self.levels) / self.ns_a_term;
        (self.levels > 0 && self.window_ns > 0.0).then_some(most as usize)
    }

    fn add(&mut self, terms: usize) {
        self.spent_ns += terms as f64 * self.ns_a_term;
        self.levels += 1;
    }

    fn restart(&mut self, terms: usize) {
        self.spent_ns = terms as f64 * self.ns_a_term;
        self.levels = 1;
    }
}

pub(super) struct Rewriting<'a> {
    system: &'a Triangular,
    how: Rewrite,
    most_growth: f64,
    segments: Vec<Segment>,
    /// Narrow levels go on with the last segment.
    open: bool,
    /// Terms built so far.
    pub(super) stored: usize,
    places: Vec<Place>,
    window: u32,
    begun: bool,
    window_of: Vec<u32>,
    /// Magnitude of each equation, see `GROWTH`.
    growth: Vec<f64>,
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
            growth: vec![1.0; if how.window_ns > 0 { rows } else { 0 }],
            accumulators: (0..threads).map(|_| Accumulators::new(rows)).collect(),
        }
    }

    /// Adds the next level: to the open window if that is cheaper, else to a new one; returns whether it is new.
    pub(super) fn take(&mut self, rows: &[u32], cost: &mut WindowCost) -> bool {
        let joined = cost.most_terms().and_then(|most| self.build(rows, Some(most)));
        match joined {
            Some(terms) => cost.add(terms),
            None => {
                // The first window is there from the start.
                self.window += u32::from(self.begun);
                self.begun = true;
                // Without substitution nothing is refused.
                let terms = self.build(rows, None).unwrap_or(0);
                cost.restart(terms);
            }
        }
        rows.iter().for_each(|&row| self.window_of[row as usize] = self.window);
        joined.is_none()
    }

    fn most_terms(&self) -> usize {
        let own = self.system.nnz() + self.system.rows();
        MOST_TERMS.min(FEW_TERMS.max(MOST_FILL * own))
    }

    /// Builds the rows' equations and returns their number of terms. With `join`, parents of the open window are substituted,
    /// and nothing is kept (`None`) if that takes more terms in all, or one equation gets too long.
    fn build(&mut self, rows: &[u32], join: Option<usize>) -> Option<usize> {
        let join = join.map(|most| most.min(self.most_terms().saturating_sub(self.stored)));
        // Each row has a term at least.
        if join.is_some_and(|most| rows.len() > most) || !self.grow(rows, join.is_some()) {
            return None;
        }
        let mut accumulators = std::mem::take(&mut self.accumulators);
        let tasks = accumulators.len().min(2 * rows.len() / PARALLEL_ROWS);
        let terms = match accumulators.first_mut() {
            Some(sums) if tasks < 2 => self.build_narrow(rows, join, sums),
            _ => self.build_wide(rows, join, &mut accumulators[..tasks]),
        };
        self.accumulators = accumulators;
        self.stored += terms.unwrap_or(0);
        terms
    }

    /// Magnitudes of the rows' equations; false where one grows too much.
    fn grow(&mut self, rows: &[u32], join: bool) -> bool {
        if self.growth.is_empty() {
            return true;
        }
        rows.iter().all(|&row| {
            let (columns, values) = self.system.row(row as usize);
            let (mut plain, mut grown) = (1.0, 1.0);
            for (&parent, &value) in columns.iter().zip(values) {
                let factor = coefficient(self.system, row as usize, value).abs();
                plain += factor;
                let substituted = join && self.window_of[parent as usize] == self.window;
                grown += factor * if substituted { self.growth[parent as usize] } else { 1.0 };
            }
            self.growth[row as usize] = grown;
            // Coefficients that overflow cannot be compared, and join nothing.
            !join || grown <= self.most_growth * plain && grown.is_finite()
        })
    }

    /// On this thread, appended to the last segment.
    fn build_narrow(
        &mut self,
        rows: &[u32],
        join: Option<usize>,
        sums: &mut Accumulators,
    ) -> Option<usize> {
        let full = |segment: &Segment| segment.terms() > SEGMENT_TERMS;
        if !self.open || self.segments.last().is_none_or(full) {
            self.segments.push(Segment::default());
            self.open = true;
        }
        let at = self.segments.len() - 1;
        let first = self.segments[at].len();
        let mut terms = 0;
        for &row in rows {
            let fits = self.sum(row as usize, join.is_some(), sums);
            terms += sums.terms();
            if !fits || join.is_some_and(|most| terms > most) {
                self.segments[at].truncate(first);
                return None;
            }
            sums.take_into(&mut self.segments[at]);
        }
        self.put(rows, at, first);
        Some(terms)
    }

    /// Distributed among tasks, each with a separate segment.
    fn build_wide(
        &mut self,
        rows: &[u32],
        join: Option<usize>,
        accumulators: &mut [Accumulators],
    ) -> Option<usize> {
        let share = rows.len().div_ceil(accumulators.len().max(1));
        let total = AtomicUsize::new(0);
        let this = &*self;
        let built: Option<Vec<Segment>> = rows
            .par_chunks(share)
            .zip(accumulators.par_iter_mut())
            .map(|(rows, sums)| {
                let mut segment = Segment::default();
                let kept = rows.iter().all(|&row| {
                    let fits = this.sum(row as usize, join.is_some(), sums);
                    let own = if fits { sums.terms() } else { MOST_TERMS + 1 };
                    // More than the budget for all tasks: the others stop, too.
                    let terms = total.fetch_add(own, Relaxed) + own;
                    let kept = join.is_none_or(|most| terms <= most);
                    if kept {
                        sums.take_into(&mut segment);
                    }
                    kept
                });
                kept.then_some(segment)
            })
            .collect();
        let built = built?;
        self.open = false;
        for (rows, segment) in rows.chunks(share).zip(built) {
            self.segments.push(segment);
            self.put(rows, self.segments.len() - 1, 0);
        }
        Some(total.into_inner())
    }

    /// Terms of a row's equation in b, and in unknowns.
    pub(super) fn lengths(&self, row: usize) -> (usize, usize) {
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

    /// Sums up one row's equation; false where substituting has made it too long.
    fn sum(&self, row: usize, substitute: bool, sums: &mut Accumulators) -> bool {
        sums.begin();
        sums.known.add(self.system.original(row) as u32, 1.0 / self.system.diagonal[row]);
        let (columns, values) = self.system.row(row);
        for (&parent, &value) in columns.iter().zip(values) {
            let factor = coefficient(self.system, row, value);
            if substitute && self.window_of[parent as usize] == self.window {
                let Place { segment, row } = self.places[parent as usize];
                let segment = &self.segments[segment as usize];
                sums.known.add_all(segment.known.row(row as usize), factor);
                sums.unknown.add_all(segment.unknown.row(row as usize), factor);
            } else {
                sums.unknown.add(parent, factor);
            }
        }
        let most = self.how.terms as usize;
        let (known, unknown) = (sums.known.len(), sums.unknown.len());
        !substitute || unknown <= most.max(columns.len()) && known <= most
    }
}
