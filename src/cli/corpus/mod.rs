//! `sparsetune corpus`: tunes generated matrices, so that a device is known before anybody asks for a plan. What they leave is
//! what models are trained on.

mod draw;

use super::bench::subject::Subject;
use super::bench::suite::Source;
use super::client::Client;
use super::follow::{Show, follow};
use super::local::{InHand, Local};
use super::problem::OpArg;
use super::{say, train};
use crate::domain::Strategy;
use crate::domain::learned::Op;
use crate::domain::training::Activate;
use crate::sparse::generate::Spec;
use anyhow::Context;
use draw::Draw;
use serde_json::json;
use std::collections::BTreeSet;
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
    /// Keep the generated matrices, which can be generated again from their names, and take more room than what is measured
    #[arg(long)]
    keep: bool,
    /// Then train a model for each operation, and put it to use if it chooses better
    #[arg(long)]
    train: bool,
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
    local.carry(async |local, job| carry(&args, &draws, local, job).await).await
}

/// One after the other; what fails is told and passed over. Then the training, if it is wanted.
async fn carry(
    args: &CorpusArgs,
    draws: &[Draw],
    local: &Local,
    job: &InHand,
) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let limit = args.minutes.and_then(|m| Duration::try_from_secs_f64(m * 60.0).ok());
    let mut failed = 0;
    let mut ops = BTreeSet::new();
    for (number, draw) in draws.iter().enumerate() {
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            say(format_args!("the time is over: {number} of {} were tuned", draws.len()))?;
            break;
        }
        let index = args.from + number as u64;
        let told = match tune(args, draw, &local.client, job).await {
            Ok(told) => {
                ops.insert(Op::of(&draw.problem));
                told
            }
            Err(error) => {
                failed += 1;
                format!("failed: {error:#}")
            }
        };
        say(format_args!("{index} {} {}: {told}", draw.spec, draw.problem))?;
    }
    anyhow::ensure!(failed < draws.len(), "every one of {failed} matrices failed");
    if !args.train {
        return Ok(ExitCode::SUCCESS);
    }
    local.train();
    let order = train::Order {
        ops: ops.into_iter().collect(),
        device: args.device.clone(),
        activate: Activate::IfBetter,
        seed: 1,
        json: false,
    };
    order.carry(&local.client, None, job).await
}

/// Generates the matrix and has it tuned, unless it was. Jobs outlive matrices, so that is known without the upload.
async fn tune(
    args: &CorpusArgs,
    draw: &Draw,
    client: &Client,
    in_hand: &InHand,
) -> anyhow::Result<String> {
    let begun = Instant::now();
    let spec = Spec::parse(&draw.spec).context("the draw is no specification")?;
    let bring = move || {
        let subject = Subject::bring(Source::Generated(spec))?;
        let digest = subject.digest();
        anyhow::Ok((subject, digest))
    };
    let (subject, digest) = tokio::task::spawn_blocking(bring).await??;
    if client.was_tuned(&digest, &draw.problem).await? {
        return Ok("was tuned before".to_owned());
    }
    let matrix = subject.upload(client, &draw.spec).await?;
    let job = json!({
        "matrix": matrix.digest,
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
    in_hand.is(&submitted.view.id);
    let ended = follow(client, &submitted.view.id, Show::Nothing).await;
    // One that bears another name was somebody's before.
    if !args.keep && matrix.name.as_ref() == Some(&draw.spec) {
        client.delete_matrix(&matrix.digest).await.unwrap_or_else(|error| {
            tracing::warn!(
                matrix = draw.spec,
                error = format!("{error:#}"),
                "the matrix was not deleted"
            );
        });
    }
    let ended = ended?;
    let best = ended.view.best.map_or(f64::NAN, |best| best.median_us);
    let done = ended.view.progress.done;
    Ok(format!("{done} trials, best {best:.1} us, {:.1} s", begun.elapsed().as_secs_f64()))
}
