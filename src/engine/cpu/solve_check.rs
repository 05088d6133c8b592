//! Verifies a solution by its componentwise backward error, computed in float64.

use super::check::worse;
use super::element::Element;
use crate::engine::Check;
use crate::sparse::Triangular;
use rayon::prelude::*;

/// Minimum number of rows per parallel task.
const MIN_ROWS: usize = 1 << 10;

/// The largest |T x - b| / (|T||x| + |b|) (Oettli and Prager, 1964), where each row's is divided by its weight (k + 8)
/// / 8 for k strictly lower entries. `b` and `x` are rows x sides, row-major, in the matrix's row order. NaN and
/// infinity in x count as infinite error; `worst` is an index of x.
pub fn backward_error<T: Element>(system: &Triangular, b: &[T], x: &[T], sides: usize) -> Check {
    let none = || Check { rel_error: 0.0, unwritten: 0, worst: 0 };
    let of_row = |check: Check, s: usize| {
        let row = system.original(s) * sides;
        let weight = (system.row(s).0.len() as f64 + 8.0) / 8.0;
        (row..row + sides).enumerate().fold(check, |check, (j, at)| {
            let error = element(system, s, j, sides, b[at].into(), x) / weight;
            let unwritten = u64::from(x[at].is_poison());
            worse(check, Check { rel_error: error, unwritten, worst: at as u64 })
        })
    };
    (0..system.rows()).into_par_iter().with_min_len(MIN_ROWS).fold(none, of_row).reduce(none, worse)
}

/// One row's error for right-hand side j.
fn element<T: Element>(
    system: &Triangular,
    s: usize,
    j: usize,
    sides: usize,
    b: f64,
    x: &[T],
) -> f64 {
    let at = |s: usize| -> f64 { x[system.original(s) * sides + j].into() };
    let term = system.diagonal[s] * at(s);
    let (mut residual, mut scale) = (term - b, term.abs() + b.abs());
    let (columns, values) = system.row(s);
    for (&column, &value) in columns.iter().zip(values) {
        let term = value * at(column as usize);
        residual += term;
        scale += term.abs();
    }
    let error = residual.abs() / scale;
    match (scale == 0.0, error.is_nan()) {
        // 0 / 0: x is zero where b is zero, which is exact.
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::backward_error;
    use crate::engine::cpu::element::Element;
    use crate::sparse::Triangular;

    /// x0 = b0; 2 x0 + 4 x1 = b1, last row first.
    fn system() -> Triangular {
        let (indptr, indices) = (vec![0, 0, 1], vec![0]);
        Triangular { indptr, indices, values: vec![2.0], diagonal: vec![1.0, 4.0], reversed: true }
    }

    #[test]
    fn correct_wrong_and_missing_solutions() {
        // Two right-hand sides; solve index 0 is row 1.
        let b = [10.0, 0.0, 1.0, 0.0];
        let x = [2.0, 0.0, 1.0, 0.0];
        assert_eq!(backward_error::<f64>(&system(), &b, &x, 2).rel_error, 0.0);
        let check = backward_error::<f64>(&system(), &b, &[2.5, 0.0, 1.0, 0.0], 2);
        assert_eq!((check.rel_error, check.worst), (2.0 / 22.0 / (9.0 / 8.0), 0));
        for bad in [f64::NAN, f64::INFINITY] {
            let check = backward_error::<f64>(&system(), &b, &[2.0, 0.0, 1.0, bad], 2);
            assert_eq!((check.rel_error, check.unwritten), (f64::INFINITY, 0));
        }
        let check = backward_error(&system(), &[1f32, 1.0], &[f32::POISON; 2], 1);
        assert_eq!((check.rel_error, check.unwritten), (f64::INFINITY, 2));
    }
}
