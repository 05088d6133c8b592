//! MKL against the oracle, where it is found: in an active virtual environment, in the one of this project's tests, or in a
//! usual place. Elsewhere these tests say that they did nothing.

use super::{Layer, Mkl};
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::recipe::{Program, Recipe};
use crate::domain::{Candidate, Dtype, L2Policy, Layout, Problem, Spmm, Sptrsv};
use crate::engine::cpu::CpuEngine;
use crate::engine::{ALPHA, BETA, Dense, Engine, Expected, Operands, Solve};
use crate::sparse::{Csr, Triangular, operand, oracle};
use std::path::PathBuf;
use std::sync::Arc;

/// An engine with MKL; `None` where it is not installed.
fn engine() -> Option<CpuEngine> {
    let ours = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/venv"));
    match &Mkl::open(&[ours]).found {
        Ok(mkl) => {
            let isa = crate::engine::cpu::simd::Isa::best();
            let mut engine = CpuEngine::with(isa, CpuEngine::threads().unwrap(), 1.0);
            engine.use_mkl(mkl);
            Some(engine)
        }
        Err(error) => {
            println!("not run: {error}");
            None
        }
    }
}

/// Square, with entries of every fourth row left out, and row 5 full.
fn matrix(rows: usize) -> Arc<Csr> {
    let (mut indptr, mut indices) = (vec![0], Vec::new());
    for row in 0..rows {
        let mut columns: Vec<usize> = match row {
            5 => (0..rows).collect(),
            _ if row % 4 == 3 => Vec::new(),
            _ => (0..7).map(|e| (row * 5 + e * e * 11) % rows).collect(),
        };
        columns.sort_unstable();
        columns.dedup();
        indices.extend(columns.into_iter().map(|column| column as u32));
        indptr.push(indices.len());
    }
    let values = operand::random(indices.len(), 3).into_iter().map(f64::from).collect();
    Arc::new(Csr::new(rows, rows, indptr, indices, values).unwrap())
}

fn dense(len: usize, seed: u64, dtype: Dtype) -> Dense {
    let random = operand::random(len, seed);
    match dtype {
        Dtype::F64 => random.into_iter().map(f64::from).collect::<Vec<f64>>().into(),
        _ => random.into(),
    }
}

fn routine(name: &str) -> Recipe {
    let program = Program::Vendor { algorithm: name.to_owned() };
    Recipe::bare(&Candidate::new("vendor").with_text("algorithm", name), program)
}

#[test]
fn layers_have_the_numbers_of_mkl() {
    for layer in Layer::ALL {
        assert_eq!(Layer::of_number(layer.number()), Some(layer));
    }
    assert_eq!((Layer::of_number(2), Layer::of_number(-1)), (None, None));
}

#[test]
fn products_agree_with_the_oracle() {
    let Some(mut engine) = engine() else { return };
    let named = engine.device().vendor.clone().unwrap();
    assert!(named.starts_with("MKL 20"), "{named}");
    for rows in [1, 6, 97] {
        let matrix = matrix(rows);
        for n in [1, 3, 33, 128] {
            for (layout, accumulate) in [
                (Layout::Row, false),
                (Layout::Row, true),
                (Layout::Col, false),
                (Layout::Col, true),
            ] {
                for dtype in [Dtype::F32, Dtype::F64] {
                    let problem = Spmm { accumulate, ..Spmm::new(n, dtype, layout) };
                    let len = rows * n as usize;
                    let (b, c0) = (dense(len, 1, dtype), dense(len, 2, dtype));
                    let mut reference = match &b {
                        Dense::F64(b) => oracle::spmm(&matrix, b, &problem),
                        _ => oracle::spmm(&matrix, &operand::random(len, 1), &problem),
                    };
                    if accumulate {
                        reference.accumulate(&operand::random(len, 2), ALPHA, BETA);
                    }
                    let operands = Operands {
                        matrix: matrix.clone(),
                        problem: Problem::Spmm(problem),
                        l2_policy: L2Policy::Warm,
                        b,
                        c0: accumulate.then_some(c0),
                        expected: Expected::Product(Arc::new(reference)),
                    };
                    engine.load(operands).unwrap();
                    let names: &[&str] = if n == 1 { &["mkl_mm", "mkl_mv"] } else { &["mkl_mm"] };
                    for name in names {
                        let check = engine.verify(&routine(name), None).unwrap();
                        let bound = if dtype == Dtype::F64 { 1e-13 } else { 1e-5 };
                        assert_eq!(check.unwritten, 0, "{name} {problem:?}");
                        assert!(check.rel_error < bound, "{name} {problem:?}: {check:?}");
                    }
                    if n > 1 {
                        assert!(engine.compile(&routine("mkl_mv")).is_err());
                    }
                    assert!(engine.compile(&routine("mkl_trsv")).is_err());
                }
            }
        }
    }
}

#[test]
fn solves_agree_with_the_oracle() {
    let Some(mut engine) = engine() else { return };
    let rows = 61;
    // A full diagonal, and entries on both sides of it.
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        let mut columns = vec![row, (row * 7 + 1) % rows, (row * 3 + 20) % rows];
        columns.sort_unstable();
        columns.dedup();
        values.extend(columns.iter().map(|&it| if it == row { 3.0 } else { 0.25 }));
        indices.extend(columns.into_iter().map(|column| column as u32));
        indptr.push(indices.len());
    }
    let matrix = Arc::new(Csr::new(rows, rows, indptr, indices, values).unwrap());
    for rhs in [1, 3] {
        for dtype in [Dtype::F32, Dtype::F64] {
            for triangle in [Triangle::Lower, Triangle::Upper] {
                for (transpose, diagonal) in
                    [(false, Diagonal::NonUnit), (true, Diagonal::NonUnit), (false, Diagonal::Unit)]
                {
                    let problem =
                        Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN };
                    let system = Arc::new(Triangular::of(&matrix, &problem).unwrap());
                    let [b, second] = [1, 2].map(|seed| dense(rows * rhs as usize, seed, dtype));
                    let operands = Operands {
                        matrix: matrix.clone(),
                        problem: Problem::Sptrsv(problem),
                        l2_policy: L2Policy::Warm,
                        b,
                        c0: None,
                        expected: Expected::Solution(Arc::new(Solve { system, second })),
                    };
                    engine.load(operands).unwrap();
                    let names: &[&str] =
                        if rhs == 1 { &["mkl_trsv", "mkl_trsm"] } else { &["mkl_trsm"] };
                    for name in names {
                        let check = engine.verify(&routine(name), None).unwrap();
                        let bound = if dtype == Dtype::F64 { 1e-14 } else { 1e-5 };
                        assert!(check.rel_error < bound, "{name} {problem:?}: {check:?}");
                        assert_eq!(check.unwritten, 0, "{name} {problem:?}");
                    }
                }
            }
        }
    }
}
