//! Equations `x = P b + M x` in windows: the system, and what rewriting and splitting make of it.

use crate::sparse::Triangular;
use crate::sparse::levels::Levels;

/// Sparse rows of coefficients, appended one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    pub ptr: Vec<usize>,
    pub cols: Vec<u32>,
    pub vals: Vec<f64>,
}

impl Terms {
    pub fn row(&self, at: usize) -> (&[u32], &[f64]) {
        let range = self.ptr[at]..self.ptr[at + 1];
        (&self.cols[range.clone()], &self.vals[range])
    }

    pub fn len_of(&self, at: usize) -> usize {
        self.ptr[at + 1] - self.ptr[at]
    }
}

/// A system as equations, each an unknown's value out of entries of b and unknowns of earlier windows.
///
/// The diagonal is divided out. Unknowns 0..n are the solve indices; partial sums of split equations follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Equations {
    /// Terms in b; columns are rows of the matrix.
    pub known: Terms,
    /// Terms in other unknowns.
    pub unknown: Terms,
    /// Row of the matrix that an unknown is x of; `None` for a partial sum.
    pub rows: Vec<Option<u32>>,
    pub window_of: Vec<u32>,
    pub windows: u32,
    /// Host time spent on them, milliseconds.
    pub ms: f64,
}

impl Equations {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All terms.
    pub fn terms(&self) -> usize {
        self.known.cols.len() + self.unknown.cols.len()
    }

    /// Bytes they take on the host.
    pub fn bytes(&self) -> u64 {
        (self.terms() * 12 + self.len() * 28) as u64
    }
}

/// Rows level by level.
pub struct ByLevel {
    pub order: Vec<u32>,
    /// Where each level starts in `order`, and the end.
    pub start: Vec<usize>,
}

impl ByLevel {
    pub fn of(levels: &Levels) -> Self {
        Self::sorted(&levels.level_of_row, levels.widths.len())
    }

    /// Counting sort, stable: rows of one level keep their order.
    pub fn sorted(level_of: &[u32], levels: usize) -> Self {
        let mut start = vec![0usize; levels + 1];
        level_of.iter().for_each(|&level| start[level as usize + 1] += 1);
        for level in 0..levels {
            start[level + 1] += start[level];
        }
        let mut next = start.clone();
        let mut order = vec![0u32; level_of.len()];
        for (row, &level) in level_of.iter().enumerate() {
            let place = &mut next[level as usize];
            order[*place] = row as u32;
            *place += 1;
        }
        Self { order, start }
    }

    pub fn rows(&self, level: usize) -> &[u32] {
        &self.order[self.start[level]..self.start[level + 1]]
    }
}

/// The coefficient of an entry once its row's diagonal is divided out.
pub fn coefficient(system: &Triangular, row: usize, value: f64) -> f64 {
    -value / system.diagonal[row]
}
