//! Lowers a scheme: its graph, schedule and task list as arrays, its launches, and the proof that none waits for ever.

use super::prepare::{self, COLLABORATIVE, INDIVIDUAL, LEVEL, Read, Sync, Text, WAITING};
use super::schedule::{Alpha, Kernel, Schedule, Strategy};
use super::transform::{Graph, Merge, Pattern, Permuted};
use super::{FAMILY, Scheme};
use crate::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Recipe, Scratch, Step};
use crate::domain::{Candidate, Dtype};
use crate::ops::Refusal;
use crate::ops::sptrsv::progress::{self, Launch, Order, Supply};
use crate::ops::sptrsv::{System, no_candidate};
use std::sync::Arc;
use std::time::Instant;

/// Launches of one call, at most: a graph of more takes longer to launch than any solve that is worth it.
pub const MAX_LAUNCHES: usize = 1024;
/// Rows that a task can name: `kRowBits` of ag.cuh.
const MAX_ROWS: usize = (1 << 29) - 1;
/// Flags in the upper bits of a task's end, as in ag.cuh.
pub const PUBLISHES: u32 = 1 << 31;
pub const COLLABORATES: u32 = 1 << 30;
pub const STAGES: u32 = 1 << 29;

/// A group with fewer entries fills no line of memory: each lane may as well read its own.
const LEAST_STAGED: usize = 32;
/// Shared memory that a warp's buffer may take, bytes; the rest is left to the L1 cache.
const STAGE_BYTES: u64 = 8192;

/// Bytes of graphs and of schedules that are kept for other schemes, each.
const KEPT_BYTES: usize = 256 << 20;

/// Lowers schemes of one system and keeps what they share.
#[derive(Default)]
pub struct Lowerer {
    permuted: Option<Arc<Permuted>>,
    graphs: Vec<((bool, Merge), Made<Graph>)>,
    schedules: Vec<((bool, Merge, Strategy), Made<Proved>)>,
}

/// A kept piece of work, and the host time that it took: every recipe that uses it answers for it.
struct Made<T> {
    it: Arc<T>,
    ms: f64,
}

impl<T> Clone for Made<T> {
    fn clone(&self) -> Self {
        Self { it: self.it.clone(), ms: self.ms }
    }
}

/// A schedule that cannot wait for ever, and which nodes somebody reads.
struct Proved {
    schedule: Schedule,
    publishes: Vec<bool>,
}

impl Lowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        refuse_early(&scheme, system)?;
        let start = Instant::now();
        let permuted = scheme.reorder.then(|| self.permuted(system));
        let graph = self.graph(&scheme, system, permuted.as_deref());
        let proved = self.schedule(&scheme, system, permuted.as_deref(), &graph.it)?;
        let kept_ms = graph.ms + proved.ms + permuted.as_ref().map_or(0.0, |made| made.ms);
        let pattern = pattern(system, permuted.as_deref());
        let lowering = Lowering {
            scheme: &scheme,
            system,
            permuted: permuted.as_deref(),
            pattern,
            graph: &graph.it,
            proved: &proved.it,
        };
        let packing = Instant::now();
        let (program, arrays, scratch) = lowering.assemble()?;
        // What was made in this call is in both clocks; the longer one is right.
        let own_ms = packing.elapsed().as_secs_f64() * 1e3;
        let lowering_ms = (kept_ms + own_ms).max(start.elapsed().as_secs_f64() * 1e3);
        let update_ms = permuted.map(|made| made.values_ms);
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms, ..bare })
    }

    fn permuted(&mut self, system: &System) -> Arc<Permuted> {
        let make =
            || Arc::new(Permuted::of(&system.triangular, &system.levels, system.problem.dtype));
        self.permuted.get_or_insert_with(make).clone()
    }

    fn graph(
        &mut self,
        scheme: &Scheme,
        system: &System,
        permuted: Option<&Permuted>,
    ) -> Made<Graph> {
        let key = (scheme.reorder, scheme.merge);
        if let Some((_, made)) = self.graphs.iter().find(|(have, _)| *have == key) {
            return made.clone();
        }
        let start = Instant::now();
        let graph = Graph::of(pattern(system, permuted), scheme.merge);
        let made = Made { it: Arc::new(graph), ms: start.elapsed().as_secs_f64() * 1e3 };
        keep(&mut self.graphs, key, made.clone(), Graph::bytes);
        made
    }

    fn schedule(
        &mut self,
        scheme: &Scheme,
        system: &System,
        permuted: Option<&Permuted>,
        graph: &Graph,
    ) -> Result<Made<Proved>, Refusal> {
        let key = (scheme.reorder, scheme.merge, scheme.strategy());
        if let Some((_, made)) = self.schedules.iter().find(|(have, _)| *have == key) {
            return Ok(made.clone());
        }
        let start = Instant::now();
        let pattern = pattern(system, permuted);
        let schedule = Schedule::of(pattern, graph, &scheme.strategy(), &system.device);
        if schedule.kernels.len() > MAX_LAUNCHES {
            return Err(Refusal(format!(
                "{} launches a call; at most {MAX_LAUNCHES} are worth it",
                schedule.kernels.len()
            )));
        }
        prove(system, permuted, graph, &schedule)?;
        let publishes = publishing(pattern, graph, &schedule, permuted.is_some());
        let proved = Proved { schedule, publishes };
        let made = Made { it: Arc::new(proved), ms: start.elapsed().as_secs_f64() * 1e3 };
        let bytes = |proved: &Proved| proved.schedule.bytes() + proved.publishes.len();
        keep(&mut self.schedules, key, made.clone(), bytes);
        Ok(made)
    }
}

