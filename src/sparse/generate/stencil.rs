//! Grids and bands: Poisson operators, their ILU(0)-like lower factors, and full bands.

use super::build::{bounded, build};
use super::{GenerateError, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::{Stream, bits, unit};

/// A grid of points; x varies fastest.
#[derive(Clone, Copy)]
struct Grid {
    sizes: [usize; 3],
    /// Distance between neighbours along each axis, in points.
    strides: [usize; 3],
}

impl Grid {
    fn of(sizes: [u64; 3]) -> Result<Self, GenerateError> {
        for (name, size) in ["nx", "ny", "nz"].into_iter().zip(sizes) {
            dimension(name, size)?;
        }
        // Each is below 2^31, so a product of two fits into a u64 and of three into a u128.
        let points = sizes.iter().map(|&size| u128::from(size)).product::<u128>();
        let points = dimension("points of the grid", u64::try_from(points).unwrap_or(u64::MAX))?;
        bounded(7 * points as u64)?;
        let sizes = sizes.map(|size| size as usize);
        Ok(Self { sizes, strides: [1, sizes[0], sizes[0] * sizes[1]] })
    }

    fn points(&self) -> usize {
        self.sizes[0] * self.sizes[1] * self.sizes[2]
    }

    fn coordinate(&self, point: usize, axis: usize) -> usize {
        point / self.strides[axis] % self.sizes[axis]
    }

    fn has_below(&self, point: usize, axis: usize) -> bool {
        self.coordinate(point, axis) > 0
    }

    fn has_above(&self, point: usize, axis: usize) -> bool {
        self.coordinate(point, axis) + 1 < self.sizes[axis]
    }

    fn count(&self, point: usize, has: impl Fn(&Self, usize, usize) -> bool) -> usize {
        (0..3).filter(|&axis| has(self, point, axis)).count()
    }
}

/// Conductance of the face between a point and its lower neighbour along an axis; it is the same for both.
fn conductance(seed: u64, point: usize, axis: usize) -> f64 {
    if seed == 0 { 1.0 } else { 0.5 + unit(bits(seed, 3 * point as u64 + axis as u64)) }
}

/// The operator along `axes` axes of a grid. Boundary faces count, with fixed values beyond them, so the matrix is
/// symmetric positive definite.
pub fn poisson(sizes: [u64; 3], axes: usize, seed: u64) -> Result<Csr, GenerateError> {
    let grid = Grid::of(sizes)?;
    let neighbours =
        |point| grid.count(point, Grid::has_below) + grid.count(point, Grid::has_above);
    let fill = |point: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut at = 0;
        let mut put = |column: usize, value: f64| {
            (columns[at], values[at]) = (column as u32, value);
            at += 1;
        };
        let above = |axis: usize| conductance(seed, point + grid.strides[axis], axis);
        // A face on the upper boundary has an index that no point has.
        let beyond = |axis: usize| conductance(seed, grid.points() + point, axis);
        let mut diagonal = 0.0;
        for axis in (0..3).rev().filter(|&axis| grid.has_below(point, axis)) {
            put(point - grid.strides[axis], -conductance(seed, point, axis));
        }
        for axis in 0..axes {
            let upper = if grid.has_above(point, axis) { above(axis) } else { beyond(axis) };
            diagonal += conductance(seed, point, axis) + upper;
        }
        put(point, diagonal);
        for axis in (0..3).filter(|&axis| grid.has_above(point, axis)) {
            put(point + grid.strides[axis], -above(axis));
        }
    };
    build(grid.points(), grid.points(), |point| neighbours(point) + 1, fill)
}

/// A lower triangle with the pattern of the grid's operator and the bounded values of `lower_row`.
pub fn factor(sizes: [u64; 3], seed: u64) -> Result<Csr, GenerateError> {
    let grid = Grid::of(sizes)?;
    let fill = |point: usize, columns: &mut [u32], values: &mut [f64]| {
        let below = (0..3).rev().filter(|&axis| grid.has_below(point, axis));
        let lower = below.map(|axis| (point - grid.strides[axis]) as u32);
        columns.iter_mut().zip(lower.chain([point as u32])).for_each(|(to, column)| *to = column);
        lower_row(seed, point, values);
    };
    build(grid.points(), grid.points(), |point| grid.count(point, Grid::has_below) + 1, fill)
}

/// Values of one row of an ILU(0)-like factor, with the diagonal last. The diagonal is within 10 % of 1, and the
/// magnitudes of the others sum to at most one half, so that |x| <= 2.5 max|b| for chains of any length.
pub fn lower_row(seed: u64, row: usize, values: &mut [f64]) {
    let mut stream = Stream::new(seed, row as u64);
    let Some((diagonal, lower)) = values.split_last_mut() else { return };
    let most = 0.5 / lower.len().max(1) as f64;
    // Negative, as in factors of M-matrices.
    lower.iter_mut().for_each(|value| *value = -stream.range(0.2 * most, most));
    *diagonal = stream.range(0.9, 1.1);
}

/// A full band with entries from [-1, 1) and a dominant diagonal.
pub fn banded(n: u64, half: u64, seed: u64) -> Result<Csr, GenerateError> {
    let n = dimension("n", n)?;
    within("half", half, 0, n as u64 - 1, "below n")?;
    let half = half as usize;
    // The band minus its two missing corners.
    bounded((n as u64) * (2 * half as u64 + 1) - (half as u64) * (half as u64 + 1))?;
    let first = |row: usize| row.saturating_sub(half);
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut stream = Stream::new(seed, row as u64);
        columns.iter_mut().enumerate().for_each(|(i, column)| *column = (first(row) + i) as u32);
        values.iter_mut().for_each(|value| *value = stream.range(-1.0, 1.0));
        values[row - first(row)] = 2.0 * half as f64 + 1.0;
    };
    build(n, n, |row| (row + half + 1).min(n) - first(row), fill)
}
