//! The models that rank candidates, and how well they did by their own plans.

use super::App;
use super::error::Problem;
use crate::domain::{DeviceClass, ModelQuality};
use axum::Json;
use axum::extract::State;
use serde::Serialize;

/// A model on one class of device.
#[derive(Debug, Serialize)]
struct ModelOut {
    kind: Kind,
    model: String,
    device_class: DeviceClass,
    op: String,
    plans: u64,
    trials: u64,
    median_ratio: f64,
    spread: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank_correlation: Option<f64>,
}

/// What a model goes by.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Formulas and facts of the device; nothing was fitted to measurements.
    Analytic,
}

impl From<ModelQuality> for ModelOut {
    fn from(quality: ModelQuality) -> Self {
        Self {
            kind: Kind::Analytic,
            model: quality.model,
            device_class: quality.device_class,
            op: quality.op,
            plans: quality.plans,
            trials: quality.trials,
            median_ratio: quality.median_ratio,
            spread: quality.spread,
            rank_correlation: quality.rank_correlation,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct ModelsOut {
    items: Vec<ModelOut>,
}

pub async fn list(State(app): State<App>) -> Result<Json<ModelsOut>, Problem> {
    let models = app.service.models().await?;
    Ok(Json(ModelsOut { items: models.into_iter().map(ModelOut::from).collect() }))
}
