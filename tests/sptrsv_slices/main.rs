//! Rewritten, split and packed systems, solved on the host in the same steps as in the kernel.

mod alike;
#[path = "../fixture/amplifying.rs"]
mod amplifying;
#[path = "../fixture/backward_error.rs"]
mod backward_error;
#[path = "../fixture/cancelling.rs"]
mod cancelling;
#[path = "../fixture/gpu.rs"]
mod fixture;
mod refined;

use amplifying::unit;
use backward_error::row_errors;
use cancelling::cancelling;
use fixture::gpu;
use rayon::ThreadPoolBuilder;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::{Arg, ArrayData, Program, Recipe, Step};
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::slices::equations::Equations;
use sparsetune::ops::sptrsv::slices::pack::{NO_TERM, Packed, Packing, pack};
use sparsetune::ops::sptrsv::slices::prove::prove;
use sparsetune::ops::sptrsv::slices::rewrite::{Rewrite, rewrite};
use sparsetune::ops::sptrsv::slices::scheme::{Scheme, Scope};
use sparsetune::ops::sptrsv::slices::split::{Parts, split};
use sparsetune::ops::sptrsv::slices::survey::{LevelProfile, survey};
use sparsetune::ops::sptrsv::slices::{Estimate, SlicesLowerer, share};
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::{Csr, oracle};

const LOWER: Sptrsv = Sptrsv {
    rhs: 1,
    dtype: Dtype::F64,
    triangle: Triangle::Lower,
    diagonal: Diagonal::NonUnit,
    transpose: false,
    ..Sptrsv::PLAIN
};

fn system(matrix: &Csr, problem: Sptrsv) -> System {
    System::of(matrix, &problem, &gpu()).expect("a system")
}

fn generated(spec: &str) -> Csr {
    Spec::parse(spec).expect("a specification").generate().expect("a matrix")
}

/// A lower triangle from each row's entries before the diagonal; the diagonal is a little off 1.
fn lower(rows: usize, row: impl Fn(usize) -> Vec<(u32, f64)>) -> Csr {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for r in 0..rows {
        let mut entries = row(r);
        entries.push((r as u32, 1.0 + 0.1 * unit(7, r)));
        indices.extend(entries.iter().map(|&(col, _)| col));
        values.extend(entries.iter().map(|&(_, value)| value));
        indptr.push(indices.len());
    }
    Csr::new(rows, rows, indptr, indices, values).expect("a matrix")
}

fn chain(rows: usize) -> Csr {
    lower(rows, |r| if r == 0 { vec![] } else { vec![(r as u32 - 1, -0.7)] })
}

/// What the kernel does for one right-hand side: lanes sum up terms in b, then in x, then the lanes are summed up.
fn interpret(packed: &Packed, width: usize, b: &[f64]) -> Vec<f64> {
    let single = matches!(packed.vals, ArrayData::F32(_));
    let value = |at: usize| match &packed.vals {
        ArrayData::F32(values) => f64::from(values[at]),
        ArrayData::F64(values) => values[at],
        _ => unreachable!("slices have values of one of two types"),
    };
    let fused = |a: f64, b: f64, c: f64| match single {
        true => f64::from((a as f32).mul_add(b as f32, c as f32)),
        false => a.mul_add(b, c),
    };
    let rounded = |x: f64| if single { f64::from(x as f32) } else { x };
    let mut work = vec![f64::NAN; packed.slots];
    let mut x = vec![f64::NAN; b.len()];
    for meta in packed.meta.chunks_exact(4) {
        let (first, at, log, rows) =
            (meta[0] as usize, meta[1] as usize, meta[3] & 0xFF, meta[3] >> 8);
        let (b_steps, x_steps) = ((meta[2] & 0xFFFF) as usize, (meta[2] >> 16) as usize);
        let mut sums = vec![0.0; width];
        for (lane, sum) in sums.iter_mut().enumerate() {
            for step in 0..b_steps + x_steps {
                let entry = (at + step) * width + lane;
                let col = packed.cols[entry];
                if col != NO_TERM {
                    let from = if step < b_steps { b } else { &work[..first] };
                    *sum = fused(value(entry), from[col as usize], *sum);
                }
            }
        }
        for reach in (0..log).rev().map(|log| 1 << log) {
            sums = (0..width).map(|lane| rounded(sums[lane] + sums[lane ^ reach])).collect();
        }
        for row in 0..rows as usize {
            let slot = first + row;
            work[slot] = sums[row << log];
            if packed.rows[slot] != u32::MAX {
                x[packed.rows[slot] as usize] = work[slot];
            }
        }
    }
    x
}

