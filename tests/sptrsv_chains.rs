//! Systems in chains, solved on the host in the same steps as in the kernel; and the kernel's text.

#[path = "fixture/backward_error.rs"]
mod backward_error;
#[path = "fixture/cancelling.rs"]
mod cancelling;
#[path = "fixture/chained.rs"]
mod chained;
#[path = "fixture/gpu.rs"]
mod gpu;
#[path = "fixture/nvrtc.rs"]
mod nvrtc;

use backward_error::row_errors;
use cancelling::cancelling;
use chained::{generated, lower, systems};
use gpu::gpu;
use rayon::prelude::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::{ArrayData, Program};
use sparsetune::domain::{Candidate, Dtype, Sptrsv};
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::chains::chain::Chains;
use sparsetune::ops::sptrsv::chains::pack::{ALIGNED, NO_ROW, Packed, TASK, pack};
use sparsetune::ops::sptrsv::chains::prove::prove;
use sparsetune::ops::sptrsv::chains::scheme::{Scheme, Shape};
use sparsetune::ops::sptrsv::chains::text::source;
use sparsetune::ops::sptrsv::chains::{ChainsLowerer, share};
use sparsetune::ops::sptrsv::slices::Estimate;
use sparsetune::sparse::tolerance::{equation_weight, solution_tolerance};
use sparsetune::sparse::{Csr, oracle};

fn problem(dtype: Dtype) -> Sptrsv {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN }
}

fn system(matrix: &Csr, dtype: Dtype) -> System {
    System::of(matrix, &problem(dtype), &gpu()).expect("a system")
}

/// Chains whose rows are not substituted in each other.
fn as_they_are(rows: u32, terms: u32) -> Shape {
    Shape { rows, terms, substitute: false, staged: false }
}

fn shapes() -> Vec<Shape> {
    let of = |rows| [64, 200, 4096].map(|terms| as_they_are(rows, terms));
    [4, 8, 32].into_iter().flat_map(of).collect()
}

fn packed(system: &System, shape: &Shape) -> Packed {
    let packed = pack(system, shape).expect("packs");
    prove(&packed, shape, system.triangular.rows()).expect("is proved");
    packed
}

fn double(data: &ArrayData, at: usize) -> f64 {
    match data {
        ArrayData::F64(values) => values[at],
        ArrayData::F32(values) => f64::from(values[at]),
        _ => unreachable!("values have one of two types"),
    }
}

/// What the kernels do; that of panels as they are in its order of additions.
fn interpret(packed: &Packed, substituted: bool, unroll: usize, b: &[f64]) -> Vec<f64> {
    let mut work = vec![f64::NAN; packed.slots];
    let mut x = vec![f64::NAN; b.len()];
    for task in packed.tasks.chunks_exact(TASK) {
        let [first, count, value, slot, width, solves, partial, partials] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|at| task[at] as usize);
        let value = value * ALIGNED;
        let abreast = 32 / width;
        let mut sums = vec![0.0; 32];
        for (lane, sum) in sums.iter_mut().enumerate().take(abreast * width) {
            let (place, row) = (lane / width, lane % width);
            for at in (place..partials.next_multiple_of(abreast * unroll)).step_by(abreast) {
                let of = packed.partials[partial..partial + partials].get(at);
                *sum += of.map_or(0.0, |&of| work[of as usize + row]);
            }
            for at in (place..count).step_by(abreast) {
                let factor = double(&packed.vals, value + at * width + row);
                if factor != 0.0 {
                    *sum = factor.mul_add(work[packed.cols[first + at] as usize], *sum);
                }
            }
        }
        let mut reach = 16;
        while reach > 0 {
            if reach < abreast {
                let before = sums.clone();
                for lane in 0..32 - reach * width {
                    if lane / width + reach < abreast {
                        sums[lane] += before[lane + reach * width];
                    }
                }
            }
            reach /= 2;
        }
        let inner = value + (count * width).next_multiple_of(ALIGNED);
        let known: Vec<f64> = (slot..slot + width)
            .map(|slot| match packed.rows[slot] {
                NO_ROW => 0.0,
                of => double(&packed.scale, slot) * b[of as usize],
            })
            .collect();
        // What the rows have of each other, or of each other's part of b.
        let add = |of: &dyn Fn(&[f64], usize) -> f64, sums: &mut Vec<f64>| {
            for before in 0..width - 1 {
                for row in before + 1..width {
                    let factor = double(&packed.vals, inner + before * width + row);
                    if factor != 0.0 {
                        sums[row] = factor.mul_add(of(sums, before), sums[row]);
                    }
                }
            }
        };
        let mut own = known.clone();
        if substituted && solves == 1 {
            add(&|_, before| known[before], &mut own);
        }
        sums.iter_mut().zip(&own).for_each(|(sum, known)| *sum += known);
        if !substituted && solves == 1 {
            add(&|sums, before| sums[before], &mut sums);
        }
        for (row, &sum) in sums.iter().enumerate().take(width) {
            work[slot + row] = sum;
            if let Some(place) = x.get_mut(packed.rows[slot + row] as usize) {
                *place = sum;
            }
        }
    }
    x
}

