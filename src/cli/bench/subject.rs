//! A matrix of a suite in memory, the structure of its triangular system, and its class by rows per level.

use super::npz;
use super::suite::Source;
use crate::cli::client::Client;
use crate::domain::problem::Diagonal;
use crate::domain::{Digest, Problem, Sptrsv};
use crate::sparse::read::{Limits, read_path};
use crate::sparse::{Csr, TriangleError, Triangular, digest, oracle};
use anyhow::Context;

/// Classes by rows / levels, with the smallest ratio of each: chains, narrow, medium, wide, nearly independent.
pub const CLASSES: [(&str, f64); 5] =
    [("< 4", 0.0), ("4-32", 4.0), ("32-256", 32.0), ("256-2000", 256.0), (">= 2000", 2000.0)];

/// A matrix in memory, with the values computed from it.
pub struct Subject {
    source: Source,
    csr: Csr,
    /// Indexed by the problem with one right-hand side, because the other fields do not matter.
    known: Vec<(Sptrsv, Shape)>,
}

/// Sizes that determine how a problem runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    /// Entries that a call reads: all of them, or those of the triangle, without the diagonal if it is unit.
    pub nnz: usize,
    /// Present if rows depend on each other.
    pub levels: Option<usize>,
}

impl Shape {
    /// Rows per level.
    pub fn width(&self) -> Option<f64> {
        // Without rows there are no levels.
        self.levels.map(|levels| self.rows as f64 / levels.max(1) as f64)
    }

    /// The class by rows per level.
    pub fn class(&self) -> Option<&'static str> {
        let width = self.width()?;
        CLASSES.iter().rev().find(|(_, least)| width >= *least).map(|(name, _)| *name)
    }
}

impl Subject {
    /// Reads or generates the matrix. This may take long, so it must not run on an async thread.
    pub fn bring(source: Source) -> anyhow::Result<Self> {
        let csr = match &source {
            Source::File(path) => {
                let parsed = read_path(path, &Limits::default());
                parsed.with_context(|| path.display().to_string())?.csr
            }
            Source::Generated(spec) => spec.generate()?,
        };
        Ok(Self { source, csr, known: Vec::new() })
    }

    pub fn shape(&mut self, problem: &Problem) -> Result<Shape, TriangleError> {
        let Problem::Sptrsv(solve) = *problem else {
            let (rows, cols, nnz) = (self.csr.rows(), self.csr.cols(), self.csr.nnz());
            return Ok(Shape { rows, cols, nnz, levels: None });
        };
        let key = Sptrsv { rhs: 1, ..solve };
        if let Some((_, shape)) = self.known.iter().find(|(known, _)| *known == key) {
            return Ok(*shape);
        }
        let system = Triangular::of(&self.csr, &key)?;
        let diagonal = if key.diagonal == Diagonal::Unit { 0 } else { system.rows() };
        let levels = Some(system.levels().widths.len());
        let rows = system.rows();
        let shape = Shape { rows, cols: rows, nnz: system.nnz() + diagonal, levels };
        self.known.push((key, shape));
        Ok(shape)
    }

    /// The largest |x| for random b in [-1, 1), computed in float64: if it exceeds the range of the problem's type, no
    /// algorithm can solve the system. None for SpMM.
    pub fn growth(&self, problem: &Problem) -> Result<Option<f64>, TriangleError> {
        let Problem::Sptrsv(solve) = problem else { return Ok(None) };
        let system = Triangular::of(&self.csr, solve)?;
        // A Weyl sequence: evenly distributed and reproducible.
        let b =
            (1..=system.rows()).map(|row| (row as f64 * 0.618_033_988_749_895).fract() * 2.0 - 1.0);
        let x = oracle::sptrsv(&system, &b.collect::<Vec<f64>>(), 1);
        // A NaN, from infinities that cancelled, counts as infinite.
        Ok(Some(x.iter().fold(0.0, |most: f64, x| {
            if x.abs() <= most {
                most
            } else if x.is_nan() {
                f64::INFINITY
            } else {
                x.abs()
            }
        })))
    }

    /// The digest by which a server identifies it. As slow as reading.
    pub fn digest(&self) -> Digest {
        digest::digest(&self.csr, &digest::pattern_digest(&self.csr))
    }

    /// Uploads the matrix, a file as it is and a generated one as npz, because text of that size would take longer than
    /// tuning.
    pub async fn upload(&self, client: &Client, name: &str) -> anyhow::Result<(Digest, bool)> {
        let (uploaded, created) = match &self.source {
            Source::File(path) => client.upload_file(path).await?,
            Source::Generated(_) => {
                let file =
                    tempfile::NamedTempFile::new().context("cannot create a temporary file")?;
                tokio::task::block_in_place(|| npz::write(&self.csr, file.as_file()))
                    .context("cannot write the matrix for its upload")?;
                let body = tokio::fs::File::open(file.path()).await?;
                client.upload(body.into(), Some(name)).await?
            }
        };
        Ok((uploaded.view.digest, created))
    }
}

#[cfg(test)]
mod tests {
    use super::{Shape, Source, Subject};
    use crate::domain::Problem;
    use crate::sparse::generate::Spec;

    #[test]
    fn classes_are_by_rows_a_level() {
        let class = |rows, levels| Shape { rows, cols: rows, nnz: 0, levels }.class();
        let of = |rows| class(rows, Some(10));
        assert_eq!(
            [of(0), of(39), of(40), of(319)].map(Option::unwrap),
            ["< 4", "< 4", "4-32", "4-32"]
        );
        assert_eq!(
            [of(320), of(2560), of(19_999), of(20_000)].map(Option::unwrap),
            ["32-256", "256-2000", "256-2000", ">= 2000"]
        );
        assert_eq!(class(5, None), None);
        assert_eq!(class(0, Some(0)), Some("< 4"));
    }

    #[test]
    fn shapes_count_what_a_solve_reads() {
        let spec = Spec::parse("poisson2d:nx=4,ny=3").unwrap();
        let mut subject = Subject::bring(Source::Generated(spec)).unwrap();
        let mut shape = |diagonal: &str| {
            let text = format!(
                r#"{{"op":"sptrsv","rhs":7,"dtype":"f64","triangle":"upper","diagonal":"{diagonal}"}}"#
            );
            let problem: Problem = serde_json::from_str(&text).unwrap();
            subject.shape(&problem).unwrap()
        };
        let known = Shape { rows: 12, cols: 12, nnz: 17, levels: Some(6) };
        assert_eq!(shape("non-unit"), Shape { nnz: 12 + 17, ..known });
        assert_eq!(shape("unit"), known);
    }
}
