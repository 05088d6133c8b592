//! Assembles a proved schedule: its task list and queues as arrays, its scratch, its launches and their arguments.

use super::lower::Proved;
use super::prepare::{Read, Sync, Technique};
use super::schedule::ScheduledLaunch;
use super::text::{self, Bound, COLLABORATIVE, INDIVIDUAL, Kind, Text};
use super::transform::{Graph, Pattern, Permuted};
use super::{Scheme, order_name};
use crate::domain::recipe::{Array, ArrayData, CudaProgram, Scratch, Step};
use crate::ops::Refusal;
use crate::ops::sptrsv::System;

/// Rows that a task can name: `kRowBits` of ag.cuh.
pub(super) const MAX_ROWS: usize = (1 << 29) - 1;
/// Flags in the upper bits of a task's end, as in ag.cuh.
pub const PUBLISHES: u32 = 1 << 31;
pub const COLLABORATES: u32 = 1 << 30;
pub const STAGES: u32 = 1 << 29;

/// A group with fewer entries does not fill a line of memory: each lane may as well read its own entries.
const LEAST_STAGED: usize = 32;
/// Shared memory that a warp's buffer may take, bytes; the rest is left to the L1 cache.
const STAGE_BYTES: u64 = 8192;

/// One scheme with everything that it is assembled from.
pub(super) struct Lowering<'a> {
    pub(super) scheme: &'a Scheme,
    pub(super) system: &'a System,
    pub(super) permuted: Option<&'a Permuted>,
    pub(super) pattern: Pattern<'a>,
    pub(super) graph: &'a Graph,
    pub(super) proved: &'a Proved,
}

/// Entries of a warp's buffer, and the rows that its subwarps keep.
#[derive(Clone, Copy)]
struct SharedMemory {
    span: u32,
    stage: u32,
}

