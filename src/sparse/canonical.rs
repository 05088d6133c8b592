//! The canonical matrix file, which evaluators read in bulk without parsing but with full validation.
//!
//! Little-endian; every array starts at a multiple of 8 bytes, so the file can also be mapped and used in place.
//!
//! ```text
//!   0  magic               16 bytes   "sparsetune csr\0\0"
//!  16  version             u64        1, or 2 where nearly all rows are empty
//!  24  rows, cols, nnz     u64 each
//!  48  pattern digest      32 bytes   see `sparse::digest`
//!  80  digest              32 bytes
//! 112  filled rows         u64        version 2: the rows that have entries; version 1: 0
//! 120  zeros               8 bytes
//! 128  row pointers        version 1: u64 x (rows + 1)
//!                          version 2: u32 x filled rows, their numbers, then 4 zero bytes if they are odd in number,
//!                                     then u64 x filled rows, the end of each
//!      column indices      u32 x nnz, then 4 zero bytes if nnz is odd
//!      values              binary64 x nnz
//! ```
//!
//! Digests are of the matrix, not of the file, so they do not depend on the version.

mod pointers;
mod recompute;

pub use recompute::recomputed;

use self::pointers::Pointers;
use super::read::{Held, Pool, ReadError};
use super::{Csr, CsrError};
use crate::domain::Digest;
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: &[u8; 16] = b"sparsetune csr\0\0";
const HEADER_BYTES: usize = 128;
/// Offset of the two digests.
const DIGESTS_AT: u64 = 48;

/// Bytes per parallel read: large enough for the disk, small enough to be distributed among threads.
const READ_BLOCK: usize = 8 << 20;

/// The header of a canonical file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    /// As stored in the file; not recomputed when it is opened.
    pub pattern_digest: Digest,
    pub digest: Digest,
}

/// Why a canonical file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    #[error("the canonical matrix file could not be read or written: {0}")]
    Io(#[from] io::Error),
    #[error("this is not a canonical matrix file")]
    Magic,
    #[error("the canonical matrix file has version {0}, but this build reads versions 1 and 2")]
    Version(u64),
    #[error(
        "the canonical matrix file has {found} bytes, but according to its header it should have {expected}"
    )]
    Length { found: u64, expected: u128 },
    #[error("the canonical matrix file has {rows} rows, of which only {filled} have entries")]
    Hollow { rows: u64, filled: u64 },
    #[error("the canonical matrix file does not contain what its header states the digests of")]
    Digests,
    #[error("the canonical matrix file contains an invalid matrix: {0}")]
    Matrix(#[from] CsrError),
    #[error(transparent)]
    Memory(Box<ReadError>),
}

impl From<ReadError> for CanonicalError {
    fn from(error: ReadError) -> Self {
        Self::Memory(Box::new(error))
    }
}

/// Writes the file under a temporary name and renames it, so that readers see either the complete file or none.
pub fn save(
    matrix: &Csr,
    path: &Path,
    pattern: Digest,
    digest: Digest,
) -> Result<(), CanonicalError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    write(matrix, &mut file, pattern, digest)?;
    // Without this, a power failure could leave a file with its name but without its contents.
    file.as_file().sync_data()?;
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

/// Bytes of a matrix's file.
pub fn file_bytes(matrix: &Csr) -> u64 {
    let pointers = Pointers::of(matrix).bytes(matrix.rows() as u64);
    let entries = (4 * (matrix.nnz() + matrix.nnz() % 2) + 8 * matrix.nnz()) as u64;
    (HEADER_BYTES as u64 + entries).saturating_add(u64::try_from(pointers).unwrap_or(u64::MAX))
}

