//! Systems in chains, solved on the host in the same steps as in the kernel; and the kernel's text.

#[path = "fixture/backward_error.rs"]
mod backward_error;
#[path = "fixture/gpu.rs"]
mod gpu;
#[path = "fixture/nvrtc.rs"]
mod nvrtc;

use backward_error::row_errors;
use gpu::gpu;
use rayon::prelude::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::{ArrayData, Program};
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::chains::chain::Chains;
use sparsetune::ops::sptrsv::chains::pack::{ALIGNED, NO_ROW, Packed, TASK, pack};
use sparsetune::ops::sptrsv::chains::prove::prove;
use sparsetune::ops::sptrsv::chains::scheme::{Scheme, Shape};
use sparsetune::ops::sptrsv::chains::text::source;
use sparsetune::ops::sptrsv::chains::{ChainsLowerer, share};
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::{Csr, oracle};

fn problem(dtype: Dtype) -> Sptrsv {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN }
}

fn system(matrix: &Csr, dtype: Dtype) -> System {
    System::of(matrix, &problem(dtype), &gpu()).expect("a system")
}

fn generated(spec: &str) -> Csr {
    Spec::parse(spec).expect("a specification").generate().expect("a matrix")
}

/// A lower triangle from the columns of each row before the diagonal, whose values amplify.
fn lower(rows: usize, row: impl Fn(usize) -> Vec<u32>) -> Csr {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for r in 0..rows {
        let columns = row(r);
        values.extend(columns.iter().map(|&col| 1.0 - 0.001 * f64::from(col % 7)));
        indices.extend(columns);
        indices.push(r as u32);
        values.push(2.0);
        indptr.push(indices.len());
    }
    Csr::new(rows, rows, indptr, indices, values).expect("a matrix")
}

fn columns(row: usize, back: &[usize]) -> Vec<u32> {
    let mut all: Vec<u32> =
        back.iter().filter_map(|&it| row.checked_sub(it)).map(|it| it as u32).collect();
    all.sort_unstable();
    all
}

/// Systems of every shape.
fn systems() -> Vec<(&'static str, Csr)> {
    let mesh = |r: usize| columns(r, &[1, 60, 61]);
    // A row that needs all before it, and one that needs every third.
    let hub = move |r: usize| -> Vec<u32> {
        match r {
            700 => (0..700).collect(),
            900 => (0..900).step_by(3).map(|col| col as u32).collect(),
            _ => mesh(r),
        }
    };
    let dense = |r: usize| (0..r).map(|col| col as u32).collect();
    // Three unknowns a node of a line of nodes that needs the node before and the tenth before.
    let nodes = |r: usize| -> Vec<u32> {
        let (node, within) = (r / 3, r % 3);
        let of = |back: usize| {
            node.checked_sub(back).into_iter().flat_map(|it| (0..3).map(move |at| 3 * it + at))
        };
        let own = (0..within).map(|at| 3 * node + at);
        of(10).chain(of(1)).chain(own).map(|col| col as u32).collect()
    };
    vec![
        ("dense", lower(150, dense)),
        ("nodes of three", lower(600, nodes)),
        ("a line", lower(300, |r| columns(r, &[1, 2]))),
        ("a mesh that amplifies", lower(1800, mesh)),
        ("long rows", lower(1000, hub)),
        ("cholesky", generated("cholesky_poisson2d:nx=30,ny=25,seed=1")),
        ("ilu0 3d", generated("ilu0_elasticity:nx=6,ny=5,nz=4,seed=1")),
        ("random", generated("ilu0_random:n=1500,per_row=5,seed=1")),
        ("one row", lower(1, |_| vec![])),
        ("a level", lower(100, |_| vec![])),
    ]
}

fn shapes() -> Vec<Shape> {
    let of = |rows| [64, 200, 4096].map(|terms| Shape { rows, terms });
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

/// What the kernel does, in its order of additions.
fn interpret(packed: &Packed, unroll: usize, b: &[f64]) -> Vec<f64> {
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
        for (row, sum) in sums.iter_mut().enumerate().take(width) {
            let of = packed.rows[slot + row];
            if of != NO_ROW {
                *sum += double(&packed.scale, slot + row) * b[of as usize];
            }
        }
        if solves == 1 {
            for before in 0..width - 1 {
                for row in before + 1..width {
                    let factor = double(&packed.vals, inner + before * width + row);
                    if factor != 0.0 {
                        sums[row] = factor.mul_add(sums[before], sums[row]);
                    }
                }
            }
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
                let x = interpret(&packed, unroll, &b);
                let error = backward_error(&system, &x, &b);
                assert!(error < 4e-15, "{name} {shape:?}: {error:e}");
            }
        }
    }
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
        let x = interpret(&packed(&system, &Shape { rows: 8, terms: 64 }), 2, &b);
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
    let x = interpret(&packed(&system, &Shape { rows: 32, terms: 256 }), 2, &b);
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
        let chains = Chains::of(&system, 16);
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
        let packed = packed(&system, &Shape { rows, terms: 4096 });
        (packed.depth as usize, system.levels.widths.len())
    };
    let all = systems();
    let named = |name: &str| &all.iter().find(|(known, _)| *known == name).expect("a system").1;
    let (depth, levels) = of(named("dense"), 32);
    assert_eq!((depth, levels), (150usize.div_ceil(32), 150));
    let (depth, levels) = of(named("nodes of three"), 8);
    assert!(depth <= levels / 3 + 1, "{depth} of {levels}");
    // A row of a mesh has two latest parents, of which each would have to be in the chain.
    let (depth, levels) = of(&generated("ilu0_poisson2d:nx=50,ny=50,seed=1"), 32);
    assert!(depth + 4 >= levels, "{depth} of {levels}");
}

#[test]
fn what_could_wait_for_ever_or_read_beyond_its_arrays_is_refused() {
    let system = system(&generated("cholesky_poisson2d:nx=20,ny=20,seed=1"), Dtype::F64);
    let shape = Shape { rows: 8, terms: 64 };
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
    let scored = share(&solve).scored;
    assert!(scored.len() > 5, "{}", scored.len());
    for (candidate, us) in scored.iter().step_by(3) {
        assert!(us.is_finite() && *us > 0.0, "{candidate}: {us}");
        let recipe = lowerer.lower(candidate, &solve).expect("lowers");
        let Program::Cuda(program) = &recipe.program else { panic!("no program") };
        let scheme = Scheme::of(candidate).unwrap();
        let step = &program.steps[0];
        assert!(step.resident && step.grid[0] <= gpu().multiprocessors);
        let x = interpret(&packed(&solve, &scheme.shape), scheme.unroll as usize, &b);
        let off = x
            .iter()
            .zip(&expected)
            .map(|(x, y)| (x - y).abs() / (1.0 + y.abs()))
            .fold(0.0, f64::max);
        assert!(off < 1e-12, "{candidate}: {off:e}");
    }
    let mesh = system(&generated("ilu0_poisson2d:nx=50,ny=50,seed=1"), Dtype::F64);
    let none = share(&mesh);
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
            let scheme = Scheme { shape: Shape { rows, terms: 1024 }, unroll, warps };
            // The size that the host computes, checked by the compiler.
            let bytes = scheme.block_bytes(dtype) / u64::from(warps);
            let check = format!(
                "static_assert(ChainsConfig<Solve>::kInner * sizeof(Solve::Value) == {bytes}, \"size\");\n"
            );
            let text = source(&scheme, &problem(dtype)) + &check;
            jobs.extend(
                ["sm_80", "sm_90"].map(|architecture| (scheme, dtype, text.clone(), architecture)),
            );
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
