//! `sparsetune generate`: writes a deterministic matrix from its specification as a Matrix Market file.

use crate::sparse::Csr;
use crate::sparse::generate::Spec;
use crate::sparse::write;
use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// Specification such as poisson3d:nx=64,ny=64,nz=64 or rmat:scale=16,edge_factor=8,seed=7; an unknown name lists
    /// all of them
    spec: String,
    /// File to write, compressed if it ends with `.gz` [default: standard output]
    #[arg(long, short)]
    output: Option<PathBuf>,
}

pub fn run(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let spec = Spec::parse(&args.spec).with_context(|| format!("`{}`", args.spec))?;
    let matrix = spec.generate()?;
    let Some(path) = &args.output else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        write::matrix_market(&matrix, Some(&args.spec), &mut out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    };
    save(path, &args.spec, &matrix).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!(
        "{}: {} x {}, {} nonzeros",
        path.display(),
        matrix.rows(),
        matrix.cols(),
        matrix.nnz()
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes to a temporary file and renames it, so that an incomplete file is never mistaken for a matrix.
fn save(path: &Path, spec: &str, matrix: &Csr) -> anyhow::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let staged = tempfile::NamedTempFile::new_in(folder)?;
    let out = BufWriter::with_capacity(1 << 20, staged.as_file());
    if path.extension().is_some_and(|ending| ending == "gz") {
        // Without time stamp and name in the gzip header, so that equal specifications give equal files.
        let mut out = GzEncoder::new(out, Compression::fast());
        write::matrix_market(matrix, Some(spec), &mut out)?;
        out.finish()?.flush()?;
    } else {
        let mut out = out;
        write::matrix_market(matrix, Some(spec), &mut out)?;
        out.flush()?;
    }
    let file: File = staged.persist(path).map_err(|error| error.error)?;
    drop(file);
    Ok(())
}