/// Writes the canonical bytes, each array in one call or in large blocks, so `out` needs no buffer.
pub fn write(
    matrix: &Csr,
    mut out: impl Write,
    pattern: Digest,
    digest: Digest,
) -> Result<(), CanonicalError> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    let pointers = Pointers::of(matrix);
    for field in
        [pointers.version(), matrix.rows() as u64, matrix.cols() as u64, matrix.nnz() as u64]
    {
        header.extend_from_slice(&field.to_le_bytes());
    }
    header.extend_from_slice(pattern.as_bytes());
    header.extend_from_slice(digest.as_bytes());
    header.extend_from_slice(&pointers.stored_count().to_le_bytes());
    header.resize(HEADER_BYTES, 0);
    out.write_all(&header)?;
    pointers.write(matrix, &mut out)?;
    out.write_all(bytemuck::cast_slice(matrix.indices()))?;
    out.write_all(&[0u8; 4][..padding(matrix.nnz())])?;
    out.write_all(bytemuck::cast_slice(matrix.values()))?;
    out.flush()?;
    Ok(())
}

/// Writes the digests into a file that was written without them, by a process that is not trusted to compute them.
pub fn sign(file: &File, pattern: Digest, digest: Digest) -> io::Result<()> {
    file.write_all_at(&[*pattern.as_bytes(), *digest.as_bytes()].concat(), DIGESTS_AT)
}

/// Reads a canonical file. Lengths are checked against the file size before anything is allocated, and the arrays
/// against all invariants of a canonical matrix. The digests are those of the header; the caller compares them with the
/// expected ones.
pub fn open(path: &Path) -> Result<(Csr, Header), CanonicalError> {
    let (csr, header, _) = open_in(path, &Pool::memory(u64::MAX))?;
    Ok((csr, header))
}

/// [`open`] in memory that others use as well, which is charged before it is allocated and for as long as the last value is
/// kept.
pub fn open_in(path: &Path, memory: &Pool) -> Result<(Csr, Header, Held), CanonicalError> {
    read_in(&File::open(path)?, memory)
}

/// [`open_in`] for a file that is open already. Reads by position, and leaves the file's own where it is.
pub fn read_in(file: &File, memory: &Pool) -> Result<(Csr, Header, Held), CanonicalError> {
    let found = file.metadata()?.len();
    let mut bytes = [0u8; HEADER_BYTES];
    if found < HEADER_BYTES as u64 {
        return Err(CanonicalError::Magic);
    }
    file.read_exact_at(&mut bytes, 0)?;
    let (header, pointers) = parse_header(&bytes)?;
    check_length(&header, pointers, found)?;
    let nnz = header.nnz as usize;
    let held = memory.open(u64::MAX);
    let (indptr, mut at) = pointers.read(file, HEADER_BYTES as u64, &header, &held)?;
    held.charge(header.nnz, 12, "entries")?;
    let mut indices = vec![0u32; nnz];
    let mut values = vec![0f64; nnz];
    at = read_array(file, bytemuck::cast_slice_mut(&mut indices), at)?;
    read_array(file, bytemuck::cast_slice_mut(&mut values), at + padding(nnz) as u64)?;
    let (rows, cols) = (header.rows as usize, header.cols as usize);
    Ok((Csr::new(rows, cols, indptr, indices, values)?, header, held))
}

fn padding(nnz: usize) -> usize {
    4 * (nnz % 2)
}

