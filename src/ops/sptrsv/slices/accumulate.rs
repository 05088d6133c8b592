//! Sums of sparse rows, with columns in order of first appearance (Gustavson, TOMS 4(3), 1978), sorted at the end.

use super::equations::Segment;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// Places of a table at first, as a power of two.
const LOG_FEW: u32 = 10;

/// A table has so many places for each column at least, so that few but the first are looked at.
const ROOM: usize = 4;

/// Columns side by side, as a power of two, whose places are side by side: those of a node of a mesh, or of a supernode.
const LOG_RUN: u32 = 3;

/// Places of a table that is given up once an equation needs only a hundredth of them: it would be in no cache.
const LARGE: usize = 1 << 16;

/// Multiples of this odd number spread runs over a table (Knuth, The Art of Computer Programming 3, 6.4). It differs from process to process:
/// who knew it could upload a matrix whose columns all want the same place. Sums do not depend on it.
static SPREAD: LazyLock<u32> =
    LazyLock::new(|| RandomState::new().build_hasher().finish() as u32 | 1);

/// Sums of one equation by column, found through a table of its own columns: an equation has few of the columns that there are, so all
/// of it stays in the nearest cache, where a place for every column of the system would be in none.
pub struct Accumulator {
    stamp: u32,
    /// The stamp of the equation that a place was last used for, and which of its terms that was. The place of a column is found from
    /// the column; where another has it, the next free one is taken (linear probing).
    table: Vec<(u32, u32)>,
    log: u32,
    spread: u32,
    terms: Vec<(u32, f64)>,
}

/// Sums of both kinds of terms, and equations that were built.
#[derive(Default)]
pub struct Accumulators {
    /// By row of b.
    pub known: Accumulator,
    /// By unknown.
    pub unknown: Accumulator,
    /// Room for the equations of a task, which keeps its size from one to the next.
    pub built: Segment,
}

impl Accumulators {
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
        take(&mut self.known, &self.unknown, segment);
    }

    /// The same to the room for equations.
    pub fn take(&mut self) {
        take(&mut self.known, &self.unknown, &mut self.built);
    }
}

fn take(known: &mut Accumulator, unknown: &Accumulator, segment: &mut Segment) {
    // Runs of rising columns, since every row that was added rises: a stable sort merges them.
    known.terms.sort_by_key(|&(col, _)| col);
    segment.known.push(known.terms.iter().copied());
    segment.unknown.push(unknown.terms.iter().copied());
}

impl Default for Accumulator {
    fn default() -> Self {
        Self::spreading(*SPREAD)
    }
}

impl Accumulator {
    fn spreading(spread: u32) -> Self {
        let table = vec![(0, 0); 1 << LOG_FEW];
        Self { stamp: 0, table, log: LOG_FEW, spread, terms: Vec::new() }
    }

    /// Also discards what an equation that grew too long has left behind.
    pub fn begin(&mut self) {
        if self.table.len() > LARGE && 100 * self.terms.len() < self.table.len() {
            *self = Self::spreading(self.spread);
        }
        self.terms.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.table.fill((0, 0));
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
        let last = self.table.len() - 1;
        let mut place = self.place(col);
        loop {
            let (stamp, term) = self.table[place];
            if stamp != self.stamp {
                break;
            }
            let term = &mut self.terms[term as usize];
            if term.0 == col {
                term.1 += value;
                return;
            }
            place = (place + 1) & last;
        }
        self.table[place] = (self.stamp, self.terms.len() as u32);
        self.terms.push((col, value));
        if ROOM * self.terms.len() > self.table.len() {
            self.enlarge();
        }
    }

    /// Adds a multiple of a row.
    pub fn add_all(&mut self, (cols, vals): (&[u32], &[f64]), factor: f64) {
        cols.iter().zip(vals).for_each(|(&col, &value)| self.add(col, factor * value));
    }

    /// Where a column is, if no other has its place.
    fn place(&self, col: u32) -> usize {
        let spread = (col >> LOG_RUN).wrapping_mul(self.spread) >> (u32::BITS + LOG_RUN - self.log);
        (spread << LOG_RUN | col & ((1 << LOG_RUN) - 1)) as usize
    }

    #[cold]
    fn enlarge(&mut self) {
        self.log += 1;
        self.table = vec![(0, 0); 1 << self.log];
        let last = self.table.len() - 1;
        for term in 0..self.terms.len() {
            let mut place = self.place(self.terms[term].0);
            while self.table[place].0 == self.stamp {
                place = (place + 1) & last;
            }
            self.table[place] = (self.stamp, term as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Few columns and many, which make the table larger, and an equation that was left behind.
    #[test]
    fn sums_are_those_of_a_map_in_order_of_first_appearance() {
        let mut sums = Accumulator::default();
        for columns in [3_u32, 100, 5000, 40] {
            sums.begin();
            let (mut order, mut expected) = (Vec::new(), HashMap::new());
            for at in 0..3 * columns {
                // Neighbours, and columns that are far apart.
                let col = ((at % columns).pow(2) % columns) << (8 * (at % 3));
                let sum = expected.entry(col).or_insert_with(|| {
                    order.push(col);
                    0.0
                });
                *sum += f64::from(at);
                sums.add(col, f64::from(at));
            }
            let expected: Vec<(u32, f64)> = order.iter().map(|col| (*col, expected[col])).collect();
            assert_eq!(sums.terms, expected);
            assert_eq!((sums.len(), sums.is_empty()), (expected.len(), false));
        }
        // A large table is given up after the first small equation.
        for (columns, large) in [(20_000, true), (40, true), (2, false)] {
            sums.begin();
            (0..columns).for_each(|col| sums.add(col, 1.0));
            assert_eq!((sums.table.len() > LARGE, sums.len()), (large, columns as usize));
        }
        // What was before the stamps began again is none of the next equation's.
        sums.stamp = u32::MAX;
        sums.begin();
        assert!(sums.is_empty() && sums.stamp == 1);
        sums.add_all((&[7, 9, 7], &[1.0, 2.0, 3.0]), 2.0);
        assert_eq!(sums.terms, [(7, 8.0), (9, 4.0)]);
    }

    /// Columns that all want the same place by one multiplier are spread by another.
    #[test]
    fn columns_made_to_meet_do_not_by_another_multiplier() {
        let (known, other) = (0x9E37_79B9_u32, 0x85EB_CA6B);
        let mut columns: Vec<u32> = (0..500_000 >> LOG_RUN).collect();
        columns.sort_by_key(|run| run.wrapping_mul(known));
        columns.truncate(1000);
        let longest = |spread: u32| {
            let mut sums = Accumulator::spreading(spread);
            sums.begin();
            columns.iter().for_each(|&run| sums.add(run << LOG_RUN, 1.0));
            let taken = sums.table.iter().map(|&(stamp, _)| stamp == sums.stamp);
            let runs = taken.scan(0, |run, taken| {
                *run = if taken { *run + 1 } else { 0 };
                Some(*run)
            });
            runs.max().unwrap_or(0)
        };
        assert!(
            longest(known) > 500 && longest(other) < 100,
            "{} {}",
            longest(known),
            longest(other)
        );
    }
}
