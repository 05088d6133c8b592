//! Random graphs: RMAT (Chakrabarti, Zhan and Faloutsos, SDM 2004), uniform matrices, random ILU(0)-like factors.

use super::build::{bounded, build};
use super::stencil::lower_row;
use super::{GenerateError, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::Stream;
use std::collections::BTreeSet;

/// RMAT without a list of edges: the draws are first distributed binomially down the tree of row halves, which
/// determines the number of draws of every row; each row then draws its columns bit by bit, conditional on its own
/// bits.
struct Rmat {
    scale: u32,
    /// Draws of each row.
    draws: Vec<u32>,
    /// Chance of the right half of the columns in 2^-32, given the half of the rows.
    right: [u64; 2],
    seed: u64,
}

impl Rmat {
    fn of(scale: u32, edge_factor: u64, p: [f64; 4], seed: u64) -> Result<Self, GenerateError> {
        within("scale", scale, 1, 28, "between 1 and 28")?;
        within("edge_factor", edge_factor, 1, 1 << 20, "between 1 and 2^20")?;
        for (name, p) in ["a", "b", "c", "d"].into_iter().zip(p) {
            within(name, p, 0.0, 1.0, "between 0 and 1")?;
        }
        let sum: f64 = p.iter().sum();
        within("a + b + c + d", sum, 1.0 - 1e-9, 1.0 + 1e-9, "1")?;
        bounded(edge_factor << scale)?;
        let [a, b, c, d] = p;
        let mut draws = vec![0u32; 1 << scale];
        share_draws(&mut draws, edge_factor << scale, a + b, seed, 1);
        let share = |x: f64, y: f64| if x + y > 0.0 { y / (x + y) } else { 0.0 };
        let right = [share(a, b), share(c, d)].map(|p| (p * 4_294_967_296.0) as u64);
        Ok(Self { scale, draws, right, seed })
    }

    fn rows(&self) -> usize {
        self.draws.len()
    }

    /// The columns drawn for a row in ascending order, including duplicates. They are drawn twice, for lengths and for
    /// entries, rather than stored, which halves the memory.
    fn columns(&self, row: usize) -> Vec<u32> {
        let mut stream = Stream::new(self.seed ^ 0x5eed, row as u64);
        let draw = |_| draw_column(&mut stream, row, self.scale, self.right);
        let mut columns: Vec<u32> = (0..self.draws[row]).map(draw).collect();
        columns.sort_unstable();
        columns
    }
}

pub fn rmat(scale: u32, edge_factor: u64, p: [f64; 4], seed: u64) -> Result<Csr, GenerateError> {
    let graph = Rmat::of(scale, edge_factor, p, seed)?;
    let length = |row: usize| graph.columns(row).chunk_by(|a, b| a == b).count();
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let drawn = graph.columns(row);
        for ((column, value), same) in
            columns.iter_mut().zip(values).zip(drawn.chunk_by(|a, b| a == b))
        {
            (*column, *value) = (same[0], same.len() as f64);
        }
    };
    build(graph.rows(), graph.rows(), length, fill)
}

/// A lower triangle with a diagonal and the pattern of an RMAT graph's upper triangle, with the vertices in reverse
/// order: the hubs, which RMAT numbers first, come last, as in fill-reducing orderings.
pub fn rmat_factor(
    scale: u32,
    edge_factor: u64,
    p: [f64; 4],
    seed: u64,
) -> Result<Csr, GenerateError> {
    let graph = Rmat::of(scale, edge_factor, p, seed)?;
    let last = graph.rows() - 1;
    let lower = |row: usize| {
        let mut columns = graph.columns(last - row);
        columns.dedup();
        columns.retain(|&column| column as usize > last - row);
        columns
    };
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let drawn = lower(row).into_iter().rev().map(|column| last as u32 - column);
        columns.iter_mut().zip(drawn.chain([row as u32])).for_each(|(to, column)| *to = column);
        lower_row(seed, row, values);
    };
    build(last + 1, last + 1, |row| lower(row).len() + 1, fill)
}

