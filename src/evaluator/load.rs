//! Loading a problem: the canonical file, the operands, the reference result, and the least time any kernel can take.

use super::solve::Loading as Solving;
use super::tolerance::{tolerance, weigh_rows};
use crate::domain::plan::Bound;
use crate::domain::protocol::{Load, Loaded};
use crate::domain::{Device, Digest, Dtype, Layout, Problem, Spmm};
use crate::engine::{Expected, Operands};
use crate::ops::Unsupported;
use crate::sparse::canonical::CanonicalError;
use crate::sparse::triangle::TriangleError;
use crate::sparse::{Csr, canonical, operand, oracle};
use rayon::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Why a problem cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{path}: {why}")]
    File { path: PathBuf, why: CanonicalError },
    #[error("the file holds matrix {found}, not {asked}")]
    OtherMatrix { asked: Digest, found: Digest },
    #[error("no engine has operands for {0} yet")]
    NoOperands(Problem),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error(transparent)]
    Triangle(#[from] TriangleError),
    #[error("row {row}, column {col}: the value {value:e} is beyond the range of f32")]
    Range { row: usize, col: u32, value: f64 },
    #[error("row {row} of the result is beyond the range of f32")]
    Overflow { row: usize },
    #[error(
        "row {row} of the solution is beyond the range of {dtype}: the system amplifies its right-hand side too much to be \
         solved in this type"
    )]
    Amplified { row: usize, dtype: Dtype },
    #[error("{what} is {count}; kernels count up to {limit}")]
    TooLarge { what: &'static str, count: u128, limit: u64 },
    #[error("the device did not take the operands: {0}")]
    Engine(String),
}

/// The stages of loading, as notes to the pool.
pub(super) const READING: &str = "reading";
pub(super) const MULTIPLYING: &str = "multiplying";
pub(super) const UPLOADING: &str = "uploading";

/// A matrix that was read and found fit for its problem.
pub(super) struct Loading {
    pub(super) matrix: Arc<Csr>,
    what: What,
}

enum What {
    Product(Spmm),
    Solve(Solving),
}

/// Reads the file and checks that it is what was asked for and fits the problem.
pub(super) fn read(load: &Load) -> Result<Loading, LoadError> {
    let fits = match &load.problem {
        Problem::Spmm(spmm) => spmm.dtype == Dtype::F32 && spmm.n > 0,
        Problem::Sptrsv(problem) => Solving::takes(problem),
    };
    if !fits {
        return Err(LoadError::NoOperands(load.problem));
    }
    let (matrix, header) = canonical::open(&load.path)
        .map_err(|why| LoadError::File { path: load.path.clone(), why })?;
    if header.digest != load.digest {
        return Err(LoadError::OtherMatrix { asked: load.digest, found: header.digest });
    }
    let what = match load.problem {
        Problem::Spmm(spmm) => {
            check_sizes(&matrix, &spmm)?;
            check_range(&matrix)?;
            What::Product(spmm)
        }
        Problem::Sptrsv(problem) => What::Solve(Solving::of(&matrix, problem)?),
    };
    Ok(Loading { matrix: Arc::new(matrix), what })
}

impl Loading {
    /// Makes the dense operands and what the result must be.
    pub(super) fn operands(&self, load: &Load) -> Result<Operands, LoadError> {
        let (b, expected) = match &self.what {
            What::Product(spmm) => {
                let b = operand::random(self.matrix.cols() * spmm.n as usize, load.seed);
                let expected = Expected::Product(Arc::new(product(&self.matrix, &b, spmm)?));
                (b.into(), expected)
            }
            What::Solve(solving) => solving.sides(load.seed)?,
        };
        let (matrix, problem, l2_policy) = (self.matrix.clone(), load.problem, load.l2_policy);
        Ok(Operands { matrix, problem, l2_policy, b, expected })
    }

    /// The largest error of a right result, as `engine::Check` measures it.
    pub(super) fn tolerance(&self) -> f64 {
        match &self.what {
            What::Product(spmm) => tolerance(spmm.dtype),
            What::Solve(solving) => solving.tolerance(),
        }
    }

    /// Facts of what was loaded, for this device.
    pub(super) fn facts(&self, device: &Device, started: Instant) -> Loaded {
        let (compulsory_bytes, limit_us, bound) = match &self.what {
            What::Product(spmm) => {
                let bytes = compulsory_bytes(&self.matrix, spmm);
                (bytes, bytes_us(bytes, device), Bound::Bytes)
            }
            What::Solve(solving) => {
                let bytes = solving.compulsory_bytes();
                let (limit_us, bound) = solving.limit_us(bytes_us(bytes, device), device);
                (bytes, limit_us, bound)
            }
        };
        let load_ms = started.elapsed().as_secs_f64() * 1e3;
        Loaded { compulsory_bytes, limit_us, bound, load_ms }
    }
}

