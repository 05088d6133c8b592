//! Devices: the hardware that the workers of this store use.

use super::behalf::OnBehalf;
use super::error::Problem;
use super::extract::{Path, Query};
use super::page::page_request;
use crate::domain::{DeviceClass, QuarantineId};
use crate::service::{DeviceStatus, Quarantined};
use crate::wire::{self, Devices, WorkerDevice};
use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;

impl From<DeviceStatus> for WorkerDevice {
    fn from(status: DeviceStatus) -> Self {
        Self {
            device: status.device.into(),
            key: status.key,
            worker: status.owner,
            host: status.host,
            version: status.version,
            draining: status.draining,
            local: status.local,
            online: status.online,
            seen_at: status.last_seen.to_rfc3339(),
            trouble: status.trouble,
            waiting: status.waiting,
            running: status.running,
            quarantined: status.quarantined,
            restarts: status.restarts,
        }
    }
}

impl From<Quarantined> for wire::Quarantined {
    fn from(entry: Quarantined) -> Self {
        Self {
            id: entry.id(),
            device_class: entry.class,
            kernel_digest: entry.kernel_digest,
            candidate: entry.candidate.into(),
            scope: entry.scope,
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

pub async fn list(OnBehalf(app): OnBehalf) -> Result<Json<Devices>, Problem> {
    let devices = app.service.devices().await?;
    Ok(Json(Devices { items: devices.into_iter().map(WorkerDevice::from).collect() }))
}

pub async fn quarantine(
    OnBehalf(app): OnBehalf,
    Query(query): Query<QuarantineQuery>,
) -> Result<Json<wire::Page<wire::Quarantined>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    Ok(Json(wire::Page::from(app.service.quarantine(query.class.as_ref(), &page).await?)))
}

/// Lets later searches try the candidate again. Answers 204.
pub async fn lift(
    OnBehalf(app): OnBehalf,
    Path(id): Path<QuarantineId>,
) -> Result<StatusCode, Problem> {
    app.service.lift_quarantine(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
