//! Packing: equations into runs, the unit of work of one warp, with their terms one after the other.

use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::ops::Refusal;
use crate::ops::sptrsv::slices::equations::{ByLevel, Equations, places_in};
use crate::sparse::zeroed::zeroed;
use bytemuck::Zeroable;
use rayon::prelude::*;
use std::sync::Arc;
use std::time::Instant;

/// In a column: the term is one in b; `kOfB` of the kernel.
pub const OF_B: u32 = 1 << 31;

/// Most rows of a run: lanes of a warp.
pub const RUN_ROWS: usize = 32;

/// Terms of a run begin at a multiple of this, so that its arrays are copied by 16 bytes.
pub const ALIGNED: usize = 4;

/// Most terms of a system, so that they are counted with 32 bits and memory stays bounded.
const MOST_TERMS: usize = 1 << 31;

/// Runs in the order in which warps take them, in arrays as the kernel reads them.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Four words per run: first slot, first term, terms, rows.
    pub runs: Arc<[u32]>,
    /// Of each slot: the terms of its run before those of the next slot.
    pub ends: Arc<[u16]>,
    /// A slot, or [`OF_B`] and a row of b.
    pub cols: Arc<[u32]>,
    pub vals: ArrayData,
    /// Row of the matrix that a slot belongs to; all ones for a partial sum.
    pub rows: Arc<[u32]>,
    /// First slot of each window, and the end.
    pub window_start: Vec<u32>,
    /// Host time of packing, milliseconds.
    pub ms: f64,
}

impl Packed {
    pub fn count(&self) -> u32 {
        (self.runs.len() / 4) as u32
    }

    pub fn slots(&self) -> usize {
        self.rows.len()
    }

    pub fn bytes(&self) -> u64 {
        let value = if matches!(self.vals, ArrayData::F64(_)) { 8 } else { 4 };
        (self.runs.len() * 4 + self.ends.len() * 2 + self.rows.len() * 4) as u64
            + self.cols.len() as u64 * (4 + value)
    }
}

/// Packs equations of at most `most` terms each window by window, each in the order of its rows.
pub fn pack(equations: &Equations, dtype: Dtype, most: usize) -> Result<Packed, Refusal> {
    let started = Instant::now();
    let ByLevel { order, start } =
        ByLevel::sorted(&equations.window_of, equations.windows as usize);
    if order.len() >= OF_B as usize {
        return Err(Refusal(format!("{} unknowns; fewer than {OF_B} are possible", order.len())));
    }
    let terms =
        |row: u32| equations.known(row as usize).0.len() + equations.unknown(row as usize).0.len();
    let (mut runs, mut ends) = (Vec::new(), vec![0u16; order.len()]);
    let mut at = 0usize;
    for window in start.windows(2) {
        let mut first = window[0];
        while first < window[1] {
            let (mut rows, mut count) = (0, 0);
            for slot in first..window[1].min(first + RUN_ROWS) {
                let more = terms(order[slot]);
                if more > most {
                    return Err(Refusal(format!(
                        "an equation has {more} terms; a warp takes at most {most}"
                    )));
                }
                if count + more > most {
                    break;
                }
                (rows, count) = (rows + 1, count + more);
                ends[slot] = count as u16;
            }
            runs.push([first as u32, at as u32, count as u32, rows as u32]);
            first += rows;
            at += count.next_multiple_of(ALIGNED);
            if at > MOST_TERMS {
                return Err(Refusal(format!(
                    "more than {MOST_TERMS} terms, which are not possible"
                )));
            }
        }
    }
    let slot_of = places_in(&order);
    let placed = Placing { equations, order: &order, slot_of: &slot_of };
    let (cols, vals) = match dtype {
        Dtype::F64 => {
            let double = |value: f64| value.is_finite().then_some(value);
            placed.terms(&runs, at, double, ArrayData::F64)
        }
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            let single = |value: f64| (value as f32).is_finite().then_some(value as f32);
            placed.terms(&runs, at, single, ArrayData::F32)
        }
    }?;
    let rows = order.iter().map(|&row| equations.rows[row as usize].unwrap_or(u32::MAX)).collect();
    Ok(Packed {
        runs: runs.concat().into(),
        ends: ends.into(),
        cols,
        vals,
        rows,
        window_start: start.iter().map(|&slot| slot as u32).collect(),
        ms: started.elapsed().as_secs_f64() * 1e3,
    })
}

struct Placing<'a> {
    equations: &'a Equations,
    /// Equation of each slot.
    order: &'a [u32],
    slot_of: &'a [u32],
}

impl Placing<'_> {
    /// Columns and values of all runs, `count` with what aligns them; `value` rounds to the type, if the type has such a value.
    fn terms<V: Zeroable + Copy + Send + Sync>(
        &self,
        runs: &[[u32; 4]],
        count: usize,
        value: impl Fn(f64) -> Option<V> + Sync,
        array: impl Fn(Arc<[V]>) -> ArrayData,
    ) -> Result<(Arc<[u32]>, ArrayData), Refusal> {
        let (mut cols, mut vals): (Arc<[u32]>, Arc<[V]>) = (zeroed(count), zeroed(count));
        let (mut rest_cols, mut rest_vals) = (Arc::make_mut(&mut cols), Arc::make_mut(&mut vals));
        let mut jobs = Vec::with_capacity(runs.len());
        for run in runs {
            let length = (run[2] as usize).next_multiple_of(ALIGNED);
            let (own_cols, after_cols) = rest_cols.split_at_mut(length);
            let (own_vals, after_vals) = rest_vals.split_at_mut(length);
            (rest_cols, rest_vals) = (after_cols, after_vals);
            jobs.push((run, own_cols, own_vals));
        }
        let jobs = jobs.into_par_iter().with_min_len(256);
        let filled = jobs.try_for_each_init(Vec::new, |sorted, (run, cols, vals)| {
            let slots = run[0] as usize..(run[0] + run[3]) as usize;
            let mut at = 0;
            for &equation in &self.order[slots] {
                let (known, factors) = self.equations.known(equation as usize);
                for (&row, &factor) in known.iter().zip(factors) {
                    (cols[at], vals[at]) = (row | OF_B, value(factor)?);
                    at += 1;
                }
                let (unknown, factors) = self.equations.unknown(equation as usize);
                let slots = unknown.iter().map(|&col| self.slot_of[col as usize]);
                sorted.clear();
                sorted.extend(slots.zip(factors.iter().copied()));
                sorted.sort_unstable_by_key(|&(slot, _)| slot);
                for &(slot, factor) in sorted.iter() {
                    (cols[at], vals[at]) = (slot, value(factor)?);
                    at += 1;
                }
            }
            Some(())
        });
        let beyond =
            "a coefficient, divided by its row's diagonal, is beyond the range of the type";
        filled.ok_or_else(|| Refusal(beyond.to_owned()))?;
        Ok((cols, array(vals)))
    }
}
