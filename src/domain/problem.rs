//! A problem: the operation and everything that decides which kernels are legal for it.

mod parts;
mod values;

pub use values::{Diagonal, Dtype, L2Policy, Layout, Output, Stability, Triangle, WrongKind};

use super::Matrix;
use super::catalog::operation::{Draft, Field, Op, Value};
use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// What is to be computed with the matrix. Its fields are described in [`super::catalog::operation`], and its wire form and
/// its key are made from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Problem {
    /// `C = A B`, or `alpha A B + beta C`, with A sparse (rows x cols) and B dense (cols x n); or the same with A transposed.
    Spmm(Spmm),
    /// `T x = b` with T a triangle of A.
    Sptrsv(Sptrsv),
}

/// Sparse matrix times dense matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spmm {
    /// Columns of B and C, at least 1; up to [`Self::MAX_N`] can be tuned.
    pub n: u32,
    pub dtype: Dtype,
    /// Storage order of B and of C.
    pub layout: Layout,
    /// `C = alpha A B + beta C` with alpha and beta given at each call, instead of `C = A B`.
    pub accumulate: bool,
    /// For f32: products may be computed from operands rounded to tf32 (10 bits of fraction), by the client's consent.
    pub tf32: bool,
    /// `C = A^T B`, or `alpha A^T B + beta C`, with B of rows x n and C of cols x n. Kernels are given the transpose as their
    /// matrix and know nothing of this.
    pub transpose: bool,
    /// Type of the elements of C.
    pub output: Output,
}

impl Spmm {
    /// Widest B that can be tuned.
    pub const MAX_N: u32 = 65_536;

    /// `C = A B`, as precise as the type.
    pub const fn new(n: u32, dtype: Dtype, layout: Layout) -> Self {
        let (accumulate, tf32, transpose) = (false, false, false);
        Self { n, dtype, layout, accumulate, tf32, transpose, output: Output::Same }
    }

    /// The element type of C. Only types of 16 bits are summed in another type, so for others it is theirs, whatever `output`
    /// says.
    pub const fn result(&self) -> Dtype {
        match self.output {
            Output::F32 if self.dtype.is_half() => Dtype::F32,
            _ => self.dtype,
        }
    }
}

/// Sparse triangular solve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sptrsv {
    /// Right-hand sides, 1 to [`Self::MAX_RHS`].
    pub rhs: u32,
    pub dtype: Dtype,
    pub triangle: Triangle,
    pub diagonal: Diagonal,
    pub transpose: bool,
    pub stability: Stability,
    /// The client consents to an approximate x, by a map of b that is linear and the same in each call: enough for a preconditioner
    /// ([`crate::sparse::tolerance::APPROXIMATE`]).
    pub approximate: bool,
}

impl Sptrsv {
    /// A lower system with one right-hand side in f64: what others are made of where only some fields matter.
    pub const PLAIN: Self = Self {
        rhs: 1,
        dtype: Dtype::F64,
        triangle: Triangle::Lower,
        diagonal: Diagonal::NonUnit,
        transpose: false,
        stability: Stability::Windowed,
        approximate: false,
    };

    /// Most right-hand sides that can be tuned.
    pub const MAX_RHS: u32 = 64;
}

impl Problem {
    /// Whether it consents to an approximate result.
    pub const fn is_approximate(&self) -> bool {
        match self {
            Self::Spmm(_) => false,
            Self::Sptrsv(solve) => solve.approximate,
        }
    }

    pub const fn op(&self) -> Op {
        match self {
            Self::Spmm(_) => Op::Spmm,
            Self::Sptrsv(_) => Op::Sptrsv,
        }
    }

    /// The element type of the matrix's values and of the dense operand that is read.
    pub const fn dtype(&self) -> Dtype {
        match self {
            Self::Spmm(spmm) => spmm.dtype,
            Self::Sptrsv(solve) => solve.dtype,
        }
    }

    /// The element type of what is computed, and of what it is added to.
    pub const fn result(&self) -> Dtype {
        match self {
            Self::Spmm(spmm) => spmm.result(),
            Self::Sptrsv(solve) => solve.dtype,
        }
    }

