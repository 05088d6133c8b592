//! AG-SpTRSV's fourth stage (section 4.5): counts the full space, reduces it to a list by rules, and predicts each scheme's
//! time.

use super::lower::MAX_LAUNCHES;
use super::model::{Profile, entries_on_path, launches, predict};
use super::prepare::{
    NG, NW, READS, Read, Shared, Sync, TECHNIQUES, Technique, Variant, WITHOUT, thresholds,
};
use super::schedule::{ALPHAS, Alpha, GROUPINGS, Grouping, PLACEMENTS, Placement};
use super::transform::{Merge, POWERS, Pattern, merges, reordered};
use super::{FAMILY, Scheme};
use crate::domain::{Candidate, Dtype};
use crate::ops::sptrsv::{Share, System};
use crate::search::domain::Domain;
use rayon::prelude::*;
use std::collections::HashMap;

/// Most schemes in the reduced list.
pub const MOST: usize = 600;

/// Partitions with a way to synchronise: packed words need an epoch, which a program of several launches lacks.
fn partitions() -> Vec<(Sync, Alpha)> {
    let sentinel = ALPHAS.into_iter().map(|alpha| (Sync::Sentinel, alpha));
    sentinel.chain([(Sync::Packed, Alpha::Infinite)]).collect()
}

/// Numbers of subwarps with the thresholds that they allow.
fn subwarps() -> Vec<(u32, Shared)> {
    NG.into_iter().flat_map(|ng| thresholds(ng).into_iter().map(move |sw| (ng, sw))).collect()
}

/// The full space: every combination of every stage, without storing any of them.
pub struct Space {
    subwarps: Vec<(u32, Shared)>,
    merges: Vec<Merge>,
    partitions: Vec<(Sync, Alpha)>,
}

impl Default for Space {
    fn default() -> Self {
        Self { subwarps: subwarps(), merges: merges(), partitions: partitions() }
    }
}

