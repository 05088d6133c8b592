//! AG-SpTRSV's fourth stage (section 4.5): counts the full space, reduces it to a list by rules or draws from it, and predicts
//! each scheme's time.

use super::model::{Profile, predict};
use super::prepare::{
    NG, NW, READS, Read, Shared, Sync, TECHNIQUES, Technique, Variant, thresholds,
};
use super::rules::partitions as partitions_of;
use super::rules::{Facts, JudgedGraph, LIST, MOST, Partition, can_run, sentences};
use super::schedule::{ALPHAS, Alpha, GROUPINGS, Grouping, PLACEMENTS, Placement};
use super::transform::{Merge, merges};
use super::{FAMILY, Scheme, order_name};
use crate::domain::candidate::WITHOUT;
use crate::domain::{Candidate, Fixed, fixed};
use crate::ops::sptrsv::{Share, System};
use crate::search::domain::Domain;
use crate::search::{Draw, Excess, Removed};
use rayon::prelude::*;
use std::collections::HashMap;

/// Most schemes that are drawn from the full space.
const MOST_DRAWN: usize = 20_000;

/// Partitions with a way to synchronise: packed words need an epoch, which a program of several launches lacks.
fn partitions() -> Vec<(Sync, Alpha)> {
    let sentinel = ALPHAS.into_iter().map(|alpha| (Sync::Sentinel, alpha));
    sentinel.chain([(Sync::Packed, Alpha::Infinite)]).collect()
}

/// Numbers of subwarps with the thresholds that they allow.
fn subwarps() -> Vec<(u32, Shared)> {
    NG.into_iter().flat_map(|ng| thresholds(ng).into_iter().map(move |sw| (ng, sw))).collect()
}

/// The full space: every combination of every stage, without storing any of them; or those of its schemes that have the
/// parameter values which a request fixes.
pub struct Space {
    pub(super) warps: Vec<u32>,
    pub(super) subwarps: Vec<(u32, Shared)>,
    pub(super) reads: Vec<Read>,
    pub(super) orders: Vec<bool>,
    pub(super) merges: Vec<Merge>,
    pub(super) groupings: Vec<Grouping>,
    pub(super) placements: Vec<Placement>,
    pub(super) partitions: Vec<(Sync, Alpha)>,
    /// Left out of every scheme.
    without: Option<Technique>,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            warps: NW.to_vec(),
            subwarps: subwarps(),
            reads: READS.to_vec(),
            orders: vec![false, true],
            merges: merges(),
            groupings: GROUPINGS.to_vec(),
            placements: PLACEMENTS.to_vec(),
            partitions: partitions(),
            without: None,
        }
    }
}

impl Space {
    /// The schemes with fixed parameter values.
    pub fn admitted(fixed: &Fixed) -> Self {
        let mut space = Self::default();
        let bare = || Candidate::new(FAMILY);
        let text = |name, value: &str| fixed.admits(&bare().with_text(name, value));
        let int = |name, value: u32| fixed.admits(&bare().with(name, value.into()));
        space.warps.retain(|&nw| int("nw", nw));
        space.subwarps.retain(|(ng, sw)| int("ng", *ng) && text("sw_rnnz", &sw.name()));
        space.reads.retain(|read| text("read", read.name()));
        space.orders.retain(|&reorder| text("reorder", order_name(reorder)));
        space.merges.retain(|merge| text("merge", &merge.name()));
        space.groupings.retain(|grouping| text("rg", grouping.name()));
        space.placements.retain(|placement| text("ws", placement.name()));
        let part = |&(sync, alpha): &(Sync, Alpha)| {
            text("sync", sync.name()) && text("alpha", &alpha.name())
        };
        space.partitions.retain(part);
        let own = [None, Some(FAMILY)].map(|family| (family, WITHOUT));
        if fixed.0.keys().any(|name| own.contains(&fixed::parts(name))) {
            space.without = TECHNIQUES.into_iter().find(|t| text(WITHOUT, t.name()));
        }
        space
    }

    fn radices(&self) -> [usize; 8] {
        let (subwarps, merges) = (self.subwarps.len(), self.merges.len());
        let (rg, ws) = (self.groupings.len(), self.placements.len());
        let (reads, orders) = (self.reads.len(), self.orders.len());
        [self.warps.len(), subwarps, reads, orders, merges, rg, ws, self.partitions.len()]
    }

    /// How many schemes there are.
    pub fn count(&self) -> u64 {
        self.radices().into_iter().map(|radix| radix as u64).product()
    }

