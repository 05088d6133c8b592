//! Reads the training data: the scope's measured jobs as groups, and their summary for the model card.

use super::handle::TrainingHandle;
use super::threads::Threads;
use super::{Halt, replay};
use crate::domain::candidate::WITHOUT;
use crate::domain::learned::{DataUsed, Scope};
use crate::domain::{Candidate, Timestamp};
use crate::learn::{Dataset, Group, Row};
use crate::ops::{Kernels, features};
use crate::service::Service;
use crate::service::settings::LearningSettings;
use crate::sparse::generate::Spec;
use crate::store::TrainingGroup;
use std::collections::{HashMap, VecDeque};

/// Jobs fetched at a time.
const PAGE: u32 = 64;

/// Minimum number of measured rows in a group; fewer are not informative.
const LEAST_MEASURED: usize = 8;

/// A training uses at most this many of the newest trials, which bounds its memory and time.
const MOST_TRIALS: usize = 500_000;

/// Minimum number of patterns, so that each of five folds has two.
const LEAST_PATTERNS: u64 = 10;

/// Beginning of the error message of a training with insufficient data.
pub(super) const TOO_LITTLE: &str = "too little to learn from";

pub(super) struct Material {
    pub data: Dataset,
    /// For each group, the rows that a search without a learned model would try.
    pub corrected: Vec<Vec<usize>>,
    pub used: DataUsed,
}

/// Data about a group for the model card.
struct Origin {
    corrected: Vec<usize>,
    generated: bool,
    measured_at: Timestamp,
}

/// Prediction of the analytic model in microseconds. The trial's own prediction comes from the model that ranked at the
/// time.
fn predicted(own: &[f32]) -> Option<f64> {
    own.get(features::PREDICTED).map(|log| (f64::from(*log).exp2() - 1.0).max(f64::MIN_POSITIVE))
}

pub(super) async fn read(
    service: &Service,
    scope: &Scope,
    threads: &Threads,
    handle: &TrainingHandle,
) -> Result<Material, Halt> {
    let (shared, own) = features::names(scope.op);
    let widths = (shared.len(), own.len());
    let mut kept: VecDeque<(Group, Origin)> = VecDeque::new();
    let (mut trials, mut after) = (0, None);
    // Their number is not known in advance.
    for page in 1.. {
        if !handle.progress(1.0 - 1.0 / f64::from(page)) {
            return Err(Halt::Stopped);
        }
        let store = service.store();
        let groups =
            store.training_groups(scope, features::version(scope.op), after.as_ref(), PAGE).await?;
        let Some(last) = groups.last() else { break };
        after = Some(last.job.clone());
        let read = move || -> Vec<_> {
            groups.into_iter().filter_map(|group| group_of(group, widths)).collect()
        };
        for group in threads.run(read).await? {
            trials += group.0.rows.len();
            kept.push_back(group);
        }
        while trials > MOST_TRIALS && kept.len() > 1 {
            let Some((oldest, _)) = kept.pop_front() else { break };
            trials -= oldest.rows.len();
        }
    }
    let used = used(&kept);
    let (groups, corrected) =
        kept.into_iter().map(|(group, origin)| (group, origin.corrected)).unzip();
    Ok(Material { data: Dataset { shared, own, groups }, corrected, used })
}

/// `None` if too few candidates were measured, or if the number of features does not match. Candidates that failed or
/// were stopped rank below all measured ones.
fn group_of(group: TrainingGroup, (shared, own): (usize, usize)) -> Option<(Group, Origin)> {
    let features = group.features;
    // No feature tells sweeps and approximate inverses from exact schemes, nor a problem that consents to them from one that does not.
    if features.problem.is_approximate() {
        return None;
    }
    if features.shared.len() != shared || features.shared.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let positive = |us: &f64| us.is_finite() && *us > 0.0;
    let (candidates, rows): (Vec<Candidate>, Vec<Row>) = group
        .rows
        .into_iter()
        // No feature tells a scheme without a technique from the same scheme with it.
        .filter(|row| !row.candidate.params.contains_key(WITHOUT))
        .filter(|row| row.own.len() == own && row.own.iter().all(|value| value.is_finite()))
        .filter_map(|row| {
            let described = Row {
                candidate: row.candidate.to_string(),
                us: row.us.filter(positive).unwrap_or(f64::INFINITY),
                predicted_us: predicted(&row.own).filter(positive)?,
                own: row.own,
            };
            Some((row.candidate, described))
        })
        .unzip();
    let measured = rows.iter().filter(|row| row.us.is_finite()).count();
    if measured < LEAST_MEASURED {
        return None;
    }
    let predictions = candidates.iter().zip(&rows);
    let predictions: Vec<_> =
        predictions.map(|(candidate, row)| (candidate, row.predicted_us, row.us)).collect();
    let Scope { op, device_class } = features.scope;
    let kernels = device_class.kind().map(|device| Kernels { op, device });
    let origin = Origin {
        corrected: replay::corrected(&predictions, kernels),
        generated: features.name.is_some_and(|name| Spec::parse(&name).is_ok()),
        measured_at: features.created_at,
    };
    let group = Group { pattern: features.pattern.to_string(), shared: features.shared, rows };
    Some((group, origin))
}

