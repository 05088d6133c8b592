//! Canonical CSR from arrays as numerical libraries hold them (CSR, CSC, COO, in any order, with duplicates), and the
//! canonical entry that each stored value belongs to.

use super::{Csr, CsrError};

/// A signed index, as libraries store it.
pub trait Index: Copy {
    fn wide(self) -> i64;
}

impl Index for i32 {
    fn wide(self) -> i64 {
        self.into()
    }
}

impl Index for i64 {
    fn wide(self) -> i64 {
        self
    }
}

/// Where the entries stand. Entry i has value i of the data.
#[derive(Clone, Copy, Debug)]
pub enum Places<'a, I> {
    /// Row pointers (`rows + 1`), and a column for each entry.
    Rows { pointers: &'a [I], columns: &'a [I] },
    /// Column pointers (`cols + 1`), and a row for each entry.
    Columns { pointers: &'a [I], rows: &'a [I] },
    /// A row and a column for each entry.
    Pairs { rows: &'a [I], columns: &'a [I] },
}

/// A canonical matrix and where its values came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Arranged {
    pub matrix: Csr,
    pub order: Order,
}

/// Which canonical entry each stored value belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Number of entries.
    nnz: usize,
    /// The entry of each stored value; `None` if stored value i is entry i.
    entries: Option<Vec<u32>>,
}

/// Why arrays are not a sparse matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrangeError {
    #[error("there are {places} {what} but {values} values")]
    Lengths { what: &'static str, places: usize, values: usize },
    #[error(
        "the {what} pointers must be {expected} numbers that start at 0, never decrease and end at the number of entries \
         (violated at {what} {at})"
    )]
    Pointers { what: &'static str, expected: usize, at: usize },
    #[error("entry {entry} is in row {row}, column {column}, outside the {rows} x {cols} matrix")]
    Range { entry: usize, row: i64, column: i64, rows: usize, cols: usize },
    #[error("the matrix has {0} stored entries, but at most 4294967295 are supported")]
    TooMany(usize),
    #[error(transparent)]
    Matrix(#[from] CsrError),
}

/// Sorts the entries by row and column and sums duplicates in stored order. Explicit zeros are kept.
///
/// # Errors
/// The arrays contradict each other or the shape, or a value is not finite.
pub fn arrange<I: Index>(
    rows: usize,
    cols: usize,
    places: Places<'_, I>,
    values: Vec<f64>,
) -> Result<Arranged, ArrangeError> {
    let count = values.len();
    if u32::try_from(count).is_err() {
        return Err(ArrangeError::TooMany(count));
    }
    let lengths = |what: &'static str, places: usize| match places == count {
        true => Ok(()),
        false => Err(ArrangeError::Lengths { what, places, values: count }),
    };
    let pairs: Vec<(u32, u32)> = match places {
        Places::Rows { pointers, columns } => {
            lengths("column indices", columns.len())?;
            check_pointers("row", rows, pointers, count)?;
            if let Some(indices) = canonical_columns(cols, pointers, columns) {
                let indptr = pointers.iter().map(|pointer| pointer.wide() as usize).collect();
                let matrix = Csr::new(rows, cols, indptr, indices, values)?;
                return Ok(Arranged { matrix, order: Order { nnz: count, entries: None } });
            }
            let rows_of = expand(pointers);
            check_range(rows, cols, rows_of.zip(columns.iter().map(|column| column.wide())))?
        }
        Places::Columns { pointers, rows: entries } => {
            lengths("row indices", entries.len())?;
            check_pointers("column", cols, pointers, count)?;
            let columns_of = expand(pointers);
            check_range(rows, cols, entries.iter().map(|row| row.wide()).zip(columns_of))?
        }
        Places::Pairs { rows: entries, columns } => {
            lengths("row indices", entries.len())?;
            lengths("column indices", columns.len())?;
            let columns = columns.iter().map(|column| column.wide());
            check_range(rows, cols, entries.iter().map(|row| row.wide()).zip(columns))?
        }
    };
    sort(rows, cols, &pairs, &values)
}

fn check_pointers<I: Index>(
    what: &'static str,
    lines: usize,
    pointers: &[I],
    count: usize,
) -> Result<(), ArrangeError> {
    let fault = |at| Err(ArrangeError::Pointers { what, expected: lines + 1, at });
    if pointers.len() != lines + 1 || pointers[0].wide() != 0 {
        return fault(0);
    }
    if let Some(at) = pointers.windows(2).position(|pair| pair[0].wide() > pair[1].wide()) {
        return fault(at);
    }
    if pointers[lines].wide() != count as i64 { fault(lines) } else { Ok(()) }
}

