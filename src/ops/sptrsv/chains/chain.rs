//! Chains: runs of rows of which each needs the one before it, and all of which may wait for the same earlier rows at once.
//!
//! A row joins the chain that its latest parent ends if all that the row needs besides the chain's rows is known a level before the
//! chain's first row could be. So nothing outside can need a row of the chain and be needed by a later one, and to wait for everything
//! before the first row costs no level.

use crate::ops::sptrsv::System;
use crate::ops::sptrsv::slices::equations::{ByLevel, coefficient};
use crate::ops::sptrsv::slices::rewrite::GROWTH;
use crate::sparse::Triangular;

/// A chain may store this many values for each one that it has, where rows need different columns.
const STORED_PER_TERM: usize = 2;

/// Values that any row may have stored beyond that: short rows are chained whatever they need.
const SPARE: usize = 32;

/// The chains of a system, in the order of their first rows' levels.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Solve indices, chain by chain.
    pub rows: Vec<u32>,
    /// Where each chain begins in `rows`, and the end.
    pub start: Vec<usize>,
    /// The chain of each row, and the row's place in it.
    pub of: Vec<u32>,
    pub place: Vec<u32>,
    /// What the chains need of earlier ones, in rising order of rows, and where that of each begins.
    pub needs: Vec<u32>,
    pub needs_start: Vec<usize>,
}

impl Chains {
    /// Number of chains.
    pub fn len(&self) -> usize {
        self.start.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn rows_of(&self, chain: usize) -> &[u32] {
        &self.rows[self.start[chain]..self.start[chain + 1]]
    }

    pub fn needs_of(&self, chain: usize) -> &[u32] {
        &self.needs[self.needs_start[chain]..self.needs_start[chain + 1]]
    }

    /// Values of the panel of a chain: of all its rows for each unknown that any of them needs.
    pub fn panel(&self, chain: usize) -> usize {
        self.rows_of(chain).len() * self.needs_of(chain).len()
    }

    /// Divides the rows of a system into chains of at most `most` rows. If these are to be substituted in each other, a row also begins
    /// a chain where its equation would grow by more than [`GROWTH`].
    pub fn of(system: &System, most: usize, substitute: bool) -> Self {
        let (triangular, level_of) = (&system.triangular, &system.levels.level_of_row);
        let by_level = ByLevel::of(&system.levels);
        let mut of = vec![u32::MAX; triangular.rows()];
        let mut open: Vec<Open> = Vec::new();
        let mut union: Vec<u32> = Vec::new();
        let mut growth = substitute.then(|| vec![1.0; triangular.rows()]);
        for &row in &by_level.order {
            let parents = triangular.row(row as usize).0;
            let latest = parents.iter().copied().max_by_key(|&it| level_of[it as usize]);
            let chain = latest.map(|latest| of[latest as usize]).filter(|&chain| {
                let Open { last, rows, first_level, .. } = open[chain as usize];
                let early =
                    |&it: &u32| of[it as usize] == chain || level_of[it as usize] < first_level;
                Some(last) == latest && (rows as usize) < most && parents.iter().all(early)
            });
            let chain = chain.filter(|&chain| {
                growth.as_mut().is_none_or(|growth| stays_small(system, row, &of, chain, growth))
            });
            if let Some(chain) = chain {
                let into = &mut open[chain as usize];
                let outside = parents.iter().copied().filter(|&it| of[it as usize] != chain);
                let terms = into.terms + merge(into.needs(triangular), outside, &mut union);
                let rows = into.rows as usize + 1;
                if union.len() * rows <= STORED_PER_TERM * terms + SPARE * rows {
                    (into.rows, into.last, into.terms) = (rows as u32, row, terms);
                    std::mem::swap(&mut into.needs, &mut union);
                    of[row as usize] = chain;
                    continue;
                }
            }
            of[row as usize] = open.len() as u32;
            if let Some(growth) = &mut growth {
                // Nobody is substituted in it.
                stays_small(system, row, &of, open.len() as u32, growth);
            }
            open.push(Open {
                rows: 1,
                last: row,
                first_level: level_of[row as usize],
                needs: Vec::new(),
                terms: parents.len(),
            });
        }
        Self::joined(&open, of, triangular, &by_level)
    }

    fn joined(open: &[Open], of: Vec<u32>, triangular: &Triangular, by_level: &ByLevel) -> Self {
        let (mut start, mut needs_start) = (vec![0], vec![0]);
        let mut needs = Vec::with_capacity(open.iter().map(|it| it.needs(triangular).len()).sum());
        let mut end = 0;
        for chain in open {
            end += chain.rows as usize;
            needs.extend_from_slice(chain.needs(triangular));
            start.push(end);
            needs_start.push(needs.len());
        }
        // Rows joined in the order of their levels.
        let mut next = start.clone();
        let (mut rows, mut place) = (vec![0; of.len()], vec![0; of.len()]);
        for &row in &by_level.order {
            let chain = of[row as usize] as usize;
            place[row as usize] = (next[chain] - start[chain]) as u32;
            rows[next[chain]] = row;
            next[chain] += 1;
        }
        Self { rows, start, of, place, needs, needs_start }
    }
}

/// Sets the magnitude of a row's equation with the rows of a chain substituted, as [`GROWTH`] has it; whether it may be.
fn stays_small(system: &System, row: u32, of: &[u32], chain: u32, growth: &mut [f64]) -> bool {
    let (parents, values) = system.triangular.row(row as usize);
    let (mut plain, mut grown) = (1.0, 1.0);
    for (&parent, &value) in parents.iter().zip(values) {
        let factor = coefficient(&system.triangular, row as usize, value).abs();
        let substituted = of[parent as usize] == chain;
        plain += factor;
        grown += factor * if substituted { growth[parent as usize] } else { 1.0 };
    }
    growth[row as usize] = grown;
    // Coefficients that overflow cannot be compared, and join nothing.
    grown <= GROWTH * plain && grown.is_finite()
}

/// A chain that rows may still join.
struct Open {
    rows: u32,
    last: u32,
    /// The level of its first row.
    first_level: u32,
    /// What its rows need besides each other; empty for one row, which needs its parents.
    needs: Vec<u32>,
    /// Terms of its rows in what they need.
    terms: usize,
}

impl Open {
    fn needs<'a>(&'a self, triangular: &'a Triangular) -> &'a [u32] {
        match self.rows {
            1 => triangular.row(self.last as usize).0,
            _ => &self.needs,
        }
    }
}

/// Writes the union of two lists in rising order to `union`, and returns how many the others are.
fn merge(list: &[u32], others: impl Iterator<Item = u32>, union: &mut Vec<u32>) -> usize {
    union.clear();
    let (mut at, mut count) = (0, 0);
    for other in others {
        count += 1;
        while list.get(at).is_some_and(|&it| it < other) {
            union.push(list[at]);
            at += 1;
        }
        at += usize::from(list.get(at) == Some(&other));
        union.push(other);
    }
    union.extend_from_slice(&list[at..]);
    count
}
