//! The devices page: registered devices, their state and the quarantined candidates.

use super::format::{bytes, count, digits, micros};
use super::moment::Moment;
use super::shell::{Place, Shell, fragment, html};
use crate::domain::{Device, DeviceKind, QuarantineScope};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::Problem;
use crate::http::page::DEFAULT_LIMIT;
use crate::service::{DeviceStatus, PageRequest, Quarantined};
use askama::Template;
use axum::http::HeaderMap;
use axum::response::Response;

#[derive(Template)]
#[template(path = "devices.html")]
struct Page {
    shell: Shell,
    cards: Vec<Card>,
    quarantine: Vec<QuarantineRow>,
    /// Whether there are older entries.
    more: bool,
}

/// The part that changes while the page is open.
#[derive(Template)]
#[template(path = "devices_live.html")]
struct Live {
    cards: Vec<Card>,
}

/// One device.
struct Card {
    name: String,
    id: String,
    class: String,
    key: String,
    worker: String,
    host: Option<String>,
    version: Option<String>,
    local: bool,
    state: Standing,
    trouble: Option<String>,
    running: Option<String>,
    waiting: Option<String>,
    seen: Moment,
    restarts: Option<u64>,
    quarantined: u64,
    copy: String,
    hop: String,
    hop_note: &'static str,
    facts: Vec<(&'static str, String)>,
    software: Vec<(&'static str, String)>,
}

/// State of a device, as shown by its badge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Online,
    Draining,
    Trouble,
    Offline,
}

impl Standing {
    fn of(status: &DeviceStatus) -> Self {
        match (&status.trouble, status.online) {
            (Some(_), _) => Self::Trouble,
            (None, true) if status.draining => Self::Draining,
            (None, true) => Self::Online,
            (None, false) => Self::Offline,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Draining => "ending",
            Self::Trouble => "failing",
            Self::Offline => "offline",
        }
    }

    const fn tone(self) -> &'static str {
        match self {
            Self::Online => "good",
            Self::Trouble => "bad",
            Self::Draining | Self::Offline => "idle",
        }
    }
}

struct QuarantineRow {
    candidate: String,
    class: String,
    scope: &'static str,
    reason: String,
    when: Moment,
}

impl From<Quarantined> for QuarantineRow {
    fn from(entry: Quarantined) -> Self {
        Self {
            candidate: entry.candidate.to_string(),
            class: entry.class.to_string(),
            scope: match entry.scope {
                QuarantineScope::Pattern => "one pattern",
                QuarantineScope::Namespace => "one namespace",
                QuarantineScope::Class => "all",
            },
            reason: entry.reason,
            when: Moment::of(entry.at),
        }
    }
}

impl From<DeviceStatus> for Card {
    fn from(status: DeviceStatus) -> Self {
        let device = &status.device;
        let hop = match device.hop_ns {
            ns if ns >= 1e4 => micros(ns / 1e3),
            ns if ns > 0.0 => format!("{} ns", digits(ns)),
            _ => "not measured".to_owned(),
        };
        Self {
            state: Standing::of(&status),
            name: device.name.clone(),
            id: device.id.to_string(),
            class: device.class().to_string(),
            copy: format!("{} GB/s", digits(device.copy_gbps)),
            hop,
            hop_note: match device.kind {
                DeviceKind::Cuda => "time for a value to get from one multiprocessor to another",
                DeviceKind::Cpu => "time for a value to get from one thread to another",
            },
            facts: facts(device),
            software: software(device),
            key: status.key.0,
            worker: status.owner,
            host: status.host,
            version: status.version,
            local: status.local,
            trouble: status.trouble,
            running: status.running.map(|job| job.to_string()),
            seen: Moment::of(status.last_seen),
            restarts: status.restarts,
            waiting: status.waiting,
            quarantined: status.quarantined,
        }
    }
}

/// For a CPU the fields of [`Device`] have other meanings, so they are named differently here.
fn facts(device: &Device) -> Vec<(&'static str, String)> {
    let memory = ("Memory", bytes(device.memory_bytes));
    match device.kind {
        DeviceKind::Cuda => vec![
            ("Compute capability", device.compute_capability.clone()),
            ("Multiprocessors", count(device.multiprocessors.into())),
            ("Shared memory per block", bytes(device.shared_bytes_per_block)),
            ("Registers per multiprocessor", count(device.registers_per_multiprocessor.into())),
            ("L2 cache", bytes(device.l2_bytes)),
            memory,
        ],
        DeviceKind::Cpu => vec![
            ("Instruction set", device.compute_capability.clone()),
            ("Threads", count(device.multiprocessors.into())),
            ("SIMD lanes (f32)", count(device.warp_size.into())),
            ("Last-level cache", bytes(device.l2_bytes)),
            memory,
        ],
    }
}

fn software(device: &Device) -> Vec<(&'static str, String)> {
    let none = || match device.kind {
        DeviceKind::Cuda => "not installed".to_owned(),
        DeviceKind::Cpu => "MKL is not installed: plain kernels take its place".to_owned(),
    };
    let mut software = vec![
        (if device.kind == DeviceKind::Cuda { "Driver" } else { "System" }, device.driver.clone()),
        ("Compiler", device.compiler.clone()),
        ("Vendor library", device.vendor.clone().unwrap_or_else(none)),
    ];
    software.extend(device.dense_vendor.clone().map(|dense| ("Dense vendor library", dense)));
    software
}

async fn cards(app: &Served) -> Result<Vec<Card>, Problem> {
    Ok(app.service.devices().await?.into_iter().map(Card::from).collect())
}

/// `GET /devices`.
pub async fn show(OnBehalf(app): OnBehalf) -> Result<Response, Problem> {
    let page = PageRequest { after: None, limit: DEFAULT_LIMIT };
    let quarantine = app.service.quarantine(None, &page).await?;
    html(&Page {
        shell: Shell::new(&app, Place::Devices),
        cards: cards(&app).await?,
        more: quarantine.next.is_some(),
        quarantine: quarantine.items.into_iter().map(QuarantineRow::from).collect(),
    })
}

/// `GET /fragments/devices`.
pub async fn live(OnBehalf(app): OnBehalf, headers: HeaderMap) -> Result<Response, Problem> {
    fragment(&headers, &Live { cards: cards(&app).await? })
}
