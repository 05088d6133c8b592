//! Deterministic generated matrices: a seeded specification in, canonical CSR out, the same on any number of threads.

mod build;
mod dissection;
mod elasticity;
mod graph;
mod irregular;
mod layered;
mod lower;
mod order;
mod planar;
mod pruned;
mod size;
mod spec;
mod stencil;

pub use lower::Lower;
pub use order::Order;
pub use size::Size;
pub use spec::{Spec, SpecError};

use super::{Csr, CsrError};

/// Most entries a generated matrix may have: 12 bytes each, so about 3 GiB.
pub const MAX_NNZ: u64 = 1 << 28;

/// Why a specification gives no matrix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// A parameter outside its range.
    #[error("{name} is {value}, but must be {range}")]
    Parameter { name: &'static str, value: String, range: &'static str },
    /// Checked before anything of that size is allocated.
    #[error("the matrix would have {nnz} entries; generated matrices have at most {MAX_NNZ}")]
    TooManyEntries { nnz: u64 },
    /// A generator made what is not canonical, or its shape is too large.
    #[error("the generated matrix is not acceptable: {0}")]
    Matrix(#[from] CsrError),
}

/// Refuses a parameter outside `low..=high`.
fn within<T: PartialOrd + ToString>(
    name: &'static str,
    value: T,
    low: T,
    high: T,
    range: &'static str,
) -> Result<(), GenerateError> {
    // Not `value < low || value > high`: a NaN is outside too.
    if value >= low && value <= high {
        return Ok(());
    }
    Err(GenerateError::Parameter { name, value: value.to_string(), range })
}

/// Refuses a number of rows or columns that no matrix can have.
fn dimension(name: &'static str, value: u64) -> Result<usize, GenerateError> {
    within(name, value, 1, Csr::MAX_DIMENSION, "at least 1 and below 2^31")?;
    Ok(value as usize)
}

#[cfg(test)]
mod tests;
