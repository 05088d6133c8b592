//! Error tolerances relative to the float64 reference (Higham, Accuracy and Stability, section 3.1).

use crate::domain::{Candidate, Dtype, Layout, Spmm};
use crate::sparse::Csr;
use rayon::prelude::*;

/// Number of terms of a row that the tolerance itself covers; the additional error of longer rows is in their weight.
const FRAME: f64 = 8.0;

/// Error bound of an element of a product, in units of |A||B|.
#[derive(Clone, Copy)]
struct Error {
    /// The part independent of the row length.
    constant: f64,
    /// The part per term of the row, and per each of FRAME additional terms.
    term: f64,
}

impl Error {
    /// Types of 16 bits are summed in float32 and rounded once at the end, unless the result is float32. Then nothing covers
    /// that tensor cores cut off what they do not keep of a sum: such an addition is off by up to a unit in the last place,
    /// twice as much as a rounded one. With tf32, operands have 11 significant bits,
    /// as in f16: each of the two factors of a product may be off by half a unit in the last place. Neither error grows
    /// with the row length, unlike that of the sum.
    fn of(spmm: &Spmm) -> Self {
        let (dtype, result) = (spmm.dtype, spmm.result());
        let term = match dtype.sums() {
            Dtype::F32 if dtype != result => 2.0 * roundoff(Dtype::F32),
            // The reference is itself a float64 sum with an error of the same size.
            Dtype::F64 => 2.0 * roundoff(Dtype::F64),
            sums => roundoff(sums),
        };
        let rounded = if result.is_half() { roundoff(result) } else { 0.0 };
        let tf32 = if spmm.tf32 { 2.0 * roundoff(Dtype::F16) } else { 0.0 };
        Self { constant: rounded + tf32, term }
    }

    fn most(self, row_nnz: usize) -> f64 {
        self.constant + self.term * (row_nnz as f64 + FRAME)
    }
}

/// Largest componentwise error `|c - ref| / (|A| |B| w)` of a product, `w` being what `weigh_rows` multiplies by.
///
/// A dot product of k terms, summed in any order with unit roundoff u, is within `k u / (1 - k u)` of the exact one in
/// units of |A||B|. The reference uses operands already rounded to the dtype, so their rounding does not count; FRAME
/// covers the final rounding, the float32 `scale` it is divided by, and the second-order term. The tolerance of each
/// row depends on its own length, so that one long row does not loosen the check of short ones: this is the bound of an
/// empty row, and a row's weight is the ratio of its own bound to this.
pub fn tolerance(spmm: &Spmm) -> f64 {
    Error::of(spmm).most(0)
}

/// Factor by which the error of a scheme may exceed that of plain substitution.
const GROWTH: f64 = 64.0;

/// Largest componentwise backward error `|T x - b| / ((|T||x| + |b|) w)` of a solve, `w` being (k + 8) / 8 for a row of
/// k entries.
///
/// Plain substitution, in any order of summing, solves `(T + dT) x = b` with `|dT| <= (k + 2) u |T|` for a row of k
/// entries (Higham, Accuracy and Stability, theorem 8.5), which w and 8u cover. A scheme that rewrites equations -
/// inverted diagonal blocks, rows merged into others, the diagonal divided out early - is backward stable only up to
/// the growth within a block, hence the factor; a lost term or a stale x is off by far more. The engine sums the
/// residual to about twice the precision of float64, so that it adds nothing of its own.
pub fn solution_tolerance(dtype: Dtype) -> f64 {
    GROWTH * FRAME * roundoff(dtype)
}

/// Maximum of the largest |T x - b| of an approximate solve beside the largest |b|. It is an agreement, not a law: it says what sort
/// of preconditioner a client may expect. Equations beside their own terms would ask for more than a preconditioner needs: of ILU(0)
/// of a grid 200 x 200, 4 sweeps leave 0.11 of b and up to 0.6 of the terms of an equation, and conjugate gradients take 204
/// iterations with them, 197 with exact solves.
pub const APPROXIMATE: f64 = 1.0 / 8.0;

