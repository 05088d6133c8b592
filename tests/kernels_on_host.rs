//! The kernels' own texts, run on the host thread by thread, against the oracle: every index, barrier and shuffle, without a GPU.
//!
//! A C++ compiler takes a text with the words of CUDA defined (`fixture/host_kernel.hpp`), in which instructions of the device are
//! replaced by what they do; one that nobody has written for the host ends the run. What such a run cannot see is whatever comes of
//! threads that run at the same time, of registers, and of the device's own arithmetic: kernels of tensor cores and of half types are
//! left to `cuda_kernels.rs`, which needs a device.

#[path = "fixture/gpu.rs"]
mod gpu;
#[path = "fixture/host_case.rs"]
mod host_case;
#[path = "fixture/host_text.rs"]
mod host_text;

use gpu::gpu;
use host_case::Case;
use host_text::headers;
use rayon::prelude::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::{Arg, Program, Recipe};
use sparsetune::domain::{Candidate, DeviceKind, Dtype, Layout, Problem, Spmm, Sptrsv};
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::walk::{is_near, with_equal, with_near};
use sparsetune::ops::spmm::{SpmmLowerer, family, space};
use sparsetune::ops::sptrsv::chains::scheme::{Scheme, Shape};
use sparsetune::ops::sptrsv::{SptrsvLowerer, System, inverse, streamed};
use sparsetune::ops::{Kernels, Lowerer, Narrowing, of};
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::{Csr, operand, oracle};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Kernels that no host can run: tensor cores, and clusters.
const NOT_HERE: [&str; 4] = ["spmm.tca", "spmm.condensed_tc", "spmm.expanded_tc", "vendor"];

/// Rows of lengths 0, 1, 2, ... and one that is full, over a shape that divides by nothing.
fn ragged() -> Csr {
    let (rows, cols) = (133usize, 401usize);
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        let length = match row {
            13 => cols,
            _ if row % 5 == 0 => 0,
            _ => row % 41,
        };
        for i in 0..length {
            indices.push((i * cols / length) as u32);
            values.push((row as f64 - i as f64) / 7.0);
        }
        indptr.push(indices.len());
    }
    Csr::new(rows, cols, indptr, indices, values).unwrap()
}

/// For each kernel at most some of its candidates, spread over all, with what they are lowered to.
fn chosen(
    problem: &Problem,
    all: Vec<Candidate>,
    most: usize,
    lowerer: &mut dyn Lowerer,
) -> Vec<Recipe> {
    let kernels = Kernels::of(problem, DeviceKind::Cuda);
    let mut by_kernel: BTreeMap<&str, Vec<Candidate>> = BTreeMap::new();
    for candidate in all {
        let Some(family) = kernels.find(&candidate) else { continue };
        by_kernel.entry(family.descriptor().id.0).or_default().push(candidate);
    }
    by_kernel.retain(|id, _| !NOT_HERE.contains(id));
    let mut spread = |of: Vec<Candidate>| {
        let step = of.len().div_ceil(most + 1).max(1);
        // Where a matrix has nothing for one, the next may do.
        let from = |first: usize| of[first..].iter().find_map(|it| lowerer.lower(it).ok());
        (step / 2..of.len()).step_by(step).take(most).filter_map(from).collect::<Vec<_>>()
    };
    by_kernel.into_values().flat_map(&mut spread).collect()
}

/// A recipe of `kept_rows` whose blocks sum all stages of their rows, however few the rows are.
fn in_one_block(mut recipe: Recipe) -> Recipe {
    let Program::Cuda(program) = &mut recipe.program else { panic!("{}", recipe.candidate) };
    let step = &mut program.steps[0];
    // After the windows' size, before what scales C.
    let stages = &mut step.args[11];
    assert!(matches!(stages, Arg::U32(2 | 3)) && step.grid[1] > 1, "{stages:?} {:?}", step.grid);
    (*stages, step.grid[1]) = (Arg::U32(1 << 10), 1);
    recipe
}

