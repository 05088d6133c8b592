//! Descriptors of the operations: name, fields with type, default, range and sentence. The API, the command line, the pages,
//! bench suites and the OpenAPI schemas are made from them or tested against them.

mod draft;
mod phrase;
mod spmm;
mod sptrsv;

pub use draft::{Draft, Fault, Gathered, Misfit};
pub use phrase::{Only, Phrase};

use crate::domain::{DeviceKind, Problem, SearchStrategy};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

/// What is computed with a matrix. The order is that of lists and pages.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Op {
    #[default]
    Spmm,
    Sptrsv,
}

impl Op {
    /// The first is the one that the command line takes where none is named.
    pub const ALL: [Self; 2] = [Self::Spmm, Self::Sptrsv];

    pub const fn descriptor(self) -> &'static Operation {
        match self {
            Self::Spmm => &spmm::OPERATION,
            Self::Sptrsv => &sptrsv::OPERATION,
        }
    }

    /// The name on the wire, in keys and on the command line.
    pub const fn name(self) -> &'static str {
        self.descriptor().name
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(name: &str) -> Result<Self, UnknownOp> {
        let found = Self::ALL.into_iter().find(|op| op.name() == name);
        found.ok_or_else(|| UnknownOp(name.to_owned()))
    }
}

/// A name that no operation has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no operation `{0}`")]
pub struct UnknownOp(pub String);

/// All that is said of an operation in one place.
#[derive(Debug)]
pub struct Operation {
    pub op: Op,
    /// `spmm`.
    pub name: &'static str,
    /// `SpMM`.
    pub title: &'static str,
    /// `C = A B`.
    pub formula: &'static str,
    pub sentence: &'static str,
    /// In the order of keys, answers and `Problem::values`.
    pub fields: &'static [Field],
    /// Values that the fields allow and that cannot be tuned everywhere.
    pub limits: &'static [Limit],
    /// The strategy of a request that names none.
    pub strategy: SearchStrategy,
    /// The integer field that counts the columns of the dense operand.
    pub columns: &'static str,
    /// What pages call that count: `The width N of B`.
    pub columns_words: &'static str,
    /// The symbol of the dense operand.
    pub dense: &'static str,
    /// Rows depend on each other, level by level: what limits it is the path through the levels, which no roofline shows, and
    /// bench suites class its matrices by rows per level.
    pub has_levels: bool,
    /// The arrays of its launches are made of the matrix's own structure, so a plan of another matrix has to be lowered anew.
    pub arrays_follow_matrix: bool,
    /// How pages compute GFLOP/s from a measured time.
    pub rate: &'static str,
    /// What bench suites take where a problem's table leaves a field out, instead of what the wire takes.
    pub suite: &'static [(&'static str, Value)],
    /// The problem in a few words, behind the title: `N=128 f32 row`.
    pub brief: &'static [Phrase],
    /// The problem in full, behind the title: `N = 128, f32, row-major`.
    pub full: &'static [Phrase],
    /// The problem as tables of bench suites call it, behind the name: `f32 n=128 row`.
    pub bench: &'static [Phrase],
    /// What such tables add for a matrix that changes fields of the suite's problem: `up`.
    pub bench_marks: &'static [Phrase],
}

impl Operation {
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// One member of a problem.
#[derive(Debug)]
pub struct Field {
    /// On the wire, in keys and, with `--` before it, on the command line.
    pub name: &'static str,
    /// As forms call it: `N (columns of B)`.
    pub label: &'static str,
    pub kind: Kind,
    /// What absence means. A field without a default is required.
    pub default: Option<Value>,
    /// What the command line takes where the flag is absent, and what forms begin with.
    pub usual: Value,
    /// Whether keys and stored problems name it also at its default. A field that came later is left out there, so that keys
    /// of plans from before stay what they were.
    pub in_key_at_default: bool,
    pub sentence: &'static str,
}

/// The values that a field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From `min` to `max`. Problems above `tuned_max` may be looked up and are not tuned.
    Integer {
        min: u32,
        max: u32,
        tuned_max: u32,
    },
    Choice(&'static [Choice]),
    Boolean,
}

/// One of a field's named values.
#[derive(Debug, PartialEq, Eq)]
pub struct Choice {
    pub name: &'static str,
    /// As forms and pages call it: `row-major`.
    pub label: &'static str,
    pub sentence: &'static str,
}

impl Kind {
    /// The choice of this name; none for other kinds.
    pub fn choice(&self, name: &str) -> Option<&'static Choice> {
        match self {
            Self::Choice(choices) => choices.iter().find(|choice| choice.name == name),
            _ => None,
        }
    }

    /// A value from text, as query strings and forms have it.
    pub fn parse(&self, text: &str) -> Option<Value> {
        match self {
            Self::Integer { .. } => text.parse().ok().map(Value::Integer),
            Self::Choice(_) => self.choice(text).map(|choice| Value::Choice(choice.name)),
            Self::Boolean => text.parse().ok().map(Value::Boolean),
        }
    }
}

/// A field's value. Choices are known by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    Integer(u32),
    Choice(&'static str),
    Boolean(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Choice(name) => f.pad(name),
            Self::Boolean(value) => value.fmt(f),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(value) => serializer.serialize_u32(*value),
            Self::Choice(name) => serializer.serialize_str(name),
            Self::Boolean(value) => serializer.serialize_bool(*value),
        }
    }
}

