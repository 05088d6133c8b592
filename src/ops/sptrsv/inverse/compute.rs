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
    #[error("more than {VISITS} entries would be visited")]
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
    /// Computes M, and what it leaves of the identity if two steps need that. Work and memory are bounded whatever the system.
    pub fn of(system: &Triangular, dtype: Dtype, map: Map) -> Result<Self, Denied> {
        let mut visits = VISITS;
        Self::counted(system, dtype, map, &mut visits)
    }

    /// The same, where what is visited is taken from `visits`, and nothing of them is left if they are too few. An inverse that would have
    /// too many entries takes none.
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
mod tests {
    use super::*;
    use crate::domain::Sptrsv;
    use crate::domain::problem::Triangle;
    use crate::ops::sptrsv::inverse::scheme::{POWERS, STEPS};
    use crate::sparse::generate::Spec;
    use crate::sparse::{Csr, operand, oracle};

    fn generated(spec: &str) -> Csr {
        Spec::parse(spec).unwrap().generate().unwrap()
    }

    fn system(spec: &str, triangle: Triangle) -> Triangular {
        Triangular::of(&generated(spec), &Sptrsv { triangle, ..Sptrsv::PLAIN }).unwrap()
    }

    fn inverse(system: &Triangular, power: u32, steps: u32) -> Inverse {
        Inverse::of(system, Dtype::F64, Map { power, steps }).unwrap()
    }

    /// What a map makes of b, in solve order.
    fn made(system: &Triangular, b: &[f64], power: u32, steps: u32) -> Vec<f64> {
        let (once, twice) = inverse(system, power, steps).approximations(b);
        if steps > 1 { twice.unwrap() } else { once }
    }

