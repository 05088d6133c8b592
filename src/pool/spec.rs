//! Configuration of an evaluator: command line, deadlines, and restarts.

use crate::domain::DeviceId;
use crate::domain::protocol::RequestBody;
use crate::environment;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// The program and its leading arguments, if they are not those of the running binary.
static PROGRAM: OnceLock<(PathBuf, Vec<OsString>)> = OnceLock::new();

/// Sets how this process starts the `sparsetune` program. Without it, the running binary is started again; a process that
/// only contains the program as a library (Python's) must say what does. The first call counts.
pub fn set_program(program: PathBuf, leading: Vec<OsString>) {
    PROGRAM.get_or_init(|| (program, leading));
}

/// The running binary, or what [`set_program`] names, with its leading arguments.
pub(super) fn this_binary() -> std::io::Result<(PathBuf, Vec<OsString>)> {
    if let Some(named) = PROGRAM.get() {
        return Ok(named.clone());
    }
    running_binary(environment::started_as_child())
}

/// The running binary. One that was itself started as a child and gets here has not understood what it was started as, and would
/// start children that do not understand it either, without end.
fn running_binary(is_child: bool) -> std::io::Result<(PathBuf, Vec<OsString>)> {
    if is_child {
        return Err(std::io::Error::other(
            "this program was started as an evaluator or a reader, but is none: name the sparsetune program by `set_program`",
        ));
    }
    // The link refers to the running image even after the file was replaced by an upgrade.
    let program = match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe()?,
    };
    Ok((program, Vec::new()))
}

/// Configuration of one evaluator.
#[derive(Clone, Debug)]
pub struct EvaluatorSpec {
    /// The device's name in logs and metrics.
    pub device: DeviceId,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// More arguments for the last attempt to open the device, and for what follows if it succeeds.
    pub last_resort: Vec<OsString>,
    /// The user as which the child goes on if this process is root's: folders that it writes to are made this user's.
    pub user: String,
    /// The file that counts the kills for want of memory; of this process's control group if none is named.
    pub memory_events: Option<PathBuf>,
    pub deadlines: Deadlines,
    pub restarts: Restarts,
}

impl EvaluatorSpec {
    /// `program` with these arguments and default deadlines.
    pub fn new(
        device: DeviceId,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            device,
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            last_resort: Vec::new(),
            user: String::new(),
            memory_events: None,
            deadlines: Deadlines::default(),
            restarts: Restarts::default(),
        }
    }

    /// The `evaluator` subcommand of the running binary, or of what [`set_program`] names, so that the versions cannot
    /// differ.
    pub fn of_this_binary(device: DeviceId, selector: &str) -> std::io::Result<Self> {
        let (program, leading) = this_binary()?;
        let arguments = ["evaluator", "--device", selector].map(OsString::from);
        Ok(Self::new(device, program, leading.into_iter().chain(arguments)))
    }

    /// This configuration with a child that is fenced in. `exports` is the folder below which it writes the arrays of plans. If all of
    /// the fence is not `required`, and the device does not open within it, what fences files is left out.
    pub fn fenced(mut self, fence: &str, user: &str, exports: &Path) -> Self {
        self.user = user.to_owned();
        if fence == "auto" {
            self.last_resort = ["--fence", "without_files"].map(OsString::from).into();
        }
        self.arg("--fence").arg(fence).arg("--user").arg(user).arg("--exports").arg(exports)
    }

    /// This configuration with one more argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }
}

/// Time limits of requests. Each stage note restarts the clock with that stage's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Starting the process and its device: the first open of a GPU takes seconds.
    pub open: Duration,
    /// Each stage of a load: reading, multiplying, uploading.
    pub load: Duration,
    /// Lowering many candidates; they compile in the background.
    pub prepare: Duration,
    /// Lowering one candidate on the host; rewriting a large system may take minutes.
    pub lower: Duration,
    /// Compiling one candidate and uploading its arrays.
    pub compile: Duration,
    /// One call and its comparison; this is the cost of a hung kernel.
    pub verify: Duration,
    /// Timing, in addition to the effort's own budget.
    pub time: Duration,
    /// How much later than the job's time a call of a candidate may end that the job has to do without: its child is not killed
    /// for what loading a module or comparing takes.
    pub late: Duration,
    /// Timing the finalists alternately, after all are lowered and compiled.
    pub pair: Duration,
    /// Compiling the winner again, and writing each of its arrays.
    pub export: Duration,
    pub close: Duration,
    /// Grace period for a cancelled request before the child is killed.
    pub cancel: Duration,
    /// How long to wait for a killed child to exit before replying; the next start waits longer.
    pub reap: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(60),
            load: Duration::from_secs(300),
            prepare: Duration::from_secs(300),
            lower: Duration::from_secs(300),
            compile: Duration::from_secs(60),
            verify: Duration::from_secs(10),
            time: Duration::from_secs(10),
            late: Duration::from_secs(3),
            pair: Duration::from_secs(120),
            export: Duration::from_secs(60),
            close: Duration::from_secs(2),
            cancel: Duration::from_millis(500),
            reap: Duration::from_secs(1),
        }
    }
}

/// Whether a candidate's code runs on the device in this stage. Earlier failures are caused by the host (memory,
/// compiler).
pub(super) fn runs(stage: &str) -> bool {
    matches!(stage, "verifying" | "running" | "timing")
}

/// How long a stage may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    pub time: Duration,
    /// What is left of the job's time allows no more; otherwise the stage's own limit does.
    pub by_job: bool,
}

