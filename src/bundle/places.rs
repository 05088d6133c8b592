//! Where arrays hold the matrix's values. Packing is a function of pattern and values; instead of asking every family to
//! report its placement, the function is run on values that spell the numbers of their entries, and the places are read off.

mod quotients;

#[cfg(test)]
pub use quotients::divided;

use crate::domain::Dtype;
use crate::domain::bundle::NO_ENTRY;
use crate::domain::recipe::{Array, ArrayData, EQUAL_VALUES};
use crate::sparse::Csr;
use half::{bf16, f16};
use rayon::prelude::*;
use std::sync::Arc;

/// Numbers that one pass spells. Digits are counted from 1, so that no entry is zero, and reach the base, which every element
/// type must hold exactly: tf32 and binary16 all integers up to 2^11, bf16 up to 2^8.
const fn base(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bf16 => 256,
        Dtype::F16 | Dtype::F32 | Dtype::F64 => 1024,
    }
}

/// What an array holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The same for all values of this pattern.
    Pattern,
    /// Place i holds the value of entry `map[i]`, or, with [`NO_ENTRY`], the same for all values.
    Values { map: Vec<u32> },
    /// Place i holds minus the value of entry `map[i]`, or, with [`ONE`](crate::domain::bundle::ONE), 1, divided by the value of entry
    /// `divisors[i]`, or, with [`NO_ENTRY`], not divided; with [`NO_ENTRY`] in `map` the same for all values.
    Quotients { map: Vec<u32>, divisors: Vec<u32> },
    /// A word that says whether all values are equal.
    Equality,
}

impl Content {
    /// Whether new values are divided by one another.
    pub const fn divides(&self) -> bool {
        matches!(self, Self::Quotients { .. })
    }
}

/// Arrays as a function of the values of one pattern.
struct Spelling<'a> {
    matrix: &'a Csr,
    dtype: Dtype,
    /// Those of the matrix itself.
    truth: &'a [Array],
    make: &'a dyn Fn(Arc<Csr>) -> Option<Vec<Array>>,
}

/// What each array holds; `None` if an array is another function of the values than a placement, or, where the plan can divide, one
/// of quotients.
///
/// `make` computes the arrays from a matrix of this pattern; `truth` are those of `matrix` itself. The result has been compared
/// with `truth`, bit by bit. Beside them four sets of arrays at most and the maps are in memory.
pub fn contents(
    matrix: &Csr,
    dtype: Dtype,
    truth: &[Array],
    divides: bool,
    make: &dyn Fn(Arc<Csr>) -> Option<Vec<Array>>,
) -> Option<Vec<Content>> {
    let spelling = Spelling { matrix, dtype, truth, make };
    let mut contents = spelling.placements()?;
    if divides && contents.iter().any(Option::is_none) {
        quotients::find(&spelling, &mut contents)?;
    }
    contents.into_iter().collect()
}

impl Spelling<'_> {
    /// The arrays of other values; `None` if they cannot be made, or have other lengths or types.
    fn arrays(&self, values: Vec<f64>) -> Option<Vec<Array>> {
        let (matrix, truth) = (self.matrix, self.truth);
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
        let made = (self.make)(Arc::new(Csr::new(rows, cols, indptr, indices, values).ok()?))?;
        let same = made.len() == truth.len()
            && made.iter().zip(truth).all(|(made, truth)| {
                made.name == truth.name
                    && made.data.len() == truth.data.len()
                    && made.data.element() == truth.data.element()
            });
        same.then_some(made)
    }

    /// What each array holds that is a placement.
    fn placements(&self) -> Option<Vec<Option<Content>>> {
        let Self { matrix, dtype, truth, .. } = *self;
        let nnz = matrix.nnz();
        let base = base(dtype);
        let digit = |entry: usize, power: u32| digit(entry, base, power);
        let signed = |sign: f64| (0..nnz).map(|entry| sign * digit(entry, 0)).collect();
        // A place that follows a change of sign is a value's, and none by coincidence. This pass also tells a function of several
        // values from a placement.
        let negative = self.arrays(signed(-1.0))?;
        let first = self.arrays(signed(1.0))?;
        let pairs = negative.iter().zip(&first).zip(truth);
        let mut maps: Vec<Option<Vec<u32>>> = pairs
            .map(|((negative, first), truth)| {
                places(&negative.data, &first.data, &truth.data, dtype)
            })
            .collect();
        drop((negative, first));
        for power in (1..).take_while(|&power| base.pow(power) < nnz) {
            if maps.iter().all(Option::is_none) {
                break;
            }
            let made = self.arrays((0..nnz).map(|entry| digit(entry, power)).collect())?;
            for ((map, made), truth) in maps.iter_mut().zip(&made).zip(truth) {
                let weight = base.pow(power);
                *map = map.take().and_then(|mut map| {
                    add_digit(&mut map, &made.data, &truth.data, weight, dtype)?;
                    Some(map)
                });
            }
        }
        let contents = maps.into_iter().zip(truth).map(|(map, truth)| {
            if truth.name == EQUAL_VALUES {
                return Some(Content::Equality);
            }
            let map = map?;
            if map.par_iter().all(|&entry| entry == NO_ENTRY) {
                return Some(Content::Pattern);
            }
            let known = |&entry: &u32| entry == NO_ENTRY || (entry as usize) < nnz;
            if !map.par_iter().all(known) {
                return None;
            }
            let made = gathered(&truth.data, &map, matrix.values(), dtype)?;
            (made.bytes() == truth.data.bytes()).then_some(Content::Values { map })
        });
        Some(contents.collect())
    }
}

