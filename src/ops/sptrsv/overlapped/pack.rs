//! Packing: groups of rows as arrays that the kernel reads.

use super::group::{Group, Window, groups};
use super::scheme::{FIRST_AWAITED, Shape};
use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::ops::Refusal;
use crate::ops::sptrsv::slices::equations::{ByLevel, Equations, places_in};
use crate::sparse::zeroed::zeroed;
use bytemuck::Zeroable;
use rayon::prelude::*;
use std::sync::Arc;
use std::time::Instant;

/// Row of b and x of a partial sum, and of a place without a row; `kNoRow` of the kernel.
pub const NO_ROW: u32 = u32::MAX;

/// Most packed terms, so that memory stays bounded.
const MOST_TERMS: usize = 1 << 29;

/// Groups in order, in arrays as the kernel reads them.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Four words a group: first awaited unknown, awaited unknowns, first pass, passes.
    pub groups: Arc<[u32]>,
    /// Two words a pass: slot of its first row, and rows that the group owns, which come first.
    pub passes: Arc<[u32]>,
    /// Slots of awaited unknowns.
    pub awaited: Arc<[u32]>,
    /// Places in the group's shared memory, lane by lane for each step of a pass; 0 is a zero.
    pub cols: Arc<[u16]>,
    pub vals: ArrayData,
    /// What each row of a pass has of b: the factor and the row, which is also the row of x.
    pub scale: ArrayData,
    pub rows: Arc<[u32]>,
    pub slots: usize,
    /// Windows, and rows that are computed more than once, each time but the first.
    pub windows: u32,
    pub again: usize,
    /// Host time of grouping and packing, milliseconds.
    pub ms: f64,
}

impl Packed {
    /// Number of groups.
    pub fn count(&self) -> u32 {
        (self.groups.len() / 4) as u32
    }

    pub fn bytes(&self) -> u64 {
        let value = if matches!(self.vals, ArrayData::F64(_)) { 8 } else { 4 };
        let words = self.groups.len() + self.passes.len() + self.awaited.len() + self.rows.len();
        (self.cols.len() * (2 + value) + self.rows.len() * value + 4 * words) as u64
    }
}

/// Cuts equations into windows and groups, and packs them. No equation has more terms than a row of the shape, or more than one in b.
pub fn pack(equations: &Equations, dtype: Dtype, shape: &Shape) -> Result<Packed, Refusal> {
    let started = Instant::now();
    let by_level = ByLevel::sorted(&equations.window_of, equations.windows as usize);
    let place = places_in(&by_level.order);
    let of_windows: Vec<(Vec<Group>, u32)> = windows(&by_level, shape)
        .into_par_iter()
        .map(|(rows, ends)| {
            let window = Window { rows, ends: &ends };
            let parents = |row: u32| equations.unknown(row as usize).0;
            groups(window, shape, &parents, &|row: u32| place[row as usize])
        })
        .collect();
    let windows = of_windows.iter().map(|(_, windows)| windows).sum();
    let mut all: Vec<Group> = of_windows.into_iter().flat_map(|(groups, _)| groups).collect();
    let passes: usize = all.iter().map(|group| group.passes.len()).sum();
    let terms = passes * shape.pass_terms() as usize;
    if terms > MOST_TERMS {
        return Err(Refusal(format!("{terms} packed terms; at most {MOST_TERMS} are possible")));
    }
    // Slots in the order of groups and passes, of what a group owns.
    let mut slot_of = vec![u32::MAX; equations.len()];
    let (mut slots, mut again) = (0u32, 0usize);
    let passes = all.par_iter_mut().flat_map_iter(|group| &mut group.passes);
    passes.for_each(|pass| pass.sort_by_key(|&(_, owned)| !owned));
    for pass in all.iter().flat_map(|group| &group.passes) {
        for &(row, owned) in pass.iter() {
            if owned {
                slot_of[row as usize] = slots;
                slots += 1;
            } else {
                again += 1;
            }
        }
    }
    // Neighbouring lanes await neighbouring slots.
    all.par_iter_mut()
        .for_each(|group| group.awaited.sort_unstable_by_key(|&it| slot_of[it as usize]));
    let laid = Laid::of(&all, &slot_of, shape);
    let filled = match dtype {
        Dtype::F64 => {
            let double = |value: f64| value.is_finite().then_some(value);
            fill(equations, &all, &laid, shape, double, ArrayData::F64)
        }
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            let single = |value: f64| (value as f32).is_finite().then_some(value as f32);
            fill(equations, &all, &laid, shape, single, ArrayData::F32)
        }
    };
    let (cols, vals, scale, rows) = filled.ok_or_else(|| {
        Refusal(
            "a coefficient, divided by its row's diagonal, is beyond the range of the type".into(),
        )
    })?;
    Ok(Packed {
        groups: laid.groups.into(),
        passes: laid.passes.into(),
        awaited: laid.awaited.into(),
        cols,
        vals,
        scale,
        rows,
        slots: slots as usize,
        windows,
        again,
        ms: started.elapsed().as_secs_f64() * 1e3,
    })
}