/// Keeps the newest, as many as fit.
fn keep<K, T>(kept: &mut Vec<(K, Made<T>)>, key: K, made: Made<T>, bytes: impl Fn(&T) -> usize) {
    kept.push((key, made));
    let size = |kept: &[(K, Made<T>)]| kept.iter().map(|(_, made)| bytes(&made.it)).sum::<usize>();
    while kept.len() > 1 && size(kept) > KEPT_BYTES {
        kept.remove(0);
    }
}

fn pattern<'a>(system: &'a System, permuted: Option<&'a Permuted>) -> Pattern<'a> {
    permuted.map_or_else(|| Pattern::of(&system.triangular), Permuted::pattern)
}

fn refuse_early(scheme: &Scheme, system: &System) -> Result<(), Refusal> {
    let rows = system.triangular.rows();
    let refuse = |why: String| Err(Refusal(why));
    if system.problem.rhs != 1 {
        return refuse(format!("{FAMILY} solves for one right-hand side at a time"));
    }
    if system.problem.dtype == Dtype::F16 {
        return refuse(format!("{FAMILY} has no kernels for f16"));
    }
    if rows == 0 || rows > MAX_ROWS {
        return refuse(format!("{rows} rows; {FAMILY} solves systems of 1 to {MAX_ROWS}"));
    }
    if scheme.variant.sync == Sync::Packed && scheme.alpha != Alpha::Infinite {
        let why = "packed words need an epoch, which a program of several launches does not have";
        return refuse(why.to_owned());
    }
    Ok(())
}

/// The schedule as the proof wants it: a group is a task, a node a part of it.
fn prove(
    system: &System,
    permuted: Option<&Permuted>,
    graph: &Graph,
    schedule: &Schedule,
) -> Result<(), Refusal> {
    let mut group_of = vec![0u32; graph.nodes()];
    for group in 0..schedule.groups() {
        for &node in schedule.group(group) {
            group_of[node as usize] = group as u32;
        }
    }
    let rows = system.triangular.rows();
    let place = |s: usize| permuted.map_or(s, |made| made.place_of[s] as usize);
    let part: Vec<u32> = (0..rows).map(|s| graph.node_of[place(s)]).collect();
    let position: Vec<u32> = part.iter().map(|&node| group_of[node as usize]).collect();
    let launches: Vec<Launch> = schedule
        .kernels
        .iter()
        .map(|kernel| {
            let (pointers, tasks) = (schedule.queues(kernel), schedule.queue.as_slice());
            let supply = if kernel.waits {
                Supply::Resident { pointers, tasks }
            } else {
                Supply::Independent { pointers, tasks }
            };
            Launch { positions: kernel.groups.clone(), supply }
        })
        .collect();
    let order = Order { position: &position, part: Some(&part), launches: &launches };
    progress::prove(&system.triangular, &order)
}

/// Nodes that have to publish (section 4.2.2, elimination of synchronisation): those that a node of a waiting launch
/// reads. Launches of one level read x itself, unless rows are permuted: there the work words are in their order.
fn publishing(pattern: Pattern, graph: &Graph, schedule: &Schedule, permuted: bool) -> Vec<bool> {
    let mut publishes = vec![false; graph.nodes()];
    for kernel in schedule.kernels.iter().filter(|kernel| kernel.waits || permuted) {
        for group in kernel.groups.clone() {
            for &node in schedule.group(group as usize) {
                for parent in graph.parents(pattern, node as usize) {
                    publishes[parent] = true;
                }
            }
        }
    }
    publishes
}

/// One scheme with all that it is assembled from.
struct Lowering<'a> {
    scheme: &'a Scheme,
    system: &'a System,
    permuted: Option<&'a Permuted>,
    pattern: Pattern<'a>,
    graph: &'a Graph,
    proved: &'a Proved,
}

/// Entries of a warp's buffer, and the rows that its subwarps keep.
#[derive(Clone, Copy)]
struct SharedMemory {
    span: u32,
    stage: u32,
}

