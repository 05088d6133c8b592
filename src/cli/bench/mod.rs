//! `sparsetune bench`: tunes a suite of matrices and problems over the public API, and compares the plans with the
//! vendor.

mod compare;
mod npz;
mod picture;
mod report;
mod run;
pub mod subject;
pub mod suite;

use super::client::Client;
use super::local::Local;
use super::problem::{SearchArgs, StrategyArg};
use super::{SERVER, ServerArgs, say};
use crate::domain::Digest;
use anyhow::Context;
use compare::Earlier;
use report::Width;
use run::{Ask, Run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use subject::Subject;
use suite::{Entry, Suite, Task};

/// Candidates that are measured of each family alone.
const OF_A_FAMILY: u32 = 8;

/// The format of suites: a suite that says what its keys mean, of which docs/reference/suite.md is made too.
const SUITE_FORMAT: &str = include_str!("suite.toml");

#[derive(Debug, clap::Args)]
#[command(after_long_help = SUITE_FORMAT)]
pub struct BenchArgs {
    /// The suite file with matrices and problems (TOML; `bench --help` shows the format)
    #[arg(long, value_name = "FILE")]
    suite: PathBuf,
    /// Folder of the suite's matrix files
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
    /// Only matrices whose class contains this; may be given several times
    #[arg(long, value_name = "TEXT")]
    class: Vec<String>,
    /// Only these problems of the suite, counted from 1: `--problem 1,3`
    #[arg(long, value_name = "N", value_delimiter = ',')]
    problem: Vec<usize>,
    /// After each problem, tune it once more with each family alone
    #[arg(long, conflicts_with_all = ["dry", "families"])]
    each_family: bool,
    /// Do not tune; print rows, nonzeros, levels and class of every matrix
    #[arg(long)]
    dry: bool,
    /// Print all figures of each run, in lines of some 250 columns; otherwise what fits into 120
    #[arg(long)]
    wide: bool,
    /// Write all runs and their plans as JSON, updated after each run
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Compare with the --out file of an earlier run: performance relative to its best, and share of its trials
    #[arg(long, value_name = "FILE", conflicts_with = "dry")]
    compare: Option<PathBuf>,
    /// Write a chart of the speed-ups over the baseline, and a roofline
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Keep matrices and plans in this data folder
    #[arg(long, conflicts_with = "server")]
    data: Option<PathBuf>,
    /// Use this server instead of a private one
    #[arg(help_heading = SERVER, long, value_name = "URL")]
    server: Option<String>,
    /// File that contains an API token of that server
    #[arg(help_heading = SERVER, long, value_name = "FILE", requires = "server")]
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
    let local = Local::start(args.data.clone(), &args.device, None).await?;
    // Ctrl-C does not cancel the job: in a permanent folder the same command resumes it.
    local
        .carry(async |local, _| bench.carry(Some(&local.client)).await.map(|()| ExitCode::SUCCESS))
        .await
}

/// The runs to do.
struct Bench<'a> {
    args: &'a BenchArgs,
    entries: Vec<Entry>,
    tasks: Vec<Task>,
    earlier: Option<Earlier>,
}

impl<'a> Bench<'a> {
    fn of(args: &'a BenchArgs) -> anyhow::Result<Self> {
        let Suite { matrix: mut entries, problem: mut tasks } = Suite::read(&args.suite)?;
        if !args.problem.is_empty() {
            let chosen = |number: &usize| {
                let task = number.checked_sub(1).and_then(|at| tasks.get(at).copied());
                task.with_context(|| format!("the suite has {} problems", tasks.len()))
            };
            tasks = args.problem.iter().map(chosen).collect::<anyhow::Result<_>>()?;
        }
        entries.retain(|entry| matches(&args.only, &entry.name()));
        if !tasks.iter().any(Task::has_levels) {
            // Where rows depend on each other the class is computed, from the matrix.
            entries.retain(|entry| matches(&args.class, entry.class().unwrap_or_default()));
        }
        anyhow::ensure!(!entries.is_empty(), "no matrix of the suite matches the filters");
        // Checked before hours of measuring, not afterwards.
        let earlier = args.compare.as_deref().map(Earlier::read).transpose()?;
        Ok(Self { args, entries, tasks, earlier })
    }

