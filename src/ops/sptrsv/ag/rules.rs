//! The rules that reduce AG-SpTRSV's full space to a list (section 4.5: "empirically eliminating schemes that perform poorly on
//! most matrices"). Each is a predicate with a name: the list is what passes all of them, and a scheme that is drawn from the
//! full space is judged by the same.

use super::lower::MAX_LAUNCHES;
use super::model::{Profile, entries_on_path, launches};
use super::prepare::{Read, Shared, Sync};
use super::schedule::{Alpha, Grouping, Placement};
use super::select::Space;
use super::text::LEVEL_WARPS;
use super::transform::{Merge, POWERS, Pattern, reordered};
use super::{FAMILY, Scheme};
use crate::domain::catalog::rules;
use crate::ops::sptrsv::System;
use crate::search::{Excess, Verdict};
use rayon::prelude::*;

/// Most schemes in the reduced list.
pub const MOST: usize = 600;

/// Names of the rules, in the order in which they are judged.
pub const REORDER: &str = "ag_reorder";
pub const MERGE: &str = "ag_merge_near_mean";
pub const ALIKE: &str = "ag_graphs_alike";
pub const LANES: &str = "ag_lanes";
pub const THRESHOLD: &str = "ag_threshold";
pub const PARTITIONS: &str = "ag_partitions";
pub const WARPS: &str = "ag_warps";
pub const READ: &str = "ag_read";
pub const GROUPING: &str = "ag_grouping";
pub const LIST: &str = "ag_most";

/// All of them; `domain::catalog::rules` has their words.
pub const RULES: [&str; 10] =
    [REORDER, MERGE, ALIKE, LANES, THRESHOLD, PARTITIONS, WARPS, READ, GROUPING, LIST];

/// The rules as sentences.
pub fn sentences() -> Vec<String> {
    let words = RULES.into_iter().filter_map(rules::rule).map(|rule| rule.words.sentence);
    words.map(|sentence| format!("{FAMILY}: {}", sentence.trim_end_matches('.'))).collect()
}

