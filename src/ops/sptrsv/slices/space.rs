//! The space of the `slices` family: every scheme counted, those worth trying listed by explicit rules, each with a time.

use super::estimate::Estimate;
use super::refine;
use super::rewrite::{Rewrite, rewrite};
use super::scheme::{FAMILY, Scheme, Scope, Sync, Take};
use crate::domain::problem::Stability;
use crate::domain::{Candidate, Fixed, Removal, funnel};
use crate::ops::sptrsv::{Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use crate::sparse::{operand, oracle};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

const WINDOW_NS: [u32; 7] = [0, 125, 250, 500, 1000, 2000, 4000];
const TERMS: [u32; 3] = [64, 256, 1024];
/// Whether terms are copied ahead.
const AHEAD: [u32; 2] = [0, 1];
/// Steps of refinement.
const REFINE: [u32; 2] = [0, 1];
const LANES: [u32; 7] = [0, 1, 2, 4, 8, 16, 32];
const WARPS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const UNROLL: [u32; 2] = [4, 8];
const TAKES: [Take; 3] = [Take::Block, Take::Spread, Take::Ticket];
/// Of these, those with which terms can be copied ahead.
const AHEAD_TAKES: [Take; 2] = [Take::Block, Take::Spread];
const SYNCS: [Sync; 2] = [Sync::Sentinel, Sync::Packed];
const SHARED_BLOCKS: [u32; 3] = [1, 8, 16];
const SCOPES: [Scope; 4] = [
    Scope::Global,
    Scope::Shared { blocks: SHARED_BLOCKS[0] },
    Scope::Shared { blocks: SHARED_BLOCKS[1] },
    Scope::Shared { blocks: SHARED_BLOCKS[2] },
];
const PAUSES: [u32; 2] = [0, 1];
const ALPHAS: [u32; 3] = [0, 8, 2];

/// Rows per level up to which a single multiprocessor or a cluster may keep up.
const NARROW: f64 = 64.0;

/// Rows per level, for each multiprocessor, from which copying terms ahead is tried: then warps have slices of several levels, and what
/// they load for the next one is worth hiding. On systems with narrower levels it gained nothing.
const AHEAD_ROWS: u32 = 16;

/// Entries of the longest row, besides the diagonal, up to which large systems with such wide levels are also tried with one lane a
/// row: nothing is summed over lanes then, and a warp has 32 rows under way.
const SHORT_ROW: usize = 32;

/// Entries from which a system is large: rewriting it takes so long that it is done for few schemes only.
const LARGE: usize = 1_000_000;
const LARGE_WINDOW_NS: [u32; 3] = [250, 500, 1000];

/// Amplification above which solutions are refined: rows that cancel terms of such size are not reproduced by equations that
/// skip them. Of the development set, systems up to 6e4 rewrite well and those from 4e9 do not.
pub(super) const AMPLIFIED: f64 = 1e6;

/// Entries per row from which rows are long.
const LONG_ROWS: f64 = 32.0;

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    vec![
        Domain::ints("window_ns", &WINDOW_NS),
        Domain::ints("terms", &TERMS),
        Domain::ints("refine", &REFINE),
        Domain::ints("lanes", &LANES),
        Domain::ints("warps", &WARPS),
        Domain::ints("unroll", &UNROLL),
        Domain::texts("take", &TAKES.map(Take::name)),
        Domain::texts("sync", &SYNCS.map(Sync::name)),
        Domain::texts("scope", &SCOPES.map(Scope::name)),
        Domain::ints("pause", &PAUSES),
        Domain::ints("alpha", &ALPHAS),
        Domain::ints("ahead", &AHEAD),
    ]
}

