//! Values of the matrix as the bits of the plan's element type, and the gather of them on the host.

use super::super::context::{Buffer, Plain};
use super::super::launch::refused;
use crate::domain::bundle::ONE;
use crate::domain::element::Element;
use crate::engine::EngineError;
use crate::sparse::operand::{bf16_bits, half_bits};
use cudarc::driver::sys::CUstream;
use rayon::prelude::*;

/// Bits of elements, by their width.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bits {
    W16(Vec<u16>),
    W32(Vec<u32>),
    W64(Vec<u64>),
}

impl Bits {
    /// Rounds values to a type; refuses those that it cannot hold.
    pub(super) fn rounded(values: &[f64], element: Element) -> Result<Self, EngineError> {
        let fits = |value: f64| match element {
            // All exponent bits: infinite, or not a number.
            Element::F16 => half_bits(value) & 0x7c00 != 0x7c00,
            Element::Bf16 => bf16_bits(value) & 0x7f80 != 0x7f80,
            Element::F32 => (value as f32).is_finite(),
            _ => value.is_finite(),
        };
        if let Some(at) = values.par_iter().position_first(|&value| !fits(value)) {
            return Err(refused(format!(
                "The value {} of entry {at} is out of the range of {}.",
                values[at],
                element.name()
            )));
        }
        Ok(match element {
            Element::F16 => Self::W16(values.par_iter().map(|&value| half_bits(value)).collect()),
            Element::Bf16 => Self::W16(values.par_iter().map(|&value| bf16_bits(value)).collect()),
            Element::F32 => {
                Self::W32(values.par_iter().map(|&value| (value as f32).to_bits()).collect())
            }
            Element::F64 => Self::W64(values.par_iter().map(|value| value.to_bits()).collect()),
            Element::U16 | Element::U32 | Element::U64 => {
                return Err(refused(format!("values of the type {}", element.name())));
            }
        })
    }

    /// Reads the first `count` elements of device memory, once all work of the context is done.
    pub(super) fn read(
        buffer: &Buffer,
        element: Element,
        count: usize,
    ) -> Result<Self, EngineError> {
        fn filled<T: Plain + Default>(
            buffer: &Buffer,
            count: usize,
        ) -> Result<Vec<T>, EngineError> {
            let mut words = vec![T::default(); count];
            buffer.read(0, &mut words)?;
            Ok(words)
        }
        Ok(match element.bytes() {
            2 => Self::W16(filled(buffer, count)?),
            4 => Self::W32(filled(buffer, count)?),
            _ => Self::W64(filled(buffer, count)?),
        })
    }

    /// The bits of little-endian elements.
    pub(super) fn of(bytes: &[u8], element: Element) -> Self {
        match element.bytes() {
            2 => Self::W16(bytemuck::pod_collect_to_vec(bytes)),
            4 => Self::W32(bytemuck::pod_collect_to_vec(bytes)),
            _ => Self::W64(bytemuck::pod_collect_to_vec(bytes)),
        }
    }

    pub(super) fn zeros(length: usize, element: Element) -> Self {
        match element.bytes() {
            2 => Self::W16(vec![0; length]),
            4 => Self::W32(vec![0; length]),
            _ => Self::W64(vec![0; length]),
        }
    }

    /// The values at the places of an array; `kept` where no value stands. Both have the same width, which is checked when
    /// the array is uploaded.
    pub(super) fn gathered(&self, map: &[u32], kept: &Self) -> Self {
        fn at<T: Copy + Send + Sync>(values: &[T], map: &[u32], kept: &[T]) -> Vec<T> {
            let places = map.par_iter().zip(kept);
            places
                .map(|(&entry, &kept)| values.get(entry as usize).copied().unwrap_or(kept))
                .collect()
        }
        match (self, kept) {
            (Self::W16(values), Self::W16(kept)) => Self::W16(at(values, map, kept)),
            (Self::W32(values), Self::W32(kept)) => Self::W32(at(values, map, kept)),
            (Self::W64(values), Self::W64(kept)) => Self::W64(at(values, map, kept)),
            _ => kept.clone(),
        }
    }

    /// Whether all are the same, and there are any.
    pub(super) fn are_equal(&self) -> bool {
        fn same<T: PartialEq + Sync>(words: &[T]) -> bool {
            words.first().is_some_and(|first| words.par_iter().all(|word| word == first))
        }
        match self {
            Self::W16(words) => same(words),
            Self::W32(words) => same(words),
            Self::W64(words) => same(words),
        }
    }

    /// Copies the bits to the start of a buffer, in the stream's order.
    pub(super) fn write(&self, buffer: &Buffer, stream: CUstream) -> Result<(), EngineError> {
        match self {
            Self::W16(words) => buffer.write_on(stream, words),
            Self::W32(words) => buffer.write_on(stream, words),
            Self::W64(words) => buffer.write_on(stream, words),
        }
    }

