//! Packing: chains as tasks in an order in which each needs only earlier ones, in arrays that the kernel reads.

use super::chain::Chains;
use super::scheme::Shape;
use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::ops::Refusal;
use crate::ops::sptrsv::System;
use crate::ops::sptrsv::slices::equations::coefficient;
use crate::sparse::zeroed::zeroed;
use bytemuck::Zeroable;
use rayon::prelude::*;
use std::sync::Arc;
use std::time::Instant;

/// Row of b and x of a partial sum; `kNoRow` of the kernel.
pub const NO_ROW: u32 = u32::MAX;

/// Words of a task.
pub const TASK: usize = 8;

/// Values of a panel and of what follows it begin at multiples of this.
pub const ALIGNED: usize = 4;

/// Most packed values, so that memory stays bounded.
const MOST_VALUES: usize = 1 << 28;

/// A chain adds its partial sums in this many turns of a warp at most; parts of larger panels are larger.
const MOST_TURNS: usize = 64;

/// Tasks in order, in arrays as the kernel reads them.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Eight words a task: first column, columns, first value / 4, slot of its first row; rows, 1 for a chain and 0 for partial sums of
    /// one, first of its partial sums, how many it has.
    pub tasks: Arc<[u32]>,
    /// Slots of the unknowns that columns of panels are.
    pub cols: Arc<[u32]>,
    /// Slots of the first row of partial sums.
    pub partials: Arc<[u32]>,
    /// Panels, column by column; after that of a chain the columns of its rows but the last: of these rows, or of their part of b.
    pub vals: ArrayData,
    /// What each slot has of b: the factor and the row, which is also the row of x.
    pub scale: ArrayData,
    pub rows: Arc<[u32]>,
    pub slots: usize,
    /// Tasks of which each needs the one before it, at most.
    pub depth: u32,
    /// Host time of chaining and packing, milliseconds.
    pub ms: f64,
}

impl Packed {
    /// Number of tasks.
    pub fn count(&self) -> u32 {
        (self.tasks.len() / TASK) as u32
    }

    pub fn bytes(&self) -> u64 {
        let value = if matches!(self.vals, ArrayData::F64(_)) { 8 } else { 4 };
        let words = self.tasks.len() + self.cols.len() + self.partials.len() + self.rows.len();
        (4 * words + value * (self.vals.len() + self.rows.len())) as u64
    }
}

/// A chain, or partial sums of one.
#[derive(Clone, Copy, Debug)]
struct Task {
    /// Tasks that it comes after, one after the other.
    depth: u32,
    chain: u32,
    /// Its columns, counted within the chain's.
    from: u32,
    to: u32,
    /// Whether it solves: the last of the chain's tasks.
    solves: bool,
}

/// What a chain is made of before its unknowns have slots.
struct Whole {
    /// What it needs, the first known first.
    needs: Vec<u32>,
    panel: Vec<f64>,
    /// For each of its rows but the last, what all its rows have of that one, or of what b gives it.
    inner: Vec<f64>,
}

/// Divides a system into chains, and these into tasks. A coefficient that the type cannot represent is a refusal.
pub fn pack(system: &System, shape: &Shape) -> Result<Packed, Refusal> {
    let started = Instant::now();
    let chains = Chains::of(system, shape.rows as usize, shape.substitute);
    let values: usize = (0..chains.len()).map(|chain| chains.panel(chain)).sum();
    if values > MOST_VALUES {
        return Err(Refusal(format!(
            "{values} values of panels; at most {MOST_VALUES} are possible"
        )));
    }
    let depth = depths(&chains, shape);
    let wholes: Vec<Whole> = (0..chains.len())
        .into_par_iter()
        .with_min_len(16)
        .map(|chain| {
            let mut whole = whole(system, &chains, &depth, chain);
            if shape.substitute {
                whole.substitute(chains.rows_of(chain).len());
            }
            whole
        })
        .collect();
    let mut tasks: Vec<Task> = (0..chains.len())
        .into_par_iter()
        .with_min_len(64)
        .flat_map_iter(|chain| divided(&chains, &depth, &wholes[chain], chain, shape))
        .collect();
    tasks.par_sort_by_key(|task| (task.depth, task.chain, task.from));
    let deepest = tasks.last().map_or(0, |task| task.depth + 1);
    let laid = Laid::of(&chains, &tasks, &wholes);
    let filled = match system.problem.dtype {
        Dtype::F64 => {
            let double = |value: f64| value.is_finite().then_some(value);
            fill(system, &chains, (&tasks, &wholes), &laid, double, ArrayData::F64)
        }
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            let single = |value: f64| (value as f32).is_finite().then_some(value as f32);
            fill(system, &chains, (&tasks, &wholes), &laid, single, ArrayData::F32)
        }
    };
    let (cols, vals, scale) = filled.ok_or_else(|| {
        Refusal(
            "a coefficient, divided by its row's diagonal, is beyond the range of the type".into(),
        )
    })?;
    let original = |row: u32| match row {
        NO_ROW => NO_ROW,
        row => system.triangular.original(row as usize) as u32,
    };
    Ok(Packed {
        tasks: laid.tasks.into(),
        cols,
        partials: laid.partials.into(),
        vals,
        scale,
        rows: laid.rows.into_iter().map(original).collect(),
        slots: laid.slots,
        depth: deepest,
        ms: started.elapsed().as_secs_f64() * 1e3,
    })
}

