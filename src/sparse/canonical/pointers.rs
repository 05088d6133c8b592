//! The row pointers of a canonical file: one for each row, or, where nearly all rows are empty, one for each row that has
//! entries.

use super::{CanonicalError, Header, read_array};
use crate::sparse::read::Held;
use crate::sparse::{Csr, CsrError};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// How row pointers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pointers {
    /// Version 1: the offset of every row, and the end.
    Full,
    /// Version 2: the number of every row that has entries, then the end of each.
    Filled(u64),
}

/// Rows of which compact pointers may leave out all: a small file must not become any amount of memory.
const FREE_ROWS: u64 = 1 << 24;
/// Beyond them, rows for each that has entries.
const ROWS_PER_FILLED: u64 = 1 << 10;

impl Pointers {
    /// Compact pointers if they take at most half the bytes of full ones, and not for matrices whose pointers are small anyway.
    pub(super) fn of(matrix: &Csr) -> Self {
        const SMALL: usize = 1 << 12;
        if matrix.rows() < SMALL {
            return Self::Full;
        }
        let filled = Self::Filled(filled_rows(matrix).count() as u64);
        let (rows, compact) = (matrix.rows() as u64, filled.bytes(matrix.rows() as u64));
        let half = 2 * compact <= u128::from(8 * (rows + 1));
        if half && filled.expands_to(rows) { filled } else { Self::Full }
    }

    pub(super) fn version(self) -> u64 {
        match self {
            Self::Full => 1,
            Self::Filled(_) => 2,
        }
    }

    /// The rows that have entries, as the header stores them.
    pub(super) fn stored_count(self) -> u64 {
        match self {
            Self::Full => 0,
            Self::Filled(count) => count,
        }
    }

    /// Bytes in the file.
    pub(super) fn bytes(self, rows: u64) -> u128 {
        match self {
            Self::Full => 8 * (u128::from(rows) + 1),
            Self::Filled(count) => {
                let count = u128::from(count);
                4 * (count + count % 2) + 8 * count
            }
        }
    }

    /// Whether so many rows may come of what is in the file.
    pub(super) fn expands_to(self, rows: u64) -> bool {
        match self {
            Self::Full => true,
            Self::Filled(count) => {
                count <= rows
                    && rows <= FREE_ROWS.saturating_add(count.saturating_mul(ROWS_PER_FILLED))
            }
        }
    }

    pub(super) fn write(self, matrix: &Csr, out: &mut impl Write) -> io::Result<()> {
        let Self::Filled(count) = self else {
            return out.write_all(bytemuck::cast_slice(matrix.indptr()));
        };
        let numbers = filled_rows(matrix).map(|row| row as u32);
        in_blocks(numbers, out)?;
        out.write_all(&[0u8; 4][..4 * (count % 2) as usize])?;
        in_blocks(filled_rows(matrix).map(|row| matrix.indptr()[row + 1] as u64), out)
    }

    /// The pointers of all rows, and the offset after those in the file. Whether they are those of a matrix is checked when it is
    /// made of them.
    pub(super) fn read(
        self,
        file: &File,
        at: u64,
        header: &Header,
        held: &Held,
    ) -> Result<(Vec<usize>, u64), CanonicalError> {
        // Hosts are 64-bit (see `sparse`), so usize can represent any u64.
        let rows = header.rows as usize;
        held.charge(header.rows + 1, 8, "row pointers")?;
        let Self::Filled(count) = self else {
            let mut indptr = vec![0usize; rows + 1];
            let at = read_array(file, bytemuck::cast_slice_mut(&mut indptr), at)?;
            return Ok((indptr, at));
        };
        let mut indptr = Vec::with_capacity(rows + 1);
        let at = runs(file, at, header.rows, count, |length, value| {
            indptr.resize(indptr.len() + length, value as usize);
        })?;
        Ok((indptr, at))
    }

    /// Hands on the pointers of all rows as the digest has them, in blocks of at most the length of `block`. The file stands before
    /// them, and afterwards behind them.
    pub(super) fn each(
        self,
        file: &mut File,
        rows: u64,
        block: &mut [u64],
        mut with: impl FnMut(&[u64]),
    ) -> Result<(), CanonicalError> {
        let Self::Filled(count) = self else {
            let mut left = rows + 1;
            while left > 0 {
                let now = left.min(block.len() as u64) as usize;
                file.read_exact(bytemuck::cast_slice_mut(&mut block[..now]))?;
                with(&block[..now]);
                left -= now as u64;
            }
            return Ok(());
        };
        let (at, mut filled) = (file.stream_position()?, 0);
        let at = runs(file, at, rows, count, |mut length, value| {
            while length > 0 {
                let now = length.min(block.len() - filled);
                block[filled..filled + now].fill(value);
                (filled, length) = (filled + now, length - now);
                if filled == block.len() {
                    with(block);
                    filled = 0;
                }
            }
        })?;
        with(&block[..filled]);
        file.seek(SeekFrom::Start(at))?;
        Ok(())
    }
}

