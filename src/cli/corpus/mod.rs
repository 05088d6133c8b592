//! `sparsetune corpus`: tunes generated matrices, so that a device is known before anybody asks for a plan. What they leave is
//! what models are trained on.

mod draw;

use super::bench::subject::Subject;
use super::bench::suite::Source;
use super::client::Client;
use super::follow::{Show, follow};
use super::local::Local;
use super::problem::OpArg;
use super::say;
use crate::domain::Strategy;
use crate::sparse::generate::Spec;
use anyhow::Context;
use draw::Draw;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
pub struct CorpusArgs {
    /// Folder of matrices and trials, as a server's --data; the same command goes on where it was ended
    #[arg(long, default_value = "sparsetune-data")]
    data: PathBuf,
    /// Device: `auto`, `cpu`, `cuda:0`
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only this operation; otherwise the two take turns
    #[arg(long, value_enum)]
    op: Option<OpArg>,
    /// How many matrices
    #[arg(long, default_value_t = 400)]
    count: u64,
    /// Where among the corpus to begin
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seed that the corpus is drawn by
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Candidates measured of each, half by the model and half at random
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(8..))]
    trials: u32,
    /// Seconds of measuring for each
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Begin no more matrices after so many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// Only list what would be tuned
    #[arg(long)]
    dry: bool,
}

impl CorpusArgs {
    fn draws(&self) -> Vec<Draw> {
        let draw = |index| match self.op {
            Some(OpArg::Spmm) => draw::spmm(self.seed, index),
            Some(OpArg::Sptrsv) => draw::sptrsv(self.seed, index),
            None if index % 2 == 0 => draw::spmm(self.seed, index / 2),
            None => draw::sptrsv(self.seed, index / 2),
        };
        (self.from..self.from.saturating_add(self.count)).map(draw).collect()
    }
}

pub async fn run(args: CorpusArgs) -> anyhow::Result<ExitCode> {
    let draws = args.draws();
    if args.dry {
        for draw in &draws {
            say(format_args!("{} {}", draw.spec, draw.problem))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let local = Local::start(Some(args.data.clone()), &args.device).await?;
    local.carry(async |client, _| carry(&args, &draws, client).await).await
}

/// One after the other; what fails is told and passed over.
async fn carry(args: &CorpusArgs, draws: &[Draw], client: &Client) -> anyhow::Result<()> {
    let begun = Instant::now();
    let limit = args.minutes.and_then(|m| Duration::try_from_secs_f64(m * 60.0).ok());
    let mut failed = 0;
    for (number, draw) in draws.iter().enumerate() {
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            say(format_args!("the time is over: {number} of {} were tuned", draws.len()))?;
            break;
        }
        let index = args.from + number as u64;
        let told = match tune(args, draw, client).await {
            Ok(told) => told,
            Err(error) => {
                failed += 1;
                format!("failed: {error:#}")
            }
        };
        say(format_args!("{index} {} {}: {told}", draw.spec, draw.problem))?;
    }
    anyhow::ensure!(failed < draws.len(), "every one of {failed} matrices failed");
    Ok(())
}

/// Generates the matrix and has it tuned, unless it was.
async fn tune(args: &CorpusArgs, draw: &Draw, client: &Client) -> anyhow::Result<String> {
    let begun = Instant::now();
    let spec = Spec::parse(&draw.spec).context("the draw is no specification")?;
    let subject = tokio::task::spawn_blocking(|| Subject::bring(Source::Generated(spec))).await??;
    let digest = subject.upload(client, &draw.spec).await?;
    if client.was_tuned(&digest, &draw.problem).await? {
        return Ok("was tuned before".to_owned());
    }
    let job = json!({
        "matrix": digest,
        "problem": draw.problem,
        "device": args.device,
        "search": {
            "strategy": Strategy::Sampled,
            "trials": args.trials,
            "seconds": args.seconds,
            "seed": 1,
        },
    });
    let submitted = client.submit(&job).await?;
    let ended = follow(client, &submitted.view.id, Show::Nothing).await?;
    let best = ended.view.best.map_or(f64::NAN, |best| best.median_us);
    let done = ended.view.progress.done;
    Ok(format!("{done} trials, best {best:.1} us, {:.1} s", begun.elapsed().as_secs_f64()))
}
