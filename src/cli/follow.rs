//! Follows a job to its end: a progress bar on standard error, driven by the server's events.

use super::client::events::Happening;
use super::client::{Answer, Client};
use crate::domain::{JobState, Stage};
use crate::wire::Job;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Consecutive broken event streams after which the server counts as unreachable.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

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
    while let Some((seq, happening)) = events.next().await? {
        *last = seq;
        match happening {
            Happening::Job(job) => draw(bar, &job),
            Happening::Log(message) => bar.suspend(|| tracing::info!("{message}")),
            Happening::Trial(trial) => match trial.detail {
                // Failed candidates are reported, slow ones are not.
                Some(detail) => bar.suspend(|| {
                    tracing::info!(candidate = %trial.candidate, state = trial.state, detail);
                }),
                None => bar.inc(1),
            },
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
    let bar = ProgressBar::with_draw_target(Some(1), target);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix:>10} {bar:24} {pos}/{len} {elapsed:>4} {wide_msg}")
    {
        bar.set_style(style);
    }
    if show == Show::Progress {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

fn draw(bar: &ProgressBar, job: &Job) {
    bar.set_prefix(stage(job.stage));
    // Until the total is known, an empty bar, because indicatif shows 0 of 0 as full.
    bar.set_length(job.progress.total.max(1).into());
    bar.set_position(job.progress.done.into());
    if let Some(best) = &job.best {
        let speedup =
            best.speedup.map(|factor| format!(", {factor:.2}x the vendor")).unwrap_or_default();
        bar.set_message(format!("best {:.1} us{speedup}: {}", best.median_us, best.candidate));
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Waiting => "waiting",
        Stage::Loading => "loading",
        Stage::Pruning => "pruning",
        Stage::Measuring => "measuring",
        Stage::Finals => "finals",
        Stage::Done => "done",
    }
}
