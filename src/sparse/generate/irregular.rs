//! Matrices with a few very long rows or columns: arrow matrices, one dense or long row, and circuits with supply
//! rails.

use super::build::{bounded, build};
use super::graph::sample;
use super::{GenerateError, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::{Stream, bits, unit};

/// Diagonal, dense last row and dense last column; diagonally dominant except for the last row.
pub fn arrow(n: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    bounded(3 * n as u64)?;
    let last = n - 1;
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut stream = Stream::new(seed, row as u64);
        if row == last {
            columns.iter_mut().enumerate().for_each(|(i, column)| *column = i as u32);
        } else {
            columns.copy_from_slice(&[row as u32, last as u32]);
        }
        values.iter_mut().for_each(|value| *value = stream.range(-1.0, 1.0));
        values[if row == last { last } else { 0 }] = 2.0;
    };
    build(n, n, |row| if row == last { n } else { 2 }, fill)
}

/// One dense row in the middle; the other rows have a diagonal and `per_row - 1` random entries.
pub fn dense_row(n: u64, per_row: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    within("per_row", per_row, 1, n as u64, "between 1 and n")?;
    bounded((n as u64 - 1) * per_row + n as u64)?;
    let (dense, per_row) = (n / 2, per_row as usize);
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut stream = Stream::new(seed, row as u64);
        values.iter_mut().for_each(|value| *value = stream.range(-1.0, 1.0));
        // Chosen from n - 1 columns, then shifted past the diagonal.
        let others = columns.len() - 1;
        sample(&mut stream, n - 1, &mut columns[..others]);
        let at = columns[..others].partition_point(|&column| (column as usize) < row);
        columns.copy_within(at..others, at + 1);
        columns[at + 1..].iter_mut().for_each(|column| *column += 1);
        (columns[at], values[at]) = (row as u32, columns.len() as f64);
    };
    build(n, n, |row| if row == dense { n } else { per_row }, fill)
}

/// One full row in the middle; the other rows have `per_row` random entries each.
pub fn long_row(rows: u64, cols: u64, per_row: u64, seed: u64) -> Result<Csr, GenerateError> {
    let (rows, cols) = (dimension("rows", rows)?, dimension("cols", cols)?);
    within("per_row", per_row, 0, cols as u64, "at most cols")?;
    bounded((rows as u64 - 1) * per_row + cols as u64)?;
    let (long, per_row) = (rows / 2, per_row as usize);
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut stream = Stream::new(seed, row as u64);
        sample(&mut stream, cols, columns);
        values.iter_mut().for_each(|value| *value = stream.range(-1.0, 1.0));
    };
    build(rows, cols, |row| if row == long { cols } else { per_row }, fill)
}

/// A circuit: hub `h` is row and column `h * n / hubs`, and is connected to each other node with a probability that
/// halves from hub to hub, starting at 0.8. In addition a row has its diagonal and 2 to 7 entries, most of them within
/// 64 columns.
pub fn circuit(n: u64, hubs: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    within("hubs", hubs, 0, (n as u64 / 4).min(64), "at most n / 4 and 64")?;
    // The hubs' probabilities sum to less than 2 x 0.8, in rows and in columns.
    bounded(n as u64 * (8 + 4))?;
    let circuit = Circuit { n, hubs: hubs as usize, seed };
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        columns.copy_from_slice(&circuit.columns(row));
        let mut stream = Stream::new(!seed, row as u64);
        for (&column, value) in columns.iter().zip(values) {
            let diagonal = column as usize == row;
            *value = if diagonal { stream.range(8.0, 16.0) } else { -stream.range(0.0, 1.0) };
        }
    };
    build(n, n, |row| circuit.columns(row).len(), fill)
}

struct Circuit {
    n: usize,
    hubs: usize,
    seed: u64,
}

impl Circuit {
    fn hub(&self, hub: usize) -> usize {
        hub * self.n / self.hubs
    }

    /// Whether a hub is connected to a node; used for both the hub's row and the node's row.
    fn meets(&self, hub: usize, node: usize) -> bool {
        let draw = bits(self.seed ^ 0xc1c, (hub * self.n + node) as u64);
        unit(draw) < 0.8 * 0.5f64.powi(hub as i32)
    }

    fn columns(&self, row: usize) -> Vec<u32> {
        let mut stream = Stream::new(self.seed, row as u64);
        let others = 2 + stream.below(6) as usize;
        let mut columns = vec![row as u32];
        for _ in 0..others {
            let near = stream.unit() < 0.85;
            let (first, width) = if near { (row.saturating_sub(64), 129) } else { (0, self.n) };
            let column = first as u64 + stream.below(width as u64);
            columns.push(column.min(self.n as u64 - 1) as u32);
        }
        for hub in 0..self.hubs {
            if self.hub(hub) == row {
                columns.extend((0..self.n).filter(|&node| self.meets(hub, node)).map(|n| n as u32));
            } else if self.meets(hub, row) {
                columns.push(self.hub(hub) as u32);
            }
        }
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}
