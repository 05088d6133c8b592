//! The families `sweeps` and `inverse` on a real device against the same computation on the host: what is approximate has to be so in the
//! way that is described. Skips with a message where there is no device.

#[path = "fixture/engine.rs"]
mod engine;
#[path = "fixture/system.rs"]
mod system;

use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::{Candidate, Dtype, Sptrsv};
use sparsetune::engine::{Dense, Engine, Expected};
use sparsetune::ops::TunableProblem;
use sparsetune::ops::sptrsv::inverse::compute::{Denied, Inverse};
use sparsetune::ops::sptrsv::sweeps::estimate::approximation;
use sparsetune::ops::sptrsv::{inverse, sweeps};
use sparsetune::sparse::{Csr, Triangular};
use std::sync::Arc;

fn matrices() -> Vec<(&'static str, Csr)> {
    let matrix = |rows, columns: fn(usize) -> Vec<usize>| system::matrix(rows, 0.9, columns);
    vec![
        ("one row", matrix(1, |_| vec![])),
        ("diagonal", matrix(1000, |_| vec![])),
        ("chain", matrix(2777, |row| vec![row.saturating_sub(1)])),
        ("dense", matrix(150, |row| (0..row).collect())),
        ("ragged", matrix(1501, |row| (0..row).filter(|col| (col * 7 + row) % 41 == 0).collect())),
        ("huge row", matrix(9001, |row| if row == 9000 { (0..9000).collect() } else { vec![] })),
    ]
}

fn problems() -> Vec<Sptrsv> {
    let plain = Sptrsv { approximate: true, ..Sptrsv::PLAIN };
    vec![
        plain,
        Sptrsv { dtype: Dtype::F32, ..plain },
        Sptrsv { triangle: Triangle::Upper, diagonal: Diagonal::Unit, ..plain },
        Sptrsv { transpose: true, dtype: Dtype::F32, ..plain },
    ]
}

fn wide(dense: &Dense) -> Vec<f64> {
    match dense {
        Dense::F32(values) => values.iter().map(|&value| value.into()).collect(),
        Dense::F64(values) => values.to_vec(),
        Dense::F16(_) | Dense::Bf16(_) => panic!("solves are in f32 and f64"),
    }
}

/// The largest |T x - b| beside the largest |b|, as devices judge it.
fn residual(system: &Triangular, b: &[f64], x: &[f64]) -> f64 {
    let largest = b.iter().fold(0.0, |most: f64, b| most.max(b.abs()));
    let left = (0..b.len()).map(|s| {
        let (columns, values) = system.row(s);
        let terms = columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]);
        (terms.sum::<f64>() + system.diagonal[s] * x[s] - b[s]).abs()
    });
    left.fold(0.0, f64::max) / largest
}

/// A scheme of one of the families, with what it makes of a right-hand side in solve order.
enum Tried {
    Swept(sweeps::scheme::Scheme),
    Inverted(inverse::scheme::Scheme),
}

impl Tried {
    fn candidate(&self) -> Candidate {
        match self {
            Self::Swept(scheme) => scheme.candidate(),
            Self::Inverted(scheme) => scheme.candidate(),
        }
    }

    /// `None` where rows are so coupled that an inverse would have too many entries.
    fn made(
        &self,
        system: &Triangular,
        dtype: Dtype,
        sides: &[Vec<f64>; 2],
    ) -> Option<[Vec<f64>; 2]> {
        match self {
            Self::Swept(scheme) => Some(sides.each_ref().map(|b| approximation(system, b, scheme))),
            Self::Inverted(scheme) => match Inverse::of(system, dtype, scheme.map) {
                Ok(inverse) => Some(sides.each_ref().map(|b| {
                    let (once, twice) = inverse.approximations(b);
                    twice.unwrap_or(once)
                })),
                Err(denied) => {
                    assert_eq!(denied, Denied::Entries);
                    None
                }
            },
        }
    }
}

#[test]
fn sweeps_compute_what_the_host_computes() {
    let every = sweeps::scheme::Scheme::every().into_iter();
    let few = every.filter(|scheme| scheme.sweeps <= 6).map(Tried::Swept);
    computed_as_on_the_host(&few.collect::<Vec<_>>(), 11);
}

#[test]
fn approximate_inverses_compute_what_the_host_computes() {
    let every = inverse::scheme::Scheme::every().into_iter().map(Tried::Inverted);
    computed_as_on_the_host(&every.collect::<Vec<_>>(), 5);
}

/// Of every system and problem one scheme in `step`, from another one on each time.
fn computed_as_on_the_host(every: &[Tried], step: usize) {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let Some(mut engine) = engine::engine(cache.path()) else { return };
    let device = engine.device().clone();
    let (mut tried, mut faults) = (0, Vec::new());
    let mut offset = 0;
    for (label, matrix) in matrices() {
        let matrix = Arc::new(matrix);
        for problem in problems() {
            let operands = system::operands(&matrix, &problem);
            let Expected::Solution(solve) = &operands.expected else { panic!("a solve") };
            let (system, sides) = (solve.system.clone(), [&operands.b, &solve.second].map(wide));
            engine.load(operands).expect("loads");
            let mut lowerer = problem.lowerer(matrix.clone(), &device).expect("sptrsv");
            let ordered = sides
                .map(|b| -> Vec<f64> { (0..b.len()).map(|s| b[system.original(s)]).collect() });
            offset = (offset + 2) % step;
            for scheme in every.iter().skip(offset).step_by(step) {
                let Some([first, expected]) = scheme.made(&system, problem.dtype, &ordered) else {
                    continue;
                };
                let candidate = scheme.candidate();
                let recipe = lowerer.lower(&candidate).expect("lowers");
                engine.compile(&recipe).expect("compiles");
                // The second right-hand side is solved last.
                let check = engine.verify(&recipe, None).expect("runs");
                assert_eq!(check.unwritten, 0, "{label} {problem:?} {candidate}");
                let words = engine.output().expect("reads");
                let x: Vec<f64> = match problem.dtype {
                    Dtype::F64 => words
                        .chunks_exact(2)
                        .map(|two| f64::from_bits(u64::from(two[0]) | u64::from(two[1]) << 32))
                        .collect(),
                    _ => words.iter().map(|&word| f32::from_bits(word).into()).collect(),
                };
                let left = residual(&system, &ordered[0], &first);
                let left = left.max(residual(&system, &ordered[1], &expected));
                let close = if problem.dtype == Dtype::F64 { 1e-11 } else { 1e-4 };
                if (check.rel_error - left).abs() > close * left.max(1.0) {
                    let judged = check.rel_error;
                    faults.push(format!("{label} {problem:?} {candidate}: {judged}, not {left}"));
                }
                let most = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                let bound = most * if problem.dtype == Dtype::F64 { 1e-13 } else { 1e-5 };
                let off = (0..expected.len())
                    .map(|s| (x[system.original(s)] - expected[s]).abs())
                    .position(|off| off.is_nan() || off > bound);
                tried += 1;
                if let Some(s) = off {
                    let (x, expected) = (x[system.original(s)], expected[s]);
                    faults.push(format!(
                        "{label} {problem:?} {candidate}: x[{s}] is {x}, not {expected}"
                    ));
                }
            }
        }
    }
    assert!(tried > 0);
    println!("{tried} schemes tried, {} faults", faults.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
