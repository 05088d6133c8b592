//! The Tiled SpMM performance model for column-major operands: Eq. 2 to 6 by inspection of the pattern.
//!
//! All intensities are in floating-point operations per byte, 2 for each multiply-add. Patterns are sampled (`Sampled`);
//! what the kernel would pack is counted on the sample exactly as the packer packs it.

pub mod footprint;
pub mod sample;
#[cfg(test)]
mod tests;

use super::family::RowOrder;
use super::model::{
    CHAIN_ENTRY_US, CHAIN_STEP_US, L1_RATIO, L2_RATIO, L2_SHARE, LAUNCH_US, SECTOR, STAGE_US,
    STEP_US,
};
use super::tiled::slots;
use crate::domain::{Device, Dtype};
use sample::{Cut, Sampled};

/// B_IS: bytes of an index into shared memory (Table 1).
pub const LOCAL_INDEX_BYTES: f64 = 2.0;
/// B_I: bytes of an index into device memory (Table 1).
pub const INDEX_BYTES: f64 = 4.0;
/// Entries per row below which a matrix counts as empty, so that ratios stay finite.
const LEAST_MEAN: f64 = 1e-3;
const WARP: u32 = 32;

/// A tiled candidate, as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Rows (or segments) per block.
    pub rows: u32,
    /// Most distinct rows of B per stage.
    pub buffer: u32,
    /// R: columns of C that one reading of A serves.
    pub r: u32,
    /// Columns of C.
    pub n: u32,
    pub dtype: Dtype,
    /// Entries after which a row is cut; `None` is the kernel without segments.
    pub segment: Option<u32>,
}

/// Every term of the model for one geometry on one pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// mu: mean entries per row (Table 1).
    pub mu: f64,
    /// mu*: mean entries per segment (Eq. 6); mu if nothing is cut.
    pub mu_segment: f64,
    /// R (Table 1).
    pub r: f64,
    /// rho: mean entries per distinct column of a panel (section 3.0.1).
    pub rho: f64,
    /// Z: ratio of stored to real entries of S-ELL (Table 1).
    pub z: f64,
    /// delta: bytes of metadata per thread (Table 1): its share of the stages' tables, and its key.
    pub delta: f64,
    /// B_T: bytes per element (Table 1).
    pub element: f64,
    /// C, all misses: ratio of the bytes of the lines that gathers touch to the bytes they need (section 3.0.2).
    pub c: f64,
    /// L, cold misses only: ratio of the rows of B that all blocks gather to the rows of B that exist (section 3.0.2). The
    /// paper divides by M, but Table 1's bound (N / nnz <= Gamma) needs the rows of B; those that no entry touches are not
    /// counted.
    pub l: f64,
    /// Gamma = C / L (Eq. 4).
    pub gamma: f64,
    /// U: ratio of scheduled blocks to multiprocessors, before rows are cut (Eq. 5).
    pub u: f64,
    /// Rows are cut: Eq. 6 holds, and not Eq. 3.
    pub segmented: bool,
    /// Stages of a panel, and panels of all rows.
    pub stages_per_panel: f64,
    pub panels: f64,
    /// Steps of S-ELL that the longest row costs its thread.
    pub longest_walk: f64,
    /// Bytes of device memory that an output takes: an element in the matrix's own order, else its share of the sectors that a
    /// panel's rows of C lie in.
    pub stored: f64,
    /// Bytes per multiply-add of partial sums, written and read again.
    pub again: f64,
}

