//! Sparse matrices: canonical CSR, file formats, digests, features, level sets, and the float64 oracle.

pub mod csr;
pub mod oracle;
pub mod read;
pub mod write;

pub use csr::{Csr, CsrError};
