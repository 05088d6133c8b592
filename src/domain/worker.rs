//! Workers: which process has a name in a store, and what it says of a device that it serves.

use serde::{Deserialize, Serialize};

/// What a worker says of itself and of its device's evaluator, with each heartbeat. What a later version adds is passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Serving {
    /// The name of its host.
    pub host: String,
    /// The version of the program.
    pub version: String,
    /// How often the evaluator was restarted since the worker has served the device.
    pub restarts: u64,
    /// Why the device cannot work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why the worker waits before it measures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Whether it claims nothing more, since it is about to end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// One start of a process that serves devices under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub name: String,
    /// Unique among all starts.
    pub id: String,
    pub host: String,
    /// Where a lock of the host lets one process at a time be: who is there now knows that the former has ended. Empty if nothing is known
    /// of it.
    pub place: String,
    pub version: String,
}

/// Who has a name that another asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameHolder {
    pub host: String,
    /// Milliseconds since it was last seen, by the store's clock.
    pub silent_ms: i64,
}