/// The model's terms. Takes some milliseconds the first time a pattern is cut this way, whatever its size.
pub fn terms(sampled: &Sampled, geometry: &Geometry, device: &Device) -> Terms {
    let Geometry { rows, buffer, r, n, segment, dtype, .. } = *geometry;
    let seen = sampled.footprint(Cut { rows, buffer, segment });
    let ratio = |over: u64, under: u64, none: f64| {
        if under == 0 { none } else { over as f64 / under as f64 }
    };
    let element = dtype.bytes() as f64;
    let rho = seen.reuse();
    let exact = if segment.is_none() { sampled.lockstep } else { 1.0 };
    let c = gather_cost(element, seen.distinct, seen.line_bytes);
    let l = (sampled.nnz as f64 / rho / sampled.touched_cols.max(1) as f64).max(1.0);
    let slots = sampled.rows as f64 * ratio(seen.slots, seen.rows, 1.0);
    let blocks = sampled.rows.div_ceil(u64::from(rows)) * u64::from(n.div_ceil(r));
    let tables = ratio(seen.stages, seen.slots, 0.0) * f64::from(4 + 4 * rows / WARP);
    let natural = sampled.order == RowOrder::Natural;
    let key = if segment.is_some() || !natural { 4.0 } else { 0.0 };
    let again = sampled.partials(segment) as f64 * (SECTOR + element.max(4.0));
    Terms {
        mu: sampled.mean,
        mu_segment: sampled.mean_part(segment),
        r: f64::from(r),
        rho,
        z: seen.padding().max(exact),
        delta: tables + key,
        element,
        c,
        l,
        gamma: c / l,
        u: slots::utilization(blocks, device.multiprocessors),
        segmented: segment.is_some(),
        stages_per_panel: ratio(seen.stages, seen.panels, 0.0),
        panels: slots / f64::from(rows),
        longest_walk: segment
            .map_or(sampled.longest as f64, |s| sampled.longest.min(s.into()) as f64),
        stored: if natural {
            element
        } else {
            ratio(of_size(element, seen.sector_bytes), seen.outputs, element)
        },
        again: again / sampled.nnz.max(1) as f64,
    }
}

/// C of section 3.0.2: lines touched by warp-wide gathers from one column of B, counted on the sample.
fn gather_cost(element: f64, distinct: u64, line_bytes: [u64; 3]) -> f64 {
    (of_size(element, line_bytes) as f64 / (distinct as f64 * element).max(1.0)).max(1.0)
}

/// What was counted for elements of a size.
fn of_size(element: f64, counted: [u64; 3]) -> u64 {
    let sizes = footprint::ELEMENTS.iter().zip(counted);
    sizes.filter(|(size, _)| **size as f64 == element).map(|(_, count)| count).sum()
}

/// delta of Eq. 2: the two row offsets that a thread of the naive kernel reads.
const NAIVE_METADATA: f64 = 8.0;

impl Terms {
    /// Naive (Eq. 2), algorithmic (Gamma = 1), effective (all misses) and optimistic (cold misses alone): Eq. 3, or Eq. 6 where
    /// rows are cut.
    pub fn intensities(&self) -> [f64; 4] {
        let tiled = |gamma| {
            if self.segmented { self.equation_6(gamma) } else { self.equation_3(gamma) }
        };
        [self.equation_2(), tiled(1.0), tiled(self.c), tiled(self.gamma)]
    }

    /// Eq. 2: one thread per output, `mu` entries per row.
    pub fn equation_2(&self) -> f64 {
        let Self { mu, element, .. } = *self;
        2.0 * mu / (mu * (element + INDEX_BYTES) + mu * element + element + NAIVE_METADATA)
    }

    /// Eq. 3 for a sparse access cost `gamma`.
    pub fn equation_3(&self, gamma: f64) -> f64 {
        let Self { mu, r, rho, z, delta, element, .. } = *self;
        let mu = mu.max(LEAST_MEAN);
        2.0 / ((element + LOCAL_INDEX_BYTES) * z / r
            + element * gamma / rho
            + INDEX_BYTES / (rho * mu)
            + delta / (r * mu))
    }

    /// Eq. 6 for a cost of a gather `c`; the paper takes all misses.
    pub fn equation_6(&self, c: f64) -> f64 {
        let Self { mu, mu_segment, r, rho, z, delta, element, .. } = *self;
        let (mu, cut) = (mu.max(LEAST_MEAN), mu_segment.max(LEAST_MEAN));
        2.0 / ((element + LOCAL_INDEX_BYTES) * z / r
            + element * c / rho
            + INDEX_BYTES / (rho * cut)
            + (INDEX_BYTES + delta) / (r * cut)
            + element / mu)
    }

