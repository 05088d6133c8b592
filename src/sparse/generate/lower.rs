//! Realistic triangular systems: the lower triangle of any square generated matrix, reordered, optionally with several
//! unknowns per node, constraints and a dense tail, and with coefficients whose products may grow.

use super::build::{bounded, build};
use super::order::{Order, order};
use super::{GenerateError, Size, Spec, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::{Stream, bits, unit};
use serde::{Deserialize, Serialize};

/// `lower:order=rcm,growth=1.5,of=mesh:nx=40,ny=30`: the parameters, followed by the matrix whose lower triangle is
/// used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lower {
    /// A square matrix of another kind than `lower`.
    pub of: Spec,
    /// `natural`, `random`, `rcm`, `depth` or `degree`.
    #[serde(default)]
    pub order: Order,
    /// Rows per run that is shuffled after ordering; 0 for none.
    #[serde(default)]
    pub window: u64,
    /// Unknowns per row of `of`, which become dense blocks.
    #[serde(default = "one")]
    pub unknowns: u64,
    /// Share of the entries below the diagonal that is kept.
    #[serde(default = "whole")]
    pub keep: f64,
    /// Additional constraint rows, each with 2 to 9 entries in the columns of `of` and a diagonal entry, as in
    /// saddle-point systems.
    #[serde(default)]
    pub constraints: u64,
    /// Final rows that are dense among themselves; the last is connected to every earlier row, the one before to every
    /// second, and so on, as supply rails or the remaining dense block of an elimination.
    #[serde(default)]
    pub tail: u64,
    /// Median ratio of the sum of a row's magnitudes below the diagonal to the diagonal; 0 makes all values about equal, 0.9 to
    /// 1.1 of the diagonal, as for files without values.
    #[serde(default = "tame")]
    pub growth: f64,
    /// Standard deviation of the logarithm of magnitudes within a row; that of a row's sum is half of it.
    #[serde(default)]
    pub spread: f64,
    /// Largest |x| for a few right-hand sides in [-1, 1); rows that would exceed it get smaller coefficients.
    #[serde(default = "bearable")]
    pub largest: f64,
    #[serde(default)]
    pub seed: u64,
}

fn one() -> u64 {
    1
}

fn whole() -> f64 {
    1.0
}

fn tame() -> f64 {
    0.8
}

fn bearable() -> f64 {
    1e4
}

/// Number of trial right-hand sides; half of them are solved with a unit diagonal, as problems may request.
const TRIALS: usize = 4;

/// Most rows; each needs 32 bytes for the trial solutions in addition to its entries.
const MOST_ROWS: u64 = 1 << 26;

impl Lower {
    /// The size; `None` if it overflows.
    pub fn size(&self) -> Option<Size> {
        let Size { rows, cols, entries } = match self.of {
            Spec::Lower(_) => return None,
            ref of => of.size()?,
        };
        let more = self.constraints.checked_add(self.tail)?;
        let grown = |n: u64| n.checked_mul(self.unknowns)?.checked_add(more);
        let rows = grown(rows)?;
        Some(Size { rows, cols: grown(cols)?, entries: self.grown(rows as f64, entries) })
    }

    /// Estimated number of entries for a number of rows, if `of` has `entries`; half of these are below the diagonal,
    /// or more if `of` is itself triangular.
    fn grown(&self, rows: f64, entries: f64) -> f64 {
        let (unknowns, tail) = (self.unknowns as f64, self.tail as f64);
        // Entries dropped by `keep` are generated first.
        let below = 0.5 * entries * unknowns * unknowns;
        let last = 0.5 * tail * tail + rows * (tail + 1.0).ln();
        below + last + 5.0 * self.constraints as f64 + rows
    }

    pub fn generate(&self) -> Result<Csr, GenerateError> {
        if let Spec::Lower(_) = self.of {
            let (value, range) = ("lower".to_owned(), "another kind");
            return Err(GenerateError::Parameter { name: "of", value, range });
        }
        within("unknowns", self.unknowns, 1, 32, "between 1 and 32")?;
        within("keep", self.keep, 0.2, 1.0, "between 0.2 and 1")?;
        within("growth", self.growth, 0.0, 8.0, "between 0 and 8")?;
        within("spread", self.spread, 0.0, 4.0, "between 0 and 4")?;
        // Solutions for transposes and other right-hand sides stay in the range of f32.
        within("largest", self.largest, 10.0, 1e24, "between 10 and 1e24")?;
        within("tail", self.tail, 0, 1 << 14, "at most 16384")?;
        // Computed from the parameters before `of` is generated.
        let Some(size) = self.size() else {
            return Err(GenerateError::TooManyEntries { nnz: u64::MAX });
        };
        within("cols", size.cols, size.rows, size.rows, "the rows of `of`: it must be square")?;
        dimension("rows", size.rows)?;
        // The conversion saturates.
        bounded(size.entries as u64)?;
        within("rows", size.rows, 0, MOST_ROWS, "at most 67108864")?;
        let of = self.of.generate()?;
        // Factors have more entries than estimated from their parameters.
        bounded(self.grown(size.rows as f64, of.nnz() as f64) as u64)?;
        let pattern = Pattern::of(self, &of);
        let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
            columns.copy_from_slice(&pattern.columns(row));
            self.values(row, values);
        };
        let rows = size.rows as usize;
        let matrix = build(rows, rows, |row| pattern.columns(row).len(), fill)?;
        drop(pattern);
        drop(of);
        tamed(matrix, self.largest, self.seed)
    }

    /// The values of one row, with the diagonal last.
    fn values(&self, row: usize, values: &mut [f64]) {
        let mut stream = Stream::new(self.seed ^ 0x10e7, row as u64);
        let Some((diagonal, lower)) = values.split_last_mut() else { return };
        *diagonal = stream.range(0.9, 1.1);
        if self.growth == 0.0 {
            return lower.fill(1.0);
        }
        for value in &mut *lower {
            *value = (self.spread * stream.normal()).exp() * stream.range(0.5, 1.0);
        }
        let sum: f64 = lower.iter().sum();
        let most = self.growth * (0.5 * self.spread * stream.normal()).exp();
        // Negative as in factors of M-matrices; for growing coefficients signs alternate, since growth would be
        // unbounded.
        let positive = if most < 1.0 { 0.0 } else { 0.5 };
        for value in &mut *lower {
            let sign = if stream.unit() < positive { 1.0 } else { -1.0 };
            *value *= sign * most / sum;
        }
    }
}