/// What an SpMM must give, its scale weighed by the rows' lengths.
fn product(matrix: &Csr, b: &[f32], spmm: &Spmm) -> Result<oracle::Product, LoadError> {
    let mut reference = oracle::spmm(matrix, b, spmm);
    // |A||B| bounds every partial sum: where it fits, no order of summing can overflow.
    if let Some(at) = reference.scale.par_iter().position_any(|scale| !scale.is_finite()) {
        let row = match spmm.layout {
            Layout::Row => at / spmm.n as usize,
            Layout::Col => at % matrix.rows(),
        };
        return Err(LoadError::Overflow { row });
    }
    weigh_rows(matrix, spmm, &mut reference.scale);
    Ok(reference)
}

/// Row pointers are 32-bit on every device, and B and C must be addressable.
fn check_sizes(matrix: &Csr, spmm: &Spmm) -> Result<(), LoadError> {
    check_count("the number of nonzeros", matrix.nnz() as u128, MOST_NONZEROS)?;
    for (what, side) in [("the size of B", matrix.cols()), ("the size of C", matrix.rows())] {
        check_count(what, side as u128 * u128::from(spmm.n), MOST_ELEMENTS)?;
    }
    Ok(())
}

pub(super) const MOST_NONZEROS: u64 = i32::MAX as u64;

/// A terabyte of operand is no honest request: it is refused before this process dies allocating it.
pub(super) const MOST_ELEMENTS: u64 = 1 << 38;

pub(super) fn check_count(what: &'static str, count: u128, limit: u64) -> Result<(), LoadError> {
    match count > u128::from(limit) {
        true => Err(LoadError::TooLarge { what, count, limit }),
        false => Ok(()),
    }
}

fn check_range(matrix: &Csr) -> Result<(), LoadError> {
    let beyond = |value: &f64| !(*value as f32).is_finite();
    let Some(at) = matrix.values().par_iter().position_first(beyond) else {
        return Ok(());
    };
    let row = matrix.indptr().partition_point(|&start| start <= at) - 1;
    Err(LoadError::Range { row, col: matrix.indices()[at], value: matrix.values()[at] })
}

/// Bytes that any kernel has to move: A once, the rows of B that some entry needs once, C once.
///
/// A counts with 32-bit row pointers and column indices, as every kernel here stores it.
fn compulsory_bytes(matrix: &Csr, spmm: &Spmm) -> u64 {
    let (rows, nnz, n) = (matrix.rows() as u64, matrix.nnz() as u64, u64::from(spmm.n));
    let element = spmm.dtype.bytes();
    let a = 4 * (rows + 1) + nnz * (4 + element);
    a + (touched_columns(matrix) + rows) * n * element
}

/// Columns with at least one entry.
fn touched_columns(matrix: &Csr) -> u64 {
    let words: Vec<AtomicU64> =
        std::iter::repeat_with(AtomicU64::default).take(matrix.cols().div_ceil(64)).collect();
    matrix.indices().par_chunks(1 << 16).for_each(|columns| {
        for &col in columns {
            let (word, bit) = (&words[col as usize / 64], 1 << (col % 64));
            // Most entries find their bit set: reading first keeps the line shared among the cores.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    });
    words.into_iter().map(|word| u64::from(word.into_inner().count_ones())).sum()
}

/// The least time of moving so many bytes, microseconds.
fn bytes_us(bytes: u64, device: &Device) -> f64 {
    // 1 GB/s is 1e3 bytes a microsecond. A device that could not be measured has no limit to state.
    if device.copy_gbps > 0.0 { bytes as f64 / (device.copy_gbps * 1e3) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spmm(n: u32) -> Spmm {
        Spmm::new(n, Dtype::F32, Layout::Row)
    }

    #[test]
    fn counts_each_needed_byte_once() {
        // 2 x 70 with entries in columns 0, 69 and 69: 12 + 3 * 8 for A, 2 rows of B, 2 rows of C.
        let matrix = Csr::new(2, 70, vec![0, 2, 3], vec![0, 69, 69], vec![1.0; 3]).unwrap();
        assert_eq!(touched_columns(&matrix), 2);
        assert_eq!(compulsory_bytes(&matrix, &spmm(5)), 12 + 24 + (2 + 2) * 5 * 4);
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(compulsory_bytes(&empty, &spmm(5)), 4);
    }

    #[test]
    fn names_the_entry_that_f32_cannot_hold() {
        let matrix = Csr::new(3, 2, vec![0, 1, 1, 2], vec![0, 1], vec![1.0, 1e39]).unwrap();
        let error = check_range(&matrix).unwrap_err();
        assert!(matches!(error, LoadError::Range { row: 2, col: 1, .. }), "{error}");
    }

    #[test]
    fn refuses_sizes_no_kernel_can_count() {
        let matrix = Csr::new(0, 1 << 30, vec![0], vec![], vec![]).unwrap();
        assert!(check_sizes(&matrix, &spmm(128)).is_ok());
        assert!(check_sizes(&matrix, &spmm(u32::MAX)).is_err());
    }
}