/// Schemes of the whole product, legal or not, with the fixed parameter values.
pub fn admitted(fixed: &Fixed) -> u64 {
    let bare = || Candidate::new(FAMILY);
    let int = |name, value: u32| fixed.admits(&bare().with(name, value.into()));
    let text = |name, value: &str| fixed.admits(&bare().with_text(name, value));
    let ints = |name, values: &[u32]| values.iter().filter(|&&value| int(name, value)).count();
    let shared = |blocks: &u32| text("scope", Scope::Shared { blocks: *blocks }.name());
    let only =
        int("alpha", 0) && text("take", Take::Spread.name()) && text("sync", Sync::Sentinel.name());
    let global = usize::from(text("scope", Scope::Global.name()));
    let count = |refine: bool| {
        let takes = TAKES.into_iter().filter(|&take| text("take", take.name()));
        let takes = takes.filter(|&take| !refine || take != Take::Ticket).count();
        let syncs = SYNCS.into_iter().filter(|&sync| text("sync", sync.name()));
        let syncs = syncs.filter(|&sync| !refine || sync == Sync::Sentinel).count();
        let scopes = global * takes * syncs * ints("alpha", &ALPHAS)
            + usize::from(only) * SHARED_BLOCKS.iter().filter(|&blocks| shared(blocks)).count();
        let rewritten = ints("window_ns", &WINDOW_NS[usize::from(refine)..]);
        rewritten * ints("terms", &TERMS) * scopes
    };
    // Schemes that are not refined, or copy nothing ahead, do not have the parameter.
    let rewritten = count(false) + if int("refine", 1) { count(true) } else { 0 };
    let common = ints("lanes", &LANES) * ints("warps", &WARPS) * ints("unroll", &UNROLL);
    let ahead = || {
        let takes = AHEAD_TAKES.into_iter().filter(|&take| text("take", take.name())).count();
        let plain = int("alpha", 0) && int("pause", 0) && text("sync", Sync::Sentinel.name());
        let rewritten = ints("window_ns", &WINDOW_NS);
        usize::from(plain) * global * takes * rewritten * ints("terms", &TERMS)
    };
    let ahead = if int("ahead", 1) { ahead() } else { 0 };
    (common * (rewritten * ints("pause", &PAUSES) + ahead)) as u64
}

/// The whole product, one by one.
fn every() -> Vec<Scheme> {
    let mut scopes = Vec::new();
    for take in TAKES {
        for sync in SYNCS {
            scopes.extend(ALPHAS.map(|alpha| (Scope::Global, take, sync, alpha, false)));
        }
    }
    let shared = |blocks| (Scope::Shared { blocks }, Take::Spread, Sync::Sentinel, 0, false);
    scopes.extend(SHARED_BLOCKS.map(shared));
    scopes.extend(AHEAD_TAKES.map(|take| (Scope::Global, take, Sync::Sentinel, 0, true)));
    let mut all = Vec::new();
    for rewrite in every_rewrite() {
        for lanes in LANES {
            for warps in WARPS {
                for (unroll, pause) in UNROLL.map(|unroll| PAUSES.map(|p| (unroll, p))).concat() {
                    let schemes = scopes.iter().map(|&(scope, take, sync, alpha, ahead)| Scheme {
                        rewrite,
                        lanes,
                        warps,
                        unroll,
                        take,
                        sync,
                        scope,
                        pause,
                        alpha,
                        ahead,
                    });
                    let possible =
                        |scheme: &Scheme| refinable(scheme).and(copies_ahead(scheme)).is_ok();
                    all.extend(schemes.filter(possible));
                }
            }
        }
    }
    all
}

fn every_rewrite() -> Vec<Rewrite> {
    let of = |window_ns| TERMS.map(|terms| Rewrite::of(window_ns, terms));
    let all: Vec<Rewrite> = WINDOW_NS.into_iter().flat_map(of).collect();
    REFINE
        .iter()
        .flat_map(|&refine| all.iter().map(move |&how| Rewrite { refine: refine == 1, ..how }))
        .collect()
}

/// Why a scheme cannot be one of a refined solution, if it is to be that.
fn refinable(scheme: &Scheme) -> Result<(), String> {
    if !scheme.rewrite.refine {
        return Ok(());
    }
    if scheme.rewrite.window_ns == 0 {
        return Err("where no equation is rewritten there is nothing to refine".to_owned());
    }
    if scheme.sync == Sync::Packed || scheme.take == Take::Ticket {
        return Err("a call that solves twice has no epochs and tickets".to_owned());
    }
    Ok(())
}

