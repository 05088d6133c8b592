//! A simple model of a scheme's time: the critical path through the graph, the total work, the bytes, and the launches.

use super::Scheme;
use super::prepare::Sync;
use super::schedule::{Alpha, partition};
use super::text::LEVEL_WARPS;
use super::transform::{Graph, Merge, Pattern};
use crate::ops::sptrsv::System;

/// Assumed hop if the device's was not measured, nanoseconds: a guess that keeps the order of schemes.
const HOP_NS: f64 = 300.0;
/// Assumed copy rate if the device's was not measured, GB/s.
const COPY_GBPS: f64 = 1000.0;
/// One more launch in a CUDA graph, nanoseconds; a guess.
const LAUNCH_NS: f64 = 1500.0;
/// From a task's first load to its first poll: three dependent loads. A guess; hidden unless work is the limit.
const TASK_NS: f64 = 900.0;
/// One round of a subwarp: a batch of entries, or a row's start and end. Guesses.
const BATCH_NS: f64 = 25.0;
const ROW_NS: f64 = 40.0;
const SHUFFLE_NS: f64 = 12.0;
/// Warps per multiprocessor whose polling doubles the time of a hop. A guess.
const CROWD_WARPS: f64 = 64.0;

/// What the model reads of one computation graph.
pub struct Profile {
    pub reorder: bool,
    pub merge: Merge,
    pub nodes: usize,
    /// Nodes per level.
    pub widths: Vec<u32>,
    pub span: u32,
    /// Rows of a node, on average.
    rows: f64,
    /// Longest chain of rows inside a node, on average over nodes.
    chain: f64,
    /// Entries of a row on the path, including the diagonal: half way between the mean row and the mean over the system's
    /// levels of their longest row, since a level waits for some row that is neither short nor always the longest.
    entries: f64,
}

impl Profile {
    /// `entries` as by `entries_on_path`; the same for all graphs of a system.
    pub fn of(pattern: Pattern, reorder: bool, merge: Merge, entries: f64) -> Self {
        let graph = Graph::of(pattern, merge);
        let nodes = graph.nodes();
        let chains: usize = (0..nodes).map(|node| chain(pattern, &graph, node)).sum();
        let count = nodes.max(1) as f64;
        let rows = pattern.rows();
        Self {
            reorder,
            merge,
            nodes,
            span: graph.span,
            rows: rows as f64 / count,
            chain: chains as f64 / count,
            entries,
            widths: graph.widths,
        }
    }

    /// Whether the graphs of both have the same order, nodes and levels, as far as the model tells.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.reorder, self.nodes, self.span) == (other.reorder, other.nodes, other.span)
            && self.widths == other.widths
    }
}

/// Entries of a row that others wait for; see `Profile::entries`.
pub fn entries_on_path(system: &System) -> f64 {
    let (triangular, levels) = (&system.triangular, &system.levels);
    let mut longest = vec![0usize; levels.widths.len()];
    for (ends, &level) in triangular.indptr.windows(2).zip(&levels.level_of_row) {
        let longest = &mut longest[level as usize];
        *longest = (ends[1] - ends[0] + 1).max(*longest);
    }
    let of_levels = longest.iter().sum::<usize>() as f64 / longest.len().max(1) as f64;
    let rows = triangular.rows();
    let mean = (triangular.nnz() + rows) as f64 / rows.max(1) as f64;
    f64::midpoint(of_levels, mean)
}

/// Rows on the longest path inside a node.
fn chain(pattern: Pattern, graph: &Graph, node: usize) -> usize {
    let rows = graph.rows(node);
    let first = rows.start;
    let mut depth = [0usize; super::transform::ROWS as usize];
    let mut deepest = 0;
    for row in rows {
        let inside = pattern.row(row).iter().filter(|&&col| col as usize >= first);
        let above = inside.map(|&col| depth[col as usize - first] + 1).max().unwrap_or(0);
        depth[row - first] = above;
        deepest = deepest.max(above + 1);
    }
    deepest
}

/// Launches that a partition of the graph's levels makes, and the levels that wait inside a launch.
pub fn launches(profile: &Profile, ng: u32, alpha: Alpha, system: &System) -> (usize, usize) {
    let groups = profile.widths.iter().map(|width| width.div_ceil(ng));
    let kernels = partition(groups, alpha.most_groups(&system.device));
    let waiting = kernels.iter().map(|levels| levels.len()).filter(|&levels| levels > 1).sum();
    (kernels.len(), waiting)
}

/// Predicted microseconds of one call.
pub fn predict(
    profile: &Profile,
    scheme: &Scheme,
    (kernels, waiting): (usize, usize),
    system: &System,
) -> f64 {
    let device = &system.device;
    let hop = if device.hop_ns > 0.0 { device.hop_ns } else { HOP_NS };
    let rate = if device.copy_gbps > 0.0 { device.copy_gbps } else { COPY_GBPS };
    let node = node_ns(profile, scheme);
    // Every warp that polls takes a share of the bandwidth of L2 from those that publish.
    let crowd = 1.0 + f64::from(scheme.variant.nw) / CROWD_WARPS;
    let path = profile.widths.len() as f64 * node + waiting as f64 * hop * crowd;
    // A launch of one level fills the device; the others have `nw` warps a multiprocessor.
    let levels = profile.widths.len().max(1) as f64;
    let resident = f64::from(device.max_threads_per_multiprocessor / 32);
    let share = waiting as f64 / levels;
    let warps = share * f64::from(scheme.variant.nw)
        + (1.0 - share) * resident.max(f64::from(LEVEL_WARPS)) / 2.0;
    let subwarps = f64::from(device.multiprocessors.max(1) * scheme.variant.ng) * warps;
    let work = profile.nodes as f64 * (TASK_NS + node) / subwarps;
    let bytes = bytes(profile, scheme, system);
    (path + work + bytes / rate + kernels as f64 * LAUNCH_NS) / 1e3
}

/// From the last parent's value to the node's last value.
fn node_ns(profile: &Profile, scheme: &Scheme) -> f64 {
    let lanes = f64::from(32 / scheme.variant.ng);
    let collaborates = scheme.variant.sw_rnnz.shares((profile.entries * 16.0) as usize, 16);
    if collaborates {
        let batches = (profile.entries / (2.0 * lanes)).ceil();
        profile.rows * (ROW_NS + batches * BATCH_NS + lanes.log2() * SHUFFLE_NS)
    } else {
        let rounds = (profile.rows / lanes).ceil();
        let batches = (profile.entries / 4.0).ceil();
        // Rows of a chunk are solved side by side, except for the chain among them.
        rounds.max(profile.chain) * ROW_NS + rounds * batches * BATCH_NS
    }
}

/// Least bytes that a call moves, including what the scheme adds.
fn bytes(profile: &Profile, scheme: &Scheme, system: &System) -> f64 {
    let value = system.problem.dtype.bytes() as f64;
    let (rows, nnz) = (system.triangular.rows() as f64, system.triangular.nnz() as f64);
    let system_bytes = nnz * (4.0 + value) + rows * (4.0 + 3.0 * value);
    let words = match scheme.variant.sync {
        Sync::Sentinel => 2.0 * value * rows,
        Sync::Packed => 2.0 * value * rows + 0.25 * nnz,
    };
    let permutation = if profile.reorder { 8.0 * rows } else { 0.0 };
    system_bytes + words + permutation + 8.0 * profile.nodes as f64
}