    /// Values in the order of the operation's fields.
    pub fn values(&self) -> Vec<Value> {
        match *self {
            Self::Spmm(Spmm { n, dtype, layout, accumulate, tf32, transpose, output }) => vec![
                n.into(),
                dtype.into(),
                layout.into(),
                accumulate.into(),
                tf32.into(),
                transpose.into(),
                output.into(),
            ],
            Self::Sptrsv(Sptrsv {
                rhs,
                dtype,
                triangle,
                diagonal,
                transpose,
                stability,
                approximate,
            }) => vec![
                rhs.into(),
                dtype.into(),
                triangle.into(),
                diagonal.into(),
                transpose.into(),
                stability.into(),
                approximate.into(),
            ],
        }
    }

    /// The reverse of [`Self::values`]; `None` unless there is one value of its kind for each field. Whether a value is in
    /// its range is checked by [`super::catalog::operation::Draft::read`].
    pub fn from_values(op: Op, values: &[Value]) -> Option<Self> {
        match (op, values) {
            (Op::Spmm, &[n, dtype, layout, accumulate, tf32, transpose, output]) => {
                Some(Self::Spmm(Spmm {
                    n: n.try_into().ok()?,
                    dtype: dtype.try_into().ok()?,
                    layout: layout.try_into().ok()?,
                    accumulate: accumulate.try_into().ok()?,
                    tf32: tf32.try_into().ok()?,
                    transpose: transpose.try_into().ok()?,
                    output: output.try_into().ok()?,
                }))
            }
            (Op::Sptrsv, &[rhs, dtype, triangle, diagonal, transpose, stability, approximate]) => {
                Some(Self::Sptrsv(Sptrsv {
                    rhs: rhs.try_into().ok()?,
                    dtype: dtype.try_into().ok()?,
                    triangle: triangle.try_into().ok()?,
                    diagonal: diagonal.try_into().ok()?,
                    transpose: transpose.try_into().ok()?,
                    stability: stability.try_into().ok()?,
                    approximate: approximate.try_into().ok()?,
                }))
            }
            _ => None,
        }
    }

    /// Each field with its value, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'static Field, Value)> + use<> {
        self.op().descriptor().fields.iter().zip(self.values())
    }

    pub fn value(&self, name: &str) -> Option<Value> {
        self.fields().find(|(field, _)| field.name == name).map(|(_, value)| value)
    }

    /// The fields that keys and stored problems name: those that came later only where they are not at their default.
    pub fn key_fields(&self) -> impl Iterator<Item = (&'static Field, Value)> + use<> {
        self.fields()
            .filter(|(field, value)| field.in_key_at_default || field.default != Some(*value))
    }

    /// Whether kernels work on the transpose of the stored matrix. A transposed solve is not among these: its system is made
    /// of the matrix as stored.
    pub const fn works_on_transpose(&self) -> bool {
        matches!(self, Self::Spmm(Spmm { transpose: true, .. }))
    }

    /// Rows and columns of the matrix that kernels work on, from those of the stored one.
    pub const fn operand_shape(&self, rows: u64, cols: u64) -> (u64, u64) {
        if self.works_on_transpose() { (cols, rows) } else { (rows, cols) }
    }

    /// Columns of the dense operand.
    pub fn columns(&self) -> u32 {
        match self.value(self.op().descriptor().columns) {
            Some(Value::Integer(columns)) => columns,
            _ => 1,
        }
    }

    /// Entries of the matrix that one call reads; a triangle's diagonal counts once a row. `None` where the matrix's facts do
    /// not tell: the upper triangle follows from the lower one only where the whole diagonal is stored.
    pub fn entries(&self, matrix: &Matrix) -> Option<u64> {
        let Self::Sptrsv(solve) = self else { return Some(matrix.nnz) };
        let lower = matrix.features.lower.as_ref()?.nnz;
        match solve.triangle {
            Triangle::Lower => Some(lower),
            Triangle::Upper if matrix.symmetric => Some(lower),
            Triangle::Upper if matrix.has_full_diagonal => {
                (matrix.nnz + matrix.rows).checked_sub(lower)
            }
            Triangle::Upper => None,
            Triangle::Both => {
                let parts = self.parts()?;
                Some(parts[0].entries(matrix)? + parts[1].entries(matrix)?)
            }
        }
    }
}

