//! Time of training a forest on as many trials as a large corpus has, of scoring spaces of generated matrices by the shipped
//! models, and of scoring one larger than those. Run by hand:
//!
//! ```text
//! cargo bench --bench learn             # all
//! cargo bench --bench learn -- spaces   # without the training
//! ```

#[path = "../tests/fixture/gpu.rs"]
mod fixture;

use fixture::gpu;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::{Dtype, Layout, Problem, Spmm, Sptrsv};
use sparsetune::learn::lambdamart::{Params, train};
use sparsetune::learn::{Dataset, Forest, Group, Model, ModelFile, Row};
use sparsetune::ops::features::Described;
use sparsetune::ops::spmm::inspect::Inspection;
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::slices::{self, Estimate};
use sparsetune::ops::sptrsv::{chains, overlapped, streamed};
use sparsetune::ops::{self, spmm, sptrsv};
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::random::Stream;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

const SHARED: usize = 45;
const OWN: usize = 55;
const GROUPS: usize = 800;
const ROWS: usize = 125;
/// Candidates of a large space.
const SPACE: usize = 1500;

/// The shipped models, as a server loads them.
const SPMM: &[u8] = include_bytes!("../config/models/h100-80gb-spmm.json");
const SPTRSV: &[u8] = include_bytes!("../config/models/h100-80gb-sptrsv.json");

const MULTIPLIED: [&str; 6] = [
    "poisson2d:nx=150,ny=150,seed=1",
    "rmat:scale=14,seed=1",
    "circuit:n=20000,seed=1",
    "pruned:rows=1024,cols=1024,sparsity=0.9,seed=1",
    "uniform:rows=20000,cols=5000,nnz=200000,seed=1",
    "elasticity:nx=12,ny=12,nz=12,seed=1",
];
const SOLVED: [&str; 4] = [
    "ilu0_poisson2d:nx=200,ny=200,seed=1",
    "ilu0_poisson3d:nx=30,ny=30,nz=30,seed=1",
    "banded:n=10000,half=8,seed=1",
    "elasticity:nx=16,ny=16,nz=16,seed=1",
];

