//! A job: a request to find a plan, and its progress.

use super::{
    Candidate, Clock, DeviceClass, DeviceId, DeviceKey, Digest, Fixed, PlanId, Problem, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A job's id: a UUIDv7, so ids sort by creation time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct JobId(pub String);

impl JobId {
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Digest of an uploaded matrix.
    pub matrix: Digest,
    pub problem: Problem,
    /// `auto` (default), a class in full, or one device by its name (`cpu`, `cuda:0`) or key.
    #[serde(default = "auto_device")]
    pub device: String,
    #[serde(default)]
    pub search: Search,
    /// How often the client expects to call the kernel; if absent, preprocessing time is not considered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_calls: Option<u64>,
}

fn auto_device() -> String {
    "auto".to_owned()
}

/// With fewer trials than this a search says little of what else there is.
const FEW: u32 = 8;

/// Search options. Absent fields take the server's configured defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    #[serde(default)]
    pub strategy: SearchStrategy,
    /// `ranked`: how many of the best-ranked candidates to measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Budget of wall-clock seconds for loading, trials and finals together; when it is exhausted the best candidate so far wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Budget of trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<u32>,
    /// Seed of the random operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// `predicted`: consent to a follow-up job that measures, after the predicted plan is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measure: bool,
    /// The kernel families that candidates are restricted to, by name; empty for all. A vendor's routine is measured in any
    /// case, as the baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<String>,
    /// Parameter values that candidates must have.
    #[serde(default, skip_serializing_if = "Fixed::is_empty")]
    pub fixed: Fixed,
    /// With one family: only the candidate whose parameters are those that are fixed, and no others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// The clock by which candidates are timed and chosen. Absent in a stored request of earlier versions, whose trials are
    /// isolated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// The other part of a problem with both triangles: a follow-up job tunes it as this one was. Set by the service, which makes two
    /// jobs of such a request; no client asks for it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Problem>,
}

impl Search {
    /// What kept the search from being a usual one, in words: what the request ruled out, or that it ended after few trials.
    pub fn narrowed(&self, stopped_by: StoppedBy, measured: u32) -> Option<String> {
        let mut how = Vec::new();
        if self.exact {
            how.push("one candidate alone".to_owned());
        } else {
            if !self.families.is_empty() {
                how.push(format!("only the families {}", self.families.join(", ")));
            }
            if !self.fixed.is_empty() {
                how.push("fixed values of parameters".to_owned());
            }
        }
        if let Some(few) = self.top_k.filter(|few| *few < FEW) {
            how.push(format!("at most {few} of the candidates"));
        }
        if stopped_by != StoppedBy::Completed && measured < FEW {
            how.push(format!("it was ended after {measured} measured trials"));
        }
        (!how.is_empty()).then(|| how.join("; "))
    }

    /// Whether a candidate of this family is asked for.
    pub fn admits(&self, family: &str) -> bool {
        self.families.is_empty() || self.families.iter().any(|asked| asked == family)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SearchStrategy {
    /// Measure the K candidates that the model ranks highest.
    #[default]
    Ranked,
    /// Measure every candidate that passes the constraints.
    Exhaustive,
    /// Choose by the model alone, without measuring.
    Predicted,
    /// Successive halving: many candidates with few samples each, then fewer candidates with more samples, until one is
    /// left.
    Halving,
    /// A given number of candidates, half by prediction and half at random, as training data for models.
    Sampled,
    /// Every candidate that can run, whatever the rules prefer, or a given number of them at random: it shows what the rules
    /// cost.
    Full,
}

impl SearchStrategy {
    pub const ALL: [Self; 6] =
        [Self::Ranked, Self::Exhaustive, Self::Predicted, Self::Halving, Self::Sampled, Self::Full];

    /// As requests spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ranked => "ranked",
            Self::Exhaustive => "exhaustive",
            Self::Predicted => "predicted",
            Self::Halving => "halving",
            Self::Sampled => "sampled",
            Self::Full => "full",
        }
    }

    /// The strategy of a request that names none.
    pub const fn default_for(problem: &Problem) -> Self {
        problem.op().descriptor().strategy
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl JobState {
    /// All states, in the order in which a job passes through them.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a running job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Waiting,
    Loading,
    Pruning,
    Measuring,
    Finals,
    Done,
}

impl Stage {
    /// Every stage, in the order in which a job passes them.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Loading, Self::Pruning, Self::Measuring, Self::Finals, Self::Done];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Loading => "loading",
            Self::Pruning => "pruning",
            Self::Measuring => "measuring",
            Self::Finals => "finals",
            Self::Done => "done",
        }
    }
}

/// The share of a job's work that its matrix's loading is counted as, and that its trials end at: what follows are the finals.
const LOADED: f64 = 0.1;
const MEASURED: f64 = 0.9;

