//! Where arrays hold the matrix's values. Packing is a function of pattern and values; instead of asking every family to
//! report its placement, the function is run on values that spell the numbers of their entries, and the places are read off.

use crate::domain::Dtype;
use crate::domain::bundle::NO_ENTRY;
use crate::domain::recipe::{Array, ArrayData};
use crate::sparse::Csr;
use half::f16;
use rayon::prelude::*;

/// Digits are counted from 1, so that no entry is zero, and stay below 2^11, so that every element type holds them exactly,
/// tf32 and binary16 included.
const BASE: usize = 1024;

/// What an array holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The same for all values of this pattern.
    Pattern,
    /// Place i holds the value of entry `map[i]`, or, with [`NO_ENTRY`], the same for all values.
    Values { map: Vec<u32> },
}

/// What each array holds; `None` if the arrays are another function of the values than a placement.
///
/// `make` computes the arrays from a matrix of this pattern; `truth` are those of `matrix` itself. The result has been compared
/// with `truth`, bit by bit.
pub fn contents(
    matrix: &Csr,
    dtype: Dtype,
    truth: &[Array],
    make: &dyn Fn(&Csr) -> Option<Vec<Array>>,
) -> Option<Vec<Content>> {
    let nnz = matrix.nnz();
    let spelled = |values: Vec<f64>| -> Option<Vec<Array>> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
        let made = make(&Csr::new(rows, cols, indptr, indices, values).ok()?)?;
        let same = made.len() == truth.len()
            && made.iter().zip(truth).all(|(made, truth)| {
                made.name == truth.name
                    && made.data.len() == truth.data.len()
                    && made.data.element() == truth.data.element()
            });
        same.then_some(made)
    };
    let digit = |entry: usize, power: u32| entry / BASE.pow(power) % BASE + 1;
    // A place that follows a change of sign is a value's, and none by coincidence.
    let negative = spelled((0..nnz).map(|entry| -(digit(entry, 0) as f64)).collect())?;
    let digits = (0..).take_while(|&power| power == 0 || BASE.pow(power) < nnz.max(1)).count();
    let mut passes = Vec::with_capacity(digits);
    for power in 0..digits as u32 {
        let made = spelled((0..nnz).map(|entry| digit(entry, power) as f64).collect())?;
        // The first digit already tells a function of several values from a placement.
        if power == 0 && !negated(&negative, &made, dtype) {
            return None;
        }
        passes.push(made);
    }
    let contents: Option<Vec<Content>> =
        (0..truth.len()).map(|at| content(&negative[at].data, &passes, at, nnz, dtype)).collect();
    let contents = contents?;
    let faithful = contents.iter().zip(truth).all(|(content, truth)| match content {
        Content::Pattern => true,
        Content::Values { map } => gathered(&truth.data, map, matrix.values(), dtype)
            .is_some_and(|made| made.bytes() == truth.data.bytes()),
    });
    // What holds no values must be what it is for the true ones.
    let constant = contents.iter().enumerate().all(|(at, content)| {
        *content != Content::Pattern || passes[0][at].data.bytes() == truth[at].data.bytes()
    });
    (faithful && constant).then_some(contents)
}

/// Whether every element is the other's or its negative.
fn negated(negative: &[Array], positive: &[Array], dtype: Dtype) -> bool {
    negative.iter().zip(positive).all(|(negative, positive)| {
        (0..positive.data.len()).into_par_iter().with_min_len(1 << 14).all(|i| {
            bits(&negative.data, i) == bits(&positive.data, i)
                || match (number(&negative.data, i, dtype), number(&positive.data, i, dtype)) {
                    (Some(negative), Some(positive)) => negative == -positive,
                    _ => false,
                }
        })
    })
}

fn content(
    negative: &ArrayData,
    passes: &[Vec<Array>],
    at: usize,
    nnz: usize,
    dtype: Dtype,
) -> Option<Content> {
    let entry = |i: usize| -> Option<u32> {
        let unchanged = bits(negative, i) == bits(&passes[0][at].data, i);
        if unchanged {
            // A place without a value is the same in all passes.
            let constant = passes.iter().all(|made| bits(&made[at].data, i) == bits(negative, i));
            return constant.then_some(NO_ENTRY);
        }
        let mut entry = 0usize;
        for (power, made) in passes.iter().enumerate() {
            let digit = number(&made[at].data, i, dtype)?;
            if digit.fract() != 0.0 || !(1.0..=BASE as f64).contains(&digit) {
                return None;
            }
            entry += (digit as usize - 1) * BASE.pow(power as u32);
        }
        (entry < nnz).then_some(entry as u32)
    };
    let length = passes[0][at].data.len();
    let map: Option<Vec<u32>> =
        (0..length).into_par_iter().with_min_len(1 << 14).map(entry).collect();
    let map = map?;
    let empty = map.par_iter().all(|&entry| entry == NO_ENTRY);
    Some(if empty { Content::Pattern } else { Content::Values { map } })
}

