//! Equations `x = P b + M x` in windows: the system, and the results of rewriting and splitting it.

use super::alike::Alike;
use crate::sparse::Triangular;
use crate::sparse::levels::Levels;

/// Sparse rows of coefficients, appended one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    pub ptr: Vec<usize>,
    pub cols: Vec<u32>,
    pub vals: Vec<f64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { ptr: vec![0], cols: Vec::new(), vals: Vec::new() }
    }
}

impl Terms {
    pub fn row(&self, at: usize) -> (&[u32], &[f64]) {
        let range = self.ptr[at]..self.ptr[at + 1];
        (&self.cols[range.clone()], &self.vals[range])
    }

    /// Appends a row.
    pub fn push(&mut self, terms: impl Iterator<Item = (u32, f64)>) {
        for (col, value) in terms {
            self.cols.push(col);
            self.vals.push(value);
        }
        self.ptr.push(self.cols.len());
    }

    /// Discards all rows but the first few.
    pub fn truncate(&mut self, rows: usize) {
        self.ptr.truncate(rows + 1);
        let terms = self.ptr[rows];
        self.cols.truncate(terms);
        self.vals.truncate(terms);
    }
}

/// Equations as they were built, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Terms in b; columns are rows of the matrix.
    pub known: Terms,
    /// Terms in other unknowns.
    pub unknown: Terms,
}

impl Segment {
    pub fn len(&self) -> usize {
        self.known.ptr.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn terms(&self) -> usize {
        self.known.cols.len() + self.unknown.cols.len()
    }

    pub fn truncate(&mut self, rows: usize) {
        self.known.truncate(rows);
        self.unknown.truncate(rows);
    }
}

/// Where an equation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub segment: u32,
    pub row: u32,
}

/// A system as equations, each giving an unknown's value from entries of b and unknowns of earlier windows.
///
/// The diagonal is divided out. Unknowns 0..n are the solve indices; partial sums of split equations follow. Equations stay
/// where they were built: only their `place` changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Equations {
    pub segments: Vec<Segment>,
    /// One per unknown.
    pub places: Vec<Place>,
    /// Row of the matrix whose x the unknown is; `None` for a partial sum.
    pub rows: Vec<Option<u32>>,
    pub window_of: Vec<u32>,
    pub windows: u32,
    /// Which other rewritings give the same equations.
    pub alike: Alike,
    /// Host time spent on them, milliseconds.
    pub ms: f64,
}

impl Equations {
    /// Terms in b of an unknown's equation.
    pub fn known(&self, at: usize) -> (&[u32], &[f64]) {
        let Place { segment, row } = self.places[at];
        self.segments[segment as usize].known.row(row as usize)
    }

    /// Terms in other unknowns.
    pub fn unknown(&self, at: usize) -> (&[u32], &[f64]) {
        let Place { segment, row } = self.places[at];
        self.segments[segment as usize].unknown.row(row as usize)
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Terms stored, including those of equations that were replaced.
    pub fn terms(&self) -> usize {
        self.segments.iter().map(Segment::terms).sum()
    }

    /// Bytes that the terms take on the host.
    pub fn bytes(&self) -> u64 {
        (self.terms() * 12 + self.len() * 36) as u64
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
