//! Whether an array is as the plan needs it: its bytes, its type, its values.

use super::super::super::launch::refused;
use crate::domain::bundle::BundleArray;
use crate::domain::element::Element;
use crate::engine::EngineError;

/// Bytes of an array; refuses one whose data is missing or of another length, or whose values are of another type.
pub(super) fn check_array(
    array: &BundleArray,
    data: Option<&[u8]>,
    entries: usize,
    element: Element,
) -> Result<usize, EngineError> {
    let name = &array.name;
    let bytes = array.length.checked_mul(array.element.bytes());
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes
        .ok_or_else(|| refused(format!("The array `{name}` has {} elements.", array.length)))?;
    if let Some(data) = data
        && data.len() != bytes
    {
        return Err(refused(format!("The array `{name}` has {} bytes, not {bytes}.", data.len())));
    }
    let is_word = array.element == Element::U32 && array.length == 1;
    if array.equality && !(is_word && array.values.is_none()) {
        return Err(refused(format!(
            "The array `{name}` is no word that says whether values are equal."
        )));
    }
    let Some(placed) = &array.values else {
        return match data {
            Some(_) => Ok(bytes),
            None => Err(refused(format!("The array `{name}` is missing."))),
        };
    };
    // Words that hold columns and values alike.
    let in_words =
        array.element == Element::U32 && element == Element::F32 && placed.divisors.is_none();
    if array.element != element && !in_words {
        return Err(refused(format!(
            "The array `{name}` holds values as {}, but the problem is in {}.",
            array.element.name(),
            element.name()
        )));
    }
    if placed.map.is_none() && array.length != entries as u64 {
        return Err(refused(format!(
            "The array `{name}` has {} places for the matrix's {entries} values.",
            array.length
        )));
    }
    if data.is_none() && array.included {
        return Err(refused(format!("The array `{name}` is missing.")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::bundle::PlacedValues;

    fn array(element: Element, length: u64, values: Option<PlacedValues>) -> BundleArray {
        let (name, included, equality) = ("a".to_owned(), true, false);
        BundleArray { name, element, length, included, values, equality }
    }

    fn why(array: &BundleArray, data: Option<&[u8]>) -> String {
        check_array(array, data, 3, Element::F32).unwrap_err().to_string()
    }

    #[test]
    fn arrays_of_another_length_or_type_are_refused() {
        let plain = array(Element::U32, 2, None);
        assert_eq!(check_array(&plain, Some(&[0; 8]), 3, Element::F32), Ok(8));
        assert_eq!(why(&plain, Some(&[0; 7])), "The array `a` has 7 bytes, not 8.");
        assert_eq!(why(&plain, None), "The array `a` is missing.");
        let huge = array(Element::F64, 1 << 62, None);
        assert_eq!(why(&huge, None), format!("The array `a` has {} elements.", 1u64 << 62));
        let values = array(Element::F64, 3, Some(PlacedValues { map: None, divisors: None }));
        let words = "The array `a` holds values as f64, but the problem is in f32.";
        assert_eq!(why(&values, Some(&[0; 24])), words);
        let words = array(Element::U32, 3, Some(PlacedValues { map: None, divisors: None }));
        assert_eq!(check_array(&words, Some(&[0; 12]), 3, Element::F32), Ok(12));
        assert!(check_array(&words, Some(&[0; 12]), 3, Element::F64).is_err());
        let values = array(Element::F32, 4, Some(PlacedValues { map: None, divisors: None }));
        let words = "The array `a` has 4 places for the matrix's 3 values.";
        assert_eq!(why(&values, Some(&[0; 16])), words);
    }

    #[test]
    fn values_may_be_left_out_but_only_where_the_manifest_says_so() {
        let placed = Some(PlacedValues { map: None, divisors: None });
        let left_out = BundleArray { included: false, ..array(Element::F32, 3, placed) };
        assert_eq!(check_array(&left_out, None, 3, Element::F32), Ok(12));
        let promised = BundleArray { included: true, ..left_out };
        assert_eq!(why(&promised, None), "The array `a` is missing.");
        let word = BundleArray { equality: true, ..array(Element::U32, 1, None) };
        assert_eq!(check_array(&word, Some(&[0; 4]), 3, Element::F32), Ok(4));
        assert_eq!(why(&word, None), "The array `a` is missing.");
        let words = "The array `a` is no word that says whether values are equal.";
        let two = BundleArray { length: 2, ..word.clone() };
        assert_eq!(why(&two, Some(&[0; 8])), words);
        let float = BundleArray { element: Element::F32, ..word.clone() };
        assert_eq!(why(&float, Some(&[0; 4])), words);
        let values =
            BundleArray { values: Some(PlacedValues { map: None, divisors: None }), ..word };
        assert_eq!(why(&values, Some(&[0; 4])), words);
        let index = BundleArray { included: false, ..array(Element::U32, 3, None) };
        assert_eq!(why(&index, None), "The array `a` is missing.");
    }
}
