//! The space of `slices`: which systems are refined, counts of the whole product, and what cannot run.

use super::*;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Device, Dtype, Param, Sptrsv};
use crate::sparse::Csr;
use crate::sparse::generate::Spec;

fn device() -> Device {
    let facts = serde_json::json!({
        "id": "cuda:0", "kind": "cuda", "name": "imagined", "compute_capability": "9.0",
        "multiprocessors": 132, "warp_size": 32, "max_threads_per_block": 1024,
        "max_threads_per_multiprocessor": 2048, "max_blocks_per_multiprocessor": 32,
        "registers_per_thread": 255, "registers_per_block": 65536,
        "registers_per_multiprocessor": 65536, "shared_bytes_per_block": 232448,
        "shared_bytes_per_multiprocessor": 233472, "l2_bytes": 52428800,
        "memory_bytes": 85899345920u64, "copy_gbps": 3000.0, "hop_ns": 263.0,
        "driver": "", "compiler": "", "vendor": null
    });
    serde_json::from_value(facts).unwrap()
}

fn system(spec: &str, rhs: u32) -> System {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    let problem =
        Sptrsv { rhs, dtype: Dtype::F64, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    let matrix = Spec::parse(spec).unwrap().generate().unwrap();
    System::of(&matrix, &problem, &device()).unwrap()
}

/// x is doubled from row to row: 2^(rows - 1) at the end.
fn doubling(rows: usize) -> System {
    let indptr: Vec<usize> = (0..=rows).map(|row| (2 * row).saturating_sub(1)).collect();
    let indices = (0..rows as u32).flat_map(|row| row.saturating_sub(1)..=row).collect();
    let values = (0..indptr[rows]).map(|e| if e % 2 == 0 { 1.0 } else { -2.0 }).collect();
    let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
    System::of(&matrix, &Sptrsv { dtype: Dtype::F64, ..Sptrsv::PLAIN }, &device()).unwrap()
}

#[test]
fn a_system_that_amplifies_is_refined_and_one_that_overflows_is_not_rewritten() {
    for (rows, refined) in [(60, true), (1100, false)] {
        let system = doubling(rows);
        assert!(amplification(&system) > AMPLIFIED);
        let share = share(&system, &Estimate::of(&system));
        let value = |name| share.scored.iter().map(move |(c, _)| c.int(name).unwrap_or(0));
        assert!(
            value("window_ns").zip(value("refine")).all(|(ns, refine)| (ns > 0) == (refine == 1))
        );
        assert_eq!(value("refine").any(|refine| refine == 1), refined, "{rows} rows");
    }
    let tame = system("ilu0_poisson2d:nx=30,ny=30,seed=1", 1);
    let share = share(&tame, &Estimate::of(&tame));
    assert!(share.scored.iter().all(|(scheme, _)| !scheme.params.contains_key("refine")));
}

#[test]
fn the_full_space_is_counted_right_and_holds_what_is_listed() {
    let every = every();
    let whole: HashSet<Scheme> = every.iter().copied().collect();
    assert_eq!((whole.len(), every.len() as u64), (every.len(), admitted(&Fixed::default())));
    let int = |name: &str, value: i64| (name.to_owned(), Param::Int(value));
    let text = |name: &str, value: &str| (name.to_owned(), Param::Text(value.to_owned()));
    for pairs in [
        vec![int("refine", 1)],
        vec![int("refine", 0), text("take", "ticket")],
        vec![int("terms", 64), text("scope", "global")],
        vec![int("slices.alpha", 0), text("take", "spread")],
        vec![text("sync", "packed"), int("ag.lanes", 3)],
        vec![int("warps", 3)],
        vec![int("ahead", 0), int("refine", 0)],
        vec![int("ahead", 1)],
        vec![int("ahead", 1), text("take", "spread"), int("warps", 32)],
        vec![int("pause", 1)],
        vec![int("alpha", 2)],
    ] {
        let fixed = Fixed(pairs.into_iter().collect());
        let found = every.iter().filter(|scheme| fixed.admits(&scheme.candidate())).count();
        assert_eq!(admitted(&fixed), found as u64, "{fixed}");
    }
    for (spec, rhs, most) in [
        // Narrow levels, unknowns that fit a multiprocessor; wide ones; neither; one level of one row; a level.
        ("ilu0_poisson2d:nx=100,ny=100,seed=1", 1, 900),
        ("ilu0_poisson3d:nx=70,ny=70,nz=70,seed=1", 16, 900),
        ("ilu0_random:n=20000,per_row=5,seed=1", 3, 900),
        ("banded:n=1,half=0", 64, 60),
        ("banded:n=5000,half=0", 1, 60),
    ] {
        let system = system(spec, rhs);
        let share = share(&system, &Estimate::of(&system));
        assert!((20..=most).contains(&share.scored.len()), "{spec}: {}", share.scored.len());
        assert_eq!(share.full, admitted(&Fixed::default()));
        let unique: HashSet<String> = share.scored.iter().map(|(c, _)| c.to_string()).collect();
        assert_eq!(unique.len(), share.scored.len());
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
fn what_cannot_run_is_refused() {
    let system = system("ilu0_poisson2d:nx=100,ny=100,seed=1", 1);
    let all = every();
    let refused = |why: &str| {
        all.iter().filter(|scheme| legal(scheme, &system).is_err_and(|e| e.contains(why))).count()
    };
    assert!(["registers", "epoch", "tickets"].map(refused).iter().all(|&count| count > 0));
    let narrow =
        System { device: Device { compute_capability: "8.0".into(), ..device() }, ..system };
    let cluster = |scheme: &&Scheme| matches!(scheme.scope, Scope::Shared { blocks: 2.. });
    assert!(all.iter().filter(cluster).all(|scheme| legal(scheme, &narrow).is_err()));
}

#[test]
fn one_lane_a_row_is_listed_where_levels_are_wide_and_rows_short() {
    let with_a_lane = |spec: &str, rhs| {
        let system = system(spec, rhs);
        let share = share(&system, &Estimate::of(&system));
        let of = |(candidate, _): &&(Candidate, f64)| candidate.int("lanes") == Some(1);
        let found: Vec<i64> =
            share.scored.iter().filter(of).filter_map(|(c, _)| c.int("window_ns")).collect();
        found
    };
    // 5,000 rows a level; rows of 14 entries, and one of 40 and more.
    assert_eq!(with_a_lane("lower_levels:n=1e5,levels=20,per_row=14,seed=1", 1), [0]);
    assert!(with_a_lane("lower_levels:n=1e5,levels=20,per_row=14,seed=1", 4).is_empty());
    assert!(with_a_lane("lower_levels:n=4e4,levels=8,per_row=40,seed=1", 1).is_empty());
    // Levels of 1,000 rows.
    assert!(with_a_lane("lower_levels:n=1e5,levels=100,per_row=14,seed=1", 1).is_empty());
}