/// Runs of as many levels as a window has, each with its rows and where its levels end in them.
pub fn windows<'a>(by_level: &'a ByLevel, shape: &Shape) -> Vec<(&'a [u32], Vec<usize>)> {
    let levels = by_level.start.len() - 1;
    let first_levels = (0..levels).step_by(shape.levels as usize);
    first_levels
        .map(|first| {
            let end = (first + shape.levels as usize).min(levels);
            let from = by_level.start[first];
            let ends = by_level.start[first + 1..=end].iter().map(|end| end - from).collect();
            (&by_level.order[from..by_level.start[end]], ends)
        })
        .collect()
}

/// The arrays that say where everything is.
struct Laid {
    groups: Vec<u32>,
    passes: Vec<u32>,
    awaited: Vec<u32>,
}

impl Laid {
    fn of(all: &[Group], slot_of: &[u32], shape: &Shape) -> Self {
        let mut laid = Self { groups: Vec::new(), passes: Vec::new(), awaited: Vec::new() };
        let mut slot = 0u32;
        debug_assert!(shape.lanes <= 8, "a pass begins on a boundary of 16 bytes");
        for group in all {
            let (first, pass) = (laid.awaited.len() as u32, laid.passes.len() as u32 / 2);
            let (awaited, passes) = (group.awaited.len() as u32, group.passes.len() as u32);
            laid.groups.extend([first, awaited, pass, passes]);
            laid.awaited.extend(group.awaited.iter().map(|&it| slot_of[it as usize]));
            for pass in &group.passes {
                let owned = pass.iter().filter(|(_, owned)| *owned).count() as u32;
                laid.passes.extend([slot, owned]);
                slot += owned;
            }
        }
        laid
    }
}

/// Columns, values, factors of b and rows of all passes. `None` if the type cannot represent a value.
type Filled = (Arc<[u16]>, ArrayData, ArrayData, Arc<[u32]>);

fn fill<V: Zeroable + Copy + Send + Sync>(
    equations: &Equations,
    all: &[Group],
    laid: &Laid,
    shape: &Shape,
    value: impl Fn(f64) -> Option<V> + Sync,
    array: impl Fn(Arc<[V]>) -> ArrayData,
) -> Option<Filled> {
    let passes = laid.passes.len() / 2;
    let (a_pass, rows_a_pass) = (shape.pass_terms() as usize, shape.rows() as usize);
    let mut cols: Arc<[u16]> = zeroed(passes * a_pass);
    let (mut vals, mut scale): (Arc<[V]>, Arc<[V]>) =
        (zeroed(passes * a_pass), zeroed(passes * rows_a_pass));
    let mut rows: Arc<[u32]> = zeroed(passes * rows_a_pass);
    let mut jobs = Vec::with_capacity(all.len());
    let (mut rest_cols, mut rest_vals) = (Arc::make_mut(&mut cols), Arc::make_mut(&mut vals));
    let (mut rest_scale, mut rest_rows) = (Arc::make_mut(&mut scale), Arc::make_mut(&mut rows));
    for group in all {
        let count = group.passes.len();
        let (c, after_c) = rest_cols.split_at_mut(count * a_pass);
        let (v, after_v) = rest_vals.split_at_mut(count * a_pass);
        let (s, after_s) = rest_scale.split_at_mut(count * rows_a_pass);
        let (r, after_r) = rest_rows.split_at_mut(count * rows_a_pass);
        (rest_cols, rest_vals, rest_scale, rest_rows) = (after_c, after_v, after_s, after_r);
        jobs.push((group, c, v, s, r));
    }
    let lanes = shape.lanes as usize;
    jobs.into_par_iter().with_min_len(16).try_for_each(|(group, cols, vals, scale, rows)| {
        rows.fill(NO_ROW);
        let mut places = Places::of(group, shape);
        for (pass, of_pass) in group.passes.iter().enumerate() {
            for (at, &(row, _)) in of_pass.iter().enumerate() {
                let (known, factors) = equations.known(row as usize);
                if let (Some(&of), Some(&factor)) = (known.first(), factors.first()) {
                    rows[pass * rows_a_pass + at] = of;
                    scale[pass * rows_a_pass + at] = value(factor)?;
                }
                let (unknown, factors) = equations.unknown(row as usize);
                for (term, (&col, &factor)) in unknown.iter().zip(factors).enumerate() {
                    let entry = pass * a_pass + term / lanes * 32 + at * lanes + term % lanes;
                    cols[entry] = places.place(col)?;
                    vals[entry] = value(factor)?;
                }
            }
        }
        Some(())
    })?;
    Some((cols, array(vals), array(scale), rows))
}

/// Where a group has its unknowns.
struct Places {
    /// Sorted by unknown.
    known: Vec<(u32, u16)>,
}

impl Places {
    fn of(group: &Group, shape: &Shape) -> Self {
        let awaited = group.awaited.iter().enumerate();
        let mut known: Vec<(u32, u16)> =
            awaited.map(|(at, &unknown)| (unknown, (FIRST_AWAITED as usize + at) as u16)).collect();
        for (pass, rows) in group.passes.iter().enumerate() {
            let first = shape.first_row() as usize + pass * shape.rows() as usize;
            known.extend(rows.iter().enumerate().map(|(at, &(row, _))| (row, (first + at) as u16)));
        }
        known.sort_unstable();
        Self { known }
    }

    fn place(&mut self, unknown: u32) -> Option<u16> {
        let at = self.known.binary_search_by_key(&unknown, |&(it, _)| it).ok()?;
        Some(self.known[at].1)
    }
}
