//! Compiles every text of the family `tiled` for sm_80 and sm_90, in all types and with alpha and beta; no spills and no
//! stack.
//!
//! As in `nvrtc.rs`, the test is skipped without NVRTC unless NVRTC is required.

#[path = "fixture/nvrtc.rs"]
mod fixture;

use fixture::{binary, nvrtc};
use rayon::prelude::*;
use sparsetune::domain::{Dtype, Layout, Output, Spmm};
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::family::SpmmFamily;
use sparsetune::ops::spmm::tiled::TiledColumns;
use sparsetune::ops::spmm::tiled_row::TiledRows;
use std::collections::BTreeMap;

#[test]
fn every_tiled_kernel_keeps_its_sums_in_registers() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut texts = BTreeMap::new();
    let families: [(&dyn SpmmFamily, Layout, u32); 3] = [
        (&TiledColumns, Layout::Col, 33),
        (&TiledRows, Layout::Row, 33),
        (&TiledRows, Layout::Row, 64),
    ];
    let types = [
        (Dtype::F16, Output::Same),
        (Dtype::F16, Output::F32),
        (Dtype::Bf16, Output::Same),
        (Dtype::Bf16, Output::F32),
        (Dtype::F32, Output::Same),
        (Dtype::F64, Output::Same),
    ];
    for ((dtype, output), accumulate) in types.into_iter().flat_map(|t| [(t, false), (t, true)]) {
        for (family, layout, n) in families {
            let problem = Spmm { accumulate, output, ..Spmm::new(n, dtype, layout) };
            for candidate in family.candidates(&problem) {
                let kernel = family.kernel(&candidate, &problem).expect("a kernel");
                let tile = kernel.tile();
                if is_legal(&tile, &problem) {
                    let label = format!("{candidate} {dtype} n={n} C {output} {accumulate}");
                    texts.entry(kernel.source()).or_insert((label, tile.registers));
                }
            }
        }
    }
    let faults: Vec<String> = texts
        .par_iter()
        .flat_map_iter(|text| ["sm_80", "sm_90"].map(|architecture| (text, architecture)))
        .filter_map(|((text, (candidate, counted)), architecture)| {
            let binary = match binary(&nvrtc, text, architecture, None) {
                Ok(binary) => binary,
                Err(error) => return Some(format!("{candidate} for {architecture}: {error}")),
            };
            println!("{architecture} {candidate}: {} registers of {counted}", binary.registers);
            let bad = binary.spill_bytes > 0
                || binary.registers > *counted
                || binary.log.lines().any(|l| {
                    l.contains("bytes stack frame") && !l.contains(" 0 bytes stack frame")
                });
            bad.then(|| {
                format!(
                    "{candidate} for {architecture}: {} of {counted} registers\n{}",
                    binary.registers, binary.log
                )
            })
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
