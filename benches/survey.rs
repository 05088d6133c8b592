//! Error of surveys of rewritings: the absolute logarithm of the estimate from a sample of the levels over the result of
//! rewriting all of them. Run by hand; slow, since every system is also rewritten as a whole:
//!
//! ```text
//! cargo bench --bench survey -- [SPEC or FILE...]
//! ```
//!
//! Of files the lower triangles are used, with a unit diagonal. Without arguments, systems of many kinds are generated.

#[path = "../tests/fixture/gpu.rs"]
mod fixture;
#[path = "../tests/fixture/source.rs"]
mod source;

use fixture::gpu;
use source::bring;
use sparsetune::domain::problem::Triangle;
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::slices::rewrite::{Rewrite, rewrite};
use sparsetune::ops::sptrsv::slices::survey::{EFFORT, Effort, LevelProfile, Reach, survey_by};
use std::error::Error;
use std::time::Instant;

const USUAL: [&str; 22] = [
    "ilu0_poisson2d:nx=300,ny=300,seed=1",
    "ilu0_poisson2d:nx=900,ny=60,seed=2",
    "ilu0_poisson3d:nx=40,ny=40,nz=40,seed=1",
    "ilu0_random:n=40000,per_row=6,seed=1",
    "ilu0_random:n=20000,per_row=24,seed=2",
    "ilu0_elasticity:nx=12,ny=12,nz=12,seed=1",
    "ilu0_rmat:scale=14,edge_factor=8,a=0.5,b=0.2,c=0.2,d=0.1,seed=1",
    "ilu0_rmat:scale=15,edge_factor=4,a=0.6,b=0.16,c=0.16,d=0.08,seed=2",
    "cholesky_poisson2d:nx=150,ny=150,seed=1",
    "cholesky_poisson3d:nx=18,ny=18,nz=18,seed=1",
    "cholesky_banded:n=20000,half=12,seed=1",
    "lower_levels:n=50000,levels=400,per_row=6,seed=1",
    "lower_levels:n=50000,levels=9000,per_row=4,seed=2",
    "lower:tail=300,growth=0.5,of=banded:n=60000,half=1",
    "lower:unknowns=3,order=rcm,growth=0.5,of=mesh:nx=90,ny=80",
    "lower:growth=0.9,order=natural,of=mesh:nx=200,ny=200",
    "lower:growth=0.4,order=depth,window=64,of=road:nx=200,ny=200",
    "lower:growth=0.7,constraints=4000,of=circuit:n=30000,hubs=3",
    "lower:growth=1.4,spread=1,order=degree,tail=40,of=circuit:n=30000,hubs=2",
    "lower:growth=0.6,keep=0.5,of=banded:n=20000,half=40",
    "ilu0_poisson3d:nx=80,ny=80,nz=80,seed=2",
    "ilu0_elasticity:nx=20,ny=20,nz=20,seed=2",
];
/// Nanoseconds per window, and most terms.
const REWRITINGS: [(u32, u32); 3] = [(250, 1024), (1000, 256), (4000, 1024)];
const STRATA: [usize; 3] = [3, 6, 12];

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` passes --bench, `cargo test --all-targets` does not: then nothing is measured.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("run by hand: cargo bench --bench survey -- [SPEC or FILE...]");
        return Ok(());
    }
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let sources: Vec<&str> =
        if args.is_empty() { USUAL.to_vec() } else { args.iter().map(String::as_str).collect() };
    // By strata: windows, terms, longest equations.
    let mut off: [[Vec<f64>; 3]; STRATA.len()] = Default::default();
    for source in sources {
        let (matrix, diagonal) = bring(source)?;
        let (triangle, dtype) = (Triangle::Lower, Dtype::F64);
        let problem =
            Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
        let system = System::of(&matrix, &problem, &gpu())?;
        let profile = LevelProfile::of(&system);
        for (window_ns, terms) in REWRITINGS {
            let how = Rewrite::of(window_ns, terms);
            let whole = rewritten(&system, how);
            print!("{source} {window_ns} ns: {:.1} levels a window", whole.levels);
            for (strata, off) in STRATA.into_iter().zip(&mut off) {
                let started = Instant::now();
                let seen = survey_by(&profile, how, Effort { strata, ..EFFORT });
                let ms = started.elapsed().as_secs_f64() * 1e3;
                let pairs = [
                    (seen.levels, whole.levels),
                    (seen.terms, whole.terms),
                    (seen.longest.max(1.0), whole.longest.max(1.0)),
                ];
                let logs = pairs.map(|(seen, whole)| (seen / whole).ln());
                print!(
                    "; {strata} strata {:.2} {:.2} {:.2} in {ms:.0} ms",
                    logs[0], logs[1], logs[2]
                );
                off.iter_mut().zip(logs).for_each(|(off, log)| off.push(log.abs()));
            }
            println!();
        }
    }
    for (strata, off) in STRATA.into_iter().zip(off) {
        for (name, mut off) in ["windows", "terms", "longest"].into_iter().zip(off) {
            off.sort_by(f64::total_cmp);
            let at = |share: f64| off[((off.len() - 1) as f64 * share).round() as usize];
            println!("{strata} strata, {name}: {:.3} median, {:.3} nine of ten", at(0.5), at(0.9));
        }
    }
    Ok(())
}

/// The result of rewriting all levels.
fn rewritten(system: &System, how: Rewrite) -> Reach {
    let whole = rewrite(system, how);
    let terms: usize = whole.segments.iter().map(|segment| segment.terms()).sum();
    let mut longest = vec![0; whole.windows as usize];
    for (place, &window) in whole.places.iter().zip(&whole.window_of) {
        let (unknowns, _) = whole.segments[place.segment as usize].unknown.row(place.row as usize);
        longest[window as usize] = unknowns.len().max(longest[window as usize]);
    }
    Reach {
        levels: system.levels.widths.len() as f64 / f64::from(whole.windows.max(1)),
        terms: terms as f64 / system.triangular.rows().max(1) as f64,
        longest: longest.iter().sum::<usize>() as f64 / longest.len().max(1) as f64,
    }
}
