//! The catalogue: the operations with the fields of their problems, and their kernels.

use crate::domain::catalog::family::{self, Catalogue, FamilyDescriptor, Flags, Provider, Values};
use crate::domain::catalog::operation::{self, Op, Tuned, Value};
use crate::domain::{DeviceKind, Param, SearchStrategy};
use serde::Serialize;

/// The complete response.
#[derive(Debug, Serialize)]
pub struct Operations {
    operations: Vec<Operation>,
}

#[derive(Debug, Serialize)]
pub struct Operation {
    name: &'static str,
    title: &'static str,
    formula: &'static str,
    sentence: &'static str,
    strategy: SearchStrategy,
    fields: Vec<Field>,
    limits: Vec<Limit>,
    families: Vec<Family>,
}

#[derive(Debug, Serialize)]
pub struct Field {
    name: &'static str,
    sentence: &'static str,
    required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<Value>,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Kind {
    Integer { minimum: u32, maximum: u32, tuned_maximum: u32 },
    Choice { choices: Vec<Choice> },
    Boolean,
}

#[derive(Debug, Serialize)]
pub struct Choice {
    name: &'static str,
    sentence: &'static str,
}

/// A value that cannot be tuned at all, on one kind of device, or together with some values of another field.
#[derive(Debug, Serialize)]
pub struct Limit {
    field: &'static str,
    value: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<With>,
    why: &'static str,
}

#[derive(Debug, Serialize)]
pub struct With {
    field: &'static str,
    values: &'static [Value],
}

impl Operations {
    /// Every operation of this version, with its kernels.
    pub fn of(catalogue: &Catalogue) -> Self {
        let operation = |op: Op| Operation::of(op.descriptor(), catalogue);
        Self { operations: Op::ALL.map(operation).into() }
    }
}

impl Operation {
    fn of(operation: &operation::Operation, catalogue: &Catalogue) -> Self {
        Self {
            name: operation.name,
            title: operation.title,
            formula: operation.formula,
            sentence: operation.sentence,
            strategy: operation.strategy,
            fields: operation.fields.iter().map(Field::from).collect(),
            limits: operation.limits.iter().map(Limit::from).collect(),
            families: catalogue.of(operation.op).map(Family::from).collect(),
        }
    }
}

impl From<&operation::Field> for Field {
    fn from(field: &operation::Field) -> Self {
        Self {
            name: field.name,
            sentence: field.sentence,
            required: field.default.is_none(),
            default: field.default,
            kind: match field.kind {
                operation::Kind::Integer { min, max, tuned_max } => {
                    Kind::Integer { minimum: min, maximum: max, tuned_maximum: tuned_max }
                }
                operation::Kind::Choice(choices) => {
                    Kind::Choice { choices: choices.iter().map(Choice::from).collect() }
                }
                operation::Kind::Boolean => Kind::Boolean,
            },
        }
    }
}

impl From<&operation::Choice> for Choice {
    fn from(choice: &operation::Choice) -> Self {
        Self { name: choice.name, sentence: choice.sentence }
    }
}

impl From<&operation::Limit> for Limit {
    fn from(limit: &operation::Limit) -> Self {
        let (device, with) = match limit.only {
            Tuned::On(device) => (Some(device), None),
            Tuned::With(field, values) => (None, Some(With { field, values })),
            Tuned::Nowhere => (None, None),
        };
        Self { field: limit.field, value: limit.value, device, with, why: limit.why }
    }
}

/// A kernel. Several kernels may share a `family`, the name used in candidates.
#[derive(Debug, Serialize)]
pub struct Family {
    kernel: &'static str,
    family: &'static str,
    title: &'static str,
    sentence: &'static str,
    device: DeviceKind,
    vendor: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    parameters: Vec<Parameter>,
    flags: FamilyFlags,
}

/// A parameter takes one of `values`, or an integer of at least `minimum`.
#[derive(Debug, Serialize)]
pub struct Parameter {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    meaning: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<Param>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimum: Option<i64>,
}

#[derive(Debug, Serialize)]
pub struct FamilyFlags {
    baseline: bool,
    densifies: bool,
    may_need_finite_dense: bool,
    single_thread: bool,
}

impl From<&FamilyDescriptor> for Family {
    fn from(family: &FamilyDescriptor) -> Self {
        let Flags { baseline, densifies, may_need_finite_dense, single_thread } = family.flags;
        Self {
            kernel: family.id.0,
            family: family.family(),
            title: family.title,
            sentence: family.summary,
            device: family.device,
            vendor: family.provider == Provider::Vendor,
            source: family.source,
            parameters: family.parameters.iter().map(Parameter::from).collect(),
            flags: FamilyFlags { baseline, densifies, may_need_finite_dense, single_thread },
        }
    }
}

impl From<&family::Parameter> for Parameter {
    fn from(parameter: &family::Parameter) -> Self {
        let (values, minimum) = match &parameter.values {
            Values::Among(values) => (Some(values.clone()), None),
            Values::AtLeast { least, .. } => (None, Some(*least)),
        };
        Self {
            name: parameter.name,
            kind: parameter.values.type_name(),
            meaning: parameter.meaning,
            values,
            minimum,
        }
    }
}
