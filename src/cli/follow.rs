//! Follows a job to its end: a progress bar on standard error, driven by the server's events.

use super::client::events::Happening;
use super::client::{Answer, Client};
use crate::domain::job::share_done;
use crate::domain::{JobState, Stage};
use crate::wire::Job;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Consecutive broken event streams after which the server counts as unreachable.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
/// How often the bar is drawn anew.
const TICK: Duration = Duration::from_millis(200);
/// Steps of the bar.
const WHOLE: u64 = 1000;

/// What the job may spend, said before it does; `None` if nothing bounds it but its candidates.
pub fn budget(job: &Job) -> Option<String> {
    let seconds = job.search.seconds.map(|seconds| {
        format!("{seconds} s from the start of loading, over all trials, to the end of the finals")
    });
    let trials = job.search.trials.map(|trials| format!("{trials} trials"));
    let said: Vec<String> = seconds.into_iter().chain(trials).collect();
    let each = if job.then.is_some() { ", for each of the two triangles" } else { "" };
    (!said.is_empty()).then(|| format!("budget   {}{each}", said.join("; at most ")))
}

/// What is shown while waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    Progress,
    Nothing,
}

/// Waits for the job's end; an error if it failed or was cancelled. If this is dropped, the job continues.
pub async fn follow(client: &Client, id: &str, show: Show) -> anyhow::Result<Answer<Job>> {
    let bar = bar(show);
    let (mut last, mut failures) = (0, 0);
    let mut seen = None;
    loop {
        match watch(client, id, (&mut last, &mut seen), &bar).await {
            Ok(()) => failures = 0,
            Err(error) if failures + 1 < ATTEMPTS => {
                failures += 1;
                tracing::debug!(%error, "retrying");
            }
            Err(error) => return Err(error),
        }
        match client.job(id).await {
            Ok(job) if job.view.state.is_final() => {
                bar.finish_and_clear();
                return ended(job);
            }
            Ok(_) => {}
            Err(error) if failures == 0 => return Err(error),
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Follows one event stream to its end, from the event after `last`.
async fn watch(
    client: &Client,
    id: &str,
    (last, seen): (&mut u64, &mut Option<Seen>),
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let Some(mut events) = client.events(id, *last).await? else { return Ok(()) };
    let mut ticks = tokio::time::interval(TICK);
    loop {
        let next = tokio::select! {
            next = events.next() => next?,
            _ = ticks.tick() => {
                // A stage whose steps are not counted goes on as well.
                if let Some(seen) = &*seen {
                    seen.draw(bar);
                }
                continue;
            }
        };
        let Some((seq, happening)) = next else { break };
        *last = seq;
        match happening {
            Happening::Job(job) => {
                let now = Seen::of(job, seen.as_ref(), Instant::now());
                seen.insert(now).draw(bar);
            }
            Happening::Log(message) => bar.suspend(|| tracing::info!("{message}")),
            Happening::Trial(trial) => {
                // Failed candidates are reported, slow ones are not.
                if let Some(detail) = trial.detail {
                    bar.suspend(|| {
                        tracing::info!(candidate = %trial.candidate, state = trial.state, detail);
                    });
                }
            }
        }
    }
    Ok(())
}

fn ended(job: Answer<Job>) -> anyhow::Result<Answer<Job>> {
    match job.view.state {
        JobState::Succeeded => Ok(job),
        JobState::Cancelled => bail!("job {} was cancelled", job.view.id),
        _ => bail!(
            "job {} failed: {}",
            job.view.id,
            job.view.error.as_deref().unwrap_or("no reason given")
        ),
    }
}

fn bar(show: Show) -> ProgressBar {
    let target = match show {
        Show::Progress => ProgressDrawTarget::stderr(),
        Show::Nothing => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(WHOLE), target);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix:>10} {bar:24} {percent:>3} % {elapsed:>4} {wide_msg}")
    {
        bar.set_style(style);
    }
    if show == Show::Progress {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

/// A job as it was last told, and since when it runs and is in its stage by this machine's clock.
struct Seen {
    job: Box<Job>,
    /// The budget counts from here: not from when it was queued.
    started: Instant,
    stage: Instant,
}

impl Seen {
    fn of(job: Box<Job>, before: Option<&Self>, now: Instant) -> Self {
        let same = before.filter(|before| before.job.stage == job.stage);
        // A job whose worker was lost waits again.
        let ran = before.filter(|before| before.job.stage != Stage::Waiting);
        Self {
            started: ran.map_or(now, |before| before.started),
            stage: same.map_or(now, |before| before.stage),
            job,
        }
    }

    /// The share of the work that is done.
    fn share(&self, now: Instant) -> f64 {
        let Job { stage, progress, ref outlook, ref search, .. } = *self.job;
        let since = |then: Instant| now.saturating_duration_since(then).as_secs_f64();
        let within = outlook.as_ref().map_or(0.0, |outlook| since(self.stage) / outlook.seconds);
        let spent = search.seconds.map_or(0.0, |seconds| since(self.started) / seconds);
        share_done(stage, progress, within, spent)
    }

    fn draw(&self, bar: &ProgressBar) {
        let Job { stage, progress, ref best, ref outlook, .. } = *self.job;
        let share = self.share(Instant::now());
        bar.set_prefix(stage.name());
        // A bar does not go back, though an estimate may.
        bar.set_position(bar.position().max((share * WHOLE as f64) as u64));
        let trials = match progress.total {
            0 => outlook.as_ref().map_or_else(String::new, |outlook| {
                format!("about {:.0} s", outlook.seconds.max(1.0))
            }),
            total => format!("{}/{total} trials", progress.done),
        };
        let best = best.as_ref().map_or_else(String::new, |best| {
            let speedup = best
                .speedup
                .map(|factor| format!(", {factor:.2}x the baseline"))
                .unwrap_or_default();
            format!(", best {:.1} us{speedup}: {}", best.median_us, best.candidate)
        });
        bar.set_message(format!("{trials}{best}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::job::Progress;
    use serde_json::json;

    fn job(stage: &str) -> Box<Job> {
        let job = json!({
            "kind": "tune", "id": "j", "matrix": crate::domain::Digest::of(b"m"),
            "problem": {"op": "spmm", "n": 8}, "device": "cpu",
            "search": {"strategy": "ranked", "seconds": 10.0}, "state": "running", "stage": stage,
            "progress": {"done": 0, "total": 4}, "attempts": 1, "created_at": "2026-11-21T00:00:00Z",
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn time_in_the_queue_is_not_of_the_budget() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let queued = Seen::of(job("waiting"), None, at(0));
        assert_eq!(queued.share(at(100)), 0.0);
        let loading = Seen::of(job("loading"), Some(&queued), at(100));
        let measuring = Seen::of(job("measuring"), Some(&loading), at(101));
        let none = share_done(Stage::Measuring, Progress { done: 0, total: 4 }, 0.0, 0.1);
        assert_eq!(measuring.share(at(101)), none);
        assert!(measuring.share(at(106)) > measuring.share(at(101)));
        // Its worker was lost, and another one begins again.
        let again = Seen::of(job("waiting"), Some(&measuring), at(110));
        let resumed = Seen::of(job("measuring"), Some(&again), at(200));
        assert_eq!(resumed.started, at(200));
    }

    #[test]
    fn a_budget_says_what_it_covers() {
        let mut job = job("waiting");
        let seconds = "10 s from the start of loading, over all trials, to the end of the finals";
        assert_eq!(budget(&job), Some(format!("budget   {seconds}")));
        job.search.trials = Some(8);
        assert_eq!(budget(&job), Some(format!("budget   {seconds}; at most 8 trials")));
        (job.search.seconds, job.search.trials) = (None, None);
        assert_eq!(budget(&job), None);
    }
}