/// A digit of an entry's number, counted from 1.
fn digit(entry: usize, base: usize, power: u32) -> f64 {
    (entry / base.pow(power) % base + 1) as f64
}

/// The entry's last digit at each place that holds a value; [`NO_ENTRY`] at places that are the same for all values.
fn places(
    negative: &ArrayData,
    first: &ArrayData,
    truth: &ArrayData,
    dtype: Dtype,
) -> Option<Vec<u32>> {
    let place = |i: usize| {
        if bits(negative, i) == bits(first, i) {
            return (bits(first, i) == bits(truth, i)).then_some(NO_ENTRY);
        }
        let (negative, digit) = (number(negative, i, dtype)?, number(first, i, dtype)?);
        (negative == -digit).then_some(())?;
        spelled_digit(digit, base(dtype))
    };
    (0..truth.len()).into_par_iter().with_min_len(1 << 14).map(place).collect()
}

/// Adds a further digit to each entry; places without a value must not have changed.
fn add_digit(
    map: &mut [u32],
    made: &ArrayData,
    truth: &ArrayData,
    weight: usize,
    dtype: Dtype,
) -> Option<()> {
    map.par_iter_mut().with_min_len(1 << 14).enumerate().try_for_each(|(i, entry)| {
        if *entry == NO_ENTRY {
            return (bits(made, i) == bits(truth, i)).then_some(());
        }
        let digit = spelled_digit(number(made, i, dtype)?, base(dtype))? as usize;
        *entry = u32::try_from(*entry as usize + digit * weight).ok()?;
        Some(())
    })
}

/// The digit that a number spells, counted from 0.
fn spelled_digit(number: f64, base: usize) -> Option<u32> {
    let digit = number.fract() == 0.0 && (1.0..=base as f64).contains(&number);
    digit.then(|| number as u32 - 1)
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
        (ArrayData::Bf16(old), Dtype::Bf16) => {
            let of = |i: usize| value(i).map_or(old[i], crate::sparse::operand::bf16_bits);
            ArrayData::Bf16(all.map(of).collect::<Vec<_>>().into())
        }
        _ => return None,
    })
}

fn bits(array: &ArrayData, i: usize) -> u64 {
    match array {
        ArrayData::U16(data) | ArrayData::F16(data) | ArrayData::Bf16(data) => data[i].into(),
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
        (ArrayData::Bf16(data), Dtype::Bf16) => Some(bf16::from_bits(data[i]).to_f64()),
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
    fn packed(matrix: Arc<Csr>) -> Option<Vec<Array>> {
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
            let truth = packed(Arc::new(matrix.clone())).unwrap();
            let found = contents(&matrix, Dtype::F32, &truth, true, &packed).unwrap();
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
        let make = |matrix: Arc<Csr>| {
            let halves = matrix.values().iter().map(|&it| crate::sparse::operand::half_bits(it));
            Some(arrays(vec![ArrayData::F16(halves.collect::<Vec<_>>().into())]))
        };
        let truth = make(Arc::new(matrix.clone())).unwrap();
        let found = contents(&matrix, Dtype::F16, &truth, true, &make).unwrap();
        assert_eq!(found, [Content::Values { map: (0..3000).collect() }]);
        // Of bf16 those of a smaller base.
        let matrix = self::matrix(70_000);
        let make = |matrix: Arc<Csr>| {
            let brains = matrix.values().iter().map(|&it| crate::sparse::operand::bf16_bits(it));
            Some(arrays(vec![ArrayData::Bf16(brains.collect::<Vec<_>>().into())]))
        };
        let truth = make(Arc::new(matrix.clone())).unwrap();
        let found = contents(&matrix, Dtype::Bf16, &truth, true, &make).unwrap();
        assert_eq!(found, [Content::Values { map: (0..70_000).collect() }]);
    }

    #[test]
    fn other_functions_of_the_values_are_no_placements() {
        let matrix = matrix(1500);
        let sum = |factor: f64| {
            move |matrix: Arc<Csr>| {
                let values = matrix.values();
                let made = values.iter().map(|value| value * factor / values[0]);
                Some(arrays(vec![ArrayData::F64(made.collect::<Vec<_>>().into())]))
            }
        };
        for factor in [1.0, 2.0, -2.0] {
            let make = sum(factor);
            let truth = make(Arc::new(matrix.clone())).unwrap();
            assert_eq!(contents(&matrix, Dtype::F64, &truth, true, &make), None, "{factor}");
        }
        // Minus an entry over another that is not on the diagonal, and two entries over the diagonal's.
        let over = |numerator: fn(&[f64], usize) -> f64, divisor: usize| {
            move |matrix: Arc<Csr>| {
                let values = matrix.values();
                let made = (1..values.len()).map(|i| -numerator(values, i) / values[divisor]);
                Some(arrays(vec![ArrayData::F64(made.collect::<Vec<_>>().into())]))
            }
        };
        for make in [over(|values, i| values[i], 7), over(|values, i| values[i] + values[7], 0)] {
            let truth = make(Arc::new(matrix.clone())).unwrap();
            assert_eq!(contents(&matrix, Dtype::F64, &truth, true, &make), None);
        }
        // An array that depends on whether values are small.
        let make = |matrix: Arc<Csr>| {
            let small = matrix.values().iter().filter(|value| value.abs() < 4.0).count();
            Some(arrays(vec![ArrayData::U32(vec![small as u32].into())]))
        };
        let truth = make(Arc::new(matrix.clone())).unwrap();
        assert_eq!(contents(&matrix, Dtype::F32, &truth, true, &make), None);
    }
}
