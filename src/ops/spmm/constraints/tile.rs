//! LO-SpMM's constraints on one tile (sections 3.2 to 3.4), and what a launch needs beside them.

use crate::domain::{Device, KernelFigures, Spmm};
use crate::ops::spmm::family::{MOST_GRID_Y, Tile};
use crate::search::Verdict;

/// LO-SpMM's TH_row and TH_col.
const MAX_IMBALANCE: f64 = 0.25;
/// Excesses this far apart are almost equal: a fifth of the thresholds.
const ALMOST: f64 = 0.05;

/// What a launch may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub registers_per_thread: u32,
    pub registers_per_block: u32,
    pub threads_per_block: u32,
    pub warp: u32,
}

impl Limits {
    /// What every device has that we compile for (compute capability 5.0 and later).
    pub const ANY: Self = Self {
        registers_per_thread: 255,
        registers_per_block: 65_536,
        threads_per_block: 1024,
        warp: 32,
    };

    /// What a device has, at most what [`is_legal`] allows.
    pub fn of(device: &Device) -> Self {
        Self {
            registers_per_thread: device.registers_per_thread.min(Self::ANY.registers_per_thread),
            registers_per_block: device.registers_per_block.min(Self::ANY.registers_per_block),
            threads_per_block: device.max_threads_per_block.min(Self::ANY.threads_per_block),
            warp: device.warp_size.max(1),
        }
    }
}

/// Whether a tile can be compiled and launched for a problem on any device; a tile that cannot is always removed.
pub fn is_legal(tile: &Tile, problem: &Spmm) -> bool {
    let any = &Limits::ANY;
    let fits = registers(tile, any, None).keeps() && launch_limits(tile, any).keeps();
    fits && whole_warps(tile, any).keeps()
        && duplicates(tile).keeps()
        && problem.n.is_multiple_of(tile.vector)
}

/// A tile that repeats another candidate of the space.
pub fn duplicates(tile: &Tile) -> Verdict {
    tile.repeats.map_or(Verdict::Keep, |beyond| {
        Verdict::within(beyond.value.into(), beyond.limit.into(), 1.0)
    })
}

/// LO-SpMM, section 3.2: registers per thread by the count of variables, or by the compiler if it has seen the kernel, and their
/// product with the threads. The one that takes the larger share of its limit is judged. The paper also caps the compiler's
/// registers (`--maxrregcount`) slightly above the count; our kernels spill nowhere without a cap (a test compiles them all), so
/// none is set.
pub fn registers(tile: &Tile, limits: &Limits, compiled: Option<&KernelFigures>) -> Verdict {
    // A device allocates registers by whole warps, eight per thread at a time.
    let (a_thread, a_block) = match compiled {
        Some(figures) => {
            let threads = tile.threads.next_multiple_of(limits.warp);
            (figures.registers, figures.registers.next_multiple_of(8) * threads)
        }
        None => (tile.registers, tile.registers * tile.threads),
    };
    fuller([(a_thread, limits.registers_per_thread), (a_block, limits.registers_per_block)])
}

/// Threads per block, and blocks along y.
pub fn launch_limits(tile: &Tile, limits: &Limits) -> Verdict {
    let threads = tile.most_threads.min(limits.threads_per_block);
    fuller([(tile.threads, threads), (tile.grid_y, MOST_GRID_Y)])
}

/// Judges the value that takes the larger share of its limit.
fn fuller(of: [(u32, u32); 2]) -> Verdict {
    let share = |(value, limit): (u32, u32)| f64::from(value) / f64::from(limit.max(1));
    let (value, limit) = if share(of[1]) > share(of[0]) { of[1] } else { of[0] };
    Verdict::at_most(value.into(), limit.into())
}

/// LO-SpMM, section 3.3: the threads of a block are whole warps, and whole tiles; those past the last are counted.
pub fn whole_warps(tile: &Tile, limits: &Limits) -> Verdict {
    let (tile_threads, warp) = (tile.threads_per_tile.max(1), limits.warp);
    // Both tiles and warps end there.
    let whole = tile_threads / divisor(tile_threads, warp) * warp;
    Verdict::at_most((tile.threads % whole).into(), 0.0)
}

/// The greatest common divisor.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// LO-SpMM, section 3.3: at least half as many blocks as multiprocessors.
pub fn enough_blocks(blocks: u64, device: &Device) -> Verdict {
    Verdict::at_least(blocks as f64, f64::from(device.multiprocessors) / 2.0)
}

/// LO-SpMM's WASTE_col: the share of padding in tiles of some columns over N.
pub fn waste(n: u32, columns: u32) -> f64 {
    let padded = u64::from(n.div_ceil(columns)) * u64::from(columns);
    1.0 - f64::from(n) / padded as f64
}

/// LO-SpMM, section 3.4: neither COV_row, the variation of entries over tiles of M1 rows, nor WASTE_col exceeds its threshold.
/// The larger one is stored.
///
/// The excess is the sum of what both exceed their thresholds by.
pub fn balanced(cov: f64, waste: f64) -> Verdict {
    let over = |value: f64| (value - MAX_IMBALANCE).max(0.0);
    Verdict::within(cov.max(waste), MAX_IMBALANCE, over(waste) + over(cov))
}

/// The excess up to which tiles stay if none of their family is balanced (power-law rows) and the least excess is `least`.
/// Tiles of almost equal balance stay together: which of their heights is the least by a hair would be chance.
pub fn spared(least: f64) -> f64 {
    least + ALMOST
}
