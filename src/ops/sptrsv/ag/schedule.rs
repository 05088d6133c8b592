//! AG-SpTRSV's third stage (section 4.4): nodes into groups, groups onto warps, levels into kernels.

use super::placing::Placing;
use super::text::LEVEL_WARPS;
use super::transform::{Graph, Pattern};
use crate::domain::Device;
use std::cmp::Reverse;
use std::ops::Range;

/// How nodes of a level become groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grouping {
    /// In row order.
    Sequential,
    /// Nodes with most entries first, so that nodes of one group are alike.
    Balance,
}

/// How groups are assigned to warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    RoundRobin,
    /// To the warp with the fewest entries so far.
    Balance,
    /// To the least loaded warp of the blocks that hold its parents.
    Locality,
}

/// Which levels get a separate kernel: those with more groups than this times the warps that the device can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alpha {
    Times(u32),
    Infinite,
}

pub const GROUPINGS: [Grouping; 2] = [Grouping::Sequential, Grouping::Balance];
pub const PLACEMENTS: [Placement; 3] =
    [Placement::RoundRobin, Placement::Balance, Placement::Locality];
pub const ALPHAS: [Alpha; 5] =
    [Alpha::Times(0), Alpha::Times(2), Alpha::Times(4), Alpha::Times(8), Alpha::Infinite];

impl Grouping {
    pub fn name(self) -> &'static str {
        if self == Self::Sequential { "sequential" } else { "balance" }
    }
}

impl Placement {
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "rr",
            Self::Balance => "balance",
            Self::Locality => "locality",
        }
    }
}

impl Alpha {
    pub fn name(self) -> String {
        match self {
            Self::Times(times) => times.to_string(),
            Self::Infinite => "inf".to_owned(),
        }
    }

    /// Most groups that a level may have and still share a kernel.
    pub fn most_groups(self, device: &Device) -> u64 {
        let warps = device.multiprocessors * device.max_threads_per_multiprocessor / 32;
        match self {
            Self::Times(times) => u64::from(times) * u64::from(warps),
            Self::Infinite => u64::MAX,
        }
    }
}

/// Levels of each kernel. A level with too many groups gets a separate kernel, and runs of others are merged.
pub fn partition(groups: impl Iterator<Item = u32>, most: u64) -> Vec<Range<u32>> {
    let mut kernels: Vec<Range<u32>> = Vec::new();
    let mut open = false;
    for (level, groups) in groups.enumerate() {
        let level = level as u32;
        let alone = u64::from(groups) > most;
        match kernels.last_mut() {
            Some(last) if open && !alone => last.end = level + 1,
            _ => kernels.push(level..level + 1),
        }
        open = !alone;
    }
    kernels
}

/// A launch: its groups, and the warps that process them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledLaunch {
    /// Positions in the order of groups.
    pub groups: Range<u32>,
    /// Groups may wait for one another: more than one level.
    pub waits: bool,
    pub blocks: u32,
    pub warps_per_block: u32,
    /// Where its warps' pointers begin in `Schedule::pointers`: one more than it has warps.
    pub pointers: usize,
}

impl ScheduledLaunch {
    pub fn warps(&self) -> usize {
        self.blocks as usize * self.warps_per_block as usize
    }
}

/// Which warp processes which groups, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Nodes in the order of groups; those of group g are `nodes[group_ptr[g]..group_ptr[g + 1]]`, all of one level.
    pub nodes: Vec<u32>,
    pub group_ptr: Vec<u32>,
    /// The launches in order; together they cover all groups.
    pub kernels: Vec<ScheduledLaunch>,
    /// For each kernel in order, where each of its warps' groups begin in `queue`, and where the last warp's end.
    pub pointers: Vec<u32>,
    /// Groups of each warp, rising.
    pub queue: Vec<u32>,
}

/// Options that determine a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScheduleOptions {
    pub ng: u32,
    pub nw: u32,
    pub grouping: Grouping,
    pub placement: Placement,
    pub alpha: Alpha,
}

