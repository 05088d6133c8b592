//! `sparsetune tune`: tunes one matrix file on a private server, and prints the best candidates, the pruning steps and
//! the plan.

use super::bundle;
use super::client::{Answer, Client};
use super::follow::{Show, budget, follow};
use super::local::{InHand, Local};
use super::problem::{ProblemArgs, SearchArgs};
use super::{INTERRUPTED, explain, say, show};
use crate::domain::{Digest, Namespace};
use crate::usage::Place;
use crate::wire::{Plan, Trial};
use anyhow::Context;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct TuneArgs {
    /// Matrix Market (also gzip, zstd), npz, SMTX or Rutherford-Boeing
    file: PathBuf,
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    search: SearchArgs,
    /// Keep matrix and plan in this data folder; otherwise they are discarded
    #[arg(long)]
    data: Option<PathBuf>,
    /// Keep them in this namespace of the data folder; `default` unless given, here or as SPARSETUNE_SERVER__NAMESPACE
    #[arg(long, requires = "data")]
    namespace: Option<Namespace>,
    /// Write the plan as a bundle, a file that runs without a server
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Explain the search: what each rule removed and why, what was predicted and measured, what the finals decided
    #[arg(long, conflicts_with = "json")]
    explain: bool,
    /// Print job, plan and trials as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: TuneArgs) -> anyhow::Result<ExitCode> {
    args.problem.problem()?;
    anyhow::ensure!(args.file.is_file(), "{}: file not found", args.file.display());
    let local =
        Local::start(args.data.clone(), &args.problem.device, args.namespace.as_ref()).await?;
    local
        .carry(async |local, job| {
            job.concludes();
            tune(&local.client, &args, job).await?;
            Ok(if job.concluded() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
        })
        .await
}

async fn tune(client: &Client, args: &TuneArgs, job: &InHand) -> anyhow::Result<()> {
    let (matrix, _) = client.upload_file(&args.file).await?;
    if !args.json {
        say(format_args!("{}\n", show::matrix(&matrix.view)))?;
    }
    let shown = if args.json { Show::Nothing } else { Show::Progress };
    let tuned =
        Tuned::find(client, &matrix.view.digest, (&args.problem, &args.search), shown, job).await?;
    if let Some(file) = &args.bundle {
        let plan = tuned.plan.view.id.0.as_str();
        bundle::write(file, &client.bundle(plan, false).await?)?;
    }
    if args.json {
        return say(json!({
            "matrix": matrix.raw,
            "job": tuned.job,
            "plan": tuned.plan.raw,
            "trials": tuned.trials.iter().map(|trial| &trial.raw).collect::<Vec<_>>(),
        }));
    }
    let plan = &tuned.plan.view;
    let left_out = show::left_out(&tuned.trials);
    say(format_args!("{}\n{left_out}", show::candidates(&tuned.trials, plan)))?;
    if let Some(finals) = show::finals(plan) {
        say(format_args!("{finals}\n"))?;
    }
    if let Some(why) = show::why_other(&tuned.trials, plan) {
        say(format_args!("{why}\n"))?;
    }
    match args.explain {
        true => say(explain::told(plan, Some(&matrix.view), &tuned.trials))?,
        false => say(format_args!("{}\n", show::funnel(&plan.funnel)))?,
    }
    say(show::plan(plan))?;
    let text = |path: &Option<PathBuf>| path.as_deref().and_then(Path::to_str).map(str::to_owned);
    match (text(&args.data), text(&args.bundle)) {
        (Some(folder), _) => say(show::usage(plan, Place::Folder(&folder))),
        (None, Some(file)) => say(show::usage(plan, Place::File(&file))),
        (None, None) => {
            say("\nThe plan was not kept: --bundle FILE writes it as a file that programs run.")
        }
    }
}

/// A finished job.
pub struct Tuned {
    pub job: Value,
    pub plan: Answer<Plan>,
    pub trials: Vec<Answer<Trial>>,
}

impl Tuned {
    /// Submits a job, registers it in `started`, waits for its end, and fetches its plan and trials.
    pub async fn find(
        client: &Client,
        matrix: &Digest,
        (problem, search): (&ProblemArgs, &SearchArgs),
        shown: Show,
        started: &InHand,
    ) -> anyhow::Result<Self> {
        let submitted = client.submit(&problem.job(matrix, search)?).await?;
        started.is(&submitted.view.id.0);
        if let (Show::Progress, Some(budget)) = (shown, budget(&submitted.view)) {
            say(format_args!("{budget}\n"))?;
        }
        let job = follow(client, &submitted.view.id.0, shown).await?;
        let id = job
            .view
            .plan
            .as_ref()
            .map(|id| id.0.as_str())
            .context("the job has succeeded, but names no plan")?;
        let plan = client.plan(id).await?;
        let trials = client.trials(&submitted.view.id.0).await?;
        Ok(Self { job: job.raw, plan, trials })
    }
}