/// The pointers of all rows from those of `count` rows that have entries, as runs of equal ones, and the offset after the latter in
/// the file, where they are at `at`.
fn runs(
    file: &File,
    at: u64,
    rows: u64,
    count: u64,
    mut run: impl FnMut(usize, u64),
) -> Result<u64, CanonicalError> {
    const BLOCK: usize = 1 << 16;
    let (mut numbers, mut ends) = (vec![0u32; BLOCK], vec![0u64; BLOCK]);
    let (mut at_numbers, mut at_ends) = (at, at + 4 * (count + count % 2));
    let (mut left, mut known, mut end) = (count, 0, 0);
    while left > 0 {
        let now = left.min(BLOCK as u64) as usize;
        let (numbers, ends) = (&mut numbers[..now], &mut ends[..now]);
        at_numbers = read_array(file, bytemuck::cast_slice_mut(numbers), at_numbers)?;
        at_ends = read_array(file, bytemuck::cast_slice_mut(ends), at_ends)?;
        for (&number, &next) in numbers.iter().zip(&*ends) {
            let row = u64::from(number);
            // Each row once, in order; each has entries.
            if row >= rows || row < known || next <= end {
                return Err(CsrError::RowPointers { row: number as usize }.into());
            }
            // This row and the empty ones before it begin where the row before them ends.
            run((row + 1 - known) as usize, end);
            (known, end) = (row + 1, next);
        }
        left -= now as u64;
    }
    run((rows + 1 - known) as usize, end);
    Ok(at_ends)
}

fn filled_rows(matrix: &Csr) -> impl Iterator<Item = usize> {
    let pairs = matrix.indptr().windows(2).enumerate();
    pairs.filter(|(_, pair)| pair[0] < pair[1]).map(|(row, _)| row)
}

/// Writes words without a copy of all of them.
fn in_blocks<T: bytemuck::NoUninit>(
    mut words: impl Iterator<Item = T>,
    out: &mut impl Write,
) -> io::Result<()> {
    const BLOCK: usize = 8192;
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        block.extend(words.by_ref().take(BLOCK));
        if block.is_empty() {
            return Ok(());
        }
        out.write_all(bytemuck::cast_slice(&block))?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file_of, open_bytes};
    use super::*;

    /// Rows of which few have entries, the last among them or not.
    fn hollow(rows: usize, filled: &[usize]) -> Csr {
        let mut indptr = vec![0; rows + 1];
        filled.iter().for_each(|row| indptr[row + 1] = 1);
        for row in 0..rows {
            indptr[row + 1] += indptr[row];
        }
        let nnz = filled.len();
        Csr::new(rows, 7, indptr, vec![3; nnz], (0..nnz).map(|at| at as f64).collect()).unwrap()
    }

    #[test]
    fn empty_rows_take_no_space_and_come_back() {
        for filled in [&[][..], &[0], &[5000], &[9999], &[0, 17, 9999], &[1, 2, 3, 4]] {
            let matrix = hollow(10_000, filled);
            let bytes = file_of(&matrix);
            assert!(bytes.len() < 256, "{}", bytes.len());
            assert_eq!(bytes[16], 2);
            let (read, header) = open_bytes(&bytes).unwrap();
            assert_eq!((read, header.rows), (matrix, 10_000));
        }
        // What has entries in every other row, or few rows, is stored as ever.
        let dense: Vec<usize> = (0..5000).map(|row| 2 * row).collect();
        for matrix in [hollow(10_000, &dense), hollow(100, &[1])] {
            let bytes = file_of(&matrix);
            assert_eq!((bytes[16], open_bytes(&bytes).unwrap().0), (1, matrix));
        }
    }

    #[test]
    fn the_file_of_a_matrix_of_one_entry_is_small() {
        let matrix = hollow(1 << 24, &[77]);
        let bytes = file_of(&matrix);
        assert_eq!(bytes.len(), 128 + 16 + 8 + 8);
        assert_eq!(open_bytes(&bytes).unwrap().0.indptr()[77..80], [0, 1, 1]);
    }

    #[test]
    fn refuses_hostile_pointers() {
        let good = file_of(&hollow(10_000, &[3, 8]));
        let patched = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            open_bytes(&bad)
        };
        assert!(patched(0, b"s").is_ok());
        let pointers = |result: Result<_, CanonicalError>| {
            matches!(result, Err(CanonicalError::Matrix(CsrError::RowPointers { .. })))
        };
        // Out of order, twice the same, outside, an end that falls, and one that is not that of the entries.
        for row in [9u32, 8, 10_000, u32::MAX] {
            assert!(pointers(patched(128, &row.to_le_bytes())), "{row}");
        }
        for end in [0u64, 2, u64::MAX] {
            assert!(pointers(patched(136, &end.to_le_bytes())), "{end}");
        }
        assert!(pointers(patched(144, &7u64.to_le_bytes())));
        let length = |result: Result<_, CanonicalError>| {
            matches!(result, Err(CanonicalError::Length { .. }))
        };
        for count in [0u64, 1, 3, 9000] {
            assert!(length(patched(112, &count.to_le_bytes())), "{count}");
        }
        // A file of some bytes does not become gigabytes.
        for rows in [1u64 << 31, u64::MAX, 1] {
            let refused = patched(24, &rows.to_le_bytes());
            assert!(matches!(refused, Err(CanonicalError::Hollow { .. })), "{rows}");
        }
    }
}
