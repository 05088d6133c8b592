//! Every SpTRSV scheme on a real device: odd shapes, empty and huge rows, both triangles, transposes, any right-hand sides.
//!
//! A result is judged by its componentwise backward error on two right-hand sides. Skips with a message where there is no
//! device. `SPARSETUNE_KERNELS_EVERY=k` tries every k-th scheme of each space (default 97), beside one of each way to take,
//! wait and launch; `SPARSETUNE_KERNELS_ON=ragged` uses only matrices of that name, and
//! `SPARSETUNE_KERNELS_ONLY=ahead=1,!scope=sm` only schemes whose text has the one and not the other, for a sanitizer.

#[path = "fixture/amplifying.rs"]
mod amplifying;
#[path = "fixture/engine.rs"]
mod engine;
#[path = "fixture/system.rs"]
mod system;

use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::recipe::Program;
use sparsetune::domain::{Candidate, Device, Dtype, Problem, Sptrsv};
use sparsetune::engine::cuda::CudaEngine;
use sparsetune::engine::{Check, Engine};
use sparsetune::ops::sptrsv::slices::rewrite::Rewrite;
use sparsetune::ops::sptrsv::slices::scheme::{Scheme, Scope, Take};
use sparsetune::ops::sptrsv::streamed;
use sparsetune::ops::{self, Lowerer, TunableProblem};
use sparsetune::sparse::Csr;
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::tolerance::solution_tolerance;
use std::sync::Arc;

fn matrices() -> Vec<(&'static str, Csr)> {
    let matrix = |rows, columns: fn(usize) -> Vec<usize>| system::matrix(rows, 1.0, columns);
    let generated = |spec: &str| Spec::parse(spec).expect(spec).generate().expect(spec);
    vec![
        ("no row", matrix(0, |_| vec![])),
        ("one row", matrix(1, |_| vec![])),
        ("diagonal", matrix(1000, |_| vec![])),
        ("chain", matrix(777, |row| vec![row.saturating_sub(1)])),
        ("dense", matrix(150, |row| (0..row).collect())),
        ("ragged", matrix(501, |row| (0..row).filter(|col| (col * 7 + row) % 41 == 0).collect())),
        ("huge row", matrix(9001, |row| if row == 9000 { (0..9000).collect() } else { vec![] })),
        // Wide enough for launches of one level each.
        ("wide", matrix(160_000, |row| if row < 80_000 { vec![] } else { vec![row - 80_000] })),
        ("amplifying", amplifying::amplifying(1800, 150, false)),
        ("poisson2d", generated("poisson2d:nx=37,ny=29")),
        ("rmat", generated("ilu0_rmat:scale=10,edge_factor=6,seed=3")),
        ("cholesky", generated("cholesky_poisson2d:nx=41,ny=37,seed=1")),
        ("elasticity", generated("ilu0_elasticity:nx=6,ny=5,nz=4,seed=1")),
    ]
}

fn problems() -> Vec<Sptrsv> {
    let plain = Sptrsv {
        rhs: 1,
        dtype: Dtype::F64,
        triangle: Triangle::Lower,
        diagonal: Diagonal::NonUnit,
        transpose: false,
        ..Sptrsv::PLAIN
    };
    vec![
        plain,
        Sptrsv { dtype: Dtype::F32, ..plain },
        Sptrsv { triangle: Triangle::Upper, diagonal: Diagonal::Unit, ..plain },
        Sptrsv { transpose: true, dtype: Dtype::F32, ..plain },
        Sptrsv { rhs: 3, triangle: Triangle::Upper, transpose: true, ..plain },
        Sptrsv { rhs: 16, dtype: Dtype::F32, ..plain },
        Sptrsv { rhs: 33, ..plain },
    ]
}

struct Tried {
    schemes: usize,
    faults: Vec<String>,
}