impl Space {
    fn radices(&self) -> [usize; 8] {
        let (subwarps, merges) = (self.subwarps.len(), self.merges.len());
        let (rg, ws) = (GROUPINGS.len(), PLACEMENTS.len());
        [NW.len(), subwarps, READS.len(), 2, merges, rg, ws, self.partitions.len()]
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
        Some(Scheme {
            variant: Variant { nw: NW[nw], ng, sw_rnnz, read: READS[read], sync, without: None },
            reorder: reorder == 1,
            merge: self.merges[merge],
            grouping: GROUPINGS[rg],
            placement: PLACEMENTS[ws],
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
        Domain::ints("nw", &NW.map(i64::from)),
        Domain::ints("ng", &NG.map(i64::from)),
        texts("sw_rnnz", shared.into_iter().map(Shared::name).collect()),
        Domain::texts("read", &READS.map(Read::name)),
        Domain::texts("sync", &[Sync::Sentinel, Sync::Packed].map(Sync::name)),
        Domain::texts("reorder", &["none", "level"]),
        texts("merge", merges().into_iter().map(Merge::name).collect()),
        Domain::texts("rg", &GROUPINGS.map(Grouping::name)),
        Domain::texts("ws", &PLACEMENTS.map(Placement::name)),
        texts("alpha", ALPHAS.into_iter().map(Alpha::name).collect()),
        Domain::texts(WITHOUT, &TECHNIQUES.map(Technique::name)),
    ]
}

/// The reduced list of a system.
pub fn share(system: &System) -> Share {
    let full = Space::default().count();
    let family = FAMILY;
    let nothing = |rule: &str| {
        let rules = vec![rule.to_owned()];
        Share { family, scored: Vec::new(), full, rules, spared: None, despite: HashMap::new() }
    };
    if system.problem.rhs != 1 {
        return nothing("ag: its schemes solve for one right-hand side at a time");
    }
    if system.problem.dtype == Dtype::F16 || system.triangular.rows() == 0 {
        return nothing("ag: only for f32 and f64, and systems with rows");
    }
    let profiles = profiles(system);
    let facts = Facts::of(system);
    let mut scored: Vec<(Scheme, f64)> =
        profiles.par_iter().flat_map_iter(|profile| of_profile(profile, &facts, system)).collect();
    spread(&mut scored);
    scored.truncate(MOST);
    let scored: Vec<(Candidate, f64)> =
        scored.into_iter().map(|(scheme, us)| (scheme.candidate(), us)).collect();
    Share { family, scored, full, rules: rules(), spared: None, despite: HashMap::new() }
}

/// The rules as sentences, in the order in which they are applied.
fn rules() -> Vec<String> {
    let cut = format!("ag: the {MOST} best predicted, spread over the kinds of scheme");
    let rules = [
        "ag: thresholds of merging only next to the mean row length; graphs alike are tried once, and no reordering where \
         levels rise already",
        "ag: lanes that share a row half to twice as many as its mean length, or as many as the rows of the path are long; lanes with a row each no more than a node \
         has rows",
        "ag: warps per multiprocessor by the mean width of a level: as many as it needs, four times as many, and 16",
        "ag: rg_balance only where rows differ in length; collaborative read only for lanes with a row each and 4 \
         entries a row",
        "ag: partitions into the same launches are tried once; partitions into more than 1024 launches never",
    ];
    rules.into_iter().map(str::to_owned).chain([cut]).collect()
}

/// Every graph worth trying, each once.
fn profiles(system: &System) -> Vec<Profile> {
    let own = Pattern::of(&system.triangular);
    let (indptr, indices) = reordered(&system.triangular, &system.levels);
    let permuted = Pattern { indptr: &indptr, indices: &indices };
    let entries = entries_on_path(system);
    let rows = own.rows();
    let mean = own.entries(0, rows) as f64 / rows as f64;
    let near = |of: fn(u32) -> Merge| {
        let above = POWERS.into_iter().find(|&power| f64::from(power) >= mean);
        let below = POWERS.into_iter().rev().find(|&power| f64::from(power) < mean);
        above.into_iter().chain(below).map(of)
    };
    let merges: Vec<Merge> = POWERS
        .map(Merge::Fixed)
        .into_iter()
        .chain(near(Merge::Average))
        .chain(near(Merge::Threshold))
        .collect();
    // Rows whose levels rise already are in the order that reordering would give them.
    let ordered = system.levels.level_of_row.is_sorted();
    let orders: &[bool] = if ordered { &[false] } else { &[false, true] };
    let wanted: Vec<(bool, Merge)> = orders
        .iter()
        .flat_map(|&reorder| merges.iter().map(move |&merge| (reorder, merge)))
        .collect();
    let profiles: Vec<Profile> = wanted
        .par_iter()
        .map(|&(reorder, merge)| {
            let pattern = if reorder { permuted } else { own };
            Profile::of(pattern, reorder, merge, entries)
        })
        .collect();
    let mut kept: Vec<Profile> = Vec::new();
    for profile in profiles {
        let same = |have: &Profile| {
            (have.reorder, have.nodes, have.span) == (profile.reorder, profile.nodes, profile.span)
                && have.widths == profile.widths
        };
        if !kept.iter().any(same) {
            kept.push(profile);
        }
    }
    kept
}

/// The schemes of one graph that pass the rules, with their predictions.
fn of_profile(profile: &Profile, facts: &Facts, system: &System) -> Vec<(Scheme, f64)> {
    let mut scored = Vec::new();
    for (ng, sw_rnnz) in facts.subwarps(profile) {
        for (sync, alpha, shape) in partitions_apart(profile, ng, system) {
            for (read, nw) in facts.reads_and_warps(profile, ng, sw_rnnz, system) {
                for (grouping, placement) in facts.schedules() {
                    let variant = Variant { nw, ng, sw_rnnz, read, sync, without: None };
                    let (reorder, merge) = (profile.reorder, profile.merge);
                    let scheme = Scheme { variant, reorder, merge, grouping, placement, alpha };
                    let us = predict(profile, &scheme, shape, system);
                    scored.push((scheme, us * facts.preference(&scheme)));
                }
            }
        }
    }
    scored
}

/// Distinct partitions of a graph's levels, with their launches and the levels that wait.
fn partitions_apart(
    profile: &Profile,
    ng: u32,
    system: &System,
) -> Vec<(Sync, Alpha, (usize, usize))> {
    let mut apart: Vec<(Sync, Alpha, (usize, usize))> = Vec::new();
    // Infinity first: it is the simplest of those with the same result.
    for (sync, alpha) in partitions().into_iter().rev() {
        let probe = Scheme {
            variant: Variant {
                nw: 1,
                ng,
                sw_rnnz: Shared::Never,
                read: Read::Direct,
                sync,
                without: None,
            },
            reorder: profile.reorder,
            merge: profile.merge,
            grouping: Grouping::Sequential,
            placement: Placement::RoundRobin,
            alpha,
        };
        let shape = launches(profile, &probe, system);
        let again = apart.iter().any(|&(have, _, other)| have == sync && other == shape);
        if !again && shape.0 <= MAX_LAUNCHES {
            apart.push((sync, alpha, shape));
        }
    }
    apart
}

/// What the rules read of a system.
struct Facts {
    /// Entries per row, including the diagonal: mean, and standard deviation over mean.
    mean: f64,
    variation: f64,
    /// Entries of a row that others wait for.
    on_path: f64,
}

impl Facts {
    fn of(system: &System) -> Self {
        let indptr = &system.triangular.indptr;
        let rows = system.triangular.rows() as f64;
        let lengths = indptr.windows(2).map(|ends| (ends[1] - ends[0] + 1) as f64);
        let mean = lengths.clone().sum::<f64>() / rows;
        let variance = lengths.map(|length| (length - mean).powi(2)).sum::<f64>() / rows;
        Self { mean, variation: variance.sqrt() / mean, on_path: entries_on_path(system) }
    }

    fn subwarps(&self, profile: &Profile) -> Vec<(u32, Shared)> {
        let near = (self.mean.max(1.0).log2().floor() as u32).min(5);
        let mut chosen = Vec::new();
        // Rows that others wait for may be far longer than the mean, and benefit from all lanes.
        let long = (self.on_path.max(1.0).log2().ceil() as u32).min(5);
        let mut exponents = vec![near.saturating_sub(1), near, (near + 1).min(5), long];
        exponents.sort_unstable();
        exponents.dedup();
        chosen.extend(exponents.into_iter().map(|exponent| (32 >> exponent, Shared::Above(0))));
        for ng in NG {
            let lanes = 32 / ng;
            // Beyond a quarter of the node's rows, subwarps have few lanes with many rows each.
            if lanes <= profile.span && 4 * lanes >= profile.span.min(32) {
                chosen.push((ng, Shared::Never));
                let power = 1 << near;
                if self.variation > 0.5 && power <= lanes {
                    chosen.push((ng, Shared::Above(power)));
                }
            }
        }
        chosen
    }

    fn reads_and_warps(
        &self,
        profile: &Profile,
        ng: u32,
        sw_rnnz: Shared,
        system: &System,
    ) -> Vec<(Read, u32)> {
        let levels = profile.widths.len().max(1) as f64;
        let subwarps = f64::from(ng * system.device.multiprocessors.max(1));
        let needed = (profile.nodes as f64 / levels / subwarps).ceil().clamp(1.0, 32.0) as u32;
        let needed = needed.next_power_of_two();
        let mut warps = vec![needed, (4 * needed).min(32), 16];
        warps.sort_unstable();
        warps.dedup();
        let shared = sw_rnnz == Shared::Never && self.mean >= 4.0;
        let direct = warps.iter().map(|&nw| (Read::Direct, nw));
        // 32 warps leave neither shared memory nor registers for buffers.
        let staged = warps.iter().filter(|&&nw| shared && nw <= 16).map(|&nw| (Read::Shared, nw));
        direct.chain(staged).collect()
    }

    fn schedules(&self) -> Vec<(Grouping, Placement)> {
        let groupings = if self.variation > 0.25 { &GROUPINGS[..] } else { &GROUPINGS[..1] };
        let pairs = groupings.iter().flat_map(|&rg| PLACEMENTS.map(|ws| (rg, ws)));
        pairs.collect()
    }

    /// What the model cannot see, as a factor near 1: of two schemes with equal predictions, the simpler comes first.
    fn preference(&self, scheme: &Scheme) -> f64 {
        let uneven = self.variation > 1.0;
        let placement = match scheme.placement {
            Placement::RoundRobin => 1.0,
            Placement::Balance => {
                if uneven {
                    0.99
                } else {
                    1.02
                }
            }
            Placement::Locality => 1.03,
        };
        let grouping = match scheme.grouping {
            Grouping::Sequential => 1.0,
            Grouping::Balance => {
                if uneven {
                    1.0
                } else {
                    1.02
                }
            }
        };
        let read = if scheme.variant.read == Read::Shared { 1.04 } else { 1.0 };
        placement * grouping * read
    }
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
