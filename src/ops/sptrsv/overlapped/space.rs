//! The space of the `overlapped` family: every scheme counted, those worth trying listed by explicit rules, each with a time.

use super::group::{Window, groups};
use super::pack::windows;
use super::scheme::{FAMILY, Scheme, Shape};
use crate::domain::{Candidate, Fixed, Removal, funnel};
use crate::ops::sptrsv::slices::equations::ByLevel;
use crate::ops::sptrsv::{Parts, Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

const LEVELS: [u32; 5] = [1, 2, 4, 8, 16];
const LANES: [u32; 4] = [1, 2, 4, 8];
const UNROLL: [u32; 3] = [2, 4, 8];
const AWAITED: [u32; 2] = [2, 4];
const WARPS: [u32; 5] = [1, 2, 4, 8, 16];

/// Mean rows per level from which a call takes as long as its bytes, and waiting is a small part of it.
const WIDE: f64 = 8192.0;

/// Terms from which a system is large: grouping and packing it takes so long that it is done for two shapes only, and not at all where
/// rows are so long that most are summed in parts.
const LARGE: usize = 1_000_000;
const LONG_ROWS: f64 = 32.0;

/// Terms that most rows of a mesh or a grid need at most: of those, groups of many levels await little.
const SHORT_ROWS: f64 = 4.0;

/// Rows that a survey groups for one shape, in this many windows at most.
const SURVEYED_ROWS: usize = 8_000;
const SURVEYED_WINDOWS: usize = 6;

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    vec![
        Domain::ints("levels", &LEVELS),
        Domain::ints("lanes", &LANES),
        Domain::ints("unroll", &UNROLL),
        Domain::ints("awaited", &AWAITED),
        Domain::ints("warps", &WARPS),
    ]
}

