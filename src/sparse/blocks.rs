//! A sparse matrix in square blocks, as vendors' libraries take it (BSR): every block with an entry is stored whole.

use super::Csr;
use rayon::prelude::*;

/// Where the blocks are: block columns ascend within each row of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockPattern {
    /// One more than the rows of blocks.
    pub row_ptr: Vec<u32>,
    pub col_idx: Vec<u32>,
}

/// A matrix in compressed rows, with its values as bytes: what is stored in blocks depends on their width alone.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub cols: usize,
    /// One more than the rows.
    pub row_ptr: &'a [u32],
    pub col_idx: &'a [u32],
    pub values: &'a [u8],
    /// Bytes of one value.
    pub width: usize,
}

impl Rows<'_> {
    fn columns(&self, row: usize) -> &[u32] {
        &self.col_idx[self.row_ptr[row] as usize..self.row_ptr[row + 1] as usize]
    }

    /// The blocks of `size` x `size` that have an entry; `None` if the shape is no multiple of the size.
    pub fn blocks(&self, size: usize) -> Option<BlockPattern> {
        pattern([self.row_ptr.len().saturating_sub(1), self.cols], size, |row| self.columns(row))
    }

    /// The blocks' elements, by rows within each block, zero where there is no entry. Of entries in one place the last one
    /// counts, which canonical matrices do not have.
    pub fn elements(&self, pattern: &BlockPattern, size: usize) -> Vec<u8> {
        let block = size * size * self.width;
        let mut elements = vec![0; pattern.col_idx.len() * block];
        let mut rest = elements.as_mut_slice();
        let mut rows = Vec::with_capacity(pattern.row_ptr.len());
        for (row, pair) in pattern.row_ptr.windows(2).enumerate() {
            let (own, others) = rest.split_at_mut((pair[1] - pair[0]) as usize * block);
            let columns = &pattern.col_idx[pair[0] as usize..pair[1] as usize];
            rows.push((row, columns, own));
            rest = others;
        }
        rows.into_par_iter().for_each(|(block_row, columns, own)| {
            for inner in 0..size {
                let row = block_row * size + inner;
                let first = self.row_ptr[row] as usize;
                for (at, &col) in (first..).zip(self.columns(row)) {
                    let (block_col, col) = (col / size as u32, col as usize % size);
                    let Ok(place) = columns.binary_search(&block_col) else { continue };
                    let to = ((place * size + inner) * size + col) * self.width;
                    own[to..to + self.width]
                        .copy_from_slice(&self.values[at * self.width..(at + 1) * self.width]);
                }
            }
        });
        elements
    }
}

/// Elements that blocks of `size` x `size` store for each nonzero; `None` for a matrix without nonzeros, and if its shape is
/// no multiple of the size.
pub fn fill(matrix: &Csr, size: usize) -> Option<f64> {
    let blocks = pattern([matrix.rows(), matrix.cols()], size, |row| matrix.row(row).0)?;
    let stored = blocks.col_idx.len() as f64 * (size * size) as f64;
    (matrix.nnz() > 0).then(|| stored / matrix.nnz() as f64)
}

