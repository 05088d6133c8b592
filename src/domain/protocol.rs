//! The protocol between pool and evaluator: one JSON object per line over the child's stdin and stdout.
//!
//! Every request is answered by exactly one `Reply` with the same `seq`; any number of `Stage` notes may precede it,
//! each of which restarts the deadline of the request. Matrices are passed as open files, never as bytes.

use super::plan::{Bound, LaunchStep};
use super::recipe::{Compiled, Scratch};
use super::{Candidate, Clock, Device, Digest, L2Policy, Outcome, Problem, Timing};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Both sides refuse other versions.
pub const PROTOCOL_VERSION: u32 = 2;

/// Before the name of a wall that a child's fence lacks, in a line of its log. Every child says so; the service logs each wall once.
pub const MISSING_WALL: &str = "the fence lacks a wall: ";

/// Longest line that either side writes or reads, including the newline; longer ones are refused without buffering.
pub const MAX_LINE_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub seq: u64,
    #[serde(flatten)]
    pub body: RequestBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum RequestBody {
    /// Open the device and describe it. Must come first.
    Open { protocol: u32 },
    /// Map a canonical matrix, and compute operands and the reference result. Replaces the loaded problem.
    Load(Load),
    /// Lower and compile candidates ahead of time, in parallel in the background. Answered immediately.
    Prepare { candidates: Vec<Candidate> },
    /// Lower, compile if needed, verify on poisoned buffers, time.
    Measure { candidate: Candidate, effort: Effort },
    /// Time several candidates alternately (A B C A B C ...), each of which was already verified.
    Pair {
        candidates: Vec<Candidate>,
        rounds: u32,
        /// By which clock each of them is timed in its turn.
        clock: Clock,
        /// A kernel with a watchdog stops itself after this many microseconds (default: one second).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up_us: Option<f64>,
    },
    /// Returns the launch data of a candidate for its plan: geometry, source, cubin.
    /// If a folder is given, the recipe's arrays are written there, one little-endian file each.
    Export {
        candidate: Candidate,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        folder: Option<PathBuf>,
    },
    /// End the process cleanly.
    Close,
}

impl RequestBody {
    /// Its name on the pipe.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Load(_) => "load",
            Self::Prepare { .. } => "prepare",
            Self::Measure { .. } => "measure",
            Self::Pair { .. } => "pair",
            Self::Export { .. } => "export",
            Self::Close => "close",
        }
    }
}

