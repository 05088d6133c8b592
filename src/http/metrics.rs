//! Metrics in Prometheus text format: the recorder, the names, and handles that are kept so that requests need no lookup.

use crate::domain::{Grade, JobState, WorkKind};
use axum::http::Method;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

const REQUEST_SECONDS: &str = "sparsetune_http_request_seconds";
const CONNECTIONS: &str = "sparsetune_http_connections";
const EVENT_STREAMS: &str = "sparsetune_event_streams";
const UPLOADS_RUNNING: &str = "sparsetune_uploads_running";
const LOOKUPS: &str = "sparsetune_lookups_total";
const JOBS: &str = "sparsetune_jobs";
const QUEUE_DEPTH: &str = "sparsetune_queue_depth";
const READY: &str = "sparsetune_ready";
const DISK_FREE: &str = "sparsetune_disk_free_bytes";
const DISK_LEAST: &str = "sparsetune_disk_least_free_bytes";
const BUILD: &str = "sparsetune_build_info";
// The service and the pool record the other metrics.
const JOBS_SUBMITTED: &str = "sparsetune_jobs_submitted_total";
const JOBS_ENDED: &str = "sparsetune_jobs_ended_total";
const JOB_SECONDS: &str = "sparsetune_job_seconds";
const TRIALS: &str = "sparsetune_trials_total";
const TRIAL_SECONDS: &str = "sparsetune_trial_seconds";
const QUARANTINED: &str = "sparsetune_quarantined_total";
const DAMAGED_BLOBS: &str = "sparsetune_damaged_blobs_total";
const PLANS_DRIFTED: &str = "sparsetune_plans_drifted";
const PLAN_CHECKS: &str = "sparsetune_plan_checks_total";
const UPLOADS: &str = "sparsetune_uploads_total";
const UPLOAD_BYTES: &str = "sparsetune_upload_bytes";
const PARSE_SECONDS: &str = "sparsetune_parse_seconds";
const TRAININGS_ENDED: &str = "sparsetune_trainings_ended_total";
const TRAINING_SECONDS: &str = "sparsetune_training_seconds";
const MODEL_IN_USE: &str = "sparsetune_model_in_use";
const RESTARTS: &str = "sparsetune_evaluator_restarts_total";

/// Upper bounds of every histogram: without bounds it would be rendered as quantiles, which cannot be aggregated.
const BUCKETS: [(&str, &[f64]); 6] = [
    // A cached lookup takes tens of microseconds, an upload minutes.
    (
        REQUEST_SECONDS,
        &[
            25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 5e-3, 25e-3, 100e-3, 500e-3, 2.0, 10.0,
            60.0, 600.0,
        ],
    ),
    (JOB_SECONDS, &[0.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0, 7200.0]),
    // A small kernel compiled ahead takes milliseconds; one that hangs takes its deadline and a new evaluator.
    (
        TRIAL_SECONDS,
        &[2e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0],
    ),
    (UPLOAD_BYTES, &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10]),
    (PARSE_SECONDS, &[1e-3, 5e-3, 25e-3, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0]),
    (TRAINING_SECONDS, &[1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 7200.0]),
];

const GRADES: [(Grade, &str); 5] = [
    (Grade::Exact, "exact"),
    (Grade::Stale, "stale"),
    (Grade::Neighbour, "neighbour"),
    (Grade::Predicted, "predicted"),
    (Grade::None, "none"),
];

/// The recorder of the process. The metrics facade permits one per process, so servers in one process (tests) share it.
fn recorder() -> Result<PrometheusHandle, &'static BuildError> {
    static RECORDER: OnceLock<Result<PrometheusHandle, BuildError>> = OnceLock::new();
    let recorder = RECORDER.get_or_init(|| {
        let mut builder = PrometheusBuilder::new();
        for (name, bounds) in BUCKETS {
            builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)?;
        }
        let handle = builder.install_recorder()?;
        describe();
        begin_at_zero();
        Ok(handle)
    });
    match recorder {
        Ok(handle) => Ok(handle.clone()),
        Err(error) => Err(error),
    }
}