/// Columns of a chain that stay with it, and of each of its parts; `None`: it is one task.
fn parts(rows: usize, columns: usize, shape: &Shape) -> Option<(usize, usize)> {
    let most = shape.terms as usize;
    if shape.staged {
        // What a warp copies to shared memory at once; more only where a chain would have too many partial sums.
        let kept = shape.piece(rows);
        let a_part = kept.max(columns.saturating_sub(kept).div_ceil(MOST_TURNS * (32 / rows)));
        return (columns > kept).then_some((kept, a_part));
    }
    // With the columns of two whole chains, what is known last is not awaited by a part first.
    let kept = (most / 2 / rows).max(2 * shape.rows as usize);
    if rows * columns <= most + most / 2 || columns <= kept + kept / 2 {
        return None;
    }
    let abreast = 32 / rows;
    let a_part = (most / rows).max((columns - kept).div_ceil(MOST_TURNS * abreast));
    Some((kept, a_part))
}

/// How many tasks come before the last of each chain's, one after the other.
fn depths(chains: &Chains, shape: &Shape) -> Vec<u32> {
    // One more than the depth of each row's chain.
    let mut known = vec![0u32; chains.of.len()];
    let depth_of = |chain: usize| {
        let needs = chains.needs_of(chain);
        let of = |it: &u32| known[*it as usize];
        let after = needs.iter().map(of).max().unwrap_or(0);
        let split = parts(chains.rows_of(chain).len(), needs.len(), shape);
        // The parts have what is known first; where that is as late as what stays, they come between.
        let late = |kept: usize| needs.iter().filter(|it| of(it) == after).count() > kept;
        let depth = after + u32::from(split.is_some_and(|(kept, _)| late(kept)));
        chains.rows_of(chain).iter().for_each(|&row| known[row as usize] = depth + 1);
        depth
    };
    (0..chains.len()).map(depth_of).collect()
}

fn whole(system: &System, chains: &Chains, depth: &[u32], chain: usize) -> Whole {
    let (rows, sorted) = (chains.rows_of(chain), chains.needs_of(chain));
    let width = rows.len();
    let known_at = |it: u32| depth[chains.of[it as usize] as usize];
    let mut order: Vec<u32> = (0..sorted.len() as u32).collect();
    order.sort_by_key(|&at| known_at(sorted[at as usize]));
    let mut column_of = vec![0u32; sorted.len()];
    order.iter().enumerate().for_each(|(column, &at)| column_of[at as usize] = column as u32);
    let mut panel = vec![0.0; width * sorted.len()];
    let mut inner = vec![0.0; width * (width - 1)];
    for (place, &row) in rows.iter().enumerate() {
        let (cols, vals) = system.triangular.row(row as usize);
        let mut at = 0;
        for (&col, &value) in cols.iter().zip(vals) {
            let value = coefficient(&system.triangular, row as usize, value);
            if chains.of[col as usize] == chain as u32 {
                inner[chains.place[col as usize] as usize * width + place] = value;
                continue;
            }
            // Both rise.
            while sorted[at] < col {
                at += 1;
            }
            panel[column_of[at] as usize * width + place] = value;
        }
    }
    let needs = order.into_iter().map(|at| sorted[at as usize]).collect();
    Whole { needs, panel, inner }
}

impl Whole {
    /// Substitutes the rows of the chain in each other, the first first: `inner` becomes what is below the diagonal of (I - inner)^-1,
    /// and the panel is multiplied by that.
    fn substitute(&mut self, width: usize) {
        for column in self.panel.chunks_exact_mut(width) {
            for row in 1..width {
                let of = |before: usize| self.inner[before * width + row] * column[before];
                column[row] += (0..row).map(of).sum::<f64>();
            }
        }
        for row in 2..width {
            // What is right of column `before` is still of the row itself, and the rows between are done.
            for before in 0..row - 1 {
                let of = |between: usize| {
                    self.inner[between * width + row] * self.inner[before * width + between]
                };
                let added: f64 = (before + 1..row).map(of).sum();
                self.inner[before * width + row] += added;
            }
        }
    }
}

/// The tasks of a chain: partial sums of what is known first, and the chain itself.
fn divided(
    chains: &Chains,
    depth: &[u32],
    whole: &Whole,
    chain: usize,
    shape: &Shape,
) -> Vec<Task> {
    let columns = whole.needs.len();
    let (rows, chain) = (chains.rows_of(chain).len(), chain as u32);
    let (from, to) = (0, columns as u32);
    let last = Task { depth: depth[chain as usize], chain, from, to, solves: true };
    let Some((kept, a_part)) = parts(rows, columns, shape) else { return vec![last] };
    let split = columns - kept;
    let mut tasks = Vec::with_capacity(split / a_part + 2);
    for from in (0..split).step_by(a_part) {
        let to = (from + a_part).min(split);
        let last = whole.needs[to - 1];
        let depth = depth[chains.of[last as usize] as usize] + 1;
        tasks.push(Task { depth, chain, from: from as u32, to: to as u32, solves: false });
    }
    tasks.push(Task { from: split as u32, ..last });
    tasks
}

