//! Iterative refinement: the rewritten equations are solved, the residual is computed from the system's own entries, the same
//! equations are solved for it, and the result is added.
//!
//! A rewritten row is summed from terms of earlier windows, not from its parents' computed values. Where it cancels terms much larger than
//! its result, as in systems that amplify their right-hand side, it is off by that much. One step of refinement, in the same
//! precision, brings the error of each row back to that of substitution if the system's condition, times how different in size the terms of
//! its rows are, leaves room for that (Skeel, Mathematics of Computation 35(151), 1980; Higham, Accuracy and Stability, section 12.1).
//! In a system that amplifies it does for right-hand sides with which x grows, as those at random: then a row's terms are about as
//! large as all that they were summed from. It does not for a right-hand side made of an x of ordinary size, whose rows cancel what
//! the system would amplify: there the solution is stable in the norm of a window, as rewritten ones are without refinement, and a row may
//! be off by thousands of times what substitution leaves. Who needs each row for itself asks for `stability: row_wise`.
//!
//! A step costs a second solve and a pass over the entries; where a level is a hop and there are many, far fewer windows pay for that.
//! Whether a system's equations are good enough is not proved but tried, for right-hand sides at random as verification has them, in the
//! precision of the kernels: with the values a plan is tuned with, and again with each new set of values.

use super::equations::{ByLevel, Equations};
use crate::domain::Dtype;
use crate::ops::Refusal;
use crate::ops::sptrsv::System;
use crate::sparse::tolerance::{equation_weight, solution_tolerance};
use crate::sparse::{Triangular, operand};
use rayon::prelude::*;

/// Windows of at least this many equations are solved in parallel.
const PARALLEL: usize = 4096;

/// Seeds of the right-hand sides that are tried. How much a row cancels differs from one to the next: of road_COL a single one passed
/// rewritings whose errors on a device were 430 times the tolerance.
const SEEDS: [u64; 4] = [5, 6, 7, 8];

/// Largest refined error of the trial. Where the step converges it leaves a few thousandths, as substitution does; what leaves more depends
/// on chance (email-Enron: 0.1 to 17, depending on the window).
const MOST_ERROR: f64 = 1.0 / 16.0;

/// Largest growth of an equation whose solution is refined: half of the digits of the type may be lost to it.
pub(super) fn growth(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => f64::from(1u32 << 26),
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => f64::from(1u32 << 12),
    }
}

/// Refuses equations whose solutions refinement does not make good for.
pub fn tried(system: &System, equations: &Equations) -> Result<(), Refusal> {
    let error = errors(system, equations).refined;
    if error <= MOST_ERROR {
        return Ok(());
    }
    Err(Refusal(format!(
        "the rewritten equations lose too many digits for these values: after a step of refinement the error is {error:.1e} times the one \
         allowed, and more than {MOST_ERROR} leaves other right-hand sides no room; tuning again finds another plan"
    )))
}

/// The largest backward error of a row, over the one that verification allows it; infinite where numbers overflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Of the first solve.
    pub unrefined: f64,
    /// After one step of refinement.
    pub refined: f64,
}

/// The largest errors for right-hand sides at random, in the precision of the kernels.
pub fn errors(system: &System, equations: &Equations) -> Errors {
    let triangular = &*system.triangular;
    let dtype = system.problem.dtype;
    let solver = Solver {
        equations,
        by_window: ByLevel::sorted(&equations.window_of, equations.windows as usize),
        rounds: dtype != Dtype::F64,
    };
    let allowed = solution_tolerance(dtype);
    let of_one = |seed| {
        let b: Vec<f64> = operand::random_double(triangular.rows(), seed);
        let b: Vec<f64> = b.into_iter().map(|value| solver.round(value)).collect();
        let mut x = solver.solve(&b);
        let unrefined = backward_error(triangular, &x, &b) / allowed;
        let left = residual(triangular, &x, &b, |value| solver.round(value));
        let correction = solver.solve(&left);
        x.iter_mut().zip(correction).for_each(|(x, more)| *x = solver.round(*x + more));
        Errors { unrefined, refined: backward_error(triangular, &x, &b) / allowed }
    };
    let larger = |a: Errors, b: Errors| Errors {
        unrefined: a.unrefined.max(b.unrefined),
        refined: a.refined.max(b.refined),
    };
    SEEDS.into_par_iter().map(of_one).reduce(|| Errors { unrefined: 0.0, refined: 0.0 }, larger)
}

struct Solver<'a> {
    equations: &'a Equations,
    by_window: ByLevel,
    /// Whether numbers are rounded to single precision.
    rounds: bool,
}

impl Solver<'_> {
    fn round(&self, value: f64) -> f64 {
        if self.rounds { f64::from(value as f32) } else { value }
    }

    /// x in the order of b.
    fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut unknowns = vec![0.0; self.equations.len()];
        let mut x = vec![0.0; b.len()];
        for window in 0..self.equations.windows as usize {
            let rows = self.by_window.rows(window);
            let sum = |&at: &u32| self.sum(at as usize, b, &unknowns);
            let sums: Vec<f64> = match rows.len() >= PARALLEL {
                true => rows.par_iter().map(sum).collect(),
                false => rows.iter().map(sum).collect(),
            };
            for (&at, sum) in rows.iter().zip(sums) {
                unknowns[at as usize] = sum;
                if let Some(row) = self.equations.rows[at as usize] {
                    x[row as usize] = sum;
                }
            }
        }
        x
    }

    fn sum(&self, at: usize, b: &[f64], unknowns: &[f64]) -> f64 {
        let add = |sum: f64, (columns, values): (&[u32], &[f64]), from: &[f64]| {
            let terms = columns.iter().zip(values);
            terms.fold(sum, |sum, (&column, &value)| {
                self.round(sum + self.round(value) * from[column as usize])
            })
        };
        let known = add(0.0, self.equations.known(at), b);
        add(known, self.equations.unknown(at), unknowns)
    }
}

/// b - T x in the order of b, every sum rounded.
fn residual(
    triangular: &Triangular,
    x: &[f64],
    b: &[f64],
    round: impl Fn(f64) -> f64 + Sync,
) -> Vec<f64> {
    let mut left = vec![0.0; b.len()];
    for s in 0..triangular.rows() {
        let row = triangular.original(s);
        let (columns, values) = triangular.row(s);
        let entries = columns.iter().zip(values);
        let sum = entries.fold(0.0, |sum, (&column, &value)| {
            round(sum + value * x[triangular.original(column as usize)])
        });
        left[row] = round(round(b[row] - sum) - triangular.diagonal[s] * x[row]);
    }
    left
}

/// The largest |T x - b| / (|T||x| + |b|) of a row beside its weight.
fn backward_error(triangular: &Triangular, x: &[f64], b: &[f64]) -> f64 {
    let of_row = |s: usize| {
        let row = triangular.original(s);
        let (columns, values) = triangular.row(s);
        let mut left = triangular.diagonal[s] * x[row];
        let mut terms = b[row].abs() + left.abs();
        left -= b[row];
        for (&column, &value) in columns.iter().zip(values) {
            let term = value * x[triangular.original(column as usize)];
            left += term;
            terms += term.abs();
        }
        let error = if left == 0.0 { 0.0 } else { left.abs() / terms };
        let error = error / equation_weight(columns.len());
        if error.is_nan() { f64::INFINITY } else { error }
    };
    (0..triangular.rows()).into_par_iter().map(of_row).reduce(|| 0.0, f64::max)
}