/// Its memory is bounded by the nonzeros, however many columns there are.
fn pattern<'a>(
    [rows, cols]: [usize; 2],
    size: usize,
    columns: impl Fn(usize) -> &'a [u32] + Sync,
) -> Option<BlockPattern> {
    if size == 0 || rows % size != 0 || cols % size != 0 {
        return None;
    }
    let block_rows = rows / size;
    let each = block_rows.div_ceil(2 * rayon::current_num_threads()).max(1);
    let starts: Vec<usize> = (0..block_rows).step_by(each).collect();
    let parts: Vec<(Vec<u32>, Vec<u32>)> = starts
        .into_par_iter()
        .map(|start| {
            let (mut counts, mut found) = (Vec::with_capacity(each), Vec::new());
            let mut own: Vec<u32> = Vec::new();
            for block_row in start..block_rows.min(start + each) {
                own.clear();
                for row in block_row * size..(block_row + 1) * size {
                    for block_col in columns(row).iter().map(|&col| col / size as u32) {
                        if own.last() != Some(&block_col) {
                            own.push(block_col);
                        }
                    }
                }
                own.sort_unstable();
                own.dedup();
                counts.push(own.len() as u32);
                found.extend_from_slice(&own);
            }
            (counts, found)
        })
        .collect();
    let mut made = BlockPattern { row_ptr: vec![0], col_idx: Vec::new() };
    for (counts, found) in parts {
        for count in counts {
            let before = made.row_ptr.last().copied().unwrap_or(0);
            made.row_ptr.push(before + count);
        }
        made.col_idx.extend(found);
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::generate::Spec;

    fn bytes(matrix: &Csr) -> Vec<u8> {
        matrix.values().iter().flat_map(|&value| (value as f32).to_le_bytes()).collect()
    }

    /// Every element of every block against the matrix's rows.
    #[test]
    fn blocks_hold_the_matrix_and_zeros() {
        for (name, size) in [
            ("rmat:scale=7,edge_factor=4,seed=3", 4),
            ("rmat:scale=7,edge_factor=4,seed=3", 32),
            ("poisson2d:nx=16,ny=8,seed=1", 8),
        ] {
            let matrix = Spec::parse(name).unwrap().generate().unwrap();
            let row_ptr: Vec<u32> = matrix.indptr().iter().map(|&at| at as u32).collect();
            let values = bytes(&matrix);
            let rows = Rows {
                cols: matrix.cols(),
                row_ptr: &row_ptr,
                col_idx: matrix.indices(),
                values: &values,
                width: 4,
            };
            let pattern = rows.blocks(size).unwrap();
            let elements = rows.elements(&pattern, size);
            assert_eq!(elements.len(), pattern.col_idx.len() * size * size * 4);
            assert_eq!(pattern.row_ptr.len(), matrix.rows() / size + 1);
            let mut dense = vec![0.0f32; matrix.rows() * matrix.cols()];
            for block_row in 0..matrix.rows() / size {
                let range =
                    pattern.row_ptr[block_row] as usize..pattern.row_ptr[block_row + 1] as usize;
                assert!(pattern.col_idx[range.clone()].is_sorted_by(|a, b| a < b));
                for at in range {
                    let stored = &elements[at * size * size * 4..(at + 1) * size * size * 4];
                    assert!(stored.iter().any(|&byte| byte != 0), "an empty block is stored");
                    for (place, value) in stored.chunks_exact(4).enumerate() {
                        let row = block_row * size + place / size;
                        let col = pattern.col_idx[at] as usize * size + place % size;
                        dense[row * matrix.cols() + col] =
                            f32::from_le_bytes(value.try_into().unwrap());
                    }
                }
            }
            let mut expected = vec![0.0f32; dense.len()];
            for row in 0..matrix.rows() {
                let (columns, entries) = matrix.row(row);
                for (&col, &value) in columns.iter().zip(entries) {
                    expected[row * matrix.cols() + col as usize] = value as f32;
                }
            }
            assert_eq!(dense, expected, "{name} {size}");
            let stored = (pattern.col_idx.len() * size * size) as f64;
            assert_eq!(fill(&matrix, size), Some(stored / matrix.nnz() as f64));
        }
    }

    #[test]
    fn fill_is_of_shapes_that_blocks_divide() {
        let one = Csr::new(8, 8, vec![0, 1, 1, 1, 1, 1, 1, 1, 1], vec![7], vec![1.0]).unwrap();
        assert_eq!([4, 8].map(|size| fill(&one, size)), [Some(16.0), Some(64.0)]);
        assert_eq!([0, 3, 16].map(|size| fill(&one, size)), [None; 3]);
        let odd = Csr::new(4, 6, vec![0, 1, 1, 1, 1], vec![5], vec![1.0]).unwrap();
        assert_eq!(fill(&odd, 4), None);
        let empty = Csr::new(4, 4, vec![0; 5], vec![], vec![]).unwrap();
        assert_eq!(fill(&empty, 4), None);
        // Whole blocks are stored without loss.
        let whole = Csr::new(4, 4, vec![0, 4, 8, 12, 16], [0, 1, 2, 3].repeat(4), vec![1.0; 16]);
        assert_eq!(fill(&whole.unwrap(), 4), Some(1.0));
    }
}
