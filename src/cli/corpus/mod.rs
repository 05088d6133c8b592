//! `sparsetune corpus`: tunes generated matrices, so that models have something to be trained on before anybody asks
//! for a plan.

mod draw;
mod pace;

use super::bench::subject::Subject;
use super::bench::suite::Source;
use super::client::Client;
use super::follow::{Show, follow};
use super::local::{InHand, Local};
use super::problem::op_parser;
use super::{say, train};
use crate::domain::training::Activate;
use crate::domain::{DeviceClass, DeviceKind, Digest, Job, JobState, Op, Problem, SearchStrategy};
use crate::service::{JobFilter, PageRequest, Service};
use crate::sparse::generate::Spec;
use anyhow::Context;
use draw::Draw;
use pace::Pace;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Jobs of a matrix fetched at a time.
const PAGE: u32 = 200;

#[derive(Debug, clap::Args)]
pub struct CorpusArgs {
    /// Data folder for matrices and trials; the same command resumes where it was interrupted
    #[arg(long, default_value = "sparsetune-data")]
    data: PathBuf,
    /// Device: `auto`, `cpu`, `cuda:0`
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only this operation; otherwise the operations alternate
    #[arg(long, value_name = "OP", value_parser = op_parser())]
    op: Option<Op>,
    /// Number of matrices
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Index of the first matrix of the corpus
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seed of the corpus
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Candidates measured per matrix, half chosen by the model and half at random
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(8..))]
    trials: u32,
    /// Seconds for loading and measuring each matrix
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Start no further matrix after this many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// Keep the generated matrices, which can be generated again from their names and take more space than the
    /// measurements
    #[arg(long)]
    keep: bool,
    /// Then train a model for each operation, and activate it if it chooses better
    #[arg(long)]
    train: bool,
    /// Only list what would be tuned
    #[arg(long)]
    dry: bool,
}

impl CorpusArgs {
    /// The draws with their indices in the corpus, generated lazily, of problems that devices of this kind can do; of all, where the kind is
    /// not known. An index that is passed over is not counted.
    fn draws(&self, kind: Option<DeviceKind>) -> impl Iterator<Item = (u64, Draw)> {
        let turns = Op::ALL.len() as u64;
        let draw = move |index: u64| match self.op {
            Some(op) => Draw::of(op, self.seed, index),
            None => Draw::of(Op::ALL[(index % turns) as usize], self.seed, index / turns),
        };
        let all = (self.from..u64::MAX).map(move |index| (index, draw(index)));
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        all.filter(move |(_, draw)| draw.problem.limit(kind).is_none()).take(count)
    }

    /// The kind of the device, as far as its name tells it.
    fn kind(&self) -> Option<DeviceKind> {
        match self.device.split(':').next() {
            Some("cpu") => Some(DeviceKind::Cpu),
            Some("cuda") => Some(DeviceKind::Cuda),
            _ => None,
        }
    }
}

/// Result of a draw.
enum Became {
    Tuned {
        trials: u32,
        best_us: f64,
        seconds: f64,
    },
    /// Tuned by an earlier run.
    Skipped,
}

impl fmt::Display for Became {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tuned { trials, best_us, seconds } => {
                write!(f, "{trials} trials, best {best_us:.1} us, {seconds:.1} s")
            }
            Self::Skipped => f.write_str("was tuned before"),
        }
    }
}

/// Numbers of draws by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    tuned: u64,
    skipped: u64,
    failed: u64,
}

impl Tally {
    const fn tried(self) -> u64 {
        self.tuned.saturating_add(self.skipped).saturating_add(self.failed)
    }

    /// Some random matrices are invalid for their problem; if most fail, something else is wrong.
    const fn is_failure(self) -> bool {
        self.failed > self.tried() / 2
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tuned, skipped, failed } = self;
        let tried = self.tried();
        write!(f, "tried {tried}: {tuned} tuned, {skipped} tuned before, {failed} failed")
    }
}

