//! One row of the list of jobs. Nothing but the share of a running job depends on the current time, so an unchanged list has the same
//! bytes.

use super::super::format;
use super::super::moment::Moment;
use super::super::work::{ending, stage_words, thousandths};
use crate::domain::{Digest, Job, JobState, Stage, Timestamp, Training, Work};
use std::collections::HashMap;

pub struct Row {
    pub id: String,
    pub state: &'static str,
    pub tone: &'static str,
    /// Absent for a training.
    pub matrix: Option<String>,
    pub name: String,
    /// The problem, or the subject of a training.
    pub problem: String,
    /// The device of a job, or the device class of a training.
    pub device: String,
    pub standing: Standing,
    pub speedup: Option<String>,
    pub time: Option<String>,
    pub created: Moment,
    /// The age of that time.
    pub age: String,
    pub duration: Duration,
    pub plan: Option<String>,
    pub cancellable: bool,
    /// What the columns are sorted by: microseconds, a factor, seconds.
    pub time_value: Option<f64>,
    pub speedup_value: Option<f64>,
    pub took_value: Option<f64>,
}

/// Seconds from the start to the end.
fn took(started: Option<Timestamp>, finished: Option<Timestamp>) -> Option<f64> {
    Some((finished?.0 - started?.0).max(0) as f64 / 1e3)
}

/// The progress.
pub enum Standing {
    Under {
        /// What is done, in words: `measuring, 3 of 17 trials`.
        text: String,
        done: u32,
        total: u32,
    },
    /// A longer description in words.
    Said { text: String, more: String },
}

/// The duration, or the start time if it is running.
pub enum Duration {
    None,
    Took(String),
    Since(Moment),
}

impl Row {
    pub fn of(work: Work, names: &HashMap<Digest, String>) -> Self {
        match work {
            Work::Tune(job) => Self::of_job(*job, names),
            Work::Train(training) => Self::of_training(*training),
        }
    }

    fn of_training(training: Training) -> Self {
        let scope = &training.request.scope;
        Self {
            state: training.state.name(),
            tone: format::tone(training.state),
            matrix: None,
            name: String::new(),
            problem: format!("Training of models for {}", scope.op.descriptor().title),
            device: scope.device_class.to_string(),
            standing: standing_of_training(&training),
            speedup: None,
            time: None,
            created: Moment::of(training.created_at),
            age: format::ago(training.created_at),
            duration: duration(training.started_at, training.finished_at),
            plan: None,
            cancellable: !training.state.is_final(),
            time_value: None,
            speedup_value: None,
            took_value: took(training.started_at, training.finished_at),
            id: training.id.to_string(),
        }
    }

    fn of_job(job: Job, names: &HashMap<Digest, String>) -> Self {
        let matrix = job.request.matrix;
        let ours = job.best.as_ref().filter(|best| !best.candidate.is_baseline());
        let name = names.get(&matrix).cloned().unwrap_or_else(|| format::short(&matrix));
        Self {
            state: job.state.name(),
            tone: format::tone(job.state),
            matrix: Some(matrix.to_string()),
            name,
            problem: format::problem_words(&job.request.problem),
            device: job.device.to_string(),
            standing: standing(&job),
            // The speed-up of the baseline over itself is not informative.
            speedup: ours.and_then(|best| best.speedup).map(format::times),
            time: job.best.as_ref().map(|best| format::micros(best.median_us)),
            created: Moment::of(job.created_at),
            age: format::ago(job.created_at),
            duration: duration(job.started_at, job.finished_at),
            plan: job.plan.map(|plan| plan.to_string()),
            cancellable: !job.state.is_final(),
            time_value: job.best.as_ref().map(|best| best.median_us),
            speedup_value: ours.and_then(|best| best.speedup),
            took_value: took(job.started_at, job.finished_at),
            id: job.id.to_string(),
        }
    }
}

fn standing(job: &Job) -> Standing {
    let (done, total) = (job.progress.done, job.progress.total);
    let trials = if done == 1 { "trial" } else { "trials" };
    match job.state {
        // In whole percents, so that the list of a job that waits for its next trial seldom has other bytes.
        JobState::Running => {
            let share = thousandths(job) / 10;
            let what = stage_words(job.stage);
            Standing::Under {
                text: match (job.stage, total) {
                    (Stage::Measuring, 1..) => {
                        format!("{what}, {} of {total} trials, {share} %", done.min(total))
                    }
                    _ => format!("{what}, {share} %"),
                },
                done: share,
                total: 100,
            }
        }
        JobState::Queued => said("waiting"),
        JobState::Failed => said(job.error.as_deref().unwrap_or("no reason is recorded")),
        JobState::Cancelled if done == 0 => said("before the first trial"),
        JobState::Cancelled => said(&format!("after {} {trials}", format::count(done.into()))),
        JobState::Succeeded => Standing::Said {
            text: format!("{} {trials}", format::count(done.into())),
            more: ending(job).to_owned(),
        },
    }
}

