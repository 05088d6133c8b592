//! Every CUDA kernel family against the float64 oracle on a real device: odd shapes, empty rows, one huge row, any n.
//!
//! Skips with a message where there is no device. `SPARSETUNE_KERNELS_EVERY=k` tries every k-th candidate (default 7).

use sparsetune::domain::recipe::Program;
use sparsetune::domain::{DeviceKind, Dtype, L2Policy, Layout, Problem, Spmm};
use sparsetune::engine::cuda::{CudaEngine, Options};
use sparsetune::engine::{Engine, Expected, Operands};
use sparsetune::evaluator::{tolerance, weigh_rows};
use sparsetune::ops::Lowerer;
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::{family, space};
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::{Csr, operand, oracle};
use std::sync::Arc;

/// Rows of lengths 0, 1, 2, ... and one that is full, over a shape that divides by nothing.
fn ragged() -> Csr {
    let (rows, cols) = (67usize, 301usize);
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
    Csr::new(rows, cols, indptr, indices, values).expect("canonical")
}

fn matrices() -> Vec<(&'static str, Csr)> {
    let generated = |spec: &str| Spec::parse(spec).expect(spec).generate().expect(spec);
    let one = Csr::new(1, 1, vec![0, 1], vec![0], vec![2.5]).expect("canonical");
    vec![
        ("one entry", one),
        ("ragged", ragged()),
        ("poisson2d", generated("poisson2d:nx=23,ny=19")),
        ("rmat", generated("rmat:scale=9,edge_factor=8,seed=3")),
    ]
}

#[test]
fn every_family_agrees_with_the_oracle() {
    if sparsetune::engine::cuda::probe::devices(&[]).is_empty() {
        assert!(std::env::var_os("SPARSETUNE_REQUIRE_GPU").is_none(), "no CUDA device here");
        println!("skipped: no CUDA device here");
        return;
    }
    let every: usize =
        std::env::var("SPARSETUNE_KERNELS_EVERY").ok().and_then(|k| k.parse().ok()).unwrap_or(7);
    let cache = tempfile::tempdir().expect("a temporary folder");
    let options = Options {
        ordinal: 0,
        cache: cache.path().to_path_buf(),
        libraries: Vec::new(),
        reference_bytes: None,
        compile_threads: std::thread::available_parallelism().map_or(2, usize::from),
    };
    let mut engine = CudaEngine::open(options).expect("the device opens");
    let (mut tried, mut wrong) = (0, Vec::new());
    for (name, matrix) in matrices() {
        let matrix = Arc::new(matrix);
        for n in [1, 2, 3, 8, 31, 32, 33, 64, 100, 130] {
            for layout in [Layout::Row, Layout::Col] {
                let spmm = Spmm::new(n, Dtype::F32, layout);
                let problem = Problem::Spmm(spmm);
                let b = operand::random(matrix.cols() * n as usize, 7);
                let mut reference = oracle::spmm(&matrix, &b, &spmm);
                weigh_rows(&matrix, &spmm, &mut reference.scale);
                let operands = Operands {
                    matrix: matrix.clone(),
                    problem,
                    l2_policy: L2Policy::Warm,
                    b: b.into(),
                    expected: Expected::Product(Arc::new(reference)),
                };
                engine.load(operands).expect("loads");
                let device = engine.device().clone();
                let mut lowerer = Lowerer::new(matrix.clone(), &problem, &device).expect("spmm");
                let legal = |c: &sparsetune::domain::Candidate| {
                    family::kernel(c, &spmm).is_some_and(|kernel| is_legal(&kernel.tile(), &spmm))
                };
                let candidates =
                    space::enumerate(&spmm, DeviceKind::Cuda).into_iter().filter(legal);
                let chosen =
                    candidates.skip(tried % every).step_by(every).chain(space::vendor(&device));
                let recipes: Vec<_> =
                    chosen.filter_map(|candidate| lowerer.lower(&candidate).ok()).collect();
                engine.prepare(&recipes);
                for recipe in recipes {
                    let label = format!("{name}, n={n}, {layout}: {}", recipe.candidate);
                    if let Err(error) = engine.compile(&recipe) {
                        // A vendor routine may decline; a kernel of ours may not.
                        if !matches!(recipe.program, Program::Vendor { .. }) {
                            wrong.push(format!("{label}: {error}"));
                        }
                        continue;
                    }
                    tried += 1;
                    match engine.verify(&recipe, None) {
                        Ok(check)
                            if check.unwritten == 0 && check.rel_error <= tolerance(Dtype::F32) => {
                        }
                        Ok(check) => wrong.push(format!("{label}: {check:?}")),
                        Err(error) => wrong.push(format!("{label}: {error}")),
                    }
                }
            }
        }
    }
    assert!(tried > 100, "only {tried} kernels were tried");
    println!("{tried} kernels verified, {} wrong", wrong.len());
    assert!(
        wrong.is_empty(),
        "{} of {tried} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}
