//! What `tiled` with lanes along rows of B has of its own where B and C are column-major.

use super::{SECTOR, TiledRow};
use crate::domain::{Candidate, Layout, Spmm};
use crate::ops::spmm::family::{RowOrder, count, effective_layout, order};
use crate::ops::spmm::inspect::Inspection;

/// Fewest columns: with fewer most of a tile's lanes would idle.
const LEAST_COLUMNS: u32 = 16;

/// Narrowest tile, bytes of a row of B: two vectors of 16 bytes, four apart, are gathered at a time.
const LEAST_BYTES: u64 = 128;

/// The family's narrowest tile, columns.
const LEAST_TILE: u64 = 32;

/// Elements after each column of C in shared memory: a row of them lies in as many banks. Writing it meets in banks by twos.
const PADDING: u32 = 1;

/// Whether a candidate's tile is right for a column-major problem. Rows in the matrix's own order or by locality alone, since what is
/// next to each other in a column of C is written together.
pub fn serves(candidate: &Candidate, problem: &Spmm) -> bool {
    let Some(n1) = count(candidate, "n1") else { return false };
    let narrowest = (LEAST_BYTES / problem.dtype.bytes()).max(LEAST_TILE);
    let wide = u64::from(n1) >= narrowest;
    // A tile of more columns than there are is right if there is none narrower.
    let needed = n1 / 2 < problem.n || u64::from(n1 / 2) < narrowest;
    let ordered = matches!(order(candidate), Some(RowOrder::Natural | RowOrder::Locality));
    problem.n >= LEAST_COLUMNS && wide && needed && ordered
}

impl TiledRow {
    pub fn is_column_major(&self) -> bool {
        effective_layout(&self.problem) == Layout::Col
    }

    /// Shared memory in which rows of C become columns, bytes.
    pub fn turning_bytes(&self) -> u32 {
        if self.is_column_major() { self.n1 * (self.rows + PADDING) * self.sum_bytes() } else { 0 }
    }

    /// Bytes that are gathered for each byte of B that is used. The columns of A that a block of rows touches lie as far apart as the
    /// rows are wide, over their number; of a column of B, sectors are read.
    pub fn gathered_for_each(&self, seen: &Inspection) -> f64 {
        if !self.is_column_major() {
            return 1.0;
        }
        let (distinct, _) = self.stages(seen);
        let element = f64::from(self.element());
        let span = seen.mean_gap * seen.mean_row + f64::from(self.rows);
        (element * span / distinct).clamp(element, SECTOR) / element
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Dtype;

    #[test]
    fn tiles_are_as_wide_as_the_product_and_no_narrower_than_two_vectors_apart() {
        let widths = |n, dtype| {
            let problem = Spmm::new(n, dtype, Layout::Col);
            let of = |n1: i64| {
                Candidate::new("tiled").with("n1", n1).with_text("order", RowOrder::Natural.name())
            };
            [32, 64, 128].into_iter().filter(|&n1| serves(&of(n1), &problem)).collect::<Vec<_>>()
        };
        assert_eq!(widths(15, Dtype::F32), [0; 0]);
        assert_eq!(widths(16, Dtype::F32), [32]);
        assert_eq!(widths(33, Dtype::F32), [32, 64]);
        assert_eq!(widths(33, Dtype::F16), [64]);
        assert_eq!(widths(65, Dtype::F16), [64, 128]);
        assert_eq!(widths(16, Dtype::F64), [32]);
        assert_eq!(widths(33, Dtype::F64), [32, 64]);
    }
}
