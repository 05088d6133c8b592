//! What searches recorded, for studies of the search itself: its trials, and how the active learned model would have ranked them.

use super::{Page, PageRequest, Result, Service};
use crate::domain::learned::Scope;
use crate::domain::{CandidateId, Job, JobId, JobState, Matrix, ModelId, Plan, Trial};
use crate::ops::features;
use crate::store::{JobFilter, TrialQuery};
use std::collections::HashMap;

/// Jobs and groups read at a time.
const PAGE: u32 = 64;

/// A finished search with its tried candidates.
pub struct Searched {
    pub job: Job,
    /// Absent if the matrix has been deleted.
    pub matrix: Option<Matrix>,
    pub plan: Plan,
    /// In the order in which they were tried, without samples.
    pub trials: Vec<Trial>,
    /// The times by which the active learned model (borrowed where the class has none) orders the candidates, in microseconds, with the model.
    pub learned: Option<(ModelId, HashMap<CandidateId, f64>)>,
}

type Rankings = HashMap<JobId, (ModelId, HashMap<CandidateId, f64>)>;

impl Service {
    /// Hands every search that measured and succeeded to `each`, the newest first.
    pub async fn searched(&self, mut each: impl FnMut(Searched)) -> Result<()> {
        let mut rankings: HashMap<Scope, Rankings> = HashMap::new();
        let filter = JobFilter { state: Some(JobState::Succeeded), ..JobFilter::default() };
        let mut page = PageRequest::first(PAGE);
        loop {
            let Page { items, next } = self.store.jobs(&filter, &page).await?;
            for job in items {
                let Some(id) = &job.plan else { continue };
                let Some(plan) = self.store.plan(id).await? else { continue };
                if plan.is_predicted() {
                    continue;
                }
                let scope = Scope { op: plan.problem.op(), device_class: plan.device.class() };
                if !rankings.contains_key(&scope) {
                    rankings.insert(scope.clone(), self.rankings(&scope).await?);
                }
                let learned = rankings.get_mut(&scope).and_then(|known| known.remove(&job.id));
                let query = TrialQuery::Summaries;
                let trials = self.store.trials(&job.id, &query, &PageRequest::ALL).await?.items;
                let matrix = self.store.known_matrix(&job.request.matrix).await?;
                each(Searched { job, matrix, plan, trials, learned });
            }
            match next {
                None => return Ok(()),
                after => page.after = after,
            }
        }
    }

    /// How the active learned model of a scope orders the recorded candidates of each job, from the features stored with them.
    /// Empty without an active model, or for features of another version.
    async fn rankings(&self, scope: &Scope) -> Result<Rankings> {
        let mut rankings = Rankings::new();
        let Some(ranker) = self.active_model(scope).await? else { return Ok(rankings) };
        let (version, mut after) = (features::version(scope.op), None);
        loop {
            let store = &self.store;
            let groups = store.training_groups(scope, version, after.as_ref(), PAGE).await?;
            let Some(last) = groups.last() else { return Ok(rankings) };
            after = Some(last.job.clone());
            for group in groups {
                let predicted: Vec<f64> = group
                    .rows
                    .iter()
                    .map(|row| row.predicted_us.unwrap_or(f64::INFINITY))
                    .collect();
                let (candidates, own): (Vec<_>, Vec<_>) =
                    group.rows.into_iter().map(|row| (row.candidate, row.own)).unzip();
                let text = |at: usize| candidates[at].to_string();
                let times =
                    ranker.model().file.order(&group.features.shared, &own, &predicted, text);
                let ids = candidates.iter().map(|candidate| candidate.id());
                let ranking = ids.zip(times).collect();
                rankings.insert(group.job, (ranker.card().id.clone(), ranking));
            }
        }
    }
}