impl Lowering<'_> {
    fn assemble(&self) -> Result<(CudaProgram, Vec<Array>, Vec<Scratch>), Refusal> {
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
        };
        let scratch = self.scratch();
        let arrays = self.arrays(tasks.tasks);
        let steps = schedule.kernels.iter().map(|kernel| self.step(kernel, shared, &scratch));
        let steps = steps.collect();
        let program = CudaProgram {
            source: prepare::source(&text),
            max_registers: None,
            steps,
            zero_output: false,
        };
        Ok((program, arrays, scratch))
    }

    fn value_bytes(&self) -> u64 {
        self.system.problem.dtype.bytes()
    }

    /// Blocks of both kinds of launches must find room for the values of their nodes; what is left holds the buffers.
    fn shared_memory(&self) -> Result<SharedMemory, Refusal> {
        let span = if self.graph.span > 1 { self.graph.span } else { 0 };
        let most = self.system.device.shared_bytes_per_block;
        let mut stage = u64::MAX;
        for kernel in &self.proved.schedule.kernels {
            let warps = u64::from(kernel.warps_a_block);
            let local = self.local_bytes(kernel.warps_a_block, span);
            let left = most.checked_sub(local).ok_or_else(|| {
                Refusal(format!(
                    "{local} bytes of shared memory a block for the values of its nodes; the device has {most}"
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
                    let publishes = self.proved.publishes[node as usize];
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
        // All that the arrays depend on besides the system; the way of synchronising is not among it.
        let strategy = format!(
            "{}_{}_{}_{}_{}_{}_{}",
            if scheme.reorder { "level" } else { "none" },
            scheme.merge.name(),
            scheme.variant.ng,
            scheme.variant.nw,
            scheme.grouping.name(),
            scheme.placement.name(),
            scheme.alpha.name()
        );
        let mode = format!("{}_{:?}", scheme.variant.sw_rnnz.name(), scheme.variant.read);
        let array = |name: String, data| Array { name, data };
        let tasks = ArrayData::U32(tasks.into());
        let pointers = ArrayData::U32(self.proved.schedule.pointers.as_slice().into());
        let mut arrays = vec![
            array(format!("ag_tasks_{strategy}_{mode}"), tasks),
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

    /// Nothing where no node publishes; two arrays in turn for sentinels, since each call resets the other's.
    fn scratch(&self) -> Vec<Scratch> {
        if !self.proved.publishes.contains(&true) {
            return Vec::new();
        }
        let bytes = self.system.triangular.rows() as u64 * self.value_bytes();
        match self.scheme.variant.sync {
            Sync::Sentinel => vec![Scratch { bytes, fill: u32::MAX }; 2],
            Sync::Packed => vec![Scratch { bytes: 2 * bytes, fill: 0 }],
        }
    }

    fn step(&self, kernel: &Kernel, shared: SharedMemory, scratch: &[Scratch]) -> Step {
        let (row_ptr, cols, values, diagonal, rows_of) = match self.permuted {
            None => (Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::Diagonal, Arg::U64(0)),
            Some(_) => (Arg::Array(2), Arg::Array(3), Arg::Array(4), Arg::Array(5), Arg::Array(6)),
        };
        let (work, other, epoch) = match (scratch.len(), self.scheme.variant.sync) {
            (0, _) => (Arg::U64(0), Arg::U64(0), Arg::U32(0)),
            (_, Sync::Sentinel) => {
                (Arg::Turn { even: 0, odd: 1 }, Arg::Turn { even: 1, odd: 0 }, Arg::U32(0))
            }
            (_, Sync::Packed) => (Arg::Scratch(0), Arg::U64(0), Arg::Epoch),
        };
        let reversed = self.permuted.is_none() && self.system.triangular.reversed;
        let mut args = vec![row_ptr, cols, values, diagonal, Arg::B, Arg::C, rows_of];
        args.extend([Arg::Array(0), Arg::Array(1), work, other, epoch]);
        let rows = self.system.triangular.rows() as u32;
        let sizes = [rows, u32::from(reversed), kernel.pointers as u32, kernel.warps() as u32];
        args.extend(sizes.map(Arg::U32));
        args.extend([shared.span, shared.stage].map(Arg::U32));
        args.extend([Arg::DeadlineNs, Arg::Status]);
        let warps = kernel.warps_a_block;
        let stage_bytes = u64::from(warps * shared.stage) * (self.value_bytes() + 4);
        let entry = if kernel.waits { WAITING } else { LEVEL };
        Step {
            shared_bytes: (self.local_bytes(warps, shared.span) + stage_bytes) as u32,
            resident: kernel.waits,
            ..Step::of(entry, kernel.blocks, warps * 32, args)
        }
    }
}

/// The task list, and the modes that occur in each kind of launch.
struct Tasks {
    tasks: Vec<u32>,
    level_modes: u32,
    waiting_modes: u32,
}