/// Values of a form that few candidates of a family have.
type Form = (&'static str, &'static [(&'static str, i64)]);

/// Rows in turn without teams, which alone cut at 64, and with; rows that their whole block takes.
const RARE: [Form; 5] = [
    ("nnz_split", &[("chunk", 64), ("turns", 2)]),
    ("nnz_split", &[("team", 8), ("turns", 4)]),
    ("row_split", &[("heavy", 32), ("lanes", 1), ("r", 8), ("block", 64)]),
    ("row_split", &[("heavy", 32), ("lanes", 4), ("r", 2), ("block", 256)]),
    ("row_split", &[("heavy", 128), ("lanes", 8), ("r", 4), ("block", 64)]),
];

/// The first candidate of each such form.
fn rare(all: &[Candidate]) -> Vec<&Candidate> {
    let is = |it: &Candidate, (family, values): &Form| {
        it.family == *family && values.iter().all(|(name, value)| it.int(name) == Some(*value))
    };
    RARE.iter().filter_map(|form| all.iter().find(|it| is(it, form))).collect()
}

/// A recipe whose columns of B leave L2 before all else where they are staged, as those of large matrices do.
fn passing(mut recipe: Recipe) -> Recipe {
    let Program::Cuda(program) = &mut recipe.program else { panic!("{}", recipe.candidate) };
    for step in program.steps.iter_mut().filter(|step| step.entry == "stage") {
        let passing = step.args.last_mut().unwrap();
        assert!(matches!(passing, Arg::U32(0)), "{passing:?}");
        *passing = Arg::U32(1);
    }
    recipe
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    let matrix = Arc::new(ragged());
    for (n, dtype, layout, accumulate, most) in [
        (33, Dtype::F32, Layout::Row, false, 2),
        (64, Dtype::F64, Layout::Row, true, 1),
        (64, Dtype::F32, Layout::Row, false, 1),
        (33, Dtype::F32, Layout::Col, true, 2),
        (16, Dtype::F64, Layout::Col, false, 1),
        (64, Dtype::F32, Layout::Col, false, 1),
        (3, Dtype::F32, Layout::Row, false, 1),
        (1, Dtype::F32, Layout::Row, false, 1),
    ] {
        let spmm = Spmm { accumulate, ..Spmm::new(n, dtype, layout) };
        let problem = Problem::Spmm(spmm);
        let b = operand::random(matrix.cols() * n as usize, 7);
        let expected = oracle::spmm(&matrix, &b, &spmm);
        let mut lowerer = SpmmLowerer::new(matrix.clone(), spmm, gpu());
        let mut all = space::enumerate(&spmm, DeviceKind::Cuda);
        if n < 8 {
            with_near(&mut all, &matrix, &spmm, false);
            all.retain(is_near);
            with_equal(&mut all);
        }
        let legal = |it: &Candidate| {
            family::kernel(it, &spmm).is_some_and(|kernel| {
                let tile = kernel.tile();
                let bytes = u64::from(tile.shared_bytes);
                is_legal(&tile, &spmm) && bytes <= gpu().shared_bytes_per_block
            })
        };
        all.retain(legal);
        // Panels whose groups are more than their rows, and fewer, and of one group; with steps of two columns, of four, and in turns.
        let panels = [(8, 2, 8), (2, 8, 4), (1, 4, 8), (4, 4, 2)].map(|(ways, m1, unroll)| {
            all.iter().find(|it| {
                let values = [("ways", ways), ("m1", m1), ("unroll", unroll)];
                let has = values.iter().all(|(name, value)| it.int(name) == Some(*value));
                has && it.family == "row_panel" && it.text("order") == Some("natural")
            })
        });
        let has_panels = n >= 16 && !(layout == Layout::Col && (accumulate || n == 33));
        assert_eq!(panels.iter().flatten().count() > 1, has_panels, "{spmm:?}");
        let panels: Vec<Recipe> =
            panels.into_iter().flatten().map(|it| lowerer.lower(it).unwrap()).collect();
        // Small matrices share their columns among many blocks: one block has all stages here, so that rings of both sizes turn.
        let rings = [2, 3].map(|stages| {
            let of_ring = |it: &&Candidate| {
                let values = [("stages", stages), ("r", 4), ("rows", 128), ("turns", 1)];
                it.family == "kept_rows"
                    && values.iter().all(|(name, value)| it.int(name) == Some(*value))
            };
            all.iter().find(of_ring).map(|it| in_one_block(lowerer.lower(it).unwrap()))
        });
        let rare: Vec<Recipe> =
            rare(&all).into_iter().map(|it| passing(lowerer.lower(it).unwrap())).collect();
        assert_eq!(rare.len(), if layout == Layout::Col { 5 } else { 0 }, "{spmm:?}");
        let own = panels.into_iter().chain(rings.into_iter().flatten()).chain(rare);
        for recipe in own.chain(chosen(&problem, all.clone(), most, &mut lowerer)) {
            cases.push(Case {
                label: format!("{} {problem}", recipe.candidate),
                recipe,
                dtype,
                matrix: matrix.clone(),
                b: b.iter().map(|&value| value.into()).collect(),
                expected: expected.value.clone(),
                scale: expected.scale.iter().map(|&scale| scale.into()).collect(),
                adds: accumulate.then_some([1.5, -0.5, 2.0]),
                one_block: false,
            });
        }
    }
    cases
}

fn solves() -> Vec<Case> {
    let mut cases = Vec::new();
    let problem = |dtype, triangle| Sptrsv {
        rhs: 1,
        dtype,
        triangle,
        diagonal: Diagonal::NonUnit,
        ..Sptrsv::PLAIN
    };
    for (spec, sptrsv) in [
        ("cholesky_poisson2d:nx=14,ny=13,seed=1", problem(Dtype::F64, Triangle::Lower)),
        ("ilu0_poisson2d:nx=12,ny=9,seed=1", problem(Dtype::F32, Triangle::Upper)),
        ("cholesky_banded:n=400,half=399", problem(Dtype::F32, Triangle::Lower)),
    ] {
        let matrix = Arc::new(Spec::parse(spec).unwrap().generate().unwrap());
        let problem = Problem::Sptrsv(sptrsv);
        let system = System::of(&matrix, &sptrsv, &gpu()).unwrap();
        let b: Vec<f64> =
            (0..matrix.rows()).map(|row| f64::from(row as u32 % 17) / 4.0 - 2.0).collect();
        let expected = oracle::sptrsv(&system.triangular, &b, 1);
        let mut lowerer = SptrsvLowerer::new(&matrix, sptrsv, gpu()).unwrap();
        let scored = of(&problem).space(&matrix, &gpu(), &Narrowing::default()).unwrap().scored;
        let mut all: Vec<Candidate> = scored.into_iter().map(|(candidate, _)| candidate).collect();
        all.retain(|it| matches!(it.family.as_str(), "chains" | "overlapped"));
        // In a dense triangle a chain would have more partial sums than it may, so that parts have several pieces.
        let staged = [(32, 128), (16, 512)].map(|(rows, terms)| {
            let shape = Shape { rows, terms, substitute: true, staged: true };
            lowerer.lower(&Scheme { shape, unroll: 2, warps: 4 }.candidate()).unwrap()
        });
        // For levels far wider than these; a row of the dense triangle is longer than a run.
        let streams = [(4, 32), (6, 24), (8, 8)].map(|(entries, warps)| {
            let scheme = streamed::scheme::Scheme { entries, warps };
            lowerer.lower(&scheme.candidate()).unwrap()
        });
        let others = chosen(&problem, all, 4, &mut lowerer);
        for recipe in staged.into_iter().chain(streams).chain(others) {
            cases.push(Case {
                label: format!("{} {problem}", recipe.candidate),
                recipe,
                dtype: sptrsv.dtype,
                matrix: matrix.clone(),
                b: b.clone(),
                expected: expected.clone(),
                scale: expected.iter().map(|x| x.abs()).collect(),
                adds: None,
                one_block: true,
            });
        }
    }
    cases
}

/// Approximate inverses beside what the host makes of b, since they do not solve exactly: the oracle is another for each.
fn approximations() -> Vec<Case> {
    let mut cases = Vec::new();
    let near = Sptrsv { approximate: true, ..Sptrsv::PLAIN };
    let systems = [
        ("ilu0_poisson2d:nx=14,ny=13,seed=1", near),
        (
            "poisson2d:nx=12,ny=9,seed=1",
            Sptrsv { triangle: Triangle::Upper, dtype: Dtype::F32, ..near },
        ),
        ("lower:tail=2,of=road:nx=20,ny=15,seed=1", Sptrsv { transpose: true, ..near }),
    ];
    for (system_at, (spec, solve)) in systems.into_iter().enumerate() {
        let matrix = Arc::new(Spec::parse(spec).unwrap().generate().unwrap());
        let system = System::of(&matrix, &solve, &gpu()).unwrap().triangular;
        let rows = matrix.rows();
        let b: Vec<f64> = (0..rows).map(|row| f64::from(row as u32 % 17) / 4.0 - 2.0).collect();
        let ordered: Vec<f64> = (0..rows).map(|s| b[system.original(s)]).collect();
        let mut lowerer = SptrsvLowerer::new(&matrix, solve, gpu()).unwrap();
        // Each number of lanes, with one step for one system and with two for the next; rows of more entries than lanes take at once.
        for (at, lanes) in inverse::scheme::LANES.into_iter().enumerate() {
            let power = inverse::scheme::POWERS[1 + at % 4];
            let steps = inverse::scheme::STEPS[(at + system_at) % 2];
            let scheme =
                inverse::scheme::Scheme { map: inverse::scheme::Map { power, steps }, lanes };
            let made = inverse::compute::Inverse::of(&system, solve.dtype, scheme.map).unwrap();
            let (once, twice) = made.approximations(&ordered);
            let x = twice.unwrap_or(once);
            let in_order: Vec<f64> = (0..rows).map(|row| x[system.original(row)]).collect();
            let recipe = lowerer.lower(&scheme.candidate()).unwrap();
            cases.push(Case {
                label: format!("{} {solve:?}", recipe.candidate),
                recipe,
                dtype: solve.dtype,
                matrix: matrix.clone(),
                b: b.clone(),
                scale: in_order.iter().map(|x| x.abs()).collect(),
                expected: in_order,
                adds: None,
                one_block: false,
            });
        }
    }
    cases
}

#[test]
fn kernels_compute_what_the_oracle_does() {
    let started = std::time::Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("kernels");
    headers(&Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels"), &own);
    let cases: Vec<Case> = products().into_iter().chain(solves()).chain(approximations()).collect();
    let made = started.elapsed();
    let faults: Vec<String> = cases
        .par_iter()
        .enumerate()
        .filter_map(|(at, case)| case.run(&folder.path().join(at.to_string()), &own))
        .collect();
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
    let families: BTreeSet<String> =
        cases.iter().map(|case| case.recipe.candidate.family.clone()).collect();
    println!("{} cases of {families:?}, made in {made:?}", cases.len());
    let expected = [
        "chains",
        "inverse",
        "kept_rows",
        "nnz_split",
        "overlapped",
        "resident",
        "row_panel",
        "row_split",
        "streamed",
        "tiled",
    ];
    assert!(families.iter().eq(expected.iter()), "{families:?}");
    for with in [
        "substitute=1",
        "staged=1",
        "steps=1",
        "steps=2",
        "near=1",
        "equal=1",
        "turns=",
        "team=",
        "n1=",
        "split=",
    ] {
        assert!(cases.iter().any(|case| case.label.contains(with)), "{with}");
    }
    let columns_in_turn = |case: &&Case| {
        ["row_split", "turns=", "layout=col"].iter().all(|part| case.label.contains(part))
    };
    assert!(cases.iter().any(|case| columns_in_turn(&case)));
    // Walks of rows have ways, too.
    for (m1, unroll, ways) in [(2, 8, 8), (8, 4, 2), (4, 8, 1), (4, 2, 4)] {
        let with = format!("m1={m1},n1=64,order=natural,unroll={unroll},vec=4,ways={ways}");
        let is = |label: &str| label.starts_with("row_panel") && label.contains(&with);
        for turned in [false, true] {
            let of = |case: &&Case| is(&case.label) && case.label.contains("b=both") == turned;
            assert!(cases.iter().any(|case| of(&case)), "{with}, turned: {turned}");
        }
    }
}