fn parse_header(bytes: &[u8; HEADER_BYTES]) -> Result<(Header, Pointers), CanonicalError> {
    if !bytes.starts_with(MAGIC) {
        return Err(CanonicalError::Magic);
    }
    let word = |at: usize| {
        let mut word = [0u8; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let digest = |at: usize| {
        let mut digest = [0u8; 32];
        digest.copy_from_slice(&bytes[at..at + 32]);
        Digest::from_bytes(digest)
    };
    let pointers = match word(16) {
        1 => Pointers::Full,
        2 => Pointers::Filled(word(112)),
        other => return Err(CanonicalError::Version(other)),
    };
    let header = Header {
        rows: word(24),
        cols: word(32),
        nnz: word(40),
        pattern_digest: digest(48),
        digest: digest(80),
    };
    if !pointers.expands_to(header.rows) {
        return Err(CanonicalError::Hollow { rows: header.rows, filled: pointers.stored_count() });
    }
    Ok((header, pointers))
}

/// Whether the file has exactly the size that its header says.
fn check_length(header: &Header, pointers: Pointers, found: u64) -> Result<(), CanonicalError> {
    let nnz = u128::from(header.nnz);
    let expected =
        HEADER_BYTES as u128 + pointers.bytes(header.rows) + 4 * (nnz + nnz % 2) + 8 * nnz;
    if expected != u128::from(found) {
        return Err(CanonicalError::Length { found, expected });
    }
    Ok(())
}

/// Fills `bytes` from offset `at` and returns the offset after them.
fn read_array(file: &File, bytes: &mut [u8], at: u64) -> Result<u64, CanonicalError> {
    let end = at + bytes.len() as u64;
    bytes
        .par_chunks_mut(READ_BLOCK)
        .enumerate()
        .try_for_each(|(i, block)| file.read_exact_at(block, at + (i * READ_BLOCK) as u64))?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::digest::{digest, pattern_digest};

    fn example() -> (Csr, Digest, Digest) {
        let matrix = Csr::new(3, 4, vec![0, 2, 2, 3], vec![0, 3, 1], vec![1.5, -2.0, 0.0]).unwrap();
        let pattern = pattern_digest(&matrix);
        let whole = digest(&matrix, &pattern);
        (matrix, pattern, whole)
    }

    pub(super) fn file_of(matrix: &Csr) -> Vec<u8> {
        let pattern = pattern_digest(matrix);
        let mut bytes = Vec::new();
        write(matrix, &mut bytes, pattern, digest(matrix, &pattern)).unwrap();
        assert_eq!(bytes.len() as u64, file_bytes(matrix));
        bytes
    }

    pub(super) fn open_bytes(bytes: &[u8]) -> Result<(Csr, Header), CanonicalError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        open(file.path())
    }

    #[test]
    fn round_trips_and_replaces_a_file_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("matrix.csr");
        let (matrix, pattern, whole) = example();
        std::fs::write(&path, b"old").unwrap();
        save(&matrix, &path, pattern, whole).unwrap();
        let (read, header) = open(&path).unwrap();
        assert_eq!((read, header.digest, header.pattern_digest), (matrix, whole, pattern));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        save(&empty, &path, pattern, whole).unwrap();
        assert_eq!(open(&path).unwrap().0, empty);
    }

    #[test]
    fn refuses_hostile_files() {
        let (matrix, pattern, whole) = example();
        let mut good = Vec::new();
        write(&matrix, &mut good, pattern, whole).unwrap();
        assert!(open_bytes(&good).is_ok());
        assert!(matches!(open_bytes(&good[..100]), Err(CanonicalError::Magic)));
        let cut = open_bytes(&good[..good.len() - 1]);
        assert!(matches!(cut, Err(CanonicalError::Length { .. })));
        let patched = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            open_bytes(&bad)
        };
        assert!(matches!(patched(0, b"X"), Err(CanonicalError::Magic)));
        assert!(matches!(patched(16, &[9]), Err(CanonicalError::Version(9))));
        // Counts that overflow 64 bits, or exceed the file size, fail before anything is allocated.
        for at in [24, 40] {
            for count in [u64::MAX, 1 << 61, 1 << 40] {
                let bad = patched(at, &count.to_le_bytes());
                assert!(matches!(bad, Err(CanonicalError::Length { .. })));
            }
        }
        let wide = patched(32, &u64::MAX.to_le_bytes());
        assert!(matches!(wide, Err(CanonicalError::Matrix(CsrError::TooLarge { .. }))));
        let falling = patched(136, &u64::MAX.to_le_bytes());
        assert!(matches!(falling, Err(CanonicalError::Matrix(CsrError::RowPointers { .. }))));
        let outside = patched(160, &7u32.to_le_bytes());
        assert!(matches!(outside, Err(CanonicalError::Matrix(CsrError::ColumnRange { .. }))));
        let nan = patched(176, &f64::NAN.to_le_bytes());
        assert!(matches!(nan, Err(CanonicalError::Matrix(CsrError::NotFinite { .. }))));
    }
}