/// The problem's key in the store and in plan keys: `spmm;n=32;dtype=f32;layout=row`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())?;
        self.key_fields().try_for_each(|(field, value)| write!(f, ";{}={value}", field.name))
    }
}

/// The flat object that is stored: `op`, then the fields of the key.
impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("op", self.op().name())?;
        for (field, value) in self.key_fields() {
            map.serialize_entry(field.name, &value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Problem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Draft::deserialize(deserializer)?.read().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalog::operation::Kind;

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
        let transposed =
            Problem::Spmm(Spmm { transpose: true, ..Spmm::new(32, Dtype::F32, Layout::Row) });
        assert_eq!(transposed.to_string(), "spmm;n=32;dtype=f32;layout=row;transpose=true");
        assert_eq!(transposed.operand_shape(2, 3), (3, 2));
        let wide = r#"{"op":"spmm","n":32,"dtype":"f16","layout":"row","output":"f32"}"#;
        let problem: Problem = serde_json::from_str(wide).unwrap();
        assert_eq!(serde_json::to_string(&problem).unwrap(), wide);
        assert_eq!(problem.to_string(), "spmm;n=32;dtype=f16;layout=row;output=f32");
        assert_eq!((problem.dtype(), problem.result()), (Dtype::F16, Dtype::F32));
        let solve = r#"{"op":"sptrsv","rhs":1,"triangle":"lower","diagonal":"non-unit"}"#;
        let solve: Problem = serde_json::from_str(solve).unwrap();
        assert!(solve.to_string().ends_with("diagonal=non-unit;transpose=false"));
        let stored = r#"{"op":"sptrsv","rhs":1,"dtype":"f32","triangle":"lower","diagonal":"non-unit","transpose":false}"#;
        assert_eq!(serde_json::to_string(&solve).unwrap(), stored);
        let key = "sptrsv;rhs=1;dtype=f32;triangle=lower;diagonal=non-unit;transpose=false";
        assert_eq!(solve.to_string(), key);
        // Problems from before the field are exact, and have the key that they had.
        let Problem::Sptrsv(exact) = solve else { panic!("{solve}") };
        assert!(!exact.approximate);
        let near = Problem::Sptrsv(Sptrsv { approximate: true, ..exact });
        assert_eq!(near.to_string(), format!("{key};approximate=true"));
        let said = serde_json::to_string(&near).unwrap();
        assert_eq!(said, stored.replace('}', r#","approximate":true}"#));
        assert_eq!(serde_json::from_str::<Problem>(&said).unwrap(), near);
        let both = Sptrsv { triangle: Triangle::Both, approximate: true, ..exact };
        let parts = Problem::Sptrsv(both).parts().unwrap();
        let consents = |part: Problem| matches!(part, Problem::Sptrsv(it) if it.approximate);
        assert!(parts.into_iter().all(consents), "both solves are by consent");
    }

    /// Every value of every field, one field at a time, goes through values, wire form and key.
    #[test]
    fn fields_and_descriptors_agree() {
        for op in Op::ALL {
            let usual = Draft::new(op).read_with(|field| Some(field.usual)).unwrap();
            assert_eq!(usual.op(), op);
            for (at, field) in op.descriptor().fields.iter().enumerate() {
                let all = match field.kind {
                    Kind::Integer { min, max, .. } => {
                        vec![Value::Integer(min), Value::Integer(max)]
                    }
                    Kind::Boolean => vec![Value::Boolean(false), Value::Boolean(true)],
                    Kind::Choice(choices) => {
                        choices.iter().map(|choice| Value::Choice(choice.name)).collect()
                    }
                };
                for value in all {
                    let mut values = usual.values();
                    values[at] = value;
                    let problem = Problem::from_values(op, &values).unwrap();
                    assert_eq!(
                        (problem.values(), problem.value(field.name)),
                        (values, Some(value))
                    );
                    let json = serde_json::to_string(&problem).unwrap();
                    assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
                    let said = problem.to_string().contains(&format!(";{}={value}", field.name));
                    assert_eq!(said, field.in_key_at_default || field.default != Some(value));
                }
            }
        }
    }
}
