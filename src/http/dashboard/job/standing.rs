//! How a job stands: funnel, tile space, trials; drawn anew as trials come in.

use super::failures::{self, Kind};
use super::tried::{self, Row};
use crate::domain::{FunnelStep, Job, Trial};
use crate::http::dashboard::format;
use crate::http::dashboard::pictures::funnel::Funnel;
use crate::http::dashboard::pictures::heat_map::{self, HeatMap};
use askama::Template;

#[derive(Template)]
#[template(path = "job_standing.html")]
pub struct Standing {
    id: String,
    live: bool,
    funnel: Option<Funnel>,
    /// The job, or its plan, told the funnel; else it is counted from the trials.
    told: bool,
    families: Vec<Choice>,
    map: Option<HeatMap>,
    failures: Vec<Kind>,
    rows: Vec<Row>,
    measured: String,
}

/// A family whose tile space can be drawn.
struct Choice {
    name: String,
    candidates: usize,
    chosen: bool,
}

impl Standing {
    pub fn new(
        job: &Job,
        funnel: Option<Vec<FunnelStep>>,
        trials: &[Trial],
        family: Option<&str>,
    ) -> Self {
        let families = heat_map::families(trials);
        let best = job.best.as_ref().map(|best| best.candidate.family.as_str());
        let winner = job.plan.as_ref().and(job.best.as_ref());
        let chosen = heat_map::choose(&families, trials, family, best);
        let choices = families.iter().map(|(name, candidates)| Choice {
            name: name.clone(),
            candidates: *candidates,
            chosen: chosen == Some(name.as_str()),
        });
        let told = funnel.is_some();
        let steps = funnel.unwrap_or_else(|| counted(trials, job.progress.total));
        Self {
            id: job.id.to_string(),
            live: !job.state.is_final(),
            funnel: Funnel::new(&steps),
            told,
            map: chosen.and_then(|family| HeatMap::new(trials, family)),
            families: choices.collect(),
            failures: failures::kinds(trials),
            rows: tried::rows(trials, winner),
            measured: format::count(tried::by_time(trials).len() as u64),
        }
    }
}

/// The order in which constraints apply; others come last.
const ORDER: [&str; 11] = [
    "register_resource",
    "local_memory",
    "hardware_utilization",
    "load_balance",
    "shared_memory",
    "alignment",
    "panel_fill",
    "applicability",
    "reduction",
    "rank",
    "halving",
];

/// The funnel of a job that told none, from what is recorded of its candidates.
///
/// `total` trials were meant; those not made before the end are in no record, and had survived all the same.
fn counted(trials: &[Trial], total: u32) -> Vec<FunnelStep> {
    let mut removed: Vec<(&str, u64)> = Vec::new();
    for by in trials.iter().filter_map(heat_map::pruned_by) {
        match removed.iter_mut().find(|(name, _)| *name == by) {
            Some((_, count)) => *count += 1,
            None => removed.push((by, 1)),
        }
    }
    let place = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
    removed.sort_by_key(|(name, _)| place(name));
    let vendor = trials.iter().filter(|trial| trial.candidate.is_baseline()).count() as u64;
    let gone: u64 = removed.iter().map(|(_, count)| count).sum();
    let mut left = gone + u64::from(total).saturating_sub(vendor);
    let steps = removed.into_iter().map(|(constraint, removed)| {
        left = left.saturating_sub(removed);
        FunnelStep { constraint: constraint.to_owned(), removed, left, detail: None }
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, JobId, Timestamp, TrialState};

    #[test]
    fn without_a_funnel_the_records_are_counted_in_the_order_of_the_constraints() {
        let names = ["rank", "panel_fill", "rank", "own_rule", "load_balance"];
        let trials: Vec<Trial> = names
            .into_iter()
            .zip(0..)
            .map(|(by, ordinal)| Trial {
                job: JobId("j".to_owned()),
                ordinal,
                candidate: Candidate::new("row_split").with("lanes", ordinal.into()),
                state: TrialState::Pruned { pruned_by: by.to_owned() },
                predicted_us: None,
                created_at: Timestamp(0),
            })
            .collect();
        let steps = counted(&trials, 7);
        let told: Vec<_> =
            steps.iter().map(|s| (s.constraint.as_str(), s.removed, s.left)).collect();
        let expected =
            [("load_balance", 1, 11), ("panel_fill", 1, 10), ("rank", 2, 8), ("own_rule", 1, 7)];
        assert_eq!(told, expected);
    }
}
