//! Compiles a sample of the `slices` schemes' kernel texts for sm_80 and sm_90 with NVRTC, which needs no GPU: no spills,
//! and few enough registers that the warps which schemes ask for fit on a multiprocessor.

use rayon::prelude::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::engine::cuda::cache::Cache;
use sparsetune::engine::cuda::compile::options;
use sparsetune::engine::cuda::libraries::Search;
use sparsetune::engine::cuda::nvrtc::{Binary, Nvrtc};
use sparsetune::engine::cuda::source::{program_digest, unit};
use sparsetune::ops::sptrsv::slices::rewrite::Rewrite;
use sparsetune::ops::sptrsv::slices::scheme::{Scheme, Scope, Sync, Take};
use sparsetune::ops::sptrsv::slices::text::source;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One text, what it is called in a failure, the architecture, and the registers a thread that it may take.
struct Job {
    label: String,
    text: String,
    architecture: &'static str,
    most: u32,
}

fn nvrtc() -> Option<Nvrtc> {
    let named = std::env::var_os("SPARSETUNE_NVRTC").map(PathBuf::from);
    match Nvrtc::open(&Search::new(&named.into_iter().collect::<Vec<_>>())) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            let required = ["CI", "SPARSETUNE_REQUIRE_NVRTC"];
            let required = required.into_iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "{error}");
            println!("SKIPPED: {error}; `pip install nvidia-cuda-nvrtc` and set SPARSETUNE_NVRTC");
            None
        }
    }
}

fn schemes(unroll: u32, all: bool) -> Vec<Scheme> {
    let rewrite = Rewrite { window_ns: 0, terms: 64 };
    let scheme = |take, sync, scope, pause, alpha| Scheme {
        rewrite,
        lanes: 0,
        warps: 8,
        unroll,
        take,
        sync,
        scope,
        pause,
        alpha,
    };
    let mut list = vec![
        scheme(Take::Block, Sync::Sentinel, Scope::Global, 0, 8),
        scheme(Take::Ticket, Sync::Packed, Scope::Global, 1, 0),
        scheme(Take::Spread, Sync::Sentinel, Scope::Shared { blocks: 1 }, 0, 0),
        scheme(Take::Spread, Sync::Sentinel, Scope::Shared { blocks: 8 }, 0, 0),
    ];
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
                let problem = Sptrsv { rhs, dtype, triangle, diagonal, transpose: false };
                for scheme in schemes(unroll, rhs == 1 && unroll == 4) {
                    // 32 warps of a multiprocessor with 65,536 registers have 64 a thread, 16 have 128.
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

/// The binary, built only where `kept` does not hold it.
fn binary(nvrtc: &Nvrtc, kept: &Cache, job: &Job) -> Result<Binary, String> {
    let unit = unit(&job.text).map_err(|error| error.to_string())?;
    let options = options(job.architecture, None);
    let digest = program_digest(&unit, &options, nvrtc.version());
    if let Some(binary) = kept.get(&digest) {
        return Ok(binary);
    }
    let binary = nvrtc.compile(&unit, &options).map_err(|error| error.to_string())?;
    kept.put(&digest, &binary).map_err(|error| error.to_string())?;
    Ok(binary)
}

#[test]
fn every_shape_of_the_kernel_compiles_within_its_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let jobs = jobs();
    let kept = Cache::new(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cubins"));
    let started = std::time::Instant::now();
    let lines: Vec<(bool, String)> = jobs
        .par_iter()
        .map(|job| match binary(&nvrtc, &kept, job) {
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
