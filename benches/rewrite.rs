//! Time of rewriting, splitting and packing a triangular system, and what it yields: windows, terms, and the largest backward error
//! beside the one that verification allows, without refinement and with it. Then the time to lower the schemes that a search would try
//! first, one after the other and prepared side by side. Run by hand:
//!
//! ```text
//! cargo bench --bench rewrite -- [SPEC or FILE...]
//! ```
//!
//! Of files the lower triangles are used, with a unit diagonal. Without arguments, two factors of a million rows are generated.

#[path = "../tests/fixture/gpu.rs"]
mod fixture;
#[path = "../tests/fixture/source.rs"]
mod source;

use fixture::gpu;
use source::bring;
use sparsetune::domain::problem::Triangle;
use sparsetune::domain::{Candidate, DeviceKind, Dtype, Problem, Sptrsv};
use sparsetune::ops::sptrsv::overlapped::scheme::Shape;
use sparsetune::ops::sptrsv::slices::pack::{Packing, pack};
use sparsetune::ops::sptrsv::slices::prove::prove;
use sparsetune::ops::sptrsv::slices::refine::errors;
use sparsetune::ops::sptrsv::slices::rewrite::{Rewrite, rewrite};
use sparsetune::ops::sptrsv::slices::split::{Parts, split};
use sparsetune::ops::sptrsv::{System, overlapped};
use sparsetune::ops::{self, Kernels, Space};
use sparsetune::sparse::Csr;
use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Schemes that are lowered, the best predicted of every preparation, and preparations that are made at once.
const FIRST: usize = 8;
const SIDE_BY_SIDE: usize = 4;

const USUAL: [&str; 2] =
    ["ilu0_poisson2d:nx=1000,ny=1000,seed=1", "ilu0_poisson3d:nx=100,ny=100,nz=100,seed=1"];

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` passes --bench, `cargo test --all-targets` does not: then nothing is measured.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("run by hand: cargo bench --bench rewrite -- [SPEC or FILE...]");
        return Ok(());
    }
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let specs: Vec<&str> =
        if args.is_empty() { USUAL.to_vec() } else { args.iter().map(String::as_str).collect() };
    for spec in specs {
        measure(spec)?;
    }
    Ok(())
}

fn measure(spec: &str) -> Result<(), Box<dyn Error>> {
    let (matrix, diagonal) = bring(spec)?;
    let triangle = Triangle::Lower;
    let problem =
        Sptrsv { rhs: 1, dtype: Dtype::F64, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    let started = Instant::now();
    let system = System::of(&matrix, &problem, &gpu())?;
    println!("{spec}: the system in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    let space = ops::space(&matrix, &Problem::Sptrsv(problem), &gpu())?;
    let space_ms = started.elapsed().as_secs_f64() * 1e3;
    println!("  its space of {} schemes in {space_ms:.0} ms", space.scored.len());
    let plain = [(0, 64), (500, 256), (1000, 256), (4000, 1024)]
        .map(|(window_ns, terms)| Rewrite::of(window_ns, terms));
    lower(&matrix, &Problem::Sptrsv(problem), &space)?;
    for (levels, lanes, unroll, awaited) in [(8, 1, 8, 4), (16, 1, 2, 2), (4, 1, 4, 4)] {
        overlap(&system, &Shape { levels, lanes, unroll, awaited })?;
    }
    // Coefficients grow further where the solution is refined.
    let refined = plain[1..].iter().map(|&how| Rewrite { refine: true, ..how });
    for how in plain.into_iter().chain(refined) {
        for _ in 0..2 {
            let started = Instant::now();
            let equations = split(rewrite(&system, how), Parts::of_slices(32));
            let rewritten = started.elapsed().as_secs_f64() * 1e3;
            let packing = Packing { width: 32, lanes: 0, steps: 4, warps: 264 };
            let packed = pack(&equations, problem.dtype, packing)?;
            let proving = Instant::now();
            prove(&packed, packing, matrix.rows())?;
            let proven = proving.elapsed().as_secs_f64() * 1e3;
            let in_all = started.elapsed().as_secs_f64() * 1e3;
            let trying = Instant::now();
            let error = errors(&system, &equations);
            let tried = trying.elapsed().as_secs_f64() * 1e3;
            let Rewrite { window_ns, terms, refine } = how;
            println!(
                "  {window_ns} ns, {terms} terms{}: {rewritten:.0} ms to rewrite, {:.0} ms to pack, {proven:.0} ms to \
                 prove, {in_all:.0} ms in all; {} windows, {} terms in {} entries, {} slices; error {:.1e}, refined {:.1e}, tried in {tried:.0} ms",
                if refine { ", to be refined" } else { "" },
                packed.ms,
                equations.windows,
                equations.terms(),
                packed.cols.len(),
                packed.slices(),
                error.unrefined,
                error.refined,
            );
        }
    }
    Ok(())
}

fn lower(matrix: &Csr, problem: &Problem, space: &Space) -> Result<(), Box<dyn Error>> {
    let kernels = Kernels::of(problem, DeviceKind::Cuda);
    let mut scored: Vec<&(Candidate, f64)> = space.scored.iter().collect();
    scored.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut preparations = HashSet::new();
    let new =
        |(candidate, _): &&(Candidate, f64)| preparations.insert(kernels.preparation(candidate));
    let first: Vec<Candidate> = scored
        .into_iter()
        .filter(new)
        .take(FIRST)
        .map(|(candidate, _)| candidate.clone())
        .collect();
    for most in [1, SIDE_BY_SIDE] {
        let mut lowerer = ops::of(problem).lowerer(Arc::new(matrix.clone()), &gpu())?;
        let started = Instant::now();
        let mut reported = 0.0;
        for some in first.chunks(most) {
            lowerer.prepare(some);
            for candidate in some {
                // One that is refused takes its time as well.
                reported += lowerer.lower(candidate).map_or(0.0, |recipe| recipe.lowering_ms);
            }
        }
        println!(
            "  the first {} schemes, {most} at once: {:.0} ms, of which their preparations report {reported:.0}",
            first.len(),
            started.elapsed().as_secs_f64() * 1e3
        );
    }
    Ok(())
}

/// Groups of overlapped windows: the host time, and how much they await and compute again.
fn overlap(system: &System, shape: &Shape) -> Result<(), Box<dyn Error>> {
    let longest = Parts::of_rows(shape.row_terms() as usize);
    let equations = split(rewrite(system, Rewrite::of(0, 64)), longest);
    let packed = overlapped::pack::pack(&equations, system.problem.dtype, shape)?;
    let rows = equations.len() as f64;
    println!(
        "  {shape:?}: {:.0} ms to pack; {} windows of {} levels, {} groups, of a row {:.3} passes, {:.3} awaited, {:.3} computed again",
        packed.ms,
        packed.windows,
        system.levels.widths.len(),
        packed.count(),
        packed.passes.len() as f64 / 2.0 / rows,
        packed.awaited.len() as f64 / rows,
        packed.again as f64 / rows,
    );
    Ok(())
}
