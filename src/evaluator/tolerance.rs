//! How far a right answer may be from the float64 reference (Higham, Accuracy and Stability, section 3.1).

use crate::domain::{Dtype, Layout, Spmm};
use crate::sparse::Csr;
use rayon::prelude::*;

/// Terms of a row that the tolerance itself allows for; a longer row's own growth is in its weight.
const FRAME: f64 = 8.0;

/// Largest componentwise error `|c - ref| / (|A| |B| w)` of a product, `w` being the row's `weight`.
///
/// A dot product of k terms, summed in any order with unit roundoff u, is within `k u / (1 - k u)` of the exact one in
/// units of |A||B|. The reference takes the operands as already rounded to the dtype, so their rounding does not count;
/// the 8 covers the final rounding, the float32 `scale` it is divided by, and the second-order term. Each row is judged
/// by its own length: one long row must not excuse the short ones. Half precision accumulates in float32 and rounds once
/// at the end.
pub fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => FRAME * roundoff(Dtype::F32),
        Dtype::F16 => roundoff(Dtype::F16) + FRAME * roundoff(Dtype::F32),
        // The reference is a float64 sum itself and may be off by as much.
        Dtype::F64 => 2.0 * FRAME * roundoff(Dtype::F64),
    }
}

/// How much more than plain substitution a solving scheme may err.
const GROWTH: f64 = 64.0;

/// Largest componentwise backward error `|T x - b| / ((|T||x| + |b|) w)` of a solve, `w` being the row's `weight`.
///
/// Plain substitution, in any order of summing, solves `(T + dT) x = b` with `|dT| <= (k + 2) u |T|` for a row of k
/// entries (Higham, Accuracy and Stability, theorem 8.5), which the weight and 8u cover. A scheme that rewrites
/// equations - inverted diagonal blocks, rows merged into others, the diagonal divided out early - is backward stable only
/// up to the growth within a block, hence the factor; a lost term or a stale x is off by far more. The engine sums the
/// residual to about twice the precision of float64, so that it adds nothing of its own.
pub fn solution_tolerance(dtype: Dtype) -> f64 {
    GROWTH * FRAME * roundoff(dtype)
}

/// Unit roundoff.
fn roundoff(dtype: Dtype) -> f64 {
    let bits = match dtype {
        Dtype::F16 => 11,
        Dtype::F32 => 24,
        Dtype::F64 => 53,
    };
    1.0 / (1u64 << bits) as f64
}

/// How much more rounding a row of `row_nnz` terms may gather than an empty one.
fn weight(row_nnz: usize) -> f32 {
    ((row_nnz as f64 + FRAME) / FRAME) as f32
}

/// Multiplies each element's scale by its row's weight, in the layout of the product. An infinite scale would excuse
/// anything, so it stays finite.
pub fn weigh_rows(matrix: &Csr, spmm: &Spmm, scale: &mut [f32]) {
    let rows = matrix.rows().max(1);
    let weights: Vec<f32> = (0..matrix.rows()).map(|row| weight(matrix.row_nnz(row))).collect();
    match spmm.layout {
        Layout::Row => {
            scale.par_chunks_mut(spmm.n.max(1) as usize).zip(&weights).for_each(|(row, weight)| {
                row.iter_mut().for_each(|scale| *scale = (*scale * weight).min(f32::MAX))
            })
        }
        Layout::Col => scale.par_chunks_mut(rows).for_each(|column| {
            let weighed = column.iter_mut().zip(&weights);
            weighed.for_each(|(scale, weight)| *scale = (*scale * weight).min(f32::MAX));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{solution_tolerance, tolerance, weigh_rows, weight};
    use crate::domain::problem::{Diagonal, Triangle};
    use crate::domain::{Dtype, Layout, Spmm, Sptrsv};
    use crate::sparse::{Csr, Triangular, oracle};

    #[test]
    fn a_plain_sum_passes_and_a_missing_term_does_not() {
        let row: Vec<f32> = (1..=1000).map(|i| 1.0 / i as f32).collect();
        let exact: f64 = row.iter().map(|&x| f64::from(x)).sum();
        let error = |sum: f32| (f64::from(sum) - exact).abs() / exact;
        let bound = tolerance(Dtype::F32) * f64::from(weight(row.len()));
        assert!(error(row.iter().sum()) < bound);
        assert!(error(row[..999].iter().sum()) > bound);
    }

    #[test]
    fn plain_substitution_passes_and_a_missing_term_does_not() {
        // Row i holds all columns before it.
        let n = 200usize;
        let indptr: Vec<usize> = (0..=n).map(|i| i * (i + 1) / 2).collect();
        let indices: Vec<u32> = (0..n as u32).flat_map(|i| 0..=i).collect();
        let values = indices.iter().enumerate().map(|(at, _)| 1.0 + (at % 7) as f64 / 9.0);
        let matrix = Csr::new(n, n, indptr, indices.clone(), values.collect()).unwrap();
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv { rhs: 1, dtype: Dtype::F64, triangle, diagonal, transpose: false };
        let system = Triangular::of(&matrix, &problem).unwrap();
        let b: Vec<f64> = (0..n).map(|i| ((i * 37) % 19) as f64 / 9.0 - 1.0).collect();
        let mut x = oracle::sptrsv(&system, &b, 1);
        let error = |x: &[f64], s: usize| {
            let (columns, values) = system.row(s);
            let terms = columns.iter().zip(values).map(|(&col, &value)| value * x[col as usize]);
            let terms: Vec<f64> = terms.chain([system.diagonal[s] * x[s], -b[s]]).collect();
            let scale: f64 = terms.iter().map(|term| term.abs()).sum();
            let weight = f64::from(weight(columns.len()));
            terms.iter().sum::<f64>().abs() / scale / weight
        };
        let bound = solution_tolerance(Dtype::F64);
        assert!((0..n).all(|s| error(&x, s) <= bound));
        // One term of the last row lost.
        x[n - 1] += system.row(n - 1).1[3] * x[3] / system.diagonal[n - 1];
        assert!(error(&x, n - 1) > 100.0 * bound);
    }

    #[test]
    fn a_long_row_does_not_excuse_a_short_one() {
        let indices: Vec<u32> = (0..9).chain([3]).collect();
        let matrix = Csr::new(2, 9, vec![0, 9, 10], indices, vec![1.0; 10]).unwrap();
        for (layout, expected) in
            [(Layout::Row, [17.0, 17.0, 9.0, 9.0]), (Layout::Col, [17.0, 9.0, 17.0, 9.0])]
        {
            let mut scale = vec![8.0; 4];
            weigh_rows(&matrix, &Spmm::new(2, Dtype::F32, layout), &mut scale);
            assert_eq!(scale, expected);
        }
    }
}
