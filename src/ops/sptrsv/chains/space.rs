//! The space of the `chains` family: every scheme counted, those worth trying listed by explicit rules, each with a time.

use super::chain::{Chains, Ground};
use super::scheme::{FAMILY, Scheme, Shape};
use crate::domain::problem::Stability;
use crate::domain::{Candidate, Fixed, Removal, funnel};
use crate::ops::sptrsv::slices::Estimate;
use crate::ops::sptrsv::{Parts, Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

const ROWS: [u32; 4] = [4, 8, 16, 32];
const TERMS: [u32; 4] = [512, 1024, 2048, 4096];
const UNROLL: [u32; 3] = [2, 4, 8];
const WARPS: [u32; 4] = [4, 8, 16, 32];
/// Whether the rows of a chain are substituted in each other.
const SUBSTITUTE: [u32; 2] = [0, 1];
/// Whether panels of substituted chains are copied to shared memory a task ahead.
const STAGED: [u32; 2] = [0, 1];

/// Warps times columns that a lane of each has under way: more would not fit a multiprocessor's registers.
const MOST_COLUMNS: u32 = 64;

/// Warps times rows of a chain whose panels are staged: a lane has the terms of a group of columns in registers, one for each row.
const MOST_ROWS: u32 = 256;

/// Most warps if panels are staged: with 64 registers a lane, which 32 warps have, they spill.
const MOST_STAGED_WARPS: u32 = 16;

/// Terms from which a system is large: packing it takes so long that it is done for a few shapes only.
const LARGE: usize = 1_000_000;

/// Chains pay where they leave at most this share of the waits of a row after row.
const WAITS_LEFT: f64 = 0.75;

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    vec![
        Domain::ints("rows", &ROWS),
        Domain::ints("terms", &TERMS),
        Domain::ints("unroll", &UNROLL),
        Domain::ints("warps", &WARPS),
        Domain::ints("substitute", &SUBSTITUTE),
        Domain::ints("staged", &STAGED),
    ]
}

/// The whole product, one by one.
fn every() -> Vec<Scheme> {
    let mut all = Vec::new();
    for rows in ROWS {
        for terms in TERMS {
            for unroll in UNROLL {
                for warps in WARPS {
                    // Only of substituted chains are panels staged.
                    for (substitute, staged) in [(false, false), (true, false), (true, true)] {
                        let shape = Shape { rows, terms, substitute, staged };
                        all.push(Scheme { shape, unroll, warps });
                    }
                }
            }
        }
    }
    all
}

/// Schemes of the whole product, legal or not, with the fixed parameter values.
pub fn admitted(fixed: &Fixed) -> u64 {
    every().iter().filter(|scheme| fixed.admits(&scheme.candidate())).count() as u64
}

/// Why a scheme cannot run for this system, whatever its arrays.
pub fn legal(scheme: &Scheme, system: &System) -> Result<(), String> {
    if let Some(why) = system.lacks_one_side() {
        return Err(why.to_owned());
    }
    if scheme.shape.substitute && system.problem.stability == Stability::RowWise {
        return Err("rows are not substituted where each row has to be stable".to_owned());
    }
    if system.device.compute_major().unwrap_or(0) < 8 {
        return Err("the device has no asynchronous copies to shared memory".to_owned());
    }
    if scheme.warps * scheme.unroll > MOST_COLUMNS {
        return Err(format!(
            "{} warps leave too few registers for {} columns a lane",
            scheme.warps, scheme.unroll
        ));
    }
    if scheme.shape.staged && scheme.warps > MOST_STAGED_WARPS {
        return Err(format!("{} warps leave too few registers for staged panels", scheme.warps));
    }
    if scheme.shape.staged && scheme.warps * scheme.shape.rows > MOST_ROWS {
        return Err(format!(
            "{} warps leave too few registers for {} rows of a chain",
            scheme.warps, scheme.shape.rows
        ));
    }
    let bytes = scheme.block_bytes(system.problem.dtype);
    let most = system.device.shared_bytes_per_block;
    if bytes > most {
        return Err(format!(
            "{} warps take {bytes} bytes of shared memory; at most {most} are available",
            scheme.warps
        ));
    }
    Ok(())
}

