//! The trials without a time: the number of each kind, and the reasons.

use crate::domain::{Outcome, Trial};

/// Maximum number of reasons shown per kind; the API has all.
const MOST: usize = 6;

/// The failed trials of one kind.
pub struct Kind {
    pub name: String,
    pub tone: &'static str,
    pub count: usize,
    pub reasons: Vec<Reason>,
    /// Number of reasons that are not shown.
    pub more: usize,
}

/// A reason and its number of occurrences.
pub struct Reason {
    pub text: String,
    pub times: usize,
    /// The candidates with this reason.
    pub who: String,
}

/// Kinds in the order of their first occurrence.
pub fn kinds(trials: &[Trial]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for trial in trials {
        let Some(outcome) = trial.state.outcome() else { continue };
        let Some(detail) = detail(outcome) else { continue };
        let name = name(outcome);
        let at = kinds.iter().position(|kind| kind.name == name).unwrap_or_else(|| {
            let tone = tone(outcome);
            kinds.push(Kind { name, tone, count: 0, reasons: Vec::new(), more: 0 });
            kinds.len() - 1
        });
        kinds[at].tell(trial, detail);
    }
    kinds
}

impl Kind {
    fn tell(&mut self, trial: &Trial, detail: &str) {
        self.count += 1;
        match self.reasons.iter().position(|reason| reason.text == detail) {
            Some(at) => self.reasons[at].times += 1,
            None if self.reasons.len() < MOST => self.reasons.push(Reason {
                text: detail.to_owned(),
                times: 1,
                who: trial.candidate.to_string(),
            }),
            None => self.more += 1,
        }
    }
}

/// The name of the kind on pages.
pub fn name(outcome: &Outcome) -> String {
    words(outcome.counted_as())
}

/// A name of the API as words: `compile failed`.
pub fn words(counted_as: &str) -> String {
    counted_as.replace('_', " ")
}

/// The reason why there is no time.
pub fn detail(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Measured { .. } => None,
        Outcome::CompileFailed { detail }
        | Outcome::Refused { detail }
        | Outcome::Wrong { detail, .. }
        | Outcome::TimedOut { detail, .. }
        | Outcome::Crashed { detail } => Some(detail),
    }
}

/// The kinds of failure, as in [`Outcome::counted_as`], each with the CSS class of its badge. A refusal is harmless, and so
/// is what was stopped: its kernel stopped itself, being slow, or the job had no time left for it.
pub const TONES: [(&str, &str); 6] = [
    ("compile_failed", "warn"),
    ("refused", "idle"),
    ("wrong", "bad"),
    ("timed_out", "bad"),
    ("stopped", "idle"),
    ("crashed", "bad"),
];

/// The CSS class of an outcome's badge.
pub fn tone(outcome: &Outcome) -> &'static str {
    let counted_as = outcome.counted_as();
    TONES.iter().find(|(kind, _)| *kind == counted_as).map_or("bad", |(_, tone)| tone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, JobId, Timestamp, TrialState};

    fn failed(ordinal: u32, outcome: Outcome) -> Trial {
        Trial {
            job: JobId("j".to_owned()),
            ordinal,
            candidate: Candidate::new("row_split").with("lanes", ordinal.into()),
            state: TrialState::Tried(outcome),
            predicted_us: None,
            despite: None,
            features: None,
            created_at: Timestamp(0),
        }
    }

    #[test]
    fn equal_reasons_are_told_once_and_counted() {
        let refused = |detail: &str| Outcome::Refused { detail: detail.to_owned() };
        let late = |stopped| {
            let detail = "late".to_owned();
            Outcome::TimedOut { detail, stopped, out_of_time: false }
        };
        let outcomes = [refused("a"), late(false), refused("a"), refused("b"), late(true)];
        let trials: Vec<Trial> = outcomes.into_iter().zip(0..).map(|(o, n)| failed(n, o)).collect();
        let told: Vec<(String, usize, usize)> =
            kinds(&trials).into_iter().map(|k| (k.name, k.count, k.reasons.len())).collect();
        let expected = [("refused", 3, 2), ("timed out", 1, 1), ("stopped", 1, 1)];
        assert_eq!(told, expected.map(|(name, count, why)| (name.to_owned(), count, why)));
    }
}
