//! Loading an SpMM: range checks for its data type, the dense operands, and the reference product.

use super::load::{LoadError, MOST_ELEMENTS, MOST_NONZEROS, check_count};
use crate::domain::{Dtype, Layout, Problem, Spmm};
use crate::engine::{ALPHA, BETA, Dense, Expected};
use crate::sparse::oracle::{Element, Product};
use crate::sparse::tolerance::weigh_rows;
use crate::sparse::{Csr, operand, oracle};
use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use std::sync::Arc;

/// The stored matrix, before it is transposed for the problem: row pointers are 32-bit on every device, and B and C must be addressable.
pub(super) fn check_sizes(matrix: &Csr, spmm: &Spmm) -> Result<(), LoadError> {
    check_count("the number of nonzeros", matrix.nnz() as u128, MOST_NONZEROS)?;
    let (rows, cols) = (matrix.rows() as u64, matrix.cols() as u64);
    let (rows, cols) = Problem::Spmm(*spmm).operand_shape(rows, cols);
    for (what, side) in [("the size of B", cols), ("the size of C", rows)] {
        check_count(what, u128::from(side) * u128::from(spmm.n), MOST_ELEMENTS)?;
    }
    Ok(())
}

/// Refuses a matrix with a value that overflows in the problem's data type, and names the first one.
pub(super) fn check_range(matrix: &Csr, dtype: Dtype) -> Result<(), LoadError> {
    let beyond = |value: &f64| !oracle::round(*value, dtype).is_finite();
    let Some(at) = matrix.values().par_iter().position_first(beyond) else {
        return Ok(());
    };
    let row = matrix.indptr().partition_point(|&start| start <= at) - 1;
    let (col, value) = (matrix.indices()[at], matrix.values()[at]);
    Err(LoadError::Range { row, col, value, dtype })
}

/// B, the initial C of a problem with `accumulate`, and the reference result.
pub(super) fn operands(
    matrix: &Csr,
    spmm: &Spmm,
    seed: u64,
) -> Result<(Dense, Option<Dense>, Expected), LoadError> {
    let [b_len, c_len] = [matrix.cols(), matrix.rows()].map(|side| side * spmm.n as usize);
    // Another seed, so that C does not begin with the values of B.
    let c_seed = seed.wrapping_add(1);
    let c_len = spmm.accumulate.then_some(c_len);
    let (b, c0, product) = match spmm.dtype {
        Dtype::F16 if spmm.result() == Dtype::F32 => {
            let b = operand::random_half(b_len, seed);
            let c0 = c_len.map(|len| operand::random(len, c_seed));
            let product = product(matrix, b.reinterpret_cast::<f16>(), c0.as_deref(), spmm)?;
            (Dense::F16(b.into()), c0.map(Dense::from), product)
        }
        Dtype::F16 => {
            let b = operand::random_half(b_len, seed);
            let c0 = c_len.map(|len| operand::random_half(len, c_seed));
            let wide = c0.as_deref().map(|bits| bits.reinterpret_cast::<f16>());
            let product = product(matrix, b.reinterpret_cast::<f16>(), wide, spmm)?;
            (Dense::F16(b.into()), c0.map(|c0| Dense::F16(c0.into())), product)
        }
        Dtype::Bf16 if spmm.result() == Dtype::F32 => {
            let b = operand::random_bf16(b_len, seed);
            let c0 = c_len.map(|len| operand::random(len, c_seed));
            let product = product(matrix, b.reinterpret_cast::<bf16>(), c0.as_deref(), spmm)?;
            (Dense::Bf16(b.into()), c0.map(Dense::from), product)
        }
        Dtype::Bf16 => {
            let b = operand::random_bf16(b_len, seed);
            let c0 = c_len.map(|len| operand::random_bf16(len, c_seed));
            let wide = c0.as_deref().map(|bits| bits.reinterpret_cast::<bf16>());
            let product = product(matrix, b.reinterpret_cast::<bf16>(), wide, spmm)?;
            (Dense::Bf16(b.into()), c0.map(|c0| Dense::Bf16(c0.into())), product)
        }
        Dtype::F32 => {
            let b = operand::random(b_len, seed);
            let c0 = c_len.map(|len| operand::random(len, c_seed));
            let product = product(matrix, &b, c0.as_deref(), spmm)?;
            (b.into(), c0.map(Dense::from), product)
        }
        Dtype::F64 => {
            let factor = operand::balancing(matrix);
            let mut b = operand::random_double(b_len, seed);
            b.par_iter_mut().for_each(|value| *value *= factor);
            let c0 = c_len.map(|len| operand::random_double(len, c_seed));
            let product = product(matrix, &b, c0.as_deref(), spmm)?;
            (b.into(), c0.map(Dense::from), product)
        }
    };
    Ok((b, c0, Expected::Product(Arc::new(product))))
}

