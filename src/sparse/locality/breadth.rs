//! Breadth-first order, reversed.

use super::common;
use crate::sparse::Csr;

/// The two passes over each component.
const FIND: u8 = 1;
const ORDER: u8 = 2;

/// The rows, component after component.
pub fn order(matrix: &Csr, columns: &Csr) -> Vec<u32> {
    let rows = matrix.rows();
    let mut search = Search {
        matrix,
        columns,
        most: common(matrix.nnz(), matrix.cols()),
        seen: vec![0; rows],
        met: vec![0; matrix.cols()],
    };
    let (mut order, mut part) = (Vec::with_capacity(rows), Vec::new());
    let mut empty = Vec::new();
    for row in 0..rows as u32 {
        if matrix.row_nnz(row as usize) == 0 {
            empty.push(row);
        } else if search.seen[row as usize] == 0 {
            // The row met last is at an end of its component, from which levels are narrow.
            part.clear();
            search.from(row, FIND, &mut part);
            let end = part.last().copied().unwrap_or(row);
            search.from(end, ORDER, &mut order);
        }
    }
    order.reverse();
    order.append(&mut empty);
    order
}

/// Rows and columns that were met, by the number of the pass that met them last.
struct Search<'a> {
    matrix: &'a Csr,
    columns: &'a Csr,
    most: usize,
    seen: Vec<u8>,
    met: Vec<u8>,
}

impl Search<'_> {
    /// The rows of a component in breadth-first order; in the second pass the short ones of those met together first.
    fn from(&mut self, first: u32, pass: u8, order: &mut Vec<u32>) {
        let mut at = order.len();
        self.seen[first as usize] = pass;
        order.push(first);
        while let Some(&row) = order.get(at) {
            let found = order.len();
            for &col in self.matrix.row(row as usize).0 {
                let known = std::mem::replace(&mut self.met[col as usize], pass) == pass;
                if known || self.columns.row_nnz(col as usize) > self.most {
                    continue;
                }
                for &other in self.columns.row(col as usize).0 {
                    if std::mem::replace(&mut self.seen[other as usize], pass) != pass {
                        order.push(other);
                    }
                }
            }
            if pass == ORDER {
                order[found..].sort_by_key(|&other| (self.matrix.row_nnz(other as usize), other));
            }
            at += 1;
        }
    }
}
