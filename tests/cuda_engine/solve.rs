//! Triangular solves on the device: verification that catches what it must, cuSPARSE SpSV and SpSM, the measured hop.

use crate::{EFFORT, vendor};
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Recipe, Step};
use sparsetune::domain::{Candidate, Dtype, L2Policy, Problem, Sptrsv};
use sparsetune::engine::cuda::CudaEngine;
use sparsetune::engine::{Check, Dense, Engine, EngineError, Expected, Operands, Solve};
use sparsetune::sparse::tolerance::APPROXIMATE;
use sparsetune::sparse::{Csr, Triangular, operand, oracle};
use std::sync::Arc;
use std::time::Instant;

/// Forward substitution, one thread per right-hand side. `STORE` is what it does with x.
const BODY: &str = r#"
extern "C" __global__ void solve(const unsigned* row_ptr, const unsigned* col_idx, const T* values,
                                 const T* diagonal, const T* b, T* c, unsigned rows, unsigned rhs,
                                 unsigned reversed, const T* known) {
  const unsigned j = threadIdx.x;
  if (j >= rhs) return;
  for (unsigned s = 0; s < rows; ++s) {
    const unsigned row = reversed ? rows - 1 - s : s;
    T x = b[row * rhs + j];
    for (unsigned k = row_ptr[s]; k < row_ptr[s + 1]; ++k) {
      x -= values[k] * c[(reversed ? rows - 1 - col_idx[k] : col_idx[k]) * rhs + j];
    }
    x /= diagonal[s];
    STORE
  }
}
"#;

const STORE: &str = "c[row * rhs + j] = x;";

pub fn solves(engine: &mut CudaEngine) {
    let hop_ns = engine.device().hop_ns;
    println!("hop {hop_ns:.0} ns");
    assert!((100.0..3000.0).contains(&hop_ns), "{hop_ns}");
    for dtype in [Dtype::F32, Dtype::F64] {
        every_system(engine, dtype);
        mistakes(engine, dtype);
        approximations(engine, dtype);
        odd_shapes(engine, dtype);
        long_row(engine, dtype);
    }
    refusals(engine);
}

struct Case {
    operands: Operands,
    system: Arc<Triangular>,
    problem: Sptrsv,
}

fn problem(rhs: u32, dtype: Dtype) -> Sptrsv {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    Sptrsv { rhs, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN }
}

/// About `row_nnz` entries per row in both triangles, small beside the diagonal; every fifth row has only its diagonal.
fn matrix(rows: usize, row_nnz: usize) -> Csr {
    let draws = operand::random(rows * (row_nnz + 1), 11);
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        let draws = &draws[row * (row_nnz + 1)..][..row_nnz + 1];
        let others = if row % 5 == 4 { &[] } else { &draws[..row_nnz] };
        let column = |draw: &f32| ((draw + 1.0) / 2.0 * rows as f32) as usize % rows;
        let mut columns: Vec<usize> = others.iter().map(column).chain([row]).collect();
        columns.sort_unstable();
        columns.dedup();
        for column in columns {
            let off = f64::from(draws[column % row_nnz.max(1)]) / (1.0 + row_nnz as f64);
            indices.push(column as u32);
            values.push(if column == row { 1.5 + f64::from(draws[row_nnz]) / 3.0 } else { off });
        }
        indptr.push(indices.len());
    }
    Csr::new(rows, rows, indptr, indices, values).expect("canonical")
}

fn case(matrix: Csr, problem: Sptrsv) -> Case {
    let len = matrix.rows() * problem.rhs as usize;
    let side = |seed| match problem.dtype {
        Dtype::F64 => Dense::from(operand::random_double(len, seed)),
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => Dense::from(operand::random(len, seed)),
    };
    let system = Arc::new(Triangular::of(&matrix, &problem).expect("a system"));
    let solve = Solve { system: system.clone(), second: side(4) };
    let operands = Operands {
        matrix: Arc::new(matrix),
        problem: Problem::Sptrsv(problem),
        l2_policy: L2Policy::Warm,
        b: side(3),
        c0: None,
        expected: Expected::Solution(Arc::new(solve)),
    };
    Case { operands, system, problem }
}

impl Case {
    fn kernel(&self, store: &str) -> Recipe {
        let real = if self.problem.dtype == Dtype::F64 { "double" } else { "float" };
        let source = format!("#define T {real}\n{}", BODY.replace("STORE", store));
        let operands =
            [Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::Diagonal, Arg::B, Arg::C].into_iter();
        let numbers =
            [self.system.rows() as u32, self.problem.rhs, u32::from(self.system.reversed)];
        let args = operands.chain(numbers.map(Arg::U32)).chain([Arg::Array(0)]).collect();
        let program = CudaProgram::of(source, Step::of("solve", 1, 64, args));
        let arrays = vec![Array { name: "known".to_owned(), data: self.known() }];
        Recipe { arrays, ..Recipe::bare(&Candidate::new("test"), Program::Cuda(program)) }
    }

