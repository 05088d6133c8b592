//! A canonical matrix, made from the arrays of a numerical library.

use crate::errors::OperandError;
use crate::fork;
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use sparsetune_core::domain::Digest;
use sparsetune_core::sparse::arrange::{ArrangeError, Arranged, Index, Order, Places, arrange};
use sparsetune_core::sparse::{Csr, digest};
use std::sync::Arc;

type Array<'py, T> = Bound<'py, PyArray1<T>>;

/// A sparse matrix in canonical form: columns sorted in each row, duplicates summed, explicit zeros kept. It remembers
/// the order of the values that it was made from.
#[pyclass(frozen, module = "sparsetune._native")]
pub struct Matrix {
    pub csr: Arc<Csr>,
    pub pattern_digest: Digest,
    pub digest: Digest,
    pub order: Order,
}

#[pymethods]
impl Matrix {
    /// `format` is `csr` (`first` are row pointers, `second` columns), `csc` (column pointers, rows) or `coo` (rows,
    /// columns); indices are int32 or int64, and data is float32 or float64. Entries may be in any order.
    #[new]
    fn new(
        py: Python<'_>,
        format: &str,
        shape: (usize, usize),
        first: &Bound<'_, PyAny>,
        second: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        fork::check()?;
        let values = floats(data)?;
        if let (Ok(first), Ok(second)) = (first.extract(), second.extract()) {
            return Self::read::<i32>(py, format, shape, [first, second], values);
        }
        if let (Ok(first), Ok(second)) = (first.extract(), second.extract()) {
            return Self::read::<i64>(py, format, shape, [first, second], values);
        }
        Err(OperandError::new_err(
            "The indices of the sparse matrix must be two one-dimensional NumPy arrays, both int32 or both int64.",
        ))
    }

    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.csr.rows(), self.csr.cols())
    }

    #[getter]
    fn nnz(&self) -> usize {
        self.csr.nnz()
    }

    /// Number of values in the arrays that the matrix was made from; duplicates count.
    #[getter]
    fn stored(&self) -> usize {
        self.order.stored()
    }

    /// Whether the arrays that the matrix was made from were canonical.
    #[getter]
    fn was_canonical(&self) -> bool {
        self.order.is_canonical()
    }

    #[getter]
    fn digest(&self) -> String {
        self.digest.to_string()
    }

    #[getter]
    fn pattern_digest(&self) -> String {
        self.pattern_digest.to_string()
    }

    /// Row pointers (int64), column indices (int32) and values (float64) of the canonical form, as new arrays.
    fn arrays<'py>(&self, py: Python<'py>) -> (Array<'py, i64>, Array<'py, i32>, Array<'py, f64>) {
        // Both are far below the limits of their types (`Csr::MAX_DIMENSION`, `arrange`).
        let pointers = self.csr.indptr().iter().map(|&pointer| pointer as i64);
        let columns = self.csr.indices().iter().map(|&column| column as i32);
        (
            PyArray1::from_iter(py, pointers),
            PyArray1::from_iter(py, columns),
            PyArray1::from_slice(py, self.csr.values()),
        )
    }

    /// The canonical values (float64) that belong to `data`, which is in the order of the arrays that the matrix was made
    /// from.
    fn values<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Array<'py, f64>> {
        let stored = floats(data)?;
        let (given, expected) = (stored.len(), self.order.stored());
        let values = self.order.canonical(stored).ok_or_else(|| {
            OperandError::new_err(format!(
                "There are {given} values, but the matrix was made from {expected}."
            ))
        })?;
        Ok(PyArray1::from_vec(py, values))
    }

    fn __repr__(&self) -> String {
        let ((rows, cols), nnz) = (self.shape(), self.nnz());
        format!("<sparsetune matrix {rows} x {cols}, {nnz} entries, {}>", self.digest.short())
    }
}

impl Matrix {
    fn read<I: Element + Index>(
        py: Python<'_>,
        format: &str,
        (rows, cols): (usize, usize),
        [first, second]: [PyReadonlyArray1<'_, I>; 2],
        values: Vec<f64>,
    ) -> PyResult<Self> {
        // Copies, which no other thread can change while this one is without Python's lock.
        let (first, second) = (contiguous(&first)?.to_vec(), contiguous(&second)?.to_vec());
        let places = match format {
            "csr" => Places::Rows { pointers: &first, columns: &second },
            "csc" => Places::Columns { pointers: &first, rows: &second },
            "coo" => Places::Pairs { rows: &first, columns: &second },
            other => {
                return Err(OperandError::new_err(format!(
                    "There is no format `{other}`: it must be csr, csc or coo."
                )));
            }
        };
        py.detach(|| {
            let Arranged { matrix, order } = arrange(rows, cols, places, values)?;
            let pattern_digest = digest::pattern_digest(&matrix);
            let digest = digest::digest(&matrix, &pattern_digest);
            Ok(Self { csr: Arc::new(matrix), pattern_digest, digest, order })
        })
        .map_err(|error: ArrangeError| {
            OperandError::new_err(format!("The sparse matrix cannot be used: {error}."))
        })
    }
}

fn contiguous<'a, T: Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    let refused = |_| OperandError::new_err("The arrays of the sparse matrix must be contiguous.");
    array.as_slice().map_err(refused)
}

/// A float32 or float64 array as f64.
pub fn floats(data: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    if let Ok(data) = data.extract::<PyReadonlyArray1<'_, f32>>() {
        return Ok(contiguous(&data)?.iter().copied().map(f64::from).collect());
    }
    if let Ok(data) = data.extract::<PyReadonlyArray1<'_, f64>>() {
        return Ok(contiguous(&data)?.to_vec());
    }
    Err(OperandError::new_err(
        "The values must be a one-dimensional NumPy array of float32 or float64.",
    ))
}
