//! `sparsetune quickstart`: demonstrates the complete workflow over HTTP with a matrix embedded in the binary.

use super::client::Client;
use super::follow::Show;
use super::local::{InHand, Local};
use super::problem::{ProblemArgs, SearchArgs};
use super::tune::Tuned;
use super::{say, show};
use crate::domain::Op;
use crate::domain::catalog::operation::Draft;
use serde_json::json;
use std::process::ExitCode;

/// A triangulated mesh of 32768 points; its origin and licence are in data/README.md.
const MATRIX: &[u8] = include_bytes!("../../data/delaunay_n15.mtx.gz");
const NAME: &str = "delaunay_n15";

#[derive(Debug, clap::Args)]
pub struct QuickstartArgs {
    /// Columns of the dense matrix B
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Device: `auto`, `cpu`, `cuda:0`
    #[arg(long, default_value = "auto")]
    device: String,
    /// Time budget of the search in seconds
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Print matrix, job, plan and lookup as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: QuickstartArgs) -> anyhow::Result<ExitCode> {
    if !args.json {
        say("Starting a server on loopback, with a temporary folder ...")?;
    }
    let local = Local::start(None, &args.device, None).await?;
    local
        .carry(async |local, job| walk(&local.client, &args, job).await.map(|()| ExitCode::SUCCESS))
        .await
}

async fn walk(client: &Client, args: &QuickstartArgs, job: &InHand) -> anyhow::Result<()> {
    let server = client.server();
    // Only without --json, with which standard output has exactly one value.
    let tell = |text: String| if args.json { Ok(()) } else { say(text) };
    tell(format!("\nPOST {server}/v1/matrices?name={NAME}"))?;
    let (matrix, _) = client.upload(MATRIX.into(), Some(NAME)).await?;
    tell(show::matrix(&matrix.view))?;

    let device = args.device.clone();
    let draft = Draft { op: Op::Spmm, given: vec![("n", args.n.into())] };
    let problem = ProblemArgs { draft, device };
    let search = SearchArgs { seconds: Some(args.seconds), ..SearchArgs::default() };
    tell(format!("\nPOST {server}/v1/jobs: C = A B with {} columns, f32, row-major\n", args.n))?;
    let shown = if args.json { Show::Nothing } else { Show::Progress };
    let tuned = Tuned::find(client, &matrix.view.digest, (&problem, &search), shown, job).await?;
    let plan = &tuned.plan.view;
    tell(format!("{}\n\n{}", show::funnel(&plan.funnel), show::plan(plan)))?;

    let digest = matrix.view.digest;
    tell(format!("\nGET {server}/v1/plans?matrix={digest}&op=spmm&n={}", args.n))?;
    let lookup = client.lookup(&digest, &problem.query()?).await?;
    let found = lookup.view.plan.as_ref().map_or("no plan", |plan| plan.id.0.as_str());
    tell(format!("match    {}: {found}", lookup.view.matched.grade))?;
    anyhow::ensure!(found == plan.id.0, "the new plan cannot be found by its matrix's digest");
    if !args.json {
        return say(NEXT);
    }
    say(json!({
        "matrix": matrix.raw,
        "job": tuned.job,
        "plan": tuned.plan.raw,
        "lookup": lookup.raw,
    }))
}

const NEXT: &str = "
Next:
  sparsetune serve                                  start a server with its dashboard at http://127.0.0.1:8080, data in ./sparsetune-data
  sparsetune submit MATRIX.mtx --n 128              upload a matrix of your own to that server and tune it
  sparsetune lookup MATRIX.mtx --n 128              look up its plan by digest, without sending the matrix
  sparsetune tune MATRIX.mtx --strategy exhaustive  tune without a server, measuring every candidate
  sparsetune tune MATRIX.mtx --op sptrsv            tune the triangular solve with its lower triangle
  sparsetune doctor                                 report devices, libraries and what is missing";
