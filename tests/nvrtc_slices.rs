//! Compiles a sample of the `slices` schemes' kernel texts for sm_80 and sm_90 with NVRTC, which needs no GPU: no spills,
//! and few enough registers that the warps which schemes ask for fit on a multiprocessor.

#[path = "fixture/nvrtc.rs"]
mod fixture;

use fixture::{binary, nvrtc};
use rayon::prelude::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::engine::cuda::nvrtc::Binary;
use sparsetune::ops::sptrsv::slices::rewrite::Rewrite;
use sparsetune::ops::sptrsv::slices::scheme::{Scheme, Scope, Sync, Take};
use sparsetune::ops::sptrsv::slices::text::source;
use std::collections::BTreeMap;

/// One text, its name in a failure, the architecture, and the registers per thread that it may take.
struct Job {
    label: String,
    text: String,
    architecture: &'static str,
    most: u32,
}

fn schemes(unroll: u32, all: bool) -> Vec<Scheme> {
    let rewrite = Rewrite::of(0, 64);
    let scheme = |take, sync, scope, pause, alpha| Scheme {
        unroll,
        take,
        sync,
        scope,
        pause,
        alpha,
        ..Scheme::plain(rewrite)
    };
    let mut list = vec![
        scheme(Take::Block, Sync::Sentinel, Scope::Global, 0, 8),
        scheme(Take::Ticket, Sync::Packed, Scope::Global, 1, 0),
        scheme(Take::Spread, Sync::Sentinel, Scope::Shared { blocks: 1 }, 0, 0),
        scheme(Take::Spread, Sync::Sentinel, Scope::Shared { blocks: 8 }, 0, 0),
    ];
    // Refined: solved twice, with the residual between.
    let refined = Rewrite { refine: true, ..Rewrite::of(1000, 64) };
    list.extend([list[0], list[3]].map(|scheme| Scheme { rewrite: refined, ..scheme }));
    if all {
        list.push(scheme(Take::Spread, Sync::Sentinel, Scope::Shared { blocks: 16 }, 1, 0));
        for take in [Take::Block, Take::Spread, Take::Ticket] {
            for sync in [Sync::Sentinel, Sync::Packed] {
                list.extend([0, 1].map(|pause| scheme(take, sync, Scope::Global, pause, 0)));
            }
        }
    }
    list
}

fn jobs() -> Vec<Job> {
    let mut jobs = BTreeMap::new();
    for dtype in [Dtype::F32, Dtype::F64] {
        for rhs in [1, 3, 16, 33, 64] {
            for unroll in [4, 8] {
                let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
                let problem =
                    Sptrsv { rhs, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
                for scheme in schemes(unroll, rhs == 1 && unroll == 4) {
                    // With 65,536 registers per multiprocessor, 32 warps have 64 registers per thread and 16 have 128.
                    let slim = unroll == 4 && (rhs == 1 || scheme.sync == Sync::Sentinel);
                    let most = if slim { 64 } else { 128 };
                    let text = source(&scheme, &problem);
                    for architecture in ["sm_80", "sm_90"] {
                        let cluster = matches!(scheme.scope, Scope::Shared { blocks: 2.. });
                        if cluster && architecture == "sm_80" {
                            continue;
                        }
                        let label =
                            format!("{} {dtype} rhs {rhs} {architecture}", scheme.candidate());
                        let job = Job { label, text: text.clone(), architecture, most };
                        jobs.insert((text.clone(), architecture), job);
                    }
                }
            }
        }
    }
    jobs.into_values().collect()
}

#[test]
fn every_shape_of_the_kernel_compiles_within_its_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let jobs = jobs();
    let started = std::time::Instant::now();
    let lines: Vec<(bool, String)> = jobs
        .par_iter()
        .map(|job| match binary(&nvrtc, &job.text, job.architecture, None) {
            Err(error) => (false, format!("{}:\n{error}", job.label)),
            Ok(Binary { registers, spill_bytes, .. }) => {
                let good = spill_bytes == 0 && (1..=job.most).contains(&registers);
                (good, format!("{registers:3} registers, {spill_bytes} spilled: {}", job.label))
            }
        })
        .collect();
    lines.iter().for_each(|(_, line)| println!("{line}"));
    println!("{} programs in {:.1?}", lines.len(), started.elapsed());
    let faults: Vec<&str> =
        lines.iter().filter(|(good, _)| !good).map(|(_, line)| line.as_str()).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