impl Lowering<'_> {
    pub(super) fn assemble(&self) -> Result<(CudaProgram, Vec<Array>, Vec<Scratch>), Refusal> {
        let shared = self.shared_memory()?;
        let tasks = self.tasks(shared.stage);
        let schedule = &self.proved.schedule;
        let text = Text {
            dtype: self.system.problem.dtype,
            sync: self.scheme.variant.sync,
            ng: self.scheme.variant.ng,
            nw: self.scheme.variant.nw,
            waiting_modes: tasks.waiting_modes,
            level_modes: tasks.level_modes,
            staged: shared.stage > 0,
            early: self.scheme.variant.has(Technique::EarlyDivision),
        };
        let scratch = self.scratch();
        let arrays = self.arrays(tasks.tasks);
        let bound = Bound {
            rows: self.system.triangular.rows() as u32,
            permuted: self.permuted.is_some(),
            reversed: self.permuted.is_none() && self.system.triangular.reversed,
            publishes: !scratch.is_empty(),
            span: shared.span,
            stage: shared.stage,
            ..Bound::default()
        };
        let steps = schedule.kernels.iter().map(|kernel| self.step(kernel, &text, bound));
        let program = CudaProgram::of_steps(text::source(&text), steps.collect());
        Ok((program, arrays, scratch))
    }

    fn value_bytes(&self) -> u64 {
        self.system.problem.dtype.bytes()
    }

    /// Blocks of both kinds of launches must have room for the values of their nodes; the remaining memory holds the buffers.
    fn shared_memory(&self) -> Result<SharedMemory, Refusal> {
        let span = if self.graph.span > 1 { self.graph.span } else { 0 };
        let most = self.system.device.shared_bytes_per_block;
        let mut stage = u64::MAX;
        for kernel in &self.proved.schedule.kernels {
            let warps = u64::from(kernel.warps_per_block);
            let local = self.local_bytes(kernel.warps_per_block, span);
            let left = most.checked_sub(local).ok_or_else(|| {
                Refusal(format!(
                    "the values of a block's nodes take {local} bytes of shared memory; the device has {most}"
                ))
            })?;
            stage = stage.min((left / warps).min(STAGE_BYTES) / (self.value_bytes() + 4));
        }
        if self.scheme.variant.read == Read::Direct {
            return Ok(SharedMemory { span, stage: 0 });
        }
        // Even, so that the buffers of all warps stay aligned.
        let stage = stage / 2 * 2;
        let groups = 0..self.proved.schedule.groups();
        let fitting = groups
            .map(|group| self.group_entries(group) as u64)
            .filter(|entries| *entries >= LEAST_STAGED as u64 && *entries <= stage);
        let stage = fitting.max().unwrap_or(0).next_multiple_of(2);
        Ok(SharedMemory { span, stage: stage as u32 })
    }

    fn local_bytes(&self, warps: u32, span: u32) -> u64 {
        u64::from(warps * self.scheme.variant.ng * span) * self.value_bytes()
    }

    /// Shared memory of a block that leaves no room for a second one on its multiprocessor: the paper's way to say how many
    /// warps solve there (section 4.2.1). Nothing else of the scheme depends on it: all blocks are resident either way.
    fn exclusive_bytes(&self, kernel: &ScheduledLaunch) -> u64 {
        let device = &self.system.device;
        let bytes = (device.shared_bytes_per_multiprocessor / 2 + 1).next_multiple_of(16);
        let meant = kernel.waits && self.scheme.variant.has(Technique::Exclusive);
        // A single block is alone anyway, and a device whose blocks may take less has no way to be told.
        if meant && kernel.blocks > 1 && bytes <= device.shared_bytes_per_block { bytes } else { 0 }
    }

    /// Whether a node's values are stored for others to wait for.
    fn publishes(&self, node: u32) -> bool {
        self.proved.publishes[node as usize] || !self.scheme.variant.has(Technique::Elimination)
    }

    /// Strictly lower entries of a group.
    fn group_entries(&self, group: usize) -> usize {
        let entries = |&node: &u32| {
            let rows = self.graph.rows(node as usize);
            self.pattern.indptr[rows.end] - self.pattern.indptr[rows.start]
        };
        self.proved.schedule.group(group).iter().map(entries).sum()
    }

    /// `{first row, end and flags}` for each subwarp of each group, in the order of the queues.
    fn tasks(&self, stage: u32) -> Tasks {
        let schedule = &self.proved.schedule;
        let ng = self.scheme.variant.ng as usize;
        let mut tasks = Vec::with_capacity(2 * ng * schedule.queue.len());
        let mut modes = [0u32; 2];
        for kernel in &schedule.kernels {
            let queues = schedule.queues(kernel);
            let ends = (queues.first(), queues.last());
            let (Some(&first), Some(&end)) = ends else { continue };
            for &group in &schedule.queue[first as usize..end as usize] {
                let nodes = schedule.group(group as usize);
                let entries = self.group_entries(group as usize);
                let staged = entries >= LEAST_STAGED && entries <= stage as usize;
                let group_flags = if staged { STAGES } else { 0 };
                for &node in nodes {
                    let rows = self.graph.rows(node as usize);
                    let entries = self.graph.entries(self.pattern, node as usize);
                    let shares = self.scheme.variant.sw_rnnz.shares(entries, rows.len());
                    modes[usize::from(kernel.waits)] |=
                        if shares { COLLABORATIVE } else { INDIVIDUAL };
                    let publishes = self.publishes(node);
                    let flags = group_flags
                        | if shares { COLLABORATES } else { 0 }
                        | if publishes { PUBLISHES } else { 0 };
                    tasks.extend([rows.start as u32, rows.end as u32 | flags]);
                }
                for _ in nodes.len()..ng {
                    tasks.extend([0, group_flags]);
                }
            }
        }
        Tasks { tasks, level_modes: modes[0], waiting_modes: modes[1] }
    }

    /// Array 0 has the tasks, array 1 the queues' pointers; a permuted system follows.
    fn arrays(&self, tasks: Vec<u32>) -> Vec<Array> {
        let scheme = self.scheme;
        // Everything that the arrays depend on besides the system; the way of synchronising is not part of it.
        let strategy = format!(
            "{}_{}_{}_{}_{}_{}_{}",
            order_name(scheme.reorder),
            scheme.merge.name(),
            scheme.variant.ng,
            scheme.variant.nw,
            scheme.grouping.name(),
            scheme.placement.name(),
            scheme.alpha.name()
        );
        let mode = format!("{}_{:?}", scheme.variant.sw_rnnz.name(), scheme.variant.read);
        // The only technique that changes an array: the tasks say which nodes publish.
        let all = if scheme.variant.has(Technique::Elimination) { "" } else { "_all" };
        let array = |name: String, data| Array { name, data };
        let tasks = ArrayData::U32(tasks.into());
        let pointers = ArrayData::U32(self.proved.schedule.pointers.as_slice().into());
        let mut arrays = vec![
            array(format!("ag_tasks_{strategy}_{mode}{all}"), tasks),
            array(format!("ag_queues_{strategy}"), pointers),
        ];
        if let Some(permuted) = self.permuted {
            let own = |name: &str, data| array(format!("ag_permuted_{name}"), data);
            arrays.extend([
                own("row_ptr", ArrayData::U32(permuted.row_ptr.clone())),
                own("cols", ArrayData::U32(permuted.indices.clone())),
                own("values", permuted.values.clone()),
                own("diagonal", permuted.diagonal.clone()),
                own("rows", ArrayData::U32(permuted.rows_of.clone())),
            ]);
        }
        arrays
    }

    /// Empty if no node publishes; two arrays that alternate for sentinels, since each call resets the array of the next.
    fn scratch(&self) -> Vec<Scratch> {
        if !(0..self.graph.nodes() as u32).any(|node| self.publishes(node)) {
            return Vec::new();
        }
        let bytes = self.system.triangular.rows() as u64 * self.value_bytes();
        match self.scheme.variant.sync {
            Sync::Sentinel => vec![Scratch { bytes, fill: u32::MAX }; 2],
            Sync::Packed => vec![Scratch { bytes: 2 * bytes, fill: 0 }],
        }
    }

    fn step(&self, kernel: &ScheduledLaunch, text: &Text, bound: Bound) -> Step {
        let bound = Bound { queue: kernel.pointers as u32, warps: kernel.warps() as u32, ..bound };
        let warps = kernel.warps_per_block;
        let stage_bytes = u64::from(warps * bound.stage) * (self.value_bytes() + 4);
        let used_bytes = self.local_bytes(warps, bound.span) + stage_bytes;
        let kind = if kernel.waits { Kind::Waiting } else { Kind::Level };
        Step {
            shared_bytes: used_bytes.max(self.exclusive_bytes(kernel)) as u32,
            resident: kernel.waits,
            ..text.kernel(kind, bound).step(kernel.blocks, warps * 32)
        }
    }
}

/// The task list, and the modes that occur in each kind of launch.
struct Tasks {
    tasks: Vec<u32>,
    level_modes: u32,
    waiting_modes: u32,
}
