//! Follows a job to its end: a progress bar on standard error, driven by the server's events.

use super::client::events::Happening;
use super::client::{Answer, Client};
use crate::domain::JobState;
use crate::domain::job::share_done;
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
    loop {
        match watch(client, id, &mut last, &bar).await {
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

/// Follows one event stream to its end.
async fn watch(client: &Client, id: &str, last: &mut u64, bar: &ProgressBar) -> anyhow::Result<()> {
    let Some(mut events) = client.events(id, *last).await? else { return Ok(()) };
    let mut seen: Option<Seen> = None;
    let mut ticks = tokio::time::interval(TICK);
    loop {
        let next = tokio::select! {
            next = events.next() => next?,
            _ = ticks.tick() => {
                // A stage whose steps are not counted goes on as well.
                if let Some(seen) = &seen {
                    seen.draw(bar);
                }
                continue;
            }
        };
        let Some((seq, happening)) = next else { break };
        *last = seq;
        match happening {
            Happening::Job(job) => {
                let seen = seen.insert(Seen::of(job, seen.as_ref()));
                seen.draw(bar);
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

/// A job as it was last told, and since when it is in its stage by this machine's clock.
struct Seen {
    job: Box<Job>,
    started: Instant,
    stage: Instant,
}

impl Seen {
    fn of(job: Box<Job>, before: Option<&Self>) -> Self {
        let now = Instant::now();
        let same = before.filter(|before| before.job.stage == job.stage);
        Self {
            started: before.map_or(now, |before| before.started),
            stage: same.map_or(now, |before| before.stage),
            job,
        }
    }

    fn draw(&self, bar: &ProgressBar) {
        let Job { stage, progress, ref best, ref outlook, ref search, .. } = *self.job;
        let within = outlook
            .as_ref()
            .map_or(0.0, |outlook| self.stage.elapsed().as_secs_f64() / outlook.seconds);
        let spent =
            search.seconds.map_or(0.0, |seconds| self.started.elapsed().as_secs_f64() / seconds);
        let share = share_done(stage, progress, within, spent);
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
            let speedup =
                best.speedup.map(|factor| format!(", {factor:.2}x the vendor")).unwrap_or_default();
            format!(", best {:.1} us{speedup}: {}", best.median_us, best.candidate)
        });
        bar.set_message(format!("{trials}{best}"));
    }
}
