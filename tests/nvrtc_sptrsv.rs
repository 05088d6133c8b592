//! Compiles the kernel texts of a sample of the family `ag`, and those of `streamed`, `sweeps` and `inverse`, for sm_80 and sm_90 with NVRTC, which needs no GPU.
//!
//! As in `nvrtc.rs`: `SPARSETUNE_NVRTC` names the library; without it the test reports that it was skipped, or fails if `CI`
//! or `SPARSETUNE_REQUIRE_NVRTC` is set.

#[path = "fixture/nvrtc.rs"]
mod fixture;

use fixture::{binary, nvrtc};
use rayon::prelude::*;
use sparsetune::domain::{Dtype, Sptrsv};
use sparsetune::engine::cuda::source;
use sparsetune::ops::sptrsv::ag::prepare::{NG, Sync};
use sparsetune::ops::sptrsv::ag::text::{Text, source as text_of};
use sparsetune::ops::sptrsv::sweeps::{self, scheme::Scheme};
use sparsetune::ops::sptrsv::{inverse, streamed};

/// A sample in which every value of every parameter occurs with every value of each other: all texts would be about 1700, and
/// take minutes.
fn texts() -> Vec<String> {
    let mut texts = Vec::new();
    let mut number = 0u32;
    for dtype in [Dtype::F32, Dtype::F64] {
        for sync in [Sync::Sentinel, Sync::Packed] {
            for ng in NG {
                for staged in [false, true] {
                    for nw in [8, 32] {
                        number += 1;
                        let waiting_modes = 1 + number % 3;
                        // Packed words are possible only in a single launch.
                        let level_modes = if sync == Sync::Packed { 0 } else { (number / 3) % 4 };
                        let early = !number.is_multiple_of(5);
                        let text =
                            Text { dtype, sync, ng, nw, waiting_modes, level_modes, staged, early };
                        texts.push(text_of(&text));
                    }
                }
            }
        }
    }
    for dtype in [Dtype::F32, Dtype::F64] {
        let problem = Sptrsv { dtype, approximate: true, ..Sptrsv::PLAIN };
        // With three sweeps a program has each kernel but that of a single one.
        let schemes = Scheme::every().into_iter().filter(|it| [1, 3].contains(&it.sweeps));
        texts.extend(schemes.map(|scheme| sweeps::text::source(&scheme, &problem)));
        let schemes = inverse::scheme::Scheme::every().into_iter();
        // The power is a matter of data.
        let schemes = schemes.filter(|it| it.map.power == 1);
        texts.extend(schemes.map(|scheme| inverse::text::source(&scheme, &problem)));
        let exact = Sptrsv { dtype, ..Sptrsv::PLAIN };
        let schemes = streamed::scheme::Scheme::every().into_iter();
        texts.extend(schemes.map(|scheme| streamed::text::source(&scheme, &exact)));
    }
    texts
}

#[test]
fn a_sample_of_schemes_compiles_without_unallowed_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let texts = texts();
    let pairs: Vec<_> =
        texts.iter().flat_map(|text| ["sm_80", "sm_90"].map(|arch| (text, arch))).collect();
    let fault = |(text, architecture): &(&String, &str)| {
        let unit = source::unit(text).expect("its headers are there");
        match binary(&nvrtc, text, architecture, None) {
            Err(error) => Some(format!("{text}for {architecture}:\n{error}")),
            Ok(binary) => {
                let (spilled, allowed) = (binary.spill_bytes, source::allowed_spills(&unit));
                (spilled > allowed || binary.registers == 0).then(|| {
                    format!(
                        "{text}for {architecture} spills {spilled} bytes at {} registers; {allowed} are allowed",
                        binary.registers
                    )
                })
            }
        }
    };
    let faults: Vec<String> = pairs.par_iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
