//! Matrices in MKL's form, inspected for one routine, and its calls.

use super::{Descr, Handle, Mkl, Mkled};
use crate::domain::Layout;
use crate::domain::catalog::vendor::takes_vector;
use crate::engine::EngineError;
use crate::engine::cpu::kernel::Factors;
use crate::engine::cpu::operand::SparseOperand;
use crate::engine::cpu::program::Call;
use crate::sparse::Triangular;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Calls that MKL is told to expect, so that it takes the time to inspect the matrix.
const EXPECTED_CALLS: c_int = 1000;

/// SPARSE_OPERATION_NON_TRANSPOSE.
const AS_GIVEN: c_int = 10;
/// SPARSE_INDEX_BASE_ZERO.
const FROM_ZERO: c_int = 0;
/// SPARSE_LAYOUT_ROW_MAJOR and SPARSE_LAYOUT_COLUMN_MAJOR.
const ROW_MAJOR: c_int = 101;
const COLUMN_MAJOR: c_int = 102;

/// SPARSE_MATRIX_TYPE_GENERAL; the other two are not read.
const GENERAL: Descr = Descr { kind: 20, fill: 40, diagonal: 50 };

/// A triangle with its diagonal: SPARSE_MATRIX_TYPE_TRIANGULAR, lower or upper, and a diagonal that is stored.
const fn triangle(upper: bool) -> Descr {
    Descr { kind: 23, fill: if upper { 41 } else { 40 }, diagonal: 50 }
}

/// A CSR matrix that MKL reads in place.
struct Matrix<T: 'static> {
    mkl: &'static Mkl,
    threads: usize,
    /// MKL documents no calls on one matrix from several threads at a time.
    handle: Mutex<Handle>,
    rows: c_int,
    cols: c_int,
    /// What the handle points into.
    _arrays: (Vec<c_int>, Vec<c_int>, Vec<T>),
}

// SAFETY: the handle and the arrays are owned and used under the lock; MKL's matrices belong to no thread.
unsafe impl<T: Mkled> Send for Matrix<T> {}
// SAFETY: as above.
unsafe impl<T: Mkled> Sync for Matrix<T> {}

impl<T: Mkled> Matrix<T> {
    fn of(
        threads: usize,
        shape: (usize, usize),
        indptr: Vec<c_int>,
        indices: Vec<c_int>,
        values: Vec<T>,
    ) -> Result<Self, EngineError> {
        let opened = Mkl::open(&[]);
        let mkl = opened.found.as_ref().map_err(|error| refused(&error.to_string()))?;
        let (rows, cols) = (int(shape.0)?, int(shape.1)?);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the arrays are a matrix in CSR with this shape, and live as long as the handle. Row r ends where r + 1 begins.
        let status = unsafe {
            (T::routines(mkl).create)(
                &mut handle,
                FROM_ZERO,
                rows,
                cols,
                indptr.as_ptr(),
                indptr.as_ptr().wrapping_add(1),
                indices.as_ptr(),
                values.as_ptr(),
            )
        };
        checked(status, "create_csr")?;
        let _arrays = (indptr, indices, values);
        Ok(Self { mkl, threads, handle: Mutex::new(handle), rows, cols, _arrays })
    }

    /// Calls a function of MKL with the handle, on the threads of our kernels.
    fn call(
        &self,
        what: &str,
        work: impl FnOnce(&Mkl, Handle) -> c_int,
    ) -> Result<(), EngineError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        checked(self.mkl.on(self.threads, || work(self.mkl, *handle)), what)
    }

    /// Has MKL inspect the matrix after a hint. A hint that it has no use for is no failure: it then computes without.
    fn inspect(&self, hint: impl FnOnce(&Mkl, Handle) -> c_int) -> Result<(), EngineError> {
        let hinted = self.call("hint", hint);
        if let Err(error) = hinted {
            tracing::debug!(%error, "MKL takes no hint for this matrix");
        }
        // SAFETY: the handle is a matrix.
        self.call("optimize", |mkl, handle| unsafe { (mkl.optimize)(handle) })
    }
}