/// The whole product, one by one.
fn every() -> Vec<Scheme> {
    let mut all = Vec::new();
    for levels in LEVELS {
        for lanes in LANES {
            for unroll in UNROLL {
                for awaited in AWAITED {
                    let shape = Shape { levels, lanes, unroll, awaited };
                    all.extend(WARPS.map(|warps| Scheme { shape, warps }));
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
    if system.device.compute_major().unwrap_or(0) < 8 {
        return Err("the device has no asynchronous copies to shared memory".to_owned());
    }
    let bytes = u64::from(scheme.warps) * scheme.shape.warp_bytes(system.problem.dtype);
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
pub fn share(system: &System) -> Share {
    let full = every().len() as u64;
    if let Some(why) = system.lacks_one_side() {
        let rules = vec![format!("{FAMILY}: {why}")];
        return Share { family: FAMILY, full, rules, ..Share::default() };
    }
    let list = listed(system);
    let (mut scored, mut parts) = predicted(system, &list);
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    let rules = [
        "overlapped: only if levels have fewer than 8192 rows on average, and there are several",
        "overlapped: windows of several levels; for each number of lanes the terms that most rows need; no more warps than a \
         window has groups for; above 1,000,000 terms a lane a row and two shapes, and none where rows have more than 32 terms",
    ];
    let rules = rules.map(str::to_owned).to_vec();
    // For a request that asks for the family where the rules leave nothing.
    let spared = match scored.is_empty() {
        true => {
            let plain = Shape { levels: 2, lanes: 4, unroll: 4, awaited: 2 };
            let one = Scheme { shape: plain, warps: 4 };
            legal(&one, system)
                .is_ok()
                .then(|| {
                    let (mut scored, of_it) = predicted(system, &[one]);
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
pub fn whole(system: &System, fixed: &Fixed, draw: &Draw) -> Share {
    let listed: HashSet<Scheme> = match system.lacks_one_side() {
        Some(_) => HashSet::new(),
        None => listed(system).into_iter().collect(),
    };
    let all = every();
    let asked = |scheme: &Scheme| fixed.is_empty() || fixed.admits(&scheme.candidate());
    let runs = |scheme: &&Scheme| legal(scheme, system).is_ok() && asked(scheme);
    let running: Vec<Scheme> = all.iter().filter(runs).copied().collect();
    let full = running.len() as u64;
    let drawn = draw.numbers(FAMILY, full).take(draw.most);
    let drawn: Vec<Scheme> = drawn.map(|number| running[number as usize]).collect();
    let mut despite = HashMap::new();
    for scheme in drawn.iter().filter(|scheme| !listed.contains(scheme)) {
        despite.insert(scheme.candidate().id(), Removal::by(funnel::REDUCTION));
    }
    let (scored, parts) = predicted(system, &drawn);
    Share { family: FAMILY, scored, full, despite, parts, ..Share::default() }
}

/// The reduced list, of schemes that can run.
fn listed(system: &System) -> Vec<Scheme> {
    let (rows, levels) = (system.triangular.rows(), system.levels.widths.len());
    let width = rows as f64 / levels.max(1) as f64;
    if levels < 2 || width >= WIDE {
        return Vec::new();
    }
    let terms = system.triangular.nnz() + rows;
    let mean = system.triangular.nnz() as f64 / rows.max(1) as f64;
    let large = terms > LARGE;
    if large && mean > LONG_ROWS {
        return Vec::new();
    }
    let lengths = system.triangular.indptr.windows(2).map(|ends| ends[1] - ends[0]);
    let longest = lengths.max().unwrap_or(0) as f64;
    // Rows beyond twice the mean are few, and are summed in parts.
    let wanted = (2.0 * mean).min(longest).max(1.0);
    let mut list = Vec::new();
    for shape in shapes(wanted, large) {
        // Of a window's groups, each multiprocessor should have more than one warp waiting ahead.
        let groups = width * f64::from(shape.lanes) / 32.0;
        let most = 8.0 * groups / f64::from(system.device.multiprocessors.max(1));
        let enough = |warps: &u32| f64::from(*warps) <= most.max(4.0);
        let schemes = WARPS.into_iter().filter(enough).map(|warps| Scheme { shape, warps });
        list.extend(schemes.filter(|scheme| legal(scheme, system).is_ok()));
    }
    list
}

/// The shapes worth trying where rows want this many terms.
fn shapes(wanted: f64, large: bool) -> Vec<Shape> {
    let mut list = Vec::new();
    for lanes in LANES {
        // Lanes without a term cost a step of the sum over lanes, and rows of a pass.
        if lanes > 1 && f64::from(lanes) > wanted {
            continue;
        }
        let unroll = UNROLL.into_iter().find(|unroll| f64::from(lanes * unroll) >= wanted);
        let unroll = unroll.unwrap_or(UNROLL[2]);
        for levels in LEVELS.into_iter().filter(|&levels| levels > 1) {
            // Passes of few rows do not await many unknowns.
            let awaited = AWAITED.into_iter().filter(|&awaited| awaited == 2 || lanes <= 2);
            list.extend(awaited.map(|awaited| Shape { levels, lanes, unroll, awaited }));
        }
    }
    if large {
        let worth = |levels: u32, awaited: u32| match (levels, awaited) {
            (4, 4) => true,
            (16, 2) => wanted <= SHORT_ROWS,
            (8, 4) => wanted > SHORT_ROWS,
            _ => false,
        };
        list.retain(|shape| shape.lanes == 1 && worth(shape.levels, shape.awaited));
    }
    list
}

/// What a shape makes of a system, as far as some of its windows show it.
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    /// Windows of the whole system, and passes of a window's groups.
    windows: f64,
    levels: f64,
    groups_a_window: f64,
    /// Passes of all groups.
    passes: f64,
}

/// The schemes with predicted microseconds, and what these are made of; shapes are surveyed once each.
fn predicted(
    system: &System,
    schemes: &[Scheme],
) -> (Vec<(Candidate, f64)>, HashMap<Candidate, Parts>) {
    let by_level = ByLevel::of(&system.levels);
    let mut place = vec![0u32; by_level.order.len()];
    by_level.order.iter().enumerate().for_each(|(at, &row)| place[row as usize] = at as u32);
    let shapes: HashSet<Shape> = schemes.iter().map(|scheme| scheme.shape).collect();
    let surveys: HashMap<Shape, Survey> = shapes
        .into_par_iter()
        .map(|shape| (shape, survey(system, &by_level, &place, &shape)))
        .collect();
    let of = |scheme: &Scheme| {
        let survey = surveys.get(&scheme.shape).copied().unwrap_or_default();
        let (candidate, parts) = (scheme.candidate(), parts(scheme, &survey, system));
        ((candidate.clone(), us(&parts)), (candidate, parts))
    };
    schemes.iter().map(of).unzip()
}

fn survey(system: &System, by_level: &ByLevel, place: &[u32], shape: &Shape) -> Survey {
    let all = windows(by_level, shape);
    let most = SURVEYED_WINDOWS.min(all.len()).max(1);
    let (mut seen, mut rows, mut sum) = (0.0, 0, Survey::default());
    for at in 0..most {
        let (window, ends) = &all[(2 * at + 1) * all.len() / (2 * most)];
        // Rows that are split count as their last part.
        let parents = |row: u32| {
            let columns = system.triangular.row(row as usize).0;
            &columns[columns.len().saturating_sub(shape.row_terms() as usize)..]
        };
        let window = Window { rows: window, ends };
        let (groups, split) = groups(window, shape, &parents, &|row: u32| place[row as usize]);
        seen += 1.0;
        sum.windows += f64::from(split);
        sum.levels += ends.len() as f64;
        sum.groups_a_window += groups.len() as f64;
        sum.passes += groups.iter().map(|group| group.passes.len()).sum::<usize>() as f64;
        rows += window.rows.len();
        if rows > SURVEYED_ROWS {
            break;
        }
    }
    let times = all.len() as f64 / seen;
    let split = sum.windows.max(1.0);
    Survey {
        windows: split * times,
        levels: sum.levels / split,
        groups_a_window: sum.groups_a_window / split,
        passes: sum.passes * times,
    }
}

/// Predicted microseconds of one call.
fn us(parts: &Parts) -> f64 {
    3.0 + parts.waiting_us + parts.bytes_us
}

/// What a call is made of: a hop and the passes of each window, more where it has more groups than there are warps, and the
/// bytes. Constants are those of a prototype on an H100 (benches/NOTES.md): 263 ns for a bare hop, 500 until a group's first pass
/// begins, 75 to 140 a pass.
fn parts(scheme: &Scheme, survey: &Survey, system: &System) -> Parts {
    let (shape, dtype) = (&scheme.shape, system.problem.dtype);
    let hop = 1.9 * if system.device.hop_ns > 0.0 { system.device.hop_ns } else { 300.0 };
    let pass = 60.0 + 8.0 * f64::from(shape.unroll) + 20.0 * f64::from(shape.lanes).log2();
    let warps = f64::from(scheme.warps * system.device.multiprocessors.max(1));
    let more = (survey.groups_a_window / warps - 1.0).max(0.0);
    let crowd = 1.0 + 0.01 * f64::from(scheme.warps);
    let a_window = hop * crowd + survey.levels * pass + more * (hop + survey.levels * pass);
    let a_pass = u64::from(shape.pass_terms()) * (2 + dtype.bytes())
        + u64::from(shape.rows()) * (4 + 4 * dtype.bytes());
    let rate = system.device.copy_gbps.max(100.0);
    let rows = system.triangular.rows().max(1) as f64;
    Parts {
        windows: survey.windows,
        rows_a_window: rows / survey.windows.max(1.0),
        terms: survey.passes * f64::from(shape.pass_terms()) / rows,
        longest: survey.levels * f64::from(shape.lanes * shape.unroll),
        lanes: shape.lanes.into(),
        steps: survey.levels,
        slices: survey.groups_a_window,
        warps,
        rounds: 1.0 + more,
        waiting_us: survey.windows * a_window / 1e3,
        bytes_us: survey.passes * a_pass as f64 / rate / 1e3,
        launches_us: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::{Diagonal, Triangle};
    use crate::domain::{Device, Dtype, Sptrsv};
    use crate::sparse::generate::Spec;

    fn system(spec: &str, rhs: u32) -> System {
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let device = Device {
            kind: crate::domain::DeviceKind::Cuda,
            compute_capability: "9.0".into(),
            multiprocessors: 132,
            shared_bytes_per_block: 232_448,
            copy_gbps: 3000.0,
            hop_ns: 263.0,
            ..Device::NONE
        };
        System::of(&matrix, &problem, &device).unwrap()
    }

    #[test]
    fn what_is_listed_can_run_and_is_part_of_the_whole() {
        let whole: HashSet<Scheme> = every().into_iter().collect();
        assert_eq!(whole.len() as u64, admitted(&Fixed::default()));
        for spec in ["ilu0_poisson2d:nx=100,ny=100,seed=1", "ilu0_random:n=20000,per_row=5,seed=1"]
        {
            let system = system(spec, 1);
            let share = share(&system);
            assert!((20..=200).contains(&share.scored.len()), "{spec}: {}", share.scored.len());
            for (candidate, us) in &share.scored {
                let scheme = Scheme::of(candidate).unwrap();
                assert!(us.is_finite() && *us > 0.0, "{candidate}: {us} us");
                assert_eq!(&scheme.candidate(), candidate);
                assert_eq!(legal(&scheme, &system), Ok(()), "{candidate}");
                assert!(whole.contains(&scheme), "{candidate}");
            }
        }
    }

    #[test]
    fn without_levels_or_with_several_sides_there_is_none() {
        let diagonal = share(&system("banded:n=5000,half=0", 1));
        assert!(diagonal.scored.is_empty() && diagonal.spared.is_some());
        let several = share(&system("ilu0_poisson2d:nx=40,ny=40,seed=1", 2));
        assert!(several.scored.is_empty() && several.spared.is_none());
        assert!(several.rules[0].contains("one right-hand side at a time"), "{:?}", several.rules);
    }

    #[test]
    fn more_levels_a_window_are_predicted_to_be_faster_where_levels_are_narrow() {
        let system = system("ilu0_poisson2d:nx=100,ny=100,seed=1", 1);
        let of =
            |levels| Scheme { shape: Shape { levels, lanes: 1, unroll: 2, awaited: 2 }, warps: 4 };
        let times = predicted(&system, &[of(1), of(4), of(8)]).0;
        assert!(times[0].1 > 1.5 * times[1].1 && times[1].1 > times[2].1, "{times:?}");
    }
}