/// The family's part of the space.
pub fn share(system: &System, estimate: &Estimate) -> Share {
    let full = every().len() as u64;
    if let Some(why) = system.lacks_one_side() {
        let rules = vec![format!("{FAMILY}: {why}")];
        return Share { family: FAMILY, full, rules, ..Share::default() };
    }
    let ground = Ground::of(system);
    let mut surveys = Surveys::from([(LONGEST, survey(&ground, LONGEST))]);
    let list = listed(system, &surveys, estimate);
    let of_list: HashSet<(u32, bool)> =
        list.iter().map(|scheme| (scheme.shape.rows, scheme.shape.substitute)).collect();
    surveys.extend(surveyed(ground, system, |how| how != LONGEST && of_list.contains(&how)));
    let (mut scored, mut parts) = predicted(system, &surveys, &list);
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    let rules = vec![
        "chains: only if they leave at most three quarters of the waits of row after row; two columns a lane only with 32 warps; 512 \
         values only with fewer than 32 rows; above 1,000,000 terms chains of 16 rows, or of 8 where none are substituted, and panels \
         of 1024 values"
            .to_owned(),
        "chains: rows are substituted in each other where no row's terms reach 1e6 times the right-hand side, with up to 16 or 32 rows \
         and panels of 1024 or 4096 values, or of 32 columns to 2048 values if they are staged in shared memory; above 1,000,000 terms 16 rows and 1024 \
         values, and staged also 16 with 512 and 32 with 2048"
            .to_owned(),
    ];
    // For a request that asks for the family where the rules leave nothing.
    let spared = match scored.is_empty() {
        true => {
            let (substitute, staged) = (false, false);
            let shape = Shape { rows: 32, terms: 1024, substitute, staged };
            let one = Scheme { shape, unroll: 4, warps: 16 };
            legal(&one, system)
                .is_ok()
                .then(|| {
                    let (mut scored, of_it) = predicted(system, &surveys, &[one]);
                    parts.extend(of_it);
                    scored.pop()
                })
                .flatten()
        }
        false => None,
    };
    Share { family: FAMILY, scored, full, rules, spared, parts, ..Share::default() }
}

/// Schemes of the whole product with the fixed parameter values, drawn at random from those that can run, each with the rule that would
/// have removed it. `Share::full` is how many can run.
pub fn whole(system: &System, estimate: &Estimate, fixed: &Fixed, draw: &Draw) -> Share {
    let surveys = match system.lacks_one_side() {
        None => surveyed(Ground::of(system), system, |_| true),
        Some(_) => Surveys::new(),
    };
    let listed: HashSet<Scheme> = match system.lacks_one_side() {
        Some(_) => HashSet::new(),
        None => listed(system, &surveys, estimate).into_iter().collect(),
    };
    let asked = |scheme: &Scheme| fixed.is_empty() || fixed.admits(&scheme.candidate());
    let runs = |scheme: &Scheme| legal(scheme, system).is_ok() && asked(scheme);
    let running: Vec<Scheme> = every().into_iter().filter(runs).collect();
    let full = running.len() as u64;
    let drawn = draw.numbers(FAMILY, full).take(draw.most);
    let drawn: Vec<Scheme> = drawn.map(|number| running[number as usize]).collect();
    let mut despite = HashMap::new();
    for scheme in drawn.iter().filter(|scheme| !listed.contains(scheme)) {
        despite.insert(scheme.candidate().id(), Removal::by(funnel::REDUCTION));
    }
    let (scored, parts) = predicted(system, &surveys, &drawn);
    Share { family: FAMILY, scored, full, despite, parts, ..Share::default() }
}

/// The reduced list, of schemes that can run.
fn listed(system: &System, surveys: &Surveys, estimate: &Estimate) -> Vec<Scheme> {
    if !pays(system, surveys) {
        return Vec::new();
    }
    let large = system.triangular.nnz() + system.triangular.rows() > LARGE;
    let tame = !estimate.amplifies();
    let shape_worth = |shape: &Shape| match (shape.substitute, shape.staged, large) {
        // Of 32 rows a chain keeps as much as with 1024 values.
        (false, _, false) => shape.terms != 2048 && (shape.rows, shape.terms) != (32, 512),
        (false, _, true) => (shape.rows == 16 || (shape.rows == 8 && !tame)) && shape.terms == 1024,
        // Rows that do not follow each other may be many.
        (true, false, false) => tame && shape.rows >= 16 && [1024, 4096].contains(&shape.terms),
        (true, false, true) => tame && (shape.rows, shape.terms) == (16, 1024),
        // The columns of the chain before stay with a chain; two panels a warp fit shared memory.
        (true, true, false) => {
            let a_chain = 32 * shape.rows;
            tame && shape.rows >= 16 && (a_chain..=2048).contains(&shape.terms)
        }
        (true, true, true) => {
            tame && [(16, 512), (16, 1024), (32, 2048)].contains(&(shape.rows, shape.terms))
        }
    };
    let scheme_worth = |scheme: &Scheme| {
        // Fewer columns under way were slower by a third and more wherever registers allow for four.
        let enough = scheme.unroll > 2 || scheme.warps > MOST_COLUMNS / 4;
        enough && shape_worth(&scheme.shape) && legal(scheme, system).is_ok()
    };
    every().into_iter().filter(scheme_worth).collect()
}

/// Whether the longest chains leave few enough waits.
fn pays(system: &System, surveys: &Surveys) -> bool {
    let levels = system.levels.widths.len();
    let waits = surveys.get(&LONGEST).map_or(f64::INFINITY, |survey| survey.waits);
    levels > 1 && waits <= WAITS_LEFT * levels as f64
}