/// Largest |Tx - b| / (|T||x| + |b|) over the rows, each row's divided by its weight (terms + 8) / 8.
fn backward_error(system: &System, x: &[f64], b: &[f64]) -> f64 {
    let terms = |s: usize| system.triangular.row(s).0.len() as f64;
    let errors = row_errors(system, x, b).into_iter().enumerate();
    errors.map(|(s, error)| error * 8.0 / (terms(s) + 8.0)).fold(0.0, f64::max)
}

/// Entries in [-1, 1), as exact in single as in double precision.
fn right_hand_side(rows: usize) -> Vec<f64> {
    (0..rows).map(|row| f64::from((2.0 * unit(3, row) - 1.0) as f32)).collect()
}

fn equations(system: &System, window_ns: u32, terms: u32) -> Equations {
    split(rewrite(system, Rewrite::of(window_ns, terms)), Parts::of_slices(32))
}

fn packing(width: u32, lanes: u32) -> Packing {
    Packing { width, lanes, steps: 4, warps: 264 }
}

/// Every unknown is of an earlier window than the equation, and partial sums are of no row.
fn assert_in_order(equations: &Equations, rows: usize) {
    for at in 0..equations.len() {
        let window = equations.window_of[at];
        let before = |&col: &u32| equations.window_of[col as usize] < window;
        assert!(equations.unknown(at).0.iter().all(before), "unknown {at} of window {window}");
        assert!(window < equations.windows);
        assert_eq!(equations.rows[at].is_some(), at < rows);
    }
}

fn assert_solves(what: &str, matrix: &Csr, problem: Sptrsv) {
    let system = system(matrix, problem);
    let rows = matrix.rows();
    let b = right_hand_side(rows);
    let roundoff =
        if problem.dtype == Dtype::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) } / 2.0;
    let tolerance = 512.0 * roundoff;
    let reference = oracle::sptrsv(&system.triangular, &b, 1);
    assert!(backward_error(&system, &reference, &b) <= tolerance, "{what}: the reference");
    for (window_ns, terms) in [(0, 64), (500, 64), (500, 1024), (4000, 64), (4000, 1024)] {
        let rewritten = rewrite(&system, Rewrite::of(window_ns, terms));
        let shapes = [(32, 0), (32, 1), (32, 4), (32, 32), (8, 0), (8, 32), (2, 0), (1, 0), (1, 4)];
        for (width, lanes) in shapes {
            let equations = split(rewritten.clone(), Parts::of_slices(width));
            assert_in_order(&equations, rows);
            let how = packing(width, lanes);
            let packed = pack(&equations, problem.dtype, how).expect("packs");
            prove(&packed, how, rows).expect("is in order");
            assert_eq!(packed.slots, equations.len());
            assert_eq!(packed.window_start.len(), equations.windows as usize + 1);
            let x = interpret(&packed, width as usize, &b);
            let error = backward_error(&system, &x, &b);
            assert!(
                error <= tolerance,
                "{what}, {window_ns} ns, {terms} terms, {how:?}: {error:e}"
            );
        }
    }
}

#[test]
fn small_and_plain_systems() {
    for rows in [0, 1, 2] {
        assert_solves(&format!("chain of {rows}"), &chain(rows), LOWER);
    }
    assert_solves("diagonal", &lower(1000, |_| vec![]), LOWER);
    assert_solves("chain", &chain(5000), LOWER);
    let dense = lower(200, |r| (0..r as u32).map(|col| (col, -0.5 / r as f64)).collect());
    assert_solves("dense", &dense, LOWER);
}

