//! Loading a problem: the canonical file, the operands, the reference result, and the lower bound of the time.

use super::product;
use super::solve::Loading as Solving;
use crate::domain::protocol::{Load, Loaded};
use crate::domain::{Device, Digest, Dtype, Problem, Spmm};
use crate::engine::Operands;
use crate::ops::limit::{self, Least};
use crate::ops::{self, Unsupported};
use crate::sparse::canonical::CanonicalError;
use crate::sparse::read::Pool;
use crate::sparse::tolerance::tolerance;
use crate::sparse::triangle::TriangleError;
use crate::sparse::{Csr, canonical};
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

/// Why a problem cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the stored file of matrix {matrix}: {why}")]
    File { matrix: Digest, why: CanonicalError },
    #[error("the file contains matrix {found}, not {asked}")]
    OtherMatrix { asked: Digest, found: Digest },
    #[error("problem {0} is not supported by any engine")]
    NoOperands(Problem),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error(transparent)]
    Triangle(#[from] TriangleError),
    #[error("row {row}, column {col}: the value {value:e} is outside the range of {dtype}")]
    Range { row: usize, col: u32, value: f64, dtype: Dtype },
    #[error("row {row} of the result is outside the range of {dtype}")]
    Overflow { row: usize, dtype: Dtype },
    #[error(
        "row {row} of the solution is outside the range of {dtype}: the system amplifies its right-hand side too much to be \
         solved in this type"
    )]
    Amplified { row: usize, dtype: Dtype },
    #[error("{what} is {count}, but kernels support at most {limit}")]
    TooLarge { what: &'static str, count: u128, limit: u64 },
    #[error("the operands could not be loaded onto the device: {0}")]
    Engine(String),
}

/// The stages of loading that are reported to the pool.
pub(super) const READING: &str = "reading";
pub(super) const MULTIPLYING: &str = "multiplying";
pub(super) const UPLOADING: &str = "uploading";

/// A matrix that was read and validated for its problem.
pub(super) struct Loading {
    /// As kernels work on it.
    pub(super) matrix: Arc<Csr>,
    what: What,
}

enum What {
    Product(Spmm),
    Solve(Solving),
}

/// Reads the file, which came with the request unless it is to be opened here, checks its digest and validates it for the problem.
pub(super) fn read(load: &Load, passed: Option<File>) -> Result<Loading, LoadError> {
    let fits = match &load.problem {
        Problem::Spmm(spmm) => spmm.n > 0,
        Problem::Sptrsv(problem) => Solving::takes(problem),
    };
    if !fits {
        return Err(LoadError::NoOperands(load.problem));
    }
    let file = passed.map_or_else(|| File::open(&load.path), Ok).map_err(CanonicalError::from);
    let (matrix, header, _) = file
        .and_then(|file| canonical::read_in(&file, &Pool::memory(u64::MAX)))
        .map_err(|why| LoadError::File { matrix: load.digest, why })?;
    if header.digest != load.digest {
        return Err(LoadError::OtherMatrix { asked: load.digest, found: header.digest });
    }
    let what = match load.problem {
        Problem::Spmm(spmm) => {
            product::check_sizes(&matrix, &spmm)?;
            product::check_range(&matrix, spmm.dtype)?;
            What::Product(spmm)
        }
        Problem::Sptrsv(problem) => What::Solve(Solving::of(&matrix, problem)?),
    };
    Ok(Loading { matrix: Arc::new(ops::operand(matrix, &load.problem)), what })
}

impl Loading {
    /// Computes the dense operands and the reference result.
    pub(super) fn operands(&self, load: &Load) -> Result<Operands, LoadError> {
        let (b, c0, expected) = match &self.what {
            What::Product(spmm) => product::operands(&self.matrix, spmm, load.seed)?,
            What::Solve(solving) => {
                let (b, expected) = solving.sides(load.seed)?;
                (b, None, expected)
            }
        };
        let (matrix, problem, l2_policy) = (self.matrix.clone(), load.problem, load.l2_policy);
        Ok(Operands { matrix, problem, l2_policy, b, c0, expected })
    }

    /// The largest error of a correct result, as measured by `engine::Check`.
    pub(super) fn tolerance(&self) -> f64 {
        match &self.what {
            What::Product(spmm) => tolerance(spmm),
            What::Solve(solving) => solving.tolerance(),
        }
    }

