//! Pruned neural-network layers: by magnitude (the largest of Gaussian weights whose rows and columns differ in scale),
//! and by blocks.

use super::build::{bounded, build};
use super::graph::sample;
use super::{GenerateError, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::{Stream, bits, normal, unit};
use rayon::prelude::*;

/// Number of samples to estimate the threshold; the error is about 0.1 % of the entries.
const SAMPLES: u64 = 1 << 19;

/// Standard deviation of the logarithm of row and column scales.
const SCALE_SPREAD: f64 = 0.25;

/// The layer; each weight is a function of its position.
struct Layer {
    seed: u64,
    row_scales: Vec<f64>,
    col_scales: Vec<f64>,
}

impl Layer {
    fn place(&self, row: usize, col: usize) -> u64 {
        (row * self.col_scales.len() + col) as u64
    }

    /// The first of the two uniform numbers from which the weight is computed.
    fn first(&self, row: usize, col: usize) -> f64 {
        unit(bits(self.seed, self.place(row, col)))
    }

    fn weight(&self, row: usize, col: usize) -> f64 {
        let second = unit(bits(!self.seed, self.place(row, col)));
        self.row_scales[row] * self.col_scales[col] * normal(self.first(row, col), second)
    }

    /// The magnitude above which the share `kept` of the weights lies, estimated from a random sample.
    fn threshold(&self, kept: f64) -> f64 {
        let (rows, cols) = (self.row_scales.len() as u64, self.col_scales.len() as u64);
        let draw = |i| {
            let mut stream = Stream::new(self.seed ^ 0x7e57, i);
            self.weight(stream.below(rows) as usize, stream.below(cols) as usize).abs()
        };
        let mut magnitudes: Vec<f64> = (0..SAMPLES).into_par_iter().map(draw).collect();
        let below = (((1.0 - kept) * SAMPLES as f64) as usize).min(SAMPLES as usize - 1);
        *magnitudes.select_nth_unstable_by(below, f64::total_cmp).1
    }
}

/// The weights whose magnitude is at least the threshold for the given sparsity (the share that is pruned).
pub fn layer(rows: u64, cols: u64, sparsity: f64, seed: u64) -> Result<Csr, GenerateError> {
    let (rows, cols) = (dimension("rows", rows)?, dimension("cols", cols)?);
    within("sparsity", sparsity, 0.0, 0.9999, "between 0 and 0.9999")?;
    // Weights are examined one by one, so their number is limited too: 2^34 take minutes.
    let cells = rows as u64 * cols as u64;
    within("rows x cols", cells, 1, 1 << 34, "at most 2^34")?;
    bounded((cells as f64 * (1.0 - sparsity)) as u64)?;

    let scales = |which: u64, count: usize| -> Vec<f64> {
        let scale = |i| (SCALE_SPREAD * Stream::new(seed ^ which, i).normal()).exp();
        (0..count as u64).into_par_iter().map(scale).collect()
    };
    let layer = Layer { seed, row_scales: scales(1, rows), col_scales: scales(2, cols) };
    let threshold = if sparsity == 0.0 { 0.0 } else { layer.threshold(1.0 - sparsity) };
    let widest = layer.col_scales.iter().copied().fold(0.0, f64::max);
    let kept = |row: usize| {
        let layer = &layer;
        // A Box-Muller normal is at most sqrt(-2 ln(1 - u)), so most weights can be excluded by u alone.
        let least = threshold / (layer.row_scales[row] * widest);
        let cutoff = 1.0 - (-0.5 * least * least).exp();
        (0..cols).filter(move |&col| layer.first(row, col) >= cutoff).filter_map(move |col| {
            let weight = layer.weight(row, col);
            (weight.abs() >= threshold).then_some((col as u32, weight))
        })
    };
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        for ((column, value), (col, weight)) in columns.iter_mut().zip(values).zip(kept(row)) {
            (*column, *value) = (col, weight);
        }
    };
    build(rows, cols, |row| kept(row).count(), fill)
}

/// Dense blocks at uniformly random positions of the block grid; values are uniform in [-1, 1).
pub fn blocks(
    rows: u64,
    cols: u64,
    block: u64,
    density: f64,
    seed: u64,
) -> Result<Csr, GenerateError> {
    let (rows, cols) = (dimension("rows", rows)?, dimension("cols", cols)?);
    let shorter = rows.min(cols) as u64;
    within("block", block, 1, shorter, "at least 1 and at most rows and cols")?;
    within("density", density, 0.0, 1.0, "between 0 and 1")?;
    bounded((rows as f64 * cols as f64 * density) as u64)?;
    let block = block as usize;
    let across = cols.div_ceil(block);
    // All rows of a block row draw the same blocks.
    let places = |row: usize| {
        let mut stream = Stream::new(seed, (row / block) as u64);
        let mut places = vec![0u32; stream.binomial(across as u64, density) as usize];
        sample(&mut stream, across, &mut places);
        places
    };
    let columns_of = |place: u32| {
        let first = place as usize * block;
        first..(first + block).min(cols)
    };
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let there = places(row);
        let there = there.iter().flat_map(|&place| columns_of(place));
        columns.iter_mut().zip(there).for_each(|(to, column)| *to = column as u32);
        let mut stream = Stream::new(!seed, row as u64);
        values.iter_mut().for_each(|value| *value = stream.range(-1.0, 1.0));
    };
    let length = |row: usize| places(row).iter().map(|&place| columns_of(place).len()).sum();
    build(rows, cols, length, fill)
}
