//! Where arrays hold the coefficients of the equations `x = b / d - sum (a / d) x`: quotients of an entry and its row's diagonal.

use super::{Content, Spelling, bits, digit, number, spelled_digit};
use crate::domain::Dtype;
use crate::domain::bundle::{NO_ENTRY, ONE};
use crate::domain::recipe::{Array, ArrayData};
use rayon::prelude::*;

/// Numbers that one pass spells; the reciprocals of all of them are different in the type.
const fn base(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(1 << 20),
        Dtype::F32 => Some(1 << 11),
        Dtype::F16 | Dtype::Bf16 => None,
    }
}

/// Where an array has its numerators and divisors, as far as they have been read.
struct Places {
    map: Vec<u32>,
    divisors: Vec<u32>,
}

/// What is at one place: digits of the numbers of its entries, or what a map has for none.
type Place = (u32, u32);

/// One array in two passes, of which the second has the other sign in what it spells.
struct Pass<'a> {
    minus: &'a ArrayData,
    plus: &'a ArrayData,
}

impl<'a> Pass<'a> {
    fn of([minus, plus]: &'a [Vec<Array>; 2], at: usize) -> Self {
        Self { minus: &minus[at].data, plus: &plus[at].data }
    }
}

/// Fills in the contents that are missing. `None`: one of these arrays is another function of the values.
///
/// Entries outside of the diagonal are spelled while those on it are 1, which tells the numerators, and those on it while all others
/// are 1, which tells the divisors.
pub(super) fn find(spelling: &Spelling<'_>, contents: &mut [Option<Content>]) -> Option<()> {
    let Spelling { matrix, dtype, truth, .. } = *spelling;
    let (nnz, base) = (matrix.nnz(), base(dtype)?);
    let mut on_diagonal = Vec::with_capacity(nnz);
    for row in 0..matrix.rows() {
        on_diagonal.extend(matrix.row(row).0.iter().map(|&col| col as usize == row));
    }
    let spelled = |spells_diagonal: bool, power: u32, sign: f64| {
        let value = |entry: usize| match on_diagonal[entry] == spells_diagonal {
            true => sign * digit(entry, base, power),
            false => 1.0,
        };
        spelling.arrays((0..nnz).map(value).collect())
    };
    let numerators = [spelled(false, 0, -1.0)?, spelled(false, 0, 1.0)?];
    let divisors = [spelled(true, 0, -1.0)?, spelled(true, 0, 1.0)?];
    let mut all: Vec<Option<Places>> = Vec::with_capacity(truth.len());
    for (at, (known, truth)) in contents.iter().zip(truth).enumerate() {
        if known.is_some() {
            all.push(None);
            continue;
        }
        let (above, below) = (Pass::of(&numerators, at), Pass::of(&divisors, at));
        let place = |i| place(&above, &below, &truth.data, i, (base, dtype));
        let places = (0..truth.data.len()).into_par_iter().with_min_len(1 << 14).map(place);
        let (map, divisors) =
            places.collect::<Option<Vec<Place>>>()?.into_par_iter().with_min_len(1 << 14).unzip();
        all.push(Some(Places { map, divisors }));
    }
    drop((numerators, divisors));
    for power in (1..).take_while(|&power| base.pow(power) < nnz) {
        for spells_diagonal in [false, true] {
            let made = spelled(spells_diagonal, power, 1.0)?;
            let unread = all.iter_mut().zip(&made).filter_map(|(places, made)| {
                places.as_mut().map(|Places { map, divisors }| match spells_diagonal {
                    false => (map, made),
                    true => (divisors, made),
                })
            });
            for (entries, made) in unread {
                let further = |(i, entry): (usize, &mut u32)| {
                    if *entry >= ONE {
                        return Some(());
                    }
                    let found = number(&made.data, i, dtype)?.abs();
                    let digit = if spells_diagonal { reciprocal(found, dtype)? } else { found };
                    let digit = spelled_digit(digit, base)? as usize;
                    *entry = u32::try_from(*entry as usize + digit * base.pow(power)).ok()?;
                    Some(())
                };
                let each = entries.par_iter_mut().with_min_len(1 << 14).enumerate();
                each.map(further).collect::<Option<()>>()?;
            }
        }
    }
    for ((content, places), truth) in contents.iter_mut().zip(all).zip(truth) {
        let Some(Places { map, divisors }) = places else { continue };
        let made = divided(&truth.data, &map, &divisors, matrix.values())?;
        // Whatever was misread gives other bits.
        (made.bytes() == truth.data.bytes()).then_some(())?;
        *content = Some(Content::Quotients { map, divisors });
    }
    Some(())
}

/// What is at a place of an array.
fn place(
    above: &Pass<'_>,
    below: &Pass<'_>,
    truth: &ArrayData,
    at: usize,
    (base, dtype): (usize, Dtype),
) -> Option<Place> {
    let follows = |pass: &Pass<'_>| bits(pass.minus, at) != bits(pass.plus, at);
    let signed = |pass: &Pass<'_>| {
        let (minus, plus) = (number(pass.minus, at, dtype)?, number(pass.plus, at, dtype)?);
        (minus == -plus).then_some(plus)
    };
    let divisor = |sign: f64| spelled_digit(reciprocal(sign * signed(below)?, dtype)?, base);
    match (follows(above), follows(below)) {
        (false, false) => (bits(above.plus, at) == bits(truth, at)).then_some((NO_ENTRY, NO_ENTRY)),
        (true, false) => Some((spelled_digit(-signed(above)?, base)?, NO_ENTRY)),
        (false, true) => Some((ONE, divisor(1.0)?)),
        (true, true) => Some((spelled_digit(-signed(above)?, base)?, divisor(-1.0)?)),
    }
}

