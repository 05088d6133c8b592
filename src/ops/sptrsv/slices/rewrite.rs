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

use super::alike::Alike;
use super::equations::{ByLevel, Equations, Place, Segment, Terms, coefficient};
use super::refine;
use super::rewriting::Rewriting;
use crate::domain::Dtype;
use crate::ops::sptrsv::System;
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::time::Instant;

/// Levels of at least this many rows are rewritten in parallel, by tasks of at least half as many.
pub(super) const PARALLEL_ROWS: usize = 256;

/// Largest ratio of an equation's magnitude to that of the row it came from.
///
/// The magnitude is 1 + sum |m_j| g_j over the row's terms, where g_j is the parent's magnitude if it is substituted and else
/// 1: an upper bound of sum |P_k d_k| + sum |M_k|, and the same however rows of the system are scaled. The tolerance of the
/// verification leaves about eight bits, and refinement more ([`refine::growth`]).
pub(in crate::ops::sptrsv) const GROWTH: f64 = 256.0;

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
    pub(super) fn most_growth(self, dtype: Dtype) -> f64 {
        if self.refine { refine::growth(dtype) } else { GROWTH }
    }
}

/// Rewrites a system; with `window_ns` 0, every level is a window and only the diagonal is divided out.
pub fn rewrite(system: &System, how: Rewrite) -> Equations {
    let started = Instant::now();
    let triangular = &*system.triangular;
    let by_level = ByLevel::of(&system.levels);
    let mut equations = match how.window_ns {
        0 => plain(system, &by_level),
        _ => substituted(system, &by_level, how),
    };
    let rows = (0..triangular.rows()).into_par_iter();
    equations.rows = rows.map(|row| Some(triangular.original(row) as u32)).collect();
    equations.ms = started.elapsed().as_secs_f64() * 1e3;
    equations
}

fn substituted(system: &System, by_level: &ByLevel, how: Rewrite) -> Equations {
    let mut work = Rewriting::new(system, how, rayon::current_num_threads());
    let mut cost = WindowCost::of(system, how);
    for level in 0..system.levels.widths.len() {
        work.take(by_level.rows(level), &mut cost);
    }
    work.into_equations()
}

/// No equation needs another one, so runs of them are made in parallel.
fn plain(system: &System, by_level: &ByLevel) -> Equations {
    let triangular = &*system.triangular;
    let share = triangular.rows().div_ceil(4 * rayon::current_num_threads()).max(PARALLEL_ROWS);
    let runs = by_level.order.par_chunks(share);
    let segments: Vec<Segment> = runs.map(|rows| divided(triangular, rows)).collect();
    let mut places = vec![Place::default(); triangular.rows()];
    for (segment, rows) in by_level.order.chunks(share).enumerate() {
        for (at, &row) in rows.iter().enumerate() {
            places[row as usize] = Place { segment: segment as u32, row: at as u32 };
        }
    }
    let window_of = system.levels.level_of_row.clone();
    let windows = system.levels.widths.len() as u32;
    let mut alike = Alike::default();
    alike.refused_by_cost();
    Equations { segments, places, window_of, windows, alike, ..Equations::default() }
}

/// The equations of these rows with nothing substituted.
pub(super) fn divided(system: &Triangular, rows: &[u32]) -> Segment {
    let parents = rows.iter().map(|&row| system.row(row as usize).0.len()).sum();
    let known = Terms::with_room(rows.len(), rows.len());
    let mut segment = Segment { known, unknown: Terms::with_room(rows.len(), parents) };
    rows.iter().for_each(|&row| {
        divide(system, row as usize, &mut segment);
    });
    segment
}

/// Appends a row's equation with nothing substituted, and returns its number of terms.
pub(super) fn divide(system: &Triangular, row: usize, into: &mut Segment) -> usize {
    let (columns, values) = system.row(row);
    into.known.push(std::iter::once((system.original(row) as u32, 1.0 / system.diagonal[row])));
    let factors = values.iter().map(|&value| coefficient(system, row, value));
    into.unknown.push(columns.iter().copied().zip(factors));
    1 + columns.len()
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

    /// Most terms of the next level for which joining it lowers the mean; `None` for the first level.
    pub(super) fn most_terms(&self) -> Option<usize> {
        let most = (self.window_ns + self.spent_ns) / f64::from(self.levels) / self.ns_a_term;
        (self.levels > 0).then_some(most as usize)
    }

    /// The least cost of a window for which a level with so many terms joins.
    pub(super) fn least_ns(&self, terms: usize) -> f64 {
        terms as f64 * self.ns_a_term * f64::from(self.levels) - self.spent_ns
    }

    pub(super) fn add(&mut self, terms: usize) {
        self.spent_ns += terms as f64 * self.ns_a_term;
        self.levels += 1;
    }

    pub(super) fn restart(&mut self, terms: usize) {
        self.spent_ns = terms as f64 * self.ns_a_term;
        self.levels = 1;
    }
}
