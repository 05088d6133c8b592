//! Fuzzes `suite_toml` of the table in `src/lib.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sparsetune_fuzz::suite_toml(data));
