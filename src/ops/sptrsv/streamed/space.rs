//! The space of the `streamed` family: every scheme counted, those worth trying listed by an explicit rule, each with a time.

use super::scheme::{ENTRIES, FAMILY, Scheme, WARPS};
use crate::domain::{Candidate, Fixed, Removal, funnel};
use crate::ops::sptrsv::{Parts, Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use std::collections::HashMap;

/// Mean rows per level, for each multiprocessor, from which the family is tried: half of what its warps hold. With narrower levels a hop
/// decides, not the requests, and `slices` or `overlapped` are ahead (benches/NOTES.md).
const WIDE: f64 = 256.0;

/// Shared memory that the device keeps of each block for itself.
const RESERVED_BYTES: u64 = 1024;

/// The schemes that are listed: as many terms of as many warps as were fastest on an H100.
const LISTED: [Scheme; 3] = [
    Scheme { entries: 6, warps: 24 },
    Scheme { entries: 4, warps: 32 },
    Scheme { entries: 8, warps: 16 },
];

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    vec![Domain::ints("entries", &ENTRIES), Domain::ints("warps", &WARPS)]
}

/// Schemes of the whole product, legal or not, with the fixed parameter values.
pub fn admitted(fixed: &Fixed) -> u64 {
    Scheme::every().iter().filter(|scheme| fixed.admits(&scheme.candidate())).count() as u64
}

/// Why a scheme cannot run for this system, whatever its arrays.
pub fn legal(scheme: &Scheme, system: &System) -> Result<(), String> {
    if let Some(why) = system.lacks_one_side() {
        return Err(why.to_owned());
    }
    if system.device.compute_major().unwrap_or(0) < 8 {
        return Err("the device has no asynchronous copies to shared memory".to_owned());
    }
    let a_block = scheme.block_bytes(system.problem.dtype) + RESERVED_BYTES;
    let bytes = a_block * u64::from(scheme.blocks());
    let most = system.device.shared_bytes_per_multiprocessor;
    if bytes > most {
        return Err(format!(
            "{} warps take {bytes} bytes of shared memory; a multiprocessor has {most}",
            scheme.warps
        ));
    }
    Ok(())
}

/// The family's part of the space.
pub fn share(system: &System) -> Share {
    let full = Scheme::every().len() as u64;
    if let Some(why) = system.lacks_one_side() {
        let rules = vec![format!("{FAMILY}: {why}")];
        return Share { family: FAMILY, full, rules, ..Share::default() };
    }
    let runs: Vec<Scheme> =
        LISTED.into_iter().filter(|scheme| legal(scheme, system).is_ok()).collect();
    let (mut scored, parts) = predicted(system, &runs);
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    let rule = format!(
        "{FAMILY}: only if levels have {WIDE} rows for each multiprocessor on average, and there are several"
    );
    // For a request that asks for the family where the rule leaves nothing.
    let spared = match is_wide(system) {
        true => None,
        false => std::mem::take(&mut scored).into_iter().next(),
    };
    let rules = vec![rule];
    Share { family: FAMILY, scored, full, rules, spared, parts, ..Share::default() }
}

/// Schemes of the whole product with the fixed parameter values, drawn at random from those that can run, each with the rule that would
/// have removed it. `Share::full` is how many can run.
pub fn whole(system: &System, fixed: &Fixed, draw: &Draw) -> Share {
    let asked = |scheme: &Scheme| fixed.is_empty() || fixed.admits(&scheme.candidate());
    let runs = |scheme: &Scheme| legal(scheme, system).is_ok() && asked(scheme);
    let running: Vec<Scheme> = Scheme::every().into_iter().filter(runs).collect();
    let full = running.len() as u64;
    let drawn = draw.numbers(FAMILY, full).take(draw.most);
    let drawn: Vec<Scheme> = drawn.map(|number| running[number as usize]).collect();
    let listed = |scheme: &&Scheme| is_wide(system) && LISTED.contains(scheme);
    let mut despite = HashMap::new();
    for scheme in drawn.iter().filter(|scheme| !listed(scheme)) {
        despite.insert(scheme.candidate().id(), Removal::by(funnel::REDUCTION));
    }
    let (scored, parts) = predicted(system, &drawn);
    Share { family: FAMILY, scored, full, despite, parts, ..Share::default() }
}

fn width(system: &System) -> f64 {
    system.triangular.rows() as f64 / system.levels.widths.len().max(1) as f64
}

fn is_wide(system: &System) -> bool {
    let multiprocessors = f64::from(system.device.multiprocessors.max(1));
    system.levels.widths.len() > 1 && width(system) >= WIDE * multiprocessors
}