#[test]
fn factors_in_every_triangle() {
    let random = generated("ilu0_random:n=3000,per_row=8,seed=3");
    assert_solves("random", &random, LOWER);
    assert_solves("random, single", &random, Sptrsv { dtype: Dtype::F32, ..LOWER });
    assert_solves("random, transposed", &random, Sptrsv { transpose: true, ..LOWER });
    let flat = generated("ilu0_poisson2d:nx=60,ny=50,seed=1");
    assert_solves("2-D", &flat, LOWER);
    assert_solves("2-D, unit", &flat, Sptrsv { diagonal: Diagonal::Unit, ..LOWER });
    assert_solves(
        "2-D, transposed, single",
        &flat,
        Sptrsv { transpose: true, dtype: Dtype::F32, ..LOWER },
    );
    assert_solves("3-D", &generated("ilu0_poisson3d:nx=15,ny=14,nz=13,seed=1"), LOWER);
    let upper = generated("banded:n=700,half=4,seed=2");
    assert_solves("upper", &upper, Sptrsv { triangle: Triangle::Upper, ..LOWER });
    let transposed = Sptrsv { triangle: Triangle::Upper, transpose: true, ..LOWER };
    assert_solves("upper, transposed", &upper, transposed);
}

#[test]
fn a_huge_row_is_split() {
    let rows = 50_001;
    let all = |r: usize| match r {
        50_000 => (0..50_000).map(|col| (col, -1e-5)).collect(),
        _ if r.is_multiple_of(3) && r > 0 => vec![(r as u32 - 1, 0.4)],
        _ => vec![],
    };
    let matrix = lower(rows, all);
    let equations = equations(&system(&matrix, LOWER), 0, 64);
    let longest = (0..equations.len()).map(|at| equations.unknown(at).0.len()).max();
    assert!(longest <= Some(1024) && equations.len() > rows + 40, "{longest:?}");
    assert_solves("huge row", &matrix, LOWER);
    // With more right-hand sides a warp has fewer lanes for terms, and its equations are shorter.
    let rewritten = rewrite(&system(&matrix, LOWER), Rewrite::of(0, 64));
    let equations = split(rewritten, Parts::of_slices(2));
    let longest = (0..equations.len()).map(|at| equations.unknown(at).0.len()).max();
    assert!(longest <= Some(64) && equations.len() > rows + 1500, "{longest:?}");
}

#[test]
fn rewriting_makes_few_windows() {
    let windows = |matrix: &Csr, window_ns, terms| {
        equations(&system(matrix, LOWER), window_ns, terms).windows
    };
    let flat = generated("ilu0_poisson2d:nx=120,ny=120,seed=1");
    assert_eq!(windows(&flat, 0, 64), 239);
    let rewritten = windows(&flat, 1000, 1024);
    assert!(rewritten * 5 <= 239, "{rewritten} windows");
    let rewritten = windows(&chain(5000), 1000, 64);
    assert!(rewritten < 200, "{rewritten} windows");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let matrix = generated("ilu0_random:n=30000,per_row=6,seed=5");
    let system = system(&matrix, LOWER);
    let built = |threads| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let equations = equations(&system, 1000, 256);
            pack(&equations, Dtype::F64, packing(32, 0)).expect("packs")
        })
    };
    let (one, four) = (built(1), built(4));
    assert!(one.meta == four.meta && one.cols == four.cols && one.rows == four.rows);
    assert!(one.vals == four.vals && one.window_start == four.window_start);
}

/// x_i = 2 x_(i-1) + b_i forty times over, then nearly anew. Forty levels in one window would multiply roundings by 2^40.
#[test]
fn a_window_closes_before_coefficients_explode() {
    let rows = 2000;
    let factor = |r: usize| if r.is_multiple_of(40) { -1e-12 } else { -2.0 };
    let matrix = lower(rows, |r| if r == 0 { vec![] } else { vec![(r as u32 - 1, factor(r))] });
    let unit_diagonal = Sptrsv { diagonal: Diagonal::Unit, ..LOWER };
    let system = system(&matrix, unit_diagonal);
    let x: Vec<f64> = (0..rows).map(|row| 1.0 + unit(9, row)).collect();
    let b: Vec<f64> =
        (0..rows).map(|r| if r == 0 { x[0] } else { x[r] + factor(r) * x[r - 1] }).collect();
    let equations = equations(&system, 1_000_000, 1024);
    let windows = equations.windows;
    assert!((100..500).contains(&windows), "{windows} windows");
    let packed = pack(&equations, Dtype::F64, packing(32, 0)).expect("packs");
    let error = backward_error(&system, &interpret(&packed, 32, &b), &b);
    println!("{windows} windows, {error:e}");
    assert!(error <= 256.0 * f64::EPSILON, "{error:e}");
}

