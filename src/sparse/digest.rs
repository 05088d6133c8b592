//! Digests of a matrix: BLAKE3 over a documented byte layout, so that a client can compute them itself.
//!
//! All integers are little-endian, nothing is padded, and `||` joins byte strings. The matrix is canonical: columns
//! increase strictly in each row, duplicates are summed, symmetry is expanded, explicit zeros are kept.
//!
//! ```text
//! pattern digest = BLAKE3( "sparsetune pattern v1\0"          22 bytes
//!                       || rows, cols, nnz                    u64 each
//!                       || row pointers                       u64 x (rows + 1), from 0 to nnz
//!                       || column indices                     u32 x nnz, counted from 0 )
//! digest         = BLAKE3( "sparsetune matrix v1\0"           21 bytes
//!                       || pattern digest                     32 bytes
//!                       || values                             IEEE 754 binary64 x nnz, in entry order )
//! ```
//!
//! A value of -0 is hashed as +0, since the two are the same number; there are no NaNs. A pattern file's values are 1.
//! A new layout gets a new prefix, so digests of two versions can never be equal.

use super::Csr;
use crate::domain::Digest;
use blake3::Hasher;

const PATTERN_PREFIX: &[u8] = b"sparsetune pattern v1\0";
const MATRIX_PREFIX: &[u8] = b"sparsetune matrix v1\0";

/// Values hashed at a time: 8 MiB, enough to keep all threads busy and still small compared with the matrix.
const BLOCK: usize = 1 << 20;

/// Memory in bytes that computing a digest takes beside the matrix.
pub const MEMORY: u64 = 8 * BLOCK as u64;

/// The digest of shape and structure alone.
pub fn pattern_digest(matrix: &Csr) -> Digest {
    let sizes = [matrix.rows(), matrix.cols(), matrix.nnz()];
    let mut hashing = Hashing::pattern(sizes.map(|size| size as u64));
    hashing.bytes(bytemuck::cast_slice(matrix.indptr()));
    hashing.bytes(bytemuck::cast_slice(matrix.indices()));
    hashing.end()
}

/// The digest of the whole matrix, given its pattern digest.
pub fn digest(matrix: &Csr, pattern: &Digest) -> Digest {
    let mut hashing = Hashing::values(pattern);
    let mut normalised = Vec::new();
    for block in matrix.values().chunks(BLOCK) {
        if block.iter().any(|value| value.to_bits() == NEGATIVE_ZERO) {
            normalised.clear();
            // IEEE 754: -0 + 0 is +0, and every other value is unchanged.
            normalised.extend(block.iter().map(|value| value + 0.0));
            hashing.bytes(bytemuck::cast_slice(&normalised));
        } else {
            hashing.bytes(bytemuck::cast_slice(block));
        }
    }
    hashing.end()
}

/// A digest in the making, of bytes as the layout has them.
pub(super) struct Hashing(Hasher);

impl Hashing {
    /// A pattern's, from rows, columns and entries; row pointers and column indices follow.
    pub(super) fn pattern(sizes: [u64; 3]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(PATTERN_PREFIX);
        for size in sizes {
            hasher.update(&size.to_le_bytes());
        }
        Self(hasher)
    }

    /// A whole matrix's, whose values follow.
    pub(super) fn values(pattern: &Digest) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(MATRIX_PREFIX);
        hasher.update(pattern.as_bytes());
        Self(hasher)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.update_rayon(bytes);
    }

    /// Values as a file has them: zeros lose their sign here.
    pub(super) fn value_words(&mut self, words: &mut [u64]) {
        for word in words.iter_mut() {
            *word = if *word == NEGATIVE_ZERO { 0 } else { *word };
        }
        self.0.update_rayon(bytemuck::cast_slice(words));
    }

    pub(super) fn end(self) -> Digest {
        Digest::from_bytes(*self.0.finalize().as_bytes())
    }
}

const NEGATIVE_ZERO: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::{digest, pattern_digest};
    use crate::sparse::Csr;

    fn small(values: [f64; 3]) -> Csr {
        Csr::new(2, 3, vec![0, 1, 3], vec![2, 0, 1], values.to_vec()).unwrap()
    }

    /// Computed from the documented layout by another implementation (Python, `struct.pack` and the blake3 package).
    #[test]
    fn agrees_with_an_independent_computation() {
        let matrix = small([1.0, -2.5, 0.0]);
        let pattern = pattern_digest(&matrix);
        assert_eq!(
            pattern.to_string(),
            "41dce81bc55736f5ad1ff23f103bf0822523144196c27afa974cb742eeef6c46"
        );
        assert_eq!(
            digest(&matrix, &pattern).to_string(),
            "d95e4f30f94ab58e3dd48ed0dc813ed1f2e53fb2340be58eaedd920925fe4b23"
        );
    }

    #[test]
    fn digests_are_equal_exactly_for_equal_matrices() {
        let (a, b) = (small([1.0, 2.0, 0.0]), small([1.0, 2.0, -0.0]));
        let pattern = pattern_digest(&a);
        assert_eq!(pattern, pattern_digest(&b));
        assert_eq!(digest(&a, &pattern), digest(&b, &pattern));
        assert_ne!(digest(&a, &pattern), digest(&small([1.0, 2.0, 3.0]), &pattern));
        let wider = Csr::new(2, 4, vec![0, 1, 3], vec![2, 0, 1], vec![1.0; 3]).unwrap();
        assert_ne!(pattern, pattern_digest(&wider));
    }
}