/// A value that is not tuned, or not everywhere.
#[derive(Debug)]
pub struct Limit {
    pub field: &'static str,
    pub value: Value,
    pub only: Tuned,
    /// One sentence for whoever asked for it.
    pub why: &'static str,
}

impl Problem {
    /// The first field whose value is beyond what can be tuned, and a sentence about it.
    pub fn out_of_tuned_range(&self) -> Option<(&'static Field, String)> {
        self.fields().find_map(|(field, value)| match (field.kind, value) {
            (Kind::Integer { min, tuned_max, .. }, Value::Integer(value))
                if !(min..=tuned_max).contains(&value) =>
            {
                let name = field.name;
                Some((field, format!("{name} must be {min} to {tuned_max}, not {value}")))
            }
            _ => None,
        })
    }

    /// The first limit that keeps the problem from being tuned on a device of this kind; without a kind, on any device.
    pub fn limit(&self, device: Option<DeviceKind>) -> Option<&'static Limit> {
        let applies = |limit: &&Limit| {
            let asked = self.value(limit.field) == Some(limit.value);
            asked
                && match limit.only {
                    Tuned::Nowhere => true,
                    Tuned::With(field, values) => {
                        self.value(field).is_none_or(|value| !values.contains(&value))
                    }
                    Tuned::On(kind) => device.is_some_and(|device| device != kind),
                }
        };
        self.op().descriptor().limits.iter().find(applies)
    }
}

/// Where a limited value is tuned all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuned {
    /// On devices of this kind.
    On(DeviceKind),
    /// Where another field has one of these values.
    With(&'static str, &'static [Value]),
    Nowhere,
}

/// Fields of all operations, each name once. Fields that share a name have one kind and label.
pub fn fields() -> &'static [&'static Field] {
    static FIELDS: LazyLock<Vec<&'static Field>> = LazyLock::new(|| {
        let mut fields: Vec<&'static Field> = Vec::new();
        for field in Op::ALL.into_iter().flat_map(|op| op.descriptor().fields) {
            if fields.iter().all(|known| known.name != field.name) {
                fields.push(field);
            }
        }
        fields
    });
    &FIELDS
}

/// The operations that have a field of this name.
pub fn owners(name: &str) -> impl Iterator<Item = Op> {
    Op::ALL.into_iter().filter(move |op| op.descriptor().field(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn descriptors_are_sound() {
        for op in Op::ALL {
            let operation = op.descriptor();
            assert_eq!(operation.op, op);
            assert_eq!(serde_json::to_value(op).unwrap(), operation.name);
            assert_eq!(operation.name.parse(), Ok(op));
            let names: BTreeSet<&str> = operation.fields.iter().map(|field| field.name).collect();
            assert_eq!(names.len(), operation.fields.len(), "{op}: a name is given twice");
            assert!(!names.contains("op"));
            let columns = operation.field(operation.columns).unwrap();
            assert!(matches!(columns.kind, Kind::Integer { .. }));
            for field in operation.fields {
                assert!(field.sentence.ends_with('.'), "{op}.{}", field.name);
                assert!(field.kind.takes(field.usual), "{op}.{}", field.name);
                assert!(field.default.is_none_or(|value| field.kind.takes(value)));
                assert!(field.in_key_at_default || field.default.is_some());
            }
            for limit in operation.limits {
                let field = operation.field(limit.field).unwrap();
                assert!(field.kind.takes(limit.value), "{op}.{}", field.name);
                if let Tuned::With(name, values) = limit.only {
                    let kind = operation.field(name).unwrap().kind;
                    assert!(!values.is_empty() && values.iter().all(|&value| kind.takes(value)));
                }
            }
            for (name, value) in operation.suite {
                assert!(operation.field(name).unwrap().kind.takes(*value));
            }
            let said = [operation.brief, operation.full, operation.bench, operation.bench_marks];
            for phrase in said.into_iter().flatten() {
                assert!(operation.field(phrase.field).is_some(), "{op}: {}", phrase.text);
                if let Only::If(name, value) | Only::Unless(name, value) = phrase.only {
                    assert!(operation.field(name).unwrap().kind.takes(value), "{op}: {name}");
                }
            }
        }
    }

    /// A flat object is read before its operation is known, and a form shows a shared field once.
    #[test]
    fn fields_of_one_name_are_alike() {
        for field in Op::ALL.into_iter().flat_map(|op| op.descriptor().fields) {
            let first = fields().iter().find(|known| known.name == field.name).unwrap();
            let alike = |field: &Field| (field.kind, field.label, field.usual);
            assert_eq!(alike(first), alike(field), "{}", field.name);
        }
        let names: Vec<&str> = fields().iter().map(|field| field.name).collect();
        let expected = [
            "n",
            "dtype",
            "layout",
            "accumulate",
            "tf32",
            "transpose",
            "output",
            "rhs",
            "triangle",
            "diagonal",
            "stability",
            "approximate",
        ];
        assert_eq!(names, expected);
        assert_eq!(owners("dtype").collect::<Vec<_>>(), Op::ALL);
    }
}
