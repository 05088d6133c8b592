//! What an upload may cost: limits checked before memory is taken, and never against a header alone.

use super::ReadError;
use crate::sparse::Csr;
use std::path::PathBuf;

/// Bounds that a reader keeps to, whatever the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_rows: u64,
    pub max_cols: u64,
    /// Entries of the matrix, symmetry expanded, before duplicates are summed. Values above 2^32 - 1 act as that.
    pub max_nnz: u64,
    /// Bytes that a gzip, zstd or zip upload may unpack to.
    pub max_decompressed_bytes: u64,
    /// Memory that the entries may take while they are read: the matrix itself, and what is beside it on the way.
    pub max_matrix_bytes: u64,
    /// Where a large gzip or zstd upload is unpacked to; the system's folder for temporary files where there is none.
    pub spool: Option<PathBuf>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_rows: Csr::MAX_DIMENSION,
            max_cols: Csr::MAX_DIMENSION,
            max_nnz: i32::MAX as u64,
            max_decompressed_bytes: 16 << 30,
            max_matrix_bytes: 16 << 30,
            spool: None,
        }
    }
}

/// Rows, and columns, that any file may declare (128 MiB of row pointers, 64 MiB of counts of columns).
const FREE_LINES: u64 = 1 << 24;
/// Beyond these, each is paid for by content: an entry takes at least 4 bytes of text, so one line in 16 must be used.
const LINES_PER_BYTE: u64 = 4;

impl Limits {
    /// Refuses a shape outside the limits, and one whose empty rows or columns would dwarf a file of `bytes` bytes.
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
            if value > FREE_LINES.saturating_add(bytes.saturating_mul(LINES_PER_BYTE)) {
                return Err(ReadError::too_large(format!(
                    "{value} {what} in a file of {bytes} bytes: almost all would be empty, and more than \
                     {FREE_LINES} {what} need at least one entry for every 16"
                )));
            }
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
    /// What one reader may spend of [`Self::max_matrix_bytes`].
    pub(super) fn budget(&self) -> Budget {
        Budget { left: self.max_matrix_bytes, limit: self.max_matrix_bytes }
    }
}

/// Memory that a reader may still take. Charged before it is taken, and never credited: what is charged is the sum of
/// what a reader holds together at its worst.
pub(super) struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    /// Takes `count` times `width` bytes out of it.
    pub(super) fn charge(&mut self, count: u64, width: u64) -> Result<(), ReadError> {
        match self.left.checked_sub(count.saturating_mul(width)) {
            Some(left) => self.left = left,
            None => {
                return Err(ReadError::too_large(format!(
                    "reading the matrix would take more than the limit of {} bytes of memory",
                    self.limit
                )));
            }
        }
        Ok(())
    }

    /// How often `width` bytes are left.
    pub(super) fn room(&self, width: u64) -> u64 {
        self.left / width
    }
}