    /// Bytes of device memory per multiply-add, for a sparse access cost `gamma`: Eq. 3 or Eq. 6, plus the write of C, which
    /// Eq. 3 leaves out. The paper counts the write twice, for a read before it (section 2.4, feature 8); ours are streaming
    /// stores of whole sectors, counted once. Rows in another order are stored in the matrix's own: the sectors that a panel
    /// touches count whole, and partial sums of segments that the order parted are written and read once more.
    pub fn bytes_a_multiply_add(&self, gamma: f64) -> f64 {
        let mu = self.mu.max(LEAST_MEAN);
        if self.segmented {
            2.0 / self.equation_6(gamma) + (self.stored - self.element) / mu + self.again
        } else {
            2.0 / self.equation_3(gamma) + self.stored / mu
        }
    }

    /// What rows in another order save (sections 4.2 and 5.3): the bytes in `natural` order over those in this one. The paper
    /// keeps an order for its rho; ours must also pay for the padding that it changes, and for storing C in the original order.
    /// Judged by all misses: with cold misses alone rho cancels out, since L falls as rho rises.
    pub fn gain_over(&self, natural: &Self) -> f64 {
        natural.bytes_a_multiply_add(natural.c) / self.bytes_a_multiply_add(self.c)
    }
}

/// Predicted microseconds of one call, with `resident` blocks per multiprocessor.
///
/// Device memory: `bytes_a_multiply_add` at the measured copy rate (beta), where Gamma lies between all misses and cold
/// misses by the share of B's column tile that L2 keeps. It also counts what is free on the abstract machine: gathers at L2's
/// rate, multiply-adds at shared memory's, and the latency of stages, which only resident blocks hide.
pub fn predict_us(
    terms: &Terms,
    sampled: &Sampled,
    geometry: &Geometry,
    resident: u32,
    device: &Device,
) -> f64 {
    let multiply_adds = sampled.nnz as f64 * f64::from(geometry.n);
    let column_tiles = f64::from(geometry.n.div_ceil(geometry.r));
    let copy = device.copy_gbps.max(1.0) * 1e3;
    let tile_of_b =
        sampled.touched_cols as f64 * terms.r.min(f64::from(geometry.n)) * terms.element;
    let kept = (L2_SHARE * device.l2_bytes as f64 / tile_of_b.max(1.0)).min(1.0);
    let gamma = terms.gamma * kept + terms.c * (1.0 - kept);
    let blocks = terms.panels * column_tiles;
    let multiprocessors = f64::from(device.multiprocessors.max(1));
    // Fewer blocks than multiprocessors leave a part of every rate unused.
    let used = (blocks / multiprocessors).clamp(1.0 / multiprocessors, 1.0);
    let walked = multiply_adds / f64::from(geometry.n) * terms.z * column_tiles * terms.r;
    let memory_us = multiply_adds * terms.bytes_a_multiply_add(gamma) / copy;
    let l2_us = multiply_adds * terms.element * terms.c / terms.rho / (copy * L2_RATIO);
    let shared_us = walked * terms.element / (copy * L1_RATIO);
    // A stage reads the map, gathers, and walks; one more step writes C.
    let steps = 2.0 * terms.stages_per_panel + 1.0;
    let latency_us = blocks * steps * STEP_US
        / (f64::from(resident.max(1)) * multiprocessors).min(blocks.max(1.0));
    let parts = [memory_us / used, l2_us / used, shared_us / used, latency_us];
    let together = parts.iter().map(|us| us.powi(3)).sum::<f64>().cbrt();
    let chain = terms.longest_walk * (CHAIN_STEP_US / 4.0 + CHAIN_ENTRY_US);
    let second = if terms.again > 0.0 { STAGE_US } else { 0.0 };
    LAUNCH_US + together.max(chain) + second
}
