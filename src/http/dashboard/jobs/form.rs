//! What the submit form and the filters offer to choose from: the fields of each operation, and the devices and matrices that
//! are known here. And the form's address, filled in.

use super::super::address::encoded;
use super::super::format;
use crate::domain::catalog::operation::{self, Field, Kind, Value, fields, owners};
use crate::domain::{DeviceId, Op, Plan};
use crate::http::App;
use crate::http::error::Problem;
use crate::service::PageRequest;

/// Matrices offered by name; any other is named by its digest.
const OFFERED: u32 = 100;

/// One device.
pub struct Choice {
    pub id: String,
    /// What it is, beside its id.
    pub about: String,
    /// The filter's.
    pub chosen: bool,
}

/// One matrix.
pub struct Known {
    pub digest: String,
    pub about: String,
}

/// A field of the form, made from a descriptor.
pub struct FormField {
    pub name: &'static str,
    pub label: &'static str,
    pub sentence: &'static str,
    /// Names of the operations that have it, with spaces between them.
    pub ops: String,
    /// The operation that the form begins with does not have it.
    pub hidden: bool,
    pub input: Input,
}

/// What a field is filled in with.
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

/// The fields of all operations, each once, by their places in their operations.
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

/// Every device once, those that can work first; the chosen one too where it has been forgotten.
pub async fn devices(app: &App, chosen: Option<&DeviceId>) -> Result<Vec<Choice>, Problem> {
    let mut found = app.service.devices().await?;
    found.sort_by(|a, b| (!a.online, &a.device.id).cmp(&(!b.online, &b.device.id)));
    let mut choices: Vec<Choice> = Vec::new();
    for status in found {
        let id = status.device.id.to_string();
        if choices.iter().any(|choice| choice.id == id) {
            continue;
        }
        let offline = if status.online { "" } else { ", offline" };
        let about = format!("{}{offline}", status.device.name);
        choices.push(Choice { chosen: chosen == Some(&status.device.id), id, about });
    }
    if let Some(chosen) = chosen.filter(|id| choices.iter().all(|choice| choice.id != id.0)) {
        let about = "no longer known".to_owned();
        choices.push(Choice { id: chosen.to_string(), about, chosen: true });
    }
    Ok(choices)
}

pub async fn known_matrices(app: &App) -> Result<Vec<Known>, Problem> {
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

/// The form with a plan's matrix, problem and device in it. They stand behind the hash, where `submit.js` reads them, under
/// the names of the fields' `data-member`.
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