fn standing_of_training(training: &Training) -> Standing {
    match training.state {
        JobState::Running => Standing::Under {
            text: format!(
                "{}, {:.0} %",
                training.stage.name(),
                (100.0 * training.progress.clamp(0.0, 1.0)).floor()
            ),
            done: (100.0 * training.progress.clamp(0.0, 1.0)) as u32,
            total: 100,
        },
        JobState::Queued => said("waiting"),
        JobState::Failed => said(training.error.as_deref().unwrap_or("no reason is recorded")),
        JobState::Cancelled => said("cancelled"),
        JobState::Succeeded => said(training.message.as_deref().unwrap_or_default()),
    }
}

fn said(text: &str) -> Standing {
    Standing::Said { text: text.to_owned(), more: text.to_owned() }
}

fn duration(started: Option<Timestamp>, finished: Option<Timestamp>) -> Duration {
    match (started, finished) {
        (Some(started), Some(finished)) => {
            let took = (finished.0 - started.0).max(0) as f64 / 1e3;
            // No duration for work that ended before it began.
            if took < 0.05 { Duration::None } else { Duration::Took(format::seconds(took)) }
        }
        (Some(started), None) => Duration::Since(Moment::of(started)),
        (None, _) => Duration::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::job::{Best, Outlook, Progress};
    use crate::domain::{Candidate, DeviceId, JobId, JobRequest, StoppedBy};

    fn job(state: JobState) -> Job {
        let request = format!(
            r#"{{"matrix":"{}","problem":{{"op":"spmm","n":8}},"device":"cpu"}}"#,
            "ab".repeat(32)
        );
        Job {
            id: JobId::fresh(),
            request: serde_json::from_str::<JobRequest>(&request).unwrap(),
            device: DeviceId("cpu".to_owned()),
            device_class: None,
            only_on: None,
            ran_on: None,
            state,
            stage: Stage::Measuring,
            progress: Progress { done: 70, total: 56 },
            best: None,
            plan: None,
            outlook: None,
            follow_up: None,
            priority: 0,
            stopped_by: None,
            error: Some("the device is gone".to_owned()),
            attempts: 1,
            search_seconds: 1.0,
            created_at: Timestamp(1_795_227_284_123),
            started_at: Some(Timestamp(1_795_227_284_123)),
            finished_at: state.is_final().then_some(Timestamp(1_795_227_287_323)),
        }
    }

    #[test]
    fn a_running_job_has_a_bar_that_is_never_over_full() {
        let row = Row::of(job(JobState::Running).into(), &HashMap::new());
        let Standing::Under { text, done, total } = &row.standing else { panic!() };
        assert_eq!(
            (text.as_str(), *done, *total),
            ("measuring candidates, 56 of 56 trials, 90 %", 90, 100)
        );
        assert!(matches!(row.duration, Duration::Since(_)) && row.cancellable);
        assert_eq!(
            (row.name.as_str(), row.created.text.as_str()),
            ("ababababab", "2026-11-21 02:14")
        );
    }

    #[test]
    fn loading_has_a_share_of_the_work() {
        let began = Timestamp(Timestamp::now().0 - 5_000);
        let job = Job {
            stage: Stage::Loading,
            progress: Progress { done: 0, total: 0 },
            outlook: Some(Outlook { began, seconds: 10.0 }),
            ..job(JobState::Running)
        };
        let row = Row::of(job.into(), &HashMap::new());
        let Standing::Under { text, done, total } = &row.standing else { panic!() };
        assert_eq!((text.as_str(), *done, *total), ("loading the matrix, 5 %", 5, 100));
    }

    #[test]
    fn a_search_that_was_ended_early_is_not_called_cancelled() {
        let told = |by| {
            let job = Job { stopped_by: Some(by), ..job(JobState::Succeeded) };
            let Standing::Said { more, .. } = Row::of(job.into(), &HashMap::new()).standing else {
                panic!()
            };
            more
        };
        let early = "The search was ended early: the plan is the best until then.";
        assert_eq!(told(StoppedBy::Cancelled), early);
        assert_eq!(told(StoppedBy::Completed), "Every chosen candidate was tried.");
    }

    #[test]
    fn the_baseline_itself_has_a_time_and_no_speed_up() {
        let best = |family: &str| Best {
            candidate: Candidate::new(family).with_text("algorithm", "mkl_mm"),
            median_us: 12.5,
            speedup: Some(1.0),
        };
        let told = |family| {
            let job = Job { best: Some(best(family)), ..job(JobState::Succeeded) };
            let row = Row::of(job.into(), &HashMap::new());
            (row.speedup, row.time)
        };
        let time = Some("12.5 µs".to_owned());
        assert_eq!(told("vendor"), (None, time.clone()));
        assert_eq!(told("row_split"), (Some("1.00×".to_owned()), time));
    }

    #[test]
    fn a_failed_job_says_why_and_how_long_it_took() {
        let row = Row::of(job(JobState::Failed).into(), &HashMap::new());
        assert!(
            matches!(&row.standing, Standing::Said { text, .. } if text == "the device is gone")
        );
        assert!(matches!(&row.duration, Duration::Took(text) if text == "3.2 s"));
        assert!(!row.cancellable);
    }
}
