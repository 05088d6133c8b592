//! Sums of sparse rows, with columns in order of first appearance (Gustavson, TOMS 4(3), 1978), sorted at the end.

use super::equations::Segment;

/// Sums of one equation by column: the position of a column in the list, if it was added since `begin`.
pub struct Accumulator {
    stamp: u32,
    /// For each column: the stamp of the equation that contains it, and its place in that equation.
    seen: Vec<(u32, u32)>,
    terms: Vec<(u32, f64)>,
}

/// Sums of both kinds of terms.
pub struct Accumulators {
    /// By row of b.
    pub known: Accumulator,
    /// By unknown.
    pub unknown: Accumulator,
}

impl Accumulators {
    pub fn new(columns: usize) -> Self {
        Self { known: Accumulator::new(columns), unknown: Accumulator::new(columns) }
    }

    /// Starts the next equation.
    pub fn begin(&mut self) {
        self.known.begin();
        self.unknown.begin();
    }

    pub fn terms(&self) -> usize {
        self.known.len() + self.unknown.len()
    }

    /// Appends the equation with its terms in b rising, as they will be packed and read side by side.
    pub fn take_into(&mut self, segment: &mut Segment) {
        // Runs of rising columns, since every row that was added rises: a stable sort merges them.
        self.known.terms.sort_by_key(|&(col, _)| col);
        segment.known.push(self.known.terms.iter().copied());
        segment.unknown.push(self.unknown.terms.iter().copied());
    }
}

impl Accumulator {
    pub fn new(columns: usize) -> Self {
        Self { stamp: 0, seen: vec![(0, 0); columns], terms: Vec::new() }
    }

    /// Also discards what an equation that grew too long has left behind.
    pub fn begin(&mut self) {
        self.terms.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.seen.fill((0, 0));
            self.stamp = 1;
        }
    }

    /// Distinct columns since `begin`.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    #[inline]
    pub fn add(&mut self, col: u32, value: f64) {
        let seen = &mut self.seen[col as usize];
        if seen.0 == self.stamp {
            self.terms[seen.1 as usize].1 += value;
        } else {
            *seen = (self.stamp, self.terms.len() as u32);
            self.terms.push((col, value));
        }
    }

    /// Adds a multiple of a row.
    pub fn add_all(&mut self, (cols, vals): (&[u32], &[f64]), factor: f64) {
        cols.iter().zip(vals).for_each(|(&col, &value)| self.add(col, factor * value));
    }
}