pub async fn run(args: CorpusArgs) -> anyhow::Result<ExitCode> {
    if args.dry {
        return dry(&args).await;
    }
    let minutes = |m: f64| Duration::try_from_secs_f64(m * 60.0);
    let limit =
        args.minutes.map(minutes).transpose().context("--minutes is not a valid duration")?;
    let local = Local::start(Some(args.data.clone()), &args.device, None).await?;
    local.carry(async |local, job| carry(&args, limit, local, job).await).await
}

/// Lists what would be tuned. Which kind of device `auto` is, is known once the devices are open.
async fn dry(args: &CorpusArgs) -> anyhow::Result<ExitCode> {
    if let Some(kind) = args.kind() {
        return list(args, Some(kind));
    }
    let local = Local::start(None, &args.device, None).await?;
    local
        .carry(async |local, _| {
            let class = local.service().device_class(&args.device).await?;
            list(args, class.kind())
        })
        .await
}

fn list(args: &CorpusArgs, kind: Option<DeviceKind>) -> anyhow::Result<ExitCode> {
    for (_, draw) in args.draws(kind) {
        say(format_args!("{} {}", draw.spec, draw.problem))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Tunes one draw after the other; failures are reported and skipped. Then trains, if asked to.
async fn carry(
    args: &CorpusArgs,
    limit: Option<Duration>,
    local: &Local,
    job: &InHand,
) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let class = local.service().device_class(&args.device).await?;
    let mut tally = Tally::default();
    let mut ops = BTreeSet::new();
    let pace = Pace::begin(args, limit);
    say(pace.forecast())?;
    for (index, draw) in args.draws(class.kind()) {
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            pace.above(|| say(format_args!("the time limit was reached before {index}")))?;
            break;
        }
        let told = match tune(args, &draw, local, &class, job).await {
            Ok(became) => {
                match became {
                    Became::Tuned { .. } => tally.tuned += 1,
                    Became::Skipped => tally.skipped += 1,
                }
                ops.insert(draw.problem.op());
                became.to_string()
            }
            Err(error) => {
                tally.failed += 1;
                format!("failed: {error:#}")
            }
        };
        pace.above(|| say(format_args!("{index} {} {}: {told}", draw.spec, draw.problem)))?;
        pace.done(tally.tried());
    }
    pace.end();
    say(tally)?;
    let code = if tally.is_failure() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if !args.train {
        return Ok(code);
    }
    anyhow::ensure!(!ops.is_empty(), "nothing was tuned, so there is no training data");
    local.train();
    let order = train::Order {
        ops: ops.into_iter().collect(),
        device: args.device.clone(),
        activate: Activate::IfBetter,
        seed: 1,
        json: false,
    };
    let trained = order.carry(&local.client, None, job).await?;
    Ok(if tally.is_failure() { code } else { trained })
}

