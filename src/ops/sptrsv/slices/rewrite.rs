//! Rewriting: unknowns of the same window are substituted, so that many levels become one (the partitioned inverse of
//! Alvarado and Schreiber, SIAM J. Sci. Comput. 14(2), 1993, with windows chosen by what a level costs on the device).
//!
//! A level costs a hop, however few its rows. Substituting a row's parents by their own equations makes it depend on
//! rows further back: longer rows, fewer hops. Inverted diagonal blocks are the case of a window of consecutive rows, and
//! a dense tail is one where substituting hardly adds a term. A window takes in the next level for as long as that
//! lowers the mean cost of a level; the first term of the mean is what a window is worth, `window_ns`.

use super::equations::{ByLevel, Equations, Terms, coefficient};
use crate::ops::sptrsv::System;
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::time::Instant;

/// Levels of at least this many rows are rewritten in parallel.
const PARALLEL_ROWS: usize = 256;

/// Memory of the accumulators of all threads together, bytes.
const ACCUMULATOR_BYTES: usize = 4 << 30;

/// Terms of a whole rewritten system, at most: beyond it windows close at once.
const MOST_TERMS: usize = 600_000_000;

/// How far to rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rewrite {
    /// What one window costs whatever is in it, nanoseconds; 0 leaves every level its own window.
    pub window_ns: u32,
    /// Terms of an equation in unknowns, and of one in b, at most; an equation that is longer by itself may stay so.
    pub terms: u32,
}

/// Rewrites a system; with `window_ns` 0, every level is a window and only the diagonal is divided out.
pub fn rewrite(system: &System, how: Rewrite) -> Equations {
    let started = Instant::now();
    let triangular = &*system.triangular;
    let rows = triangular.rows();
    let by_level = ByLevel::of(&system.levels);
    let mut work = Rewriting::new(triangular, how);
    let mut cost = WindowCost::of(system, how);
    for level in 0..system.levels.widths.len() {
        let rows = by_level.rows(level);
        let joins = cost.levels > 0
            && how.window_ns > 0
            && work.stored() < MOST_TERMS
            && match work.build(rows, true) {
                Some(built) if cost.accepts(built.terms()) => {
                    cost.add(built.terms());
                    work.keep(rows, built);
                    true
                }
                _ => false,
            };
        if !joins {
            if level > 0 {
                work.window += 1;
            }
            // Without substitution nothing can be too long.
            if let Some(built) = work.build(rows, false) {
                cost.restart(built.terms());
                work.keep(rows, built);
            }
        }
        rows.iter().for_each(|&row| work.window_of[row as usize] = work.window);
    }
    let windows = if rows == 0 { 0 } else { work.window + 1 };
    let mut equations = work.into_equations(windows);
    equations.ms = started.elapsed().as_secs_f64() * 1e3;
    equations
}

/// The running mean cost of a level in the open window.
struct WindowCost {
    ns_a_term: f64,
    window_ns: f64,
    spent_ns: f64,
    levels: u32,
}

impl WindowCost {
    fn of(system: &System, how: Rewrite) -> Self {
        let element = system.problem.dtype.bytes() as f64;
        // An entry streams in from memory; the unknown it multiplies comes from L2, at a few times that rate.
        let bytes = 4.0 + element + 0.4 * element * f64::from(system.problem.rhs);
        // GB/s are bytes a nanosecond. A device that could not be measured is taken for a slow one.
        let rate = if system.device.copy_gbps > 0.0 { system.device.copy_gbps } else { 100.0 };
        let window_ns = f64::from(how.window_ns);
        Self { ns_a_term: bytes / rate, window_ns, spent_ns: 0.0, levels: 0 }
    }

    fn accepts(&self, terms: usize) -> bool {
        let marginal = terms as f64 * self.ns_a_term;
        marginal * f64::from(self.levels) <= self.window_ns + self.spent_ns
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

/// Equations of some rows, in their order.
#[derive(Default)]
struct Built {
    known: Terms,
    unknown: Terms,
}

impl Built {
    fn terms(&self) -> usize {
        self.known.cols.len() + self.unknown.cols.len()
    }
}

struct Rewriting<'a> {
    system: &'a Triangular,
    how: Rewrite,
    /// Equations so far, in the order of levels; `place` says where a row's is.
    done: Built,
    place: Vec<u32>,
    placed: u32,
    window: u32,
    window_of: Vec<u32>,
    /// One a task that runs at the same time.
    accumulators: Vec<Accumulators>,
}

impl<'a> Rewriting<'a> {
    fn new(system: &'a Triangular, how: Rewrite) -> Self {
        let rows = system.rows();
        let fitting = ACCUMULATOR_BYTES / (16 * rows.max(1));
        let threads = rayon::current_num_threads().min(fitting).max(1);
        let start = |terms: &mut Terms| terms.ptr.push(0);
        let mut done = Built::default();
        start(&mut done.known);
        start(&mut done.unknown);
        Self {
            system,
            how,
            done,
            place: vec![0; rows],
            placed: 0,
            window: 0,
            window_of: vec![u32::MAX; rows],
            accumulators: (0..threads).map(|_| Accumulators::new(rows)).collect(),
        }
    }

    fn stored(&self) -> usize {
        self.done.terms()
    }

