//! Random lower triangles with a given number of levels of equal width, and full lower bands, which have one level per
//! row.

use super::build::{bounded, build};
use super::graph::sample;
use super::stencil::lower_row;
use super::{GenerateError, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::Stream;

/// Levels of n / levels consecutive rows. Each row after the first level has one entry in the previous level, which
/// determines its level, and others anywhere before its own level; including the diagonal about `per_row` in total.
pub fn levels(n: u64, levels: u64, per_row: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    within("levels", levels, 1, n as u64, "between 1 and n")?;
    within("per_row", per_row, 2, n.max(2) as u64, "between 2 and n")?;
    bounded(n as u64 * per_row)?;
    let layers = Layers { n: n as u64, levels, per_row, seed };
    let fill =
        |row: usize, columns: &mut [u32], values: &mut [f64]| layers.fill(row, columns, values);
    build(n, n, |row| layers.plan(row).lower + 1, fill)
}

struct Layers {
    n: u64,
    levels: u64,
    per_row: u64,
    seed: u64,
}

/// Properties of a row that are determined by its first draws.
struct Row {
    stream: Stream,
    /// Strictly lower entries.
    lower: usize,
    /// First rows of the previous level and of its own level.
    before: usize,
    own: usize,
}

impl Layers {
    /// First row of a level: level `l` is the rows r with r * levels / n = l.
    fn first(&self, level: u64) -> usize {
        (level * self.n).div_ceil(self.levels) as usize
    }

    fn plan(&self, row: usize) -> Row {
        let mut stream = Stream::new(!self.seed, row as u64);
        let level = row as u64 * self.levels / self.n;
        let own = self.first(level);
        // 1 to 2 per_row - 3, so per_row - 1 on average.
        let wanted = 1 + stream.below(2 * self.per_row - 3);
        let lower = (wanted as usize).min(own);
        Row { stream, lower, before: self.first(level.saturating_sub(1)), own }
    }

    fn fill(&self, row: usize, columns: &mut [u32], values: &mut [f64]) {
        let Row { mut stream, lower, before, own } = self.plan(row);
        if let Some(others) = lower.checked_sub(1) {
            let chosen = (before as u64 + stream.below((own - before) as u64)) as u32;
            // Chosen from own - 1 columns, then shifted past the one already chosen.
            sample(&mut stream, own - 1, &mut columns[..others]);
            let at = columns[..others].partition_point(|&column| column < chosen);
            columns.copy_within(at..others, at + 1);
            columns[at + 1..lower].iter_mut().for_each(|column| *column += 1);
            columns[at] = chosen;
        }
        columns[lower] = row as u32;
        lower_row(self.seed, row, values);
    }
}

/// All entries of the diagonal and of the `half` subdiagonals, as in the Cholesky factor of a band matrix.
pub fn band(n: u64, half: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    within("half", half, 0, n as u64 - 1, "below n")?;
    // Minus the corner that the first rows lack.
    bounded(n as u64 * (half + 1) - half * (half + 1) / 2)?;
    let half = half as usize;
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let first = row.saturating_sub(half);
        columns.iter_mut().zip(first..).for_each(|(to, column)| *to = column as u32);
        lower_row(seed, row, values);
    };
    build(n, n, |row| row.min(half) + 1, fill)
}