fn describe() {
    describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "Time to the first byte of the answer.");
    describe_gauge!(CONNECTIONS, "Connections open.");
    describe_gauge!(EVENT_STREAMS, "Event streams of jobs that are open.");
    describe_gauge!(UPLOADS_RUNNING, "Uploads in progress.");
    describe_counter!(
        LOOKUPS,
        "Plan lookups by grade of the match and by source of the answer: cache or store."
    );
    describe_gauge!(JOBS, "Jobs in the store by state.");
    describe_gauge!(QUEUE_DEPTH, "Jobs waiting for a worker.");
    describe_gauge!(READY, "1 if /readyz answers 200, else 0.");
    describe_gauge!(
        DISK_FREE,
        Unit::Bytes,
        "Bytes free on the disk of a data folder: store or blobs."
    );
    describe_gauge!(
        DISK_LEAST,
        Unit::Bytes,
        "Free bytes below which uploads are refused and the server is not ready."
    );
    describe_gauge!(BUILD, "Always 1; the label is the running version.");
    describe_counter!(
        JOBS_SUBMITTED,
        "Jobs queued by this process; equal concurrent jobs count once."
    );
    describe_counter!(JOBS_ENDED, "Jobs whose end this process wrote, by state.");
    describe_histogram!(
        JOB_SECONDS,
        Unit::Seconds,
        "Time from a job's start to its end, by state."
    );
    describe_counter!(TRIALS, "Trials recorded by this process, by state.");
    describe_histogram!(
        TRIAL_SECONDS,
        Unit::Seconds,
        "Time from a trial's start to its outcome in the store, by state and kernel family."
    );
    describe_counter!(QUARANTINED, "Candidates quarantined because they hung or crashed a device.");
    describe_counter!(
        DAMAGED_BLOBS,
        "Stored files whose contents were not those of their digest, and that were set aside."
    );
    describe_gauge!(
        PLANS_DRIFTED,
        "Pinned plans that no longer held when they were last measured again."
    );
    describe_counter!(PLAN_CHECKS, "Pinned plans measured again, by verdict.");
    describe_counter!(UPLOADS, "Uploads by outcome.");
    describe_histogram!(UPLOAD_BYTES, Unit::Bytes, "Size of an upload as it arrived.");
    describe_histogram!(
        PARSE_SECONDS,
        Unit::Seconds,
        "Time to read an upload into canonical form and to hash it."
    );
    describe_counter!(TRAININGS_ENDED, "Trainings whose end this process wrote, by state.");
    describe_histogram!(
        TRAINING_SECONDS,
        Unit::Seconds,
        "Time from a training's start to its end, by state."
    );
    describe_gauge!(
        MODEL_IN_USE,
        "1 if a learned model is in use, by operation, device class and learner; 0 if it was in use before."
    );
    describe_counter!(
        RESTARTS,
        "Evaluator processes restarted after a kill or a crash, by device."
    );
}

/// Metrics of events that have not happened yet are 0 rather than absent: a rate needs the step from 0 to 1. Restarts are
/// registered with their evaluator.
fn begin_at_zero() {
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    for name in [JOBS_SUBMITTED, QUARANTINED, DAMAGED_BLOBS] {
        counter!(name).increment(0);
    }
    let states =
        ["pruned", "measured", "compile_failed", "refused", "wrong", "timed_out", "crashed"];
    for state in states {
        counter!(TRIALS, "state" => state).increment(0);
    }
    for state in JobState::ALL.into_iter().filter(|state| state.is_final()) {
        counter!(JOBS_ENDED, "state" => state.name()).increment(0);
        counter!(TRAININGS_ENDED, "state" => state.name()).increment(0);
    }
    for answer in ["created", "known", "refused"] {
        counter!(UPLOADS, "answer" => answer).increment(0);
    }
    for (_, grade) in GRADES {
        counter!(LOOKUPS, "grade" => grade, "source" => "store").increment(0);
    }
    for verdict in ["holds", "unclear", "drifted"] {
        counter!(PLAN_CHECKS, "verdict" => verdict).increment(0);
    }
    for name in [CONNECTIONS, EVENT_STREAMS, UPLOADS_RUNNING, PLANS_DRIFTED] {
        gauge!(name).set(0.0);
    }
}

