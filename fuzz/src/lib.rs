//! What each fuzz target runs on its input. `tests/fuzz_seeds.rs` runs the same functions over the seed corpora, so that the
//! table needs no nightly toolchain to be kept alive.
//!
//! Anything may be refused, but nothing may panic, overflow or take more memory than its limits; what is accepted must be what it
//! says, so each target also compares: what was read is written and read again, what was taken is given back, what was refused is
//! told as promised.

mod bundles;
mod exports;
mod json;
pub mod memory;
mod readers;
mod reading;
mod requests;

/// A target's name, which is also that of its folder in `seeds`, and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 20] = [
    ("matrix_market", readers::matrix_market),
    ("npz", readers::npz),
    ("npz_members", readers::npz_members),
    ("smtx", readers::smtx),
    ("rutherford_boeing", readers::rutherford_boeing),
    ("harwell_boeing", readers::harwell_boeing),
    ("canonical", readers::canonical),
    ("compressed", readers::compressed),
    ("coding", readers::coding),
    ("reader_lines", reading::lines),
    ("bundle", bundles::file),
    ("bundle_members", bundles::members),
    ("export", exports::export),
    ("problem_json", json::problem),
    ("answers_json", json::answers),
    ("lines_json", json::lines),
    ("model_json", json::model),
    ("suite_toml", json::suite),
    ("bodies", requests::bodies),
    ("requests", requests::requests),
];
