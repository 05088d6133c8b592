//! Equations `x = P b + M x` in windows: the system, and the results of rewriting and splitting it.

use super::alike::Alike;
use crate::sparse::Triangular;
use crate::sparse::levels::Levels;
use bytemuck::zeroed_vec;
use rayon::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    /// Without rows, and with room for so many.
    pub fn with_room(rows: usize, terms: usize) -> Self {
        let mut ptr = Vec::with_capacity(rows + 1);
        ptr.push(0);
        Self { ptr, cols: Vec::with_capacity(terms), vals: Vec::with_capacity(terms) }
    }

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

/// Rows for which another task that sorts them pays.
const ROWS_A_TASK: usize = 1 << 14;

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

    /// Counting sort, stable: rows of one level keep their order. Tasks count and place runs of rows.
    pub fn sorted(level_of: &[u32], levels: usize) -> Self {
        // The counts of all tasks are to be few beside the rows.
        let tasks = rayon::current_num_threads().min(level_of.len() / (4 * levels + ROWS_A_TASK));
        let share = level_of.len().div_ceil(tasks.max(1)).max(1);
        let count = |levels_of: &[u32]| {
            let mut counts = vec![0u32; levels];
            levels_of.iter().for_each(|&level| counts[level as usize] += 1);
            counts
        };
        let mut next: Vec<Vec<u32>> = level_of.par_chunks(share).map(count).collect();
        let mut start = Vec::with_capacity(levels + 1);
        let mut end = 0u32;
        for level in 0..levels {
            start.push(end as usize);
            for task in &mut next {
                end += std::mem::replace(&mut task[level], end);
            }
        }
        start.push(end as usize);
        let order: Vec<AtomicU32> = zeroed_vec(level_of.len());
        let place = |(task, (levels_of, next)): (usize, (&[u32], &mut Vec<u32>))| {
            for (at, &level) in levels_of.iter().enumerate() {
                let place = &mut next[level as usize];
                order[*place as usize].store((task * share + at) as u32, Relaxed);
                *place += 1;
            }
        };
        level_of.par_chunks(share).zip(&mut next).enumerate().for_each(place);
        Self { order: order.into_iter().map(AtomicU32::into_inner).collect(), start }
    }

    pub fn rows(&self, level: usize) -> &[u32] {
        &self.order[self.start[level]..self.start[level + 1]]
    }
}

/// Where each row is in an order of all of them.
pub fn places_in(order: &[u32]) -> Vec<u32> {
    let places: Vec<AtomicU32> = zeroed_vec(order.len());
    let rows = order.par_iter().enumerate().with_min_len(ROWS_A_TASK);
    rows.for_each(|(at, &row)| places[row as usize].store(at as u32, Relaxed));
    places.into_iter().map(AtomicU32::into_inner).collect()
}

/// The coefficient of an entry once its row's diagonal is divided out.
pub fn coefficient(system: &Triangular, row: usize, value: f64) -> f64 {
    -value / system.diagonal[row]
}
