//! A problem: the operation and everything that decides which kernels are legal for it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is to be computed with the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Problem {
    /// `C = A B`, or `alpha A B + beta C`, with A sparse (rows x cols) and B dense (cols x n).
    Spmm(Spmm),
    /// `T x = b` with T a triangle of A.
    Sptrsv(Sptrsv),
}

/// Sparse matrix times dense matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spmm {
    /// Columns of B and C, at least 1.
    pub n: u32,
    #[serde(default)]
    pub dtype: Dtype,
    /// Storage order of B and of C.
    #[serde(default)]
    pub layout: Layout,
    /// `C = alpha A B + beta C` with alpha and beta given at each call, instead of `C = A B`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accumulate: bool,
    /// For f32: products may be computed from operands rounded to tf32 (10 bits of fraction), by the client's consent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tf32: bool,
}

impl Spmm {
    /// `C = A B`, as precise as the type.
    pub const fn new(n: u32, dtype: Dtype, layout: Layout) -> Self {
        Self { n, dtype, layout, accumulate: false, tf32: false }
    }
}

/// Sparse triangular solve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sptrsv {
    /// Right-hand sides, 1 to [`Self::MAX_RHS`].
    pub rhs: u32,
    #[serde(default)]
    pub dtype: Dtype,
    pub triangle: Triangle,
    pub diagonal: Diagonal,
    #[serde(default)]
    pub transpose: bool,
}

impl Sptrsv {
    /// Most right-hand sides that can be tuned.
    pub const MAX_RHS: u32 = 64;
}

/// Element type of the dense operands and of A's values on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    #[default]
    F32,
    F16,
    F64,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// Storage order of a dense matrix; leading dimensions are tight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    #[default]
    Row,
    Col,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Triangle {
    Lower,
    Upper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Diagonal {
    #[serde(rename = "unit")]
    Unit,
    #[serde(rename = "non-unit")]
    NonUnit,
}

/// Whether the L2 cache keeps the operands between two timed calls; part of the plan key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum L2Policy {
    /// Calls follow each other on the same buffers.
    #[default]
    Warm,
    /// The cache is swept before each timed call.
    Cold,
}

macro_rules! display_as_wire_name {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}
display_as_wire_name!(Dtype, Layout, Triangle, Diagonal, L2Policy);

/// The problem's key in the store and in plan keys: `spmm;n=32;dtype=f32;layout=row`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spmm(Spmm { n, dtype, layout, accumulate, tf32 }) => {
                write!(f, "spmm;n={n};dtype={dtype};layout={layout}")?;
                // Absent where off: keys of stored plans stay what they were.
                let on = [(*accumulate, ";accumulate=true"), (*tf32, ";tf32=true")];
                on.iter().filter(|(on, _)| *on).try_for_each(|(_, text)| f.write_str(text))
            }
            Self::Sptrsv(p) => write!(
                f,
                "sptrsv;rhs={};dtype={};triangle={};diagonal={};transpose={}",
                p.rhs, p.dtype, p.triangle, p.diagonal, p.transpose
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form_and_key() {
        let problem: Problem = serde_json::from_str(r#"{"op":"spmm","n":32}"#).unwrap();
        assert_eq!(problem.to_string(), "spmm;n=32;dtype=f32;layout=row");
        let json = serde_json::to_string(&problem).unwrap();
        assert_eq!(json, r#"{"op":"spmm","n":32,"dtype":"f32","layout":"row"}"#);
        assert!(serde_json::from_str::<Problem>(r#"{"op":"spmm","n":32,"x":1}"#).is_err());
        let scaled =
            r#"{"op":"spmm","n":32,"dtype":"f32","layout":"row","accumulate":true,"tf32":true}"#;
        let problem: Problem = serde_json::from_str(scaled).unwrap();
        assert_eq!(serde_json::to_string(&problem).unwrap(), scaled);
        assert!(problem.to_string().ends_with(";layout=row;accumulate=true;tf32=true"));
        let solve = r#"{"op":"sptrsv","rhs":1,"triangle":"lower","diagonal":"non-unit"}"#;
        let solve: Problem = serde_json::from_str(solve).unwrap();
        assert!(solve.to_string().ends_with("diagonal=non-unit;transpose=false"));
    }
}
