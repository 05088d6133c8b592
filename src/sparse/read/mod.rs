//! Readers of matrix files, whose format is detected by content. Memory is bounded, headers are not trusted, and no
//! input causes a panic.
//!
//! All formats result in the same canonical [`Csr`] and so in the same digests. Files compressed with gzip or zstd are
//! decompressed first, up to [`Limits::max_decompressed_bytes`].

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

/// The detected format, without compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    MatrixMarket,
    Npz,
    Smtx,
    RutherfordBoeing,
    HarwellBoeing,
}

/// The result of reading a file.
#[derive(Clone, Debug)]
pub struct Parsed {
    pub csr: Csr,
    pub format: Format,
    /// The name of the matrix according to the file, if any; for display only.
    pub declared_name: Option<String>,
}

/// Reads a matrix file. The file is memory-mapped, so it must not be truncated meanwhile.
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
        // Before smtx, because its title card may contain anything.
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
            "the format is not recognised: {found}; expected Matrix Market, SciPy npz, DLMC smtx or Rutherford-Boeing / Harwell-Boeing, \
             plain or packed once with gzip or zstd"
        ),
    )
}

#[cfg(test)]
mod tests;
