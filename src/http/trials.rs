//! Trials: every candidate of a job, with the constraint that pruned it or the outcome of its trial.

use super::behalf::OnBehalf;
use super::error::{Kind, Problem};
use super::extract::{Path, Query};
use super::page::page_request;
use crate::domain::{JobId, TrialFilter, WorkKind};
use crate::wire::{Page, Trial};
use axum::Json;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialsQuery {
    state: Option<TrialFilter>,
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn list(
    OnBehalf(app): OnBehalf,
    Path(job): Path<JobId>,
    Query(query): Query<TrialsQuery>,
) -> Result<Json<Page<Trial>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    if app.service.work(&job).await?.kind() == WorkKind::Train {
        let detail = "a training tries no candidates: it has no trials of its own";
        return Err(Problem::new(Kind::NotFound, detail));
    }
    Ok(Json(Page::from(app.service.trials(&job, query.state, &page).await?)))
}