/// Distributes `count` draws among the rows recursively by halves; `node` numbers the tree nodes.
fn share_draws(rows: &mut [u32], count: u64, upper: f64, seed: u64, node: u64) {
    if count == 0 {
        return;
    }
    if let [row] = rows {
        // At most MAX_NNZ.
        *row = count as u32;
        return;
    }
    let first = Stream::new(seed, node).binomial(count, upper);
    let (low, high) = rows.split_at_mut(rows.len() / 2);
    let below = |rows: &mut [u32], count, node| share_draws(rows, count, upper, seed, node);
    if count > 1 << 12 {
        rayon::join(|| below(low, first, 2 * node), || below(high, count - first, 2 * node + 1));
    } else {
        below(low, first, 2 * node);
        below(high, count - first, 2 * node + 1);
    }
}

/// Draws one column, one bit per level from the most significant; two levels share 64 random bits.
fn draw_column(stream: &mut Stream, row: usize, scale: u32, right: [u64; 2]) -> u32 {
    let (mut column, mut pool) = (0, 0);
    for level in 0..scale {
        pool = if level % 2 == 0 { stream.bits() } else { pool >> 32 };
        let row_bit = row >> (scale - 1 - level) & 1;
        column = column << 1 | u32::from((pool & 0xffff_ffff) < right[row_bit]);
    }
    column
}

/// Every entry is present with the same probability; values are uniform in [-1, 1).
pub fn uniform(rows: u64, cols: u64, nnz: u64, seed: u64) -> Result<Csr, GenerateError> {
    let (rows, cols) = (dimension("rows", rows)?, dimension("cols", cols)?);
    let cells = rows as u64 * cols as u64;
    within("nnz", nnz, 0, cells, "at most rows x cols")?;
    bounded(nnz)?;
    let p = nnz as f64 / cells as f64;
    let count = |stream: &mut Stream| stream.binomial(cols as u64, p) as usize;
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut stream = Stream::new(seed, row as u64);
        // The same first draws as for the length.
        count(&mut stream);
        sample(&mut stream, cols, columns);
        values.iter_mut().for_each(|value| *value = stream.range(-1.0, 1.0));
    };
    build(rows, cols, |row| count(&mut Stream::new(seed, row as u64)), fill)
}

/// A lower triangle with the pattern of a random symmetric matrix with about `per_row` entries per row.
pub fn factor(n: u64, per_row: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    within("per_row", per_row, 1, n as u64, "between 1 and n")?;
    bounded(n as u64 * (per_row / 2 + 1))?;
    let p = (per_row - 1) as f64 / n as f64;
    let count = |stream: &mut Stream, row: usize| stream.binomial(row as u64, p) as usize;
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut stream = Stream::new(seed, row as u64);
        let lower = count(&mut stream, row);
        sample(&mut stream, row, &mut columns[..lower]);
        columns[lower] = row as u32;
        lower_row(seed, row, values);
    };
    build(n, n, |row| count(&mut Stream::new(seed, row as u64), row) + 1, fill)
}

/// Fills `chosen` with distinct numbers of 0..bound in ascending order; every set is equally likely.
pub fn sample(stream: &mut Stream, bound: usize, chosen: &mut [u32]) {
    if chosen.len() > bound / 8 {
        // Selection sampling (Knuth, TAOCP 2, 3.4.2 S).
        let (mut needed, mut next) = (chosen.len() as u64, 0);
        for number in 0..bound as u64 {
            if stream.below(bound as u64 - number) < needed {
                chosen[next] = number as u32;
                (needed, next) = (needed - 1, next + 1);
                if needed == 0 {
                    return;
                }
            }
        }
        return;
    }
    // Floyd's algorithm, which needs no rejection.
    let mut taken = BTreeSet::new();
    for last in bound - chosen.len()..bound {
        let number = stream.below(last as u64 + 1) as u32;
        if !taken.insert(number) {
            taken.insert(last as u32);
        }
    }
    chosen.iter_mut().zip(taken).for_each(|(to, number)| *to = number);
}