#[test]
fn a_slice_of_too_many_steps_is_refused() {
    let matrix = lower(70_001, |r| match r {
        70_000 => (0..70_000).map(|col| (col, -1e-5)).collect(),
        _ => vec![],
    });
    let whole = rewrite(&system(&matrix, LOWER), Rewrite::of(0, 64));
    let refusal = pack(&whole, Dtype::F64, packing(32, 1)).expect_err("too long for one lane");
    assert!(refusal.to_string().contains("70000 steps"), "{refusal}");
    assert!(pack(&whole, Dtype::F64, packing(32, 32)).is_ok());
}

#[test]
fn coefficients_beyond_the_type_are_refused() {
    // The reciprocal of 1e-39 overflows single precision, although 1e-39 is representable.
    let matrix = Csr::new(1, 1, vec![0, 1], vec![0], vec![1e-39]).expect("a matrix");
    for (dtype, packs) in [(Dtype::F32, false), (Dtype::F64, true)] {
        let equations = equations(&system(&matrix, Sptrsv { dtype, ..LOWER }), 0, 64);
        assert_eq!(pack(&equations, dtype, packing(32, 0)).is_ok(), packs);
    }
}

/// Launches of each solve cover all slices, each once and in order, with as many arguments as the kernel has.
fn assert_launches_all(recipe: &Recipe) {
    let Program::Cuda(program) = &recipe.program else { panic!("not for this device") };
    let slices = match &recipe.arrays[0].data {
        ArrayData::U32(meta) => meta.len() as u32 / 4,
        _ => panic!("meta are words"),
    };
    let scheme = Scheme::of(&recipe.candidate).expect("a scheme");
    let shared = scheme.scope != Scope::Global;
    let solves: Vec<&[Step]> =
        program.steps.split(|step| step.entry.starts_with("residual")).collect();
    assert_eq!(solves.len(), if scheme.rewrite.refine { 2 } else { 1 });
    for steps in &solves {
        let mut next = 0;
        for step in *steps {
            assert_eq!(step.args.len(), if shared { 12 } else { 16 });
            let [Arg::U32(first), Arg::U32(end)] = step.args[6..8] else {
                panic!("{:?}", step.args)
            };
            assert!(first == next && (end > first || slices == 0), "{first}..{end} after {next}");
            assert_eq!(step.cluster, if shared { step.grid[0] } else { 1 });
            next = end;
        }
        assert_eq!(next, slices);
    }
    for step in &program.steps {
        assert!(step.grid[0] >= 1 && step.block[0] <= 1024 && step.shared_bytes <= 232_448);
        // Clusters are compiled in, so that an ordinary launch has them; 32 warps a multiprocessor that copy ahead need bounds.
        let full = step.shared_bytes > 0 && scheme.warps == 32;
        let cluster = match (step.cluster, step.entry.starts_with("residual")) {
            (1, true) => "__launch_bounds__(256) ".to_owned(),
            (1, false) if full && !shared => "__launch_bounds__(512, 2) ".to_owned(),
            (1, false) => String::new(),
            (blocks, _) => format!("__cluster_dims__({blocks}, 1, 1) "),
        };
        assert!(program.source.contains(&format!("void {cluster}{}(", step.entry)));
    }
    for arg in program.steps.iter().flat_map(|step| &step.args) {
        match *arg {
            Arg::Scratch(at) => assert!(at < recipe.scratch.len()),
            Arg::Turn { even, odd } => assert!(even.max(odd) < recipe.scratch.len()),
            Arg::Array(at) => assert!(at < recipe.arrays.len()),
            _ => (),
        }
    }
}

#[test]
fn every_listed_scheme_is_lowered() {
    for (spec, rhs, multiprocessors, most_steps) in [
        ("ilu0_poisson2d:nx=40,ny=40,seed=1", 1, 132, 1),
        // So few that some windows, but not all, get a separate launch.
        ("ilu0_random:n=12000,per_row=4,seed=1", 3, 1, 20),
        ("banded:n=1,half=0", 33, 132, 1),
    ] {
        let mut system = system(&generated(spec), Sptrsv { rhs, ..LOWER });
        system.device.multiprocessors = multiprocessors;
        let mut lowerer = SlicesLowerer::default();
        let mut steps = Vec::new();
        for (candidate, _) in share(&system, &Estimate::of(&system)).scored {
            let recipe = lowerer.lower(&candidate, &system).expect("lowers");
            assert_launches_all(&recipe);
            let Program::Cuda(program) = recipe.program else { panic!("not for this device") };
            steps.push(program.steps.len());
        }
        let most = steps.iter().max().copied().unwrap_or(0);
        assert!((most_steps.min(2)..=most_steps).contains(&most), "{spec}: {most} steps");
    }
    let empty = system(&chain(0), LOWER);
    let (candidate, _) = share(&empty, &Estimate::of(&empty)).scored.swap_remove(0);
    assert_launches_all(&SlicesLowerer::default().lower(&candidate, &empty).expect("lowers"));
}

