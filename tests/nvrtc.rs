//! Compiles every kernel text for sm_80 and sm_90 with NVRTC, which needs no GPU; fails on errors and on spills that no
//! header allows.
//!
//! SpMM's spaces have tens of thousands of texts: of each form of a family (candidates with the same parameters) one of
//! `SPARSETUNE_NVRTC_EVERY` (default 192) is compiled, chosen by digest, and at least four; `SPARSETUNE_NVRTC_ONLY` leaves those whose label contains a text (`Bf16`,
//! `row_split`).
//!
//! `SPARSETUNE_NVRTC` names the library or its folder. Without NVRTC the tests fail if `CI` or `SPARSETUNE_REQUIRE_NVRTC` is
//! set, and otherwise report that they were skipped.

#[path = "fixture/nvrtc.rs"]
mod fixture;

use fixture::{binary, nvrtc};
use rayon::prelude::*;
use sparsetune::domain::Digest;
use sparsetune::engine::cuda::cache::Cache;
use sparsetune::engine::cuda::compile::{Compiler, options};
use sparsetune::engine::cuda::nvrtc::Nvrtc;
use sparsetune::engine::cuda::source::{self, SourceError};
use std::collections::BTreeMap;

/// One text of so many is compiled, unless the environment says otherwise.
const EVERY: usize = 192;
/// Texts of a form that are compiled at least.
const FEWEST: usize = 4;

const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// A kernel text: its name in a failure, the source, and the register cap that it asks for.
type KernelText = (String, String, Option<u32>);

fn kernel_texts() -> Vec<KernelText> {
    let engine = sparsetune::engine::cuda::kernel_texts();
    let engine = engine.into_iter().map(|(label, source)| (label, source, None));
    let hostile = sparsetune::evaluator::HOSTILE_SOURCE.to_owned();
    let hostile = ("hostile".to_owned(), hostile, None);
    engine.chain(chosen(sparsetune::ops::spmm::space::kernel_texts())).chain([hostile]).collect()
}

/// A candidate as it is written, without the values of its parameters.
fn form(candidate: &str) -> String {
    let names =
        candidate.split_inclusive(['{', ',']).map(|part| part.split('=').next().unwrap_or(part));
    names.collect::<Vec<_>>().join(" ")
}

/// Always the same sample of an unchanged space, so that compiled texts are found in the cache: of each form the texts with the
/// smallest digests.
fn chosen(texts: Vec<KernelText>) -> impl Iterator<Item = KernelText> {
    let named = std::env::var("SPARSETUNE_NVRTC_EVERY").ok().and_then(|every| every.parse().ok());
    let every: usize = named.unwrap_or(EVERY).max(1);
    let only = std::env::var("SPARSETUNE_NVRTC_ONLY").unwrap_or_default();
    let mut forms = BTreeMap::<String, Vec<_>>::new();
    for text in texts.into_iter().filter(|(label, _, _)| label.contains(&only)) {
        // A label is the problem, which ends with a brace, and the candidate.
        let form = form(text.0.split("} ").nth(1).unwrap_or(&text.0));
        forms.entry(form).or_default().push((Digest::of(text.1.as_bytes()), text));
    }
    assert!(!only.is_empty() || forms.len() > 12, "{:?}", forms.keys());
    forms.into_values().flat_map(move |mut texts| {
        texts.sort_by_key(|(digest, _)| *digest.as_bytes());
        let wanted = texts.len().div_ceil(every).max(FEWEST);
        texts.into_iter().take(wanted).map(|(_, text)| text)
    })
}

/// The faults of one text on one architecture.
fn fault(nvrtc: &Nvrtc, (label, text, cap): &KernelText, architecture: &str) -> Option<String> {
    let unit = match source::unit(text) {
        Ok(unit) => unit,
        Err(error) => return Some(format!("{label}: {error}")),
    };
    if matches!(source::architecture(&unit, architecture), Err(SourceError::Architecture { .. })) {
        return None;
    }
    let built = binary(nvrtc, text, architecture, *cap);
    match built {
        Err(error) => Some(format!("{label} for {architecture} does not compile:\n{error}")),
        Ok(binary) => {
            let allowed = source::allowed_spills(&unit);
            let (spilled, registers) = (binary.spill_bytes, binary.registers);
            if registers == 0 {
                return Some(format!("{label} for {architecture}: no figures in the log"));
            }
            (spilled > allowed).then(|| {
                format!(
                    "{label} for {architecture} spills {spilled} bytes at {registers} registers; its headers allow \
                     {allowed}"
                )
            })
        }
    }
}