/// The whole number whose rounded reciprocal this is.
fn reciprocal(number: f64, dtype: Dtype) -> Option<f64> {
    let whole = (1.0 / number).round();
    let rounded = match dtype {
        Dtype::F64 => 1.0 / whole,
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => f64::from((1.0 / whole) as f32),
    };
    (rounded == number).then_some(whole)
}

/// An array with quotients of the values in their places, each rounded once; `None` if it is of another type than such arrays have.
pub fn divided(
    array: &ArrayData,
    map: &[u32],
    divisors: &[u32],
    values: &[f64],
) -> Option<ArrayData> {
    let single = matches!(array, ArrayData::F32(_));
    let value = |entry: u32| {
        let value = values.get(entry as usize).copied();
        value.map(|value| if single { f64::from(value as f32) } else { value })
    };
    let quotient = |i: usize| {
        let above = match map[i] {
            ONE => 1.0,
            entry => -value(entry)?,
        };
        Some(value(divisors[i]).map_or(above, |below| above / below))
    };
    let all = (0..array.len()).into_par_iter().with_min_len(1 << 14);
    match array {
        ArrayData::F64(old) => {
            let made: Vec<f64> = all.map(|i| quotient(i).unwrap_or(old[i])).collect();
            Some(ArrayData::F64(made.into()))
        }
        ArrayData::F32(old) => {
            let of = |i: usize| quotient(i).map_or(old[i], |quotient| quotient as f32);
            let made: Vec<f32> = all.map(of).collect();
            Some(ArrayData::F32(made.into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::contents;
    use super::*;
    use crate::sparse::Csr;
    use std::sync::Arc;

    /// A lower triangle with `per_row` entries left of each diagonal entry at most.
    fn triangle(rows: usize, per_row: usize) -> Csr {
        let mut indptr = vec![0];
        let mut indices: Vec<u32> = Vec::new();
        for row in 0..rows {
            indices.extend(row.saturating_sub(per_row) as u32..=row as u32);
            indptr.push(indices.len());
        }
        let values = (0..indices.len()).map(|i| (i as f64 * 0.7).sin() + 2.5).collect();
        Csr::new(rows, rows, indptr, indices, values).unwrap()
    }

    /// Coefficients row by row, each row after 1 over its diagonal entry and a constant.
    fn packed(matrix: &Csr, single: bool, unit: bool) -> Option<Vec<Array>> {
        let mut made = Vec::new();
        for row in 0..matrix.rows() {
            let (_, values) = matrix.row(row);
            let rounded = |value: f64| if single { f64::from(value as f32) } else { value };
            let (&diagonal, others) = values.split_last()?;
            let diagonal = if unit { 1.0 } else { rounded(diagonal) };
            made.extend([1.0 / diagonal, 1.0]);
            made.extend(others.iter().map(|&value| -rounded(value) / diagonal));
        }
        let data = match single {
            true => ArrayData::F32(made.iter().map(|&it| it as f32).collect()),
            false => ArrayData::F64(made.into()),
        };
        Some(vec![Array { name: "coefficients".to_owned(), data }])
    }

    #[test]
    fn numerators_and_divisors_are_read_off() {
        // More entries than one pass spells in f32.
        for (rows, per_row) in [(1, 0), (40, 3), (1500, 2)] {
            let matrix = triangle(rows, per_row);
            for (single, unit) in [(false, false), (true, false), (false, true), (true, true)] {
                let dtype = if single { Dtype::F32 } else { Dtype::F64 };
                let make = |matrix: Arc<Csr>| packed(&matrix, single, unit);
                let truth = make(Arc::new(matrix.clone())).unwrap();
                let found = contents(&matrix, dtype, &truth, true, &make).unwrap();
                let [Content::Quotients { map, divisors }] = &found[..] else {
                    assert!(unit && per_row == 0 && found == [Content::Pattern], "{found:?}");
                    continue;
                };
                let mut expected = Vec::new();
                for row in 0..rows {
                    let (first, last) =
                        (matrix.indptr()[row] as u32, matrix.indptr()[row + 1] as u32 - 1);
                    let below = if unit { NO_ENTRY } else { last };
                    expected
                        .extend([(if unit { NO_ENTRY } else { ONE }, below), (NO_ENTRY, NO_ENTRY)]);
                    expected.extend((first..last).map(|entry| (entry, below)));
                }
                let found: Vec<Place> = map.iter().copied().zip(divisors.iter().copied()).collect();
                assert_eq!(found, expected, "{rows} {single} {unit}");
            }
        }
    }

    #[test]
    fn quotients_are_rounded_once_and_constants_stay() {
        let values = [3.0, 0.1, 7.0];
        let (map, divisors) = ([1, ONE, 2, NO_ENTRY], [0, 0, NO_ENTRY, NO_ENTRY]);
        let made = divided(&ArrayData::F64([9.0; 4].into()), &map, &divisors, &values);
        assert_eq!(made, Some(ArrayData::F64([-0.1 / 3.0, 1.0 / 3.0, -7.0, 9.0].into())));
        let made = divided(&ArrayData::F32([9.0; 4].into()), &map, &divisors, &values);
        let first = (-f64::from(0.1_f32) / 3.0) as f32;
        assert_eq!(made, Some(ArrayData::F32([first, (1.0 / 3.0) as f32, -7.0, 9.0].into())));
        assert_eq!(divided(&ArrayData::U32([9; 4].into()), &map, &divisors, &values), None);
    }
}
