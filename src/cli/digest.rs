//! `sparsetune digest`: the digests that identify a matrix, independent of the file format.

use super::say;
use crate::domain::Digest;
use crate::sparse::digest;
use crate::sparse::read::{Limits, read_path};
use anyhow::Context;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct DigestArgs {
    /// Matrix Market (also gzip, zstd), npz, SMTX or Rutherford-Boeing
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A matrix's digests and shape.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    pub file: PathBuf,
    pub digest: Digest,
    pub pattern_digest: Digest,
    pub rows: usize,
    pub cols: usize,
    pub nnz: usize,
}

/// Reads the file and computes its digests.
pub fn identity(file: &Path) -> anyhow::Result<Identity> {
    let parsed = read_path(file, &Limits::default()).with_context(|| file.display().to_string())?;
    let csr = &parsed.csr;
    let pattern_digest = digest::pattern_digest(csr);
    Ok(Identity {
        file: file.to_owned(),
        digest: digest::digest(csr, &pattern_digest),
        pattern_digest,
        rows: csr.rows(),
        cols: csr.cols(),
        nnz: csr.nnz(),
    })
}

/// Processes all files; the exit code says whether all could be read.
pub fn run(args: &DigestArgs) -> anyhow::Result<ExitCode> {
    let mut end = ExitCode::SUCCESS;
    for file in &args.files {
        match identity(file) {
            Ok(found) if args.json => say(serde_json::to_value(&found)?)?,
            Ok(found) => say(format_args!(
                "{}: {} x {}, {} nonzeros\n  digest  {}\n  pattern {}",
                found.file.display(),
                found.rows,
                found.cols,
                found.nnz,
                found.digest,
                found.pattern_digest
            ))?,
            Err(error) => {
                eprintln!("sparsetune: {error:#}");
                end = ExitCode::FAILURE;
            }
        }
    }
    Ok(end)
}
