//! `sparsetune tune`: tunes one matrix file on a private server, and prints the best candidates, the pruning steps and
//! the plan.

use super::bundle;
use super::client::{Answer, Client};
use super::follow::{Show, budget, follow};
use super::local::{InHand, Local};
use super::problem::{ProblemArgs, SearchArgs};
use super::{INTERRUPTED, explain, say, show};
use crate::domain::{Digest, JobId, Namespace};
use crate::usage::Place;
use crate::wire::{Matrix, Plan, Trial};
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
    let second = tuned.second.as_deref();
    if let Some(job) = &tuned.half {
        if args.json {
            let mut said = tuned.json();
            said["matrix"] = matrix.raw;
            say(said)?;
        } else {
            told(args, &matrix.view, &tuned)?;
        }
        anyhow::bail!(show::half(job));
    }
    if let Some(file) = &args.bundle {
        let plans = [Some(&tuned), second].map(|tuned| tuned.map(|it| it.plan.view.id.0.as_str()));
        bundle::write(file, &bundle::download(client, plans, false).await?)?;
    }
    if args.json {
        let mut said = tuned.json();
        said["matrix"] = matrix.raw;
        if let Some(second) = second {
            said["second"] = second.json();
        }
        return say(said);
    }
    told(args, &matrix.view, &tuned)?;
    if let Some(second) = second {
        say("")?;
        told(args, &matrix.view, second)?;
        say(format_args!("\n{}", show::both(&tuned.plan.view, &second.plan.view)))?;
    }
    let text = |path: &Option<PathBuf>| path.as_deref().and_then(Path::to_str).map(str::to_owned);
    match (text(&args.data), text(&args.bundle), second) {
        (Some(folder), _, None) => say(show::usage(&tuned.plan.view, Place::Folder(&folder))),
        (None, Some(file), None) => say(show::usage(&tuned.plan.view, Place::File(&file))),
        (Some(folder), _, Some(second)) => {
            let place = format!("--data {folder}");
            say(show::usage_of_both([&tuned.plan.view, &second.plan.view], &place))
        }
        (None, Some(file), Some(_)) => say(format_args!(
            "\nuse it: by one call, in Python\n  plan = sparsetune.load(\"{file}\")\n  x = plan(b)"
        )),
        (None, None, _) => {
            say("\nThe plan was not kept: --bundle FILE writes it as a file that programs run.")
        }
    }
}

/// What one job has found.
fn told(args: &TuneArgs, matrix: &Matrix, tuned: &Tuned) -> anyhow::Result<()> {
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
        true => say(explain::told(plan, Some(matrix), &tuned.trials))?,
        false => say(format_args!("{}\n", show::funnel(&plan.funnel)))?,
    }
    say(show::plan(plan))
}

/// A finished job.
pub struct Tuned {
    pub job: Value,
    pub plan: Answer<Plan>,
    pub trials: Vec<Answer<Trial>>,
    follow_up: Option<JobId>,
    /// The job itself, if the problem names both triangles and there is no job of the other.
    half: Option<JobId>,
    /// The job of the other triangle, if the problem names both.
    pub second: Option<Box<Self>>,
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
        let mut tuned = Self::ended(client, &submitted.view.id.0, shown).await?;
        if submitted.view.then.is_some() {
            match tuned.follow_up.as_ref().map(ToString::to_string) {
                Some(second) => {
                    started.is(&second);
                    tuned.second = Some(Box::new(Self::ended(client, &second, shown).await?));
                }
                None => tuned.half = Some(submitted.view.id.clone()),
            }
        }
        Ok(tuned)
    }

    async fn ended(client: &Client, id: &str, shown: Show) -> anyhow::Result<Self> {
        let job = follow(client, id, shown).await?;
        let trials = client.trials(id).await?;
        let id = job
            .view
            .plan
            .as_ref()
            .map(|id| id.0.as_str())
            .context("the job has succeeded, but names no plan")?;
        let plan = client.plan(id).await?;
        let follow_up = job.view.follow_up;
        Ok(Self { job: job.raw, plan, trials, follow_up, half: None, second: None })
    }

    fn json(&self) -> Value {
        json!({
            "job": self.job,
            "plan": self.plan.raw,
            "trials": self.trials.iter().map(|trial| &trial.raw).collect::<Vec<_>>(),
        })
    }
}