/// Counts something open until this value is dropped.
pub struct Open(Gauge);

impl Open {
    pub fn connection() -> Self {
        Self::of(gauge!(CONNECTIONS))
    }

    pub fn event_stream() -> Self {
        Self::of(gauge!(EVENT_STREAMS))
    }

    pub fn upload() -> Self {
        Self::of(gauge!(UPLOADS_RUNNING))
    }

    fn of(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Handles of all metrics that this module records.
pub struct Metrics {
    recorder: PrometheusHandle,
    lookups: [Counter; GRADES.len()],
    routes: HashMap<&'static str, RouteTimes>,
    unmatched: RouteTimes,
}

impl Metrics {
    /// Installs the recorder on first use. Fails if the process has another recorder.
    pub fn new(paths: impl IntoIterator<Item = &'static str>) -> Result<Self, &'static BuildError> {
        Ok(Self {
            recorder: recorder()?,
            lookups: GRADES.map(|(_, name)| {
                let counter = counter!(LOOKUPS, "grade" => name, "source" => "cache");
                counter.increment(0);
                counter
            }),
            routes: paths.into_iter().map(|path| (path, RouteTimes::new(path))).collect(),
            unmatched: RouteTimes::new("unmatched"),
        })
    }

    /// Counts a lookup answered from the cache.
    pub fn count_kept_lookup(&self, grade: Grade) {
        if let Some(at) = GRADES.iter().position(|(known, _)| *known == grade) {
            self.lookups[at].increment(1);
        }
    }

    /// Records one answered request; `route` is the matched path, never the path that the client wrote.
    pub fn time_request(&self, route: Option<&str>, method: &Method, status: u16, took: Duration) {
        let route = route.and_then(|path| self.routes.get(path)).unwrap_or(&self.unmatched);
        route.record(method, status, took);
    }

    /// Sets the gauges of tuning jobs to the store's counts; a state that is not listed has no job.
    pub fn set_jobs(&self, counts: &[(WorkKind, JobState, u64)]) {
        for state in JobState::ALL {
            let listed = counts.iter().find(|count| (count.0, count.1) == (WorkKind::Tune, state));
            let count = listed.map_or(0, |(_, _, count)| *count) as f64;
            gauge!(JOBS, "state" => state.name()).set(count);
            if state == JobState::Queued {
                gauge!(QUEUE_DEPTH).set(count);
            }
        }
    }

    /// Sets the gauge of readiness.
    pub fn set_ready(&self, ready: bool) {
        gauge!(READY).set(f64::from(u8::from(ready)));
    }

    /// Sets the gauges of the disks: free bytes by folder, and how many have to stay free.
    pub fn set_disk(&self, free: &[(&'static str, u64)], least: u64) {
        for (folder, bytes) in free {
            gauge!(DISK_FREE, "folder" => *folder).set(*bytes as f64);
        }
        gauge!(DISK_LEAST).set(least as f64);
    }

    pub fn render(&self) -> String {
        self.recorder.render()
    }

    /// Moves samples into buckets; without this they would accumulate until the next scrape.
    pub fn upkeep(&self) {
        self.recorder.run_upkeep();
    }
}

/// Histograms of one route by method and status, registered when they first occur.
struct RouteTimes {
    route: &'static str,
    seen: RwLock<Vec<((&'static str, u16), Histogram)>>,
}

impl RouteTimes {
    fn new(route: &'static str) -> Self {
        Self { route, seen: RwLock::default() }
    }

    fn record(&self, method: &Method, status: u16, took: Duration) {
        let key = (label(method), status);
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        // A route answers with a handful of statuses, so a scan is faster than a hash.
        if let Some((_, times)) = seen.iter().find(|(known, _)| *known == key) {
            return times.record(took.as_secs_f64());
        }
        drop(seen);
        let times = histogram!(
            REQUEST_SECONDS,
            "route" => self.route, "method" => key.0, "status" => status.to_string()
        );
        times.record(took.as_secs_f64());
        self.seen.write().unwrap_or_else(PoisonError::into_inner).push((key, times));
    }
}

/// Clients may invent methods, so other methods share one label.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
