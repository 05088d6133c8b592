//! Packing: equations into slices, the unit of work of one warp, with entries side by side as its lanes read them.

use super::equations::{ByLevel, Equations, places_in};
use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::ops::Refusal;
use crate::sparse::zeroed::zeroed;
use bytemuck::Zeroable;
use rayon::prelude::*;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

/// Column of an entry that is padding; `kNoTerm` of the kernel.
pub const NO_TERM: u32 = u32::MAX;

/// Most steps of one kind in a slice: they are counted with 16 bits.
const MOST_STEPS: usize = u16::MAX as usize;

/// Most entries of a packed system, so that steps are counted with 32 bits and memory stays bounded.
const MOST_ENTRIES: usize = 1 << 31;

/// Rows of a task, about.
const ROWS_A_TASK: usize = 512;

/// Most packed entries per term, if there are many.
const MOST_PADDING: usize = 4;
const SMALL_ENTRIES: usize = 1 << 26;

/// How equations share a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Entry lanes of a warp: 32, or fewer where lanes also spread over right-hand sides.
    pub width: u32,
    /// Entry lanes per equation; 0 chooses for each slice.
    pub lanes: u32,
    /// Most steps that an equation should take if lanes are chosen.
    pub steps: u32,
    /// Warps that a window should keep busy if lanes are chosen.
    pub warps: u32,
}

/// Slices in execution order, in arrays as the kernel reads them.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Four words per slice: first slot, first step, b steps | x steps << 16, log2 lanes | rows << 8.
    pub meta: Arc<[u32]>,
    pub cols: Arc<[u32]>,
    pub vals: ArrayData,
    /// Row of the matrix that a slot belongs to; all ones for a partial sum.
    pub rows: Arc<[u32]>,
    /// First slice of each window, and the end.
    pub window_start: Vec<u32>,
    pub slots: usize,
    /// Host time of packing, milliseconds.
    pub ms: f64,
}

impl Packed {
    pub fn slices(&self) -> u32 {
        (self.meta.len() / 4) as u32
    }

    pub fn bytes(&self) -> u64 {
        let value = if matches!(self.vals, ArrayData::F64(_)) { 8 } else { 4 };
        (self.cols.len() * (4 + value) + self.meta.len() * 4 + self.rows.len() * 4) as u64
    }
}

/// One slice before its entries are placed.
struct Slice {
    first_slot: usize,
    rows: usize,
    log_lanes: u32,
    b_steps: usize,
    x_steps: usize,
    /// In steps.
    at: usize,
}

/// Packs equations window by window, the longest of a window first.
pub fn pack(equations: &Equations, dtype: Dtype, how: Packing) -> Result<Packed, Refusal> {
    let started = Instant::now();
    let ByLevel { mut order, start } =
        ByLevel::sorted(&equations.window_of, equations.windows as usize);
    let mut rest = &mut order[..];
    let mut windows = Vec::with_capacity(start.len());
    for window in start.windows(2) {
        let (rows, after) = std::mem::take(&mut rest).split_at_mut(window[1] - window[0]);
        windows.push((window[0], rows));
        rest = after;
    }
    let few = ROWS_A_TASK * windows.len() / equations.len().max(1);
    let laid: Vec<Vec<Slice>> = windows
        .into_par_iter()
        .with_min_len(few.max(1))
        .map(|(first_slot, rows)| slices_of(equations, how, first_slot, rows))
        .collect();
    let mut window_start = vec![0u32];
    let mut slices: Vec<Slice> = Vec::with_capacity(laid.iter().map(Vec::len).sum());
    let mut steps = 0usize;
    for mut slice in laid.into_iter().flat_map(|window| {
        window_start.push(window_start.last().map_or(0, |end| end + window.len() as u32));
        window
    }) {
        slice.at = steps;
        steps += slice.b_steps + slice.x_steps;
        slices.push(slice);
    }
    let longest = slices.iter().map(|slice| slice.b_steps.max(slice.x_steps)).max().unwrap_or(0);
    if longest > MOST_STEPS {
        return Err(Refusal(format!(
            "a slice takes {longest} steps; at most {MOST_STEPS} are possible"
        )));
    }
    let entries = steps * how.width as usize;
    if entries > MOST_ENTRIES {
        return Err(Refusal(format!(
            "{entries} packed entries; at most {MOST_ENTRIES} are possible"
        )));
    }
    if entries > SMALL_ENTRIES && entries > MOST_PADDING * equations.terms() {
        return Err(Refusal(format!(
            "{entries} packed entries for {} terms: more than {MOST_PADDING} times as many",
            equations.terms()
        )));
    }
    let slot_of = places_in(&order);
    let placed = Placing { equations, order: &order, slot_of: &slot_of, width: how.width as usize };
    let (cols, vals) = match dtype {
        Dtype::F64 => {
            let double = |value: f64| value.is_finite().then_some(value);
            placed.entries(&slices, entries, double, ArrayData::F64)
        }
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            let single = |value: f64| (value as f32).is_finite().then_some(value as f32);
            placed.entries(&slices, entries, single, ArrayData::F32)
        }
    }?;
    let rows = order.par_iter().with_min_len(ROWS_A_TASK);
    let rows = rows.map(|&row| equations.rows[row as usize].unwrap_or(u32::MAX)).collect();
    let meta: Vec<u32> = slices.iter().flat_map(Slice::words).collect();
    let ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(Packed { meta: meta.into(), cols, vals, rows, window_start, slots: order.len(), ms })
}