    /// Properties of the loaded problem on this device.
    pub(super) fn facts(&self, device: &Device, started: Instant) -> Loaded {
        let Least { us: limit_us, bound, bytes: compulsory_bytes } = match &self.what {
            What::Product(spmm) => limit::product(&self.matrix, spmm, device),
            What::Solve(solving) => solving.least(device),
        };
        let load_ms = started.elapsed().as_secs_f64() * 1e3;
        Loaded { compulsory_bytes, limit_us, bound, load_ms }
    }
}

pub(super) const MOST_NONZEROS: u64 = i32::MAX as u64;

/// Most elements of a dense operand. Terabytes are refused before this process dies of the allocation.
pub(super) const MOST_ELEMENTS: u64 = 1 << 38;

pub(super) fn check_count(what: &'static str, count: u128, limit: u64) -> Result<(), LoadError> {
    match count > u128::from(limit) {
        true => Err(LoadError::TooLarge { what, count, limit }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{L2Policy, Layout};
    use crate::engine::{ALPHA, BETA, Dense, Expected};
    use crate::sparse::digest;

    fn wide(dense: &Dense) -> Vec<f64> {
        match dense {
            Dense::F16(_) | Dense::Bf16(_) => panic!("not asked for"),
            Dense::F32(data) => data.iter().map(|&value| f64::from(value)).collect(),
            Dense::F64(data) => data.to_vec(),
        }
    }

    /// By the definition of the product, entry by entry of the stored matrix.
    #[test]
    fn a_transposed_product_is_that_of_the_stored_matrix() {
        // 5 x 4: rows 0 and 3 and column 3 are empty, row 4 is full otherwise.
        let (indptr, indices) = (vec![0, 0, 1, 3, 3, 6], vec![2, 0, 1, 0, 1, 2]);
        let values = vec![1.5, -2.0, 0.1, 3.0, 0.25, -7.0];
        let matrix = Csr::new(5, 4, indptr, indices, values).unwrap();
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("matrix");
        let pattern = digest::pattern_digest(&matrix);
        let digest = digest::digest(&matrix, &pattern);
        canonical::save(&matrix, &path, pattern, digest).unwrap();
        for (n, accumulate) in [(1, false), (3, true), (33, false), (33, true)] {
            for dtype in [Dtype::F32, Dtype::F64] {
                for layout in [Layout::Row, Layout::Col] {
                    let spmm = Spmm { accumulate, transpose: true, ..Spmm::new(n, dtype, layout) };
                    let (problem, l2_policy, n) = (Problem::Spmm(spmm), L2Policy::Warm, n as usize);
                    let load = Load { path: path.clone(), digest, problem, l2_policy, seed: 5 };
                    let loading = read(&load, None).unwrap();
                    let operands = loading.operands(&load).unwrap();
                    assert_eq!((operands.matrix.rows(), operands.matrix.cols()), (cols, rows));
                    let at = |lines: usize, line: usize, column: usize| match layout {
                        Layout::Row => line * n + column,
                        Layout::Col => column * lines + line,
                    };
                    let b = wide(&operands.b);
                    assert_eq!(b.len(), rows * n);
                    let mut c = vec![0.0; cols * n];
                    for row in 0..rows {
                        let (columns, values) = matrix.row(row);
                        for (&col, &value) in columns.iter().zip(values) {
                            let value = crate::sparse::oracle::round(value, dtype);
                            for j in 0..n {
                                c[at(cols, col as usize, j)] += value * b[at(rows, row, j)];
                            }
                        }
                    }
                    if let Some(c0) = operands.c0.as_ref().map(wide) {
                        c.iter_mut().zip(c0).for_each(|(c, c0)| *c = ALPHA * *c + BETA * c0);
                    }
                    assert_eq!(operands.c0.is_some(), accumulate);
                    let Expected::Product(product) = &operands.expected else { panic!() };
                    assert_eq!(product.value.len(), c.len());
                    for (found, wanted) in product.value.iter().zip(&c) {
                        assert!((found - wanted).abs() <= 1e-13 * wanted.abs().max(1.0));
                    }
                }
            }
        }
    }
}
