//! Products in f16, bf16, f32 and f64, in both layouts, adding to C or not, on a real device: what the verification catches in each
//! type, and every routine of the vendor's.

use crate::product::operands;
use crate::{EFFORT, vendor};
use sparsetune::domain::recipe::{Arg, CudaProgram, Program, Recipe, Step};
use sparsetune::domain::{Candidate, Dtype, Layout, Output, Spmm};
use sparsetune::engine::cuda::CudaEngine;
use sparsetune::engine::cuda::compile::options;
use sparsetune::engine::cuda::nvrtc::Nvrtc;
use sparsetune::engine::cuda::source;
use sparsetune::engine::libraries::Search;
use sparsetune::engine::{Check, Engine, EngineError};
use sparsetune::sparse::Csr;
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::tolerance::tolerance;
use std::sync::Arc;

/// One thread per element of C, with the row as the slow index. `STORE` is what it does with its sum, `at` is its place.
const BODY: &str = r#"
#include "spmm/element.cuh"
using namespace sparsetune;
using T = ELEMENT;
using R = RESULT;
extern "C" __global__ void spmm(const u32* row_ptr, const u32* col_idx, const T* values, const T* b, R* c,
                                Sum<T> alpha, Sum<T> beta, u32 rows, u32 cols, u32 n) {
  const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (u64)rows * n) return;
  const u32 row = i / n, j = i % n;
  Sum<T> sum = 0;
  for (u32 k = row_ptr[row]; k < row_ptr[row + 1]; ++k) {
    const u64 from = BY_ROWS ? (u64)col_idx[k] * n + j : (u64)j * cols + col_idx[k];
    sum = multiply_add(widen(values[k]), widen(b[from]), sum);
  }
  const u64 at = BY_ROWS ? i : (u64)j * rows + row;
  if (ACCUMULATE) sum = alpha * sum + (beta == Sum<T>(0) ? Sum<T>(0) : beta * widen(c[at]));
  STORE
}
"#;

const STORE: &str = "c[at] = narrow<R>(sum);";
const BLOCK: u32 = 128;

fn kernel(matrix: &Csr, spmm: &Spmm, store: &str) -> Recipe {
    let (rows, n) = (matrix.rows() as u32, spmm.n);
    let operands = [Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::B, Arg::C, Arg::Alpha, Arg::Beta];
    let shape = [rows, matrix.cols() as u32, n].map(Arg::U32);
    let args = operands.into_iter().chain(shape).collect();
    let grid = (u64::from(rows) * u64::from(n)).div_ceil(u64::from(BLOCK)) as u32;
    let program = CudaProgram::of(text(spmm, store), Step::of("spmm", grid, BLOCK, args));
    Recipe::bare(&Candidate::new("test"), Program::Cuda(program))
}

fn text(spmm: &Spmm, store: &str) -> String {
    let [element, result] = [spmm.dtype, spmm.result()].map(|dtype| match dtype {
        Dtype::F16 => "sparsetune::Half",
        Dtype::Bf16 => "sparsetune::Brain",
        Dtype::F32 => "float",
        Dtype::F64 => "double",
    });
    let by_rows = spmm.layout == Layout::Row;
    let body = BODY.replace("STORE", store);
    let accumulate = spmm.accumulate;
    format!(
        "#define ELEMENT {element}\n#define RESULT {result}\n#define BY_ROWS {by_rows}\n#define ACCUMULATE {accumulate}\n{body}"
    )
}

fn problems() -> Vec<Spmm> {
    let mut all = Vec::new();
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
        for layout in [Layout::Row, Layout::Col] {
            for accumulate in [false, true] {
                // Odd, so that the last element of C in f16 shares its word with the guard.
                let same = Spmm { accumulate, ..Spmm::new(33, dtype, layout) };
                all.push(same);
                if dtype.is_half() {
                    all.push(Spmm { output: Output::F32, ..same });
                }
            }
        }
    }
    all
}

/// 1001 rows of four entries and every seventh without any; values of about 1.
fn matrix() -> Csr {
    let (rows, cols) = (1001usize, 703usize);
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        for i in 0..if row % 7 == 3 { 0 } else { 4 } {
            indices.push((row % 100 + i * 150) as u32);
            values.push(0.7 + (row * 7 + i * 3) as f64 % 11.0 / 9.0);
        }
        indptr.push(indices.len());
    }
    Csr::new(rows, cols, indptr, indices, values).expect("canonical")
}

#[test]
fn the_texts_compile() {
    let named = std::env::var_os("SPARSETUNE_NVRTC").map(std::path::PathBuf::from);
    let search = Search::new(&named.into_iter().collect::<Vec<_>>());
    let Ok(nvrtc) = Nvrtc::open(&search) else {
        println!("SKIPPED: no NVRTC");
        return;
    };
    for spmm in problems() {
        let unit = source::unit(&text(&spmm, STORE)).expect("assembles");
        let built = nvrtc.compile(&unit, &options("sm_90", None));
        assert!(built.is_ok(), "{spmm:?}: {built:?}");
    }
}