    /// T x.
    fn times(system: &Triangular, x: &[f64]) -> Vec<f64> {
        let row = |s: usize| {
            let (columns, values) = system.row(s);
            let terms = columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]);
            system.diagonal[s] * x[s] + terms.sum::<f64>()
        };
        (0..x.len()).map(row).collect()
    }

    fn near(found: &[f64], expected: &[f64], bound: f64) {
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (found - expected).abs();
            assert!(off <= bound * expected.abs().max(1.0), "{at}: {found}, not {expected}");
        }
    }

    /// Seven levels are six hops.
    #[test]
    fn as_many_hops_as_levels_follow_the_first_are_exact() {
        let rows = 40;
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            if row % 7 != 0 {
                indices.push(row as u32 - 1);
                values.push(0.75);
            }
            indices.push(row as u32);
            values.push(1.25 + (row % 3) as f64);
            indptr.push(indices.len());
        }
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        for transpose in [false, true] {
            let problem = Sptrsv { transpose, ..Sptrsv::PLAIN };
            let system = Triangular::of(&matrix, &problem).unwrap();
            assert_eq!(system.levels().widths.len(), 7);
            let b = operand::random_double(rows, 3);
            let in_order: Vec<f64> = (0..rows).map(|row| b[system.original(row)]).collect();
            let exact = oracle::sptrsv(&system, &in_order, 1);
            let exact: Vec<f64> = (0..rows).map(|s| exact[system.original(s)]).collect();
            let error = |power, steps| {
                let made = made(&system, &b, power, steps);
                made.iter().zip(&exact).map(|(x, exact)| (x - exact).abs()).fold(0.0, f64::max)
            };
            for (power, steps) in [(6, 1), (8, 1), (6, 2), (3, 2)] {
                assert!(error(power, steps) < 1e-13, "{power} {steps}");
            }
            assert!(error(4, 1) > 1e-3 && error(2, 2) > 1e-3);
            assert!(inverse(&system, 6, 2).rest.unwrap().indices.is_empty());
        }
    }

    /// In a factor of a grid all ways between two unknowns have one length: M is what sweeps compute.
    #[test]
    fn of_a_grid_a_power_is_that_many_sweeps_and_one() {
        for triangle in [Triangle::Lower, Triangle::Upper] {
            let system = system("ilu0_poisson2d:nx=30,ny=20,seed=1", triangle);
            let b = operand::random_double(system.rows(), 5);
            let mut x = vec![0.0; b.len()];
            let mut swept = Vec::new();
            for _ in 0..8 {
                let left = times(&system, &x);
                x = (0..b.len()).map(|s| x[s] + (b[s] - left[s]) / system.diagonal[s]).collect();
                swept.push(x.clone());
            }
            for power in [1, 2, 3] {
                near(&made(&system, &b, power, 1), &swept[power as usize], 1e-12);
                near(&made(&system, &b, power, 2), &swept[2 * power as usize + 1], 1e-12);
            }
        }
    }

    /// Two steps are x = M b and then x += M (b - T x), though they are computed with what M leaves of the identity.
    #[test]
    fn two_steps_are_one_and_one_of_what_it_leaves() {
        for spec in
            ["ilu0_random:n=300,per_row=9,seed=1", "lower:tail=2,of=road:nx=20,ny=15,seed=1"]
        {
            let matrix = generated(spec);
            for transpose in [false, true] {
                let problem = Sptrsv { transpose, ..Sptrsv::PLAIN };
                let system = Triangular::of(&matrix, &problem).unwrap();
                let b = operand::random_double(system.rows(), 5);
                for power in POWERS {
                    let once = made(&system, &b, power, 1);
                    let left = times(&system, &once);
                    let left: Vec<f64> = b.iter().zip(left).map(|(b, left)| b - left).collect();
                    let more = made(&system, &left, power, 1);
                    let twice: Vec<f64> = once.iter().zip(more).map(|(x, more)| x + more).collect();
                    near(&made(&system, &b, power, 2), &twice, 1e-9);
                }
            }
        }
    }

    /// Of U = D L^T the map is that of L, transposed, over D, so that both solves of a pair are symmetric together. Rows that are cut to
    /// whole hops are among them.
    #[test]
    fn a_pair_of_factors_makes_a_symmetric_map() {
        let mut lower = generated("lower:tail=2,of=road:nx=16,ny=12,seed=1");
        let rows = lower.rows();
        // L with ones on its diagonal, and D.
        let diagonal: Vec<f64> = (0..rows).map(|row| 1.0 + (row % 5) as f64).collect();
        let values: Vec<f64> = (0..lower.nnz()).map(|at| ((at * 7) % 11) as f64 / 40.0).collect();
        lower = Csr::new(rows, rows, lower.indptr().to_vec(), lower.indices().to_vec(), values)
            .unwrap();
        let mut entries: Vec<(usize, usize, f64)> = Vec::new();
        for row in 0..rows {
            entries.push((row, row, diagonal[row]));
            let (columns, values) = lower.row(row);
            for (&col, &value) in columns.iter().zip(values) {
                if (col as usize) < row {
                    entries.push((row, col as usize, value));
                    entries.push((col as usize, row, value * diagonal[col as usize]));
                }
            }
        }
        entries.sort_by_key(|&(row, col, _)| (row, col));
        let mut indptr = vec![0; rows + 1];
        entries.iter().for_each(|&(row, ..)| indptr[row + 1] += 1);
        (0..rows).for_each(|row| indptr[row + 1] += indptr[row]);
        let (indices, values) = entries.iter().map(|&(_, col, value)| (col as u32, value)).unzip();
        let combined = Csr::new(rows, rows, indptr, indices, values).unwrap();
        symmetric(&combined);
        symmetric(&incomplete(&generated("poisson2d:nx=17,ny=11")));
    }

    /// Both factors of ILU(0) in one matrix.
    fn incomplete(matrix: &Csr) -> Csr {
        let rows = matrix.rows();
        let mut dense = vec![vec![0.0; rows]; rows];
        let at = |row: usize| matrix.row(row).0.iter().map(|&col| col as usize);
        for row in 0..rows {
            at(row).zip(matrix.row(row).1).for_each(|(col, value)| dense[row][col] = *value);
        }
        for row in 0..rows {
            for by in at(row).filter(|&by| by < row) {
                let factor = dense[row][by] / dense[by][by];
                dense[row][by] = factor;
                for col in at(by).filter(|&col| col > by && at(row).any(|it| it == col)) {
                    dense[row][col] -= factor * dense[by][col];
                }
            }
        }
        let values = (0..rows).flat_map(|row| at(row).map(move |col| (row, col)));
        let values = values.map(|(row, col)| dense[row][col]).collect();
        let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
        Csr::new(rows, rows, indptr, indices, values).unwrap()
    }

    fn symmetric(matrix: &Csr) {
        let rows = matrix.rows();
        let part = |problem: &Sptrsv| Triangular::of(matrix, problem).unwrap();
        use crate::domain::problem::Diagonal::Unit;
        let lower = part(&Sptrsv { diagonal: Unit, ..Sptrsv::PLAIN });
        let upper = part(&Sptrsv { triangle: Triangle::Upper, ..Sptrsv::PLAIN });
        assert!(!lower.reversed && upper.reversed);
        for (power, steps) in POWERS.into_iter().flat_map(|it| STEPS.map(|steps| (it, steps))) {
            let (first, second) = (inverse(&lower, power, steps), inverse(&upper, power, steps));
            // Both solves, each in the matrix's order.
            let both = |b: &[f64]| {
                let of = |(once, twice): (Vec<f64>, Option<Vec<f64>>)| twice.unwrap_or(once);
                let between = of(first.approximations(b));
                let turned: Vec<f64> = between.into_iter().rev().collect();
                let x: Vec<f64> = of(second.approximations(&turned)).into_iter().rev().collect();
                x
            };
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            for seed in 1..4 {
                let a = operand::random_double(rows, seed);
                let b = operand::random_double(rows, seed + 10);
                let (one, other) = (dot(&a, &both(&b)), dot(&b, &both(&a)));
                let size = dot(&a, &a).sqrt() * dot(&both(&b), &both(&b)).sqrt();
                assert!((one - other).abs() <= 1e-12 * size, "{power} {steps}: {one} {other}");
            }
        }
    }

    #[test]
    fn what_would_be_too_much_is_refused() {
        let system = system("ilu0_poisson2d:nx=30,ny=20,seed=1", Triangle::Lower);
        let map = Map { power: 4, steps: 1 };
        let within = |visits, entries| {
            let made = Inverse::within(&system, Dtype::F64, map, Limits { visits, entries });
            made.map(|(it, _)| it.map.indices.len())
        };
        let entries = within(VISITS, ALWAYS).unwrap();
        assert_eq!(within(5_000, ALWAYS), Err(Denied::Visits));
        assert_eq!(within(VISITS, entries), Ok(entries));
        assert_eq!(within(VISITS, entries - 1), Err(Denied::Entries));
        let mut visits = VISITS;
        let first = Inverse::counted(&system, Dtype::F64, map, &mut visits);
        let each = VISITS - visits;
        assert!(first.is_ok() && each > entries as u64);
        visits = each;
        assert!(Inverse::counted(&system, Dtype::F64, map, &mut visits).is_ok() && visits == 0);
        let again = Inverse::counted(&system, Dtype::F64, map, &mut visits);
        assert_eq!((again.unwrap_err(), visits), (Denied::Visits, 0));
        let of = |system, dtype, power| {
            Inverse::of(system, dtype, Map { power, steps: 1 }).map(|it| it.map.indices.len())
        };
        let chain = Csr::new(2, 2, vec![0, 1, 3], vec![0, 0, 1], vec![1e-30, 1e30, 1e-30]);
        let chain = Triangular::of(&chain.unwrap(), &Sptrsv::PLAIN).unwrap();
        assert_eq!(of(&chain, Dtype::F32, 1), Err(Denied::Range));
        assert_eq!(of(&chain, Dtype::F64, 1), Ok(3));
    }
}