/// Generates and tunes the matrix, unless it has been tuned before. Jobs outlive matrices, so this is known without an
/// upload.
async fn tune(
    args: &CorpusArgs,
    draw: &Draw,
    local: &Local,
    class: &DeviceClass,
    in_hand: &InHand,
) -> anyhow::Result<Became> {
    let begun = Instant::now();
    let spec = Spec::parse(&draw.spec).context("the draw is no specification")?;
    let bring = move || {
        let subject = Subject::bring(Source::Generated(spec))?;
        let digest = subject.digest();
        anyhow::Ok((subject, digest))
    };
    let (subject, digest) = tokio::task::spawn_blocking(bring).await??;
    if was_tuned(local.service(), &digest, &draw.problem, class).await? {
        return Ok(Became::Skipped);
    }
    let (_, created) = subject.upload(&local.client, &draw.spec).await?;
    let ended = measure(args, draw, &digest, &local.client, in_hand).await;
    // A matrix that was stored before is not deleted.
    if !args.keep && created {
        local.client.delete_matrix(&digest).await.unwrap_or_else(|error| {
            tracing::warn!(
                matrix = draw.spec,
                error = format!("{error:#}"),
                "the matrix could not be deleted"
            );
        });
    }
    let ended = ended?;
    Ok(Became::Tuned {
        trials: ended.progress.done,
        best_us: ended.best.map_or(f64::NAN, |best| best.median_us),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Tunes a stored matrix.
async fn measure(
    args: &CorpusArgs,
    draw: &Draw,
    digest: &Digest,
    client: &Client,
    in_hand: &InHand,
) -> anyhow::Result<crate::wire::Job> {
    let job = json!({
        "matrix": digest,
        "problem": draw.problem,
        "device": args.device,
        "search": {
            "strategy": SearchStrategy::Sampled,
            "trials": args.trials,
            "seconds": args.seconds,
            "seed": 1,
        },
    });
    let submitted = client.submit(&job).await?;
    in_hand.is(&submitted.view.id.0);
    Ok(follow(client, &submitted.view.id.0, Show::Nothing).await?.view)
}

/// Whether a corpus job for the problem has ended on this device class, with any result.
async fn was_tuned(
    service: &Service,
    matrix: &Digest,
    problem: &Problem,
    class: &DeviceClass,
) -> anyhow::Result<bool> {
    let filter = JobFilter { matrix: Some(*matrix), ..JobFilter::default() };
    let mut page = PageRequest { after: None, limit: PAGE };
    loop {
        let jobs = service.jobs(&filter, &page).await?;
        for job in jobs.items.iter().filter(|job| answers(job, problem)) {
            if on_class(service, job, class).await? {
                return Ok(true);
            }
        }
        page.after = jobs.next;
        if page.after.is_none() {
            return Ok(false);
        }
    }
}

fn answers(job: &Job, problem: &Problem) -> bool {
    let ended = matches!(job.state, JobState::Succeeded | JobState::Failed);
    ended
        && job.request.search.strategy == SearchStrategy::Sampled
        && job.request.problem == *problem
}

/// Whether a job ran on the device class. An id may refer to another device by now, so the plan takes precedence.
async fn on_class(service: &Service, job: &Job, class: &DeviceClass) -> anyhow::Result<bool> {
    if let Some(plan) = &job.plan {
        return Ok(service.plan(plan).await?.device.class() == *class);
    }
    let devices = service.devices().await?;
    Ok(devices.iter().any(|known| known.device.id == job.device && known.device.class() == *class))
}

#[cfg(test)]
mod tests {
    use super::{CorpusArgs, Tally};
    use crate::domain::DeviceKind;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CorpusArgs,
    }

    #[test]
    fn a_corpus_draws_what_the_device_can_do_and_as_much_as_was_asked_for() {
        let line = |text: &str| Line::parse_from(text.split(' ')).args;
        let args = line("corpus --count 60");
        let all: Vec<_> = args.draws(None).collect();
        let on_cpu: Vec<_> = args.draws(Some(DeviceKind::Cpu)).collect();
        assert_eq!((all.len(), on_cpu.len()), (60, 60));
        let cannot = |draw: &super::Draw| draw.problem.limit(Some(DeviceKind::Cpu)).is_some();
        assert!(all.iter().any(|(_, draw)| cannot(draw)));
        assert!(!on_cpu.iter().any(|(_, draw)| cannot(draw)));
        // What can be done is the same draw under the same index.
        assert!(
            on_cpu
                .iter()
                .all(|(at, draw)| all.get(*at as usize).is_none_or(|same| same.1 == *draw))
        );
        assert_eq!(line("corpus --device cpu").kind(), Some(DeviceKind::Cpu));
        assert_eq!(
            (line("corpus --device cuda:1").kind(), line("corpus").kind()),
            (Some(DeviceKind::Cuda), None)
        );
    }

    #[test]
    fn a_corpus_fails_if_most_of_its_draws_fail() {
        let tally = |tuned, skipped, failed| Tally { tuned, skipped, failed };
        assert!(!tally(0, 0, 0).is_failure());
        assert!(!tally(1, 0, 1).is_failure());
        assert!(!tally(1, 1, 2).is_failure());
        assert!(tally(1, 1, 3).is_failure() && tally(0, 0, 1).is_failure());
        assert_eq!(tally(2, 1, 3).to_string(), "tried 6: 2 tuned, 1 tuned before, 3 failed");
    }
}
