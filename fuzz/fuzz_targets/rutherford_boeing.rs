//! Fuzzes `rutherford_boeing` of the table in `src/lib.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sparsetune_fuzz::rutherford_boeing(data));