/// Bound of the rounding errors of an element that was computed by `sweeps` sums one after another, each of at most `terms` terms, beside
/// the same computation with the sizes of all numbers.
pub fn sweeping_error(dtype: Dtype, sweeps: usize, terms: usize) -> f64 {
    sweeps as f64 * (terms as f64 + FRAME) * roundoff(dtype)
}

/// Bound of the error of one element of a product whose row has `row_nnz` entries, `scale` being the sum of the absolute
/// values of its terms.
pub fn element_bound(spmm: &Spmm, row_nnz: usize, scale: f64) -> f64 {
    let error = Error::of(spmm);
    let floor = f64::from(floor(spmm.result()));
    error.most(row_nnz) * scale + error.most(0) * floor
}

/// Factor by which the tolerance of an equation with `row_nnz` entries besides the diagonal exceeds
/// [`solution_tolerance`].
pub fn equation_weight(row_nnz: usize) -> f64 {
    (row_nnz as f64 + FRAME) / FRAME
}

/// Factor by which the error of vendor routines may exceed the tolerance. In f16 (and so perhaps in bf16) two of cuSPARSE's three algorithms
/// round intermediate sums, with errors of 1.2 to 1.6 times our tolerance; without them the baseline would be the
/// slowest of the three. The error of a plan's winner is stated in the plan.
pub fn vendor_slack(candidate: &Candidate) -> f64 {
    if candidate.is_baseline() { 8.0 } else { 1.0 }
}

/// Unit roundoff.
fn roundoff(dtype: Dtype) -> f64 {
    let bits = match dtype {
        Dtype::Bf16 => 8,
        Dtype::F16 => 11,
        Dtype::F32 => 24,
        Dtype::F64 => 53,
    };
    1.0 / (1u64 << bits) as f64
}

/// The smallest normal number of a result of 16 bits, 0 for wider ones. Below it the spacing no longer shrinks: rounding there
/// is off by up to half the spacing (2^-25 in binary16), which is this times the unit roundoff.
const fn floor(result: Dtype) -> f32 {
    match result {
        Dtype::F16 => 1.0 / 16384.0,
        Dtype::Bf16 => f32::MIN_POSITIVE,
        Dtype::F32 | Dtype::F64 => 0.0,
    }
}