fn used(kept: &VecDeque<(Group, Origin)>) -> DataUsed {
    let mut patterns: HashMap<&str, bool> = HashMap::new();
    for (group, origin) in kept {
        *patterns.entry(&group.pattern).or_default() |= origin.generated;
    }
    DataUsed {
        groups: kept.len() as u64,
        matrices: patterns.len() as u64,
        generated: patterns.values().filter(|generated| **generated).count() as u64,
        trials: kept.iter().map(|(group, _)| group.rows.len() as u64).sum(),
        newest: kept.iter().map(|(_, origin)| origin.measured_at).max().unwrap_or(Timestamp(0)),
    }
}

/// Refuses insufficient data, with a hint on what to do.
pub(super) fn suffices(
    used: &DataUsed,
    scope: &Scope,
    settings: &LearningSettings,
) -> Result<(), Halt> {
    let enough = used.groups >= settings.min_groups
        && used.trials >= settings.min_trials
        && used.matrices >= LEAST_PATTERNS;
    if enough {
        return Ok(());
    }
    let Scope { op, device_class } = scope;
    let DataUsed { groups, matrices, trials, .. } = used;
    let LearningSettings { min_groups, min_trials, .. } = settings;
    Err(Halt::Failed(format!(
        "{TOO_LITTLE}: there are {groups} jobs over {matrices} matrices with {trials} trials of {op} on \
        {device_class}; a training needs {min_groups} jobs, {LEAST_PATTERNS} matrices and {min_trials} trials at \
         least. `sparsetune corpus` produces more"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Op;
    use crate::domain::{
        Candidate, DeviceClass, Digest, Dtype, JobFeatures, JobId, Layout, Param, Problem, Spmm,
        Sptrsv,
    };
    use crate::store::TrainingRow;

    fn scope() -> Scope {
        Scope { op: Op::Spmm, device_class: DeviceClass("d".to_owned()) }
    }

    fn group(name: &str, times: &[Option<f64>]) -> TrainingGroup {
        let row = |(i, us): (usize, &Option<f64>)| TrainingRow {
            candidate: Candidate::new("row_split").with("lanes", i as i64),
            own: vec![i as f32],
            us: *us,
            predicted_us: Some(1.0 + i as f64),
        };
        let features = JobFeatures {
            scope: scope(),
            problem: Problem::Spmm(Spmm::new(8, Dtype::F32, Layout::Row)),
            matrix: Digest::of(name.as_bytes()),
            pattern: Digest::of(name.as_bytes()),
            name: Some(name.to_owned()),
            features_version: 1,
            shared: vec![1.0, 2.0],
            created_at: Timestamp(name.len() as i64),
        };
        let rows = times.iter().enumerate().map(row).collect();
        TrainingGroup { job: JobId(name.to_owned()), features, rows }
    }

    #[test]
    fn failures_rank_last_and_small_groups_are_skipped() {
        let mut times = vec![Some(2.0); 8];
        times.push(None);
        let (kept, _) = group_of(group("a", &times), (2, 1)).unwrap();
        assert_eq!((kept.rows.len(), kept.rows[8].us, kept.best_us()), (9, f64::INFINITY, 2.0));
        assert!(group_of(group("a", &times[1..]), (2, 1)).is_none());
        // Schemes without a technique are no part of the space.
        let mut lacking = group("a", &times);
        lacking.rows[0].candidate.params.insert(WITHOUT.to_owned(), Param::Text("x".to_owned()));
        assert!(group_of(lacking, (2, 1)).is_none());
        assert!(group_of(group("a", &times), (3, 1)).is_none());
        assert!(group_of(group("a", &times), (2, 2)).is_none());
        // An invalid time must not become the best time.
        times[0] = Some(0.0);
        assert!(group_of(group("a", &times), (2, 1)).is_none());
    }

    #[test]
    fn approximate_problems_are_nothing_to_learn_from() {
        let learned_from = |approximate| {
            let mut group = group("a", &[Some(2.0); 8]);
            group.features.problem = Problem::Sptrsv(Sptrsv { approximate, ..Sptrsv::PLAIN });
            group_of(group, (2, 1)).is_some()
        };
        assert!(learned_from(false) && !learned_from(true));
    }

    #[test]
    fn the_card_counts_distinct_patterns_and_generated_ones() {
        let times = vec![Some(2.0); 8];
        let names = ["a", "poisson2d:nx=4,ny=4", "a"];
        let groups = names.iter().filter_map(|name| group_of(group(name, &times), (2, 1)));
        let used = used(&groups.collect());
        assert_eq!((used.groups, used.matrices, used.generated, used.trials), (3, 2, 1, 24));
        assert_eq!(used.newest, Timestamp(names[1].len() as i64));
        let settings = LearningSettings { min_groups: 3, min_trials: 24, ..Default::default() };
        let Err(Halt::Failed(why)) = suffices(&used, &scope(), &settings) else {
            panic!("two matrices are too few")
        };
        assert!(why.contains("3 jobs over 2 matrices") && why.contains("corpus"), "{why}");
        assert!(suffices(&DataUsed { matrices: 10, ..used }, &scope(), &settings).is_ok());
    }
}
