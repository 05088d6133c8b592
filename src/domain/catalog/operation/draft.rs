//! The one reader of problems: pairs of field and value, from JSON, a query, flags or a suite, into a `Problem`, or which field
//! is wrong and why.

use super::{Field, Kind, Op, Value, fields, owners};
use crate::domain::Problem;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::sync::LazyLock;

/// The member of a flat object that names the operation.
const OP: &str = "op";

/// A problem as it is given: some fields, in any order, of which none is checked against the operation yet.
///
/// One flat object rather than a tagged enum: serde loses the path of a mistake inside a tagged enum, and a query string
/// cannot hold one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub op: Op,
    pub given: Vec<(&'static str, Value)>,
}

/// A field that is missing, foreign, unknown or out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {fault}")]
pub struct Misfit {
    pub field: String,
    pub fault: Fault,
}

/// What is wrong with a field; the text goes on from its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("is needed for this op")]
    Missing,
    #[error("belongs to op {}", names(.0))]
    Foreign(Vec<Op>),
    #[error("is no field of any operation")]
    Unknown,
    /// The value is not of the field's kind, or not in its range.
    #[error("must be {}", .0.range())]
    Range(Kind),
}

fn names(ops: &[Op]) -> String {
    ops.iter().map(|op| op.name()).collect::<Vec<_>>().join(" or ")
}

impl Kind {
    /// Whether the value is of this kind and in its range.
    pub fn takes(&self, value: Value) -> bool {
        match (self, value) {
            (Self::Integer { min, max, .. }, Value::Integer(value)) => {
                (*min..=*max).contains(&value)
            }
            (Self::Choice(_), Value::Choice(name)) => self.choice(name).is_some(),
            (Self::Boolean, Value::Boolean(_)) => true,
            _ => false,
        }
    }

    /// The values in words: `1 to 64`, `at least 1`, `f32, f16, bf16 or f64`, `true or false`.
    pub fn range(&self) -> String {
        match self {
            Self::Integer { min, max: u32::MAX, .. } => format!("at least {min}"),
            Self::Integer { min, max, .. } => format!("{min} to {max}"),
            Self::Boolean => "true or false".to_owned(),
            Self::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|choice| choice.name).collect();
                match names.split_last() {
                    Some((last, rest)) if !rest.is_empty() => {
                        format!("{} or {last}", rest.join(", "))
                    }
                    _ => names.concat(),
                }
            }
        }
    }
}

impl Draft {
    pub const fn new(op: Op) -> Self {
        Self { op, given: Vec::new() }
    }

    /// The value of a field that was given.
    pub fn value(&self, name: &str) -> Option<Value> {
        self.given.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The problem, what is absent filled in by the fields' defaults.
    pub fn read(&self) -> Result<Problem, Misfit> {
        self.read_with(|field| field.default)
    }

    /// The problem, what is absent filled in by `absent`; `None` means that the field must be given.
    pub fn read_with(&self, absent: impl Fn(&Field) -> Option<Value>) -> Result<Problem, Misfit> {
        let operation = self.op.descriptor();
        let misfit = |field: &str, fault| Misfit { field: field.to_owned(), fault };
        for (name, _) in &self.given {
            if operation.field(name).is_none() {
                let owners: Vec<Op> = owners(name).collect();
                let known = !owners.is_empty();
                return Err(misfit(
                    name,
                    if known { Fault::Foreign(owners) } else { Fault::Unknown },
                ));
            }
        }
        let value = |field: &Field| {
            let value = self.value(field.name).or_else(|| absent(field));
            let value = value.ok_or_else(|| misfit(field.name, Fault::Missing))?;
            let taken = field.kind.takes(value).then_some(value);
            taken.ok_or_else(|| misfit(field.name, Fault::Range(field.kind)))
        };
        let values = operation.fields.iter().map(value).collect::<Result<Vec<Value>, Misfit>>()?;
        // Only an operation whose own list of fields disagrees with its descriptor gets here; a test compares the two.
        let broken = || misfit(OP, Fault::Unknown);
        Problem::from_values(self.op, &values).ok_or_else(broken)
    }
}

/// Where fields are gathered from a map that has other members too.
#[derive(Debug, Default)]
pub struct Gathered {
    op: Option<Op>,
    given: Vec<(&'static str, Value)>,
}

impl Gathered {
    /// Takes the member's value if it is one of a problem's; otherwise the value is still to be read.
    pub fn take<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Result<bool, A::Error> {
        if name == OP {
            if self.op.replace(map.next_value()?).is_some() {
                return Err(A::Error::duplicate_field(OP));
            }
            return Ok(true);
        }
        let Some(field) = fields().iter().find(|field| field.name == name) else {
            return Ok(false);
        };
        if self.given.iter().any(|(known, _)| *known == name) {
            return Err(A::Error::duplicate_field(field.name));
        }
        self.given.push((field.name, map.next_value_seed(&field.kind)?));
        Ok(true)
    }

