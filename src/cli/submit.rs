//! `sparsetune submit`: submits a matrix file, or the digest of an uploaded matrix, to a server and waits for its plan.

use super::client::{Answer, Client};
use super::follow::{Show, budget, follow};
use super::problem::{ProblemArgs, SearchArgs};
use super::stored::{Named, find};
use super::{INTERRUPTED, ServerArgs, explain, say, show};
use crate::wire::{Job, Plan};
use anyhow::Context;
use serde_json::json;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

#[derive(Debug, clap::Args)]
pub struct SubmitArgs {
    /// A matrix file; or of a matrix that the server has the name, the digest, or the digest's first digits (6 or more)
    matrix: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    search: SearchArgs,
    /// Print the job and exit without waiting for the plan
    #[arg(long)]
    detach: bool,
    /// Explain the search: what each rule removed and why, what was predicted and measured, what the finals decided
    #[arg(long, conflicts_with_all = ["json", "detach"])]
    explain: bool,
    /// Print the plan (with --detach the job) as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    // Checked before the matrix is uploaded.
    args.problem.problem()?;
    let client = args.server.client()?;
    let matrix = match find(&client, &args.matrix).await? {
        Named::Digest(digest) => Err(digest),
        Named::File(file) => Ok(client.upload_file(file).await?.0.view),
        Named::Stored(matrix) => Ok(*matrix),
    };
    if let (Ok(matrix), false) = (&matrix, args.json) {
        say(show::matrix(matrix))?;
    }
    let digest = matrix.map_or_else(|digest| digest, |matrix| matrix.digest);
    let job = client.submit(&args.problem.job(&digest, &args.search)?).await?;
    if args.detach {
        match args.json {
            true => say(&job.raw)?,
            false => say(format_args!(
                "{}/jobs/{} on {}",
                client.server(),
                job.view.id,
                job.view.device
            ))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let shown = if args.json { Show::Nothing } else { Show::Progress };
    if let (Show::Progress, Some(budget)) = (shown, budget(&job.view)) {
        say(format_args!("{budget}\n"))?;
    }
    // The job that is waited for.
    let current = Mutex::new(job.view.id.clone());
    let work = async {
        let ended = follow(&client, &job.view.id.0, shown).await?;
        let second = match (&job.view.then, &ended.view.follow_up) {
            (Some(_), Some(id)) => {
                current.lock().unwrap_or_else(PoisonError::into_inner).clone_from(id);
                Some(follow(&client, &id.0, shown).await?)
            }
            (None, _) | (_, None) => None,
        };
        anyhow::Ok((ended, second))
    };
    let (ended, second) = tokio::select! {
        ended = work => ended?,
        _ = tokio::signal::ctrl_c() => {
            let id = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            eprintln!("the job continues: {}/jobs/{id} shows it, and can cancel it", client.server());
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let plan = plan_of(&client, &ended.view).await?;
    if let Some(second) = second {
        let other = plan_of(&client, &second.view).await?;
        if args.json {
            say(json!({ "first": plan.raw, "second": other.raw }))?;
            return Ok(ExitCode::SUCCESS);
        }
        for (job, plan) in [(&ended, &plan), (&second, &other)] {
            if args.explain {
                let trials = client.trials(&job.view.id.0).await?;
                say(explain::told(&plan.view, None, &trials))?;
            }
            say(format_args!("{}\n", show::plan(&plan.view)))?;
        }
        say(show::both(&plan.view, &other.view))?;
        let from = format!("--server {}", client.server());
        say(show::usage_of_both([&plan.view, &other.view], &from))?;
        return Ok(ExitCode::SUCCESS);
    }
    match args.json {
        true => say(&plan.raw)?,
        false => {
            if args.explain {
                let trials = client.trials(&job.view.id.0).await?;
                say(explain::told(&plan.view, None, &trials))?;
            }
            say(show::plan(&plan.view))?;
            if let Some(job) = &ended.view.follow_up {
                say(format_args!(
                    "measure  {}/jobs/{job} measures it in the background",
                    client.server()
                ))?;
            }
            say(show::usage(&plan.view, args.server.place()))?;
        }
    }
    // What there is has been said.
    anyhow::ensure!(job.view.then.is_none(), show::half(&job.view.id));
    Ok(ExitCode::SUCCESS)
}

async fn plan_of(client: &Client, job: &Job) -> anyhow::Result<Answer<Plan>> {
    let id = job.plan.as_ref().context("the job has succeeded, but names no plan")?;
    client.plan(&id.0).await
}
