//! How many sweeps a system needs: they are carried out on the host, for a right-hand side at random.

use super::scheme::{Blocking, SWEEPS, Scheme};
use crate::sparse::Triangular;
use crate::sparse::operand;
use crate::sparse::tolerance::APPROXIMATE;
use rayon::prelude::*;

/// Errors of other right-hand sides differ from that of the one that is tried: what is to pass with them has this part of the bound.
const MARGIN: f64 = 0.75;
const SEED: u64 = 0x5eed_5eed;
/// Sweeps over which the factor of their errors is taken, and how much less the rest may bring than that factor promises.
const STRIDE: usize = 4;
const SLACK: f64 = 10.0;

/// The least number of sweeps after which every equation is satisfied to within the bound of approximate solves; `None` if none of
/// those that are counted suffices, or if after a few of them no more would.
pub fn least_sweeps(system: &Triangular, blocking: Blocking) -> Option<u32> {
    let b = operand::random_double(system.rows(), SEED);
    let mut x = vec![0.0; system.rows()];
    let most = SWEEPS[SWEEPS.len() - 1];
    let bound = MARGIN * APPROXIMATE * b.iter().fold(0.0, |most: f64, b| most.max(b.abs()));
    let mut errors: Vec<f64> = Vec::new();
    for sweep in 1..=most {
        x = swept(system, &b, &x, blocking);
        let error = error(system, &b, &x);
        if error <= bound {
            return Some(sweep);
        }
        // At first the worst equation hardly improves, since nothing of it is right yet. Then it does so by a steady factor.
        if let Some(before) = errors.len().checked_sub(STRIDE).map(|at| errors[at])
            && sweep as usize >= 2 * STRIDE
        {
            let strides = f64::from(most - sweep) / STRIDE as f64;
            let projected = error * (error / before).powf(strides);
            if projected.is_nan() || projected > SLACK * bound {
                return None;
            }
        }
        errors.push(error);
    }
    None
}

/// What a scheme makes of a right-hand side in solve order, in float64.
pub fn approximation(system: &Triangular, b: &[f64], scheme: &Scheme) -> Vec<f64> {
    let none = vec![0.0; b.len()];
    (0..scheme.sweeps).fold(none, |x, _| swept(system, b, &x, scheme.blocking))
}

/// One launch of the kernel (`kernels/sptrsv/sweeps.cuh`), in float64.
pub fn swept(system: &Triangular, b: &[f64], before: &[f64], blocking: Blocking) -> Vec<f64> {
    let rows = blocking.rows as usize;
    let mut after = vec![0.0; before.len()];
    after.par_chunks_mut(rows).enumerate().for_each(|(block, own)| {
        let begin = block * rows;
        let split = |s: usize| system.row(s).0.partition_point(|&col| (col as usize) < begin);
        let outside: Vec<f64> = (begin..begin + own.len())
            .map(|s| {
                let (columns, values) = system.row(s);
                let earlier = columns.iter().zip(values).take(split(s));
                earlier.map(|(&col, value)| value * before[col as usize]).sum()
            })
            .collect();
        let mut held = before[begin..begin + own.len()].to_vec();
        for _ in 0..blocking.inner {
            for (at, x) in own.iter_mut().enumerate() {
                let s = begin + at;
                let (columns, values) = system.row(s);
                let inside = columns.iter().zip(values).skip(split(s));
                let sum: f64 = inside.map(|(&col, value)| value * held[col as usize - begin]).sum();
                *x = (b[s] - outside[at] - sum) / system.diagonal[s];
            }
            held.copy_from_slice(own);
        }
    });
    after
}

/// The largest |T x - b|.
fn error(system: &Triangular, b: &[f64], x: &[f64]) -> f64 {
    let of = |s: usize| {
        let (columns, values) = system.row(s);
        let terms = columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]);
        let error = (system.diagonal[s] * x[s] - b[s] + terms.sum::<f64>()).abs();
        if error.is_nan() { f64::INFINITY } else { error }
    };
    (0..b.len()).into_par_iter().map(of).reduce(|| 0.0, f64::max)
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

    #[test]
    fn as_many_sweeps_as_levels_are_exact() {
        let system = system(7, 0.9, 0.0);
        let b: Vec<f64> = (0..7).map(|i| 1.0 + f64::from(i)).collect();
        let exact = oracle::sptrsv(&system, &b, 1);
        let mut x = vec![0.0; 7];
        for _ in 0..7 {
            x = swept(&system, &b, &x, Blocking { rows: 64, inner: 1 });
        }
        assert!(x.iter().zip(&exact).all(|(x, exact)| (x - exact).abs() <= 1e-12 * exact.abs()));
        // The same number among the rows of one block.
        let mut x = vec![0.0; 7];
        for _ in 0..2 {
            x = swept(&system, &b, &x, Blocking { rows: 64, inner: 4 });
        }
        assert!(x.iter().zip(&exact).all(|(x, exact)| (x - exact).abs() <= 1e-12 * exact.abs()));
    }

    #[test]
    fn inner_sweeps_replace_outer_ones_where_rows_need_their_neighbours() {
        let near = system(3000, 0.6, 0.05);
        let least = |inner| least_sweeps(&near, Blocking { rows: 256, inner }).unwrap();
        let [one, two, four] = [1, 2, 4].map(least);
        assert!(one > two && two > four, "{one} {two} {four}");
        // Of a block of rows that need others far away they replace none.
        let far = system(3000, 0.0, 0.6);
        let least = |inner| least_sweeps(&far, Blocking { rows: 64, inner });
        assert_eq!(least(1), least(4));
    }

    #[test]
    fn what_does_not_come_near_is_given_up() {
        assert_eq!(least_sweeps(&system(3000, 1.2, 0.0), Blocking { rows: 256, inner: 1 }), None);
        assert_eq!(least_sweeps(&system(3000, 0.999, 0.0), Blocking { rows: 256, inner: 1 }), None);
        let none = Triangular::of(&Csr::empty(), &Sptrsv::PLAIN).unwrap();
        assert_eq!(least_sweeps(&none, Blocking { rows: 256, inner: 1 }), Some(1));
    }
}
