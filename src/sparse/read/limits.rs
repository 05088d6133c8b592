//! Resource limits of the readers, checked before memory is allocated and never based on a header alone.

use super::ReadError;
use crate::sparse::Csr;
use std::path::PathBuf;

/// Limits that a reader enforces, whatever the file declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_rows: u64,
    pub max_cols: u64,
    /// Entries of the matrix with symmetry expanded, before duplicates are summed. Values above 2^32 - 1 count as 2^32
    /// - 1.
    pub max_nnz: u64,
    /// Most bytes that a gzip, zstd or zip upload may decompress to.
    pub max_decompressed_bytes: u64,
    /// Most memory for entries while reading: the matrix itself and temporary copies.
    pub max_matrix_bytes: u64,
    /// Folder for decompressing large gzip or zstd uploads; by default the system's folder for temporary files.
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

/// Rows and columns that any file may declare (128 MiB of row pointers, 64 MiB of column counts).
const FREE_LINES: u64 = 1 << 24;
/// Beyond that, the shape must be in proportion to the file: an entry takes at least 4 bytes of text, so one in 16 rows
/// or columns must be used.
const LINES_PER_BYTE: u64 = 4;

impl Limits {
    /// Refuses a shape outside the limits, or one that is out of proportion to a file of `bytes` bytes.
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
                    "the matrix has {value} {what}, which exceeds the limit of {limit}"
                )));
            }
            if value > FREE_LINES.saturating_add(bytes.saturating_mul(LINES_PER_BYTE)) {
                return Err(ReadError::too_large(format!(
                    "the matrix has {value} {what} in a file of {bytes} bytes: almost all would be empty, and more than \
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
                "the matrix has {entries} nonzeros, which exceeds the limit of {limit}"
            )));
        }
        Ok(entries as usize)
    }

    pub(super) fn max_entries(&self) -> u64 {
        self.max_nnz.min(u64::from(u32::MAX))
    }
    /// The memory budget of one reader, from [`Self::max_matrix_bytes`].
    pub(super) fn budget(&self) -> Budget {
        Budget { left: self.max_matrix_bytes, limit: self.max_matrix_bytes }
    }
}

/// The remaining memory budget of a reader. It is charged before an allocation and never credited, so it bounds the
/// peak.
pub(super) struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    /// Charges `count` times `width` bytes.
    pub(super) fn charge(&mut self, count: u64, width: u64) -> Result<(), ReadError> {
        match self.left.checked_sub(count.saturating_mul(width)) {
            Some(left) => self.left = left,
            None => {
                return Err(ReadError::too_large(format!(
                    "reading the matrix would need more than the limit of {} bytes of memory",
                    self.limit
                )));
            }
        }
        Ok(())
    }

    /// How many elements of `width` bytes fit into the rest of the budget.
    pub(super) fn room(&self, width: u64) -> u64 {
        self.left / width
    }
}