    /// The numbers that they are in a type.
    pub(super) fn numbers(&self, element: Element) -> Vec<f64> {
        match self {
            Self::W16(words) if element == Element::Bf16 => {
                words.par_iter().map(|&word| half::bf16::from_bits(word).to_f64()).collect()
            }
            Self::W16(words) => {
                words.par_iter().map(|&word| half::f16::from_bits(word).to_f64()).collect()
            }
            Self::W32(words) => {
                words.par_iter().map(|&word| f64::from(f32::from_bits(word))).collect()
            }
            Self::W64(words) => words.par_iter().map(|&word| f64::from_bits(word)).collect(),
        }
    }

    /// As they lie in memory.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::W16(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Self::W32(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            Self::W64(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }
}

/// The entries of a map, from its bytes; refuses entries that the matrix does not have, but for `NO_ENTRY` and `ONE`.
pub(super) fn map_entries(
    name: &str,
    bytes: &[u8],
    places: u64,
    entries: u64,
) -> Result<Vec<u32>, EngineError> {
    if bytes.len() as u64 != places.saturating_mul(4) {
        let length = bytes.len();
        let words = format!("The map `{name}` has {length} bytes, not 4 for each of {places}.");
        return Err(refused(words));
    }
    let map: Vec<u32> = words(bytes);
    let foreign = |&entry: &u32| entry < ONE && u64::from(entry) >= entries;
    if let Some(at) = map.par_iter().position_first(foreign) {
        return Err(refused(format!(
            "The map `{name}` names entry {} at place {at}; the matrix has {entries}.",
            map[at]
        )));
    }
    Ok(map)
}

/// 32-bit words from little-endian bytes.
pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    bytes.chunks_exact(4).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::bundle::NO_ENTRY;

    #[test]
    fn values_are_rounded_as_the_engine_rounds_them() {
        let values = [1.0, -0.1, 65504.0];
        let half = Bits::rounded(&values, Element::F16).unwrap();
        assert_eq!(half, Bits::W16(values.map(half_bits).to_vec()));
        let brain = Bits::rounded(&values, Element::Bf16).unwrap();
        assert_eq!(brain, Bits::W16(values.map(bf16_bits).to_vec()));
        let single = Bits::rounded(&values, Element::F32).unwrap();
        assert_eq!(single, Bits::W32(values.map(|value| (value as f32).to_bits()).to_vec()));
        assert_eq!(single.bytes()[..4], [0, 0, 0x80, 0x3f]);
        let double = Bits::rounded(&values, Element::F64).unwrap();
        assert_eq!(double, Bits::W64(values.map(f64::to_bits).to_vec()));
    }

    #[test]
    fn values_out_of_range_are_refused_by_their_entry() {
        let why = |values: &[f64], element| Bits::rounded(values, element).unwrap_err().to_string();
        let words = "The value 65520 of entry 1 is out of the range of f16.";
        assert_eq!(why(&[1.0, 65520.0], Element::F16), words);
        assert!(Bits::rounded(&[1.0, 65520.0], Element::Bf16).is_ok());
        assert!(why(&[3.4e38], Element::Bf16).ends_with("out of the range of bf16."));
        assert!(why(&[-1e39], Element::F32).contains("of entry 0 is out of the range of f32"));
        assert!(why(&[0.0, 0.0, f64::NAN], Element::F64).contains("of entry 2"));
        assert!(why(&[f64::INFINITY], Element::F64).contains("of entry 0"));
        assert!(why(&[1.0], Element::U32).contains("type u32"));
    }

    #[test]
    fn a_map_gathers_and_leaves_what_is_no_value() {
        let map: Vec<u8> = [2u32, NO_ENTRY, 0].iter().flat_map(|e| e.to_le_bytes()).collect();
        let map = map_entries("values.map", &map, 3, 3).unwrap();
        let half = Bits::W16(vec![7, 8, 9]).gathered(&map, &Bits::zeros(3, Element::F16));
        assert_eq!(half, Bits::W16(vec![9, 0, 7]));
        // Words in which columns stand between the values.
        let kept = Bits::of(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], Element::U32);
        assert_eq!(Bits::W32(vec![7, 8, 9]).gathered(&map, &kept), Bits::W32(vec![9, 2, 7]));
    }

    #[test]
    fn maps_of_another_matrix_are_refused() {
        let why =
            |bytes: &[u8], entries| map_entries("m", bytes, 1, entries).unwrap_err().to_string();
        assert_eq!(why(&[0; 3], 1), "The map `m` has 3 bytes, not 4 for each of 1.");
        let words = "The map `m` names entry 5 at place 0; the matrix has 5.";
        assert_eq!(why(&[5, 0, 0, 0], 5), words);
    }
}
