//! Kernel arguments from the names that plans store to the roles that manifests state.

use super::operand::{COL_IDX, DIAGONAL, ROW_PTR, VALUES};
use crate::domain::Dtype;
use crate::domain::bundle::Argument;
use crate::domain::element::Element;

/// The argument that a plan names so; `None` for a name that no version of this program has given to any.
pub fn argument(name: &str, dtype: Dtype) -> Option<Argument> {
    let array = |name: &str| Argument::Array { name: name.to_owned() };
    if let Some((kind, value)) = name.split_once(':') {
        return Some(match kind {
            "array" => array(value),
            "scratch" => Argument::Scratch { index: value.parse().ok()? },
            "turn" => {
                let (even, odd) = value.split_once(',')?;
                Argument::Turn { even: even.parse().ok()?, odd: odd.parse().ok()? }
            }
            "u32" => Argument::U32 { value: value.parse().ok()? },
            "u64" => Argument::U64 { value: value.parse().ok()? },
            "f32" => Argument::F32 { value: value.parse().ok().filter(|it: &f32| it.is_finite())? },
            _ => return None,
        });
    }
    let factor = if dtype == Dtype::F64 { Element::F64 } else { Element::F32 };
    Some(match name {
        ROW_PTR | COL_IDX | VALUES | DIAGONAL => array(name),
        "b" => Argument::B,
        "c" => Argument::C,
        "epoch" => Argument::Epoch,
        "deadline_ns" => Argument::MaxWaitNs,
        "status" => Argument::Status,
        "alpha" => Argument::Alpha { element: factor },
        "beta" => Argument::Beta { element: factor },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_become_roles() {
        let of = |name: &str| argument(name, Dtype::F16);
        let array = |name: &str| Some(Argument::Array { name: name.to_owned() });
        assert_eq!(of("row_ptr"), array("row_ptr"));
        assert_eq!(of("array:slices_meta_1"), array("slices_meta_1"));
        assert_eq!(of("turn:2,3"), Some(Argument::Turn { even: 2, odd: 3 }));
        assert_eq!(of("u64:18446744073709551615"), Some(Argument::U64 { value: u64::MAX }));
        assert_eq!(of("f32:-0.5"), Some(Argument::F32 { value: -0.5 }));
        assert_eq!(of("alpha"), Some(Argument::Alpha { element: Element::F32 }));
        assert_eq!(argument("beta", Dtype::F64), Some(Argument::Beta { element: Element::F64 }));
        for unknown in ["", "x", "u32:-1", "u32:", "turn:1", "f32:NaN", "array", "u8:1"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }
}