    /// Runs all; without a client it only inspects the matrices. Fails at the end if any run failed.
    async fn carry(&self, client: Option<&Client>) -> anyhow::Result<()> {
        say(report::header(client.is_none(), self.width()))?;
        let mut runs = Vec::new();
        for entry in &self.entries {
            self.matrix(entry, client, &mut runs).await?;
        }
        let groups = report::groups(&runs);
        say(format_args!("\n{}", report::table(&groups, self.width())))?;
        if let Some(vendors) = report::vendors(&runs) {
            say(vendors)?;
        }
        if let Some(earlier) = &self.earlier {
            say(format_args!("\n{}", compare::table(&earlier.shares(&runs))))?;
            let short = earlier.cut_short(&runs);
            if !short.is_empty() {
                let short = short.join(", ");
                say(format_args!("skipped, because their earlier search was incomplete: {short}"))?;
            }
        }
        if let Some(file) = &self.args.svg {
            save(file, &picture::draw(&runs)?)?;
        }
        // A family that cannot run for a problem is an answer.
        let failed = runs.iter().filter(|run| run.error.is_some() && run.family.is_none()).count();
        anyhow::ensure!(failed == 0, "{failed} of {} runs failed", runs.len());
        Ok(())
    }

    const fn width(&self) -> Width {
        if self.args.wide { Width::Wide } else { Width::Usual }
    }

    fn shares(&self, runs: &[Run]) -> Vec<compare::Share> {
        self.earlier.as_ref().map_or_else(Vec::new, |earlier| earlier.shares(runs))
    }

    /// Runs all problems of one matrix, which is read once, and uploaded at most once.
    async fn matrix(
        &self,
        entry: &Entry,
        client: Option<&Client>,
        runs: &mut Vec<Run>,
    ) -> anyhow::Result<()> {
        let brought = async {
            let source = entry.source(self.args.matrices.as_deref())?;
            tokio::task::spawn_blocking(|| Subject::bring(source)).await?
        };
        let (mut brought, mut digest) = (brought.await, None);
        for task in &self.tasks {
            let run = Run::of(entry, task);
            let run = match &mut brought {
                Err(error) => run.failed(error),
                Ok(subject) => {
                    let run = tokio::task::block_in_place(|| run.shaped(subject));
                    match run.error.is_none() {
                        true if !matches(&self.args.class, &run.class) => continue,
                        true => self.looked_at(run, subject, client, &mut digest).await,
                        false => run,
                    }
                }
            };
            let families = if self.args.each_family { run.families() } else { Vec::new() };
            self.ran(run, runs)?;
            for family in families {
                let (Some(client), Some(sent)) = (client, digest) else { continue };
                let Ok(subject) = &mut brought else { continue };
                let run = Run::of_family(entry, task, family);
                let run = tokio::task::block_in_place(|| run.shaped(subject));
                let search = SearchArgs {
                    families: vec![family.to_owned()],
                    strategy: Some(StrategyArg::Ranked),
                    top_k: Some(OF_A_FAMILY),
                    trials: None,
                    ..self.args.search.clone()
                };
                let ask = Ask { device: &self.args.device, search: &search };
                self.ran(run.carried(client, &sent, &ask).await, runs)?;
            }
        }
        Ok(())
    }

    /// Prints and keeps a run.
    fn ran(&self, run: Run, runs: &mut Vec<Run>) -> anyhow::Result<()> {
        say(report::line(&run, self.width()))?;
        runs.push(run);
        if let Some(file) = &self.args.out {
            // After each run, so that measurements are not lost if the machine fails.
            let suite = self.args.suite.display().to_string();
            let shares = self.shares(runs);
            save(file, &format!("{:#}\n", report::json(&suite, runs, &shares)))?;
        }
        Ok(())
    }

    /// Tunes one problem on the server; without a server it inspects the solution.
    async fn looked_at(
        &self,
        run: Run,
        subject: &Subject,
        client: Option<&Client>,
        digest: &mut Option<Digest>,
    ) -> Run {
        let Some(client) = client else {
            return tokio::task::block_in_place(|| run.grown(subject));
        };
        let sent = match *digest {
            Some(sent) => sent,
            None => match subject.upload(client, &run.matrix).await {
                Ok((sent, _)) => *digest.insert(sent),
                Err(error) => return run.failed(&error),
            },
        };
        let ask = Ask { device: &self.args.device, search: &self.args.search };
        run.carried(client, &sent, &ask).await
    }
}

/// Whether a text contains one of the parts; true if there are none.
fn matches(parts: &[String], text: &str) -> bool {
    parts.is_empty() || parts.iter().any(|part| text.contains(part.as_str()))
}

fn save(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