/// Sorts the rows of one window, whose slots start at `first_slot`, and cuts them into slices; `at` is left open.
fn slices_of(
    equations: &Equations,
    how: Packing,
    first_slot: usize,
    rows: &mut [u32],
) -> Vec<Slice> {
    let lengths = |row: u32| {
        let (known, unknown) = (equations.known(row as usize), equations.unknown(row as usize));
        (known.0.len(), unknown.0.len())
    };
    // Terms in b wait for nothing, so they count half.
    let length = |(known, unknown): (usize, usize)| unknown.max(known.div_ceil(2));
    rows.sort_by_cached_key(|&row| {
        let lengths = lengths(row);
        Reverse((length(lengths), lengths))
    });
    let mut slices = Vec::new();
    let mut first = 0;
    while first < rows.len() {
        let log_lanes = how.log_lanes(length(lengths(rows[first])), rows.len());
        let count = ((how.width >> log_lanes) as usize).min(rows.len() - first);
        let longest = rows[first..first + count].iter().fold((0, 0), |(known, unknown), &row| {
            let lengths = lengths(row);
            (lengths.0.max(known), lengths.1.max(unknown))
        });
        slices.push(Slice {
            first_slot: first_slot + first,
            rows: count,
            log_lanes,
            b_steps: longest.0.div_ceil(1 << log_lanes),
            x_steps: longest.1.div_ceil(1 << log_lanes),
            at: 0,
        });
        first += count;
    }
    slices
}

impl Packing {
    /// Lanes of a slice whose longest equation has `length` terms, in a window of `rows` equations.
    fn log_lanes(&self, length: usize, rows: usize) -> u32 {
        let most = self.width.ilog2();
        if self.lanes > 0 {
            return self.lanes.ilog2().min(most);
        }
        let mut log = 0;
        while log < most && length.div_ceil(1 << log) > self.steps as usize {
            log += 1;
        }
        // A narrow window leaves warps idle: more lanes per equation cost nothing there.
        let warps = |log: u32| (rows << log) / self.width as usize;
        while log < most && warps(log + 1) < self.warps as usize && 2 << log <= length {
            log += 1;
        }
        log
    }
}

impl Slice {
    fn words(&self) -> [u32; 4] {
        let steps = self.b_steps as u32 | (self.x_steps as u32) << 16;
        let shape = self.log_lanes | (self.rows as u32) << 8;
        [self.first_slot as u32, self.at as u32, steps, shape]
    }
}

struct Placing<'a> {
    equations: &'a Equations,
    /// Equation of each slot.
    order: &'a [u32],
    slot_of: &'a [u32],
    width: usize,
}

impl Placing<'_> {
    /// Columns and values of all slices; `value` rounds to the type, if the type has such a value.
    fn entries<V: Zeroable + Copy + Send + Sync>(
        &self,
        slices: &[Slice],
        entries: usize,
        value: impl Fn(f64) -> Option<V> + Sync,
        array: impl Fn(Arc<[V]>) -> ArrayData,
    ) -> Result<(Arc<[u32]>, ArrayData), Refusal> {
        let mut cols: Arc<[u32]> = zeroed(entries);
        let mut vals: Arc<[V]> = zeroed(entries);
        let places = (Arc::make_mut(&mut cols), Arc::make_mut(&mut vals));
        self.fill(slices, places, value).ok_or_else(|| {
            Refusal(
                "a coefficient, divided by its row's diagonal, is beyond the range of the type"
                    .into(),
            )
        })?;
        Ok((cols, array(vals)))
    }

    /// The arrays are divided into slices and filled in parallel. `None` if the type cannot represent a value.
    fn fill<V: Copy + Send + Sync>(
        &self,
        slices: &[Slice],
        (mut rest_cols, mut rest_vals): (&mut [u32], &mut [V]),
        value: impl Fn(f64) -> Option<V> + Sync,
    ) -> Option<()> {
        let mut jobs = Vec::with_capacity(slices.len());
        for slice in slices {
            let length = (slice.b_steps + slice.x_steps) * self.width;
            let (c, after_c) = rest_cols.split_at_mut(length);
            let (v, after_v) = rest_vals.split_at_mut(length);
            (rest_cols, rest_vals) = (after_c, after_v);
            jobs.push((slice, c, v));
        }
        let jobs = jobs.into_par_iter().with_min_len(256);
        jobs.try_for_each_init(Vec::new, |sorted, (slice, cols, vals)| {
            cols.fill(NO_TERM);
            let (log, lanes) = (slice.log_lanes, 1usize << slice.log_lanes);
            let (known_cols, unknown_cols) = cols.split_at_mut(slice.b_steps * self.width);
            let (known_vals, unknown_vals) = vals.split_at_mut(slice.b_steps * self.width);
            for row in 0..slice.rows {
                let equation = self.order[slice.first_slot + row] as usize;
                let place = |at: usize| (at >> log) * self.width + row * lanes + (at & (lanes - 1));
                let (known, factors) = self.equations.known(equation);
                for (at, (&col, &factor)) in known.iter().zip(factors).enumerate() {
                    (known_cols[place(at)], known_vals[place(at)]) = (col, value(factor)?);
                }
                let (unknown, factors) = self.equations.unknown(equation);
                let slots = unknown.iter().map(|&col| self.slot_of[col as usize]);
                sorted.clear();
                sorted.extend(slots.zip(factors.iter().copied()));
                // Terms that become known last come last, and lanes side by side read neighbouring entries.
                sorted.sort_unstable_by_key(|&(slot, _)| slot);
                for (at, &(slot, factor)) in sorted.iter().enumerate() {
                    (unknown_cols[place(at)], unknown_vals[place(at)]) = (slot, value(factor)?);
                }
            }
            Some(())
        })
    }
}
