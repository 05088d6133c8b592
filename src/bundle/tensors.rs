//! The tensors of a member: the safetensors format, whose header is JSON and whose data hold no code.

use crate::domain::element::Element;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView, serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Longest header that is read, in bytes: it has some hundred bytes for each tensor.
pub const MOST_HEADER: usize = 1 << 20;

/// One tensor of one dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub name: String,
    pub element: Element,
    pub bytes: std::borrow::Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    /// The bytes of a slice of numbers; every supported host is little-endian.
    pub fn of<T: bytemuck::NoUninit>(name: &str, element: Element, numbers: &'a [T]) -> Self {
        let bytes = bytemuck::cast_slice(numbers).into();
        Self { name: name.to_owned(), element, bytes }
    }
}

/// The file of some tensors: equal tensors give equal bytes, in any order.
///
/// # Errors
/// A tensor's bytes are not a whole number of elements.
pub fn write(tensors: &[Tensor<'_>]) -> Result<Vec<u8>, SafeTensorError> {
    let views = tensors.iter().map(|tensor| {
        let length = tensor.bytes.len() / tensor.element.bytes() as usize;
        TensorView::new(dtype(tensor.element), vec![length], &tensor.bytes)
            .map(|view| (tensor.name.as_str(), view))
    });
    serialize(views.collect::<Result<Vec<_>, _>>()?, None)
}

/// Name, element type and place of each tensor, counted from the beginning of the file.
///
/// # Errors
/// The file is not safetensors, or has a tensor of another type or of several dimensions.
pub fn read(file: &[u8]) -> Result<BTreeMap<String, (Element, Range<usize>)>, String> {
    let told = file.first_chunk().map_or(0, |told| u64::from_le_bytes(*told));
    if told > MOST_HEADER as u64 {
        return Err(format!("its header has {told} bytes; at most {MOST_HEADER} are read"));
    }
    let (header, _) = SafeTensors::read_metadata(file).map_err(|error| error.to_string())?;
    let tensors = SafeTensors::deserialize(file).map_err(|error| error.to_string())?;
    let first = header + 8;
    let mut places = BTreeMap::new();
    for (name, view) in tensors.iter() {
        let element = element(view.dtype())
            .ok_or_else(|| format!("tensor `{name}` has the element type {:?}", view.dtype()))?;
        if view.shape().len() != 1 {
            return Err(format!("tensor `{name}` has {} dimensions, not 1", view.shape().len()));
        }
        let data = view.data();
        let start = data.as_ptr().addr() - file.as_ptr().addr();
        if start < first && !data.is_empty() {
            return Err(format!("tensor `{name}` lies in the header"));
        }
        places.insert(name.to_owned(), (element, start..start + data.len()));
    }
    Ok(places)
}

fn dtype(element: Element) -> Dtype {
    match element {
        Element::U16 => Dtype::U16,
        Element::U32 => Dtype::U32,
        Element::U64 => Dtype::U64,
        Element::F16 => Dtype::F16,
        Element::Bf16 => Dtype::BF16,
        Element::F32 => Dtype::F32,
        Element::F64 => Dtype::F64,
    }
}

fn element(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::U16 => Element::U16,
        Dtype::U32 => Element::U32,
        Dtype::U64 => Element::U64,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_in_place_and_the_order_does_not_matter() {
        let numbers = [1.5f64, -2.0];
        let tensors = [
            Tensor::of("short", Element::U16, &[7u16, 8, 9]),
            Tensor::of("wide", Element::F64, &numbers),
            Tensor::of("none", Element::U32, &[0u32; 0]),
        ];
        let file = write(&tensors).unwrap();
        let [short, wide, none] = tensors.clone();
        assert_eq!(file, write(&[none, wide, short]).unwrap());
        let places = read(&file).unwrap();
        for tensor in &tensors {
            let (element, place) = places[&tensor.name].clone();
            assert_eq!((element, &file[place]), (tensor.element, &tensor.bytes[..]));
        }
        // Elements are aligned to their size, so that a mapped file can be read in place.
        assert!(places["wide"].1.start.is_multiple_of(8));
    }

    #[test]
    fn what_is_no_safetensors_is_refused() {
        assert!(read(b"").is_err());
        assert!(read(&u64::MAX.to_le_bytes()).is_err());
        let file = write(&[Tensor::of("a", Element::U32, &[1u32, 2])]).unwrap();
        assert!(read(&file[..file.len() - 1]).is_err());
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x15;
            let _ = read(&damaged);
        }
    }
}
