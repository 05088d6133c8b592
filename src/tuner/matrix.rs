//! A matrix to tune: from a file, from arrays, or generated.

use super::TunerError;
use crate::domain;
use crate::sparse::generate::Spec;
use crate::sparse::read::{self, Limits};
use crate::sparse::{Csr, features};
use std::path::Path;

/// A sparse matrix in canonical CSR: columns sorted in each row, duplicates summed, explicit zeros kept, all values finite.
///
/// ```
/// use sparsetune::Matrix;
///
/// // [ 4 0 1 ]
/// // [ 0 2 0 ]
/// let matrix = Matrix::from_csr(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![4.0, 1.0, 2.0])?;
/// assert_eq!(matrix.csr().row(0), (&[0, 2][..], &[4.0, 1.0][..]));
///
/// // Its digests are what plans are looked up by.
/// let facts = matrix.facts();
/// assert_eq!((facts.rows, facts.cols, facts.nnz), (2, 3, 3));
/// println!("{}", facts.digest);
/// # Ok::<(), sparsetune::TunerError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    csr: Csr,
    name: Option<String>,
}

impl Matrix {
    /// Reads a file: Matrix Market, SciPy's npz, DLMC's smtx, Rutherford-Boeing or Harwell-Boeing, plain or packed with gzip
    /// or zstd. The format is recognised by its content.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("small.mtx");
    /// std::fs::write(&file, "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 0.5\n")?;
    /// let matrix = sparsetune::Matrix::read(&file)?;
    /// assert_eq!(matrix.csr().values(), [0.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The file cannot be read, is of no known format, or contradicts itself; the error names the line or byte.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TunerError> {
        let path = path.as_ref();
        let parsed = read::read_path(path, &Limits::default())
            .map_err(|source| TunerError::Read { path: path.to_owned(), source: source.into() })?;
        let stem = || path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        Ok(Self { name: parsed.declared_name.or_else(stem), csr: parsed.csr })
    }

    /// Takes CSR arrays: `rows + 1` row pointers from 0 to the number of entries; for each entry its column, counted from 0
    /// and strictly rising in each row; and its value.
    ///
    /// # Errors
    /// The arrays are not canonical CSR; the error names the row.
    pub fn from_csr(
        rows: usize,
        cols: usize,
        row_pointers: Vec<usize>,
        columns: Vec<u32>,
        values: Vec<f64>,
    ) -> Result<Self, TunerError> {
        Ok(Self { csr: Csr::new(rows, cols, row_pointers, columns, values)?, name: None })
    }

    /// Generates a matrix by its specification, as `sparsetune generate` takes it. Equal specifications give equal matrices.
    ///
    /// # Errors
    /// The specification is unknown or out of bounds; the error lists those that are known.
    pub fn generate(spec: &str) -> Result<Self, TunerError> {
        let refused = |source| TunerError::Specification { spec: spec.to_owned(), source };
        let csr = Spec::parse(spec).map_err(refused)?.generate()?;
        Ok(Self { csr, name: Some(spec.to_owned()) })
    }

    /// The arrays.
    pub fn csr(&self) -> &Csr {
        &self.csr
    }

    /// A hint for people: what the file says, or the file's name, or the specification.
    pub fn name(&self) -> Option<String> {
        self.name.clone()
    }

    /// Shape, digests and features of the matrix, computed in one pass over it.
    pub fn facts(&self) -> domain::Matrix {
        features::facts(&self.csr, self.name.clone())
    }
}

impl From<Csr> for Matrix {
    fn from(csr: Csr) -> Self {
        Self { csr, name: None }
    }
}