#[test]
fn a_survey_estimates_the_result_of_rewriting() {
    let of = |spec: &str, window_ns| {
        let system = system(&generated(spec), LOWER);
        let how = Rewrite::of(window_ns, 256);
        let whole = rewrite(&system, how);
        let levels = system.levels.widths.len() as f64;
        let rows = system.triangular.rows() as f64;
        let terms: usize = whole.segments.iter().map(|segment| segment.terms()).sum();
        let seen = survey(&LevelProfile::of(&system), how);
        let mut longest = vec![0; whole.windows as usize];
        for (place, &window) in whole.places.iter().zip(&whole.window_of) {
            let (unknowns, _) =
                whole.segments[place.segment as usize].unknown.row(place.row as usize);
            longest[window as usize] = unknowns.len().max(longest[window as usize]);
        }
        let longest = longest.iter().sum::<usize>() as f64 / longest.len() as f64;
        (seen, levels / f64::from(whole.windows), terms as f64 / rows, longest)
    };
    // Small enough to be rewritten whole.
    for window_ns in [0, 250, 2000] {
        let (seen, levels, terms, longest) = of("ilu0_poisson2d:nx=20,ny=20,seed=1", window_ns);
        let found = (seen.levels, seen.terms, seen.longest);
        assert_eq!(found, (levels, terms, longest), "{window_ns}");
    }
    // Sampled. Runs of levels with equal numbers of terms, pooled, gave windows of twice the levels for the first, and two
    // thirds of the terms for the second: narrow levels, whose windows are deep, counted for more than their share.
    let off = |seen: f64, real: f64| (seen / real).ln().abs();
    for (spec, window_ns, windows, by_terms) in [
        ("ilu0_poisson2d:nx=300,ny=300,seed=1", 1000, 0.6, 0.2),
        ("ilu0_rmat:scale=14,edge_factor=8,a=0.5,b=0.2,c=0.2,d=0.1,seed=1", 1000, 0.2, 0.2),
        ("ilu0_random:n=40000,per_row=6,seed=1", 500, 0.6, 0.5),
        ("lower:tail=300,growth=0.5,of=banded:n=60000,half=1", 1000, 0.6, 0.5),
        ("lower:tail=300,growth=0.5,of=banded:n=60000,half=1", 0, 1e-9, 1e-9),
        ("lower:unknowns=3,order=rcm,growth=0.5,of=mesh:nx=90,ny=80", 1000, 0.6, 0.5),
    ] {
        let (seen, levels, terms, longest) = of(spec, window_ns);
        assert!(off(seen.levels, levels) < windows, "{spec}: {seen:?}, {levels}");
        assert!(off(seen.terms, terms) < by_terms, "{spec}: {seen:?}, {terms}");
        assert!(off(seen.longest, longest) < windows, "{spec}: {seen:?}, {longest}");
    }
}

/// Solutions of very different sizes, side by side, whose right-hand sides cancel: rewritten rows are exact beside the largest terms
/// of their window, and others beside their own.
#[test]
fn right_hand_sides_that_cancel_cost_digits_only_where_equations_are_rewritten() {
    let mut apart: f64 = 0.0;
    for spec in ["ilu0_poisson2d:nx=60,ny=40,seed=1", "ilu0_random:n=3000,per_row=5,seed=1"] {
        let system = system(&generated(spec), LOWER);
        let b = cancelling(&system);
        let error = |window_ns| {
            let packed = pack(&equations(&system, window_ns, 256), Dtype::F64, packing(32, 0));
            backward_error(&system, &interpret(&packed.expect("packs"), 32, &b), &b)
        };
        let (plain, rewritten) = (error(0), error(1000));
        println!("{spec}: {plain:.1e} of its own terms row by row, {rewritten:.1e} rewritten");
        assert!(plain < 2e-15, "{spec}: {plain:e}");
        assert!(rewritten < 1e-3, "{spec}: {rewritten:e}");
        apart = apart.max(rewritten / plain);
    }
    assert!(apart > 1e3, "{apart}");
}
