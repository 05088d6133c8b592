//! Devices, their workers, and the quarantined candidates.

use super::Candidate;
use crate::domain;
use crate::domain::{
    DeviceClass, DeviceId, DeviceKey, DeviceKind, Digest, JobId, QuarantineId, QuarantineScope,
};
use serde::{Deserialize, Serialize};

/// The description of a device, in a list or as the `device` of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Device {
    pub id: DeviceId,
    pub kind: DeviceKind,
    pub name: String,
    /// Devices of one class share plans.
    pub class: DeviceClass,
    pub compute_capability: String,
    pub multiprocessors: u32,
    pub warp_size: u32,
    pub max_threads_per_block: u32,
    pub max_threads_per_multiprocessor: u32,
    pub registers_per_thread: u32,
    pub registers_per_multiprocessor: u32,
    pub shared_bytes_per_block: u64,
    pub shared_bytes_per_multiprocessor: u64,
    pub l2_bytes: u64,
    pub memory_bytes: u64,
    /// Measured copy bandwidth in GB/s (10^9 bytes per second), counting bytes read and written.
    pub copy_gbps: f64,
    /// Measured time in nanoseconds from a store on one multiprocessor to a dependent load on another; 0 if not measured.
    #[serde(default)]
    pub hop_ns: f64,
    pub driver: String,
    pub compiler: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense_vendor: Option<String>,
}

impl From<domain::Device> for Device {
    fn from(device: domain::Device) -> Self {
        Self {
            class: device.class(),
            id: device.id,
            kind: device.kind,
            name: device.name,
            compute_capability: device.compute_capability,
            multiprocessors: device.multiprocessors,
            warp_size: device.warp_size,
            max_threads_per_block: device.max_threads_per_block,
            max_threads_per_multiprocessor: device.max_threads_per_multiprocessor,
            registers_per_thread: device.registers_per_thread,
            registers_per_multiprocessor: device.registers_per_multiprocessor,
            shared_bytes_per_block: device.shared_bytes_per_block,
            shared_bytes_per_multiprocessor: device.shared_bytes_per_multiprocessor,
            l2_bytes: device.l2_bytes,
            memory_bytes: device.memory_bytes,
            copy_gbps: device.copy_gbps,
            hop_ns: device.hop_ns,
            driver: device.driver,
            compiler: device.compiler,
            vendor: device.vendor,
            dense_vendor: device.dense_vendor,
        }
    }
}

/// A device with the worker that serves it, and its status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorkerDevice {
    #[serde(flatten)]
    pub device: Device,
    /// Which one it is among those of all hosts; a job that names it runs on no other.
    pub key: DeviceKey,
    pub worker: String,
    /// The worker's host and version; absent of workers of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether the worker claims nothing more, since it is about to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Whether the responding process serves the device.
    #[serde(default)]
    pub local: bool,
    pub online: bool,
    pub seen_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why its worker waits before it measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<JobId>,
    /// Candidates that hung or killed a device of this class.
    #[serde(default)]
    pub quarantined: u64,
    /// How often its evaluator was restarted since its worker has served it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
}

/// All devices, on one page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Devices {
    pub items: Vec<WorkerDevice>,
}

const fn everywhere() -> QuarantineScope {
    QuarantineScope::Class
}

/// A candidate that is not tried again with the same kernel text on devices of the class, by the searches of its scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Quarantined {
    /// For `DELETE /v1/quarantine/{id}`.
    pub id: QuarantineId,
    pub device_class: DeviceClass,
    pub kernel_digest: Digest,
    pub candidate: Candidate,
    /// `class` where a service says nothing of it, as earlier versions.
    #[serde(default = "everywhere")]
    pub scope: QuarantineScope,
    /// Outside the namespace `default` only what came of it.
    pub reason: String,
    pub at: String,
}
