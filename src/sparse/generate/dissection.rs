//! Cholesky factors of grid operators under nested dissection (George, SIAM J. Numer. Anal. 10, 1973): supernodes with
//! dense diagonal blocks and shared rows, many small ones first, a large dense one last.
//!
//! A box of points is divided by a plane; both halves precede the plane in the order and are divided recursively.
//! Eliminating the halves connects the plane's points with each other and with every point adjacent to the box's faces;
//! this is the pattern of the plane's columns, stored completely as in supernodal codes. A row's columns are then the
//! planes of all boxes that it touches and that lie within its own, found by descending the tree, without a symbolic
//! factorisation.

use super::build::{bounded, build};
use super::stencil::lower_row;
use super::{GenerateError, MAX_NNZ, dimension};
use crate::sparse::Csr;
use std::ops::Range;

/// A box with at most this many points is not divided: its rows form one dense triangle, as small supernodes are merged
/// in practice.
const LEAF: usize = 8;

/// A box of points, half-open along each axis.
#[derive(Clone, Copy)]
struct Region {
    low: [usize; 3],
    high: [usize; 3],
}

/// The two halves and the plane between them, in elimination order.
struct Cut {
    lower: Region,
    upper: Region,
    plane: Region,
}

impl Region {
    fn volume(&self) -> usize {
        (0..3).map(|axis| self.high[axis] - self.low[axis]).product()
    }

    /// Divides at the middle of the longest axis. A box with more than LEAF points is at least 3 long, so no half is
    /// empty.
    fn cut(&self) -> Option<Cut> {
        if self.volume() <= LEAF {
            return None;
        }
        let length = |axis: usize| self.high[axis] - self.low[axis];
        let longest =
            (1..3).fold(0, |best, axis| if length(axis) > length(best) { axis } else { best });
        let middle = self.low[longest] + length(longest) / 2;
        let (mut lower, mut upper, mut plane) = (*self, *self, *self);
        lower.high[longest] = middle;
        (plane.low[longest], plane.high[longest]) = (middle, middle + 1);
        upper.low[longest] = middle + 1;
        Some(Cut { lower, upper, plane })
    }

    /// x varies fastest.
    fn point(&self, index: usize) -> [usize; 3] {
        let (nx, ny) = (self.high[0] - self.low[0], self.high[1] - self.low[1]);
        let offset = [index % nx, index / nx % ny, index / (nx * ny)];
        std::array::from_fn(|axis| self.low[axis] + offset[axis])
    }

    /// Whether an outside point is adjacent to a face.
    fn touches(&self, point: [usize; 3]) -> bool {
        let mut beside = 0;
        for (axis, at) in point.into_iter().enumerate() {
            if at + 1 == self.low[axis] || at == self.high[axis] {
                beside += 1;
            } else if at < self.low[axis] || at > self.high[axis] {
                return false;
            }
        }
        beside == 1
    }

    /// Number of grid points adjacent to the faces.
    fn beside(&self, grid: &[usize; 3]) -> usize {
        let faces = |axis: usize| {
            let both = usize::from(self.low[axis] > 0) + usize::from(self.high[axis] < grid[axis]);
            both * (self.volume() / (self.high[axis] - self.low[axis]))
        };
        (0..3).map(faces).sum()
    }
}

/// The factor of the grid's operator, with the bounded values of `lower_row`. Rows are in elimination order.
pub fn cholesky(sizes: [u64; 3], seed: u64) -> Result<Csr, GenerateError> {
    for (name, size) in ["nx", "ny", "nz"].into_iter().zip(sizes) {
        dimension(name, size)?;
    }
    let points = sizes.iter().map(|&size| u128::from(size)).product::<u128>();
    let points = dimension("points of the grid", u64::try_from(points).unwrap_or(u64::MAX))?;
    bounded(points as u64)?;
    let grid = sizes.map(|size| size as usize);
    let whole = Region { low: [0; 3], high: grid };
    let mut entries = 0;
    count(&whole, &grid, &mut entries);
    bounded(entries)?;
    let length = |row: usize| {
        let mut length = 1;
        columns_of(&whole, row, &mut |columns: Range<usize>| length += columns.len());
        length
    };
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut at = 0;
        columns_of(&whole, row, &mut |range: Range<usize>| {
            for column in range {
                columns[at] = column as u32;
                at += 1;
            }
        });
        columns[at] = row as u32;
        lower_row(seed, row, values);
    };
    build(points, points, length, fill)
}