    /// The oracle's solution for the first right-hand side.
    fn known(&self) -> ArrayData {
        let rhs = self.problem.rhs as usize;
        match &self.operands.b {
            Dense::F64(b) => ArrayData::F64(oracle::sptrsv(&self.system, b, rhs).into()),
            Dense::F16(_) | Dense::Bf16(_) => panic!("no solve is in 16 bits"),
            Dense::F32(b) => {
                let b: Vec<f64> = b.iter().map(|&b| f64::from(b)).collect();
                let x = oracle::sptrsv(&self.system, &b, rhs);
                ArrayData::F32(x.into_iter().map(|x| x as f32).collect())
            }
        }
    }

    fn right(&self, check: Check) -> bool {
        let roundoff =
            if self.problem.dtype == Dtype::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) };
        check.unwritten == 0 && check.rel_error < 8.0 * roundoff
    }
}

fn routine(rhs: u32) -> Recipe {
    vendor(if rhs == 1 { "spsv" } else { "spsm" })
}

fn every_system(engine: &mut CudaEngine, dtype: Dtype) {
    for triangle in [Triangle::Lower, Triangle::Upper] {
        for diagonal in [Diagonal::NonUnit, Diagonal::Unit] {
            for (transpose, rhs) in [(false, 1), (true, 1), (false, 3), (true, 3), (false, 33)] {
                let problem = Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN };
                let case = case(matrix(400, 6), problem);
                engine.load(case.operands.clone()).expect("loads");
                let own = engine.verify(&case.kernel(STORE), None).expect("verifies");
                assert!(case.right(own), "{problem:?}: {own:?}");
                let vendors = engine.verify(&routine(rhs), None);
                println!("{}: {own:?}; vendor {vendors:?}", case.operands.problem);
                let vendors = vendors.expect("the vendor solves");
                assert!(case.right(vendors), "{problem:?}: {vendors:?}");
                let timing = engine.time(&routine(rhs), &EFFORT).expect("times");
                assert!(timing.median_us > 0.0);
            }
        }
    }
}

fn mistakes(engine: &mut CudaEngine, dtype: Dtype) {
    for transpose in [false, true] {
        let case = case(matrix(300, 5), Sptrsv { transpose, ..problem(3, dtype) });
        engine.load(case.operands.clone()).expect("loads");
        let mut verify = |store: &str| engine.verify(&case.kernel(store), None).expect("verifies");
        // The last row in solve order, so that no other is spoiled by it.
        let last = if transpose { 0u64 } else { 299 };
        let check = verify("c[row * rhs + j] = s == rows - 1 && j == 2 ? x + (T)0.5 : x;");
        assert!(check.rel_error > 1e-3 && check.worst == last * 3 + 2, "{check:?}");
        let check = verify("if (s != rows - 1) c[row * rhs + j] = x;");
        // Four calls, three right-hand sides each.
        assert_eq!((check.unwritten, check.rel_error), (4 * 3, f64::INFINITY), "{check:?}");
        let check = verify("c[row * rhs + j] = s == rows - 1 && j == 1 ? x / (T)0 * (T)0 : x;");
        assert_eq!((check.unwritten, check.worst), (0, last * 3 + 1), "{check:?}");
        assert_eq!(check.rel_error, f64::INFINITY);
        let past = "c[row * rhs + j] = x; if (s == 0 && j == 0) c[rows * rhs + 9] = x;";
        let check = verify(past);
        assert_eq!((check.rel_error, check.worst), (f64::INFINITY, 300 * 3 + 9), "{check:?}");
        // Right for the first right-hand side, whatever is asked.
        let check = verify("x = known[row * rhs + j]; c[row * rhs + j] = x;");
        assert!(check.rel_error > 1e-3 && check.unwritten == 0, "{check:?}");
        // A kernel that overwrites b is judged by the original b, and later calls get the original, too.
        let check = verify("c[row * rhs + j] = x; ((T*)b)[row * rhs + j] = 0;");
        assert!(case.right(check), "{check:?}");
        let check = verify(STORE);
        assert!(case.right(check), "{check:?}");
    }
}

