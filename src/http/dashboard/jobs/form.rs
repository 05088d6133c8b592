//! The options of the submit form and the filters: the fields of each operation, and the known devices and matrices. Also
//! the address of the pre-filled form.

use super::super::address::encoded;
use super::super::format;
use crate::domain::catalog::operation::{self, Field, Kind, Tuned, Value, fields, owners};
use crate::domain::{DeviceId, DeviceKind, Op, Plan};
use crate::http::behalf::Served;
use crate::http::error::Problem;
use crate::service::PageRequest;
use serde_json::json;
use std::collections::HashSet;

/// Maximum number of matrices offered by name; others are selected by digest.
const OFFERED: u32 = 100;

/// One device.
pub struct Choice {
    pub id: String,
    /// What a job names it by: its id, or where others have the same its key.
    pub target: String,
    /// Whether no other of the same id comes before it.
    pub first: bool,
    /// `cpu` or `cuda`, which decides what can be chosen with it; empty if it is not known.
    pub kind: &'static str,
    /// Description beside its id.
    pub about: String,
    /// Whether the filter selects it.
    pub chosen: bool,
}

/// One matrix.
pub struct Known {
    pub digest: String,
    pub about: String,
}

/// A field of the form, generated from its descriptor.
pub struct FormField {
    pub name: &'static str,
    pub label: &'static str,
    pub sentence: &'static str,
    /// Names of the operations that have the field, separated by spaces.
    pub ops: String,
    /// Whether the operation that the form shows first lacks the field.
    pub hidden: bool,
    pub input: Input,
}

/// The kind of input of a field.
pub enum Input {
    Number { min: u32, max: u32, value: String },
    Choice(Vec<FieldOption>),
    Check,
}

pub struct FieldOption {
    pub name: &'static str,
    pub label: &'static str,
    pub selected: bool,
}

/// The fields of all operations without repetition, by their positions in the operations.
pub fn problem_fields() -> Vec<FormField> {
    let place = |field: &Field| {
        let places = owners(field.name)
            .filter_map(|op| op.descriptor().fields.iter().position(|own| own.name == field.name));
        places.min()
    };
    let mut all: Vec<&'static Field> = fields().to_vec();
    all.sort_by_key(|field| place(field));
    all.into_iter().map(form_field).collect()
}

fn form_field(field: &'static Field) -> FormField {
    let usual = field.usual;
    let option = |choice: &'static operation::Choice| FieldOption {
        name: choice.name,
        label: choice.label,
        selected: usual == Value::Choice(choice.name),
    };
    let input = match field.kind {
        Kind::Integer { min, tuned_max, .. } => {
            Input::Number { min, max: tuned_max, value: usual.to_string() }
        }
        Kind::Choice(choices) => Input::Choice(choices.iter().map(option).collect()),
        Kind::Boolean => Input::Check,
    };
    let ops: Vec<Op> = owners(field.name).collect();
    FormField {
        name: field.name,
        label: field.label,
        sentence: field.sentence,
        hidden: !ops.contains(&Op::default()),
        ops: ops.iter().map(|op| op.name()).collect::<Vec<_>>().join(" "),
        input,
    }
}

const fn kind(of: Option<DeviceKind>) -> &'static str {
    match of {
        Some(DeviceKind::Cpu) => "cpu",
        Some(DeviceKind::Cuda) => "cuda",
        None => "",
    }
}

/// The kind of the device that `auto` means; empty if there is none.
pub async fn kind_of_auto(app: &Served) -> &'static str {
    kind(app.service.device_class("auto").await.ok().and_then(|class| class.kind()))
}

/// What cannot be tuned everywhere, for the form's script: which value of a field of an operation, where it can be, and why not
/// elsewhere.
pub fn limits() -> String {
    let limits = Op::ALL.into_iter().flat_map(|op| {
        op.descriptor().limits.iter().map(move |limit| {
            let mut told = json!({
                "op": op.name(),
                "field": limit.field,
                "value": limit.value.to_string(),
                "why": limit.why,
            });
            match limit.only {
                Tuned::On(device) => told["on"] = json!(kind(Some(device))),
                Tuned::With(field, values) => {
                    let values: Vec<String> = values.iter().map(Value::to_string).collect();
                    told["with"] = json!({ "field": field, "values": values });
                }
                Tuned::Nowhere => {}
            }
            told
        })
    });
    serde_json::Value::Array(limits.collect()).to_string()
}

/// All devices without repetition, whatever number of workers serve one, usable ones first; also the selected one if it is no longer known.
pub async fn devices(app: &Served, chosen: Option<&DeviceId>) -> Result<Vec<Choice>, Problem> {
    let mut found = app.service.devices().await?;
    found.sort_by(|a, b| (!a.online, &a.device.id).cmp(&(!b.online, &b.device.id)));
    let mut seen = HashSet::new();
    found.retain(|status| seen.insert(status.key.clone()));
    let mut choices: Vec<Choice> = Vec::new();
    let mut classes = HashSet::new();
    for status in found.iter().filter(|status| status.online) {
        let class = status.device.class();
        let of_class = found.iter().filter(|other| other.online && other.device.class() == class);
        let number = of_class.count();
        if number > 1 && classes.insert(class.clone()) {
            choices.push(Choice {
                id: "any".to_owned(),
                kind: kind(class.kind()),
                target: class.0,
                first: false,
                chosen: false,
                about: format!("{} ({number} devices)", status.device.name),
            });
        }
    }
    for status in &found {
        let id = status.device.id.to_string();
        let alone = found.iter().filter(|other| other.device.id == status.device.id).count() == 1;
        let offline = if status.online { "" } else { ", offline" };
        let host = status.host.as_ref().filter(|_| !alone);
        let host = host.map_or_else(String::new, |host| format!(" of {host}"));
        choices.push(Choice {
            target: if alone { id.clone() } else { status.key.0.clone() },
            first: choices.iter().all(|choice| choice.id != id),
            kind: kind(Some(status.device.kind)),
            chosen: chosen == Some(&status.device.id),
            about: format!("{}{host}{offline}", status.device.name),
            id,
        });
    }
    if let Some(chosen) = chosen.filter(|id| choices.iter().all(|choice| choice.id != id.0)) {
        let about = "no longer known".to_owned();
        let id = chosen.to_string();
        let target = id.clone();
        choices.push(Choice { target, first: true, id, kind: "", about, chosen: true });
    }
    Ok(choices)
}

pub async fn known_matrices(app: &Served) -> Result<Vec<Known>, Problem> {
    let page = PageRequest { after: None, limit: OFFERED };
    let page = app.service.matrices(&page).await?;
    let known = page.items.into_iter().map(|matrix| {
        let name = matrix.name.unwrap_or_else(|| format::short(&matrix.digest));
        let (rows, cols) = (format::count(matrix.rows), format::count(matrix.cols));
        let about = format!("{name}, {rows} × {cols}, {} nonzeros", format::count(matrix.nnz));
        Known { digest: matrix.digest.to_string(), about }
    });
    Ok(known.collect())
}

/// The form pre-filled with a plan's matrix, problem and device. They are in the fragment of the address, where `submit.js`
/// reads them, under the names in the fields' `data-member`.
pub fn like(plan: &Plan) -> String {
    let mut address = format!("/#submit={}", plan.matrix);
    let mut fill = |field: &str, value: &str| {
        address.push_str(&format!("&{field}={}", encoded(value)));
    };
    fill("problem.op", plan.problem.op().name());
    for (field, value) in plan.problem.fields() {
        fill(&format!("problem.{}", field.name), &value.to_string());
    }
    fill("device", &plan.device.id.0);
    address
}