/// When the current stage of a running job began, and about how long it takes; known of loading and of the finals, whose steps are not
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    pub began: Timestamp,
    pub seconds: f64,
}

/// The share of a running job's work that is done, 0 to 1, as bars show it.
///
/// `in_stage` is the share of the stage's expected time that has passed, for stages whose steps are not counted. Trials count by their
/// number, or by the share of the time budget that has been spent if that is larger, since it may end them.
pub fn share_done(stage: Stage, progress: Progress, in_stage: f64, budget_spent: f64) -> f64 {
    // What takes longer than was expected is not done.
    let in_stage = in_stage.clamp(0.0, 0.95);
    match stage {
        Stage::Waiting => 0.0,
        Stage::Loading => LOADED * in_stage,
        Stage::Pruning => LOADED,
        Stage::Measuring => {
            let tried = f64::from(progress.done) / f64::from(progress.total.max(1));
            LOADED + (MEASURED - LOADED) * tried.max(budget_spent).clamp(0.0, 1.0)
        }
        Stage::Finals => MEASURED + (1.0 - MEASURED) * in_stage,
        Stage::Done => 1.0,
    }
}

/// What ended a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// Every chosen candidate was tried.
    Completed,
    Seconds,
    Trials,
    Cancelled,
}

/// Trials done and trials planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Progress {
    pub done: u32,
    pub total: u32,
}

/// The best candidate so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub candidate: Candidate,
    pub median_us: f64,
    /// Baseline median divided by this median; absent while no baseline is known.
    pub speedup: Option<f64>,
}

/// A job and its current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub request: JobRequest,
    /// What its worker calls the device that it runs on or ran on; before, a device of its class by which it was judged.
    pub device: DeviceId,
    /// Any device of this class may run it. Absent in jobs of earlier versions, which wait for a device of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<DeviceClass>,
    /// The one device that may, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_on: Option<DeviceKey>,
    /// The device that it runs on or ran on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_on: Option<DeviceKey>,
    pub state: JobState,
    pub stage: Stage,
    pub progress: Progress,
    /// Of a running job, if its stage has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    pub best: Option<Best>,
    pub plan: Option<PlanId>,
    /// The job that measures what this job's plan predicts, requested by `search.measure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_up: Option<JobId>,
    /// Jobs of a higher one come first.
    #[serde(default)]
    pub priority: i32,
    pub stopped_by: Option<StoppedBy>,
    /// Why it failed, for the client.
    pub error: Option<String>,
    /// How often a worker claimed the job; claims released by an orderly shutdown do not count.
    pub attempts: u32,
    /// Wall-clock seconds of search, loading included, over all attempts.
    pub search_seconds: f64,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_says_what_narrowed_it() {
        let completed = StoppedBy::Completed;
        let usual = Search { top_k: Some(16), ..Search::default() };
        assert_eq!(usual.narrowed(completed, 3), None, "there were no more candidates");
        assert_eq!(usual.narrowed(StoppedBy::Trials, 8), None);
        let few = usual.narrowed(StoppedBy::Trials, 1).unwrap();
        assert!(few.contains("after 1 measured"), "{few}");
        let narrow =
            Search { families: vec!["ell".to_owned()], top_k: Some(1), ..Search::default() };
        let told = narrow.narrowed(completed, 2).unwrap();
        assert_eq!(told, "only the families ell; at most 1 of the candidates");
        let one = Search { exact: true, top_k: None, ..narrow };
        assert_eq!(one.narrowed(completed, 2).unwrap(), "one candidate alone");
    }

    #[test]
    fn the_share_of_a_job_grows_through_all_of_its_stages() {
        let at = |stage, done, in_stage, spent| {
            share_done(stage, Progress { done, total: 16 }, in_stage, spent)
        };
        let shares = [
            at(Stage::Waiting, 0, 0.0, 0.0),
            at(Stage::Loading, 0, 0.5, 0.0),
            // A stage that takes longer than was expected has not ended.
            at(Stage::Loading, 0, 7.0, 0.0),
            at(Stage::Pruning, 0, 0.0, 0.0),
            at(Stage::Measuring, 4, 0.0, 0.1),
            // The budget ends the search before all have been tried.
            at(Stage::Measuring, 5, 0.0, 0.9),
            at(Stage::Measuring, 16, 0.0, 0.2),
            at(Stage::Finals, 16, 0.3, 1.2),
            at(Stage::Finals, 16, 9.0, 1.2),
            at(Stage::Done, 16, 0.0, 1.2),
        ];
        assert!(shares.is_sorted_by(|a, b| a < b), "{shares:?}");
        assert_eq!((shares[0], shares[9]), (0.0, 1.0));
    }
}