impl RequestBody {
    /// The same, asked again after this time.
    #[must_use]
    pub fn after(self, gone: Duration) -> Self {
        match self {
            Self::Measure { candidate, effort } => {
                Self::Measure { candidate, effort: effort.after(gone) }
            }
            other => other,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Canonical matrix file (`sparse::canonical`). The pool opens it and sends the descriptor with the request; a child that gets none
    /// opens it itself.
    pub path: PathBuf,
    /// Its digest, which must match the file's header.
    pub digest: Digest,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    /// Seed of the random dense operand.
    pub seed: u64,
}

impl Effort {
    /// Whether a first call of this duration ends the timing.
    pub fn gives_up_at(&self, us: f64) -> bool {
        self.give_up_us.is_some_and(|most| us > most)
    }

    /// Whether what takes about so many microseconds ends while the trial has time, which it has from `began` on.
    pub fn fits(&self, began: Instant, us: f64) -> bool {
        let gone_ms = began.elapsed().as_secs_f64() * 1e3;
        self.left_ms.is_none_or(|left_ms| gone_ms + us / 1e3 <= left_ms)
    }

    /// What is left of it after this time.
    #[must_use]
    pub fn after(self, gone: Duration) -> Self {
        let left_ms = self.left_ms.map(|left_ms| (left_ms - gone.as_secs_f64() * 1e3).max(0.0));
        Self { left_ms, ..self }
    }

    /// What is left for a candidate that the job can do without; `None` without a limit.
    pub fn ends_after(&self) -> Option<Duration> {
        let left_ms = self.left_ms.filter(|_| !self.needed)?;
        Some(Duration::try_from_secs_f64(left_ms.max(0.0) / 1e3).unwrap_or(Duration::MAX))
    }

    /// Whether no further stage of a trial begins.
    pub fn is_used_up(&self) -> bool {
        !self.needed && self.left_ms.is_some_and(|left_ms| left_ms <= 0.0)
    }
}

/// The timing effort for one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    pub warmups: u32,
    pub min_samples: u32,
    pub max_samples: u32,
    /// Stop sampling after this much measured time, in milliseconds.
    pub budget_ms: f64,
    /// If the first call takes longer than this many microseconds it remains the only sample, since the candidate
    /// cannot win. A kernel with a watchdog stops itself then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_us: Option<f64>,
    /// What a sample spans.
    pub clock: Clock,
    /// What is left of the job's time for this trial, in milliseconds from its beginning on: no further sample is taken that would end
    /// later, and a candidate is not compiled, called or timed when lowering, compiling or its first call has taken all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<f64>,
    /// It is timed once all the same, because there is no plan without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub seq: u64,
    #[serde(flatten)]
    pub body: MessageBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum MessageBody {
    /// The request entered a new stage: `lowering`, `compiling`, `running`, `verifying`, `timing`.
    Stage {
        stage: String,
    },
    Reply(Reply),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "data", rename_all = "snake_case")]
pub enum Reply {
    Opened(Box<Device>),
    Loaded(Loaded),
    Prepared,
    Measured {
        outcome: Outcome,
        compiled: Option<Compiled>,
    },
    /// One timing per candidate, in the order of the request.
    Paired {
        timings: Vec<Timing>,
    },
    Exported(Box<Exported>),
    Closed,
    /// The request failed; the child continues. This is not an outcome of a candidate.
    Failed {
        error: String,
    },
}

/// Properties of a loaded problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Compulsory bytes of one call on the device.
    pub compulsory_bytes: u64,
    /// Lower bound of the time per call in microseconds: compulsory bytes divided by the device's measured copy
    /// bandwidth, and for SpTRSV the larger of that and levels x hop.
    pub limit_us: f64,
    /// Which of the two bounds `limit_us` is.
    #[serde(default)]
    pub bound: Bound,
    pub load_ms: f64,
}

/// The winner's program, as stored with the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// The launches of one call in order; for a vendor routine, one step that names it.
    pub steps: Vec<LaunchStep>,
    #[serde(default)]
    pub arrays: Vec<ExportedArray>,
    #[serde(default)]
    pub scratch: Vec<Scratch>,
    /// Whether the output must be zeroed before each call.
    #[serde(default)]
    pub zero_output: bool,
    /// Host time to update to new values with the same pattern; see `Recipe::update_ms`.
    #[serde(default)]
    pub update_ms: Option<f64>,
    /// Complete source with headers inlined; absent for vendor and host programs.
    pub source: Option<String>,
    /// Compiled kernel, base64.
    pub cubin: Option<String>,
    /// The same text compiled to PTX.
    #[serde(default)]
    pub ptx: Option<String>,
    /// The options that the cubin was compiled with; the PTX had the virtual architecture instead.
    #[serde(default)]
    pub options: Vec<String>,
    /// Name and version of the compiler.
    #[serde(default)]
    pub compiler: Option<String>,
    /// The program that gathers new values into the arrays; only for CUDA programs.
    #[serde(default)]
    pub update: Option<ExportedUpdate>,
    /// Digest of the family's kernel source.
    pub kernel_digest: Option<Digest>,
}

impl Exported {
    /// The export of a routine that is not one of our kernels: its name and arguments.
    pub fn routine(entry: &str, arguments: Vec<String>) -> Self {
        let (entry, grid, block) = (entry.to_owned(), [1; 3], [1; 3]);
        let step = LaunchStep {
            entry,
            grid,
            block,
            cluster: 1,
            shared_bytes: 0,
            overlaps: false,
            arguments,
        };
        Self { steps: vec![step], ..Self::default() }
    }
}

/// The compiled program that gathers new values on the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedUpdate {
    pub entry: String,
    /// The kernel that gathers quotients of values, where the element type is one of triangular systems.
    #[serde(default)]
    pub quotients: Option<String>,
    /// Complete source with headers inlined.
    pub source: String,
    /// Compiled kernel, base64.
    pub cubin: String,
    pub ptx: String,
}

/// An array of a recipe, written to a file for the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedArray {
    pub name: String,
    /// `u16`, `u32`, `f32` or `f64`.
    pub element: String,
    pub length: u64,
    /// Absent if no folder was given.
    pub file: Option<PathBuf>,
}
