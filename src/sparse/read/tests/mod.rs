//! Every format's dialects and every refusal, and that no input makes a reader panic.

mod fixtures;
mod hostile;
mod matrix_market;
mod npz;
mod packed;
mod round_trip;
mod runs;
mod rutherford_boeing;
mod smtx;

use super::{Format, Limits, Parsed, ReadError, ReadErrorKind, read_bytes};

fn read(bytes: &[u8]) -> Result<Parsed, ReadError> {
    read_bytes(bytes, &Limits::default())
}

/// Row, column and value of every entry.
fn entries(parsed: &Parsed) -> Vec<(usize, u32, f64)> {
    let csr = &parsed.csr;
    let row = |row: usize| {
        let (cols, values) = csr.row(row);
        cols.iter().zip(values).map(move |(&col, &value)| (row, col, value)).collect::<Vec<_>>()
    };
    (0..csr.rows()).flat_map(row).collect()
}

/// Asserts a refusal: its kind, a piece of its message, and its line.
#[track_caller]
fn refused(bytes: &[u8], kind: ReadErrorKind, message: &str, line: Option<u64>) {
    let error = read(bytes).expect_err("it must be refused");
    assert_eq!((error.kind, error.line), (kind, line), "{error}");
    assert!(error.message.contains(message), "{error}");
}