/// Largest |Tx - b| / (|T||x| + |b|) over the rows.
fn backward_error(system: &System, x: &[f64], b: &[f64]) -> f64 {
    row_errors(system, x, b).into_iter().fold(0.0, f64::max)
}

#[test]
fn every_row_is_computed_from_its_own_terms() {
    for (name, matrix) in systems() {
        let system = system(&matrix, Dtype::F64);
        let b: Vec<f64> = (0..matrix.rows()).map(|row| 1.0 + (row % 11) as f64 / 8.0).collect();
        for shape in shapes() {
            let packed = packed(&system, &shape);
            for unroll in [1, 4] {
                let x = interpret(&packed, false, unroll, &b);
                let error = backward_error(&system, &x, &b);
                assert!(error < 4e-15, "{name} {shape:?}: {error:e}");
            }
        }
    }
}

#[test]
fn substituted_rows_solve_within_the_tolerance() {
    let mut tame = 0;
    for (name, matrix) in systems() {
        let system = system(&matrix, Dtype::F64);
        // Where rows amplify the search lists none of these.
        if Estimate::of(&system).amplifies() {
            continue;
        }
        tame += 1;
        let b: Vec<f64> = (0..matrix.rows()).map(|row| 1.0 + (row % 11) as f64 / 8.0).collect();
        let staged =
            |shape| [false, true].map(|staged| Shape { substitute: true, staged, ..shape });
        for shape in shapes().into_iter().flat_map(staged) {
            let packed = packed(&system, &shape);
            for unroll in [1, 4] {
                let errors = row_errors(&system, &interpret(&packed, true, unroll, &b), &b);
                for (row, error) in errors.into_iter().enumerate() {
                    let terms = system.triangular.row(row).0.len();
                    let most = solution_tolerance(Dtype::F64) * equation_weight(terms);
                    assert!(error < most, "{name} {shape:?}: row {row} {error:e} of {most:e}");
                }
            }
        }
    }
    assert!(tame > 4, "{tame}");
}

/// A row that is substituted in others is as exact as the largest terms of its chain; one that is not, as its own.
#[test]
fn right_hand_sides_that_cancel_cost_digits_only_where_rows_are_substituted() {
    let mut apart: f64 = 0.0;
    for spec in ["cholesky_poisson2d:nx=30,ny=30,seed=1", "cholesky_banded:n=800,half=20"] {
        let system = system(&generated(spec), Dtype::F64);
        let b = cancelling(&system);
        let error = |substitute| {
            let shape = Shape { substitute, ..as_they_are(32, 200) };
            let x = interpret(&packed(&system, &shape), substitute, 4, &b);
            backward_error(&system, &x, &b)
        };
        let (plain, substituted) = (error(false), error(true));
        println!("{spec}: {plain:.1e} of its own terms row by row, {substituted:.1e} substituted");
        assert!(plain < 4e-15, "{spec}: {plain:e}");
        assert!(substituted < 1e-9, "{spec}: {substituted:e}");
        apart = apart.max(substituted / plain);
    }
    assert!(apart > 100.0, "{apart}");
}

