//! Readers of matrix files, recognised by content: bounded in memory, trusting no header, panicking on no input.
//!
//! Whatever the format, the result is the same canonical [`Csr`], and so has the same digests. gzip and zstd around
//! any format are unpacked first, under [`Limits::max_decompressed_bytes`].

mod error;
mod limits;
mod matrix_market;
mod npz;
mod number;
mod rows;
mod runs;
mod rutherford_boeing;
mod smtx;
mod source;
mod text;
mod triplets;

pub use error::{ReadError, ReadErrorKind};
pub use limits::Limits;

use super::Csr;
use std::path::Path;

/// A format that was recognised, compression aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    MatrixMarket,
    Npz,
    Smtx,
    RutherfordBoeing,
    HarwellBoeing,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Parsed {
    pub csr: Csr,
    pub format: Format,
    /// The name the file gives its matrix, if it does; a hint for people, not an identity.
    pub declared_name: Option<String>,
}

/// Reads a matrix file. The file is mapped, so it must not be shortened by anybody meanwhile.
pub fn read_path(path: &Path, limits: &Limits) -> Result<Parsed, ReadError> {
    read_bytes(&source::map(path)?, limits)
}

/// Reads a matrix from memory.
pub fn read_bytes(bytes: &[u8], limits: &Limits) -> Result<Parsed, ReadError> {
    match source::unpack(bytes, limits)? {
        Some(unpacked) => read_plain(&unpacked, limits),
        None => read_plain(bytes, limits),
    }
}

fn read_plain(bytes: &[u8], limits: &Limits) -> Result<Parsed, ReadError> {
    let (format, csr, declared_name) = if matrix_market::recognise(bytes) {
        let (csr, name) = matrix_market::read(bytes, limits)?;
        (Format::MatrixMarket, csr, name)
    } else if npz::recognise(bytes) {
        (Format::Npz, npz::read(bytes, limits)?, None)
    } else if rutherford_boeing::recognise(bytes) {
        // Asked before smtx: its title card may say anything.
        rutherford_boeing::read(bytes, limits)?
    } else if smtx::recognise(bytes) {
        (Format::Smtx, smtx::read(bytes, limits)?, None)
    } else {
        return Err(not_recognised(bytes));
    };
    Ok(Parsed { csr, format, declared_name })
}

fn not_recognised(bytes: &[u8]) -> ReadError {
    let begins = &bytes[..bytes.len().min(16)];
    let found = if begins.is_empty() {
        "the upload is empty".to_owned()
    } else {
        format!("the upload begins with \"{}\"", begins.escape_ascii())
    };
    ReadError::new(
        ReadErrorKind::NotRecognised,
        format!(
            "{found}; expected Matrix Market, SciPy npz, DLMC smtx or Rutherford-Boeing / Harwell-Boeing, \
             plain or packed once with gzip or zstd"
        ),
    )
}

#[cfg(test)]
mod tests;
