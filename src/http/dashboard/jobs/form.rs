//! What the submit form and the filters offer to choose from: devices and matrices that are known here. And the form's
//! address, filled in.

use super::super::address::encoded;
use super::super::format;
use crate::domain::{DeviceId, Plan};
use crate::http::App;
use crate::http::error::Problem;
use crate::service::PageRequest;
use crate::wire;

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
pub fn like(plan: &Plan) -> Result<String, Problem> {
    let mut address = format!("/#submit={}", plan.matrix);
    let mut fill = |field: &str, value: &str| {
        address.push_str(&format!("&{field}={}", encoded(value)));
    };
    let problem =
        serde_json::to_value(wire::Problem::from(plan.problem)).map_err(Problem::internal)?;
    for (name, value) in problem.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fill(&format!("problem.{name}"), &value);
    }
    fill("device", &plan.device.id.0);
    Ok(address)
}
