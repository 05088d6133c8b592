//! Assembles canonical CSR from arrays of entries, which are traversed twice: count, scatter, then sort rows.

use super::{Held, ReadError, rows};
use crate::sparse::Csr;

/// One stored entry, 0-based.
pub(super) type Entry = (u32, u32, f64);

/// Bytes per entry of a CSR: a column and a value.
pub(super) const ENTRY: u64 = 12;

/// The symmetry by which stored entries imply others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symmetry {
    General,
    Symmetric,
    SkewSymmetric,
}

impl Symmetry {
    /// The entry implied on the other side of the diagonal.
    #[inline]
    pub(super) fn mirror(self, (row, col, value): Entry) -> Option<Entry> {
        match self {
            Self::General => None,
            _ if row == col => None,
            Self::Symmetric => Some((col, row, value)),
            Self::SkewSymmetric => Some((col, row, -value)),
        }
    }
}

/// Builds the matrix. Every entry must be inside the shape, and both traversals must yield the same entries.
///
/// Memory charged: the CSR (12 bytes per entry, 8 per row) and that of [`finish`].
pub(super) fn assemble<I>(
    rows: usize,
    cols: usize,
    entries: I,
    held: &Held,
) -> Result<Csr, ReadError>
where
    I: Iterator<Item = Entry> + Clone,
{
    held.charge(rows as u64 + 1, 8, "row pointers")?;
    let mut indptr = vec![0usize; rows + 1];
    let mut nnz = 0;
    for (row, _, _) in entries.clone() {
        indptr[row as usize + 1] += 1;
        nnz += 1;
    }
    held.charge(nnz as u64, ENTRY, "entries")?;
    let ends = &mut indptr[1..];
    let mut start = 0;
    for end in ends.iter_mut() {
        start += std::mem::replace(end, start);
    }
    let mut indices = vec![0u32; nnz];
    let mut values = vec![0f64; nnz];
    for (row, col, value) in entries {
        let place = &mut ends[row as usize];
        indices[*place] = col;
        values[*place] = value;
        *place += 1;
    }
    finish(rows, cols, indptr, indices, values, held)
}

/// Builds the matrix from CSR arrays with valid row pointers, whose rows may be unsorted.
///
/// Memory: that of the arrays, which is already charged, and 8 bytes per entry of the longest row, which may be
/// unsorted.
pub(super) fn finish(
    rows: usize,
    cols: usize,
    mut indptr: Vec<usize>,
    mut indices: Vec<u32>,
    mut values: Vec<f64>,
    held: &Held,
) -> Result<Csr, ReadError> {
    let longest = indptr.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    held.charge(longest as u64, 8, "sorting the longest row")?;
    let kept = rows::canonicalise(&mut indptr[1..], &mut indices, &mut values, longest);
    if kept < indices.len() {
        indices.truncate(kept);
        indices.shrink_to_fit();
        values.truncate(kept);
        values.shrink_to_fit();
    }
    Ok(Csr::new(rows, cols, indptr, indices, values)?)
}

/// Refuses pointers (0-based) that do not begin at 0, decrease, or do not end at `entries`.
pub(super) fn check_pointers(
    what: &str,
    pointers: &[usize],
    entries: usize,
) -> Result<(), ReadError> {
    if pointers.first() != Some(&0) {
        return Err(ReadError::malformed(format!(
            "the first {what} pointer must refer to the first entry"
        )));
    }
    if let Some(fall) = pointers.windows(2).position(|pair| pair[0] > pair[1]) {
        return Err(ReadError::malformed(format!(
            "the {what} pointers must not decrease, but do after {what} {fall}"
        )));
    }
    if pointers.last() != Some(&entries) {
        return Err(ReadError::malformed(format!(
            "the last {what} pointer must equal the number of entries, {entries}"
        )));
    }
    Ok(())
}
