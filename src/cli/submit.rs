//! `sparsetune submit`: submits a matrix file, or the digest of an uploaded matrix, to a server and waits for its plan.

use super::follow::{Show, budget, follow};
use super::problem::{ProblemArgs, SearchArgs};
use super::stored::{Named, find};
use super::{INTERRUPTED, ServerArgs, explain, say, show};
use anyhow::Context;
use std::process::ExitCode;

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
    let ended = tokio::select! {
        ended = follow(&client, &job.view.id.0, shown) => ended?,
        _ = tokio::signal::ctrl_c() => {
            let id = &job.view.id;
            eprintln!("the job continues: {}/jobs/{id} shows it, and can cancel it", client.server());
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let id = ended
        .view
        .plan
        .as_ref()
        .map(|id| id.0.as_str())
        .context("the job has succeeded, but names no plan")?;
    let plan = client.plan(id).await?;
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
    Ok(ExitCode::SUCCESS)
}
