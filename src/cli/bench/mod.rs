//! `sparsetune bench`: a suite of matrices and problems, each tuned by the very path users take, against the vendor.

mod npz;
mod picture;
mod report;
mod run;
mod subject;
mod suite;

use super::client::Client;
use super::local::Local;
use super::problem::SearchArgs;
use super::{ServerArgs, say};
use anyhow::Context;
use run::{Ask, Run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use subject::Subject;
use suite::{Entry, Suite, Task};

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// The suite: matrices and problems (TOML)
    #[arg(long, value_name = "FILE")]
    suite: PathBuf,
    /// Folder that the suite's files are relative to
    #[arg(long, value_name = "DIR")]
    matrices: Option<PathBuf>,
    /// Device: `auto`, `cpu`, `cuda:0`
    #[arg(long, default_value = "auto")]
    device: String,
    #[command(flatten)]
    search: SearchArgs,
    /// Only matrices whose name contains this; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Only this problem of the suite, counted from 1
    #[arg(long, value_name = "N")]
    problem: Option<usize>,
    /// Do not tune: say rows, nonzeros, levels and class of every matrix
    #[arg(long)]
    dry: bool,
    /// Write all runs and their plans as JSON, after each run anew
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw the speed-ups over the vendor
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Keep matrices and plans in this folder, as a server's --data
    #[arg(long, conflicts_with = "server")]
    data: Option<PathBuf>,
    /// Use this server instead of one of its own
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File that holds an API token of that server
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
}

pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let bench = Bench::of(&args)?;
    if args.dry {
        bench.carry(None).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(server) = args.server.clone() {
        let server = ServerArgs { server, token_file: args.token_file.clone() };
        bench.carry(Some(&server.client()?)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let local = Local::start(args.data.clone(), &args.device).await?;
    // No job is named to be cancelled by ctrl-c: in a folder that stays, the same bench takes up what was interrupted.
    local.carry(async |client, _| bench.carry(Some(client)).await).await
}

/// What is to be run.
struct Bench<'a> {
    args: &'a BenchArgs,
    entries: Vec<Entry>,
    tasks: Vec<Task>,
}

impl<'a> Bench<'a> {
    fn of(args: &'a BenchArgs) -> anyhow::Result<Self> {
        let Suite { matrix: mut entries, problem: mut tasks } = Suite::read(&args.suite)?;
        let wanted = |name: &str| args.only.iter().any(|part| name.contains(part.as_str()));
        entries.retain(|entry| args.only.is_empty() || wanted(&entry.name()));
        anyhow::ensure!(!entries.is_empty(), "no matrix of the suite is left");
        if let Some(number) = args.problem {
            let chosen = number.checked_sub(1).and_then(|at| tasks.get(at).copied());
            let count = tasks.len();
            tasks = vec![chosen.with_context(|| format!("the suite has {count} problems"))?];
        }
        Ok(Self { args, entries, tasks })
    }

    /// Runs all; without a client only looks at the matrices. An error when a run failed, after the last of them.
    async fn carry(&self, client: Option<&Client>) -> anyhow::Result<()> {
        say(report::header(client.is_none()))?;
        let mut runs = Vec::new();
        for entry in &self.entries {
            self.matrix(entry, client, &mut runs).await?;
        }
        let groups = report::groups(&runs);
        say(format_args!("\n{}", report::table(&groups)))?;
        if let Some(file) = &self.args.svg {
            save(file, &picture::speedups("Speed-up over the vendor", &runs))?;
        }
        let failed = runs.iter().filter(|run| run.error.is_some()).count();
        anyhow::ensure!(failed == 0, "{failed} of {} runs failed", runs.len());
        Ok(())
    }

    /// All problems of one matrix, which is read and sent once.
    async fn matrix(
        &self,
        entry: &Entry,
        client: Option<&Client>,
        runs: &mut Vec<Run>,
    ) -> anyhow::Result<()> {
        let brought = async {
            let source = entry.source(self.args.matrices.as_deref())?;
            let subject = tokio::task::spawn_blocking(|| Subject::bring(source)).await??;
            let digest = match client {
                Some(client) => Some(subject.upload(client, &entry.name()).await?),
                None => None,
            };
            anyhow::Ok((subject, digest))
        };
        let mut brought = brought.await;
        for task in &self.tasks {
            let run = Run::of(entry, task);
            let run = match &mut brought {
                Err(error) => run.failed(error),
                Ok((subject, digest)) => {
                    let run = tokio::task::block_in_place(|| run.shaped(subject));
                    match (client, digest) {
                        (Some(client), Some(digest)) if run.error.is_none() => {
                            let ask = Ask { device: &self.args.device, search: &self.args.search };
                            run.carried(client, digest, &ask).await
                        }
                        _ if run.error.is_none() => {
                            tokio::task::block_in_place(|| run.grown(subject))
                        }
                        _ => run,
                    }
                }
            };
            say(report::line(&run))?;
            runs.push(run);
            if let Some(file) = &self.args.out {
                // After each run: an hour of measuring is not lost to the one that ends the machine.
                let suite = self.args.suite.display().to_string();
                save(file, &format!("{:#}\n", report::json(&suite, runs)))?;
            }
        }
        Ok(())
    }
}

fn save(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
