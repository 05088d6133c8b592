//! Systems in overlapped windows, solved on the host in the same steps as in the kernel; and the kernel's text.

#[path = "fixture/backward_error.rs"]
mod backward_error;
#[path = "fixture/cancelling.rs"]
mod cancelling;
#[path = "fixture/gpu.rs"]
mod gpu;
#[path = "fixture/nvrtc.rs"]
mod nvrtc;

use backward_error::row_errors;
use cancelling::cancelling;
use gpu::gpu;
use rayon::prelude::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::{ArrayData, Program};
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::overlapped::pack::{NO_ROW, Packed, pack};
use sparsetune::ops::sptrsv::overlapped::prove::prove;
use sparsetune::ops::sptrsv::overlapped::scheme::{FIRST_AWAITED, Scheme, Shape};
use sparsetune::ops::sptrsv::overlapped::text::source;
use sparsetune::ops::sptrsv::overlapped::{OverlappedLowerer, share};
use sparsetune::ops::sptrsv::slices::rewrite::{Rewrite, rewrite};
use sparsetune::ops::sptrsv::slices::split::{Parts, split};
use sparsetune::ops::sptrsv::slices::unrewritten::Unrewritten;
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::{Csr, oracle};

fn system(matrix: &Csr, dtype: Dtype) -> System {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    let problem = Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    System::of(matrix, &problem, &gpu()).expect("a system")
}

fn generated(spec: &str) -> Csr {
    Spec::parse(spec).expect("a specification").generate().expect("a matrix")
}

/// A lower triangle from the columns of each row before the diagonal, whose values amplify: each row subtracts its parents.
fn lower(rows: usize, row: impl Fn(usize) -> Vec<u32>) -> Csr {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for r in 0..rows {
        let columns = row(r);
        values.extend(columns.iter().map(|&col| 1.0 - 0.001 * f64::from(col % 7)));
        indices.extend(columns);
        indices.push(r as u32);
        values.push(1.0);
        indptr.push(indices.len());
    }
    Csr::new(rows, rows, indptr, indices, values).expect("a matrix")
}

fn packed(system: &System, shape: &Shape) -> Packed {
    let equations = Unrewritten::default().of(shape.row_terms() as usize, system);
    let packed = pack(&equations, system.problem.dtype, shape).expect("packs");
    prove(&packed, shape, system.triangular.rows()).expect("is proved");
    packed
}

/// What the kernel does: x, and every value that a group computed of each row, its owner's first.
fn interpret(packed: &Packed, shape: &Shape, b: &[f64]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let double = |data: &ArrayData, at: usize| match data {
        ArrayData::F64(values) => values[at],
        ArrayData::F32(values) => f64::from(values[at]),
        _ => unreachable!("values have one of two types"),
    };
    let (lanes, rows_a_pass) = (shape.lanes as usize, shape.rows() as usize);
    let mut work = vec![f64::NAN; packed.slots];
    let mut x = vec![f64::NAN; b.len()];
    let mut seen = vec![Vec::new(); b.len()];
    for group in packed.groups.chunks_exact(4) {
        let [first, count, first_pass, passes] = [0, 1, 2, 3].map(|at| group[at] as usize);
        let mut unknowns =
            vec![f64::NAN; (shape.first_row() + shape.levels * shape.rows()) as usize];
        unknowns[0] = 0.0;
        for (at, &slot) in packed.awaited[first..first + count].iter().enumerate() {
            unknowns[FIRST_AWAITED as usize + at] = work[slot as usize];
        }
        for at in 0..passes {
            let pass = first_pass + at;
            let (slot, owned) = (packed.passes[2 * pass] as usize, packed.passes[2 * pass + 1]);
            for row in 0..rows_a_pass {
                let of = packed.rows[pass * rows_a_pass + row];
                let mut sums = vec![0.0; lanes];
                if of != NO_ROW {
                    sums[0] = double(&packed.scale, pass * rows_a_pass + row) * b[of as usize];
                }
                for (lane, sum) in sums.iter_mut().enumerate() {
                    for step in 0..shape.unroll as usize {
                        let entry = (pass * shape.unroll as usize + step) * 32 + row * lanes + lane;
                        let unknown = unknowns[usize::from(packed.cols[entry])];
                        *sum = double(&packed.vals, entry).mul_add(unknown, *sum);
                    }
                }
                let mut reach = lanes / 2;
                while reach > 0 {
                    sums = (0..lanes).map(|lane| sums[lane] + sums[lane ^ reach]).collect();
                    reach /= 2;
                }
                unknowns[shape.first_row() as usize + at * rows_a_pass + row] = sums[0];
                if row < owned as usize {
                    work[slot + row] = sums[0];
                }
                if of != NO_ROW {
                    seen[of as usize].push(sums[0]);
                    if row < owned as usize {
                        x[of as usize] = sums[0];
                    }
                }
            }
        }
    }
    (x, seen)
}

