//! What the approximate families have in common: when a map of b is near enough, what checks of bundles compare with,
//! and the time of a launch that waits for nothing.

use super::inverse::compute::Inverse;
use super::inverse::scheme::Scheme as InverseScheme;
use super::sweeps::estimate::{approximation, last_two};
use super::sweeps::scheme::Scheme as SweepsScheme;
use super::{Refusal, System};
use crate::domain::{Candidate, Dtype, Fixed, Param};
use crate::ops::limit::L2_OVER_MEMORY;
use crate::sparse::tolerance::{APPROXIMATE, sweeping_error};
use crate::sparse::{Triangular, operand};
use rayon::prelude::*;

/// Errors of other right-hand sides differ from that of the one that is tried: what is to pass with them has this part of the bound.
const MARGIN: f64 = 0.75;
const SEED: u64 = 0x5eed_5eed;

/// A launch of several, microseconds.
const LAUNCH_US: f64 = 1.6;
/// Bytes that a load of one unknown moves.
const SECTOR: f64 = 32.0;

/// A right-hand side at random, with which a map is tried on the host.
pub struct Tried {
    /// In solve order.
    pub b: Vec<f64>,
    /// Of the largest |T x - b|.
    pub bound: f64,
}

impl Tried {
    pub fn of(system: &Triangular) -> Self {
        let b = operand::random_double(system.rows(), SEED);
        let bound = MARGIN * APPROXIMATE * b.iter().fold(0.0, |most: f64, b| most.max(b.abs()));
        Self { b, bound }
    }

    /// The largest |T x - b|; infinite where x has no number.
    pub fn error(&self, system: &Triangular, x: &[f64]) -> f64 {
        let of = |s: usize| {
            let (columns, values) = system.row(s);
            let terms = columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]);
            let error = (system.diagonal[s] * x[s] - self.b[s] + terms.sum::<f64>()).abs();
            if error.is_nan() { f64::INFINITY } else { error }
        };
        (0..self.b.len()).into_par_iter().map(of).reduce(|| 0.0, f64::max)
    }
}

/// What an approximate candidate makes of a right-hand side, in solve order.
pub struct Known {
    /// What its last step begins with.
    pub before: Vec<f64>,
    pub x: Vec<f64>,
    /// Bounds of the rounding errors of `x`.
    pub error: Vec<f64>,
    /// Its steps, for people.
    pub steps: String,
}

/// What a candidate makes of `b`, computed in float64; `None` if it solves exactly.
///
/// # Errors
/// The candidate's map cannot be computed for the system.
pub fn known(
    system: &Triangular,
    dtype: Dtype,
    b: &[f64],
    candidate: &Candidate,
) -> Result<Option<Known>, Refusal> {
    if let Some(scheme) = SweepsScheme::of(candidate) {
        return Ok(Some(swept(system, dtype, b, &scheme)));
    }
    let Some(scheme) = InverseScheme::of(candidate) else { return Ok(None) };
    let inverse = Inverse::of(system, dtype, scheme.map);
    let inverse =
        inverse.map_err(|denied| Refusal(format!("the approximate inverse: {denied}")))?;
    let steps = scheme.map.steps;
    let error = sweeping_error(dtype, steps as usize, inverse.longest());
    let sizes: Vec<f64> = b.iter().map(|b| b.abs()).collect();
    let last = |(once, twice): (Vec<f64>, Option<Vec<f64>>)| match twice {
        Some(twice) => [once, twice],
        None => [vec![0.0; once.len()], once],
    };
    let [before, x] = last(inverse.approximations(b));
    let [_, mut size] = last(inverse.sizes().approximations(&sizes));
    size.iter_mut().for_each(|size| *size *= error);
    let steps = match steps {
        1 => "one product with the approximate inverse".to_owned(),
        _ => format!("{steps} steps with the approximate inverse"),
    };
    Ok(Some(Known { before, x, error: size, steps }))
}

fn swept(system: &Triangular, dtype: Dtype, b: &[f64], scheme: &SweepsScheme) -> Known {
    let [before, x] = last_two(system, b, scheme);
    let terms = (0..system.rows()).map(|s| system.row(s).0.len()).max().unwrap_or(0);
    let summed = (scheme.sweeps * scheme.blocking.inner) as usize;
    let error = sweeping_error(dtype, summed, terms);
    // Nothing cancels among the sizes of all terms.
    let mut sizes = system.clone();
    sizes.values.iter_mut().for_each(|value| *value = -value.abs());
    sizes.diagonal.iter_mut().for_each(|value| *value = value.abs());
    let of_b: Vec<f64> = b.iter().map(|b| b.abs()).collect();
    let mut size = approximation(&sizes, &of_b, scheme);
    size.iter_mut().for_each(|size| *size *= error);
    Known { before, x, error: size, steps: format!("{} sweeps", scheme.sweeps) }
}

/// Why approximate families have no schemes for the system, if they have none.
pub fn lacking(system: &System) -> Option<&'static str> {
    match system.problem.approximate {
        true => system.lacks_one_side(),
        false => Some("only for problems with `approximate`, since it does not solve exactly"),
    }
}

/// The value that a request fixes for a parameter of a family.
pub fn asked<'a>(fixed: &'a Fixed, family: &str, parameter: &str) -> Option<&'a Param> {
    fixed.0.get(&format!("{family}.{parameter}")).or_else(|| fixed.0.get(parameter))
}

/// Those of `all` that are about half as many as a row has entries, half of that and twice that.
pub fn lanes(all: &[u32], entries: f64, rows: usize) -> Vec<u32> {
    let near = (entries / rows.max(1) as f64 / 2.0).max(1.0);
    let suits = |&&lanes: &&u32| {
        let lanes = f64::from(lanes);
        (near / 2.9..=near * 2.9).contains(&lanes) || (lanes == 32.0 && near > 32.0)
    };
    all.iter().filter(suits).copied().collect()
}

/// Predicted microseconds of a launch, one of several, that sums the rows of a matrix with `entries` entries and as many rows as the system;
/// `vectors` is how many values of vectors a row reads and writes beside.
pub fn launch_us(system: &System, entries: f64, vectors: f64, lanes: u32) -> f64 {
    let rows = system.triangular.rows() as f64;
    let value = system.problem.dtype.bytes() as f64;
    let device = &system.device;
    let gbps = if device.copy_gbps > 0.0 { device.copy_gbps } else { 1000.0 };
    let streamed = entries * (4.0 + value) + rows * (4.0 + vectors * value);
    // From the second launch on, what fits is in L2.
    let inside = streamed <= device.l2_bytes as f64;
    let from_memory = streamed / (gbps * 1e3) / if inside { L2_OVER_MEMORY } else { 1.0 };
    let through_l2 = (streamed + entries * SECTOR) / (gbps * 1e3 * L2_OVER_MEMORY);
    // A lane's entries come one after the other.
    let chain = 0.25 * (entries / rows.max(1.0) / f64::from(lanes)).max(1.0).ln_1p();
    LAUNCH_US + from_memory.max(through_l2) + chain * waves(system, lanes)
}

/// How often a device is full of threads until all rows were there.
pub fn waves(system: &System, lanes: u32) -> f64 {
    let device = &system.device;
    let threads = system.triangular.rows() as f64 * f64::from(lanes);
    let resident =
        f64::from(device.multiprocessors.max(1) * device.max_threads_per_multiprocessor.max(1024));
    (threads / resident).max(1.0)
}
