//! The header of a job's page: the request, its progress, and the best result so far.

use super::tried::parameters;
use crate::domain::job::{Best, share_done};
use crate::domain::{Job, JobState, SearchStrategy, Stage, StoppedBy, Timestamp};
use crate::http::dashboard::format;

/// The part above the charts.
pub struct Header {
    pub id: String,
    pub matrix: String,
    pub name: String,
    pub problem: String,
    pub device: String,
    pub state: &'static str,
    pub tone: &'static str,
    pub stage: &'static str,
    /// As the API names it.
    pub stage_name: &'static str,
    pub live: bool,
    pub failed: bool,
    pub done: u32,
    pub total: u32,
    /// The share of all its work that is done, in thousandths: loading, trials and finals.
    pub share: u32,
    /// When the stage began and how long it takes, for the page's script; `{began} {seconds}`.
    pub outlook: Option<String>,
    pub error: Option<String>,
    /// How the job ended, in a sentence, if it has.
    pub ending: Option<String>,
    pub plan: Option<String>,
    /// The measuring job that follows a predicted plan.
    pub follow_up: Option<String>,
    pub best: Option<BestSoFar>,
    pub created: String,
    pub age: String,
    /// Seconds from the start to now or to the end; the page's script continues counting.
    pub elapsed: Option<f64>,
    pub lasted: Option<String>,
    pub search: String,
    pub expected_calls: Option<String>,
    pub attempts: u32,
}

/// The fastest candidate so far.
pub struct BestSoFar {
    pub time: String,
    /// `1.76× the vendor's speed`, or that it is the vendor's own routine.
    pub against: Option<String>,
    pub family: String,
    pub params: String,
}

impl Header {
    pub fn new(job: &Job, name: Option<String>, tried: u64) -> Self {
        let elapsed = job.started_at.map(|start| {
            let end = job.finished_at.unwrap_or_else(Timestamp::now);
            (end.0 - start.0).max(0) as f64 / 1e3
        });
        Self {
            id: job.id.to_string(),
            matrix: job.request.matrix.to_string(),
            name: name.unwrap_or_else(|| format::short(&job.request.matrix)),
            problem: format::problem_words(&job.request.problem),
            device: job.device.to_string(),
            state: job.state.name(),
            tone: format::tone(job.state),
            stage: state_words(job.state).unwrap_or(stage_words(job.stage)),
            stage_name: job.stage.name(),
            live: !job.state.is_final(),
            failed: job.state == JobState::Failed,
            done: job.progress.done,
            total: job.progress.total,
            share: thousandths(job),
            outlook: job
                .outlook
                .map(|outlook| format!("{} {}", outlook.began.to_rfc3339(), outlook.seconds)),
            error: job.error.clone(),
            ending: ending(job, tried),
            plan: job.plan.as_ref().map(ToString::to_string),
            follow_up: job.follow_up.as_ref().map(ToString::to_string),
            best: job.best.as_ref().map(|best| BestSoFar {
                time: format::micros(best.median_us),
                against: against(best),
                family: best.candidate.family.clone(),
                params: parameters(&best.candidate),
            }),
            created: job.created_at.to_rfc3339(),
            age: format::ago(job.created_at),
            elapsed,
            // No duration for a job that ended before it began to work, rather than `0.0 s`.
            lasted: elapsed.filter(|s| *s >= 0.05).map(format::seconds),
            search: search_words(job),
            expected_calls: job.request.expected_calls.map(format::count),
            attempts: job.attempts,
        }
    }
}

impl Header {
    /// Ended before its work was known.
    pub const fn idle(&self) -> bool {
        !self.live && self.total == 0
    }
}

/// The share of a job's work that is done; a job that has ended has a full bar, unless it was stopped.
pub fn thousandths(job: &Job) -> u32 {
    let since = |at: Timestamp| (Timestamp::now().0 - at.0).max(0) as f64 / 1e3;
    let Job { stage, progress, .. } = *job;
    let share = match job.state {
        JobState::Succeeded => 1.0,
        JobState::Queued => 0.0,
        JobState::Running => {
            let in_stage = job.outlook.map(|outlook| since(outlook.began) / outlook.seconds);
            let budget = job.request.search.seconds.zip(job.started_at);
            let spent = budget.map(|(seconds, started)| since(started) / seconds);
            share_done(stage, progress, in_stage.unwrap_or(0.0), spent.unwrap_or(0.0))
        }
        JobState::Failed | JobState::Cancelled => share_done(stage, progress, 0.0, 0.0),
    };
    (1e3 * share) as u32
}

fn against(best: &Best) -> Option<String> {
    match best.speedup {
        _ if best.candidate.is_baseline() => Some("the vendor's own routine".to_owned()),
        speedup => speedup.map(|ratio| format!("{} the vendor's speed", format::times(ratio))),
    }
}

/// The activity of a job in this state, if its stage does not tell.
pub const fn state_words(state: JobState) -> Option<&'static str> {
    match state {
        JobState::Queued => Some("waiting for its device"),
        JobState::Running => None,
        JobState::Succeeded => Some("done"),
        // The state says enough.
        JobState::Failed | JobState::Cancelled => Some(""),
    }
}

/// The activity of a running job.
pub const fn stage_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Waiting => "waiting for its device",
        Stage::Loading => "loading the matrix",
        Stage::Pruning => "pruning candidates",
        Stage::Measuring => "measuring candidates",
        Stage::Finals => "timing the finalists in turn",
        Stage::Done => "done",
    }
}

fn ending(job: &Job, tried: u64) -> Option<String> {
    let kept = match tried {
        0 => "No trial had been made.".to_owned(),
        1 => "Its one trial is kept and shown below.".to_owned(),
        many => format!("Its {} trials are kept and shown below.", format::count(many)),
    };
    match job.state {
        JobState::Queued | JobState::Running => None,
        JobState::Failed => Some(kept),
        JobState::Cancelled => Some(format!("Cancelled; no plan was written. {kept}")),
        JobState::Succeeded => Some(match job.stopped_by {
            Some(StoppedBy::Seconds) => "Its budget of seconds ended the search.".to_owned(),
            Some(StoppedBy::Trials) => "Its budget of trials ended the search.".to_owned(),
            Some(StoppedBy::Cancelled) => {
                "It was ended early; the plan is the best until then.".to_owned()
            }
            _ if job.request.search.strategy == SearchStrategy::Predicted => {
                "The model chose; nothing was measured.".to_owned()
            }
            Some(StoppedBy::Completed) | None => "Every chosen candidate was tried.".to_owned(),
        }),
    }
}

/// `ranked, top 16, at most 60 s`.
fn search_words(job: &Job) -> String {
    let search = &job.request.search;
    let strategy = match search.strategy {
        SearchStrategy::Ranked => "ranked",
        SearchStrategy::Exhaustive => "exhaustive",
        SearchStrategy::Predicted => "predicted",
        SearchStrategy::Halving => "halving",
        SearchStrategy::Sampled => "sampled",
        SearchStrategy::Full => "full",
    };
    let top_k = search.top_k.filter(|_| search.strategy == SearchStrategy::Ranked);
    let limits = [
        top_k.map(|k| format!("top {k}")),
        search
            .seconds
            .map(|seconds| format!("at most {}, loading included", format::seconds(seconds))),
        search.trials.map(|trials| format!("at most {trials} trials")),
        search.clock.map(|clock| format!("timed with {}", clock.how())),
    ];
    let words = std::iter::once(strategy.to_owned()).chain(limits.into_iter().flatten());
    words.collect::<Vec<_>>().join(", ")
}