/// An array with the matrix's values in their places; `None` if no array of this type holds values of the problem's type.
pub fn gathered(array: &ArrayData, map: &[u32], values: &[f64], dtype: Dtype) -> Option<ArrayData> {
    let value = |i: usize| values.get(map[i] as usize).copied();
    let all = (0..array.len()).into_par_iter().with_min_len(1 << 14);
    Some(match (array, dtype) {
        (ArrayData::F64(old), Dtype::F64) => {
            ArrayData::F64(all.map(|i| value(i).unwrap_or(old[i])).collect::<Vec<_>>().into())
        }
        (ArrayData::F32(old), Dtype::F32) => {
            let of = |i: usize| value(i).map_or(old[i], |value| value as f32);
            ArrayData::F32(all.map(of).collect::<Vec<_>>().into())
        }
        (ArrayData::U32(old), Dtype::F32) => {
            let of = |i: usize| value(i).map_or(old[i], |value| (value as f32).to_bits());
            ArrayData::U32(all.map(of).collect::<Vec<_>>().into())
        }
        (ArrayData::F16(old), Dtype::F16) => {
            let of = |i: usize| value(i).map_or(old[i], crate::sparse::operand::half_bits);
            ArrayData::F16(all.map(of).collect::<Vec<_>>().into())
        }
        _ => return None,
    })
}

fn bits(array: &ArrayData, i: usize) -> u64 {
    match array {
        ArrayData::U16(data) | ArrayData::F16(data) => data[i].into(),
        ArrayData::U32(data) => data[i].into(),
        ArrayData::F32(data) => data[i].to_bits().into(),
        ArrayData::F64(data) => data[i].to_bits(),
    }
}

/// The number that an element stands for, where it can be a value of the problem's type as it is.
fn number(array: &ArrayData, i: usize, dtype: Dtype) -> Option<f64> {
    match (array, dtype) {
        (ArrayData::F64(data), Dtype::F64) => Some(data[i]),
        (ArrayData::F32(data), Dtype::F32) => Some(data[i].into()),
        (ArrayData::U32(data), Dtype::F32) => Some(f32::from_bits(data[i]).into()),
        (ArrayData::F16(data), Dtype::F16) => Some(f16::from_bits(data[i]).to_f64()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(nnz: usize) -> Csr {
        let values = (0..nnz).map(|i| (i as f64 * 0.7).sin() + 2.0).collect();
        Csr::new(1, nnz, vec![0, nnz], (0..nnz as u32).collect(), values).unwrap()
    }

    fn arrays(data: Vec<ArrayData>) -> Vec<Array> {
        let named = |(i, data)| Array { name: format!("array{i}"), data };
        data.into_iter().enumerate().map(named).collect()
    }

    /// Columns, values from behind with a hole after each, and words of both.
    fn packed(matrix: &Csr) -> Option<Vec<Array>> {
        let values: Vec<f32> = matrix.values().iter().map(|&value| value as f32).collect();
        let holes: Vec<f32> = values.iter().rev().flat_map(|&value| [value, 0.0]).collect();
        let words: Vec<u32> =
            (0..values.len()).flat_map(|i| [i as u32, values[i].to_bits()]).collect();
        Some(arrays(vec![
            ArrayData::U32(matrix.indices().into()),
            ArrayData::F32(holes.into()),
            ArrayData::U32(words.into()),
        ]))
    }

    #[test]
    fn places_are_read_off_for_any_number_of_entries() {
        for nnz in [0, 1, 2, 1023, 1024, 1025, 5000] {
            let matrix = matrix(nnz);
            let truth = packed(&matrix).unwrap();
            let found = contents(&matrix, Dtype::F32, &truth, &packed).unwrap();
            assert_eq!(found[0], Content::Pattern);
            if nnz == 0 {
                continue;
            }
            let reversed = (0..nnz as u32).rev().flat_map(|entry| [entry, NO_ENTRY]).collect();
            assert_eq!(found[1], Content::Values { map: reversed }, "{nnz}");
            let every_other = (0..nnz as u32).flat_map(|entry| [NO_ENTRY, entry]).collect();
            assert_eq!(found[2], Content::Values { map: every_other }, "{nnz}");
        }
    }

    #[test]
    fn halves_hold_every_digit() {
        let matrix = matrix(3000);
        let make = |matrix: &Csr| {
            let halves = matrix.values().iter().map(|&it| crate::sparse::operand::half_bits(it));
            Some(arrays(vec![ArrayData::F16(halves.collect::<Vec<_>>().into())]))
        };
        let truth = make(&matrix).unwrap();
        let found = contents(&matrix, Dtype::F16, &truth, &make).unwrap();
        assert_eq!(found, [Content::Values { map: (0..3000).collect() }]);
    }

    #[test]
    fn other_functions_of_the_values_are_no_placements() {
        let matrix = matrix(1500);
        let sum = |factor: f64| {
            move |matrix: &Csr| {
                let values = matrix.values();
                let made = values.iter().map(|value| value * factor / values[0]);
                Some(arrays(vec![ArrayData::F64(made.collect::<Vec<_>>().into())]))
            }
        };
        for factor in [1.0, -1.0, 2.0] {
            let make = sum(factor);
            let truth = make(&matrix).unwrap();
            assert_eq!(contents(&matrix, Dtype::F64, &truth, &make), None, "{factor}");
        }
        // An array that depends on whether values are small.
        let make = |matrix: &Csr| {
            let small = matrix.values().iter().filter(|value| value.abs() < 4.0).count();
            Some(arrays(vec![ArrayData::U32(vec![small as u32].into())]))
        };
        let truth = make(&matrix).unwrap();
        assert_eq!(contents(&matrix, Dtype::F32, &truth, &make), None);
    }
}