/// Largest |Tx - b| / (|T||x| + |b|) over the rows.
fn backward_error(system: &System, x: &[f64], b: &[f64]) -> f64 {
    row_errors(system, x, b).into_iter().fold(0.0, f64::max)
}

/// Systems of every shape, with what a row may be off by, relative to its own terms.
fn systems() -> Vec<(&'static str, Csr)> {
    let two_back = |r: usize| (r.saturating_sub(2)..r).map(|col| col as u32).collect();
    let mesh = |r: usize| -> Vec<u32> {
        [r.checked_sub(61), r.checked_sub(60), r.checked_sub(1)]
            .into_iter()
            .flatten()
            .map(|col| col as u32)
            .collect()
    };
    // A row that needs all before it, and one that needs every third.
    let hub = |r: usize| -> Vec<u32> {
        match r {
            700 => (0..700).collect(),
            900 => (0..900).step_by(3).map(|col| col as u32).collect(),
            _ => mesh(r),
        }
    };
    vec![
        ("a chain", lower(300, two_back)),
        ("a mesh that amplifies", lower(1800, mesh)),
        ("long rows", lower(1000, hub)),
        ("ilu0 2d", generated("ilu0_poisson2d:nx=60,ny=40,seed=1")),
        ("ilu0 3d", generated("ilu0_poisson3d:nx=14,ny=12,nz=10,seed=1")),
        ("random", generated("ilu0_random:n=1500,per_row=5,seed=1")),
        ("one row", lower(1, |_| vec![])),
        ("a level", lower(100, |_| vec![])),
    ]
}

fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    for levels in [1, 2, 3, 8, 16] {
        for (lanes, unroll, awaited) in [(1, 2, 2), (1, 8, 4), (2, 4, 2), (4, 2, 2), (8, 8, 4)] {
            all.push(Shape { levels, lanes, unroll, awaited });
        }
    }
    all
}

#[test]
fn every_row_is_computed_from_its_own_terms_and_the_same_in_all_groups() {
    let mut again = 0;
    for (name, matrix) in systems() {
        let system = system(&matrix, Dtype::F64);
        let b: Vec<f64> = (0..matrix.rows()).map(|row| 1.0 + (row % 11) as f64 / 8.0).collect();
        for shape in shapes() {
            let packed = packed(&system, &shape);
            let (x, seen) = interpret(&packed, &shape, &b);
            let error = backward_error(&system, &x, &b);
            // Row by row, though unknowns grow by many orders of magnitude: a few roundings for each term.
            assert!(error < 2e-15, "{name} {shape:?}: {error:e}");
            for (row, values) in seen.iter().enumerate() {
                let first = values[0].to_bits();
                assert!(
                    values.iter().all(|value| value.to_bits() == first),
                    "{name} {shape:?}: row {row} {values:?}"
                );
                again += values.len() - 1;
            }
        }
    }
    assert!(again > 1000, "only {again} rows were computed again");
}

/// No equation is rewritten, so that each row is as exact as its own terms, however small a difference of them its unknown is.
#[test]
fn right_hand_sides_that_cancel_cost_no_digit() {
    for spec in ["ilu0_poisson2d:nx=60,ny=40,seed=1", "ilu0_random:n=1500,per_row=5,seed=1"] {
        let system = system(&generated(spec), Dtype::F64);
        let b = cancelling(&system);
        for shape in shapes() {
            let (x, _) = interpret(&packed(&system, &shape), &shape, &b);
            let error = backward_error(&system, &x, &b);
            assert!(error < 2e-15, "{spec} {shape:?}: {error:e}");
        }
        // Rewritten equations have several terms in b, for which this family has no place.
        let shape = Shape { levels: 1, lanes: 8, unroll: 8, awaited: 4 };
        let rewritten = split(rewrite(&system, Rewrite::of(1000, 64)), Parts::of_rows(64));
        let packed = pack(&rewritten, Dtype::F64, &shape);
        let proved = packed.and_then(|packed| prove(&packed, &shape, system.triangular.rows()));
        assert!(proved.is_err(), "{spec}");
    }
}

