//! The arrays as a manifest lists them, with or without the matrix's values.

use super::super::places::Content;
use super::super::tensors::Tensor;
use super::prepare::Prepared;
use super::{BuildError, Values};
use crate::domain::bundle::{BundleArray, NO_ENTRY, PlacedValues};
use crate::domain::element::Element;
use crate::domain::recipe::ArrayData;

/// The arrays as the manifest states them, and their tensors.
pub(super) fn tensors_of(
    prepared: &Prepared,
    values: Values,
) -> Result<(Vec<BundleArray>, Vec<Tensor<'_>>), BuildError> {
    let mut listed = Vec::with_capacity(prepared.arrays.len());
    let mut tensors = Vec::new();
    for (at, array) in prepared.arrays.iter().enumerate() {
        let (element, length) = (array.data.element(), array.data.len() as u64);
        let content = prepared.contents.as_ref().and_then(|contents| contents.get(at));
        let name = array.name.clone();
        let (map, divisors) = match content {
            Some(Content::Values { map }) => (map, None),
            Some(Content::Quotients { map, divisors }) => (map, Some(divisors)),
            Some(Content::Pattern | Content::Equality) | None => {
                let equality = content == Some(&Content::Equality);
                // Of values that are left out nothing is known.
                let bytes = match equality && values == Values::External {
                    true => vec![0; array.data.bytes().len()].into(),
                    false => array.data.bytes().into(),
                };
                tensors.push(Tensor { name: name.clone(), element, bytes });
                let (included, values) = (true, None);
                listed.push(BundleArray { name, element, length, included, values, equality });
                continue;
            }
        };
        let identity = divisors.is_none()
            && map.len() == prepared.nnz
            && map.iter().enumerate().all(|(i, &entry)| i == entry as usize);
        let bare = values == Values::External;
        // A place without a value must be zero, or the array cannot be left out as a whole.
        let included = !bare || !holes_are_zero(&array.data, map);
        if included {
            let bytes = match bare {
                true => without_values(&array.data, map).into(),
                false => array.data.bytes().into(),
            };
            tensors.push(Tensor { name: name.clone(), element, bytes });
        }
        let map_name = (!identity).then(|| format!("map.{name}"));
        if let Some(name) = &map_name {
            tensors.push(Tensor::of(name, Element::U32, map));
        }
        let divisors = divisors.map(|divisors| {
            let name = format!("divisors.{name}");
            tensors.push(Tensor::of(&name, Element::U32, divisors));
            name
        });
        let values = Some(PlacedValues { map: map_name, divisors });
        let equality = false;
        listed.push(BundleArray { name, element, length, included, values, equality });
    }
    // A loader sees by the arrays that were left out that values are missing.
    let holds_values = listed.iter().any(|array| array.values.is_some());
    let none_left_out = listed.iter().all(|array| array.included);
    let mixed = holds_values && none_left_out;
    if values == Values::External && (mixed || prepared.contents.is_none()) {
        return Err(BuildError::ValuesNeeded);
    }
    Ok((listed, tensors))
}

fn holes_are_zero(data: &ArrayData, map: &[u32]) -> bool {
    let size = data.element().bytes() as usize;
    let places = data.bytes().chunks_exact(size).zip(map);
    places.filter(|(_, entry)| **entry == NO_ENTRY).all(|(place, _)| place.iter().all(|&b| b == 0))
}

fn without_values(data: &ArrayData, map: &[u32]) -> Vec<u8> {
    let size = data.element().bytes() as usize;
    let mut bytes = data.bytes().to_vec();
    let places = bytes.chunks_exact_mut(size).zip(map);
    places.filter(|(_, entry)| **entry != NO_ENTRY).for_each(|(place, _)| place.fill(0));
    bytes
}