pub fn run(engine: &mut CudaEngine) {
    let matrix = Arc::new(matrix());
    for spmm in problems() {
        verification(engine, &matrix, &spmm);
    }
    let nearly_dense = Spec::parse("pruned:rows=512,cols=768,sparsity=0.8,seed=5");
    let nearly_dense = nearly_dense.expect("a spec").generate().expect("a matrix");
    for matrix in [matrix, Arc::new(nearly_dense)] {
        for spmm in problems() {
            vendors(engine, &matrix, &spmm);
            // A product with a vector is another routine.
            vendors(engine, &matrix, &Spmm { n: 1, ..spmm });
        }
    }
}

fn verification(engine: &mut CudaEngine, matrix: &Arc<Csr>, spmm: &Spmm) {
    engine.load(operands(matrix, spmm, 3)).expect("loads");
    let right = |check: &Check| check.unwritten == 0 && check.rel_error <= tolerance(spmm);
    let mut verify = |store: &str| -> Check {
        engine.verify(&kernel(matrix, spmm, store), None).expect("verifies")
    };
    let check = verify(STORE);
    println!("{spmm:?}: {check:?}, allowed {:.1e}", tolerance(spmm));
    assert!(right(&check), "{spmm:?}: {check:?}");

    let off = "c[at] = narrow<R>(row == 8 && j == 5 ? sum + Sum<T>(0.5) : sum);";
    let check = verify(off);
    let (rows, n) = (matrix.rows() as u64, u64::from(spmm.n));
    let place = |row, j| if spmm.layout == Layout::Row { row * n + j } else { j * rows + row };
    assert!(!right(&check) && check.worst == place(8, 5), "{spmm:?}: {check:?}");

    let check = verify("if (row != 999) c[at] = narrow<R>(sum);");
    assert!(!right(&check) && check.unwritten == n, "{spmm:?}: {check:?}");

    if spmm.accumulate {
        // C is NaN where beta is 0, so that a product that reads it is detected.
        let check =
            verify("c[at] = narrow<R>(beta == Sum<T>(0) ? sum + beta * widen(c[at]) : sum);");
        assert_eq!(check.rel_error, f64::INFINITY, "{spmm:?}: {check:?}");
    }

    let check = verify("c[at] = narrow<R>(sum); if (i == 0) c[(u64)rows * n] = narrow<R>(sum);");
    assert_eq!((check.rel_error, check.worst), (f64::INFINITY, rows * n), "{spmm:?}");
    assert!(right(&verify(STORE)));
}

fn vendors(engine: &mut CudaEngine, matrix: &Arc<Csr>, spmm: &Spmm) {
    let mut sparse = 0;
    for tf32 in [false, true] {
        let consent = Spmm { tf32, ..*spmm };
        let mut algorithms: Vec<&str> = match (tf32, spmm.dtype) {
            (false, _) => vec!["csr_alg1", "csr_alg2", "csr_alg3", "cublas_dense"],
            (true, Dtype::F32) => vec!["cublas_dense_tf32"],
            (true, _) => vec![],
        };
        if !tf32 && spmm.n == 1 {
            algorithms.extend(["spmv_alg1", "spmv_alg2"]);
        }
        if !tf32 && [matrix.rows(), matrix.cols()].iter().all(|extent| extent % 32 == 0) {
            algorithms.extend(["bsr4", "bsr8", "bsr16", "bsr32"]);
        }
        engine.load(operands(matrix, &consent, 3)).expect("loads");
        for algorithm in algorithms {
            let recipe = vendor(algorithm);
            let check = match engine.verify(&recipe, None) {
                Ok(check) => check,
                Err(EngineError::Refused(reason)) => {
                    println!("{algorithm} {consent:?}: refused, {reason}");
                    continue;
                }
                Err(error) => panic!("{algorithm} {consent:?}: {error:?}"),
            };
            let median_us = engine.time(&recipe, &EFFORT).expect("times").median_us;
            println!("{algorithm} {consent:?}: {median_us:.2} us, error {:.1e}", check.rel_error);
            assert_eq!(check.unwritten, 0, "{algorithm} {consent:?}");
            let own_sparse = !algorithm.starts_with("cublas");
            // cuSPARSE does not document that a sum of binary16 made by several blocks is rounded once; cuBLAS may truncate
            // operands when it converts them to tf32, which is twice as far off as rounding.
            let slack = match consent.dtype {
                Dtype::F16 | Dtype::Bf16 if own_sparse => 4.0,
                Dtype::F32 if consent.tf32 => 2.0,
                _ => 1.0,
            };
            let most = slack * tolerance(&consent);
            assert!(
                check.rel_error <= most,
                "{algorithm} {consent:?}: {check:?}, allowed {most:.1e}"
            );
            sparse += u32::from(own_sparse);
        }
    }
    assert!(sparse > 0, "{spmm:?}");
}
