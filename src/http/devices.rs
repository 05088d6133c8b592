//! Devices: what the workers of this store run on.

use super::App;
use super::error::Problem;
use super::extract::Query;
use super::page::{PageOut, page_request};
use super::trials::CandidateOut;
use crate::domain::{Device, DeviceClass, DeviceId, DeviceKind, Digest, JobId};
use crate::service::{DeviceStatus, Quarantined};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

/// Facts of a device, in a list or as the `device` of a plan.
#[derive(Debug, Serialize)]
pub struct DeviceOut {
    id: DeviceId,
    kind: DeviceKind,
    name: String,
    /// Devices of one class share plans.
    class: DeviceClass,
    compute_capability: String,
    multiprocessors: u32,
    warp_size: u32,
    max_threads_per_block: u32,
    max_threads_per_multiprocessor: u32,
    registers_per_thread: u32,
    registers_per_multiprocessor: u32,
    shared_bytes_per_block: u64,
    shared_bytes_per_multiprocessor: u64,
    l2_bytes: u64,
    memory_bytes: u64,
    copy_gbps: f64,
    hop_ns: f64,
    driver: String,
    compiler: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    vendor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dense_vendor: Option<String>,
}

impl From<Device> for DeviceOut {
    fn from(device: Device) -> Self {
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

/// A device with the worker that serves it, and how it is.
#[derive(Debug, Serialize)]
struct WorkerDeviceOut {
    #[serde(flatten)]
    device: DeviceOut,
    worker: String,
    /// Served by the very process that answers.
    local: bool,
    online: bool,
    seen_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<JobId>,
    /// Candidates that hung or killed a device of this class.
    quarantined: u64,
    /// Of its evaluator, since this process serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    restarts: Option<u64>,
}

impl From<DeviceStatus> for WorkerDeviceOut {
    fn from(status: DeviceStatus) -> Self {
        Self {
            device: status.device.into(),
            worker: status.owner,
            local: status.local,
            online: status.online,
            seen_at: status.last_seen.to_rfc3339(),
            trouble: status.trouble,
            running: status.running,
            quarantined: status.quarantined,
            restarts: status.restarts,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct DevicesOut {
    items: Vec<WorkerDeviceOut>,
}

/// A candidate that is not tried again with the same kernel text on devices of the class.
#[derive(Debug, Serialize)]
pub struct QuarantinedOut {
    device_class: DeviceClass,
    kernel_digest: Digest,
    candidate: CandidateOut,
    reason: String,
    at: String,
}

impl From<Quarantined> for QuarantinedOut {
    fn from(entry: Quarantined) -> Self {
        Self {
            device_class: entry.class,
            kernel_digest: entry.kernel_digest,
            candidate: entry.candidate.into(),
            reason: entry.reason,
            at: entry.at.to_rfc3339(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuarantineQuery {
    class: Option<DeviceClass>,
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn list(State(app): State<App>) -> Result<Json<DevicesOut>, Problem> {
    let devices = app.service.devices().await?;
    Ok(Json(DevicesOut { items: devices.into_iter().map(WorkerDeviceOut::from).collect() }))
}

pub async fn quarantine(
    State(app): State<App>,
    Query(query): Query<QuarantineQuery>,
) -> Result<Json<PageOut<QuarantinedOut>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    Ok(Json(PageOut::of(app.service.quarantine(query.class.as_ref(), &page).await?)))
}
