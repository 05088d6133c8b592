//! What each fuzz target runs on its input. `tests/fuzz_seeds.rs` runs the same functions over the seed corpora, so that the
//! table needs no nightly toolchain to be kept alive.
//!
//! A reader may refuse anything, but must not panic, overflow or take more memory than its limits; what it accepts must be
//! what it says, so the result is digested, written and read again.

use sparsetune::cli::bench::suite::Suite;
use sparsetune::domain::{JobRequest, Problem};
use sparsetune::sparse::read::{self, Limits};
use sparsetune::sparse::{Csr, canonical, digest, features, write};

/// A target's name, which is also that of its folder in `seeds`, and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 9] = [
    ("matrix_market", matrix_market),
    ("npz", npz),
    ("smtx", smtx),
    ("rutherford_boeing", rutherford_boeing),
    ("harwell_boeing", harwell_boeing),
    ("canonical", canonical),
    ("compressed", compressed),
    ("problem_json", problem_json),
    ("suite_toml", suite_toml),
];

fn limits() -> Limits {
    Limits {
        max_rows: 1 << 20,
        max_cols: 1 << 20,
        max_nnz: 1 << 20,
        max_decompressed_bytes: 16 << 20,
        max_matrix_bytes: 64 << 20,
        ..Limits::default()
    }
}

/// Reads any format; a matrix that is accepted survives a round trip with the same digest.
fn any_format(data: &[u8]) {
    let Ok(parsed) = read::read_bytes(data, &limits()) else { return };
    let name = digest_of(&parsed.csr);
    let facts = features::facts(&parsed.csr, parsed.declared_name);
    assert_eq!(facts.nnz, parsed.csr.nnz() as u64);
    let mut text = Vec::new();
    write::matrix_market(&parsed.csr, None, &mut text).expect("writing to memory cannot fail");
    let again = read::read_bytes(&text, &limits()).expect("what is written can be read");
    assert_eq!(digest_of(&again.csr), name, "a round trip changes the matrix");
}

fn digest_of(csr: &Csr) -> sparsetune::domain::Digest {
    digest::digest(csr, &digest::pattern_digest(csr))
}

/// `data` behind a header that leads to the format's reader, where it does not begin with one.
fn behind(header: &[u8], data: &[u8]) {
    if data.starts_with(header) {
        any_format(data);
    } else {
        any_format(&[header, data].concat());
    }
}

pub fn matrix_market(data: &[u8]) {
    behind(b"%%MatrixMarket matrix ", data);
}

pub fn npz(data: &[u8]) {
    behind(b"PK\x03\x04", data);
}

pub fn smtx(data: &[u8]) {
    any_format(data);
}

pub fn rutherford_boeing(data: &[u8]) {
    any_format(data);
}

pub fn harwell_boeing(data: &[u8]) {
    any_format(data);
}

/// The service's own file of a matrix.
pub fn canonical(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("matrix");
    std::fs::write(&path, data).expect("a temporary file");
    if let Ok((csr, header)) = canonical::open(&path) {
        assert_eq!(header.nnz, csr.nnz() as u64);
    }
}

/// gzip and zstd around any format.
pub fn compressed(data: &[u8]) {
    behind(if data.first() == Some(&0x28) { b"\x28\xb5\x2f\xfd" } else { b"\x1f\x8b" }, data);
}

/// A problem as clients send it, and a job's whole request.
pub fn problem_json(data: &[u8]) {
    if let Ok(problem) = serde_json::from_slice::<Problem>(data) {
        let text = serde_json::to_string(&problem).expect("a problem has a text");
        assert_eq!(serde_json::from_str::<Problem>(&text).ok(), Some(problem));
    }
    // Seconds that are no number do not compare; that it is read without a panic is enough.
    let _ = serde_json::from_slice::<JobRequest>(data);
}

/// A suite of `sparsetune bench`.
pub fn suite_toml(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Suite::parse(text);
    }
}