/// The reference product, with error scales weighted by the row lengths.
fn product<T: Element, R: Element>(
    matrix: &Csr,
    b: &[T],
    c0: Option<&[R]>,
    spmm: &Spmm,
) -> Result<Product, LoadError> {
    let mut reference = oracle::spmm(matrix, b, spmm);
    if let Some(c0) = c0 {
        reference.accumulate(c0, ALPHA, BETA);
    }
    // |A||B| bounds every partial sum: if it is in range, no order of summation can overflow. Sums of products of
    // 16 bits are accumulated in f32, so only the result must be in range, in its own type.
    let result = spmm.result();
    let fits = |value: f64, scale: f32| {
        scale.is_finite() && !(result.is_half() && oracle::round(value, result).is_infinite())
    };
    let elements = reference.value.par_iter().zip(&reference.scale);
    if let Some(at) = elements.position_first(|(&value, &scale)| !fits(value, scale)) {
        let row = match spmm.layout {
            Layout::Row => at / spmm.n as usize,
            Layout::Col => at % matrix.rows(),
        };
        return Err(LoadError::Overflow { row, dtype: spmm.result() });
    }
    weigh_rows(matrix, spmm, &mut reference.scale);
    Ok(reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Output;

    fn spmm(n: u32) -> Spmm {
        Spmm::new(n, Dtype::F32, Layout::Row)
    }

    #[test]
    fn names_the_entry_outside_the_range_of_the_type() {
        let with = |value| Csr::new(3, 2, vec![0, 1, 1, 2], vec![0, 1], vec![1.0, value]).unwrap();
        let error = check_range(&with(1e39), Dtype::F32).unwrap_err();
        assert!(matches!(error, LoadError::Range { row: 2, col: 1, .. }), "{error}");
        assert!(check_range(&with(1e39), Dtype::F64).is_ok());
        assert!(check_range(&with(-65519.0), Dtype::F16).is_ok());
        let error = check_range(&with(-65520.0), Dtype::F16).unwrap_err().to_string();
        assert!(error.contains("row 2, column 1") && error.contains("range of f16"), "{error}");
        // The range of f32, but for what rounding carries beyond it.
        assert!(check_range(&with(-65520.0), Dtype::Bf16).is_ok());
        assert!(check_range(&with(3.389e38), Dtype::Bf16).is_ok());
        let error = check_range(&with(3.4e38), Dtype::Bf16).unwrap_err().to_string();
        assert!(error.contains("range of bf16") && check_range(&with(3.4e38), Dtype::F32).is_ok());
    }

    #[test]
    fn names_the_row_whose_result_is_outside_the_range_of_the_type() {
        // Row 1 sums a hundred of the larger values, which is well within the range of f32.
        let (indptr, indices) = (vec![0, 1, 101], [0].into_iter().chain(0..100).collect());
        let matrix = Csr::new(2, 100, indptr, indices, vec![3e4; 101]).unwrap();
        let error = |problem: Spmm| operands(&matrix, &problem, 1).err();
        for layout in [Layout::Row, Layout::Col] {
            for accumulate in [false, true] {
                let half = Spmm { dtype: Dtype::F16, layout, accumulate, ..spmm(9) };
                assert!(matches!(error(half), Some(LoadError::Overflow { row: 1, .. })));
                assert!(error(Spmm { dtype: Dtype::F32, ..half }).is_none());
                assert!(error(Spmm { output: Output::F32, ..half }).is_none());
                assert!(error(Spmm { dtype: Dtype::Bf16, ..half }).is_none());
            }
        }
    }

    #[test]
    fn operands_have_the_problems_type_and_their_product_matches() {
        let matrix = Csr::new(2, 3, vec![0, 2, 2], vec![0, 2], vec![0.1, 3e200]).unwrap();
        let double = Spmm { dtype: Dtype::F64, accumulate: true, ..spmm(2) };
        let (b, c0, expected) = operands(&matrix, &double, 5).unwrap();
        let (Dense::F64(b), Some(Dense::F64(c0)), Expected::Product(product)) = (b, c0, expected)
        else {
            panic!("unexpected type");
        };
        assert_eq!((b.len(), c0.len()), (6, 4));
        assert_eq!(product.value[0], ALPHA * (0.1 * b[0] + 3e200 * b[4]) + BETA * c0[0]);
        // The row without entries keeps beta * C.
        assert_eq!(product.value[3], BETA * c0[3]);
        assert!(product.scale.iter().all(|scale| *scale > 0.0 && *scale < 10.0));
        let matrix = Csr::new(1, 1, vec![0, 1], vec![0], vec![0.1]).unwrap();
        let half = Spmm { dtype: Dtype::F16, ..spmm(1) };
        let (b, c0, expected) = operands(&matrix, &half, 5).unwrap();
        let (Dense::F16(b), None, Expected::Product(product)) = (b, c0, expected) else {
            panic!("unexpected type");
        };
        let b = f16::from_bits(b[0]).to_f64();
        assert_eq!(product.value, [operand::round_to_half(0.1) * b]);
        let brain = Spmm { dtype: Dtype::Bf16, accumulate: true, ..half };
        let (b, c0, expected) = operands(&matrix, &brain, 5).unwrap();
        let (Dense::Bf16(b), Some(Dense::Bf16(c0)), Expected::Product(sum)) = (b, c0, expected)
        else {
            panic!("unexpected type");
        };
        let [b, c0] = [b, c0].map(|bits| bf16::from_bits(bits[0]).to_f64());
        assert_eq!(sum.value, [ALPHA * operand::round_to_bf16(0.1) * b + BETA * c0]);
        let wide = Spmm { output: Output::F32, accumulate: true, ..half };
        let (b, c0, expected) = operands(&matrix, &wide, 5).unwrap();
        let (Dense::F16(_), Some(Dense::F32(c0)), Expected::Product(sum)) = (b, c0, expected)
        else {
            panic!("unexpected type");
        };
        assert_eq!(sum.value, [ALPHA * product.value[0] + BETA * f64::from(c0[0])]);
    }

    #[test]
    fn refuses_sizes_beyond_32_bit_indices() {
        let matrix = Csr::new(0, 1 << 30, vec![0], vec![], vec![]).unwrap();
        assert!(check_sizes(&matrix, &spmm(128)).is_ok());
        assert!(check_sizes(&matrix, &spmm(u32::MAX)).is_err());
    }
}