/// The sparsity pattern.
struct Pattern<'a> {
    spec: &'a Lower,
    of: &'a Csr,
    /// The row of `of` for each node, and the node for each row.
    order: Vec<u32>,
    place: Vec<u32>,
    unknowns: usize,
    /// First rows of the constraints and of the tail, and the number of rows.
    constraints: usize,
    tail: usize,
    end: usize,
}

impl<'a> Pattern<'a> {
    fn of(spec: &'a Lower, of: &'a Csr) -> Self {
        let order = order(of, spec.order, spec.window as usize, spec.seed);
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(node, &row)| place[row as usize] = node as u32);
        let unknowns = spec.unknowns as usize;
        let constraints = order.len() * unknowns;
        let tail = constraints + spec.constraints as usize;
        Self { spec, of, order, place, unknowns, constraints, tail, end: tail + spec.tail as usize }
    }

    /// The columns of a row in ascending order, with the diagonal last.
    fn columns(&self, row: usize) -> Vec<u32> {
        if row >= self.tail {
            return self.dense(row);
        }
        if row >= self.constraints {
            return self.constraint(row);
        }
        let node = row / self.unknowns;
        let neighbours = self.of.row(self.order[node] as usize).0.iter();
        let places = neighbours.map(|&other| self.place[other as usize] as usize);
        let mut before: Vec<usize> = places.filter(|&place| place < node).collect();
        before.sort_unstable();
        let first = |node: usize| node * self.unknowns;
        let whole = before.into_iter().flat_map(|node| first(node)..first(node + 1));
        let lower = whole.chain(first(node)..row).map(|column| column as u32);
        let kept = lower.filter(|&column| self.spec.keep >= 1.0 || self.kept(row, column));
        kept.chain([row as u32]).collect()
    }

    fn kept(&self, row: usize, column: u32) -> bool {
        let entry = bits(self.spec.seed ^ 0x4ee9, row as u64) ^ u64::from(column);
        unit(bits(!self.spec.seed, entry)) < self.spec.keep
    }

    /// Half of its entries are close to each other, at a position that moves with the row.
    fn constraint(&self, row: usize) -> Vec<u32> {
        let mut stream = Stream::new(self.spec.seed ^ 0xc025, row as u64);
        let (rows, of_all) = (self.constraints as u64, self.tail - self.constraints);
        let at = (row - self.constraints) as u64 * rows / of_all as u64;
        let near = |stream: &mut Stream| (at + stream.below(64)).min(rows - 1);
        let mut columns: Vec<u32> = (0..2 + stream.below(8))
            .map(|i| if i % 2 == 0 { near(&mut stream) } else { stream.below(rows) } as u32)
            .collect();
        columns.sort_unstable();
        columns.dedup();
        columns.push(row as u32);
        columns
    }

    fn dense(&self, row: usize) -> Vec<u32> {
        let step = self.end - row;
        // The first column is random, so that the rows are not all connected to the same nodes.
        let first = bits(self.spec.seed ^ 0xde5e, row as u64) as usize % step;
        (first..self.tail)
            .step_by(step)
            .chain(self.tail..=row)
            .map(|column| column as u32)
            .collect()
    }
}

/// Solves for a few right-hand sides, and reduces the coefficients of rows whose |x| would exceed `largest`; these are
/// few or none if chains do not grow. Sequential, as a solve is.
fn tamed(matrix: Csr, largest: f64, seed: u64) -> Result<Csr, GenerateError> {
    let rows = matrix.rows();
    let (indptr, indices, mut values) = matrix.into_parts();
    let mut x = vec![[0.0; TRIALS]; rows];
    for row in 0..rows {
        let range = indptr[row]..indptr[row + 1] - 1;
        let mut sums = [0.0; TRIALS];
        for (&column, value) in indices[range.clone()].iter().zip(&values[range.clone()]) {
            for (sum, x) in sums.iter_mut().zip(x[column as usize]) {
                *sum += value * x;
            }
        }
        let most = sums.iter().fold(0.0, |most: f64, sum| most.max(sum.abs()));
        // |b| < 1, and the diagonal is at least 0.9.
        let factor = if most > 0.8 * largest { 0.8 * largest / most } else { 1.0 };
        let diagonal = values[range.end];
        if factor < 1.0 {
            values[range].iter_mut().for_each(|value| *value *= factor);
        }
        let mut stream = Stream::new(seed ^ 0x7a3e, row as u64);
        for (trial, (x, sum)) in x[row].iter_mut().zip(sums).enumerate() {
            let divisor = if trial % 2 == 0 { diagonal } else { 1.0 };
            *x = (stream.range(-1.0, 1.0) - factor * sum) / divisor;
        }
    }
    Ok(Csr::new(rows, rows, indptr, indices, values)?)
}
