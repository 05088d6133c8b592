//! Level sets of forward substitution with tril(A): rows of one level depend only on earlier levels.

use super::Csr;

/// The level of each row, and the number of rows in each level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Level of each row, from 0.
    pub level_of_row: Vec<u32>,
    /// Rows per level; none is zero.
    pub widths: Vec<u32>,
}

/// Levels of tril(A): a row's level is one more than the highest level among the rows of its strictly lower entries.
/// The diagonal counts as present, and explicit zeros count as entries. One sequential pass in row order.
pub fn lower_levels(matrix: &Csr) -> Levels {
    levels_of(matrix.indptr(), matrix.indices())
}

/// Levels of the strictly lower part of rows given by row pointers and ascending columns.
pub fn levels_of(indptr: &[usize], indices: &[u32]) -> Levels {
    let rows = indptr.len() - 1;
    let mut level_of_row = vec![0u32; rows];
    let mut widths: Vec<u32> = Vec::new();
    for row in 0..rows {
        let columns = indices[indptr[row]..indptr[row + 1]].iter().map(|&col| col as usize);
        let lower = columns.take_while(|&col| col < row);
        let level = lower.map(|col| level_of_row[col] + 1).max().unwrap_or(0);
        level_of_row[row] = level;
        match widths.get_mut(level as usize) {
            Some(width) => *width += 1,
            // A row's level is at most one above the highest so far, so this is a new one.
            None => widths.push(1),
        }
    }
    Levels { level_of_row, widths }
}

#[cfg(test)]
mod tests {
    use super::{Levels, lower_levels};
    use crate::sparse::Csr;

    #[test]
    fn chains_and_independent_rows() {
        // Row 1 depends on 0; row 2 on none (its entries are above the diagonal); row 3 on 1 and 2.
        let indices = vec![0, 3, 0, 3, 1, 2];
        let matrix = Csr::new(4, 4, vec![0, 2, 3, 4, 6], indices, vec![1.0; 6]).unwrap();
        let levels = lower_levels(&matrix);
        assert_eq!(levels, Levels { level_of_row: vec![0, 1, 0, 2], widths: vec![2, 1, 1] });
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(lower_levels(&empty), Levels::default());
    }
}