impl Schedule {
    pub fn of(pattern: Pattern, graph: &Graph, options: &ScheduleOptions, device: &Device) -> Self {
        let nodes = by_level(pattern, graph, options.grouping);
        let (mut group_ptr, mut level_ptr) = (vec![0u32], vec![0u32]);
        let mut end = 0;
        for &width in &graph.widths {
            let stop = end + width;
            while end < stop {
                end = stop.min(end + options.ng);
                group_ptr.push(end);
            }
            level_ptr.push(group_ptr.len() as u32 - 1);
        }
        let per_level = level_ptr.windows(2).map(|ends| ends[1] - ends[0]);
        let levels = partition(per_level, options.alpha.most_groups(device));
        let mut schedule =
            Self { nodes, group_ptr, kernels: Vec::new(), pointers: Vec::new(), queue: Vec::new() };
        let mut placing = Placing::new(pattern, graph, options.placement);
        for levels in levels {
            let groups = level_ptr[levels.start as usize]..level_ptr[levels.end as usize];
            let kernel = shape(groups, levels.len() > 1, options.nw, device);
            schedule.place(kernel, &mut placing);
        }
        schedule
    }

    pub fn groups(&self) -> usize {
        self.group_ptr.len() - 1
    }

    pub fn group(&self, group: usize) -> &[u32] {
        &self.nodes[self.group_ptr[group] as usize..self.group_ptr[group + 1] as usize]
    }

    /// Pointers of a kernel's warps into `queue`.
    pub fn queues(&self, kernel: &ScheduledLaunch) -> &[u32] {
        &self.pointers[kernel.pointers..=kernel.pointers + kernel.warps()]
    }

    /// Approximate size in memory, bytes.
    pub fn bytes(&self) -> usize {
        4 * (self.nodes.len() + self.group_ptr.len() + self.pointers.len() + self.queue.len())
    }

    fn place(&mut self, mut kernel: ScheduledLaunch, placing: &mut Placing) {
        let warp_of = placing.kernel(self, &kernel);
        // A counting sort by warp keeps each warp's groups in rising order.
        let mut counts = vec![0u32; kernel.warps() + 1];
        warp_of.iter().for_each(|&warp| counts[warp as usize + 1] += 1);
        let base = self.queue.len() as u32;
        counts[0] = base;
        for warp in 1..counts.len() {
            counts[warp] += counts[warp - 1];
        }
        kernel.pointers = self.pointers.len();
        self.pointers.extend_from_slice(&counts);
        self.queue.resize(self.queue.len() + warp_of.len(), 0);
        for (at, &warp) in warp_of.iter().enumerate() {
            let slot = &mut counts[warp as usize];
            self.queue[*slot as usize] = kernel.groups.start + at as u32;
            *slot += 1;
        }
        self.kernels.push(kernel);
    }
}

/// Nodes by level, in row order in each or with most entries first.
fn by_level(pattern: Pattern, graph: &Graph, grouping: Grouping) -> Vec<u32> {
    let mut ends: Vec<usize> = Vec::with_capacity(graph.widths.len());
    let mut next = Vec::with_capacity(graph.widths.len());
    let mut sum = 0usize;
    for &width in &graph.widths {
        next.push(sum);
        sum += width as usize;
        ends.push(sum);
    }
    let starts = next.clone();
    let mut nodes = vec![0u32; graph.nodes()];
    for (node, &level) in graph.level.iter().enumerate() {
        let slot = &mut next[level as usize];
        nodes[*slot] = node as u32;
        *slot += 1;
    }
    if grouping == Grouping::Balance {
        for (start, end) in starts.into_iter().zip(ends) {
            // Stable, so that similar nodes stay in row order.
            nodes[start..end].sort_by_key(|&node| Reverse(graph.entries(pattern, node as usize)));
        }
    }
    nodes
}

/// Blocks and warps of a launch. A launch that waits has at most one block per multiprocessor, so all are resident; its shared
/// memory is padded so that none shares one, and `nw` says how many warps of a multiprocessor solve (section 4.2.1). A launch of one level does not wait, and fills the device.
fn shape(groups: Range<u32>, waits: bool, nw: u32, device: &Device) -> ScheduledLaunch {
    let count = groups.len() as u32;
    let (warps_per_block, most) = if waits {
        (nw, device.multiprocessors)
    } else {
        let resident = device.max_threads_per_multiprocessor / (32 * LEVEL_WARPS);
        (LEVEL_WARPS, device.multiprocessors * resident.max(1))
    };
    let blocks = count.div_ceil(warps_per_block).min(most).max(1);
    ScheduledLaunch { groups, waits, blocks, warps_per_block, pointers: 0 }
}