#[test]
fn every_kernel_compiles_without_unallowed_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let texts = kernel_texts();
    assert!(!texts.is_empty());
    let started = std::time::Instant::now();
    let pairs: Vec<_> = texts
        .iter()
        .flat_map(|text| ARCHITECTURES.map(|architecture| (text, architecture)))
        .collect();
    let faults: Vec<String> = pairs
        .par_iter()
        .filter_map(|(text, architecture)| fault(&nvrtc, text, architecture))
        .collect();
    let (major, minor) = nvrtc.version();
    println!("{} programs by nvrtc {major}.{minor} in {:.1?}", pairs.len(), started.elapsed());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn an_exported_source_compiles_by_itself() {
    let Some(nvrtc) = nvrtc() else { return };
    for (label, text) in sparsetune::engine::cuda::kernel_texts() {
        let whole = source::inlined(&text).expect("its headers are there");
        assert!(!whole.contains("#include \""), "{label}");
        let compile = |text: &str| {
            let unit = source::unit(text).expect("its headers are there");
            nvrtc.compile(&unit, &options("sm_90", None)).expect("compiles").registers
        };
        assert_eq!(compile(&whole), compile(&text), "{label}");
    }
}

#[test]
fn a_spill_and_an_error_are_seen() {
    let Some(nvrtc) = nvrtc() else { return };
    // 64 live values in 16 registers.
    let spilling = "extern \"C\" __global__ void k(float* p) {\n  float v[64];\n#pragma unroll\n\
        for (int i = 0; i < 64; ++i) v[i] = p[i * 32 + threadIdx.x];\n  __syncthreads();\n#pragma unroll\n\
        for (int i = 0; i < 64; ++i) p[(63 - i) * 32 + threadIdx.x] = v[i] * v[(i * 7) % 64];\n}\n";
    let spilling = ("spilling".to_owned(), spilling.to_owned(), Some(16));
    let fault_of_spill = fault(&nvrtc, &spilling, "sm_90").expect("the spill is seen");
    assert!(fault_of_spill.contains("spills"), "{fault_of_spill}");
    let broken = ("broken".to_owned(), "int x = ;".to_owned(), None);
    let fault_of_error = fault(&nvrtc, &broken, "sm_90").expect("the error is seen");
    assert!(fault_of_error.contains("does not compile"), "{fault_of_error}");
}

#[test]
fn programs_are_compiled_once_ahead_and_found_again() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = |nvrtc| {
        Compiler::start(nvrtc, Cache::new(folder.path()), "sm_90".to_owned(), 2).expect("threads")
    };
    let compiler = start(nvrtc);
    let texts: Vec<String> =
        (0..6).map(|i| format!("extern \"C\" __global__ void k(int* p) {{ *p = {i}; }}")).collect();
    let jobs: Vec<_> = texts.iter().map(|text| compiler.job(text, None).expect("a job")).collect();
    compiler.prepare(jobs.clone());
    compiler.prepare(jobs.clone());
    for job in &jobs {
        let done = compiler.wait(job).expect("compiles");
        assert!(
            !done.cached && done.binary.registers > 0 && done.binary.cubin.starts_with(b"\x7fELF")
        );
    }
    // As a plan keeps it: for any device of this architecture or a later one.
    let ptx = compiler.ptx(&jobs[0]).expect("compiles");
    assert!(ptx.contains(".target sm_90") && ptx.contains(".entry k(") && !ptx.contains('\0'));
    let bad = compiler.job("int x = ;", None).expect("a job");
    assert!(compiler.ptx(&bad).expect_err("does not compile").contains("error"));
    assert!(compiler.wait(&bad).expect_err("does not compile").contains("error"));
    drop(compiler);

    // The compiler of another process takes everything from the folder; a damaged cubin is compiled again.
    let damaged = std::fs::read_dir(folder.path().join(&jobs[0].digest.to_string()[..2]))
        .expect("the cache's folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name().is_some_and(|name| *name == *format!("{}.cubin", jobs[0].digest))
        })
        .expect("the first cubin");
    std::fs::write(&damaged, b"damaged").expect("written");
    let Some(nvrtc) = fixture::nvrtc() else { return };
    let compiler = start(nvrtc);
    let cached: Vec<bool> =
        jobs.iter().map(|job| compiler.wait(job).expect("compiles").cached).collect();
    assert_eq!(cached, [false, true, true, true, true, true]);
}