impl Tried {
    /// Solves twice; a scheme must be right, and x the same both times, bit by bit. The answer is x, if there is one.
    fn one(
        &mut self,
        engine: &mut CudaEngine,
        lowerer: &mut dyn Lowerer,
        (label, problem): (&str, &Sptrsv),
        candidate: &Candidate,
    ) -> Option<Vec<u32>> {
        let name = format!("{label}, {}: {candidate}", Problem::Sptrsv(*problem));
        let recipe = match lowerer.lower(candidate) {
            Ok(recipe) => recipe,
            Err(refusal) => {
                // Only what depends on the transformed system may be refused this late.
                println!("refused: {name}: {refusal}");
                return None;
            }
        };
        let mut solve = || {
            engine.compile(&recipe).map_err(|error| error.to_string())?;
            let check = engine.verify(&recipe, None).map_err(|error| error.to_string())?;
            Ok::<_, String>((check, engine.output().map_err(|error| error.to_string())?))
        };
        self.schemes += 1;
        let right = |check: &Check| {
            check.unwritten == 0 && check.rel_error <= solution_tolerance(problem.dtype)
        };
        match (solve(), solve()) {
            (Ok((first, x)), Ok((second, again))) if right(&first) && right(&second) => {
                if let Some(word) = x.iter().zip(&again).position(|(a, b)| a != b) {
                    self.faults
                        .push(format!("{name}: word {word} of x differs between two solves"));
                }
                Some(x)
            }
            (first, second) => {
                let (first, second) =
                    (first.map(|(check, _)| check), second.map(|(check, _)| check));
                self.faults.push(format!("{name}: {first:?}, {second:?}"));
                None
            }
        }
    }
}

#[test]
fn every_scheme_solves_and_repeats_itself() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let Some(mut engine) = engine::engine(cache.path()) else { return };
    let every: usize =
        std::env::var("SPARSETUNE_KERNELS_EVERY").ok().and_then(|k| k.parse().ok()).unwrap_or(97);
    let device = engine.device().clone();
    let mut tried = Tried { schemes: 0, faults: Vec::new() };
    let mut offset = 0;
    let only = std::env::var("SPARSETUNE_KERNELS_ON").unwrap_or_default();
    for (label, matrix) in matrices().into_iter().filter(|(label, _)| label.contains(&only)) {
        let matrix = Arc::new(matrix);
        for problem in problems() {
            engine.load(system::operands(&matrix, &problem)).expect("loads");
            let whole = Problem::Sptrsv(problem);
            let space = ops::space(&matrix, &whole, &device).expect("a space");
            let mut lowerer = problem.lowerer(matrix.clone(), &device).expect("sptrsv");
            let mut candidates: Vec<Candidate> =
                space.scored.into_iter().map(|(candidate, _)| candidate).collect();
            candidates.sort();
            // A different start each time, so that all schemes are tried somewhere.
            offset = (offset + 13) % every.max(1);
            // One scheme for each way to take, to wait and to launch, and then every k-th.
            let mut ways = std::collections::BTreeSet::new();
            let chosen = |(i, candidate): &(usize, &Candidate)| {
                let way = [
                    "scope",
                    "take",
                    "sync",
                    "alpha",
                    "pause",
                    "refine",
                    "ahead",
                    "read",
                    "ws",
                    "substitute",
                    "staged",
                ];
                let way = way.map(|name| candidate.params.get(name).cloned());
                ways.insert((candidate.family.clone(), way)) || i % every.max(1) == offset
            };
            let is_wanted = |(_, candidate): &(usize, &Candidate)| wanted(candidate);
            for (_, candidate) in candidates.iter().enumerate().filter(chosen).filter(is_wanted) {
                tried.one(&mut engine, lowerer.as_mut(), (label, &problem), candidate);
            }
            // Runs of rows are listed for wider levels than any of these.
            let streamed =
                streamed::scheme::Scheme::every().into_iter().skip(offset % 3).step_by(3);
            let streamed = streamed.map(|scheme| scheme.candidate());
            let runs = matrix.rows() > 0 && problem.rhs == 1;
            for candidate in streamed.filter(|candidate| runs && wanted(candidate)) {
                tried.one(&mut engine, lowerer.as_mut(), (label, &problem), &candidate);
            }
            // Copying ahead changes no bit. Systems that amplify are not rewritten without refinement.
            let windows = if label == "amplifying" { 0 } else { 1000 };
            for scheme in ahead(windows).into_iter().filter(|scheme| wanted(&scheme.candidate())) {
                let plain = Scheme { ahead: false, ..scheme };
                let [with, without] = [scheme, plain].map(|scheme| {
                    let candidate = scheme.candidate();
                    tried.one(&mut engine, lowerer.as_mut(), (label, &problem), &candidate)
                });
                assert!(with.is_some() && with == without, "{label}, {problem:?}: {scheme:?}");
            }
        }
    }
    assert!(tried.faults.is_empty(), "{}", tried.faults.join("\n"));
}

/// `SPARSETUNE_KERNELS_ONLY=ahead=1,scope=global`: only schemes whose text has all of these, of those with `!` none.
fn wanted(candidate: &Candidate) -> bool {
    let text = candidate.to_string();
    let of = std::env::var("SPARSETUNE_KERNELS_ONLY").unwrap_or_default();
    of.split(',').filter(|part| !part.is_empty()).all(|part| match part.strip_prefix('!') {
        Some(part) => !text.contains(part),
        None => text.contains(part),
    })
}

