//! Metrics in Prometheus' text form: the recorder, the names, and handles kept so that requests look nothing up.

use crate::domain::{Grade, JobState};
use axum::http::Method;
use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

const REQUEST_SECONDS: &str = "sparsetune_http_request_seconds";
const LOOKUPS: &str = "sparsetune_lookups_total";
const JOBS: &str = "sparsetune_jobs";
const QUEUE_DEPTH: &str = "sparsetune_queue_depth";
/// Recorded by the service, like the trials and its own lookups.
const JOB_SECONDS: &str = "sparsetune_job_seconds";
const TRIALS: &str = "sparsetune_trials_total";
/// Counted by the pool.
const RESTARTS: &str = "sparsetune_evaluator_restarts_total";

/// Upper bounds in seconds: a cached lookup takes tens of microseconds, an upload minutes.
const BUCKETS: [f64; 14] = [
    25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 5e-3, 25e-3, 100e-3, 500e-3, 2.0, 10.0, 60.0, 600.0,
];

const JOB_BUCKETS: [f64; 8] = [0.5, 2.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];

const STATES: [JobState; 5] = [
    JobState::Queued,
    JobState::Running,
    JobState::Succeeded,
    JobState::Failed,
    JobState::Cancelled,
];

const GRADES: [(Grade, &str); 5] = [
    (Grade::Exact, "exact"),
    (Grade::Stale, "stale"),
    (Grade::Neighbour, "neighbour"),
    (Grade::Predicted, "predicted"),
    (Grade::None, "none"),
];

/// The process' recorder. The facade has one per process, so servers that share a process (tests) share it.
fn recorder() -> Result<PrometheusHandle, &'static BuildError> {
    static RECORDER: OnceLock<Result<PrometheusHandle, BuildError>> = OnceLock::new();
    let recorder = RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(REQUEST_SECONDS.to_owned()), &BUCKETS)?
            .set_buckets_for_metric(Matcher::Full(JOB_SECONDS.to_owned()), &JOB_BUCKETS)?;
        let handle = builder.install_recorder()?;
        describe();
        Ok(handle)
    });
    match recorder {
        Ok(handle) => Ok(handle.clone()),
        Err(error) => Err(error),
    }
}

fn describe() {
    describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "Time to the first byte of the answer.");
    describe_counter!(LOOKUPS, "Plan lookups by grade of the match.");
    describe_gauge!(JOBS, "Jobs in the store by state.");
    describe_gauge!(QUEUE_DEPTH, "Jobs that wait for a worker.");
    describe_histogram!(JOB_SECONDS, Unit::Seconds, "Time from a job's start to its end.");
    describe_counter!(TRIALS, "Trials recorded by this process, by state.");
    describe_counter!(RESTARTS, "Evaluator processes started again after a kill or a crash.");
    for state in
        ["pruned", "measured", "compile_failed", "refused", "wrong", "timed_out", "crashed"]
    {
        counter!(TRIALS, "state" => state).increment(0);
    }
    counter!(RESTARTS).increment(0);
}

/// Handles of everything this room counts.
pub struct Metrics {
    recorder: PrometheusHandle,
    lookups: [Counter; GRADES.len()],
    routes: HashMap<&'static str, RouteTimes>,
    unmatched: RouteTimes,
}

impl Metrics {
    /// Installs the recorder on first use. Fails where another recorder holds the process.
    pub fn new(paths: impl IntoIterator<Item = &'static str>) -> Result<Self, &'static BuildError> {
        Ok(Self {
            recorder: recorder()?,
            lookups: GRADES.map(|(_, name)| {
                let counter = counter!(LOOKUPS, "grade" => name);
                counter.increment(0);
                counter
            }),
            routes: paths.into_iter().map(|path| (path, RouteTimes::new(path))).collect(),
            unmatched: RouteTimes::new("unmatched"),
        })
    }

    /// A lookup answered from the cache.
    pub fn count_kept_lookup(&self, grade: Grade) {
        if let Some(at) = GRADES.iter().position(|(known, _)| *known == grade) {
            self.lookups[at].increment(1);
        }
    }

    /// One answered request; `route` is the matched path, never the path as the client wrote it.
    pub fn time_request(&self, route: Option<&str>, method: &Method, status: u16, took: Duration) {
        let route = route.and_then(|path| self.routes.get(path)).unwrap_or(&self.unmatched);
        route.record(method, status, took);
    }

    /// The gauges as the store has them now; a state that is not listed has no job.
    pub fn set_jobs(&self, counts: &[(JobState, u64)]) {
        for state in STATES {
            let count = counts.iter().find(|(listed, _)| *listed == state);
            let count = count.map_or(0, |(_, count)| *count) as f64;
            gauge!(JOBS, "state" => state.name()).set(count);
            if state == JobState::Queued {
                gauge!(QUEUE_DEPTH).set(count);
            }
        }
    }

    pub fn render(&self) -> String {
        self.recorder.render()
    }

    /// Moves samples into buckets; without it they pile up until somebody scrapes.
    pub fn upkeep(&self) {
        self.recorder.run_upkeep();
    }
}

/// Histograms of one route by method and status, registered as they first occur.
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
        // A route answers with a handful of statuses, so a scan beats a hash.
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

/// Clients may invent methods; labels may not grow with them.
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
