//! The parts of a job's page that are rendered again with new trials: funnel, tile space, trials.

use super::failures::{self, Kind};
use super::recorded::Recorded;
use super::removed::{self, Removed};
use super::tried::{self, Row};
use crate::domain::{DeviceKind, FunnelStep, Job, Judged, TrialCount, funnel};
use crate::explain;
use crate::http::dashboard::format;
use crate::http::dashboard::pictures::funnel::Funnel;
use crate::http::dashboard::pictures::heat_map::HeatMap;
use crate::service::catalog;
use askama::Template;
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "job_standing.html")]
pub struct Standing {
    id: String,
    live: bool,
    funnel: Option<Funnel>,
    /// Whether the funnel was recorded by the job or its plan; otherwise it is derived from the trials.
    told: bool,
    families: Vec<Choice>,
    map: Option<HeatMap>,
    /// A note if the map shows a sample.
    sampled: Option<String>,
    /// The drawn family: its title, the paper it follows, and what it does.
    about: Option<String>,
    removed: Removed,
    /// The plan, whose page tells the whole search.
    plan: Option<String>,
    failures: Vec<Kind>,
    rows: Vec<Row>,
    /// What the speed-ups are over, if it has been timed.
    pub baseline: Option<String>,
    measured: String,
}

/// A family whose tile space can be drawn.
struct Choice {
    name: String,
    candidates: u64,
    chosen: bool,
}

impl Standing {
    /// `judged` is what the rules computed for the winner, if there is one.
    pub fn new(
        job: &Job,
        funnel: Option<Vec<FunnelStep>>,
        judged: &[Judged],
        recorded: &Recorded,
    ) -> Self {
        let Recorded { counts, tried, families, family, pruned } = recorded;
        let winner = job.plan.as_ref().and(job.best.as_ref());
        let choices = families.iter().map(|(name, candidates)| Choice {
            name: name.clone(),
            candidates: *candidates,
            chosen: family.as_ref() == Some(name),
        });
        let kind = kind_of(job);
        let told = funnel.is_some();
        let baselines = tried.iter().filter(|trial| trial.candidate.is_baseline()).count();
        let meant = u64::from(job.progress.total).saturating_sub(baselines as u64);
        let steps = funnel.unwrap_or_else(|| counted(counts, meant));
        let drawn = || tried.iter().chain(pruned);
        Self {
            id: job.id.to_string(),
            live: !job.state.is_final(),
            funnel: Funnel::new(&explain::steps(&steps, judged, kind)),
            plan: job.plan.as_ref().map(ToString::to_string),
            about: family.as_ref().and_then(|family| about(job, kind, family, recorded)),
            removed: removed::of(pruned, kind),
            told,
            map: family.as_ref().and_then(|family| HeatMap::new(drawn(), family)),
            sampled: recorded.sampled(),
            families: choices.collect(),
            failures: failures::kinds(tried),
            rows: tried::rows(tried, winner),
            baseline: tried::baseline_name(tried),
            measured: format::count(recorded.measured()),
        }
    }
}

/// A worker's device is named after its kind.
fn kind_of(job: &Job) -> DeviceKind {
    if job.device.0.starts_with("cpu") { DeviceKind::Cpu } else { DeviceKind::Cuda }
}

/// A family in a sentence: the kernel that its candidates here are of.
fn about(job: &Job, kind: DeviceKind, family: &str, recorded: &Recorded) -> Option<String> {
    let all = recorded.tried.iter().chain(&recorded.pruned);
    let one = all.map(|trial| &trial.candidate).find(|candidate| candidate.family == family)?;
    let kernel = catalog().resolve(job.request.problem.op(), kind, one)?;
    Some(format!("{} ({}): {}", kernel.title, kernel.origin(), kernel.summary))
}

/// The funnel of a job without a recorded one, derived from its candidates.
///
/// Planned trials that were not made before the end have no record, although they survived the pruning.
fn counted(counts: &[TrialCount], meant: u64) -> Vec<FunnelStep> {
    let mut removed: BTreeMap<&str, u64> = BTreeMap::new();
    for count in counts {
        if let Some(by) = &count.pruned_by {
            *removed.entry(by).or_default() += count.count;
        }
    }
    let mut removed: Vec<(&str, u64)> = removed.into_iter().collect();
    // States of other versions come last.
    let order = funnel::ORDER;
    removed.sort_by_key(|(name, _)| {
        order.iter().position(|known| known == name).unwrap_or(order.len())
    });
    let gone: u64 = removed.iter().map(|(_, count)| count).sum();
    let mut left = gone + meant;
    let steps = removed.into_iter().map(|(constraint, removed)| {
        left = left.saturating_sub(removed);
        FunnelStep { constraint: constraint.to_owned(), removed, left, detail: None }
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_funnel_the_records_are_counted_in_the_order_of_the_constraints() {
        let count = |family: &str, state: &str, by: Option<&str>, count| TrialCount {
            family: family.to_owned(),
            state: state.to_owned(),
            pruned_by: by.map(str::to_owned),
            count,
        };
        let counts = [
            count("row_split", "pruned", Some("rank"), 1),
            count("row_split", "pruned", Some("own_rule"), 1),
            count("row_split", "measured", None, 4),
            count("row_panel", "pruned", Some("rank"), 1),
            count("row_panel", "pruned", Some("panel_fill"), 1),
            count("row_panel", "pruned", Some("load_balance"), 1),
        ];
        let steps = counted(&counts, 7);
        let told: Vec<_> =
            steps.iter().map(|s| (s.constraint.as_str(), s.removed, s.left)).collect();
        let expected =
            [("panel_fill", 1, 11), ("load_balance", 1, 10), ("rank", 2, 8), ("own_rule", 1, 7)];
        assert_eq!(told, expected);
    }
}
