//! How many sweeps a system needs: they are carried out on the host, for a right-hand side at random.

use super::scheme::{Blocking, SWEEPS, Scheme};
use crate::ops::sptrsv::approximate::Tried;
use crate::sparse::Triangular;
use rayon::prelude::*;

/// Sweeps over which the factor of their errors is taken, and how much less the rest may bring than that factor promises.
const STRIDE: usize = 4;
const SLACK: f64 = 10.0;

/// Entries of the matrix that may be visited to find out how many sweeps a system needs, however it is cut into blocks: seconds of one
/// core. At worst that is all ways of cutting for 2 million entries, and the plain sweeps for 30 million.
pub const VISITS: u64 = 2_000_000_000;

/// More entries would have to be visited than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent;

/// The least number of sweeps after which every equation is satisfied to within the bound of approximate solves; `None` if none of
/// those that are counted suffices, or if after a few of them no more would. Takes what it visits from `visits`, and nothing of them
/// is left if they are too few.
pub fn least_sweeps(
    system: &Triangular,
    blocking: Blocking,
    visits: &mut u64,
) -> Result<Option<u32>, Spent> {
    let sweeper = Sweeper::of(system, blocking);
    let tried = Tried::of(system);
    let mut x = vec![0.0; system.rows()];
    let most = SWEEPS[SWEEPS.len() - 1];
    let mut errors: Vec<f64> = Vec::new();
    for sweep in 1..=most {
        *visits = visits.checked_sub(sweeper.visits()).ok_or(Spent).inspect_err(|_| *visits = 0)?;
        x = sweeper.swept(&tried.b, &x);
        let error = tried.error(system, &x);
        if error <= tried.bound {
            return Ok(Some(sweep));
        }
        // At first the worst equation hardly improves, since nothing of it is right yet. Then it does so by a steady factor.
        if let Some(before) = errors.len().checked_sub(STRIDE).map(|at| errors[at])
            && sweep as usize >= 2 * STRIDE
        {
            let strides = f64::from(most - sweep) / STRIDE as f64;
            let projected = error * (error / before).powf(strides);
            if projected.is_nan() || projected > SLACK * tried.bound {
                return Ok(None);
            }
        }
        errors.push(error);
    }
    Ok(None)
}

/// What a scheme makes of a right-hand side in solve order, in float64.
pub fn approximation(system: &Triangular, b: &[f64], scheme: &Scheme) -> Vec<f64> {
    let sweeper = Sweeper::of(system, scheme.blocking);
    let none = vec![0.0; b.len()];
    (0..scheme.sweeps).fold(none, |x, _| sweeper.swept(b, &x))
}

/// What a scheme's last sweep begins with, and what it makes of it.
pub fn last_two(system: &Triangular, b: &[f64], scheme: &Scheme) -> [Vec<f64>; 2] {
    let before = approximation(system, b, &Scheme { sweeps: scheme.sweeps - 1, ..*scheme });
    let x = Sweeper::of(system, scheme.blocking).swept(b, &before);
    [before, x]
}

/// The launches of the kernel (`kernels/sptrsv/sweeps.cuh`), in float64.
struct Sweeper<'a> {
    system: &'a Triangular,
    blocking: Blocking,
    /// For each row how many of its entries are in columns before its block; nothing where one sweep of a block does not need it.
    earlier: Vec<u32>,
}

impl<'a> Sweeper<'a> {
    fn of(system: &'a Triangular, blocking: Blocking) -> Self {
        let rows = blocking.rows as usize;
        let earlier = |s: usize| {
            let begin = s - s % rows;
            system.row(s).0.partition_point(|&col| (col as usize) < begin) as u32
        };
        let divided = if blocking.inner > 1 { system.rows() } else { 0 };
        let earlier = (0..divided).into_par_iter().map(earlier).collect();
        Self { system, blocking, earlier }
    }

    /// Entries that a sweep visits, and then the sum of residuals.
    fn visits(&self) -> u64 {
        let nnz = self.system.nnz() as u64;
        let earlier: u64 = self.earlier.iter().map(|&earlier| u64::from(earlier)).sum();
        let again = u64::from(self.blocking.inner - 1) * nnz.saturating_sub(earlier);
        // A row without entries is a visit, too.
        2 * nnz + again + self.system.rows() as u64
    }