/// A rule that a scheme breaks, and by how much.
pub type Broken = (&'static str, Excess);

fn broken(rule: &'static str, verdict: Verdict) -> Option<Broken> {
    match verdict {
        Verdict::Keep | Verdict::Fits { .. } => None,
        Verdict::Remove(excess) => Some((rule, excess)),
    }
}

/// Keeps a value that is among some, and tells of another the one that it is to be compared with.
fn among(value: f64, passes: bool, limit: f64) -> Verdict {
    match passes {
        true => Verdict::Keep,
        false => Verdict::Remove(Excess { value, limit, by: (value / limit).ln().abs().max(1e-9) }),
    }
}

fn more_than(value: f64, limit: f64) -> Verdict {
    match value > limit {
        true => Verdict::Keep,
        false => Verdict::Remove(Excess { value, limit, by: (limit - value).max(1e-9) }),
    }
}

/// The values that pass a rule; all, if a request has fixed them so that none does: a rule that prefers does not hide what was
/// asked for.
pub fn preferred<T: Copy>(values: &[T], judge: impl Fn(T) -> Verdict) -> Vec<T> {
    let passing: Vec<T> = values.iter().copied().filter(|&value| judge(value).keeps()).collect();
    if passing.is_empty() { values.to_vec() } else { passing }
}

/// A computation graph, and the rule that would have left it out.
pub struct JudgedGraph {
    pub profile: Profile,
    pub broken: Option<Broken>,
}

/// A partition of a graph's levels, its launches and the levels that wait, and the rule that would have left it out.
pub struct Partition {
    pub sync: Sync,
    pub alpha: Alpha,
    pub shape: (usize, usize),
    pub broken: Option<Broken>,
}

/// What the rules read of a system.
pub struct Facts {
    /// Entries per row, including the diagonal: mean, and standard deviation over mean.
    mean: f64,
    variation: f64,
    /// Entries of a row that others wait for.
    on_path: f64,
    /// Whether the levels of rows rise already, so that reordering would change nothing.
    ordered: bool,
}

impl Facts {
    pub fn of(system: &System) -> Self {
        let indptr = &system.triangular.indptr;
        let rows = system.triangular.rows() as f64;
        let lengths = indptr.windows(2).map(|ends| (ends[1] - ends[0] + 1) as f64);
        let mean = lengths.clone().sum::<f64>() / rows;
        let variance = lengths.map(|length| (length - mean).powi(2)).sum::<f64>() / rows;
        Self {
            mean,
            variation: variance.sqrt() / mean,
            on_path: entries_on_path(system),
            ordered: system.levels.level_of_row.is_sorted(),
        }
    }

    fn reorder(&self, reorder: bool) -> Verdict {
        if reorder && self.ordered { Verdict::refused(1.0) } else { Verdict::Keep }
    }

    fn merge(&self, merge: Merge) -> Verdict {
        let (Merge::Average(thresh) | Merge::Threshold(thresh)) = merge else {
            return Verdict::Keep;
        };
        let above = POWERS.into_iter().find(|&power| f64::from(power) >= self.mean);
        let below = POWERS.into_iter().rev().find(|&power| f64::from(power) < self.mean);
        let next = [above, below].contains(&Some(thresh));
        among(f64::from(thresh), next, self.mean)
    }

    /// The power of two below the mean row length, as an exponent.
    fn near(&self) -> u32 {
        (self.mean.max(1.0).log2().floor() as u32).min(5)
    }

    fn lanes(&self, profile: &Profile, ng: u32, sw_rnnz: Shared) -> Verdict {
        let lanes = 32 / ng;
        if sw_rnnz == Shared::Above(0) {
            let near = self.near();
            // Rows that others wait for may be far longer than the mean, and benefit from all lanes.
            let long = (self.on_path.max(1.0).log2().ceil() as u32).min(5);
            let exponents = [near.saturating_sub(1), near, (near + 1).min(5), long];
            return among(lanes.into(), exponents.contains(&lanes.ilog2()), self.mean);
        }
        // Beyond a quarter of the node's rows, subwarps have few lanes with many rows each.
        let fits = lanes <= profile.span && 4 * lanes >= profile.span.min(32);
        among(lanes.into(), fits, profile.span.into())
    }

    fn threshold(&self, sw_rnnz: Shared) -> Verdict {
        match sw_rnnz {
            Shared::Above(0) | Shared::Never => Verdict::Keep,
            Shared::Above(_) if self.variation <= 0.5 => more_than(self.variation, 0.5),
            Shared::Above(thresh) => {
                let near = 1 << self.near();
                among(thresh.into(), thresh == near, near.into())
            }
        }
    }

    fn warps(&self, profile: &Profile, ng: u32, nw: u32, system: &System) -> Verdict {
        let levels = profile.widths.len().max(1) as f64;
        let subwarps = f64::from(ng * system.device.multiprocessors.max(1));
        let needed = (profile.nodes as f64 / levels / subwarps).ceil().clamp(1.0, 32.0) as u32;
        let needed = needed.next_power_of_two();
        among(nw.into(), [needed, (4 * needed).min(32), 16].contains(&nw), needed.into())
    }

    fn read(&self, sw_rnnz: Shared, nw: u32, read: Read) -> Verdict {
        match read {
            Read::Direct => Verdict::Keep,
            Read::Shared if sw_rnnz != Shared::Never => Verdict::refused(1.0),
            Read::Shared if self.mean < 4.0 => Verdict::at_least(self.mean, 4.0),
            // 32 warps leave neither shared memory nor registers for buffers.
            Read::Shared => Verdict::at_most(nw.into(), 16.0),
        }
    }

    fn grouping(&self, grouping: Grouping) -> Verdict {
        match grouping {
            Grouping::Sequential => Verdict::Keep,
            Grouping::Balance => more_than(self.variation, 0.25),
        }
    }

    /// Every graph of the space that the rules leave, each once; or `all`, each with the first rule that it breaks.
    pub fn graphs(&self, space: &Space, system: &System, all: bool) -> Vec<JudgedGraph> {
        let own = Pattern::of(&system.triangular);
        let (indptr, indices) = reordered(&system.triangular, &system.levels);
        let permuted = Pattern { indptr: &indptr, indices: &indices };
        let orders = preferred(&space.orders, |reorder| self.reorder(reorder));
        let merges = preferred(&space.merges, |merge| self.merge(merge));
        // Of thresholds that cut alike the higher is kept.
        let mut every = space.merges.clone();
        every.sort_by_key(|merge| match *merge {
            Merge::Fixed(rb) => (0, i64::from(rb)),
            Merge::Average(thresh) => (1, -i64::from(thresh)),
            Merge::Threshold(thresh) => (2, -i64::from(thresh)),
        });
        let pairs = space.orders.iter().flat_map(|&order| every.iter().map(move |&m| (order, m)));
        let judged = pairs.map(|(reorder, merge)| {
            let order =
                (!orders.contains(&reorder)).then(|| broken(REORDER, self.reorder(reorder)));
            let cut = (!merges.contains(&merge)).then(|| broken(MERGE, self.merge(merge)));
            (reorder, merge, order.or(cut).flatten())
        });
        let judged: Vec<_> = judged.filter(|(_, _, broken)| all || broken.is_none()).collect();
        let mut graphs: Vec<JudgedGraph> = judged
            .par_iter()
            .map(|&(reorder, merge, broken)| {
                let pattern = if reorder { permuted } else { own };
                let profile = Profile::of(pattern, reorder, merge, self.on_path);
                JudgedGraph { profile, broken }
            })
            .collect();
        for at in 1..graphs.len() {
            let (before, rest) = graphs.split_at_mut(at);
            let alike = |have: &JudgedGraph| {
                have.broken.is_none() && have.profile.is_like(&rest[0].profile)
            };
            if rest[0].broken.is_none() && before.iter().any(alike) {
                rest[0].broken = broken(ALIKE, Verdict::refused(1.0));
            }
        }
        graphs.retain(|graph| all || graph.broken.is_none());
        graphs
    }

    /// Numbers of subwarps with thresholds that pass.
    pub fn subwarps(&self, space: &Space, profile: &Profile) -> Vec<(u32, Shared)> {
        let pairs = preferred(&space.subwarps, |(ng, sw_rnnz)| self.lanes(profile, ng, sw_rnnz));
        preferred(&pairs, |(_, sw_rnnz)| self.threshold(sw_rnnz))
    }

    /// Ways to read, with warps per multiprocessor, that pass.
    pub fn reads_and_warps(
        &self,
        space: &Space,
        profile: &Profile,
        (ng, sw_rnnz): (u32, Shared),
        system: &System,
    ) -> Vec<(Read, u32)> {
        let warps = preferred(&space.warps, |nw| self.warps(profile, ng, nw, system));
        let pairs = space.reads.iter().flat_map(|&read| warps.iter().map(move |&nw| (read, nw)));
        let pairs: Vec<(Read, u32)> = pairs.collect();
        preferred(&pairs, |(read, nw)| self.read(sw_rnnz, nw, read))
    }

    pub fn groupings(&self, space: &Space) -> Vec<Grouping> {
        preferred(&space.groupings, |grouping| self.grouping(grouping))
    }

    /// The first rule that a scheme of the full space breaks, of all but the cut of the list.
    pub fn judge(
        &self,
        scheme: &Scheme,
        graph: &JudgedGraph,
        partition: &Partition,
        system: &System,
    ) -> Option<Broken> {
        let (variant, profile) = (scheme.variant, &graph.profile);
        graph
            .broken
            .or_else(|| broken(LANES, self.lanes(profile, variant.ng, variant.sw_rnnz)))
            .or_else(|| broken(THRESHOLD, self.threshold(variant.sw_rnnz)))
            .or(partition.broken)
            .or_else(|| broken(WARPS, self.warps(profile, variant.ng, variant.nw, system)))
            .or_else(|| broken(READ, self.read(variant.sw_rnnz, variant.nw, variant.read)))
            .or_else(|| broken(GROUPING, self.grouping(scheme.grouping)))
    }

    /// What the model cannot see, as a factor near 1: of two schemes with equal predictions, the simpler comes first.
    pub fn preference(&self, scheme: &Scheme) -> f64 {
        let uneven = self.variation > 1.0;
        let placement = match scheme.placement {
            Placement::RoundRobin => 1.0,
            Placement::Balance if uneven => 0.99,
            Placement::Balance => 1.02,
            Placement::Locality => 1.03,
        };
        let grouping = if scheme.grouping == Grouping::Balance && !uneven { 1.02 } else { 1.0 };
        let read = if scheme.variant.read == Read::Shared { 1.04 } else { 1.0 };
        placement * grouping * read
    }
}

/// All partitions of a graph's levels in the space. Of those with the same launches the simplest is kept: infinity comes first.
pub fn partitions(space: &Space, profile: &Profile, ng: u32, system: &System) -> Vec<Partition> {
    let mut partitions: Vec<Partition> = Vec::new();
    for &(sync, alpha) in space.partitions.iter().rev() {
        let shape = launches(profile, ng, alpha, system);
        let alike = |have: &Partition| have.sync == sync && have.shape == shape;
        let broken = partitions.iter().any(alike).then(|| (PARTITIONS, again()));
        partitions.push(Partition { sync, alpha, shape, broken });
    }
    partitions
}

/// A rule without numbers.
const fn again() -> Excess {
    Excess { value: f64::INFINITY, limit: 0.0, by: 1.0 }
}

/// Whether the scheme can be lowered: it has not too many launches, and its blocks' shared memory has room for the values of
/// their nodes.
pub fn can_run(
    profile: &Profile,
    shape: (usize, usize),
    ng: u32,
    nw: u32,
    system: &System,
) -> bool {
    let (kernels, waiting) = shape;
    let span = if profile.span > 1 { u64::from(profile.span) } else { 0 };
    let bytes = |warps: u32| u64::from(warps * ng) * span * system.problem.dtype.bytes();
    let most = system.device.shared_bytes_per_block;
    kernels <= MAX_LAUNCHES
        && (waiting == 0 || bytes(nw) <= most)
        && (waiting == profile.widths.len() || bytes(LEVEL_WARPS) <= most)
}