/// What is approximate by design is judged by its largest residual beside the largest element of b.
fn approximations(engine: &mut CudaEngine, dtype: Dtype) {
    for triangle in [Triangle::Lower, Triangle::Upper] {
        let problem = Sptrsv { triangle, approximate: true, ..problem(1, dtype) };
        let case = case(matrix(300, 5), problem);
        engine.load(case.operands.clone()).expect("loads");
        let mut verify = |store: &str| {
            let recipe = Recipe { approximate: true, ..case.kernel(store) };
            engine.verify(&recipe, None).expect("verifies")
        };
        assert!(case.right(verify(STORE)));
        // The last unknown, which no other needs, is off: what is left is its part of one equation.
        let last = if triangle == Triangle::Lower { 299u64 } else { 0 };
        let Expected::Solution(solve) = &case.operands.expected else { panic!("a solve") };
        let largest = [&case.operands.b, &solve.second].map(|b| match b {
            Dense::F32(b) => b.iter().fold(0.0, |most: f64, b| most.max(f64::from(*b).abs())),
            Dense::F64(b) => b.iter().fold(0.0, |most: f64, b| most.max(b.abs())),
            Dense::F16(_) | Dense::Bf16(_) => panic!("no solve is in 16 bits"),
        });
        for (off, within) in [(0.05, true), (0.5, false)] {
            let check = verify(&format!("c[row] = s == rows - 1 ? x + (T){off} : x;"));
            let left = off * case.system.diagonal[299].abs() / largest[0].min(largest[1]);
            assert!((check.rel_error - left).abs() < 1e-5, "{check:?}, not {left}");
            assert_eq!((check.worst, check.unwritten), (last, 0), "{check:?}");
            assert_eq!(check.rel_error <= APPROXIMATE, within, "{check:?}");
        }
        let check = verify("c[row] = s == rows - 1 ? x / (T)0 * (T)0 : x;");
        assert_eq!((check.rel_error, check.worst), (f64::INFINITY, last), "{check:?}");
        let check = verify("if (s != rows - 1) c[row] = x;");
        assert_eq!((check.unwritten, check.rel_error), (4, f64::INFINITY), "{check:?}");
        // An exact scheme is judged as for any other problem.
        let off = "c[row] = s == rows - 1 ? x + (T)0.05 : x;";
        let check = engine.verify(&case.kernel(off), None).expect("verifies");
        assert!(!case.right(check) && check.worst == last, "{check:?}");
    }
}

fn odd_shapes(engine: &mut CudaEngine, dtype: Dtype) {
    for (rows, row_nnz) in [(0, 1), (1, 1), (5, 1), (33, 40)] {
        for rhs in [1, 2, 33, 64] {
            let case = case(matrix(rows, row_nnz), problem(rhs, dtype));
            engine.load(case.operands.clone()).expect("loads");
            let check = engine.verify(&case.kernel(STORE), None).expect("verifies");
            assert!(case.right(check), "{rows} rows, {rhs}: {check:?}");
            println!("{rows} rows, {rhs}: vendor {:?}", engine.verify(&routine(rhs), None));
        }
    }
}

/// A last row that depends on all others: its check is shared by a block.
fn long_row(engine: &mut CudaEngine, dtype: Dtype) {
    let rows = 200_000usize;
    let indices: Vec<u32> = (0..rows as u32 - 1).chain(0..rows as u32).collect();
    let indptr: Vec<usize> = (0..rows).chain([2 * rows - 1]).collect();
    let values = (0..2 * rows - 1).map(|at| if at < rows - 1 { 1.25 } else { 0.75 }).collect();
    let matrix = Csr::new(rows, rows, indptr, indices, values).expect("canonical");
    for rhs in [1, 33] {
        let case = case(matrix.clone(), problem(rhs, dtype));
        engine.load(case.operands.clone()).expect("loads");
        let check = engine.verify(&routine(rhs), None).expect("verifies");
        assert!(case.right(check), "{check:?}");
        let started = Instant::now();
        engine.verify(&routine(rhs), None).expect("verifies");
        println!("one row of {rows}, {rhs}, {dtype}: verified in {:.1?}", started.elapsed());
        if dtype == Dtype::F64 {
            // One term of 200,000 is left out.
            let lost = "if (s == rows - 1) x += values[row_ptr[s]] * c[j] / diagonal[s]; c[row * rhs + j] = x;";
            let check = engine.verify(&case.kernel(lost), None).expect("verifies");
            assert!(
                !case.right(check) && check.worst / u64::from(rhs) == rows as u64 - 1,
                "{check:?}"
            );
        }
    }
}

fn refusals(engine: &mut CudaEngine) {
    let case = case(matrix(50, 3), problem(2, Dtype::F64));
    engine.load(case.operands.clone()).expect("loads");
    for algorithm in ["spsv", "csr_alg2"] {
        let refused = engine.compile(&vendor(algorithm));
        assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
    }
    let short = Operands { b: vec![0.0f64; 3].into(), ..case.operands.clone() };
    assert!(matches!(engine.load(short), Err(EngineError::Refused(_))));
    let other = Operands { b: vec![0.0f32; 100].into(), ..case.operands.clone() };
    assert!(matches!(engine.load(other), Err(EngineError::Refused(_))));
}