    fn swept(&self, b: &[f64], before: &[f64]) -> Vec<f64> {
        let Self { system, blocking, earlier } = self;
        let rows = blocking.rows as usize;
        let mut after = vec![0.0; before.len()];
        let sum = |s: usize, entries: std::ops::Range<usize>, x: &[f64], first: usize| -> f64 {
            let (columns, values) = system.row(s);
            let terms = columns[entries.clone()].iter().zip(&values[entries]);
            terms.map(|(&col, value)| value * x[col as usize - first]).sum()
        };
        let terms = |s: usize| system.row(s).0.len();
        after.par_chunks_mut(rows).enumerate().for_each(|(block, own)| {
            let begin = block * rows;
            if blocking.inner == 1 {
                for (s, x) in (begin..).zip(own) {
                    *x = (b[s] - sum(s, 0..terms(s), before, 0)) / system.diagonal[s];
                }
                return;
            }
            let split = |s: usize| earlier[s] as usize;
            let outside: Vec<f64> =
                (begin..begin + own.len()).map(|s| sum(s, 0..split(s), before, 0)).collect();
            let mut held = before[begin..begin + own.len()].to_vec();
            for _ in 0..blocking.inner {
                for (at, x) in own.iter_mut().enumerate() {
                    let s = begin + at;
                    let inside = sum(s, split(s)..terms(s), &held, begin);
                    *x = (b[s] - outside[at] - inside) / system.diagonal[s];
                }
                held.copy_from_slice(own);
            }
        });
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Sptrsv;
    use crate::sparse::{Csr, oracle};

    /// Each row is coupled to the one before it and to one far before it, by these parts of its diagonal.
    fn system(rows: usize, near: f64, far: f64) -> Triangular {
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            if row >= 100 {
                indices.push((row - 100) as u32);
                values.push(-2.0 * far);
            }
            if row > 0 {
                indices.push(row as u32 - 1);
                values.push(-2.0 * near);
            }
            indices.push(row as u32);
            values.push(2.0);
            indptr.push(indices.len());
        }
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        Triangular::of(&matrix, &Sptrsv::PLAIN).unwrap()
    }

    fn needed(system: &Triangular, blocking: Blocking) -> Option<u32> {
        least_sweeps(system, blocking, &mut VISITS.clone()).unwrap()
    }

    #[test]
    fn as_many_sweeps_as_levels_are_exact() {
        let system = system(7, 0.9, 0.0);
        let b: Vec<f64> = (0..7).map(|i| 1.0 + f64::from(i)).collect();
        let exact = oracle::sptrsv(&system, &b, 1);
        let sweeper = |inner| Sweeper::of(&system, Blocking { rows: 64, inner });
        let mut x = vec![0.0; 7];
        for _ in 0..7 {
            x = sweeper(1).swept(&b, &x);
        }
        assert!(x.iter().zip(&exact).all(|(x, exact)| (x - exact).abs() <= 1e-12 * exact.abs()));
        // The same number among the rows of one block.
        let mut x = vec![0.0; 7];
        for _ in 0..2 {
            x = sweeper(4).swept(&b, &x);
        }
        assert!(x.iter().zip(&exact).all(|(x, exact)| (x - exact).abs() <= 1e-12 * exact.abs()));
    }

    #[test]
    fn inner_sweeps_replace_outer_ones_where_rows_need_their_neighbours() {
        let near = system(3000, 0.6, 0.05);
        let least = |inner| needed(&near, Blocking { rows: 256, inner }).unwrap();
        let [one, two, four] = [1, 2, 4].map(least);
        assert!(one > two && two > four, "{one} {two} {four}");
        // Of a block of rows that need others far away they replace none.
        let far = system(3000, 0.0, 0.6);
        let least = |inner| needed(&far, Blocking { rows: 64, inner });
        assert_eq!(least(1), least(4));
    }

    #[test]
    fn what_does_not_come_near_is_given_up() {
        assert_eq!(needed(&system(3000, 1.2, 0.0), Blocking { rows: 256, inner: 1 }), None);
        assert_eq!(needed(&system(3000, 0.999, 0.0), Blocking { rows: 256, inner: 1 }), None);
        let none = Triangular::of(&Csr::empty(), &Sptrsv::PLAIN).unwrap();
        assert_eq!(needed(&none, Blocking { rows: 256, inner: 1 }), Some(1));
    }
    /// Each entry is visited by a sweep and by the residuals, and those of a block again by each further sweep of it.
    #[test]
    fn what_is_visited_is_counted_and_bounded() {
        let near = system(3000, 0.6, 0.05);
        let whole = Blocking { rows: 64, inner: 1 };
        let sweeps = u64::from(needed(&near, whole).unwrap());
        let each = 2 * near.nnz() as u64 + 3000;
        let mut visits = sweeps * each + 5;
        assert_eq!(least_sweeps(&near, whole, &mut visits), Ok(Some(sweeps as u32)));
        assert_eq!(visits, 5);
        let mut visits = sweeps * each - 1;
        assert_eq!(least_sweeps(&near, whole, &mut visits), Err(Spent));
        assert_eq!(visits, 0);
        // Of 64 rows all but the first need the one before them, and none the one a hundred before.
        let inside = 3000 - 3000_u64.div_ceil(64);
        let twice = Blocking { rows: 64, inner: 2 };
        assert_eq!(Sweeper::of(&near, twice).visits(), each + inside);
    }
}
