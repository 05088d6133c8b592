//! Resource limits of the readers, checked before memory is allocated and never based on a header alone.

use super::ReadError;
use super::pool::{Held, Pool};
use crate::sparse::Csr;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

/// Limits that a reader enforces, whatever the file declares.
#[derive(Clone, Debug)]
pub struct Limits {
    pub max_rows: u64,
    pub max_cols: u64,
    /// Entries of the matrix with symmetry expanded, before duplicates are summed. Values above 2^32 - 1 count as 2^32
    /// - 1.
    pub max_nnz: u64,
    /// Most bytes that a gzip, zstd or zip upload may decompress to.
    pub max_decompressed_bytes: u64,
    /// Most memory of one reader: the matrix itself, temporary copies, and what unpacking takes.
    pub max_matrix_bytes: u64,
    /// The memory that this reader shares with others.
    pub memory: Pool,
    /// Disk that it shares with others for what it unpacks.
    pub disk: Pool,
    /// Most bytes that one byte of a gzip or zstd upload may unpack to, beyond the first [`FREE_UNPACKED`].
    pub max_ratio: u64,
    /// Where large gzip or zstd uploads are decompressed to.
    pub spool: Spooling,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_rows: Csr::MAX_DIMENSION,
            max_cols: Csr::MAX_DIMENSION,
            max_nnz: i32::MAX as u64,
            max_decompressed_bytes: 16 << 30,
            max_matrix_bytes: 16 << 30,
            memory: Pool::memory(u64::MAX),
            disk: Pool::disk(u64::MAX),
            max_ratio: 250,
            spool: Spooling::default(),
        }
    }
}

/// Where a file for unpacked bytes comes from. It has no name, so that nothing is left behind.
#[derive(Clone, Default)]
pub enum Spooling {
    /// The system's folder for temporary files.
    #[default]
    System,
    Folder(PathBuf),
    /// It is asked for, by a process that may open none.
    Asked(AskFile),
}

/// Asks for a file.
pub type AskFile = Arc<dyn Fn() -> io::Result<File> + Send + Sync>;

impl fmt::Debug for Spooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("System"),
            Self::Folder(folder) => write!(f, "Folder({})", folder.display()),
            Self::Asked(_) => f.write_str("Asked"),
        }
    }
}

impl Spooling {
    /// A new file without a name.
    pub fn file(&self) -> io::Result<File> {
        match self {
            Self::System => tempfile::tempfile(),
            Self::Folder(folder) => tempfile::tempfile_in(folder),
            Self::Asked(ask) => ask(),
        }
    }
}

/// Bytes that any file may unpack to, whatever its size.
pub const FREE_UNPACKED: u64 = 64 << 20;
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

    /// Most bytes that `packed` bytes may unpack to.
    pub fn unpacked(&self, packed: u64) -> u64 {
        let ratio = FREE_UNPACKED.saturating_add(packed.saturating_mul(self.max_ratio));
        ratio.min(self.max_decompressed_bytes)
    }

    /// The memory of one reader, of which [`Self::max_matrix_bytes`] may be held.
    pub fn budget(&self) -> Held {
        self.memory.open(self.max_matrix_bytes)
    }
}