#[test]
fn windows_leave_fewer_waits_and_compute_little_again() {
    let matrix = lower(6000, |r| {
        let near = [r.checked_sub(101), r.checked_sub(100), r.checked_sub(1)];
        near.into_iter().flatten().map(|col| col as u32).collect()
    });
    let system = system(&matrix, Dtype::F64);
    let levels = system.levels.widths.len();
    let of = |levels| packed(&system, &Shape { levels, lanes: 1, unroll: 4, awaited: 4 });
    let (one, eight) = (of(1), of(8));
    assert_eq!((one.windows as usize, one.again), (levels, 0));
    assert!(eight.windows as usize <= levels.div_ceil(8) * 2, "{} of {levels}", eight.windows);
    assert!(eight.again < 6000 / 2, "{} rows computed again", eight.again);
}

#[test]
fn what_could_wait_for_ever_or_read_what_is_not_there_is_refused() {
    let system = system(&generated("ilu0_poisson2d:nx=30,ny=20,seed=1"), Dtype::F64);
    let shape = Shape { levels: 4, lanes: 2, unroll: 2, awaited: 2 };
    let whole = packed(&system, &shape);
    let rows = system.triangular.rows();
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
    assert!(complaint(&|it| it.awaited = words(&it.awaited, 0, last)).contains("would await slot"));
    assert!(complaint(&|it| it.passes = words(&it.passes, 3, 0)).contains("own"));
    let first = whole.rows.iter().position(|&row| row != NO_ROW).unwrap();
    let other = whole.rows.iter().rposition(|&row| row != NO_ROW).unwrap();
    let twice = complaint(&|it| it.rows = words(&it.rows, first, it.rows[other]));
    assert!(twice.contains("owned twice") || twice.contains("no group owns"), "{twice}");
    assert!(complaint(&|it| it.rows = words(&it.rows, first, rows as u32)).contains("has row"));
    let ahead = complaint(&|it| {
        let mut cols = it.cols.to_vec();
        cols[0] = shape.first_row() as u16;
        it.cols = cols.into();
    });
    assert!(ahead.contains("not there yet"), "{ahead}");
    assert!(complaint(&|it| it.groups = words(&it.groups, 3, 99)).contains("group 0"));
}

#[test]
fn listed_schemes_are_lowered_and_solve() {
    let system = system(&generated("ilu0_poisson2d:nx=50,ny=50,seed=1"), Dtype::F64);
    let b: Vec<f64> = (0..2500).map(|row| f64::from(row % 17) - 8.0).collect();
    let expected = oracle::sptrsv(&system.triangular, &b, 1);
    let mut lowerer = OverlappedLowerer::default();
    let scored = share(&system).scored;
    for (candidate, _) in scored.iter().step_by(5) {
        let recipe = lowerer.lower(candidate, &system).expect("lowers");
        let Program::Cuda(program) = &recipe.program else { panic!("no program") };
        let scheme = Scheme::of(candidate).unwrap();
        let step = &program.steps[0];
        assert!(step.resident && step.grid[0] <= gpu().multiprocessors);
        assert_eq!(
            u64::from(step.shared_bytes),
            u64::from(scheme.warps) * scheme.shape.warp_bytes(Dtype::F64)
        );
        let (x, _) = interpret(&packed(&system, &scheme.shape), &scheme.shape, &b);
        let off = x
            .iter()
            .zip(&expected)
            .map(|(x, y)| (x - y).abs() / (1.0 + y.abs()))
            .fold(0.0, f64::max);
        assert!(off < 1e-12, "{candidate}: {off:e}");
    }
}

/// No spills, registers for the warps that the schemes ask for, and shared memory as the host computes it.
#[test]
fn every_shape_of_the_kernel_compiles_within_its_registers() {
    let Some(compiler) = nvrtc::nvrtc() else { return };
    let mut jobs = Vec::new();
    for dtype in [Dtype::F32, Dtype::F64] {
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem =
            Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
        for (levels, lanes, unroll, awaited) in
            [(1, 1, 2, 2), (2, 1, 8, 4), (4, 2, 4, 4), (8, 4, 2, 2), (16, 1, 4, 2), (16, 8, 8, 4)]
        {
            let shape = Shape { levels, lanes, unroll, awaited };
            let scheme = Scheme { shape, warps: 16 };
            // The size that the host computes, checked by the compiler.
            let bytes = shape.warp_bytes(dtype);
            let check = format!(
                "static_assert(sizeof(GroupMemory<OverlappedConfig<Solve>>) == {bytes}, \"size\");\n"
            );
            let text = source(&scheme, &problem) + &check;
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
                    println!(
                        "{:3} registers, {} spilled: {label}",
                        binary.registers, binary.spill_bytes
                    );
                    let good = binary.spill_bytes == 0 && binary.registers <= 128;
                    (!good).then(|| {
                        format!(
                            "{label}: {} registers, {} spilled",
                            binary.registers, binary.spill_bytes
                        )
                    })
                }
            }
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
