//! `sparsetune quickstart`: the whole way once, over HTTP, with a matrix that comes with the binary.

use super::client::Client;
use super::follow::Show;
use super::local::Local;
use super::problem::{DtypeArg, LayoutArg, ProblemArgs, SearchArgs};
use super::tune::Tuned;
use super::{print_json, show};
use serde_json::json;
use std::process::ExitCode;

/// A triangulated mesh of 32768 points; where it comes from and its licence are in data/README.md.
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
    /// Seconds of search at most
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Print matrix, job, plan and lookup as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: QuickstartArgs) -> anyhow::Result<ExitCode> {
    if !args.json {
        println!("Starting a server on loopback, with a temporary folder ...");
    }
    let local = Local::start(None, &args.device).await?;
    let done = tokio::select! {
        done = walk(&local.client, &args) => done,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    local.stop().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn walk(client: &Client, args: &QuickstartArgs) -> anyhow::Result<()> {
    let say = |text: &str| {
        if !args.json {
            println!("{text}");
        }
    };
    say(&format!("\nPOST {}/v1/matrices?name={NAME}", client.server()));
    let matrix = client.upload(MATRIX.into(), Some(NAME)).await?;
    say(&show::matrix(&matrix.view));

    let problem = ProblemArgs {
        n: args.n,
        dtype: DtypeArg::F32,
        layout: LayoutArg::Row,
        device: args.device.clone(),
    };
    let search = SearchArgs { seconds: Some(args.seconds), ..SearchArgs::default() };
    say(&format!(
        "\nPOST {}/v1/jobs: C = A B with {} columns, f32, row-major",
        client.server(),
        args.n
    ));
    let shown = if args.json { Show::Nothing } else { Show::Progress };
    let tuned = Tuned::find(client, &matrix.view.digest, &problem, &search, shown).await?;
    say(&format!("{}\n\n{}", show::funnel(&tuned.plan.view.funnel), show::plan(&tuned.plan.view)));

    say(&format!(
        "\nGET {}/v1/plans?matrix={}&op=spmm&n={}",
        client.server(),
        matrix.view.digest,
        args.n
    ));
    let lookup = client.lookup(&matrix.view.digest, &problem.query()).await?;
    let found = lookup.view.plan.as_ref().map_or("no plan", |plan| plan.id.as_str());
    say(&format!("match    {}: {found}", lookup.view.matched.grade));
    anyhow::ensure!(
        lookup.view.plan.as_ref().is_some_and(|plan| plan.id == tuned.plan.view.id),
        "the plan that was just made is not found by its matrix's hash"
    );
    if args.json {
        return print_json(&json!({
            "matrix": matrix.raw,
            "job": tuned.job,
            "plan": tuned.plan.raw,
            "lookup": lookup.raw,
        }));
    }
    println!("{NEXT}");
    Ok(())
}

const NEXT: &str = "
Next:
  sparsetune serve                                  a server that stays: http://127.0.0.1:8080, data in ./sparsetune-data
  sparsetune submit MATRIX.mtx --n 128              a matrix of yours to that server
  sparsetune lookup MATRIX.mtx --n 128              its plan, by hash: the matrix is not sent
  sparsetune tune MATRIX.mtx --strategy exhaustive  without a server, every candidate measured
  sparsetune doctor                                 what devices and libraries are seen, and what is missing";
