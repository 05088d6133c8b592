//! What an upload may cost: limits checked before memory is taken, and never against a header alone.

use super::ReadError;
use crate::sparse::Csr;

/// Bounds that a reader keeps to, whatever the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_rows: u64,
    pub max_cols: u64,
    /// Entries of the matrix, symmetry expanded, before duplicates are summed. Values above 2^32 - 1 act as that.
    pub max_nnz: u64,
    /// Bytes that a gzip, zstd or zip upload may unpack to.
    pub max_decompressed_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_rows: Csr::MAX_DIMENSION,
            max_cols: Csr::MAX_DIMENSION,
            max_nnz: i32::MAX as u64,
            max_decompressed_bytes: 16 << 30,
        }
    }
}

/// Rows that any file may declare (128 MiB of row pointers).
const FREE_ROWS: u64 = 1 << 24;
/// Beyond these, a row is paid for by content: an entry takes at least 4 bytes of text, so one row in 16 must be used.
const ROWS_PER_BYTE: u64 = 4;

impl Limits {
    /// Refuses a shape outside the limits, and one whose row pointers would dwarf a file of `bytes` bytes.
    pub(super) fn shape(
        &self,
        rows: u64,
        cols: u64,
        bytes: u64,
    ) -> Result<(usize, usize), ReadError> {
        let limits = [("rows", rows, self.max_rows), ("columns", cols, self.max_cols)];
        for (what, value, limit) in limits {
            let limit = limit.min(Csr::MAX_DIMENSION);
            if value > limit {
                return Err(ReadError::too_large(format!(
                    "{value} {what}, above the limit of {limit}"
                )));
            }
        }
        if rows > FREE_ROWS.saturating_add(bytes.saturating_mul(ROWS_PER_BYTE)) {
            return Err(ReadError::too_large(format!(
                "{rows} rows in a file of {bytes} bytes: almost all would be empty, and more than {FREE_ROWS} rows \
                 need at least one entry for every 16"
            )));
        }
        Ok((rows as usize, cols as usize))
    }

    pub(super) fn entries(&self, entries: u64) -> Result<usize, ReadError> {
        let limit = self.max_entries();
        if entries > limit {
            return Err(ReadError::too_large(format!(
                "{entries} nonzeros, above the limit of {limit}"
            )));
        }
        Ok(entries as usize)
    }

    pub(super) fn max_entries(&self) -> u64 {
        self.max_nnz.min(u64::from(u32::MAX))
    }
}
