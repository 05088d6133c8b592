//! `sparsetune generate`: writes a deterministic matrix from its specification as a Matrix Market file.

use super::files::write_whole;
use crate::sparse::Csr;
use crate::sparse::generate::Spec;
use crate::sparse::write;
use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
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
    save(path, &args.spec, &matrix)?;
    eprintln!(
        "{}: {} x {}, {} nonzeros",
        path.display(),
        matrix.rows(),
        matrix.cols(),
        matrix.nnz()
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes the matrix, so that an incomplete file is never mistaken for one.
fn save(path: &Path, spec: &str, matrix: &Csr) -> anyhow::Result<()> {
    write_whole(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        if path.extension().is_some_and(|ending| ending == "gz") {
            // Without time stamp and name in the gzip header, so that equal specifications give equal files.
            let mut out = GzEncoder::new(out, Compression::fast());
            write::matrix_market(matrix, Some(spec), &mut out)?;
            out.finish()?.flush()?;
        } else {
            write::matrix_market(matrix, Some(spec), &mut out)?;
            out.flush()?;
        }
        Ok(())
    })
}