/// The arrays that say where everything is.
struct Laid {
    tasks: Vec<u32>,
    partials: Vec<u32>,
    /// By slot, in solve order.
    rows: Vec<u32>,
    /// Of each row.
    slot_of: Vec<u32>,
    slots: usize,
    values: usize,
}

impl Laid {
    fn of(chains: &Chains, tasks: &[Task], wholes: &[Whole]) -> Self {
        let mut laid = Self {
            tasks: Vec::with_capacity(tasks.len() * TASK),
            partials: Vec::new(),
            rows: Vec::new(),
            slot_of: vec![u32::MAX; chains.rows.len()],
            slots: 0,
            values: 0,
        };
        // Where the partial sums of each chain are; its own task comes after all of them.
        let mut sums: Vec<Vec<u32>> = vec![Vec::new(); wholes.len()];
        let mut column = 0u32;
        for task in tasks {
            let chain = task.chain as usize;
            let rows = chains.rows_of(chain);
            let (columns, slot) = (task.to - task.from, laid.slots as u32);
            let value = (laid.values / ALIGNED) as u32;
            laid.tasks.extend([column, columns, value, slot, rows.len() as u32]);
            if task.solves {
                let sums = std::mem::take(&mut sums[chain]);
                laid.tasks.extend([1, laid.partials.len() as u32, sums.len() as u32]);
                laid.partials.extend(sums);
                for (at, &row) in rows.iter().enumerate() {
                    laid.slot_of[row as usize] = slot + at as u32;
                }
                laid.rows.extend_from_slice(rows);
            } else {
                laid.tasks.extend([0, 0, 0]);
                sums[chain].push(slot);
                laid.rows.resize(laid.rows.len() + rows.len(), NO_ROW);
            }
            column += columns;
            laid.slots += rows.len();
            laid.values += task.values(rows.len());
        }
        laid
    }
}

impl Task {
    /// Values of the panel, which `inner` follows, each from a multiple of [`ALIGNED`] on.
    fn panel(&self, rows: usize) -> usize {
        ((self.to - self.from) as usize * rows).next_multiple_of(ALIGNED)
    }

    fn values(&self, rows: usize) -> usize {
        let inner = if self.solves { rows * (rows - 1) } else { 0 };
        self.panel(rows) + inner.next_multiple_of(ALIGNED)
    }
}

/// Columns, values and factors of b of all tasks. `None` if the type cannot represent a value.
fn fill<V: Zeroable + Copy + Send + Sync>(
    system: &System,
    chains: &Chains,
    (tasks, wholes): (&[Task], &[Whole]),
    laid: &Laid,
    value: impl Fn(f64) -> Option<V> + Sync,
    array: impl Fn(Arc<[V]>) -> ArrayData,
) -> Option<(Arc<[u32]>, ArrayData, ArrayData)> {
    let columns: usize = tasks.iter().map(|task| (task.to - task.from) as usize).sum();
    let mut cols: Arc<[u32]> = zeroed(columns);
    let mut vals: Arc<[V]> = zeroed(laid.values);
    let mut jobs = Vec::with_capacity(tasks.len());
    let (mut rest_cols, mut rest_vals) = (Arc::make_mut(&mut cols), Arc::make_mut(&mut vals));
    for task in tasks {
        let rows = chains.rows_of(task.chain as usize).len();
        let (own_cols, after_cols) = rest_cols.split_at_mut((task.to - task.from) as usize);
        let (own_vals, after_vals) = rest_vals.split_at_mut(task.values(rows));
        (rest_cols, rest_vals) = (after_cols, after_vals);
        jobs.push((task, rows, own_cols, own_vals));
    }
    jobs.into_par_iter().with_min_len(16).try_for_each(|(task, rows, cols, vals)| {
        let whole = &wholes[task.chain as usize];
        let (from, to) = (task.from as usize, task.to as usize);
        for (col, &need) in cols.iter_mut().zip(&whole.needs[from..to]) {
            *col = laid.slot_of[need as usize];
        }
        let (panel, inner) = vals.split_at_mut(task.panel(rows));
        for (place, &known) in panel.iter_mut().zip(&whole.panel[from * rows..to * rows]) {
            *place = value(known)?;
        }
        for (place, &known) in inner.iter_mut().zip(&whole.inner) {
            *place = value(known)?;
        }
        Some(())
    })?;
    let factor = |&row: &u32| match row {
        NO_ROW => Some(V::zeroed()),
        row => value(1.0 / system.triangular.diagonal[row as usize]),
    };
    let scale: Vec<V> = laid.rows.par_iter().map(factor).collect::<Option<_>>()?;
    Some((cols, array(vals), array(scale.into())))
}
