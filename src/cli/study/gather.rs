//! Searches of a data folder, as a study reads them.

use super::record::{Search, Tried};
use crate::domain::funnel::DRAW;
use crate::domain::{Clock, SearchStrategy, Trial, TrialState};
use crate::service::{Searched, Service};
use std::collections::BTreeMap;

/// All searches that measured, the oldest first. Classes are by the matrix's name; a matrix without one has none.
pub async fn gather(
    service: &Service,
    classes: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<Search>> {
    let mut searches = Vec::new();
    service.searched(|searched| searches.push(search(searched, classes))).await?;
    searches.reverse();
    Ok(searches)
}

fn search(searched: Searched, classes: &BTreeMap<String, String>) -> Search {
    let Searched { job, matrix, plan, trials, learned } = searched;
    let name = matrix.as_ref().and_then(|matrix| matrix.name.clone());
    let name = name.unwrap_or_else(|| plan.matrix.short());
    let full = job.request.search.strategy == SearchStrategy::Full;
    let drawn = plan.funnel.iter().find(|step| step.constraint == DRAW);
    let seconds = seconds(&trials);
    let tried = trials.into_iter().zip(seconds).filter_map(|(trial, seconds)| {
        let TrialState::Tried(outcome) = &trial.state else { return None };
        let learned_us =
            learned.as_ref().and_then(|(_, times)| times.get(&trial.candidate.id()).copied());
        let (rule, value, limit) = match trial.despite {
            Some(by) => (Some(by.pruned_by), by.value, by.limit),
            None => (None, None, None),
        };
        Some(Tried {
            candidate: trial.candidate.to_string(),
            state: outcome.state().to_owned(),
            us: outcome.median_us(),
            predicted_us: trial.predicted_us,
            learned_us,
            seconds,
            rule,
            value,
            limit,
        })
    });
    let tried: Vec<Tried> = tried.collect();
    Search {
        class: classes.get(&name).cloned().unwrap_or_else(|| "-".to_owned()),
        matrix: name,
        problem: plan.problem.to_string(),
        device: plan.device.name.clone(),
        strategy: serde_json::to_value(job.request.search.strategy)
            .ok()
            .and_then(|name| name.as_str().map(str::to_owned))
            .unwrap_or_default(),
        rows: matrix.as_ref().map_or(0, |matrix| matrix.rows),
        cols: matrix.as_ref().map_or(0, |matrix| matrix.cols),
        nnz: matrix.as_ref().map_or(0, |matrix| matrix.nnz),
        space: drawn.filter(|_| full).map(|step| step.removed + step.left),
        funnel: plan.funnel.clone(),
        seconds: plan.provenance.search_seconds,
        plan_us: plan.median_us().unwrap_or_default(),
        vendor_us: plan.baseline.as_ref().map(|baseline| baseline.median_us),
        clock: plan.clock().filter(|clock| *clock != Clock::of_earlier_versions()),
        learned: learned.map(|(model, _)| model.0),
        trials: tried.len(),
        tried,
        others: Vec::new(),
    }
}

/// Seconds from the trial before to each; the first has none, since what was before it is not a trial.
fn seconds(trials: &[Trial]) -> Vec<Option<f64>> {
    let between = trials.windows(2).map(|pair| {
        let ms = pair[1].created_at.0 - pair[0].created_at.0;
        Some(ms.max(0) as f64 / 1e3)
    });
    std::iter::once(None).take(trials.len().min(1)).chain(between).collect()
}