    /// Fails where no member named the operation.
    pub fn draft<E: Error>(self) -> Result<Draft, E> {
        let op = self.op.ok_or_else(|| E::missing_field(OP))?;
        Ok(Draft { op, given: self.given })
    }
}

impl<'de> Deserialize<'de> for Draft {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Draft;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a problem")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Draft, A::Error> {
                let mut gathered = Gathered::default();
                while let Some(name) = map.next_key::<String>()? {
                    if !gathered.take(&name, &mut map)? {
                        return Err(A::Error::unknown_field(&name, members()));
                    }
                }
                gathered.draft()
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Every member that a problem of some operation may have.
pub fn members() -> &'static [&'static str] {
    static MEMBERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        std::iter::once(OP).chain(fields().iter().map(|field| field.name)).collect()
    });
    &MEMBERS
}

/// A value of the kind; its range is checked once the operation is known.
impl<'de> DeserializeSeed<'de> for &Kind {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Kind::Integer { .. } => u32::deserialize(deserializer).map(Value::Integer),
            Kind::Boolean => bool::deserialize(deserializer).map(Value::Boolean),
            Kind::Choice(_) => {
                let name = String::deserialize(deserializer)?;
                let choice = self.choice(&name);
                let choice = choice.ok_or_else(|| {
                    D::Error::custom(format!("unknown variant `{name}`, expected {}", self.range()))
                })?;
                Ok(Value::Choice(choice.name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Problem, String> {
        let draft: Draft = serde_json::from_str(text).map_err(|error| error.to_string())?;
        draft.read().map_err(|misfit| misfit.to_string())
    }

    #[test]
    fn fields_of_another_operation_are_refused() {
        let wrong = |text: &str| read(text).unwrap_err();
        assert_eq!(wrong(r#"{"op":"spmm","n":3,"rhs":1}"#), "rhs belongs to op sptrsv");
        assert_eq!(wrong(r#"{"n":3,"op":"sptrsv","rhs":1}"#), "n belongs to op spmm");
        for name in ["accumulate", "tf32"] {
            let solve = format!(r#"{{"op":"sptrsv","rhs":1,"{name}":false}}"#);
            assert_eq!(wrong(&solve), format!("{name} belongs to op spmm"));
        }
        let unknown = Draft { op: Op::Spmm, given: vec![("k", Value::Integer(1))] };
        assert_eq!(unknown.read().unwrap_err().fault, Fault::Unknown);
        assert!(
            wrong(r#"{"op":"spmm","n":3,"k":1}"#).contains("unknown field `k`, expected one of")
        );
        assert!(wrong(r#"{"op":"spmm","n":3,"n":3}"#).contains("duplicate field `n`"));
        assert!(wrong(r#"{"n":3}"#).contains("missing field `op`"));
    }

    #[test]
    fn what_is_missing_is_named_and_the_rest_has_defaults() {
        let wrong = |text: &str| read(text).unwrap_err();
        assert_eq!(wrong(r#"{"op":"spmm"}"#), "n is needed for this op");
        assert_eq!(wrong(r#"{"op":"spmm","n":0}"#), "n must be at least 1");
        let problem = read(r#"{"op":"spmm","n":7}"#).unwrap();
        assert_eq!(problem.to_string(), "spmm;n=7;dtype=f32;layout=row");
        let solve = r#"{"op":"sptrsv","rhs":1,"diagonal":"unit"}"#;
        assert_eq!(wrong(solve), "triangle is needed for this op");
        let wide = |rhs: u32| {
            read(&solve.replace("\"rhs\":1", &format!("\"triangle\":\"lower\",\"rhs\":{rhs}")))
        };
        assert!(wide(64).is_ok());
        assert_eq!(wide(65).unwrap_err(), "rhs must be 1 to 64");
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused() {
        for text in [
            r#"{"op":"spmm","n":"3"}"#,
            r#"{"op":"spmm","n":null}"#,
            r#"{"op":"spmm","n":-1}"#,
            r#"{"op":"spmm","n":3,"tf32":1}"#,
            r#"{"op":"spmm","n":3,"dtype":"f8"}"#,
            r#"{"op":"sddmm","n":3}"#,
        ] {
            read(text).unwrap_err();
        }
        let draft = Draft { op: Op::Spmm, given: vec![("n", Value::Boolean(true))] };
        assert_eq!(draft.read().unwrap_err().to_string(), "n must be at least 1");
        assert_eq!(super::super::fields()[1].kind.range(), "f32, f16, bf16 or f64");
    }
}