/// The columns, if they are in range and rise strictly in each row.
fn canonical_columns<I: Index>(cols: usize, pointers: &[I], columns: &[I]) -> Option<Vec<u32>> {
    let narrow = |column: &I| match usize::try_from(column.wide()) {
        Ok(column) if column < cols => u32::try_from(column).ok(),
        _ => None,
    };
    let indices: Vec<u32> = columns.iter().map(narrow).collect::<Option<_>>()?;
    let rising = pointers.windows(2).all(|pair| {
        let row = &indices[pair[0].wide() as usize..pair[1].wide() as usize];
        row.windows(2).all(|pair| pair[0] < pair[1])
    });
    rising.then_some(indices)
}

/// The line of each entry, given checked pointers.
fn expand<I: Index>(pointers: &[I]) -> impl Iterator<Item = i64> + '_ {
    let lengths = pointers.windows(2).map(|pair| (pair[1].wide() - pair[0].wide()) as usize);
    (0i64..).zip(lengths).flat_map(|(line, length)| std::iter::repeat_n(line, length))
}

fn check_range(
    rows: usize,
    cols: usize,
    pairs: impl Iterator<Item = (i64, i64)>,
) -> Result<Vec<(u32, u32)>, ArrangeError> {
    let inside = |index: i64, size: usize| match usize::try_from(index) {
        Ok(index) if index < size => u32::try_from(index).ok(),
        _ => None,
    };
    let check = |(entry, (row, column)): (usize, (i64, i64))| {
        let pair = inside(row, rows).zip(inside(column, cols));
        pair.ok_or(ArrangeError::Range { entry, row, column, rows, cols })
    };
    pairs.enumerate().map(check).collect()
}

/// A counting sort by row, then each row by column; both stable, so duplicates are summed in stored order.
fn sort(
    rows: usize,
    cols: usize,
    pairs: &[(u32, u32)],
    values: &[f64],
) -> Result<Arranged, ArrangeError> {
    let mut ends = vec![0usize; rows + 1];
    for &(row, _) in pairs {
        ends[row as usize + 1] += 1;
    }
    for row in 0..rows {
        ends[row + 1] += ends[row];
    }
    let mut order = vec![0u32; pairs.len()];
    let mut next = ends.clone();
    for (stored, &(row, _)) in (0u32..).zip(pairs) {
        let place = &mut next[row as usize];
        order[*place] = stored;
        *place += 1;
    }
    let column = |stored: u32| pairs[stored as usize].1;
    let mut entries = vec![0u32; pairs.len()];
    let mut indptr = Vec::with_capacity(rows + 1);
    let (mut indices, mut kept) = (Vec::new(), Vec::new());
    indptr.push(0);
    for row in 0..rows {
        let order = &mut order[ends[row]..ends[row + 1]];
        order.sort_by_key(|&stored| column(stored));
        let begin = indices.len();
        for &stored in order.iter() {
            let value = values[stored as usize];
            match (indices.len() > begin).then(|| indices.len() - 1) {
                Some(last) if indices[last] == column(stored) => kept[last] += value,
                _ => {
                    indices.push(column(stored));
                    kept.push(value);
                }
            }
            // At most as many as stored values, whose number fits.
            entries[stored as usize] = (indices.len() - 1) as u32;
        }
        indptr.push(indices.len());
    }
    let same =
        indices.len() == entries.len() && entries.iter().copied().eq(0..entries.len() as u32);
    let matrix = Csr::new(rows, cols, indptr, indices, kept)?;
    let order = Order { nnz: matrix.nnz(), entries: (!same).then_some(entries) };
    Ok(Arranged { matrix, order })
}

impl Order {
    /// Number of stored values.
    pub fn stored(&self) -> usize {
        self.entries.as_ref().map_or(self.nnz, Vec::len)
    }

    /// Whether stored value i is entry i.
    pub fn is_canonical(&self) -> bool {
        self.entries.is_none()
    }