impl<T> Drop for Matrix<T> {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is a matrix, and nobody uses it after this.
        unsafe { (self.mkl.destroy)(*handle) };
    }
}

/// A product of MKL, prepared for one matrix and number of columns.
pub struct MklProduct<T: 'static> {
    matrix: Matrix<T>,
    vector: bool,
}

impl<T: Mkled> MklProduct<T> {
    /// Refused where MKL is not installed, and matrices that its 32-bit integers cannot count.
    pub fn of(
        operand: &SparseOperand<T>,
        routine: &str,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let matrix = &operand.matrix;
        let indptr = matrix.indptr().iter().map(|&at| int(at)).collect::<Result<_, _>>()?;
        let indices = matrix.indices().iter().map(|&col| int(col as usize));
        let indices = indices.collect::<Result<_, _>>()?;
        let shape = (matrix.rows(), matrix.cols());
        let matrix = Matrix::of(threads, shape, indptr, indices, operand.values.clone())?;
        let (vector, n) = (takes_vector(routine), int(operand.n)?);
        if vector && n != 1 {
            return Err(refused(&format!("`{routine}` multiplies one column")));
        }
        // SAFETY: the handle is a matrix.
        matrix.inspect(|mkl, handle| unsafe {
            match vector {
                true => (mkl.set_mv_hint)(handle, AS_GIVEN, GENERAL, EXPECTED_CALLS),
                false => {
                    let layout = layout(operand.layout);
                    (mkl.set_mm_hint)(handle, AS_GIVEN, GENERAL, layout, n, EXPECTED_CALLS)
                }
            }
        })?;
        Ok(Self { matrix, vector })
    }

    /// The routine that it was prepared for.
    pub fn routine(&self) -> &'static str {
        if self.vector { "mkl_mv" } else { "mkl_mm" }
    }

    /// One call. C is not read where beta is 0, nor where the call has no factors.
    pub fn run(&self, operand: &SparseOperand<T>, call: Call<'_, T>) -> Result<(), EngineError> {
        let Call { b, c, factors, .. } = call;
        assert!(b.len() == operand.b_len() && c.len() == operand.c_len(), "B and C fit the matrix");
        let Factors { alpha, beta } =
            factors.unwrap_or(Factors { alpha: T::of(1.0), beta: T::ZERO });
        let (b, c) = (b.as_ptr(), c.as_mut_ptr());
        let Matrix { rows, cols, .. } = self.matrix;
        if self.vector {
            // SAFETY: B and C are as long as the matrix is wide and high.
            return self.matrix.call("mv", |mkl, handle| unsafe {
                (T::routines(mkl).mv)(AS_GIVEN, alpha, handle, GENERAL, b, beta, c)
            });
        }
        let n = int(operand.n)?;
        let (ldb, ldc) = match operand.layout {
            Layout::Row => (n, n),
            Layout::Col => (cols, rows),
        };
        let order = layout(operand.layout);
        // SAFETY: B is cols x n and C rows x n, in this order and with these leading dimensions.
        self.matrix.call("mm", |mkl, handle| unsafe {
            let mm = T::routines(mkl).mm;
            mm(AS_GIVEN, alpha, handle, GENERAL, order, b, n, ldb, beta, c, ldc)
        })
    }
}

/// A triangular solve of MKL, prepared for one system and number of right-hand sides.
pub struct MklSolve<T: 'static> {
    matrix: Matrix<T>,
    upper: bool,
    /// Absent for one, by `trsv`.
    sides: Option<c_int>,
}

