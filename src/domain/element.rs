//! The types of elements of arrays in files.

use super::Dtype;
use serde::{Deserialize, Serialize};

/// The type of an element, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Element {
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Element {
    pub const fn name(self) -> &'static str {
        match self {
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    pub const fn bytes(self) -> u64 {
        match self {
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::F32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }

    /// The element of this name, as plans store it.
    pub fn named(name: &str) -> Option<Self> {
        [Self::U16, Self::U32, Self::U64, Self::F16, Self::Bf16, Self::F32, Self::F64]
            .into_iter()
            .find(|element| element.name() == name)
    }
}

impl From<Dtype> for Element {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::F32 => Self::F32,
            Dtype::F64 => Self::F64,
        }
    }
}