    /// The values of the entries, given values in the order of the arrays that the matrix was made from; `None` if their
    /// number is not [`Self::stored`].
    pub fn canonical(&self, stored: Vec<f64>) -> Option<Vec<f64>> {
        if stored.len() != self.stored() {
            return None;
        }
        let Some(entries) = &self.entries else { return Some(stored) };
        let mut values = vec![0.0; self.nnz];
        for (&entry, value) in entries.iter().zip(stored) {
            values[entry as usize] += value;
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::{ArrangeError, Places, arrange};
    use crate::sparse::Csr;

    /// [ 1 0 5 ]
    /// [ 0 0 0 ]
    /// [ 0 7 0 ]
    fn expected() -> Csr {
        Csr::new(3, 3, vec![0, 2, 2, 3], vec![0, 2, 1], vec![1.0, 5.0, 7.0]).unwrap()
    }

    #[test]
    fn canonical_arrays_are_taken_as_they_are() {
        let places = Places::Rows { pointers: &[0i32, 2, 2, 3], columns: &[0, 2, 1] };
        let arranged = arrange(3, 3, places, vec![1.0, 5.0, 7.0]).unwrap();
        assert_eq!(arranged.matrix, expected());
        assert!(arranged.order.is_canonical());
    }

    #[test]
    fn every_form_gives_the_same_matrix_and_remembers_its_order() {
        let rows = Places::Rows { pointers: &[0i64, 3, 3, 4], columns: &[2, 0, 2, 1] };
        let columns = Places::Columns { pointers: &[0, 1, 2, 4], rows: &[0, 2, 0, 0] };
        let pairs = Places::Pairs { rows: &[2, 0, 0, 0], columns: &[1, 2, 2, 0] };
        let cases: [(Places<'_, i64>, Vec<f64>, [u32; 4]); 3] = [
            (rows, vec![2.0, 1.0, 3.0, 7.0], [1, 0, 1, 2]),
            (columns, vec![1.0, 7.0, 2.0, 3.0], [0, 2, 1, 1]),
            (pairs, vec![7.0, 2.0, 3.0, 1.0], [2, 1, 1, 0]),
        ];
        for (places, values, entries) in cases {
            let arranged = arrange(3, 3, places, values.clone()).unwrap();
            assert_eq!(arranged.matrix, expected(), "{places:?}");
            let order = arranged.order;
            assert_eq!(order.entries.as_deref(), Some(&entries[..]), "{places:?}");
            assert!(order.canonical(values[1..].to_vec()).is_none());
            assert_eq!(order.canonical(values).unwrap(), expected().values());
        }
        // Sorted pairs need no map.
        let pairs = Places::Pairs { rows: &[0, 0, 2], columns: &[0i32, 2, 1] };
        let arranged = arrange(3, 3, pairs, vec![1.0, 5.0, 7.0]).unwrap();
        assert_eq!(arranged.matrix, expected());
        assert!(arranged.order.is_canonical());
    }

    #[test]
    fn empty_matrices() {
        let places = Places::Rows { pointers: &[0i32], columns: &[] };
        assert_eq!(arrange(0, 5, places, vec![]).unwrap().matrix.cols(), 5);
        let places = Places::Pairs { rows: &[] as &[i32], columns: &[] };
        assert_eq!(arrange(3, 0, places, vec![]).unwrap().matrix.indptr(), [0; 4]);
    }

    #[test]
    fn refuses_what_is_no_matrix() {
        let refused = |places: Places<'_, i32>, values: &[f64]| {
            arrange(2, 2, places, values.to_vec()).unwrap_err()
        };
        let pointers = [0, 1, 2];
        let short = refused(Places::Rows { pointers: &pointers, columns: &[0] }, &[1.0, 1.0]);
        assert!(matches!(short, ArrangeError::Lengths { places: 1, values: 2, .. }));
        for pointers in [&[0, 2, 1][..], &[1, 1, 2], &[0, 2], &[0, 1, 1], &[0, -1, 2], &[]] {
            let fault = refused(Places::Rows { pointers, columns: &[0, 1] }, &[1.0, 1.0]);
            assert!(matches!(fault, ArrangeError::Pointers { .. }), "{pointers:?}");
        }
        for columns in [[0, 2], [-1, 0]] {
            let fault = refused(Places::Rows { pointers: &pointers, columns: &columns }, &[1.0; 2]);
            assert!(matches!(fault, ArrangeError::Range { .. }), "{columns:?}");
        }
        let nan = refused(Places::Pairs { rows: &[0], columns: &[0] }, &[f64::NAN]);
        assert!(matches!(nan, ArrangeError::Matrix(_)));
    }
}
