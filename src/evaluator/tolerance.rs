//! How far a right answer may be from the float64 reference (Higham, Accuracy and Stability, section 3.1).

use crate::domain::Dtype;

/// Largest componentwise error `|c - ref| / (|A| |B|)` of a product whose longest row has `longest_row` entries.
///
/// A dot product of k terms, summed in any order with unit roundoff u, is within `k u / (1 - k u)` of the exact one in
/// this measure. The reference takes the operands as already rounded to the dtype, so their rounding does not count;
/// the 8 covers the final rounding, the float32 `scale` it is divided by, and the second-order term. Half precision
/// accumulates in float32 and rounds once at the end.
pub fn tolerance(dtype: Dtype, longest_row: usize) -> f64 {
    const F16: f64 = 1.0 / (1u64 << 11) as f64;
    const F32: f64 = 1.0 / (1u64 << 24) as f64;
    const F64: f64 = 1.0 / (1u64 << 53) as f64;
    let terms = longest_row as f64 + 8.0;
    match dtype {
        Dtype::F32 => terms * F32,
        Dtype::F16 => F16 + terms * F32,
        // The reference is a float64 sum itself and may be off by as much.
        Dtype::F64 => 2.0 * terms * F64,
    }
}

#[cfg(test)]
mod tests {
    use super::tolerance;
    use crate::domain::Dtype;

    #[test]
    fn a_plain_sum_passes_and_a_missing_term_does_not() {
        let row: Vec<f32> = (1..=1000).map(|i| 1.0 / i as f32).collect();
        let exact: f64 = row.iter().map(|&x| f64::from(x)).sum();
        let error = |sum: f32| (f64::from(sum) - exact).abs() / exact;
        let bound = tolerance(Dtype::F32, row.len());
        assert!(error(row.iter().sum()) < bound);
        assert!(error(row[..999].iter().sum()) > bound);
    }
}
