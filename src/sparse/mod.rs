//! Sparse matrices: canonical CSR, file formats, digests, features, level sets, and the float64 oracle.

pub mod arrange;
pub mod blocks;
pub mod canonical;
pub mod csr;
pub mod digest;
pub mod features;
pub mod generate;
pub mod levels;
pub mod locality;
pub mod operand;
pub mod oracle;
pub mod profile;
pub mod random;
pub mod read;
pub mod spy;
pub mod tolerance;
pub mod triangle;
pub mod write;
pub mod zeroed;

pub use csr::{Csr, CsrError};
pub use triangle::{TriangleError, Triangular};

// Canonical files and digests use the little-endian bytes of these arrays without a copy.
#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("sparsetune needs a 64-bit little-endian host");