/// What is stored is the inverse of the chain's triangle, and the panel times it.
#[test]
fn a_chain_is_multiplied_by_the_inverse_of_its_triangle() {
    // x0 = b0; then x1 = b1 - 2 x0, x2 = b2 - 3 x0 - 5 x1, x3 = b3 - 7 x1 - 11 x2.
    let (indptr, indices) = (vec![0, 1, 3, 6, 9], vec![0, 0, 1, 0, 1, 2, 1, 2, 3]);
    let values = vec![1.0, 2.0, 1.0, 3.0, 5.0, 1.0, 7.0, 11.0, 1.0];
    let system = system(&Csr::new(4, 4, indptr, indices, values).unwrap(), Dtype::F64);
    let values = |substitute| {
        let packed = packed(&system, &Shape { substitute, ..as_they_are(4, 64) });
        assert_eq!(packed.count(), 1);
        (0..packed.vals.len()).map(|at| double(&packed.vals, at)).collect::<Vec<f64>>()
    };
    let as_it_is = [0., -2., -3., 0., 0., 0., -5., -7., 0., 0., 0., -11.];
    assert_eq!(values(false), as_it_is);
    assert_eq!(values(true), [0., -2., 7., -63., 0., 0., -5., 48., 0., 0., 0., -11.]);
}

/// Rows of a dense triangle of halves grow by half with each that is substituted.
#[test]
fn rows_that_would_grow_too_much_begin_a_chain() {
    let dense = lower(300, |r| (0..r).map(|col| col as u32).collect());
    let system = system(&dense, Dtype::F64);
    let longest = |substitute| {
        let chains = Chains::of(&system, 32, substitute);
        (0..chains.len()).map(|chain| chains.rows_of(chain).len()).max()
    };
    assert_eq!(longest(false), Some(32));
    assert!((8..32).contains(&longest(true).unwrap()), "{:?}", longest(true));
}

#[test]
fn upper_and_transposed_systems_are_solved() {
    let matrix = generated("ilu0_elasticity:nx=5,ny=4,nz=4,seed=1");
    let b: Vec<f64> = (0..matrix.rows()).map(|row| f64::from(row as u32 % 7) - 3.0).collect();
    for (triangle, transpose) in
        [(Triangle::Upper, false), (Triangle::Lower, true), (Triangle::Upper, true)]
    {
        let problem = Sptrsv { triangle, transpose, ..problem(Dtype::F64) };
        let system = System::of(&matrix, &problem, &gpu()).expect("a system");
        let x = interpret(&packed(&system, &as_they_are(8, 64)), false, 2, &b);
        let error = backward_error(&system, &x, &b);
        assert!(error < 4e-15, "{triangle:?} {transpose}: {error:e}");
    }
}

#[test]
fn an_infinity_stays_with_the_rows_that_need_it() {
    let matrix = generated("cholesky_poisson2d:nx=12,ny=12,seed=1");
    let system = system(&matrix, Dtype::F64);
    let mut b = vec![1.0; matrix.rows()];
    b[5] = f64::INFINITY;
    let expected = oracle::sptrsv(&system.triangular, &b, 1);
    let x = interpret(&packed(&system, &as_they_are(32, 256)), false, 2, &b);
    for (row, (x, y)) in x.iter().zip(&expected).enumerate() {
        assert_eq!(x.is_finite(), y.is_finite(), "row {row}: {x}, {y}");
    }
    assert!(x.iter().any(|x| x.is_finite()) && x.iter().any(|x| !x.is_finite()));
}