impl Deadlines {
    /// Time limit of a stage that begins this long after the request. The stages in which a candidate runs share what is left of
    /// the job's time; those before may take longer, and the evaluator begins none when they did.
    pub(super) fn allowed(
        &self,
        request: &RequestBody,
        stage: Option<&str>,
        running: Option<Duration>,
        gone: Duration,
    ) -> Allowed {
        let time = self.of_stage(request, stage, running);
        let left = match request {
            RequestBody::Measure { effort, .. } if stage.is_some_and(runs) => effort.ends_after(),
            _ => None,
        };
        let left = left.map(|left| left.saturating_sub(gone).saturating_add(self.late));
        match left {
            Some(left) if left < time => Allowed { time: left, by_job: true },
            _ => Allowed { time, by_job: false },
        }
    }

    /// Time limit of a stage of this request; `running` is the caller's limit for one call of a candidate.
    fn of_stage(
        &self,
        request: &RequestBody,
        stage: Option<&str>,
        running: Option<Duration>,
    ) -> Duration {
        match (request, stage) {
            (RequestBody::Open { .. }, _) => self.open,
            (RequestBody::Load(_), _) => self.load,
            (RequestBody::Prepare { .. }, _) => self.prepare,
            (RequestBody::Measure { .. } | RequestBody::Export { .. }, Some("lowering")) => {
                self.lower
            }
            // There is one note per finalist for both lowering and compiling.
            (RequestBody::Pair { .. }, Some("lowering")) => self.lower.saturating_add(self.compile),
            (RequestBody::Measure { .. }, None | Some("compiling")) => self.compile,
            (RequestBody::Measure { effort, .. }, Some("timing")) => {
                // Invalid budgets (negative, NaN) count as zero; an infinite one would disable the deadline.
                let budget =
                    Duration::try_from_secs_f64(effort.budget_ms / 1e3).unwrap_or_default();
                running.unwrap_or(self.time).saturating_add(budget.min(self.pair))
            }
            (RequestBody::Measure { .. }, Some(_)) => running.unwrap_or(self.verify),
            (RequestBody::Pair { .. }, _) => self.pair,
            (RequestBody::Export { .. }, _) => self.export,
            (RequestBody::Close, _) => self.close,
        }
    }
}

/// How often starting a child is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// Consecutive failed starts (including open and load) before the device counts as unavailable.
    pub attempts: u32,
    /// Pause after the first failed start; it doubles with each further one.
    pub pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self {
            attempts: 3,
            pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(5),
        }
    }
}

impl Restarts {
    /// Pause before attempt number `attempt`, counted from 0.
    pub(super) fn pause_before(&self, attempt: u32) -> Duration {
        match attempt.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                self.pause.saturating_mul(1 << doublings.min(20)).min(self.longest_pause)
            }
        }
    }
}

/// Whether an environment variable is passed to the child. This is an allow-list, because the child loads libraries and
/// runs generated code, and the environment may contain tokens.
pub(super) fn inherits(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "CONDA_PREFIX",
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",
        "PATH",
        "RAYON_NUM_THREADS",
        "RUST_BACKTRACE",
        "RUST_LOG",
        "TEMP",
        "TMP",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
    ];
    const PREFIXES: [&str; 3] = ["CUDA_", "LC_", "NVIDIA_"];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::protocol::Effort;
    use crate::domain::{Candidate, Clock};

    #[test]
    fn the_stages_of_a_trial_share_what_is_left_of_the_jobs_time() {
        let deadlines = Deadlines::default();
        let allowed = |left_ms, needed, stage, gone_ms| {
            let effort = Effort {
                warmups: 0,
                min_samples: 1,
                max_samples: 1,
                budget_ms: 500.0,
                give_up_us: None,
                clock: Clock::Isolated,
                left_ms,
                needed,
            };
            let candidate = Candidate::new("c");
            let request = RequestBody::Measure { candidate, effort };
            let running = Some(Duration::from_secs(60));
            let gone = Duration::from_millis(gone_ms);
            let Allowed { time, by_job } = deadlines.allowed(&request, Some(stage), running, gone);
            (time.as_millis(), by_job)
        };
        let two = Some(2_000.0);
        assert_eq!(allowed(two, false, "verifying", 500), (4_500, true));
        // What verifying took is not allowed again.
        assert_eq!(allowed(two, false, "timing", 1_900), (3_100, true));
        assert_eq!(allowed(two, false, "timing", 9_000), (3_000, true));
        assert_eq!(allowed(two, false, "compiling", 500), (60_000, false));
        assert_eq!(allowed(two, true, "timing", 1_900), (60_500, false));
        assert_eq!(allowed(None, false, "timing", 1_900), (60_500, false));
        assert_eq!(allowed(Some(1e9), false, "verifying", 0), (60_000, false));
        assert_eq!(allowed(Some(f64::INFINITY), false, "verifying", 0), (60_000, false));
    }

    #[test]
    fn a_child_does_not_start_itself_again() {
        assert!(running_binary(false).is_ok());
        let refused = running_binary(true).unwrap_err().to_string();
        assert!(refused.contains("set_program"), "{refused}");
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let restarts = Restarts::default();
        let pauses: Vec<_> = (0..8).map(|i| restarts.pause_before(i).as_millis()).collect();
        assert_eq!(pauses, [0, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.pause_before(u32::MAX), restarts.longest_pause);
    }

    #[test]
    fn secrets_are_not_passed_on() {
        assert!(inherits("PATH") && inherits("CUDA_VISIBLE_DEVICES"));
        assert!(!inherits("SPARSETUNE_TOKENS") && !inherits("AWS_SECRET_ACCESS_KEY"));
    }
}