/// Why a scheme cannot copy terms ahead, if it is to.
fn copies_ahead(scheme: &Scheme) -> Result<(), String> {
    if !scheme.ahead {
        return Ok(());
    }
    let waits = scheme.sync == Sync::Sentinel && scheme.pause == 0;
    let launch = scheme.scope == Scope::Global && scheme.alpha == 0;
    if !waits || !launch || scheme.rewrite.refine || !AHEAD_TAKES.contains(&scheme.take) {
        return Err("terms are copied ahead in one launch of the whole device, with sentinels and without tickets, pauses and refinement".to_owned());
    }
    Ok(())
}

/// Why a scheme cannot run for this system, whatever its arrays.
pub fn legal(scheme: &Scheme, system: &System) -> Result<(), String> {
    if scheme.rewrite.window_ns > 0 && system.problem.stability == Stability::RowWise {
        return Err("equations are not rewritten where each row has to be stable".to_owned());
    }
    refinable(scheme)?;
    copies_ahead(scheme)?;
    if scheme.ahead && system.device.compute_major().unwrap_or(0) < 8 {
        return Err("the device cannot copy to shared memory while a thread goes on".to_owned());
    }
    if scheme.warps > 16 && scheme.unroll > 4 {
        return Err("eight loads in flight need more than the 64 registers of 32 warps".to_owned());
    }
    let Scope::Shared { blocks } = scheme.scope else {
        return match (scheme.sync, scheme.take, scheme.alpha) {
            // A graph's arguments are fixed when it is made, so its epoch cannot change.
            (Sync::Packed, _, 1..) => {
                Err("an epoch cannot change within a graph of several launches".to_owned())
            }
            // Its single counter would continue where the launch before has left it.
            (_, Take::Ticket, 1..) => Err("tickets need a single launch".to_owned()),
            _ => Ok(()),
        };
    };
    let work = system.triangular.rows() as u64
        * u64::from(system.problem.rhs)
        * system.problem.dtype.bytes();
    let most = system.device.shared_bytes_per_block;
    if work > most {
        return Err(format!(
            "the unknowns take {work} bytes of shared memory; at most {most} are available"
        ));
    }
    if blocks > 1 && system.device.compute_major().unwrap_or(0) < 9 {
        return Err("the device has no clusters".to_owned());
    }
    let plain = scheme.sync == Sync::Sentinel && scheme.take == Take::Spread && scheme.alpha == 0;
    if plain { Ok(()) } else { Err("shared memory needs no tickets, epochs or graphs".to_owned()) }
}

/// The family's part of the space.
pub fn share(system: &System, estimate: &Estimate) -> Share {
    // In a fixed order: duplicates are kept once, whichever comes first.
    let mut rewrites: Vec<Rewrite> = estimate.rewrites().collect();
    rewrites.sort_by_key(|how| (how.window_ns, how.terms, how.refine));
    let mut scored: Vec<_> = listed(system, &rewrites)
        .into_iter()
        .filter(|scheme| legal(scheme, system).is_ok())
        .map(|scheme| (scheme.candidate(), estimate.parts(&scheme)))
        .map(|(candidate, parts)| (candidate, Estimate::us(&parts), parts))
        .collect();
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    scored.dedup_by(|a, b| a.0 == b.0);
    let rules = [
        "slices: nothing is rewritten where each row has to be stable",
        "slices: solutions are refined where a row's terms reach 1e6 times the right-hand side, with those rewritings that a trial finds good enough",
        "slices: the most terms matter only where equations are rewritten; above 1,000,000 entries three windows, the most terms by \
         the mean row, and lanes chosen for each slice but for one of the windows",
        "slices: lanes are chosen per slice, or 1, 4 or 32 with 2 to 16 warps",
        "slices: epochs, tickets and pauses are tried only on the plain shape",
        "slices: one multiprocessor or one cluster only if levels are narrow and the unknowns fit its shared memory",
        "slices: separate launches only if a level has more rows than there are warps",
        "slices: terms are copied ahead only if levels have more than 16 rows for each multiprocessor",
        "slices: above 1,000,000 entries one lane a row, with 16 warps, only where nothing is rewritten, one right-hand side is solved for, \
         levels have more than 16 rows for each multiprocessor and no row has more than 32 entries besides the diagonal",
    ];
    let rules = rules.map(str::to_owned).to_vec();
    let full = admitted(&Fixed::default());
    let parts = scored.iter().map(|(candidate, _, parts)| (candidate.clone(), *parts)).collect();
    let scored = scored.into_iter().map(|(candidate, us, _)| (candidate, us)).collect();
    Share { family: FAMILY, scored, full, rules, parts, ..Share::default() }
}