/// Of what is chained, nothing is awaited by an earlier row of its chain, and all of a chain is one run.
#[test]
fn chains_are_runs_whose_needs_are_known_before_their_first_row() {
    for (name, matrix) in systems() {
        let system = system(&matrix, Dtype::F64);
        let chains = Chains::of(&system, 16, false);
        let level = |row: u32| system.levels.level_of_row[row as usize];
        let mut rows: Vec<u32> = Vec::new();
        for chain in 0..chains.len() {
            let of = chains.rows_of(chain);
            assert!((1..=16).contains(&of.len()), "{name}: {of:?}");
            assert!(
                of.windows(2).all(|pair| level(pair[0]) + 1 == level(pair[1])),
                "{name}: {of:?}"
            );
            let needs = chains.needs_of(chain);
            assert!(needs.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
            assert!(needs.iter().all(|&it| level(it) < level(of[0])), "{name}: {of:?} {needs:?}");
            rows.extend(of);
        }
        rows.sort_unstable();
        assert!(rows.iter().copied().eq(0..matrix.rows() as u32), "{name}");
    }
}

#[test]
fn supernodes_become_chains_and_waits_become_few() {
    let of = |matrix: &Csr, rows| {
        let system = system(matrix, Dtype::F64);
        let packed = packed(&system, &as_they_are(rows, 4096));
        (packed.depth as usize, system.levels.widths.len())
    };
    let all = systems();
    let named = |name: &str| &all.iter().find(|(known, _)| *known == name).expect("a system").1;
    let (depth, levels) = of(named("dense"), 32);
    assert_eq!((depth, levels), (150usize.div_ceil(32), 150));
    // However few values a part has, none that is known last comes between two whole chains.
    let dense = system(&lower(1000, |r| (0..r).map(|col| col as u32).collect()), Dtype::F64);
    for (rows, terms) in [(16, 512), (16, 1024), (32, 512), (32, 1024), (32, 4096)] {
        let packed = packed(&dense, &as_they_are(rows, terms));
        assert!(!packed.partials.is_empty());
        assert_eq!(packed.depth, 1000u32.div_ceil(rows), "{rows} {terms}");
    }
    let (depth, levels) = of(named("nodes of three"), 8);
    assert!(depth <= levels / 3 + 1, "{depth} of {levels}");
    // A row of a mesh has two latest parents, of which each would have to be in the chain.
    let (depth, levels) = of(&generated("ilu0_poisson2d:nx=50,ny=50,seed=1"), 32);
    assert!(depth + 4 >= levels, "{depth} of {levels}");
}

#[test]
fn what_could_wait_for_ever_or_read_beyond_its_arrays_is_refused() {
    let system = system(&generated("cholesky_poisson2d:nx=20,ny=20,seed=1"), Dtype::F64);
    let shape = as_they_are(8, 64);
    let whole = packed(&system, &shape);
    let rows = system.triangular.rows();
    assert!(!whole.partials.is_empty());
    let complaint = |change: &dyn Fn(&mut Packed)| {
        let mut packed = whole.clone();
        change(&mut packed);
        prove(&packed, &shape, rows).map_or_else(|refusal| refusal.0, |()| "none".to_owned())
    };
    assert_eq!(complaint(&|_| ()), "none");
    let last = whole.slots as u32 - 1;
    let words = |data: &std::sync::Arc<[u32]>, at: usize, word: u32| {
        let mut words = data.to_vec();
        words[at] = word;
        words.into()
    };
    assert!(complaint(&|it| it.cols = words(&it.cols, 0, last)).contains("would await slot"));
    let sums = complaint(&|it| it.partials = words(&it.partials, 0, last));
    assert!(sums.contains("would await sums"), "{sums}");
    let first = whole.rows.iter().position(|&row| row != NO_ROW).unwrap();
    let other = whole.rows.iter().rposition(|&row| row != NO_ROW).unwrap();
    let twice = complaint(&|it| it.rows = words(&it.rows, first, it.rows[other]));
    assert!(twice.contains("owned twice"), "{twice}");
    assert!(complaint(&|it| it.rows = words(&it.rows, first, rows as u32)).contains("has row"));
    assert!(complaint(&|it| it.rows = words(&it.rows, first, NO_ROW)).contains("has row"));
    for (word, value) in
        [(0, 1), (1, 1 << 20), (2, 3), (3, 1), (4, 9), (4, 0), (5, 2), (7, 1 << 20)]
    {
        let why = complaint(&|it| it.tasks = words(&it.tasks, word, value));
        assert!(why.contains("task 0"), "word {word}: {why}");
    }
    assert!(complaint(&|it| it.slots += 1).contains("is not what the tasks have"));
}

#[test]
fn listed_schemes_are_lowered_and_solve_and_meshes_have_none() {
    let solve = system(&generated("cholesky_poisson2d:nx=40,ny=40,seed=1"), Dtype::F64);
    let b: Vec<f64> = (0..1600).map(|row| f64::from(row % 17) - 8.0).collect();
    let expected = oracle::sptrsv(&solve.triangular, &b, 1);
    let mut lowerer = ChainsLowerer::default();
    let scored = share(&solve, &Estimate::of(&solve)).scored;
    let substituted = |(candidate, _): &&(Candidate, f64)| candidate.int("substitute") == Some(1);
    let count = scored.iter().filter(substituted).count();
    assert!(count > 5 && scored.len() - count > 5, "{count} of {}", scored.len());
    for (candidate, us) in scored.iter().step_by(3) {
        assert!(us.is_finite() && *us > 0.0, "{candidate}: {us}");
        let recipe = lowerer.lower(candidate, &solve).expect("lowers");
        let Program::Cuda(program) = &recipe.program else { panic!("no program") };
        let scheme = Scheme::of(candidate).unwrap();
        let step = &program.steps[0];
        assert!(step.resident && step.grid[0] <= gpu().multiprocessors);
        let (shape, unroll) = (&scheme.shape, scheme.unroll as usize);
        let x = interpret(&packed(&solve, shape), shape.substitute, unroll, &b);
        let off = x
            .iter()
            .zip(&expected)
            .map(|(x, y)| (x - y).abs() / (1.0 + y.abs()))
            .fold(0.0, f64::max);
        assert!(off < 1e-12, "{candidate}: {off:e}");
    }
    let mesh = system(&generated("ilu0_poisson2d:nx=50,ny=50,seed=1"), Dtype::F64);
    let none = share(&mesh, &Estimate::of(&mesh));
    assert!(none.scored.is_empty() && none.spared.is_some());
}

/// No spills, and registers for the warps that the schemes ask for.
#[test]
fn every_shape_of_the_kernel_compiles_within_its_registers() {
    let Some(compiler) = nvrtc::nvrtc() else { return };
    let mut jobs = Vec::new();
    for dtype in [Dtype::F32, Dtype::F64] {
        for (rows, unroll, warps) in
            [(8, 2, 32), (32, 2, 32), (8, 4, 16), (32, 4, 16), (4, 8, 8), (32, 8, 8)]
        {
            for (substitute, staged) in [(false, false), (true, false), (true, true)] {
                // The first are not legal; 32 warps of 8 rows are, but no search lists them, and they spill.
                if staged && (rows * warps > 256 || warps > 16) {
                    continue;
                }
                let shape = Shape { rows, terms: 1024, substitute, staged };
                let scheme = Scheme { shape, unroll, warps };
                // The size that the host computes, checked by the compiler.
                let bytes = scheme.block_bytes(dtype) / u64::from(warps);
                let values = match staged {
                    true => "(2 * StagedConfig<Solve>::kTerms + 32)",
                    false => "ChainsConfig<Solve>::kInner",
                };
                let check = format!(
                    "static_assert({values} * sizeof(Solve::Value) == {bytes}, \"size\");\n"
                );
                let text = source(&scheme, &problem(dtype)) + &check;
                jobs.extend(
                    ["sm_80", "sm_90"]
                        .map(|architecture| (scheme, dtype, text.clone(), architecture)),
                );
            }
        }
    }
    let faults: Vec<String> = jobs
        .par_iter()
        .filter_map(|(scheme, dtype, text, architecture)| {
            let label = format!("{} {dtype} {architecture}", scheme.candidate());
            match nvrtc::binary(&compiler, text, architecture, None) {
                Err(error) => Some(format!("{label}:\n{error}")),
                Ok(binary) => {
                    let (registers, spilled) = (binary.registers, binary.spill_bytes);
                    println!("{registers:3} registers, {spilled} spilled: {label}");
                    let most = 65_536 / (32 * scheme.warps);
                    (spilled > 0 || registers > most)
                        .then(|| format!("{label}: {registers} registers, {spilled} spilled"))
                }
            }
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
