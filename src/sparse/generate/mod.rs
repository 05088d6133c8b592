//! Deterministic matrix generators: from a seeded specification to canonical CSR, identical on any number of threads.

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

/// Most entries of a generated matrix: 12 bytes each, so about 3 GiB.
pub const MAX_NNZ: u64 = 1 << 28;

/// Why no matrix can be generated from a specification.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// A parameter outside its range.
    #[error("{name} is {value}, but must be {range}")]
    Parameter { name: &'static str, value: String, range: &'static str },
    /// Checked before anything of that size is allocated.
    #[error("the matrix would have {nnz} entries; generated matrices have at most {MAX_NNZ}")]
    TooManyEntries { nnz: u64 },
    /// The generated matrix is not canonical, or its shape is too large.
    #[error("the generated matrix is invalid: {0}")]
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
    // Not `value < low || value > high`, since NaN must also be refused.
    if value >= low && value <= high {
        return Ok(());
    }
    Err(GenerateError::Parameter { name, value: value.to_string(), range })
}

/// Refuses an unsupported number of rows or columns.
fn dimension(name: &'static str, value: u64) -> Result<usize, GenerateError> {
    within(name, value, 1, Csr::MAX_DIMENSION, "at least 1 and below 2^31")?;
    Ok(value as usize)
}

#[cfg(test)]
mod tests;