/// Schemes of the whole product with the fixed parameter values, drawn at random from those that can run, each with the rule
/// that would have removed it. `Share::full` is how many can run.
pub fn whole(system: &System, estimate: &Estimate, fixed: &Fixed, draw: &Draw) -> Share {
    let listed: HashSet<Candidate> =
        share(system, estimate).scored.into_iter().map(|(candidate, _)| candidate).collect();
    let all = every();
    let asked = |scheme: &Scheme| fixed.is_empty() || fixed.admits(&scheme.candidate());
    let runs = |scheme: &&Scheme| legal(scheme, system).is_ok() && asked(scheme);
    let running: Vec<&Scheme> = all.iter().filter(runs).collect();
    let full = running.len() as u64;
    let mut scored = Vec::new();
    let (mut despite, mut parts) = (HashMap::new(), HashMap::new());
    for number in draw.numbers(FAMILY, full).take(draw.most) {
        let scheme = running[number as usize];
        let candidate = scheme.candidate();
        if !listed.contains(&candidate) {
            despite.insert(candidate.id(), Removal::by(funnel::REDUCTION));
        }
        let made_of = estimate.parts(scheme);
        scored.push((candidate.clone(), Estimate::us(&made_of)));
        parts.insert(candidate, made_of);
    }
    Share { family: FAMILY, scored, full, despite, parts, ..Share::default() }
}

/// The reduced list, before legality.
fn listed(system: &System, rewrites: &[Rewrite]) -> Vec<Scheme> {
    let levels = system.levels.widths.len().max(1);
    let width = system.triangular.rows() as f64 / levels as f64;
    let widest = system.levels.widths.iter().max().copied().unwrap_or(0);
    let large = is_large(system);
    let wide = width > f64::from(system.device.multiprocessors * AHEAD_ROWS);
    let short = || {
        let ends = &system.triangular.indptr;
        ends.windows(2).all(|ends| ends[1] - ends[0] <= SHORT_ROW)
    };
    let a_lane_a_row = large && wide && system.problem.rhs == 1 && short();
    let mut list = Vec::new();
    for &rewrite in rewrites {
        let plain = Scheme::plain(rewrite);
        let lanes: &[u32] = match (large, mean_terms(system) > LONG_ROWS) {
            (false, _) => &[0, 1, 4, 32],
            (true, _) if rewrite.window_ns != LARGE_WINDOW_NS[1] => &[0],
            (true, false) => &[0, 4],
            (true, true) => &[0, 32],
        };
        for &lanes in lanes {
            // One warp per multiprocessor, or all that fit, only for the plain shape.
            let ends = |warps: &u32| lanes == 0 || (2..=16).contains(warps);
            for warps in WARPS.into_iter().filter(ends) {
                // This many warps leave registers for four loads in flight.
                let unroll = if warps > 16 { 4 } else { plain.unroll };
                list.push(Scheme { lanes, warps, unroll, ..plain });
            }
            list.push(Scheme { lanes, unroll: 4, ..plain });
            if lanes == 0 || lanes == 32 {
                list.push(Scheme { lanes, unroll: 4, warps: 4, ..plain });
            }
            list.push(Scheme { lanes, take: Take::Spread, ..plain });
        }
        for warps in [2, 8] {
            list.push(Scheme { warps, sync: Sync::Packed, unroll: 4, ..plain });
            list.push(Scheme { warps, take: Take::Ticket, ..plain });
        }
        list.push(Scheme { pause: 1, ..plain });
        list.push(Scheme { pause: 1, warps: 2, unroll: 4, ..plain });
        list.push(Scheme { warps: 16, take: Take::Spread, ..plain });
        if widest > system.device.multiprocessors * 8 {
            for (warps, alpha) in [(8, 8), (8, 2), (16, 2)] {
                list.push(Scheme { warps, alpha, ..plain });
            }
        }
        if a_lane_a_row && rewrite.window_ns == 0 {
            list.push(Scheme { lanes: 1, warps: 16, ..plain });
        }
        if wide && !rewrite.refine {
            let shapes = [(16, 4), (16, 8), (32, 4)];
            let of = |(warps, unroll)| Scheme { warps, unroll, ahead: true, ..plain };
            list.extend(shapes.map(of));
        }
        if width < NARROW {
            let take = Take::Spread;
            for blocks in SHARED_BLOCKS {
                let scope = Scope::Shared { blocks };
                list.extend([4, 16].map(|warps| Scheme { scope, warps, take, ..plain }));
                list.push(Scheme { scope, warps: 32, unroll: 4, take, ..plain });
                list.push(Scheme { scope, warps: 16, take, lanes: 32, ..plain });
            }
        }
    }
    list
}

