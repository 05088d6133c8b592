//! Triangular systems as solves meet them: the lower triangle of any square generated matrix, numbered anew, with several
//! unknowns a node, constraints and a dense tail where asked for, and coefficients that may grow.

use super::build::{bounded, build};
use super::order::{Order, order};
use super::{GenerateError, Size, Spec, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::{Stream, bits, unit};
use serde::{Deserialize, Serialize};

/// `lower:order=rcm,growth=1.5,of=mesh:nx=40,ny=30`: the parameters, and last the matrix whose lower triangle is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lower {
    /// A square matrix; not a `lower` one again.
    pub of: Spec,
    /// `natural`, `random`, `rcm`, `depth` or `degree`.
    #[serde(default)]
    pub order: Order,
    /// Rows of a run that is shuffled after ordering; 0 for none.
    #[serde(default)]
    pub window: u64,
    /// Unknowns a row of `of`, which become dense blocks.
    #[serde(default = "one")]
    pub unknowns: u64,
    /// The share of entries below the diagonal that is kept.
    #[serde(default = "whole")]
    pub keep: f64,
    /// Rows that follow, each with 2 to 9 entries in the rows of `of` and its diagonal: saddle points.
    #[serde(default)]
    pub constraints: u64,
    /// Rows that come last, dense among themselves; the last meets every row before, the one before it each second one,
    /// then each third: supply rails, and what remains of an elimination.
    #[serde(default)]
    pub tail: u64,
    /// The sum of a row's magnitudes below the diagonal over the diagonal, at the median; 0 makes them all equal, 0.9 to
    /// 1.1 of the diagonal, as files without values have them.
    #[serde(default = "tame")]
    pub growth: f64,
    /// The standard deviation of the logarithm of magnitudes in a row; of a row's sum half of it.
    #[serde(default)]
    pub spread: f64,
    /// Largest |x| of a few right-hand sides within [-1, 1): a row that would exceed it gets smaller coefficients.
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

/// Trial right-hand sides; half of them are solved with a unit diagonal, which a problem may ask for.
const TRIALS: usize = 4;

/// A row takes 32 bytes for its trials, beside its entries.
const MOST_ROWS: u64 = 1 << 26;

impl Lower {
    /// `None` where it is larger than numbers go.
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

    /// Entries of so many rows, `entries` of them in `of`; half of those are below the diagonal, more of a triangle.
    fn grown(&self, rows: f64, entries: f64) -> f64 {
        let (unknowns, tail) = (self.unknowns as f64, self.tail as f64);
        // What `keep` leaves out is drawn all the same.
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
        // What transposes and other right-hand sides come to stays within f32.
        within("largest", self.largest, 10.0, 1e24, "between 10 and 1e24")?;
        within("tail", self.tail, 0, 1 << 14, "at most 16384")?;
        // Told from the parameters, before `of` is there.
        let Some(size) = self.size() else {
            return Err(GenerateError::TooManyEntries { nnz: u64::MAX });
        };
        within("cols", size.cols, size.rows, size.rows, "the rows of `of`: it must be square")?;
        dimension("rows", size.rows)?;
        // What is too large for a whole number becomes the largest there is.
        bounded(size.entries as u64)?;
        within("rows", size.rows, 0, MOST_ROWS, "at most 67108864")?;
        let of = self.of.generate()?;
        // Factors have more entries than their parameters tell.
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

    /// Of one row, the diagonal last.
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
        // Negative, as the factors of M-matrices are; what grows would grow without end, so there signs cancel.
        let positive = if most < 1.0 { 0.0 } else { 0.5 };
        for value in &mut *lower {
            let sign = if stream.unit() < positive { 1.0 } else { -1.0 };
            *value *= sign * most / sum;
        }
    }
}

/// What is where.
struct Pattern<'a> {
    spec: &'a Lower,
    of: &'a Csr,
    /// The row of `of` that each node is, and the node that each is.
    order: Vec<u32>,
    place: Vec<u32>,
    unknowns: usize,
    /// First rows of the constraints and of the tail, and the end.
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

    /// Rising, the diagonal last.
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

    /// Half of its entries lie near each other, at a place that moves with the row.
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
        // Where a row begins is drawn, lest all meet the same ones.
        let first = bits(self.spec.seed ^ 0xde5e, row as u64) as usize % step;
        (first..self.tail)
            .step_by(step)
            .chain(self.tail..=row)
            .map(|column| column as u32)
            .collect()
    }
}

/// Solves for a few right-hand sides, and makes the coefficients of each row so small that its |x| stay below `largest`:
/// few rows or none where chains do not grow. Sequential, as a solve is.
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
        // |b| is below 1 and the diagonal at least 0.9.
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
