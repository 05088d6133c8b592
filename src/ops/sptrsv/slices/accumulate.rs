//! Sums of sparse rows in the order in which their columns first come up, without sorting (Gustavson, TOMS 4(3), 1978).

use super::equations::Segment;

/// Sums of one equation by column: where a column stands in the list, if it is there since `begin`.
pub struct Accumulator {
    stamp: u32,
    /// Of each column: the stamp of the equation that has it, and where in that equation.
    seen: Vec<(u32, u32)>,
    cols: Vec<u32>,
    vals: Vec<f64>,
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

    /// Appends the equation.
    pub fn take_into(&self, segment: &mut Segment) {
        segment.known.push(&self.known.cols, &self.known.vals);
        segment.unknown.push(&self.unknown.cols, &self.unknown.vals);
    }
}

impl Accumulator {
    pub fn new(columns: usize) -> Self {
        let (cols, vals) = (Vec::new(), Vec::new());
        Self { stamp: 0, seen: vec![(0, 0); columns], cols, vals }
    }

    /// Forgets what an equation that grew too long has left behind, too.
    pub fn begin(&mut self) {
        self.cols.clear();
        self.vals.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.seen.fill((0, 0));
            self.stamp = 1;
        }
    }

    /// Different columns since `begin`.
    pub fn len(&self) -> usize {
        self.cols.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cols.is_empty()
    }

    #[inline]
    pub fn add(&mut self, col: u32, value: f64) {
        let seen = &mut self.seen[col as usize];
        if seen.0 == self.stamp {
            self.vals[seen.1 as usize] += value;
        } else {
            *seen = (self.stamp, self.cols.len() as u32);
            self.cols.push(col);
            self.vals.push(value);
        }
    }

    /// Adds a multiple of a row.
    pub fn add_all(&mut self, (cols, vals): (&[u32], &[f64]), factor: f64) {
        cols.iter().zip(vals).for_each(|(&col, &value)| self.add(col, factor * value));
    }
}
