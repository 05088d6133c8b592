//! What the pool and the evaluator say to each other: one JSON object a line, over the child's stdin and stdout.
//!
//! Every request is answered by exactly one `Reply` with the same `seq`; before it, any number of `Stage` notes may
//! come, each of which restarts the deadline of the request. Matrices travel by path, never over the pipe.

use super::plan::{Bound, LaunchStep};
use super::recipe::{Compiled, Scratch};
use super::{Candidate, Device, Digest, L2Policy, Outcome, Problem, Timing};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Both sides refuse another version.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest line either side writes or reads, newline included; a longer one is refused, never buffered.
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
    /// Map a canonical matrix, make operands and the reference result. Replaces what was loaded.
    Load(Load),
    /// Lower and compile ahead, in parallel, in the background. Answered at once.
    Prepare { candidates: Vec<Candidate> },
    /// Lower, compile if needed, verify on poisoned buffers, time.
    Measure { candidate: Candidate, effort: Effort },
    /// Time several candidates in turn (A B C A B C ...), each already measured right.
    Pair {
        candidates: Vec<Candidate>,
        rounds: u32,
        /// A kernel with a watchdog ends itself after this many microseconds; absent, after a second.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up_us: Option<f64>,
    },
    /// Launch facts of a candidate for its plan: geometry, source, cubin.
    /// With a folder, the recipe's arrays are written there, one file each, little-endian.
    Export {
        candidate: Candidate,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        folder: Option<PathBuf>,
    },
    /// End the process cleanly.
    Close,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Canonical matrix file (`sparse::canonical`).
    pub path: PathBuf,
    /// Its digest, checked against the file's header.
    pub digest: Digest,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    /// Seed of the random dense operand.
    pub seed: u64,
}

impl Effort {
    /// Whether a first call that took this long ends the timing.
    pub fn gives_up_at(&self, us: f64) -> bool {
        self.give_up_us.is_some_and(|most| us > most)
    }
}

/// How long to time one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    pub warmups: u32,
    pub min_samples: u32,
    pub max_samples: u32,
    /// Stop sampling after this much measured time, milliseconds.
    pub budget_ms: f64,
    /// A first call slower than this, microseconds, is the only sample: such a candidate cannot win. A kernel with a
    /// watchdog ends itself there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_us: Option<f64>,
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
    /// The request has come to a new stage: `lowering`, `compiling`, `running`, `verifying`, `timing`.
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
    /// One timing a candidate, in the order asked.
    Paired {
        timings: Vec<Timing>,
    },
    Exported(Box<Exported>),
    Closed,
    /// The request could not be carried out; the child goes on. Not an outcome of a candidate.
    Failed {
        error: String,
    },
}

/// Facts of a loaded problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Compulsory bytes of one call on the device.
    pub compulsory_bytes: u64,
    /// The least time of one call, microseconds: compulsory bytes over the device's measured copy bandwidth, and for
    /// SpTRSV the larger of that and levels x hop.
    pub limit_us: f64,
    /// Which of them `limit_us` is.
    #[serde(default)]
    pub bound: Bound,
    pub load_ms: f64,
}

/// What a plan keeps of its winner's program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// The launches of one call in order; for a vendor's routine one that names it.
    pub steps: Vec<LaunchStep>,
    #[serde(default)]
    pub arrays: Vec<ExportedArray>,
    #[serde(default)]
    pub scratch: Vec<Scratch>,
    /// Whether the output must be zeroed before each call.
    #[serde(default)]
    pub zero_output: bool,
    /// Host time that new values of the same pattern take; see `Recipe::update_ms`.
    #[serde(default)]
    pub update_ms: Option<f64>,
    /// Full source text, headers inlined; absent for vendor and host programs.
    pub source: Option<String>,
    /// Compiled kernel, base64.
    pub cubin: Option<String>,
    /// Digest of the family's kernel text.
    pub kernel_digest: Option<Digest>,
}

impl Exported {
    /// What can be said of a routine that is no kernel of ours: its name, and what it was told.
    pub fn routine(entry: &str, arguments: Vec<String>) -> Self {
        let (entry, grid, block) = (entry.to_owned(), [1; 3], [1; 3]);
        let step = LaunchStep { entry, grid, block, cluster: 1, shared_bytes: 0, arguments };
        Self { steps: vec![step], ..Self::default() }
    }
}

/// An array of a recipe, written to a file for the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedArray {
    pub name: String,
    /// `u16`, `u32`, `f32` or `f64`.
    pub element: String,
    pub length: u64,
    /// Absent where no folder was named.
    pub file: Option<PathBuf>,
}
