//! `sparsetune bench`: tunes a suite of matrices and problems over the public API, and compares the plans with the
//! vendor.

mod compare;
mod npz;
mod picture;
mod predicted;
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
use compare::{Beside, Earlier, shares};
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

/// A run that is to be carried out, and its matrix if a server has that; otherwise there is nothing more to do.
struct Ready {
    run: Run,
    sent: Option<Digest>,
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
        // It would be measured between the prediction and its timing.
        anyhow::ensure!(
            !args.search.measure,
            "--measure is of tune and submit: bench times each predicted plan itself"
        );
        // Checked before hours of measuring, not afterwards.
        let earlier = args.compare.as_deref().map(Earlier::read).transpose()?;
        Ok(Self { args, entries, tasks, earlier })
    }

    /// Runs all; without a client it only inspects the matrices. Fails at the end if any run failed.
    async fn carry(&self, client: Option<&Client>) -> anyhow::Result<()> {
        say(report::header(client.is_none(), self.width()))?;
        let (mut ready, mut runs) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            ready.extend(self.ready(entry, client).await);
            // What is measured for one matrix answers lookups for others, so all lookups come before the first job.
            if !self.looks_up() {
                self.carry_out(std::mem::take(&mut ready), client, &mut runs).await?;
            }
        }
        self.carry_out(ready, client, &mut runs).await?;
        let groups = report::groups(&runs);
        say(format_args!("\n{}", report::table(&groups, self.width())))?;
        if let Some(vendors) = report::vendors(&runs) {
            say(vendors)?;
        }
        let beside = self.beside(&runs);
        if let Some(table) = predicted::table(&runs, &beside, self.width()) {
            say(format_args!("\n{table}"))?;
        }
        if let Some(agreement) = predicted::agreement(&runs) {
            say(agreement)?;
        }
        if let Some(earlier) = &self.earlier {
            say(format_args!("\n{}", compare::table(&shares(&beside))))?;
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

    fn beside(&self, runs: &[Run]) -> Vec<Beside> {
        self.earlier.as_ref().map_or_else(Vec::new, |earlier| earlier.beside(runs))
    }

    /// Whether lookups are asked for predictions. They know neither families nor values of parameters.
    fn looks_up(&self) -> bool {
        let SearchArgs { families, fixed, .. } = &self.args.search;
        let narrowed = !families.is_empty() || !fixed.is_empty();
        self.args.search.predicts() && !self.args.dry && !narrowed
    }

    fn ask<'b>(&'b self, client: &'b Client, matrix: Digest) -> Ask<'b> {
        Ask { client, matrix, device: &self.args.device, search: &self.args.search }
    }

    /// All problems of one matrix, which is read once, and uploaded at most once.
    async fn ready(&self, entry: &Entry, client: Option<&Client>) -> Vec<Ready> {
        let brought = async {
            let source = entry.source(self.args.matrices.as_deref())?;
            tokio::task::spawn_blocking(|| Subject::bring(source)).await?
        };
        let (mut brought, mut digest) = (brought.await, None);
        let mut ready = Vec::new();
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
            let sent = digest.filter(|_| run.error.is_none());
            ready.push(Ready { run, sent });
        }
        ready
    }

    async fn carry_out(
        &self,
        ready: Vec<Ready>,
        client: Option<&Client>,
        runs: &mut Vec<Run>,
    ) -> anyhow::Result<()> {
        for Ready { run, sent } in ready {
            let Some((client, sent)) = client.zip(sent) else {
                self.ran(run, runs)?;
                continue;
            };
            let ask = self.ask(client, sent);
            let run = run.carried(&ask).await;
            let families = if self.args.each_family { run.families() } else { Vec::new() };
            let alone: Vec<Run> =
                families.into_iter().map(|family| run.of_family(family)).collect();
            self.ran(run, runs)?;
            for run in alone {
                let search = SearchArgs {
                    families: run.family.map(str::to_owned).into_iter().collect(),
                    strategy: Some(StrategyArg::Ranked),
                    top_k: Some(OF_A_FAMILY),
                    trials: None,
                    ..self.args.search.clone()
                };
                self.ran(run.carried(&Ask { search: &search, ..ask }).await, runs)?;
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
            let beside = self.beside(runs);
            save(file, &format!("{:#}\n", report::json(&suite, runs, &beside)))?;
        }
        Ok(())
    }

    /// Has the matrix on the server, and looks up what is predicted for the problem; without a server it inspects the solution.
    async fn looked_at(
        &self,
        mut run: Run,
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
        if self.looks_up() {
            match self.ask(client, sent).look(&run.problem).await {
                Ok(looked) => {
                    let (matrix, problem) = (&run.matrix, &run.task);
                    tracing::info!(matrix, problem, grade = %looked.grade, "looked up");
                    run.lookup = Some(looked);
                }
                Err(error) => return run.failed(&error),
            }
        }
        run
    }
}

/// Whether a text contains one of the parts; true if there are none.
fn matches(parts: &[String], text: &str) -> bool {
    parts.is_empty() || parts.iter().any(|part| text.contains(part.as_str()))
}

fn save(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