/// Multiplies each element's scale by its row's weight, in the layout of the product, so that `tolerance` is the bound
/// of every row; for a result of 16 bits it adds a term for underflow. Scales stay finite, since an infinite one would accept any
/// result.
pub fn weigh_rows(matrix: &Csr, spmm: &Spmm, scale: &mut [f32]) {
    let rows = matrix.rows().max(1);
    let floor = floor(spmm.result());
    let weigh = |scale: &mut f32, weight: f32| *scale = (*scale * weight + floor).min(f32::MAX);
    let error = Error::of(spmm);
    let weight = |row| (error.most(matrix.row_nnz(row)) / error.most(0)) as f32;
    let weights: Vec<f32> = (0..matrix.rows()).map(weight).collect();
    match spmm.layout {
        Layout::Row => scale
            .par_chunks_mut(spmm.n.max(1) as usize)
            .zip(&weights)
            .for_each(|(row, weight)| row.iter_mut().for_each(|scale| weigh(scale, *weight))),
        Layout::Col => scale.par_chunks_mut(rows).for_each(|column| {
            let weighed = column.iter_mut().zip(&weights);
            weighed.for_each(|(scale, weight)| weigh(scale, *weight));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, FRAME, solution_tolerance, tolerance, weigh_rows};
    use crate::domain::problem::{Diagonal, Triangle};
    use crate::domain::{Dtype, Layout, Output, Spmm, Sptrsv};
    use crate::sparse::operand::{self, round_to_half};
    use crate::sparse::{Csr, Triangular, oracle};

    fn spmm(dtype: Dtype) -> Spmm {
        Spmm::new(2, dtype, Layout::Row)
    }

    #[test]
    fn a_plain_sum_passes_and_a_missing_term_does_not() {
        let row: Vec<f32> = (1..=1000).map(|i| 1.0 / i as f32).collect();
        let exact: f64 = row.iter().map(|&x| f64::from(x)).sum();
        let error = |sum: f32| (f64::from(sum) - exact).abs() / exact;
        let bound = Error::of(&spmm(Dtype::F32)).most(row.len());
        assert!(error(row.iter().sum()) < bound);
        assert!(error(row[..999].iter().sum()) > bound);
    }

    #[test]
    fn operands_rounded_to_tf32_pass_only_by_consent() {
        // 10 bits of fraction, ties to even.
        let tf32 =
            |x: f32| f32::from_bits((x.to_bits() + 0xfff + (x.to_bits() >> 13 & 1)) & !0x1fff);
        let pairs: Vec<(f32, f32)> =
            (1..=400).map(|i| (1.0 / i as f32, (i as f32 / 7.0).fract() - 0.5)).collect();
        let sum = |terms: &mut dyn Iterator<Item = f64>| terms.sum::<f64>();
        let term = |(a, b): (f32, f32)| f64::from(a) * f64::from(b);
        let exact = sum(&mut pairs.iter().map(|&pair| term(pair)));
        let scale = sum(&mut pairs.iter().map(|&pair| term(pair).abs()));
        let rounded = sum(&mut pairs.iter().map(|&(a, b)| term((tf32(a), tf32(b)))));
        let error = (rounded - exact).abs() / scale;
        let consent = Spmm { tf32: true, ..spmm(Dtype::F32) };
        assert!(error < Error::of(&consent).most(pairs.len()), "{error}");
        // A single product shows the rounding most.
        let (a, b) = (1.0 + 1.0 / 2048.0f32, 1.0 + 1.0 / 2048.0f32);
        let error = (term((tf32(a), tf32(b))) - term((a, b))).abs() / term((a, b));
        assert!(error < tolerance(&consent) && error > 100.0 * tolerance(&spmm(Dtype::F32)));
        // An error of a third of a term does not pass.
        assert!(tolerance(&consent) < 1e-3 && tolerance(&spmm(Dtype::F64)) < 1e-14);
    }

    #[test]
    fn a_single_rounding_does_not_loosen_the_bound_of_long_rows() {
        let n = 4096usize;
        let values: Vec<f64> = operand::random(n, 1).into_iter().map(f64::from).collect();
        let matrix = Csr::new(1, n, vec![0, n], (0..n as u32).collect(), values).unwrap();
        let tf32 = Spmm { tf32: true, ..spmm(Dtype::F32) };
        for problem in [spmm(Dtype::F16), spmm(Dtype::Bf16), tf32, spmm(Dtype::F32)] {
            let problem = Spmm { n: 1, ..problem };
            let narrow = |x: f32| oracle::round(x.into(), problem.dtype) as f32;
            let b: Vec<f32> = operand::random(n, 2).into_iter().map(narrow).collect();
            let mut reference = oracle::spmm(&matrix, &b, &problem);
            weigh_rows(&matrix, &problem, &mut reference.scale);
            let terms = matrix.values().iter().zip(&b).map(|(&a, &b)| narrow(a as f32) * b);
            let terms: Vec<f32> = terms.collect();
            let right = |c: f32| {
                let off = (f64::from(c) - reference.value[0]).abs();
                off / f64::from(reference.scale[0]) <= tolerance(&problem)
            };
            assert!(right(narrow(terms.iter().sum())), "{problem:?}");
            if problem.dtype == Dtype::Bf16 {
                // Its one rounding is as large as what is left of 4096 terms of either sign; not so of one sign.
                let sizes: f32 = terms.iter().map(|term| term.abs()).sum();
                assert!(!right(reference.value[0] as f32 + sizes / 128.0), "{problem:?}");
                continue;
            }
            assert!(!right(0.0), "{problem:?}");
            assert!(!right(narrow(terms[..n - n / 8].iter().sum())), "{problem:?}");
        }
    }

    #[test]
    fn a_result_in_f32_is_not_allowed_the_rounding_to_16_bits() {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            a_result_in_f32_is_as_exact_as_its_sums(dtype);
        }
    }

    fn a_result_in_f32_is_as_exact_as_its_sums(dtype: Dtype) {
        let round = |value| oracle::round(value, dtype);
        let n = 12usize;
        let values: Vec<f64> = operand::random(n, 3).into_iter().map(f64::from).collect();
        let matrix = Csr::new(1, n, vec![0, n], (0..n as u32).collect(), values).unwrap();
        let half = Spmm { n: 1, ..spmm(dtype) };
        let wide = Spmm { output: Output::F32, ..half };
        assert!(300.0 * tolerance(&wide) < tolerance(&half));
        let b = operand::random(n, 4).into_iter().map(|x| round(x.into()) as f32);
        let b: Vec<f32> = b.collect();
        let mut reference = oracle::spmm(&matrix, &b, &wide);
        weigh_rows(&matrix, &wide, &mut reference.scale);
        let right = |c: f64| {
            let off = (c - reference.value[0]).abs();
            off / f64::from(reference.scale[0]) <= tolerance(&wide)
        };
        let terms = matrix.values().iter().zip(&b).map(|(&a, &b)| round(a) as f32 * b);
        // Each addition cuts off what it does not keep, as tensor cores do.
        let cut = |sum: f64| f64::from(f32::from_bits((sum as f32).to_bits() & !1));
        let sum = terms.clone().fold(0.0, |sum, term| cut(sum + f64::from(term)));
        assert!(right(terms.sum::<f32>().into()) && right(sum));
        assert!(!right(round(reference.value[0])));
    }

    #[test]
    fn underflow_in_half_precision_passes() {
        // One entry whose product lies among the subnormals of binary16, and a row without any.
        let matrix = Csr::new(2, 1, vec![0, 1, 1], vec![0], vec![2f64.powi(-20)]).unwrap();
        let half = Spmm { n: 1, ..spmm(Dtype::F16) };
        let b = [1.0 / 3.0f32];
        let mut reference = oracle::spmm(&matrix, &b, &half);
        weigh_rows(&matrix, &half, &mut reference.scale);
        let error =
            |row: usize, c: f64| (c - reference.value[row]).abs() / f64::from(reference.scale[row]);
        let exact = reference.value[0];
        assert!(error(0, round_to_half(exact)) <= tolerance(&half));
        assert!(error(0, round_to_half(exact) + 2f64.powi(-24)) > tolerance(&half));
        assert!(error(1, 0.0) == 0.0 && error(1, 2f64.powi(-24)) > tolerance(&half));
    }

    #[test]
    fn plain_substitution_passes_and_a_missing_term_does_not() {
        // Row i has entries in all columns before it.
        let n = 200usize;
        let indptr: Vec<usize> = (0..=n).map(|i| i * (i + 1) / 2).collect();
        let indices: Vec<u32> = (0..n as u32).flat_map(|i| 0..=i).collect();
        let values = indices.iter().enumerate().map(|(at, _)| 1.0 + (at % 7) as f64 / 9.0);
        let matrix = Csr::new(n, n, indptr, indices.clone(), values.collect()).unwrap();
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs: 1,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        let system = Triangular::of(&matrix, &problem).unwrap();
        let b: Vec<f64> = (0..n).map(|i| ((i * 37) % 19) as f64 / 9.0 - 1.0).collect();
        let mut x = oracle::sptrsv(&system, &b, 1);
        let error = |x: &[f64], s: usize| {
            let (columns, values) = system.row(s);
            let terms = columns.iter().zip(values).map(|(&col, &value)| value * x[col as usize]);
            let terms: Vec<f64> = terms.chain([system.diagonal[s] * x[s], -b[s]]).collect();
            let scale: f64 = terms.iter().map(|term| term.abs()).sum();
            let weight = (columns.len() as f64 + FRAME) / FRAME;
            terms.iter().sum::<f64>().abs() / scale / weight
        };
        let bound = solution_tolerance(Dtype::F64);
        assert!((0..n).all(|s| error(&x, s) <= bound));
        // One term of the last row is missing.
        x[n - 1] += system.row(n - 1).1[3] * x[3] / system.diagonal[n - 1];
        assert!(error(&x, n - 1) > 100.0 * bound);
    }

    #[test]
    fn a_long_row_does_not_loosen_the_bound_of_a_short_one() {
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
