//! Readers of matrix files, whose format is detected by content. Memory is bounded, headers are not trusted, and no
//! input causes a panic.
//!
//! All formats result in the same canonical [`Csr`] and so in the same digests. Files compressed with gzip or zstd are
//! decompressed first, up to [`Limits::max_decompressed_bytes`].

mod coding;
mod error;
mod limits;
mod matrix_market;
mod npz;
mod number;
mod pool;
mod rows;
mod runs;
mod rutherford_boeing;
mod smtx;
mod source;
mod text;
mod triplets;

pub use coding::Coding;
pub use error::{ReadError, ReadErrorKind};
pub use limits::{AskFile, Limits, Spooling};
pub use pool::{Held, Lender, Pool, Present, Shortage};
pub use source::{decode, decode_file};

use super::Csr;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

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
    /// The memory of `csr`, charged for as long as this is kept.
    pub held: Arc<Held>,
}

/// Reads a matrix file. The file is memory-mapped, so it must not be truncated meanwhile.
pub fn read_path(path: &Path, limits: &Limits) -> Result<Parsed, ReadError> {
    read_packed(&source::map(path)?, None, limits)
}

/// Reads a matrix file that was packed by `coding` on its way, once more than it may be itself.
pub fn read_path_coded(
    path: &Path,
    coding: Option<Coding>,
    limits: &Limits,
) -> Result<Parsed, ReadError> {
    read_packed(&source::map(path)?, coding, limits)
}

/// [`read_path_coded`] of a file that is open already.
pub fn read_file_coded(
    file: &File,
    coding: Option<Coding>,
    limits: &Limits,
) -> Result<Parsed, ReadError> {
    read_packed(&source::map_open(file)?, coding, limits)
}

/// Reads a matrix from memory.
pub fn read_bytes(bytes: &[u8], limits: &Limits) -> Result<Parsed, ReadError> {
    read_packed(bytes, None, limits)
}

fn read_packed(bytes: &[u8], coding: Option<Coding>, limits: &Limits) -> Result<Parsed, ReadError> {
    let held = limits.budget();
    match source::unpack(bytes, coding, limits, &held, |first| recognise(first).map(drop))? {
        Some(unpacked) => read_plain(&unpacked, limits, held),
        None => read_plain(bytes, limits, held),
    }
}

fn read_plain(bytes: &[u8], limits: &Limits, held: Held) -> Result<Parsed, ReadError> {
    let (format, csr, declared_name) = match recognise(bytes)? {
        Format::MatrixMarket => {
            let (csr, name) = matrix_market::read(bytes, limits, &held)?;
            (Format::MatrixMarket, csr, name)
        }
        Format::Npz => (Format::Npz, npz::read(bytes, limits, &held)?, None),
        Format::RutherfordBoeing | Format::HarwellBoeing => {
            rutherford_boeing::read(bytes, limits, &held)?
        }
        Format::Smtx => (Format::Smtx, smtx::read(bytes, limits, &held)?, None),
    };
    // What was needed only for reading has been freed.
    held.keep(csr.bytes());
    Ok(Parsed { csr, format, declared_name, held: Arc::new(held) })
}

/// The format by the first bytes; Harwell-Boeing is told from Rutherford-Boeing only when it is read.
fn recognise(bytes: &[u8]) -> Result<Format, ReadError> {
    if matrix_market::recognise(bytes) {
        Ok(Format::MatrixMarket)
    } else if npz::recognise(bytes) {
        Ok(Format::Npz)
    } else if rutherford_boeing::recognise(bytes) {
        // Before smtx, because its title card may contain anything.
        Ok(Format::RutherfordBoeing)
    } else if smtx::recognise(bytes) {
        Ok(Format::Smtx)
    } else {
        Err(not_recognised(bytes))
    }
}

fn not_recognised(bytes: &[u8]) -> ReadError {
    if Coding::of(bytes).is_some() {
        let message = "the upload is packed more than once; it may be plain, or packed once with gzip or zstd";
        return ReadError::new(ReadErrorKind::NotRecognised, message);
    }
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
