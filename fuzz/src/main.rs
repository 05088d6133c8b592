//! The program of all targets: `FUZZ_TARGET` names the one that runs; any other name lists them (`run.sh`).
#![no_main]

use std::sync::OnceLock;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let target = sparsetune_fuzz::TARGETS.iter().find(|(known, _)| *known == name);
        let Some((_, run)) = target else {
            println!("{}", sparsetune_fuzz::TARGETS.map(|(known, _)| known).join("\n"));
            std::process::exit(0);
        };
        RUN.get_or_init(|| *run);
    },
    |data: &[u8]| RUN.get().expect("set above")(data)
);
