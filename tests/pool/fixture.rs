//! A small matrix on disk, a recording of everything a candidate can do, and evaluators over them with short deadlines.

use sparsetune::domain::protocol::{Effort, Load};
use sparsetune::domain::{Candidate, Clock, DeviceId, L2Policy, Outcome};
use sparsetune::pool::{Deadlines, Evaluator, EvaluatorSpec, Restarts};
use sparsetune::sparse::{Csr, canonical, digest};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub const BINARY: &str = env!("CARGO_BIN_EXE_sparsetune");

pub const EFFORT: Effort = Effort {
    warmups: 1,
    min_samples: 3,
    max_samples: 5,
    budget_ms: 10.0,
    give_up_us: None,
    clock: Clock::Isolated,
    left_ms: None,
    needed: false,
};

/// What a hanging candidate is given.
pub const SOON: Option<Duration> = Some(Duration::from_millis(150));

pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub load: Load,
    /// What counts the kills for want of memory, if not this process's control group.
    pub memory_events: Option<PathBuf>,
}

impl Fixture {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("matrix.csr");
        let matrix =
            Csr::new(3, 4, vec![0, 2, 2, 4], vec![0, 3, 1, 2], vec![1.5, -2.0, 3.0, 0.25]).unwrap();
        let pattern = digest::pattern_digest(&matrix);
        let digest = digest::digest(&matrix, &pattern);
        canonical::save(&matrix, &path, pattern, digest).unwrap();
        let problem = serde_json::from_str(r#"{"op":"spmm","n":3}"#).unwrap();
        let load = Load { path, digest, problem, l2_policy: L2Policy::Warm, seed: 1 };
        std::fs::write(folder.path().join("recording.jsonl"), RECORDING).unwrap();
        Self { folder, load, memory_events: None }
    }

    pub fn selector(&self) -> String {
        format!("replay:{}", self.folder.path().join("recording.jsonl").display())
    }

    /// An evaluator that plays the recording.
    pub fn replay(&self) -> Evaluator {
        self.spawning(BINARY, ["evaluator", "--device", &self.selector()])
    }

    /// One that plays it and carries out hostile candidates.
    pub fn hostile(&self) -> Evaluator {
        let selector = self.selector();
        self.spawning(BINARY, ["evaluator", "--allow-hostile", "--device", &selector])
    }

    /// A shell script that has `$EVALUATOR` misbehave on its first start and run as it should on the next.
    pub fn bad_once(&self, misbehave: &str) -> Evaluator {
        let mark = self.folder.path().join("started");
        let script = format!(
            r#"if [ -e "{mark}" ]; then exec "$0" "$@"; fi; : > "{mark}"; {misbehave}"#,
            mark = mark.display()
        );
        let selector = self.selector();
        self.spawning("sh", ["-c", &script, BINARY, "evaluator", "--device", &selector])
    }

    pub fn spawning<A: Into<OsString>>(
        &self,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = A>,
    ) -> Evaluator {
        let mut spec = EvaluatorSpec::new(DeviceId("replay".to_owned()), program, args);
        // Long enough for a busy machine; what must be quick is given its own deadline.
        let long = Duration::from_secs(20);
        spec.deadlines = Deadlines {
            open: long,
            load: long,
            compile: long,
            verify: long,
            time: long,
            cancel: Duration::from_millis(100),
            ..Deadlines::default()
        };
        let pause = Duration::from_millis(10);
        spec.memory_events = self.memory_events.clone();
        spec.restarts = Restarts { attempts: 2, pause, longest_pause: pause };
        Evaluator::new(spec)
    }

    /// The evaluator with the matrix loaded.
    pub async fn loaded(&self, mut evaluator: Evaluator) -> Evaluator {
        let facts = evaluator.load(self.load.clone(), &never()).await.unwrap();
        // 4 row pointers, 4 entries, 4 rows of B and 3 of C, 3 wide.
        assert_eq!(facts.compulsory_bytes, 4 * 4 + 4 * 8 + (4 + 3) * 3 * 4);
        assert_eq!(facts.limit_us, facts.compulsory_bytes as f64 / 1e6);
        evaluator
    }
}

/// Measures the candidate that always works, which takes a living child with the matrix loaded.
pub async fn works(evaluator: &mut Evaluator) {
    let good = Candidate::new("good").with("m1", 4);
    let measured = evaluator.measure(&good, EFFORT, None, &never()).await.unwrap();
    assert_eq!(measured.outcome.median_us(), Some(7.0), "{measured:?}");
}

pub async fn outcome(
    evaluator: &mut Evaluator,
    candidate: &Candidate,
    deadline: Option<Duration>,
) -> Outcome {
    evaluator.measure(candidate, EFFORT, deadline, &never()).await.unwrap().outcome
}

pub fn never() -> CancellationToken {
    CancellationToken::new()
}

pub fn hostile(kind: &str) -> Candidate {
    Candidate::new("hostile").with_text("kind", kind)
}

/// What an outcome says of itself.
pub fn detail(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Measured { .. } => "",
        Outcome::CompileFailed { detail }
        | Outcome::Refused { detail }
        | Outcome::Wrong { detail, .. }
        | Outcome::TimedOut { detail, .. }
        | Outcome::Crashed { detail } => detail,
    }
}

const RECORDING: &str = include_str!("recording.jsonl");
