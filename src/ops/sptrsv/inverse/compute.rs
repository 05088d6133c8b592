//! M, and what it leaves of the identity, in float64 on all threads of the host.

use super::pattern::{Lines, transposed};
use super::scheme::Map;
use crate::domain::Dtype;
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Entries of the triangle that may be visited to compute M, or to find out which powers of it suffice: seconds of one core.
pub const VISITS: u64 = 200_000_000;

/// M and what it leaves of the identity may have so many times the triangle's entries and [`ALWAYS`] more. Beyond that a call moves more
/// bytes than sweeps would, and where launches decide rather than bytes a system is small.
pub const GROWTH: usize = 8;
pub const ALWAYS: usize = 1 << 20;

/// What computing M may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    visits: u64,
    entries: usize,
}

/// Lines that are in memory beside the matrices that they are added to.
const RUN: usize = 4096;

/// Why there is no M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("to compute it after all before it would visit more than {VISITS} entries")]
    Visits,
    #[error("it would have more than {GROWTH} times the triangle's entries and {ALWAYS} more")]
    Entries,
    #[error("it would have values outside the range of the problem's data type")]
    Range,
}

/// A square sparse matrix by rows, in solve order; columns increase in each row, and values are rounded to the problem's type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub indptr: Vec<usize>,
    pub indices: Vec<u32>,
    pub values: Vec<f64>,
}

/// The approximate inverse M of a triangle T, with what it leaves of the identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Inverse {
    pub map: Rows,
    /// R = I - M T of a left inverse, R = I - T M of a right one, for two steps: M b + M (b - T M b) is (I + R) M b and M (I + R) b. R has
    /// entries only where a hop leads out of the pattern, since M is exact on that, so this is one product with few entries where the
    /// textbook has one with T and one more with M.
    pub rest: Option<Rows>,
    /// M is the right inverse: `rest` comes before it, else after it.
    pub by_columns: bool,
    /// Host time, milliseconds.
    pub ms: f64,
}

/// A line of M, and one of what it leaves.
struct Line {
    reached: Vec<u32>,
    values: Vec<f64>,
    rest: Vec<(u32, f64)>,
}

impl Inverse {
    /// Computes M, and what it leaves of the identity if two steps need that, for a triangle in solve order. Work and memory are bounded
    /// whatever the system.
    ///
    /// # Errors
    /// More would be visited or held than [`VISITS`], [`GROWTH`] and [`ALWAYS`] allow, or `dtype` has no such values.
    pub fn of(system: &Triangular, dtype: Dtype, map: Map) -> Result<Self, Denied> {
        let mut visits = VISITS;
        Self::counted(system, dtype, map, &mut visits)
    }

    /// The same, where what is visited is taken from `visits`, and nothing of them is left if they are too few. An inverse that would have
    /// too many entries takes none.
    ///
    /// # Errors
    /// As of [`Self::of`], with this limit of visits.
    pub fn counted(
        system: &Triangular,
        dtype: Dtype,
        map: Map,
        visits: &mut u64,
    ) -> Result<Self, Denied> {
        let entries = GROWTH * (system.nnz() + system.rows()) + ALWAYS;
        let made = Self::within(system, dtype, map, Limits { visits: *visits, entries });
        *visits = match &made {
            Ok((_, visited)) => visits.saturating_sub(*visited),
            Err(Denied::Visits) => 0,
            Err(_) => *visits,
        };
        made.map(|(made, _)| made)
    }

    /// With what was visited.
    fn within(
        system: &Triangular,
        dtype: Dtype,
        map: Map,
        most: Limits,
    ) -> Result<(Self, u64), Denied> {
        let started = Instant::now();
        let lines = Lines::of(system);
        let (count, twice) = (lines.count(), map.steps > 1);
        let mut visits = system.nnz() as u64;
        let (mut all, mut rest) = (Growing::default(), Growing::default());
        for first in (0..count).step_by(RUN) {
            let run = first..count.min(first + RUN);
            let patterns = run.clone().into_par_iter().map(|s| lines.pattern(s, map.power));
            let patterns: Vec<(Vec<u32>, u64)> = patterns.collect();
            visits += patterns.iter().map(|(_, visits)| visits).sum::<u64>();
            if visits > most.visits {
                return Err(Denied::Visits);
            }
            let left = most.entries.saturating_sub(all.0.indices.len() + rest.0.indices.len());
            let room = Room { entries: left, taken: AtomicUsize::new(0) };
            let solved = run.into_par_iter().zip(patterns);
            let solved = solved.map(|(s, (reached, _))| line(&lines, s, reached, twice, &room));
            for line in solved.collect::<Option<Vec<Line>>>().ok_or(Denied::Entries)? {
                all.push(line.reached, line.values);
                let (columns, values) = line.rest.into_iter().unzip();
                rest.push(columns, values);
            }
        }
        let rows = |grown: Growing| grown.rows(lines.by_columns, dtype);
        let map = rows(all)?;
        let rest = twice.then(|| rows(rest)).transpose()?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        Ok((Self { map, rest, by_columns: lines.by_columns, ms }, visits))
    }

