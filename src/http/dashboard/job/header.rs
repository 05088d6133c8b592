//! The header of a job's page: the request, its progress, and the best result so far.

use super::tried::{BASELINE, parameters};
use crate::domain::job::Best;
use crate::domain::{Job, JobState, SearchStrategy, Timestamp};
use crate::http::dashboard::{format, work};

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
    /// The follow-up job is that of the other triangle.
    pub goes_on: bool,
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
    /// `1.76× over MKL`, or that it is the baseline itself.
    pub against: Option<String>,
    pub family: String,
    pub params: String,
}

impl Header {
    /// `baseline` is the name of what its speed-up is over, if that is known yet.
    pub fn new(job: &Job, name: Option<String>, tried: u64, baseline: Option<&str>) -> Self {
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
            stage: work::state_words(job.state).unwrap_or(work::stage_words(job.stage)),
            stage_name: job.stage.name(),
            live: !job.state.is_final(),
            failed: job.state == JobState::Failed,
            done: job.progress.done,
            total: job.progress.total,
            share: work::thousandths(job),
            outlook: job
                .outlook
                .map(|outlook| format!("{} {}", outlook.began.to_rfc3339(), outlook.seconds)),
            error: job.error.clone(),
            ending: ending(job, tried),
            plan: job.plan.as_ref().map(ToString::to_string),
            follow_up: job.follow_up.as_ref().map(ToString::to_string),
            goes_on: job.request.search.then.is_some(),
            best: job.best.as_ref().map(|best| BestSoFar {
                time: format::micros(best.median_us),
                against: against(best, baseline),
                family: format::family(&best.candidate),
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

fn against(best: &Best, baseline: Option<&str>) -> Option<String> {
    let name = baseline.unwrap_or(BASELINE);
    match best.speedup {
        _ if best.candidate.is_baseline() => Some(format!("the baseline itself, {name}")),
        speedup => speedup.map(|ratio| format!("{} over {name}", format::times(ratio))),
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
        JobState::Succeeded => Some(work::ending(job).to_owned()),
    }
}

/// `ranked, top 16, at most 60 s`.
fn search_words(job: &Job) -> String {
    let search = &job.request.search;
    let top_k = search.top_k.filter(|_| search.strategy == SearchStrategy::Ranked);
    let limits = [
        top_k.map(|k| format!("top {k}")),
        search
            .seconds
            .map(|seconds| format!("at most {}, loading included", format::seconds(seconds))),
        search.trials.map(|trials| format!("at most {trials} trials")),
        search.clock.map(|clock| format!("timed with {}", clock.how())),
    ];
    let words =
        std::iter::once(search.strategy.name().to_owned()).chain(limits.into_iter().flatten());
    words.collect::<Vec<_>>().join(", ")
}
