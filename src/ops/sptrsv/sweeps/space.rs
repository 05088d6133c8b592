//! The space of the `sweeps` family: every scheme counted, and of those whose sweeps suffice the ones worth trying, each with a time.

use super::estimate::least_sweeps;
use super::scheme::{Blocking, FAMILY, INNER, LANES, ROWS, SWEEPS, Scheme};
use crate::domain::{Candidate, Fixed, Removal, funnel};
use crate::ops::sptrsv::{Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use std::collections::HashMap;

/// A launch of several, microseconds.
const LAUNCH_US: f64 = 1.6;
/// A further sweep among the rows of a block: two barriers' worth of waiting, and loads from L1.
const INNER_US: f64 = 0.6;
/// What L2 gives per byte that memory does.
const L2_OVER_MEMORY: f64 = 2.0;
/// Bytes that a load of one unknown moves.
const SECTOR: f64 = 32.0;

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    let ints = |name, values: &[u32]| {
        Domain::ints(name, &values.iter().copied().map(i64::from).collect::<Vec<_>>())
    };
    vec![ints("sweeps", &SWEEPS), ints("inner", &INNER), ints("rows", &ROWS), ints("lanes", &LANES)]
}

/// Schemes of the whole product with the fixed parameter values.
pub fn admitted(fixed: &Fixed) -> u64 {
    Scheme::every().iter().filter(|scheme| fixed.admits(&scheme.candidate())).count() as u64
}

/// Why the family has no schemes for the system, if it has none.
pub fn lacking(system: &System) -> Option<&'static str> {
    let problem = &system.problem;
    if !problem.approximate {
        Some("only for problems with `approximate`, since sweeps do not solve exactly")
    } else if problem.rhs != 1 {
        Some("its schemes solve for one right-hand side at a time")
    } else if problem.dtype.is_half() || system.triangular.rows() == 0 {
        Some("only for f32 and f64, and systems with rows")
    } else {
        None
    }
}

fn nothing(rules: Vec<String>, full: u64) -> Share {
    let (scored, despite) = (Vec::new(), HashMap::new());
    Share { family: FAMILY, scored, full, rules, spared: None, despite }
}

/// The family's part of the space.
pub fn share(system: &System, fixed: &Fixed) -> Share {
    let full = Scheme::every().len() as u64;
    if let Some(why) = lacking(system) {
        return nothing(vec![format!("{FAMILY}: {why}")], full);
    }
    let mut scored: Vec<(Candidate, f64)> = listed(system, fixed)
        .into_iter()
        .map(|scheme| (scheme.candidate(), us(&scheme, system)))
        .collect();
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    let rule = match scored.is_empty() {
        true => format!(
            "{FAMILY}: no number of sweeps up to {} satisfied the system's equations nearly enough",
            SWEEPS[SWEEPS.len() - 1]
        ),
        false => format!(
            "{FAMILY}: the least number of sweeps that satisfied the equations nearly enough for a right-hand side at random, and the \
             next; lanes by the mean length of rows"
        ),
    };
    Share { scored, ..nothing(vec![rule], full) }
}

/// Schemes of the whole product with the fixed parameter values, drawn at random, each with the rule that would have removed it.
pub fn whole(system: &System, fixed: &Fixed, draw: &Draw) -> Share {
    if lacking(system).is_some() {
        return nothing(Vec::new(), 0);
    }
    let asked = |scheme: &Scheme| fixed.is_empty() || fixed.admits(&scheme.candidate());
    let running: Vec<Scheme> = Scheme::every().into_iter().filter(asked).collect();
    let full = running.len() as u64;
    let drawn = draw.numbers(FAMILY, full).take(draw.most);
    let drawn: Vec<Scheme> = drawn.map(|number| running[number as usize]).collect();
    let listed = listed(system, fixed);
    let mut share = nothing(Vec::new(), full);
    for scheme in &drawn {
        if !listed.contains(scheme) {
            share.despite.insert(scheme.candidate().id(), Removal::by(funnel::REDUCTION));
        }
        share.scored.push((scheme.candidate(), us(scheme, system)));
    }
    share
}

/// The reduced list. A request that fixes the number of sweeps gets it if it suffices: both triangles of a symmetric preconditioner
/// need the same.
fn listed(system: &System, fixed: &Fixed) -> Vec<Scheme> {
    let named = ["sweeps", "sweeps.sweeps"].iter().any(|&name| fixed.0.contains_key(name));
    let counts = if named { SWEEPS.len() } else { 2 };
    let mut all = Vec::new();
    for (blocking, least) in least(system) {
        let enough = SWEEPS.into_iter().filter(|&sweeps| sweeps >= least).take(counts);
        for sweeps in enough {
            for lanes in lanes(system) {
                let scheme = Scheme { sweeps, blocking, lanes };
                // Blocks that are too large are no schemes.
                all.extend(Scheme::of(&scheme.candidate()));
            }
        }
    }
    all
}

/// The least number of sweeps for each way of cutting the rows in which some number suffices.
fn least(system: &System) -> Vec<(Blocking, u32)> {
    let system = &system.triangular;
    let alone = least_sweeps(system, Blocking { rows: ROWS[0], inner: 1 });
    let mut all = Vec::new();
    for rows in ROWS {
        for inner in INNER {
            let blocking = Blocking { rows, inner };
            // Without inner sweeps, blocks of any size compute the same.
            let least = if inner == 1 { alone } else { least_sweeps(system, blocking) };
            all.extend(least.map(|least| (blocking, least)));
        }
    }
    all
}

/// As many lanes as half of a row's entries, and half as many and twice as many.
fn lanes(system: &System) -> impl Iterator<Item = u32> {
    let mean = system.triangular.nnz() as f64 / system.triangular.rows().max(1) as f64;
    let near = (mean / 2.0).max(1.0);
    LANES.into_iter().filter(move |&lanes| {
        let lanes = f64::from(lanes);
        (near / 2.9..=near * 2.9).contains(&lanes) || (lanes == 32.0 && near > 32.0)
    })
}

/// Predicted microseconds of one call: launches, and what each moves.
fn us(scheme: &Scheme, system: &System) -> f64 {
    let (rows, nnz) = (system.triangular.rows() as f64, system.triangular.nnz() as f64);
    let value = system.problem.dtype.bytes() as f64;
    let device = &system.device;
    let gbps = if device.copy_gbps > 0.0 { device.copy_gbps } else { 1000.0 };
    let streamed = nnz * (4.0 + value) + rows * (4.0 + 4.0 * value);
    // From the second launch on, what fits is in L2.
    let inside = streamed <= device.l2_bytes as f64;
    let from_memory = streamed / (gbps * 1e3) / if inside { L2_OVER_MEMORY } else { 1.0 };
    let through_l2 = (streamed + nnz * SECTOR) / (gbps * 1e3 * L2_OVER_MEMORY);
    let threads = rows * f64::from(scheme.lanes);
    let resident =
        f64::from(device.multiprocessors.max(1) * device.max_threads_per_multiprocessor.max(1024));
    let waves = (threads / resident).max(1.0);
    // A lane's entries come one after the other.
    let chain = 0.25 * (nnz / rows.max(1.0) / f64::from(scheme.lanes)).max(1.0).ln_1p();
    let inner = f64::from(scheme.blocking.inner - 1) * INNER_US * waves;
    f64::from(scheme.sweeps) * (LAUNCH_US + from_memory.max(through_l2) + chain * waves + inner)
}