/// How large the terms become that add up to the right-hand side: the largest |t_ij x_j| of a row summed, for b random in
/// [-1, 1). A function of the system alone, and the same however its rows are scaled together with b. 0 where nothing may be or needs
/// to be rewritten.
pub(super) fn amplification(system: &System) -> f64 {
    if system.problem.stability == Stability::RowWise || system.levels.widths.len() <= 1 {
        return 0.0;
    }
    let triangular = &system.triangular;
    let b = operand::random_double(triangular.rows(), 1);
    let x = oracle::sptrsv(triangular, &b, 1);
    let row = |s: usize| -> f64 {
        let (columns, values) = triangular.row(s);
        let term = |(&col, &value): (&u32, &f64)| value * x[triangular.original(col as usize)];
        columns.iter().zip(values).map(|entry| term(entry).abs()).sum()
    };
    // NaN and infinity amplify without bound.
    let finite = |sum: f64| if sum.is_finite() { sum } else { f64::INFINITY };
    (0..triangular.rows()).map(|s| finite(row(s))).fold(0.0, f64::max)
}

/// Whether rewriting and packing take long: rows count like entries, since each has a term of its own.
fn is_large(system: &System) -> bool {
    system.triangular.nnz() + system.triangular.rows() > LARGE
}

/// Entries per row, including the diagonal.
fn mean_terms(system: &System) -> f64 {
    1.0 + system.triangular.nnz() as f64 / system.triangular.rows().max(1) as f64
}

/// Rewritings worth trying; a system of one level has nothing to rewrite.
pub(super) fn rewrites(system: &System, amplification: f64) -> Vec<Rewrite> {
    let mut all = vec![Rewrite::of(0, TERMS[0])];
    let row_wise = system.problem.stability == Stability::RowWise;
    if row_wise || system.levels.widths.len() <= 1 {
        return all;
    }
    let long = mean_terms(system) > LONG_ROWS;
    let (windows, terms): (&[u32], &[u32]) = match (is_large(system), long) {
        (false, _) => (&WINDOW_NS[1..], &TERMS),
        (true, false) => (&LARGE_WINDOW_NS, &TERMS[1..2]),
        (true, true) => (&LARGE_WINDOW_NS, &TERMS[2..]),
    };
    let refine = amplification > AMPLIFIED;
    if amplification.is_infinite() {
        return all;
    }
    let of = |&window_ns| terms.iter().map(move |&terms| Rewrite { window_ns, terms, refine });
    let rewritten: Vec<Rewrite> = windows.iter().flat_map(of).collect();
    // Which of them a refined solution makes good for differs from one to the next. Of a large system each takes too long to be tried
    // here: there are few, and those that are lowered are tried there.
    let suffices = |how: &Rewrite| refine::tried(system, &rewrite(system, *how)).is_ok();
    match refine && !is_large(system) {
        true => all.par_extend(rewritten.into_par_iter().filter(suffices)),
        false => all.extend(rewritten),
    }
    all
}

#[cfg(test)]
mod tests;