/// Number of times that each space is described and scored.
const TIMES: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` passes --bench, `cargo test --all-targets` does not: then nothing is measured.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("run by hand: cargo bench --bench learn");
        return Ok(());
    }
    let mut multiplied = Vec::new();
    for spec in MULTIPLIED {
        for (n, dtype, layout) in [
            (32, Dtype::F32, Layout::Row),
            (128, Dtype::F32, Layout::Row),
            (128, Dtype::F16, Layout::Col),
        ] {
            multiplied.push(Asked::multiplied(spec, Spmm::new(n, dtype, layout))?);
        }
    }
    in_turn(SPMM, &multiplied)?;
    let solved: Result<Vec<_>, _> = SOLVED.into_iter().map(Asked::solved).collect();
    in_turn(SPTRSV, &solved?)?;
    if std::env::args().any(|arg| arg == "spaces") {
        return Ok(());
    }
    let Some(forest) = trained() else { return Ok(()) };
    let mut scored = Vec::new();
    for at in 0..80 {
        let described = drawn(GROUPS as u64 + at);
        scored.push(us(|| forest.scores(&described.shared, &described.own)));
    }
    println!("scores of {SPACE} drawn candidates, {} spaces: {}", scored.len(), told(scored));
    Ok(())
}

/// A space of a generated matrix.
struct Asked {
    name: String,
    describe: Box<dyn Fn() -> Described>,
}

impl Asked {
    fn multiplied(spec: &str, problem: Spmm) -> Result<Self, Box<dyn Error>> {
        let (matrix, device) = (Spec::parse(spec)?.generate()?, gpu());
        let space = ops::space(&matrix, &Problem::Spmm(problem), &device)?;
        let seen = Inspection::of(&matrix);
        let name = format!("{spec} n={} {} {}", problem.n, problem.dtype, problem.layout);
        let describe = move || {
            let named = space.scored.iter().map(|(candidate, us)| (candidate, *us));
            spmm::features::describe(named, &seen, &problem, &device)
        };
        Ok(Self { name, describe: Box::new(describe) })
    }

    fn solved(spec: &str) -> Result<Self, Box<dyn Error>> {
        let (matrix, device) = (Spec::parse(spec)?.generate()?, gpu());
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs: 1,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        let space = ops::space(&matrix, &Problem::Sptrsv(problem), &device)?;
        let system = System::of(&matrix, &problem, &device)?;
        let estimate = Estimate::of(&system);
        let shares = [
            slices::share(&system, &estimate),
            overlapped::share(&system),
            chains::share(&system, &estimate),
            streamed::share(&system),
        ];
        let parts = shares.into_iter().flat_map(|share| share.parts).collect();
        let describe = move || {
            let named = space.scored.iter().map(|(candidate, us)| (candidate, *us));
            sptrsv::features::describe(named, &system, Some(&estimate), &parts)
        };
        Ok(Self { name: spec.to_owned(), describe: Box::new(describe) })
    }
}

/// Describes and scores the spaces in turn, repeatedly: as in a server, a request differs from the one just before.
fn in_turn(model: &[u8], all: &[Asked]) -> Result<(), Box<dyn Error>> {
    let file = ModelFile::parse(model)?;
    let Model::Lambdamart(forest) = &file.model else {
        return Err("a perceptron is shipped where a forest was".into());
    };
    println!("{}, {} trees:", file.scope.op, forest.trees.len());
    let mut times = vec![(Vec::new(), Vec::new()); all.len()];
    let mut candidates = vec![0; all.len()];
    for _ in 0..TIMES {
        for (at, asked) in all.iter().enumerate() {
            let mut described = Described::default();
            times[at].0.push(us(|| described = (asked.describe)()));
            let Described { shared, own } = &described;
            let reads = (file.shared.len(), file.own.len());
            if (shared.len(), own.first().map_or(reads.1, Vec::len)) != reads {
                return Err("the shipped model reads other features than these".into());
            }
            times[at].1.push(us(|| forest.scores(shared, own)));
            candidates[at] = own.len();
        }
    }
    for ((asked, (describing, scoring)), candidates) in all.iter().zip(times).zip(candidates) {
        let (describing, scoring) = (told(describing), told(scoring));
        println!(
            "  {}: {candidates} candidates, described in {describing}, scored in {scoring}",
            asked.name
        );
    }
    Ok(())
}

/// Microseconds that the work takes.
fn us<T>(work: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    black_box(work());
    started.elapsed().as_secs_f64() * 1e6
}

fn told(mut us: Vec<f64>) -> String {
    us.sort_by(f64::total_cmp);
    match us.as_slice() {
        [] => "no time".to_owned(),
        [best, ..] => format!("{:.0} us (best {best:.0})", us[us.len() / 2]),
    }
}

fn trained() -> Option<Forest> {
    let groups: Vec<Group> = (0..GROUPS).map(|at| group(at as u64, ROWS)).collect();
    let names = |kind: &str, count| (0..count).map(|at| format!("{kind}{at}")).collect();
    let data = Dataset { shared: names("shared", SHARED), own: names("own", OWN), groups };
    let seen: Vec<usize> = (0..GROUPS).filter(|at| at % 10 != 0).collect();
    // All trees are grown, whatever the held-out groups say.
    let params = Params { patience: usize::MAX, ..Params::default() };
    let started = Instant::now();
    let forest = train(&data, &seen, &[], &params, &mut |_| true)?;
    println!(
        "training: {:.1} s for {} trees on {} trials of {} features, {} threads",
        started.elapsed().as_secs_f64(),
        forest.trees.len(),
        seen.len() * ROWS,
        SHARED + OWN,
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    Some(forest)
}

fn drawn(at: u64) -> Described {
    let group = group(at, SPACE);
    Described { shared: group.shared, own: group.rows.into_iter().map(|row| row.own).collect() }
}

/// Some features are flags and sizes of few values, like those of candidates, and some are continuous; a dozen matter.
fn group(at: u64, rows: usize) -> Group {
    let mut random = Stream::new(3, at);
    let shared: Vec<f32> = (0..SHARED).map(|_| random.normal() as f32).collect();
    let row = |index: usize| {
        let value = |feature: usize| match feature % 5 {
            0 | 1 => (random.unit() * 2.0).floor() as f32,
            2 | 3 => (random.unit() * 6.0).floor() as f32,
            _ => random.normal() as f32,
        };
        let own: Vec<f32> = (0..OWN).map(value).collect();
        let decides = |feature: usize| {
            f64::from(own[feature] * (shared[feature] + 0.5))
                / if feature % 5 > 1 { 6.0 } else { 2.0 }
        };
        let nepers: f64 = (0..12).map(decides).sum();
        let us = (nepers + 0.05 * random.normal()).exp();
        Row { candidate: index.to_string(), own, us, predicted_us: us }
    };
    let rows = (0..rows).map(row).collect();
    Group { pattern: at.to_string(), shared, rows }
}