impl<T: Mkled> MklSolve<T> {
    /// `values` are those of the system's strictly lower entries, in its order. Refused as products are.
    pub fn of(
        system: &Triangular,
        values: &[T],
        diagonal: &[f64],
        (routine, sides): (&str, usize),
        threads: usize,
    ) -> Result<Self, EngineError> {
        let vector = routine == "mkl_trsv";
        if vector && sides != 1 {
            return Err(refused(&format!("`{routine}` solves for one right-hand side")));
        }
        let upper = system.reversed;
        let (indptr, indices, values) = rows_in_order(system, values, diagonal)?;
        let shape = (system.rows(), system.rows());
        let matrix = Matrix::of(threads, shape, indptr, indices, values)?;
        let (descr, n) = (triangle(upper), int(sides)?);
        // SAFETY: the handle is a matrix.
        matrix.inspect(|mkl, handle| unsafe {
            match vector {
                true => (mkl.set_sv_hint)(handle, AS_GIVEN, descr, EXPECTED_CALLS),
                false => (mkl.set_sm_hint)(handle, AS_GIVEN, descr, ROW_MAJOR, n, EXPECTED_CALLS),
            }
        })?;
        Ok(Self { matrix, upper, sides: (!vector).then_some(n) })
    }

    /// The routine that it was prepared for.
    pub fn routine(&self) -> &'static str {
        if self.sides.is_some() { "mkl_trsm" } else { "mkl_trsv" }
    }

    /// One call: b and x are rows x sides, row-major, in the matrix's row order.
    pub fn run(&self, b: &[T], x: &mut [T]) -> Result<(), EngineError> {
        let len = self.matrix.rows as usize * self.sides.unwrap_or(1) as usize;
        assert!(b.len() == len && x.len() == len, "b and x are rows x sides");
        let (one, descr, b, x) = (T::of(1.0), triangle(self.upper), b.as_ptr(), x.as_mut_ptr());
        // SAFETY: b and x have the length that the matrix and the number of sides demand.
        self.matrix.call("solve", |mkl, handle| unsafe {
            let routines = T::routines(mkl);
            match self.sides {
                None => (routines.trsv)(AS_GIVEN, one, handle, descr, b, x),
                Some(n) => (routines.trsm)(AS_GIVEN, one, handle, descr, ROW_MAJOR, b, n, n, x, n),
            }
        })
    }
}

type Rows<T> = (Vec<c_int>, Vec<c_int>, Vec<T>);

/// The system in the matrix's row order, with its diagonal: row pointers, columns in ascending order, values.
fn rows_in_order<T: Mkled>(
    system: &Triangular,
    values: &[T],
    diagonal: &[f64],
) -> Result<Rows<T>, EngineError> {
    let (rows, nnz) = (system.rows(), system.nnz() + system.rows());
    int(nnz)?;
    let mut indptr = Vec::with_capacity(rows + 1);
    let (mut indices, mut all) = (Vec::with_capacity(nnz), Vec::with_capacity(nnz));
    indptr.push(0);
    for row in 0..rows {
        let s = system.original(row);
        let entries = system.indptr[s]..system.indptr[s + 1];
        let mut put = |column: usize, value: T| {
            indices.push(system.original(column) as c_int);
            all.push(value);
        };
        // Columns ascend in solve order, so they descend in the row order of a reversed system.
        if system.reversed {
            put(s, T::of(diagonal[s]));
            entries.rev().for_each(|e| put(system.indices[e] as usize, values[e]));
        } else {
            entries.for_each(|e| put(system.indices[e] as usize, values[e]));
            put(s, T::of(diagonal[s]));
        }
        indptr.push(indices.len() as c_int);
    }
    Ok((indptr, indices, all))
}

const fn layout(layout: Layout) -> c_int {
    match layout {
        Layout::Row => ROW_MAJOR,
        Layout::Col => COLUMN_MAJOR,
    }
}

fn int(number: usize) -> Result<c_int, EngineError> {
    c_int::try_from(number)
        .map_err(|_| refused(&format!("MKL counts in 32 bits, and {number} is more")))
}

/// The words of `sparse_status_t`.
fn checked(status: c_int, what: &str) -> Result<(), EngineError> {
    let words = match status {
        0 => return Ok(()),
        1 => "not initialised",
        2 => return Err(EngineError::OutOfMemory(format!("MKL's {what} has no memory"))),
        3 => "invalid value",
        4 => "execution failed",
        5 => "internal error",
        6 => "not supported",
        _ => "unknown status",
    };
    Err(refused(&format!("MKL's {what} failed: {words} ({status})")))
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
