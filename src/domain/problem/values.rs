//! The named values that problems are made of, and how fields of a description become them.

use crate::domain::catalog::operation::Value;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An enum of named values that problems are made of.
macro_rules! named_values {
    ($($(#[$about:meta])* $type:ident { $($(#[$note:meta])* $variant:ident = $name:literal,)+ })+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $type {
            $($(#[$note])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::Choice(value.name())
            }
        }

        impl TryFrom<Value> for $type {
            type Error = WrongKind;

            fn try_from(value: Value) -> Result<Self, WrongKind> {
                match value {
                    $(Value::Choice($name) => Ok(Self::$variant),)+
                    _ => Err(WrongKind),
                }
            }
        }
    )+};
}

named_values! {
    /// Element type of the dense operands and of A's values on the device.
    #[derive(Default)]
    Dtype {
        #[default]
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
        F64 = "f64",
    }

    /// Storage order of a dense matrix; leading dimensions are tight.
    #[derive(Default)]
    Layout {
        #[default]
        Row = "row",
        Col = "col",
    }

    /// In which sense a triangular solve has to be stable.
    #[derive(Default)]
    Stability {
        /// Several rows at a time: equations may be rewritten within windows of levels, where coefficients stay small or the solution is
        /// refined.
        #[default]
        Windowed = "windowed",
        /// Each row for itself, as substitution is: no equation is rewritten.
        RowWise = "row_wise",
    }

    /// Element type of C.
    #[derive(Default)]
    Output {
        /// That of A and B.
        #[default]
        Same = "same",
        /// f32, in which products of f16 and bf16 are summed: C is not rounded again.
        F32 = "f32",
    }

    Triangle {
        Lower = "lower",
        Upper = "upper",
        /// Both, one solve after the other ([`super::Problem::parts`]): a question that is answered by two plans. No plan is of it.
        Both = "both",
    }

    Diagonal {
        Unit = "unit",
        NonUnit = "non-unit",
    }

    /// Whether the L2 cache keeps the operands between two timed calls; part of the plan key.
    #[derive(Default)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    L2Policy {
        /// Calls follow each other on the same buffers.
        #[default]
        Warm = "warm",
        /// The cache is swept before each timed call.
        Cold = "cold",
    }
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Whether an element has 16 bits: such types are multiplied on GPUs alone, and their sums are f32.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// The type in which products of such elements are summed, which is that of alpha and beta too.
    pub const fn sums(self) -> Self {
        match self {
            Self::F16 | Self::Bf16 | Self::F32 => Self::F32,
            Self::F64 => Self::F64,
        }
    }
}

/// A value that is not of the kind that a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongKind;

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Integer(value)
    }
}

impl TryFrom<Value> for u32 {
    type Error = WrongKind;

    fn try_from(value: Value) -> Result<Self, WrongKind> {
        let Value::Integer(value) = value else { return Err(WrongKind) };
        Ok(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl TryFrom<Value> for bool {
    type Error = WrongKind;

    fn try_from(value: Value) -> Result<Self, WrongKind> {
        let Value::Boolean(value) = value else { return Err(WrongKind) };
        Ok(value)
    }
}
