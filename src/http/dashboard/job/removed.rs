//! Removed candidates with what their rules computed for them.

use super::tried::parameters;
use crate::domain::catalog::rules::rule;
use crate::domain::{DeviceKind, Trial, TrialState};
use crate::explain::compared;

/// Maximum number of rows; the API has all.
const MOST: usize = 40;

/// Removed candidates whose rules compare numbers.
#[derive(Default)]
pub struct Removed {
    pub rows: Vec<Row>,
    /// Number of those that are not shown.
    pub more: usize,
}

pub struct Row {
    pub params: String,
    /// The rule's title.
    pub rule: &'static str,
    /// `3 blocks, at least 66`.
    pub compared: String,
}

/// The removed candidates among these trials, those that came closest to their limit first.
pub fn of(trials: &[Trial], kind: DeviceKind) -> Removed {
    let numbers = |trial: &Trial| {
        let TrialState::Pruned(removal) = &trial.state else { return None };
        let known = rule(&removal.pruned_by)?;
        let (value, limit) = removal.value.zip(removal.limit)?;
        let row = Row {
            params: parameters(&trial.candidate),
            rule: known.title,
            compared: compared(known, value, limit, kind),
        };
        Some(((value - limit).abs() / limit.abs().max(1.0), row))
    };
    let mut all: Vec<(f64, Row)> = trials.iter().filter_map(numbers).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let more = all.len().saturating_sub(MOST);
    Removed { rows: all.into_iter().take(MOST).map(|(_, row)| row).collect(), more }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, JobId, Removal, Timestamp};

    #[test]
    fn those_with_numbers_are_told_and_the_closest_comes_first() {
        let of_rule =
            |rule: &str, value| Removal { value, limit: value.map(|_| 66.0), ..Removal::by(rule) };
        let trial = |lanes, removal| Trial {
            job: JobId("j".to_owned()),
            ordinal: 0,
            candidate: Candidate::new("row_split").with("lanes", lanes),
            state: TrialState::Pruned(removal),
            predicted_us: None,
            despite: None,
            features: None,
            created_at: Timestamp(0),
        };
        let trials = [
            trial(1, of_rule("hardware_utilization", Some(3.0))),
            trial(2, of_rule("hardware_utilization", Some(60.0))),
            trial(4, of_rule("rank", None)),
        ];
        let removed = of(&trials, DeviceKind::Cuda);
        let told: Vec<_> =
            removed.rows.iter().map(|row| (row.params.as_str(), row.compared.as_str())).collect();
        assert_eq!(
            told,
            [("lanes=2", "60 blocks, at least 66"), ("lanes=1", "3 blocks, at least 66")]
        );
    }
}
