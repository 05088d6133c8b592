//! Reorderings of a square matrix. The graph has an edge for each entry of A or of its transpose.

use crate::sparse::Csr;
use crate::sparse::random::Stream;
use serde::{Deserialize, Serialize};

/// An ordering of rows and columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The generator's own order.
    #[default]
    Natural,
    Random,
    /// Reverse Cuthill-McKee (Cuthill and McKee, ACM 1969; reversed after George), which gives a narrow band.
    Rcm,
    /// Depth-first order, in which most rows have an entry in the previous row: long chains, as from advancing fronts.
    Depth,
    /// Rows with few entries first and hubs last, as in fill-reducing orderings.
    Degree,
}

/// The old row of each new row. With `window` > 1, runs of that many rows are shuffled afterwards.
pub fn order(matrix: &Csr, how: Order, window: usize, seed: u64) -> Vec<u32> {
    let rows = matrix.rows();
    let natural = || (0..rows as u32).collect::<Vec<u32>>();
    let mut order = match how {
        Order::Natural => natural(),
        Order::Random => {
            let mut order = natural();
            shuffle(&mut order, &mut Stream::new(seed ^ 0x0bde5, 0));
            order
        }
        Order::Rcm => Graph::of(matrix).cuthill_mckee(),
        Order::Depth => Graph::of(matrix).depth_first(),
        Order::Degree => {
            let (graph, mut order) = (Graph::of(matrix), natural());
            order.sort_by_key(|&row| graph.edges(row).len());
            order
        }
    };
    if window > 1 {
        for (which, run) in order.chunks_mut(window).enumerate() {
            shuffle(run, &mut Stream::new(seed ^ 0x317d, which as u64));
        }
    }
    order
}

/// Fisher-Yates shuffle.
fn shuffle(rows: &mut [u32], stream: &mut Stream) {
    for last in (1..rows.len()).rev() {
        rows.swap(last, stream.below(last as u64 + 1) as usize);
    }
}

/// Neighbours of each row in the pattern of A + A^T; those in both occur twice.
struct Graph {
    starts: Vec<usize>,
    edges: Vec<u32>,
}

impl Graph {
    fn of(matrix: &Csr) -> Self {
        let rows = matrix.rows();
        let mut starts = vec![0usize; rows + 1];
        for row in 0..rows {
            starts[row + 1] += matrix.row_nnz(row);
            matrix.row(row).0.iter().for_each(|&col| starts[col as usize + 1] += 1);
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut edges = vec![0u32; starts[rows]];
        let mut put = |from: usize, to: u32| {
            edges[next[from]] = to;
            next[from] += 1;
        };
        for row in 0..rows {
            for &col in matrix.row(row).0 {
                put(row, col);
                put(col as usize, row as u32);
            }
        }
        Self { starts, edges }
    }

    fn edges(&self, row: u32) -> &[u32] {
        &self.edges[self.starts[row as usize]..self.starts[row as usize + 1]]
    }

    /// The rows reachable from one in breadth-first order, neighbours with few edges first; marks them in `seen`.
    fn breadth(&self, first: u32, seen: &mut [bool], order: &mut Vec<u32>) {
        let mut at = order.len();
        seen[first as usize] = true;
        order.push(first);
        while let Some(&row) = order.get(at) {
            let found = order.len();
            for &other in self.edges(row) {
                if !std::mem::replace(&mut seen[other as usize], true) {
                    order.push(other);
                }
            }
            order[found..].sort_by_key(|&other| (self.edges(other).len(), other));
            at += 1;
        }
    }

    fn cuthill_mckee(&self) -> Vec<u32> {
        let rows = self.starts.len() - 1;
        let mut order = Vec::with_capacity(rows);
        let (mut seen, mut looked) = (vec![false; rows], vec![false; rows]);
        let mut part = Vec::new();
        for row in 0..rows {
            if !looked[row] {
                // The row found last is at an end of its component.
                part.clear();
                self.breadth(row as u32, &mut looked, &mut part);
                let end = part.last().copied().unwrap_or(row as u32);
                self.breadth(end, &mut seen, &mut order);
            }
        }
        order.reverse();
        order
    }

    fn depth_first(&self) -> Vec<u32> {
        let rows = self.starts.len() - 1;
        let mut order = Vec::with_capacity(rows);
        let mut seen = vec![false; rows];
        let mut next = self.starts[..rows].to_vec();
        let mut path = Vec::new();
        for first in 0..rows {
            if std::mem::replace(&mut seen[first], true) {
                continue;
            }
            order.push(first as u32);
            path.push(first);
            while let Some(&row) = path.last() {
                if next[row] == self.starts[row + 1] {
                    path.pop();
                    continue;
                }
                let other = self.edges[next[row]] as usize;
                next[row] += 1;
                if !std::mem::replace(&mut seen[other], true) {
                    order.push(other as u32);
                    path.push(other);
                }
            }
        }
        order
    }
}
