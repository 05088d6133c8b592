//! A search in sentences, with the numbers of its plan: what was searched, what each rule removed and why, what a model
//! predicted, how much was measured, and what the finals decided. Pages and the command line say the same.

mod chapters;
mod ending;
pub mod numbers;
mod papers;
mod stages;
mod steps;

pub use chapters::{Chapter, chapters};
pub use ending::ending;
pub use steps::{Step, compared, step, steps};

use crate::domain::catalog::family::{Catalogue, FamilyDescriptor};
use crate::domain::plan::{Baseline, Limit, Measured, ModelError, TrialCounts};
use crate::domain::{
    Candidate, DeviceKind, FunnelStep, Judged, Param, Plan, Problem, StoppedBy, funnel,
};
use std::collections::BTreeMap;

/// Why a candidate may be slower in the finals than in its trial.
pub const WHY_SLOWER: &str = "In the finals the best are timed in turn, round by round, so that all of them meet the same clock rates, caches \
and other load; of many trials, the fastest was also the luckiest, so times in the finals are often a little longer.";

/// A finished search as its plan tells it, in the terms that stored plans and the API share.
pub struct Search<'a> {
    pub catalogue: &'a Catalogue,
    pub problem: &'a Problem,
    pub kind: DeviceKind,
    /// The device's name.
    pub device: &'a str,
    /// Rows, columns and entries, if the matrix is still known.
    pub matrix: Option<[u64; 3]>,
    pub funnel: &'a [FunnelStep],
    pub judged: &'a [Judged],
    pub winner: &'a Candidate,
    /// Absent if the plan was predicted.
    pub measured: Option<&'a Measured>,
    pub tie: bool,
    pub runner_up: Option<(String, f64)>,
    pub baseline: Option<&'a Baseline>,
    /// Why there is no baseline, if that is known.
    pub no_baseline: Option<&'a str>,
    pub speedup: Option<f64>,
    pub limit: &'a Limit,
    /// The model's name and its prediction for the winner, microseconds.
    pub predicted: Option<(&'a str, f64)>,
    pub model_error: Option<&'a ModelError>,
    /// The learned model that ranked, as texts name it, if any.
    pub learned: Option<String>,
    pub trials: &'a TrialCounts,
    pub expected_calls: Option<u64>,
    pub stopped_by: StoppedBy,
    pub seconds: f64,
    /// Empty if the trials are no longer stored.
    pub families: Vec<OfFamily>,
}

/// What became of the candidates of one family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfFamily {
    pub family: String,
    /// Candidates on record: removed by a rule that lists them, or tried.
    pub candidates: u64,
    pub measured: u64,
    /// The fastest trial.
    pub best_us: Option<f64>,
    /// One of them: several kernels may share a family's name.
    pub example: Option<Candidate>,
}

/// One or several trials of a family.
pub struct Record<'t> {
    pub family: &'t str,
    /// How many candidates it adds.
    pub count: u64,
    /// The time of a measured trial.
    pub us: Option<f64>,
    pub candidate: Option<Candidate>,
}

/// Counts trials by family, the fastest first.
pub fn by_family<'t>(records: impl Iterator<Item = Record<'t>>) -> Vec<OfFamily> {
    let mut found: BTreeMap<&str, OfFamily> = BTreeMap::new();
    for record in records {
        let of = found.entry(record.family).or_default();
        of.candidates += record.count;
        if let Some(us) = record.us {
            of.measured += 1;
            of.best_us = Some(of.best_us.map_or(us, |best| best.min(us)));
        }
        of.example = of.example.take().or(record.candidate);
    }
    let mut all: Vec<OfFamily> = found
        .into_iter()
        .map(|(family, of)| OfFamily { family: family.to_owned(), ..of })
        .collect();
    let us = |of: &OfFamily| of.best_us.unwrap_or(f64::INFINITY);
    all.sort_by(|a, b| us(a).total_cmp(&us(b)));
    all
}

impl<'a> Search<'a> {
    /// As a stored plan tells it; rows, columns and entries of the matrix if it is still there.
    pub fn of(
        plan: &'a Plan,
        catalogue: &'a Catalogue,
        families: Vec<OfFamily>,
        matrix: Option<[u64; 3]>,
    ) -> Self {
        let second = plan.runner_up.as_ref();
        Self {
            catalogue,
            problem: &plan.problem,
            kind: plan.device.kind,
            device: &plan.device.name,
            matrix,
            funnel: &plan.funnel,
            judged: &plan.judged,
            winner: &plan.candidate,
            measured: plan.measured.as_ref(),
            tie: plan.tie,
            runner_up: second.map(|second| (name(&second.candidate), second.median_us)),
            baseline: plan.baseline.as_ref(),
            no_baseline: plan.no_baseline.as_deref(),
            speedup: plan.speedup,
            limit: &plan.limit,
            predicted: plan.predicted.as_ref().map(|said| (said.model.as_str(), said.median_us)),
            model_error: plan.model_error.as_ref(),
            learned: plan.provenance.ranked_by(),
            trials: &plan.trials,
            expected_calls: plan.expected_calls,
            stopped_by: plan.provenance.stopped_by,
            seconds: plan.provenance.search_seconds,
            families,
        }
    }
}

/// `row_split n1=8 rows_per_task=64`, as the API's answers are printed.
fn name(candidate: &Candidate) -> String {
    let value = |(name, value): (&String, &Param)| match value {
        Param::Int(value) => format!(" {name}={value}"),
        Param::Text(value) => format!(" {name}={value}"),
    };
    candidate.family.clone() + &candidate.params.iter().map(value).collect::<String>()
}

impl Search<'_> {
    /// How many candidates there were before any rule.
    fn all(&self) -> u64 {
        funnel::of_candidates(self.funnel).next().map_or(0, |step| step.left + step.removed)
    }

    /// The kernel of a family name: that of its candidates, or else the first of the name on this device.
    fn family(&self, name: &str) -> Option<&FamilyDescriptor> {
        let op = self.problem.op();
        let example = self.families.iter().find(|of| of.family == name);
        let example = example.and_then(|of| of.example.as_ref());
        example.and_then(|candidate| self.catalogue.resolve(op, self.kind, candidate)).or_else(
            || {
                self.catalogue
                    .of(op)
                    .find(|family| family.device == self.kind && family.has_name(name))
            },
        )
    }

    fn won(&self) -> Option<&FamilyDescriptor> {
        self.catalogue.resolve(self.problem.op(), self.kind, self.winner)
    }

    /// How many candidates these rules removed, and whether any of them was applied.
    fn removed_by(&self, names: &[&str]) -> Option<u64> {
        let own = || self.funnel.iter().filter(|step| names.contains(&step.constraint.as_str()));
        own().next().map(|_| own().map(|step| step.removed).sum())
    }
}

#[cfg(test)]
mod tests;