    /// The scheme of a number below `count`; different numbers give different schemes.
    pub fn nth(&self, number: u64) -> Option<Scheme> {
        let mut rest = usize::try_from(number).ok().filter(|_| number < self.count())?;
        let [nw, sub, read, reorder, merge, rg, ws, part] = self.radices().map(|radix| {
            let digit = rest % radix;
            rest /= radix;
            digit
        });
        let (ng, sw_rnnz) = self.subwarps[sub];
        let (sync, alpha) = self.partitions[part];
        let (nw, read) = (self.warps[nw], self.reads[read]);
        Some(Scheme {
            variant: Variant { nw, ng, sw_rnnz, read, sync, without: self.without },
            reorder: self.orders[reorder],
            merge: self.merges[merge],
            grouping: self.groupings[rg],
            placement: self.placements[ws],
            alpha,
        })
    }
}

/// The parameters with their values.
pub fn domains() -> Vec<Domain> {
    let texts = |name, values: Vec<String>| {
        Domain::texts(name, &values.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut shared: Vec<Shared> = subwarps().into_iter().map(|(_, shared)| shared).collect();
    shared.sort_unstable();
    shared.dedup();
    vec![
        Domain::ints("nw", &NW),
        Domain::ints("ng", &NG),
        texts("sw_rnnz", shared.into_iter().map(Shared::name).collect()),
        Domain::texts("read", &READS.map(Read::name)),
        Domain::texts("sync", &[Sync::Sentinel, Sync::Packed].map(Sync::name)),
        Domain::texts("reorder", &[false, true].map(order_name)),
        texts("merge", merges().into_iter().map(Merge::name).collect()),
        Domain::texts("rg", &GROUPINGS.map(Grouping::name)),
        Domain::texts("ws", &PLACEMENTS.map(Placement::name)),
        texts("alpha", ALPHAS.into_iter().map(Alpha::name).collect()),
        Domain::texts(WITHOUT, &TECHNIQUES.map(Technique::name)),
    ]
}

/// The reduced list of a system: the schemes with the fixed parameter values that pass the rules.
pub fn share(system: &System, fixed: &Fixed) -> Share {
    if let Some(nothing) = unsupported(system) {
        return nothing;
    }
    let space = Space::admitted(fixed);
    let facts = Facts::of(system);
    let graphs = facts.graphs(&space, system, false);
    let mut scored = passing(&space, &facts, &graphs, system);
    scored.truncate(MOST);
    let scored: Vec<(Candidate, f64)> =
        scored.into_iter().map(|(scheme, us)| (scheme.candidate(), us)).collect();
    let rules = sentences();
    let full = Space::default().count();
    Share { family: FAMILY, scored, full, rules, ..Share::default() }
}

/// Schemes of the full space with the fixed parameter values, drawn at random from those that can run, each with the rule that
/// would have removed it. `Share::full` is how many can run.
pub fn whole(system: &System, fixed: &Fixed, draw: &Draw) -> Share {
    if let Some(nothing) = unsupported(system) {
        return Share { full: 0, ..nothing };
    }
    let space = Space::admitted(fixed);
    let facts = Facts::of(system);
    let graphs = facts.graphs(&space, system, true);
    let at: HashMap<(bool, Merge), usize> = graphs
        .iter()
        .enumerate()
        .map(|(at, graph)| ((graph.profile.reorder, graph.profile.merge), at))
        .collect();
    let splits: Vec<HashMap<u32, Vec<Partition>>> = graphs
        .par_iter()
        .map(|JudgedGraph { profile, .. }| {
            let of = |ng| (ng, partitions_of(&space, profile, ng, system));
            NG.into_iter().map(of).collect()
        })
        .collect();
    let listed: HashMap<Scheme, usize> = passing(&space, &facts, &graphs, system)
        .into_iter()
        .enumerate()
        .map(|(rank, (scheme, _))| (scheme, rank + 1))
        .collect();
    let mut scored = Vec::new();
    let mut despite = HashMap::new();
    let most = draw.most.min(MOST_DRAWN);
    for number in draw.numbers(FAMILY, space.count()) {
        if scored.len() == most {
            break;
        }
        let Some(scheme) = space.nth(number) else { continue };
        let Some(&graph) = at.get(&(scheme.reorder, scheme.merge)) else { continue };
        let Variant { nw, ng, sync, .. } = scheme.variant;
        let split = splits[graph].get(&ng).into_iter().flatten();
        let mut split = split.filter(|split| (split.sync, split.alpha) == (sync, scheme.alpha));
        let Some(split) = split.next() else { continue };
        let graph = &graphs[graph];
        if !can_run(&graph.profile, split.shape, ng, nw, system) {
            continue;
        }
        let us = predict(&graph.profile, &scheme, split.shape, system) * facts.preference(&scheme);
        let candidate = scheme.candidate();
        let broken = match listed.get(&scheme) {
            Some(&rank) if rank <= MOST => None,
            Some(&rank) => Some((LIST, Excess { value: rank as f64, limit: MOST as f64, by: 1.0 })),
            None => facts.judge(&scheme, graph, split, system),
        };
        if let Some((rule, excess)) = broken {
            let removed = Removed { candidate: candidate.clone(), rule, excess };
            despite.insert(candidate.id(), removed.removal());
        }
        scored.push((candidate, us));
    }
    let full = runnable(&space, &graphs, &splits, system);
    Share { family: FAMILY, scored, full, despite, ..Share::default() }
}

/// A share without schemes, if the family has none for the system.
fn unsupported(system: &System) -> Option<Share> {
    let rule = system.lacks_one_side()?;
    let (full, rules) = (Space::default().count(), vec![format!("{FAMILY}: {rule}")]);
    Some(Share { family: FAMILY, full, rules, ..Share::default() })
}

/// Schemes of a space that can run.
fn runnable(
    space: &Space,
    graphs: &[JudgedGraph],
    splits: &[HashMap<u32, Vec<Partition>>],
    system: &System,
) -> u64 {
    let mut count = 0;
    for (graph, splits) in graphs.iter().zip(splits) {
        for (ng, _) in &space.subwarps {
            for split in splits.get(ng).into_iter().flatten() {
                let runs = |nw: &&u32| can_run(&graph.profile, split.shape, *ng, **nw, system);
                count += space.warps.iter().filter(runs).count();
            }
        }
    }
    (count * space.reads.len() * space.groupings.len() * space.placements.len()) as u64
}

/// The schemes that pass all rules but the cut, the best predicted first; see [`spread`].
fn passing(
    space: &Space,
    facts: &Facts,
    graphs: &[JudgedGraph],
    system: &System,
) -> Vec<(Scheme, f64)> {
    let kept: Vec<&Profile> =
        graphs.iter().filter(|graph| graph.broken.is_none()).map(|graph| &graph.profile).collect();
    let of = |profile: &&Profile| of_profile(space, facts, profile, system);
    let mut scored: Vec<(Scheme, f64)> = kept.par_iter().flat_map_iter(of).collect();
    spread(&mut scored);
    scored
}

/// The schemes of one graph that pass the rules, with their predictions.
fn of_profile(
    space: &Space,
    facts: &Facts,
    profile: &Profile,
    system: &System,
) -> Vec<(Scheme, f64)> {
    let mut scored = Vec::new();
    let without = space.without;
    for (ng, sw_rnnz) in facts.subwarps(space, profile) {
        for split in partitions_of(space, profile, ng, system) {
            let Partition { sync, alpha, shape, broken: None } = split else { continue };
            for (read, nw) in facts.reads_and_warps(space, profile, (ng, sw_rnnz), system) {
                if !can_run(profile, shape, ng, nw, system) {
                    continue;
                }
                for grouping in facts.groupings(space) {
                    for &placement in &space.placements {
                        let variant = Variant { nw, ng, sw_rnnz, read, sync, without };
                        let (reorder, merge) = (profile.reorder, profile.merge);
                        let scheme = Scheme { variant, reorder, merge, grouping, placement, alpha };
                        let us = predict(profile, &scheme, shape, system);
                        scored.push((scheme, us * facts.preference(&scheme)));
                    }
                }
            }
        }
    }
    scored
}

/// Sorts by prediction, and treats each further scheme of one kind (graph and mode) as slightly slower than the one before
/// it: the model cannot distinguish them, and a short search should try many kinds, not many schemes of one kind.
fn spread(scored: &mut [(Scheme, f64)]) {
    const STEP: f64 = 0.04;
    let by_prediction = |(a, x): &(Scheme, f64), (b, y): &(Scheme, f64)| {
        x.total_cmp(y).then_with(|| a.candidate().cmp(&b.candidate()))
    };
    scored.sort_by(by_prediction);
    let mut seen: HashMap<(bool, Merge, bool), u32> = HashMap::new();
    for (scheme, us) in scored.iter_mut() {
        let shares = scheme.variant.sw_rnnz != Shared::Never;
        let count = seen.entry((scheme.reorder, scheme.merge, shares)).or_insert(0);
        *us *= 1.0 + STEP * f64::from(*count);
        *count += 1;
    }
    scored.sort_by(by_prediction);
}