/// What chains of at most some number of rows make of a system.
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    /// Most waits for other warps, one after the other.
    waits: f64,
    chains: f64,
    /// Values of panels, and their columns.
    values: f64,
    columns: f64,
}

/// The most rows of a chain, not substituted in each other.
const LONGEST: (u32, bool) = (ROWS[ROWS.len() - 1], false);

/// By the most rows of a chain, and whether they are substituted in each other.
type Surveys = HashMap<(u32, bool), Survey>;

fn surveyed(ground: Ground, system: &System, which: impl Fn((u32, bool)) -> bool) -> Surveys {
    let row_wise = system.problem.stability == Stability::RowWise;
    let substitute: &[bool] = if row_wise { &[false] } else { &[false, true] };
    let all: Vec<(u32, bool)> =
        substitute.iter().flat_map(|&substitute| ROWS.map(|rows| (rows, substitute))).collect();
    let all: Vec<(u32, bool)> = all.into_iter().filter(|&how| which(how)).collect();
    let ground = if all.iter().any(|how| how.1) { ground.with_magnitudes() } else { ground };
    all.into_par_iter().map(|how| (how, survey(&ground, how))).collect()
}

fn survey(ground: &Ground, (rows, substitute): (u32, bool)) -> Survey {
    let chains = Chains::over(ground, rows as usize, substitute);
    // Waits before each row is known, its chain's own among them.
    let mut known = vec![0u32; chains.of.len()];
    let (mut waits, mut values) = (0, 0.0);
    for chain in 0..chains.len() {
        let needs = chains.needs_of(chain);
        let before = needs.iter().map(|&it| known[it as usize]).max().unwrap_or(0);
        chains.rows_of(chain).iter().for_each(|&row| known[row as usize] = before + 1);
        waits = waits.max(before);
        values += chains.panel(chain) as f64;
    }
    Survey {
        waits: f64::from(waits),
        chains: chains.len() as f64,
        values,
        columns: chains.needs.len() as f64,
    }
}

/// The schemes with predicted microseconds, and what these are made of.
fn predicted(
    system: &System,
    surveys: &Surveys,
    schemes: &[Scheme],
) -> (Vec<(Candidate, f64)>, HashMap<Candidate, Parts>) {
    let of = |scheme: &Scheme| {
        let how = (scheme.shape.rows, scheme.shape.substitute);
        let survey = surveys.get(&how).copied().unwrap_or_default();
        let (candidate, parts) = (scheme.candidate(), parts(scheme, &survey, system));
        ((candidate.clone(), us(&parts)), (candidate, parts))
    };
    schemes.iter().map(of).unzip()
}

/// Predicted microseconds of one call: what waits for each other and what keeps the device busy, the longer of the two and a part of the
/// other.
fn us(parts: &Parts) -> f64 {
    let (path, wide) = (parts.waiting_us, parts.bytes_us);
    3.0 + path.max(wide) + 0.3 * path.min(wide)
}

/// What a call is made of: the waits on the longest path with the rows of a chain one after another; tasks in turn or the bytes, whichever
/// takes longer.
fn parts(scheme: &Scheme, survey: &Survey, system: &System) -> Parts {
    let hop = 2.2 * if system.device.hop_ns > 0.0 { system.device.hop_ns } else { 300.0 };
    // A row of a chain is a shuffle and a multiplication after the one before. Substituted rows have the same of each other's part of b,
    // but do not wait for each other's; what is left are the columns of the chain before. Staged tasks cost more each.
    let (row, task) = match (scheme.shape.substitute, scheme.shape.staged) {
        (false, _) => (25.0, 3.0),
        (true, false) => (12.0, 3.0),
        (true, true) => (3.0, 4.5),
    };
    let path = survey.waits * hop + row * system.levels.widths.len() as f64;
    let warps = f64::from(scheme.warps * system.device.multiprocessors.max(1));
    let turns = survey.chains / warps * task * hop;
    let value = system.problem.dtype.bytes() as f64;
    let bytes = survey.values * value
        + survey.columns * (4.0 + value)
        + survey.chains * 32.0
        + system.triangular.rows() as f64 * (4.0 + 5.0 * value);
    let flow = bytes / system.device.copy_gbps.max(100.0);
    let (rows, chains) = (system.triangular.rows().max(1) as f64, survey.chains.max(1.0));
    let waits = survey.waits.max(1.0);
    Parts {
        windows: waits,
        rows_a_window: rows / waits,
        terms: survey.values / rows,
        longest: survey.columns / chains,
        lanes: 32.0,
        steps: rows / chains,
        slices: chains / waits,
        warps,
        rounds: (chains / waits / warps).max(1.0),
        waiting_us: path / 1e3,
        bytes_us: turns.max(flow) / 1e3,
        launches_us: 0.0,
    }
}
