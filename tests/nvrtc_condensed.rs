//! Compiles every text of family `condensed_tc` for sm_80 and sm_90 with NVRTC, which needs no GPU: none may spill.
//!
//! `SPARSETUNE_NVRTC` names the library or its folder; without it the test reports that it was skipped, or fails if `CI` or
//! `SPARSETUNE_REQUIRE_NVRTC` is set.

#[path = "fixture/nvrtc.rs"]
mod fixture;

use fixture::{binary, nvrtc};
use rayon::prelude::*;
use sparsetune::domain::{Dtype, Layout, Output, Spmm};
use sparsetune::ops::spmm::condensed_tc::CondensedTcs;
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::family::SpmmFamily;
use std::collections::BTreeMap;

/// Every distinct text of the family, with the label and the estimated registers of the first candidate that has it.
fn texts() -> BTreeMap<String, (String, u32)> {
    let mut texts = BTreeMap::new();
    for n in [32, 40, 128] {
        let same = Output::Same;
        for (dtype, tf32, output) in [
            (Dtype::F16, false, same),
            (Dtype::F16, false, Output::F32),
            (Dtype::Bf16, false, same),
            (Dtype::Bf16, false, Output::F32),
            (Dtype::F32, false, same),
            (Dtype::F32, true, same),
        ] {
            for accumulate in [false, true] {
                let plain = Spmm::new(n, dtype, Layout::Row);
                let problem = Spmm { accumulate, tf32, output, ..plain };
                for candidate in CondensedTcs.candidates(&problem) {
                    let kernel = CondensedTcs.kernel(&candidate, &problem).expect("a kernel");
                    let tile = kernel.tile();
                    if is_legal(&tile, &problem) {
                        let label = format!("{candidate} {dtype} n={n} C {output}");
                        texts.entry(kernel.source()).or_insert((label, tile.registers));
                    }
                }
            }
        }
    }
    texts
}

#[test]
fn every_text_compiles_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let pairs: Vec<_> = texts()
        .into_iter()
        .flat_map(|(text, about)| ["sm_80", "sm_90"].map(|sm| (text.clone(), about.clone(), sm)))
        .collect();
    let mut lines: Vec<String> = pairs
        .into_par_iter()
        .map(|(text, (label, estimated), architecture)| {
            let binary = binary(&nvrtc, &text, architecture, None)
                .unwrap_or_else(|error| panic!("{label}:\n{error}"));
            assert_eq!(binary.spill_bytes, 0, "{label} for {architecture} spills");
            format!("{label} {architecture}: {} registers, {estimated} estimated", binary.registers)
        })
        .collect();
    lines.sort();
    println!("{}", lines.join("\n"));
}