    /// Equations of the rows, with parents of the open window substituted if asked; `None` where one gets too long.
    fn build(&mut self, rows: &[u32], substitute: bool) -> Option<Built> {
        let mut accumulators = std::mem::take(&mut self.accumulators);
        let this = &*self;
        let one = |rows: &[u32], accumulators: &mut Accumulators| {
            let mut built = Built::default();
            rows.iter()
                .all(|&row| this.equation(row as usize, substitute, accumulators, &mut built))
                .then_some(built)
        };
        let tasks = accumulators.len();
        let built = if rows.len() < PARALLEL_ROWS || tasks == 1 {
            accumulators.first_mut().and_then(|accumulators| one(rows, accumulators))
        } else {
            let share = rows.len().div_ceil(tasks);
            let parts: Option<Vec<Built>> = rows
                .par_chunks(share)
                .zip(accumulators.par_iter_mut())
                .map(|(rows, accumulators)| one(rows, accumulators))
                .collect();
            parts.map(joined)
        };
        self.accumulators = accumulators;
        built
    }

    /// Appends one row's equation to `built`; false where it is too long.
    fn equation(
        &self,
        row: usize,
        substitute: bool,
        sums: &mut Accumulators,
        built: &mut Built,
    ) -> bool {
        sums.begin();
        sums.known.add(self.system.original(row) as u32, 1.0 / self.system.diagonal[row]);
        let (columns, values) = self.system.row(row);
        for (&parent, &value) in columns.iter().zip(values) {
            let factor = coefficient(self.system, row, value);
            if substitute && self.window_of[parent as usize] == self.window {
                let place = self.place[parent as usize] as usize;
                let (cols, vals) = self.done.known.row(place);
                cols.iter().zip(vals).for_each(|(&c, &v)| sums.known.add(c, factor * v));
                let (cols, vals) = self.done.unknown.row(place);
                cols.iter().zip(vals).for_each(|(&c, &v)| sums.unknown.add(c, factor * v));
            } else {
                sums.unknown.add(parent, factor);
            }
        }
        let most = self.how.terms as usize;
        let fits =
            sums.unknown.cols.len() <= most.max(columns.len()) && sums.known.cols.len() <= most;
        if substitute && !fits {
            return false;
        }
        sums.known.take_into(&mut built.known);
        sums.unknown.take_into(&mut built.unknown);
        true
    }

    fn keep(&mut self, rows: &[u32], built: Built) {
        for &row in rows {
            self.place[row as usize] = self.placed;
            self.placed += 1;
        }
        append(&mut self.done.known, &built.known);
        append(&mut self.done.unknown, &built.unknown);
    }

    /// From the order of levels to the order of rows.
    fn into_equations(self, windows: u32) -> Equations {
        let Self { system, done, place, window_of, .. } = self;
        let rows = (0..system.rows()).map(|row| Some(system.original(row) as u32)).collect();
        let (known, unknown) = rayon::join(
            || in_row_order(&done.known, &place),
            || in_row_order(&done.unknown, &place),
        );
        Equations { known, unknown, rows, window_of, windows, ms: 0.0 }
    }
}

/// `built` keeps only ends of rows in `ptr`; here they continue what is there.
fn append(to: &mut Terms, from: &Terms) {
    let base = to.cols.len();
    to.ptr.extend(from.ptr.iter().map(|end| base + end));
    to.cols.extend_from_slice(&from.cols);
    to.vals.extend_from_slice(&from.vals);
}

fn joined(parts: Vec<Built>) -> Built {
    let mut all = Built::default();
    for part in parts {
        append(&mut all.known, &part.known);
        append(&mut all.unknown, &part.unknown);
    }
    all
}

fn in_row_order(terms: &Terms, place: &[u32]) -> Terms {
    let mut sorted = Terms {
        ptr: Vec::with_capacity(place.len() + 1),
        cols: Vec::with_capacity(terms.cols.len()),
        vals: Vec::with_capacity(terms.vals.len()),
    };
    sorted.ptr.push(0);
    for &place in place {
        let (cols, vals) = terms.row(place as usize);
        sorted.cols.extend_from_slice(cols);
        sorted.vals.extend_from_slice(vals);
        sorted.ptr.push(sorted.cols.len());
    }
    sorted
}

/// Sums of one equation by column: where a column stands in the list, if it is there since `begin`.
struct Accumulator {
    stamp: u32,
    stamps: Vec<u32>,
    places: Vec<u32>,
    cols: Vec<u32>,
    vals: Vec<f64>,
}

struct Accumulators {
    known: Accumulator,
    unknown: Accumulator,
}

impl Accumulators {
    fn new(columns: usize) -> Self {
        Self { known: Accumulator::new(columns), unknown: Accumulator::new(columns) }
    }

    fn begin(&mut self) {
        self.known.begin();
        self.unknown.begin();
    }
}

impl Accumulator {
    fn new(columns: usize) -> Self {
        let (cols, vals) = (Vec::new(), Vec::new());
        Self { stamp: 0, stamps: vec![0; columns], places: vec![0; columns], cols, vals }
    }

    /// Forgets what an equation that grew too long has left behind, too.
    fn begin(&mut self) {
        self.cols.clear();
        self.vals.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.stamps.fill(0);
            self.stamp = 1;
        }
    }

    #[inline]
    fn add(&mut self, col: u32, value: f64) {
        let at = col as usize;
        if self.stamps[at] == self.stamp {
            self.vals[self.places[at] as usize] += value;
        } else {
            self.stamps[at] = self.stamp;
            self.places[at] = self.cols.len() as u32;
            self.cols.push(col);
            self.vals.push(value);
        }
    }

    fn take_into(&mut self, to: &mut Terms) {
        to.cols.extend_from_slice(&self.cols);
        to.vals.extend_from_slice(&self.vals);
        to.ptr.push(to.cols.len());
    }
}
