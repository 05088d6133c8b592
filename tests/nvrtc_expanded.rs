//! Compiles every text of family `expanded_tc` for sm_90, whose variant with warpgroup products it asks for; needs no GPU.
//! None may spill.
//!
//! `SPARSETUNE_NVRTC` names the library or its folder; without it the test reports that it was skipped, or fails if `CI` or
//! `SPARSETUNE_REQUIRE_NVRTC` is set.

#[path = "fixture/nvrtc.rs"]
mod fixture;

use fixture::{binary, nvrtc};
use rayon::prelude::*;
use sparsetune::domain::{Dtype, Layout, Output, Spmm};
use sparsetune::engine::cuda::source;
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::expanded_tc::ExpandedTcs;
use sparsetune::ops::spmm::family::SpmmFamily;
use std::collections::BTreeMap;

/// Every distinct text of the family, with the label of the first candidate that has it.
fn texts() -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for n in [32, 128] {
        for (dtype, tf32, output) in [
            (Dtype::F16, false, Output::Same),
            (Dtype::F16, false, Output::F32),
            (Dtype::Bf16, false, Output::Same),
            (Dtype::F32, false, Output::Same),
            (Dtype::F32, true, Output::Same),
        ] {
            for accumulate in [false, true] {
                let plain = Spmm::new(n, dtype, Layout::Row);
                let problem = Spmm { accumulate, tf32, output, ..plain };
                for candidate in ExpandedTcs.candidates(&problem) {
                    let kernel = ExpandedTcs.kernel(&candidate, &problem).expect("a kernel");
                    assert!(is_legal(&kernel.tile(), &problem), "{candidate}");
                    let label = format!("{candidate} {dtype} n={n} C {output}");
                    texts.entry(kernel.source()).or_insert(label);
                }
            }
        }
    }
    texts
}

#[test]
fn every_text_compiles_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut lines: Vec<String> = texts()
        .into_par_iter()
        .map(|(text, label)| {
            let binary = binary(&nvrtc, &text, "sm_90", None)
                .unwrap_or_else(|error| panic!("{label}:\n{error}"));
            assert_eq!(binary.spill_bytes, 0, "{label} spills");
            format!("{label}: {} registers", binary.registers)
        })
        .collect();
    lines.sort();
    println!("{}", lines.join("\n"));
}

#[test]
fn only_the_device_that_has_them_gets_warpgroup_products() {
    let (text, _) = texts().into_iter().next().expect("a text");
    let unit = source::unit(&text).expect("its headers are there");
    assert_eq!(source::architecture(&unit, "sm_90").as_deref(), Ok("sm_90a"));
    for other in ["sm_80", "sm_100"] {
        let refusal = source::architecture(&unit, other).expect_err("another device");
        assert_eq!(
            refusal.to_string(),
            format!("the program can only be built for sm_90a, and the device is {other}")
        );
    }
    let plain = source::unit("#include \"spmm/row_split.cuh\"\n").expect("its headers are there");
    assert_eq!(source::architecture(&plain, "sm_90").as_deref(), Ok("sm_90"));
}