/// Adds a box's entries to the count and stops above the bound, so that a huge tree is not traversed completely.
fn count(region: &Region, grid: &[usize; 3], entries: &mut u64) {
    if *entries > MAX_NNZ {
        return;
    }
    let cut = region.cut();
    let width = cut.as_ref().map_or(region.volume(), |cut| cut.plane.volume()) as u64;
    *entries += width * (width + 1) / 2 + width * region.beside(grid) as u64;
    if let Some(cut) = cut {
        count(&cut.lower, grid, entries);
        count(&cut.upper, grid, entries);
    }
}

/// The strictly lower columns of a row, as ascending ranges.
fn columns_of(whole: &Region, row: usize, visit: &mut impl FnMut(Range<usize>)) {
    let (mut region, mut first) = (*whole, 0);
    loop {
        let Some(Cut { lower, upper, plane }) = region.cut() else {
            return visit(first..row);
        };
        let middle = first + lower.volume();
        let last = middle + upper.volume();
        if row < middle {
            region = lower;
        } else if row < last {
            (region, first) = (upper, middle);
        } else {
            let point = plane.point(row - last);
            below(&lower, first, point, visit);
            below(&upper, middle, point, visit);
            return visit(last..row);
        }
    }
}

/// The columns of a box, which begin at `first`, in which a later adjacent point has entries.
fn below(region: &Region, first: usize, point: [usize; 3], visit: &mut impl FnMut(Range<usize>)) {
    if !region.touches(point) {
        return;
    }
    let end = first + region.volume();
    let Some(Cut { lower, upper, plane }) = region.cut() else {
        return visit(first..end);
    };
    below(&lower, first, point, visit);
    below(&upper, first + lower.volume(), point, visit);
    visit(end - plane.volume()..end);
}

#[cfg(test)]
mod tests {
    use super::{Region, cholesky};
    use std::collections::BTreeSet;

    /// The points of a box in elimination order.
    fn order(region: &Region, points: &mut Vec<[usize; 3]>) {
        let own = match region.cut() {
            Some(cut) => {
                order(&cut.lower, points);
                order(&cut.upper, points);
                cut.plane
            }
            None => *region,
        };
        points.extend((0..own.volume()).map(|index| own.point(index)));
    }

    #[test]
    fn contains_the_fill_of_the_grid_and_little_more() {
        for sizes in [[3, 3, 1], [13, 9, 1], [1, 40, 1], [6, 5, 7], [2, 2, 2]] {
            let mut points = Vec::new();
            order(&Region { low: [0; 3], high: sizes }, &mut points);
            let beside = |a: &[usize; 3], b: &[usize; 3]| {
                (0..3).map(|axis| a[axis].abs_diff(b[axis])).sum::<usize>() == 1
            };
            let n = points.len();
            let later = |column: usize| column + 1..n;
            // Symbolic elimination: a column's first entry below the diagonal inherits the others.
            let mut fill: Vec<BTreeSet<usize>> = (0..n)
                .map(|c| later(c).filter(|&r| beside(&points[r], &points[c])).collect())
                .collect();
            for column in 0..n {
                if let Some(parent) = fill[column].pop_first() {
                    let rest = fill[column].clone();
                    fill[parent].extend(&rest);
                    fill[column].insert(parent);
                }
            }
            let factor = cholesky(sizes.map(|size| size as u64), 1).unwrap();
            assert_eq!(factor.rows(), n);
            for (column, rows) in fill.iter().enumerate() {
                for &row in rows {
                    let stored = factor.row(row).0.binary_search(&(column as u32));
                    assert!(stored.is_ok(), "{sizes:?}: ({row}, {column}) is missing");
                }
            }
            let exact = n + fill.iter().map(BTreeSet::len).sum::<usize>();
            assert!(factor.nnz() <= 2 * exact, "{sizes:?}: {} for {exact}", factor.nnz());
        }
    }
}