/// Schemes that copy terms ahead, whether a search would list them or not.
fn ahead(windows: u32) -> [Scheme; 3] {
    let of = |window_ns, warps, unroll, take| Scheme {
        ahead: true,
        warps,
        unroll,
        take,
        ..Scheme::plain(Rewrite::of(window_ns, 64))
    };
    [
        of(0, 32, 4, Take::Block),
        of(0, 1, 8, Take::Spread),
        // Several terms in b a lane.
        Scheme { lanes: 1, ..of(windows, 16, 8, Take::Block) },
    ]
}

/// Refined schemes of every scope, with one launch a solve and with several, whether a search would list them or not.
fn refined(rhs: u32, clusters: bool) -> Vec<Scheme> {
    let rewrite = Rewrite { refine: true, ..Rewrite::of(1000, 256) };
    let plain = Scheme { unroll: 4, ..Scheme::plain(rewrite) };
    let mut all = vec![
        plain,
        Scheme { lanes: 4, unroll: 8, pause: 1, ..plain },
        Scheme { lanes: 1, warps: 32, take: Take::Spread, ..plain },
        // A level of 265 rows or more has a launch of its own.
        Scheme { lanes: 32, warps: 1, alpha: 2, ..plain },
    ];
    if rhs == 1 {
        let blocks: &[u32] = if clusters { &[1, 8] } else { &[1] };
        let shared =
            |&blocks| Scheme { take: Take::Spread, scope: Scope::Shared { blocks }, ..plain };
        all.extend(blocks.iter().map(shared));
    }
    all
}

#[test]
fn refined_schemes_solve_and_repeat_themselves() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let Some(mut engine) = engine::engine(cache.path()) else { return };
    // Where windows end, and so whether a rewriting passes its trial, depends on what hops and bytes take: not on this card's.
    let device = Device { hop_ns: 263.0, copy_gbps: 3000.0, ..engine.device().clone() };
    let mut tried = Tried { schemes: 0, faults: Vec::new() };
    let plain = Sptrsv { dtype: Dtype::F64, ..Sptrsv::PLAIN };
    let (mut launches, mut expected) = (0, 0);
    let only = std::env::var("SPARSETUNE_KERNELS_ON").unwrap_or_default();
    for (label, matrix) in [
        ("amplifying", amplifying::amplifying(1800, 150, false)),
        // A row that a whole block computes the residual of.
        ("amplifying, huge row", amplifying::amplifying(6000, 150, true)),
        ("amplifying, wide", amplifying::amplifying(20_000, 6000, false)),
    ]
    .into_iter()
    .filter(|(label, _)| label.ends_with(&only))
    {
        let matrix = Arc::new(matrix);
        for problem in [
            plain,
            Sptrsv { transpose: true, ..plain },
            Sptrsv { rhs: 3, transpose: true, ..plain },
            Sptrsv { rhs: 16, ..plain },
            Sptrsv { rhs: 33, ..plain },
            Sptrsv { dtype: Dtype::F32, ..plain },
            Sptrsv { dtype: Dtype::F32, rhs: 33, transpose: true, ..plain },
        ] {
            // Sums of thousands of rows that grow leave single precision too few digits.
            if problem.dtype == Dtype::F32 && label.ends_with("huge row") {
                continue;
            }
            engine.load(system::operands(&matrix, &problem)).expect("loads");
            let mut lowerer = problem.lowerer(matrix.clone(), &device).expect("sptrsv");
            for scheme in refined(problem.rhs, device.compute_major() >= Some(9)) {
                let candidate = scheme.candidate();
                if !wanted(&candidate) {
                    continue;
                }
                let recipe = lowerer.lower(&candidate);
                let recipe = recipe.unwrap_or_else(|why| panic!("{label}, {candidate}: {why}"));
                let Program::Cuda(program) = recipe.program else { panic!("not for a GPU") };
                launches = launches.max(program.steps.len());
                expected += 1;
                tried.one(&mut engine, lowerer.as_mut(), (label, &problem), &candidate);
            }
        }
    }
    assert_eq!(tried.schemes, expected);
    let all = std::env::var_os("SPARSETUNE_KERNELS_ONLY").is_none() && only.is_empty();
    assert!(launches > 5 || !all, "a level of its own has a launch of its own: {launches}");
    assert!(tried.faults.is_empty(), "{}", tried.faults.join("\n"));
}
