//! What the service has learnt, at a glance: devices, plans, speed-ups, shares of the performance bound, and its models over time.

use super::format::{count, percent, times};
use super::pictures::history::{self, History};
use super::shell::{Place, Shell, html};
use crate::domain::{DeviceClass, JobState};
use crate::http::behalf::OnBehalf;
use crate::http::error::Problem;
use crate::service::{ClassFigures, DeviceStatus, Learnt};
use askama::Template;
use axum::response::Response;
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    shell: Shell,
    plans: String,
    /// Said if the figures are of the newest plans alone.
    counted: Option<String>,
    online: usize,
    devices: usize,
    running: u64,
    waiting: u64,
    classes: Vec<Class>,
    models: Vec<Models>,
}

/// A class of devices that is known now, or that has plans.
struct Class {
    name: String,
    /// For people.
    words: String,
    online: u64,
    plans: String,
    speedup: String,
    bound: String,
}

/// An operation's models on a class.
struct Models {
    op: &'static str,
    class: String,
    /// The class for people.
    words: String,
    picture: Option<History>,
    /// The newest, in a sentence.
    told: String,
}

/// `GET /overview`.
pub async fn show(OnBehalf(app): OnBehalf) -> Result<Response, Problem> {
    let overview = app.service.overview().await?;
    let devices = app.service.devices().await?;
    let counts = app.service.job_counts().await?;
    let of = |state: JobState| -> u64 {
        counts.iter().filter(|(_, known, _)| *known == state).map(|(_, _, jobs)| *jobs).sum()
    };
    let counted = (overview.counted < overview.plans)
        .then(|| format!("Figures are of the newest {}.", count(overview.counted)));
    html(&Page {
        shell: Shell::new(&app, Place::Overview),
        plans: count(overview.plans),
        counted,
        online: devices.iter().filter(|device| device.online).count(),
        devices: devices.len(),
        running: of(JobState::Running),
        waiting: of(JobState::Queued),
        classes: classes(&devices, &overview.classes),
        models: overview.models.iter().map(Models::from).collect(),
    })
}

fn classes(devices: &[DeviceStatus], figures: &[ClassFigures]) -> Vec<Class> {
    let mut online: BTreeMap<String, u64> = BTreeMap::new();
    for status in devices {
        *online.entry(status.device.class().0).or_default() += u64::from(status.online);
    }
    let none = || "–".to_owned();
    let mut classes: Vec<Class> = figures
        .iter()
        .map(|class| Class {
            online: online.remove(&class.class.0).unwrap_or(0),
            name: class.class.0.clone(),
            words: class.class.words(),
            plans: count(class.plans),
            speedup: class.speedup.map_or_else(none, times),
            bound: class.limit_fraction.map_or_else(none, percent),
        })
        .collect();
    let without = |(name, online): (String, u64)| Class {
        words: DeviceClass(name.clone()).words(),
        name,
        online,
        plans: "0".to_owned(),
        speedup: none(),
        bound: none(),
    };
    classes.extend(online.into_iter().map(without));
    classes
}

impl From<&Learnt> for Models {
    fn from(learnt: &Learnt) -> Self {
        let shares: Vec<[f64; 2]> =
            learnt.versions.iter().map(|version| [version.first, version.tenth]).collect();
        let newest = learnt.versions.last();
        let told = newest.map_or_else(String::new, |newest| {
            format!(
                "{} {}; of the newest, the first choice reaches {} of the best performance, the best of its first ten {}.",
                learnt.versions.len(),
                if learnt.versions.len() == 1 { "version" } else { "versions" },
                percent(newest.first),
                percent(newest.tenth)
            )
        });
        Self {
            op: learnt.scope.op.descriptor().title,
            class: learnt.scope.device_class.to_string(),
            words: learnt.scope.device_class.words(),
            picture: history::of(&shares),
            told,
        }
    }
}