    /// What the kernels make of b, in solve order, in float64: of M alone, and then of both products if there are two.
    pub fn approximations(&self, b: &[f64]) -> (Vec<f64>, Option<Vec<f64>>) {
        let once = self.map.times(b);
        let twice = self.rest.as_ref().map(|rest| match self.by_columns {
            true => self.map.times(&rest.added_to(b)),
            false => rest.added_to(&once),
        });
        (once, twice)
    }

    /// The same with the sizes of all numbers, for bounds of rounding errors.
    pub fn sizes(&self) -> Self {
        let (map, rest) = (self.map.sizes(), self.rest.as_ref().map(Rows::sizes));
        Self { map, rest, ..*self }
    }

    /// Entries of the longest row.
    pub fn longest(&self) -> usize {
        let all = [Some(&self.map), self.rest.as_ref()].into_iter().flatten();
        let lengths = all.flat_map(|rows| rows.indptr.windows(2).map(|ends| ends[1] - ends[0]));
        lengths.max().unwrap_or(0)
    }
}

/// Entries that a run of lines may have. Lines end as soon as they have more together, so that memory is bounded, too, where many of them
/// lead to one long line.
struct Room {
    entries: usize,
    taken: AtomicUsize,
}

impl Room {
    fn takes(&self, entries: usize) -> Option<()> {
        let before = self.taken.fetch_add(entries, Ordering::Relaxed);
        (before.saturating_add(entries) <= self.entries).then_some(())
    }
}

/// Line `s` of M: over its pattern J, m T(J,J) = e for a row, T(J,J) m = e for a column. T(J,J) is triangular and `s` one of its ends, so
/// that substitution from there needs each line of J once. `None` if there is no room.
fn line(lines: &Lines<'_>, s: usize, reached: Vec<u32>, twice: bool, room: &Room) -> Option<Line> {
    room.takes(reached.len())?;
    let mut values = vec![0.0; reached.len()];
    let mut rest: Vec<(u32, f64)> = Vec::new();
    let count = reached.len();
    for turn in 0..count {
        let at = if lines.by_columns { turn } else { count - 1 - turn };
        let number = reached[at] as usize;
        let right = if number == s { 1.0 } else { values[at] };
        let value = right / lines.diagonal[number];
        values[at] = value;
        let (others, entries) = lines.line(number);
        if twice && rest.len() + others.len() > room.entries {
            return None;
        }
        for (other, entry) in others.iter().zip(entries) {
            match reached.binary_search(other) {
                Ok(at) => values[at] -= value * entry,
                Err(_) if twice => rest.push((*other, -value * entry)),
                Err(_) => {}
            }
        }
    }
    // Terms of one place are added in the order in which they came.
    rest.sort_by_key(|(other, _)| *other);
    rest.dedup_by(|next, first| {
        let same = next.0 == first.0;
        if same {
            first.1 += next.1;
        }
        same
    });
    // Many lines wait for the others of their run.
    rest.shrink_to_fit();
    room.takes(rest.len())?;
    Some(Line { reached, values, rest })
}

/// Lines one after another.
struct Growing(Rows);

impl Default for Growing {
    fn default() -> Self {
        Self(Rows { indptr: vec![0], ..Rows::default() })
    }
}

impl Growing {
    fn push(&mut self, columns: Vec<u32>, values: Vec<f64>) {
        self.0.indices.extend(columns);
        self.0.values.extend(values);
        self.0.indptr.push(self.0.indices.len());
    }

    /// By rows, whatever the lines are, and rounded.
    fn rows(self, by_columns: bool, dtype: Dtype) -> Result<Rows, Denied> {
        let Rows { mut indptr, mut indices, mut values } = self.0;
        let wide = dtype == Dtype::F64;
        values.par_iter_mut().filter(|_| !wide).for_each(|value| *value = f64::from(*value as f32));
        if !values.par_iter().all(|value| value.is_finite()) {
            return Err(Denied::Range);
        }
        if by_columns {
            (indptr, indices, values) = transposed(&indptr, &indices, &values);
        }
        Ok(Rows { indptr, indices, values })
    }
}

impl Rows {
    pub fn row(&self, s: usize) -> (&[u32], &[f64]) {
        let range = self.indptr[s]..self.indptr[s + 1];
        (&self.indices[range.clone()], &self.values[range])
    }

    fn product(&self, s: usize, x: &[f64]) -> f64 {
        let (columns, values) = self.row(s);
        columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]).sum()
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        (0..x.len()).into_par_iter().map(|s| self.product(s, x)).collect()
    }

    fn added_to(&self, x: &[f64]) -> Vec<f64> {
        (0..x.len()).into_par_iter().map(|s| x[s] + self.product(s, x)).collect()
    }

    fn sizes(&self) -> Self {
        let values = self.values.iter().map(|value| value.abs()).collect();
        Self { indptr: self.indptr.clone(), indices: self.indices.clone(), values }
    }
}

#[cfg(test)]
mod tests;
