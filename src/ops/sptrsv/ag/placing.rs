//! Assigns groups to warps, the second hierarchy of AG-SpTRSV's schedules (section 4.4): ws_rr, ws_balance, ws_locality.

use super::schedule::{Placement, Schedule, ScheduledLaunch};
use super::transform::{Graph, Pattern};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Carries out a placement kernel by kernel.
pub(super) struct Placing<'a> {
    pattern: Pattern<'a>,
    graph: &'a Graph,
    placement: Placement,
    /// Block of each node in the current kernel, for `Locality`; otherwise unused.
    block_of: Vec<u32>,
}

/// A node of another kernel, or one that is not placed yet.
const NOWHERE: u32 = u32::MAX;

impl<'a> Placing<'a> {
    pub(super) fn new(pattern: Pattern<'a>, graph: &'a Graph, placement: Placement) -> Self {
        let nodes = if placement == Placement::Locality { graph.nodes() } else { 0 };
        Self { pattern, graph, placement, block_of: vec![NOWHERE; nodes] }
    }

    /// Warp of each group of the kernel.
    pub(super) fn kernel(&mut self, schedule: &Schedule, kernel: &ScheduledLaunch) -> Vec<u32> {
        let groups = kernel.groups.start as usize..kernel.groups.end as usize;
        let warps = kernel.warps();
        let entries = |group: usize| -> u64 {
            let nodes = schedule.group(group).iter();
            nodes.map(|&node| self.graph.entries(self.pattern, node as usize) as u64).sum()
        };
        // A single level has no parents in its own kernel.
        match (self.placement, kernel.waits) {
            (Placement::RoundRobin, _) => (0..groups.len()).map(|at| (at % warps) as u32).collect(),
            (Placement::Balance, _) | (Placement::Locality, false) => {
                let mut heap: BinaryHeap<Reverse<(u64, u32)>> =
                    (0..warps as u32).map(|warp| Reverse((0, warp))).collect();
                let mut least = |load: u64| {
                    let Some(mut top) = heap.peek_mut() else { return 0 };
                    top.0.0 += load;
                    top.0.1
                };
                groups.map(|group| least(entries(group))).collect()
            }
            (Placement::Locality, true) => self.near_parents(schedule, kernel),
        }
    }

    fn near_parents(&mut self, schedule: &Schedule, kernel: &ScheduledLaunch) -> Vec<u32> {
        let mut loads = Loads::new(kernel);
        let groups = kernel.groups.start as usize..kernel.groups.end as usize;
        let mut warp_of = Vec::with_capacity(groups.len());
        for group in groups {
            let nodes = schedule.group(group);
            let mut best: Option<u32> = None;
            for &node in nodes {
                for parent in self.graph.parents(self.pattern, node as usize) {
                    let block = self.block_of[parent];
                    if block != NOWHERE && best.is_none_or(|best| loads.lighter(block, best)) {
                        best = Some(block);
                    }
                }
            }
            let block = best.unwrap_or_else(|| loads.lightest());
            let work: usize =
                nodes.iter().map(|&node| self.graph.entries(self.pattern, node as usize)).sum();
            warp_of.push(loads.put(block, work as u64));
            nodes.iter().for_each(|&node| self.block_of[node as usize] = block);
        }
        // The groups of the next kernel have no parents here: what this kernel computed is complete before they start.
        for group in kernel.groups.clone() {
            for &node in schedule.group(group as usize) {
                self.block_of[node as usize] = NOWHERE;
            }
        }
        warp_of
    }
}

/// Entries given to each warp so far, and quick access to the least loaded warp of each block.
struct Loads {
    warps_per_block: usize,
    of_warp: Vec<u64>,
    /// Load and warp of each block's least loaded.
    of_block: Vec<(u64, u32)>,
    /// Blocks by that load; entries that are out of date are dropped when they are found.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Loads {
    fn new(kernel: &ScheduledLaunch) -> Self {
        let warps_per_block = kernel.warps_per_block as usize;
        Self {
            warps_per_block,
            of_warp: vec![0; kernel.warps()],
            of_block: (0..kernel.blocks).map(|block| (0, block * kernel.warps_per_block)).collect(),
            heap: (0..kernel.blocks).map(|block| Reverse((0, block))).collect(),
        }
    }

    fn lighter(&self, block: u32, than: u32) -> bool {
        self.of_block[block as usize] < self.of_block[than as usize]
    }

    fn lightest(&mut self) -> u32 {
        while let Some(&Reverse((load, block))) = self.heap.peek() {
            if self.of_block[block as usize].0 == load {
                return block;
            }
            self.heap.pop();
        }
        0
    }

    /// Gives the work to the block's least loaded warp and returns that warp.
    fn put(&mut self, block: u32, work: u64) -> u32 {
        let (_, warp) = self.of_block[block as usize];
        self.of_warp[warp as usize] += work;
        let first = block as usize * self.warps_per_block;
        let warps = first..first + self.warps_per_block;
        let least = warps.map(|warp| (self.of_warp[warp], warp as u32)).min();
        if let Some(least) = least
            && self.of_block[block as usize] != least
        {
            // Pushed only on a change, so the heap grows no faster than the groups.
            if self.of_block[block as usize].0 != least.0 {
                self.heap.push(Reverse((least.0, block)));
            }
            self.of_block[block as usize] = least;
        }
        warp
    }
}