/// The schemes with predicted microseconds, and what these are made of.
fn predicted(
    system: &System,
    schemes: &[Scheme],
) -> (Vec<(Candidate, f64)>, HashMap<Candidate, Parts>) {
    let of = |scheme: &Scheme| {
        let (candidate, parts) = (scheme.candidate(), parts(scheme, system));
        ((candidate.clone(), 3.0 + parts.waiting_us + parts.bytes_us), (candidate, parts))
    };
    schemes.iter().map(of).unzip()
}

/// What a call is made of: a hop and a run's loads for each level, more where it has more runs than there are warps, and the bytes, of
/// which an unknown that is gathered takes a sector. The hop's factor is that of the families beside it.
fn parts(scheme: &Scheme, system: &System) -> Parts {
    let hop = 1.6 * if system.device.hop_ns > 0.0 { system.device.hop_ns } else { 300.0 };
    let (rows, levels) =
        (system.triangular.rows().max(1) as f64, system.levels.widths.len().max(1) as f64);
    let terms = 1.0 + system.triangular.nnz() as f64 / rows;
    let rows_a_run = (f64::from(scheme.run_terms()) / terms).clamp(1.0, 32.0);
    let runs = width(system) / rows_a_run;
    let warps = f64::from(scheme.warps * system.device.multiprocessors.max(1));
    let rounds = (runs / warps).max(1.0);
    let crowd = 1.0 + 0.01 * f64::from(scheme.warps);
    let value = system.problem.dtype.bytes() as f64;
    let rate = system.device.copy_gbps.max(100.0);
    Parts {
        windows: levels,
        rows_a_window: width(system),
        terms,
        longest: f64::from(scheme.run_terms()),
        lanes: f64::from(scheme.entries),
        steps: f64::from(scheme.entries),
        slices: runs,
        warps,
        rounds,
        waiting_us: levels * (hop + rounds * 450.0) * crowd / 1e3,
        bytes_us: rows * (terms * (4.0 + 1.4 * value) + 4.0 * value + 6.0) / rate / 1e3,
        launches_us: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Device, DeviceKind, Dtype, Sptrsv};
    use crate::sparse::generate::Spec;
    use std::collections::HashSet;

    fn system(spec: &str, rhs: u32) -> System {
        let problem = Sptrsv { rhs, dtype: Dtype::F64, ..Sptrsv::PLAIN };
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let device = Device {
            kind: DeviceKind::Cuda,
            compute_capability: "9.0".into(),
            multiprocessors: 4,
            shared_bytes_per_block: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            copy_gbps: 3000.0,
            hop_ns: 263.0,
            ..Device::NONE
        };
        System::of(&matrix, &problem, &device).unwrap()
    }

    #[test]
    fn it_is_listed_where_levels_are_wide_and_can_run() {
        let whole: HashSet<Scheme> = Scheme::every().into_iter().collect();
        assert_eq!(whole.len() as u64, admitted(&Fixed::default()));
        // 1,200 rows a level on 4 multiprocessors; 900; one level; several sides.
        let wide = share(&system("lower_levels:n=6000,levels=5,per_row=9,seed=1", 1));
        assert_eq!(wide.scored.len(), LISTED.len());
        for (candidate, us) in &wide.scored {
            let scheme = Scheme::of(candidate).unwrap();
            assert!(us.is_finite() && *us > 0.0, "{candidate}: {us} us");
            assert_eq!(&scheme.candidate(), candidate);
            assert!(whole.contains(&scheme), "{candidate}");
        }
        for spec in ["lower_levels:n=4500,levels=5,per_row=9,seed=1", "banded:n=5000,half=0"] {
            let narrow = share(&system(spec, 1));
            assert!(narrow.scored.is_empty() && narrow.spared.is_some(), "{spec}");
        }
        let several = share(&system("lower_levels:n=6000,levels=5,per_row=9,seed=1", 2));
        assert!(several.scored.is_empty() && several.spared.is_none());
        assert!(several.rules[0].contains("one right-hand side at a time"), "{:?}", several.rules);
    }

    #[test]
    fn what_is_too_large_or_no_scheme_is_refused() {
        let mut system = system("lower_levels:n=600,levels=5,per_row=9,seed=1", 1);
        let large = Scheme { entries: 8, warps: 32 };
        assert_eq!(legal(&large, &system), Ok(()));
        system.device.shared_bytes_per_multiprocessor = 164 << 10;
        assert!(legal(&large, &system).unwrap_err().contains("a multiprocessor has"));
        system.device.compute_capability = "7.0".into();
        assert!(legal(&LISTED[0], &system).unwrap_err().contains("asynchronous"));
        assert_eq!(Scheme::of(&large.candidate().with("warps", 12)), None);
        assert_eq!(Scheme::of(&large.candidate().with("entries", 5)), None);
    }
}
