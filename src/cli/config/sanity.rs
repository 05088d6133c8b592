//! Checks that values are sensible, and reports each mistake with its key. Types have been checked before.

use super::{Config, Retention};
use crate::service::BudgetLimits;
use crate::service::webhooks::WebhookSettings;
use crate::store::StorePlace;
use std::fmt;
use tracing_subscriber::filter::Targets;

/// Characters of a key of sessions.
const SHORTEST_KEY: usize = 32;

impl Config {
    /// Values of the right type that are not sensible.
    pub(super) fn mistakes(&self) -> Vec<String> {
        let mut found = Mistakes(Vec::new());
        self.check_server(&mut found);
        let Self { devices, search, limits, worker, learning, evaluator, log, .. } = self;
        for name in &devices.r#use {
            found.unless(
                is_device(name),
                "devices.use",
                format_args!(
                    "{name:?} is not \"auto\", \"cpu\", \"cuda:<number>\" or \"replay:<file>\""
                ),
            );
        }
        let auto = devices.r#use.iter().any(|name| name == "auto");
        found.unless(!auto || devices.r#use.len() == 1, "devices.use", "\"auto\" stands alone");
        found.at_least_one("search.top_k", search.top_k.into());
        found.at_least_one("search.trials", search.trials.into());
        found.at_least_one("search.halving_trials", search.halving_trials.into());
        found.at_least_one("search.sampled_trials", search.sampled_trials.into());
        found.at_least_one("search.full_trials", search.full_trials.into());
        found.seconds("search.seconds", search.seconds);
        let most = BudgetLimits::MOST;
        found.unless(search.seconds <= most.seconds, "search.seconds", "must be at most a day");
        found.seconds("search.gpu_seconds", search.gpu_seconds);
        let day = search.gpu_seconds <= most.seconds;
        found.unless(day, "search.gpu_seconds", "must be at most a day");
        found.seconds("limits.job_seconds", limits.job_seconds);
        let day = limits.job_seconds <= most.seconds;
        found.unless(day, "limits.job_seconds", "must be at most a day");
        found.at_least_one("limits.job_trials", limits.job_trials.into());
        found.unless(
            limits.job_trials <= most.trials,
            "limits.job_trials",
            format_args!("must be at most {}", most.trials),
        );
        found.unless(worker.lease_ms >= 1000, "worker.lease_ms", "must be at least 1000");
        found.at_least_one("worker.poll_ms", worker.poll_ms);
        let there = worker.listen.is_empty() || worker.listen().is_some();
        found.unless(there, "worker.listen", "must be empty, or an address and a port");
        found.at_least_one("worker.max_attempts", u64::from(worker.max_attempts));
        found.unless(learning.threads <= 1024, "learning.threads", "must be at most 1024");
        found.seconds("learning.check_s", learning.check_s);
        found.at_least_one("learning.min_groups", learning.min_groups);
        found.at_least_one("learning.min_trials", learning.min_trials);
        found.seconds("devices.lock_wait_s", devices.lock_wait_s);
        found.seconds("evaluator.open_s", evaluator.open_s);
        found.seconds("evaluator.load_s", evaluator.load_s);
        found.seconds("evaluator.compile_s", evaluator.compile_s);
        found.seconds("evaluator.measure_s", evaluator.measure_s);
        for (key, path) in evaluator.libraries() {
            let there = path.is_none_or(|path| path.is_file() || path.is_dir());
            found.unless(there, &format!("evaluator.{key}"), "no such file or folder");
        }
        self.check_telemetry(&mut found);
        self.check_blobs(&mut found);
        found.seconds("webhooks.retry_s", self.webhooks.retry_s);
        if let Err(error) = self.webhooks.allowed() {
            found.0.push(format!("webhooks.allow: {error}"));
        }
        if let Some(Err(error)) = self.webhooks.ca_file().map(WebhookSettings::check_ca_file) {
            found.0.push(error);
        }
        let drift = &self.drift;
        let sane = (0.0..=24.0 * 366.0).contains(&drift.check_h);
        found.unless(
            sane,
            "drift.check_h",
            "must be at least 0 (never) and at most 366 days, in hours",
        );
        let sane = (1.01..=100.0).contains(&drift.tolerance);
        found.unless(sane, "drift.tolerance", "must be at least 1.01 and at most 100");
        if let Err(error) = log.filter.parse::<Targets>() {
            found.0.push(format!("log.filter: {error}"));
        }
        found.0
    }

    fn check_telemetry(&self, found: &mut Mistakes) {
        let telemetry = &self.telemetry;
        if let Some(endpoint) = telemetry.otlp_endpoint() {
            let key = "telemetry.otlp_endpoint";
            let why = "this binary was built without span export (cargo build --features otel)";
            found.unless(cfg!(feature = "otel"), key, why);
            // No TLS library is linked: the collector runs beside the server, and forwards the spans.
            let plain = reqwest::Url::parse(endpoint)
                .is_ok_and(|url| url.scheme() == "http" && url.has_host());
            found.unless(plain, key, "must be an http:// URL, such as http://127.0.0.1:4318");
        }
        let share = (0.0..=1.0).contains(&telemetry.sample);
        found.unless(share, "telemetry.sample", "must be between 0 and 1");
    }

    fn check_server(&self, found: &mut Mistakes) {
        let server = &self.server;
        for (i, token) in server.tokens.iter().enumerate() {
            let why = "a token needs 16 characters, or \"blake3:\" and 64 hex digits";
            found.unless(
                token.hash().is_some(),
                "server.tokens",
                format_args!("number {}: {why}", i + 1),
            );
        }
        found.seconds("server.session_s", server.session_s);
        let key = server.session_key.0.len();
        found.unless(
            key == 0 || key >= SHORTEST_KEY,
            "server.session_key",
            format_args!("must be empty, or have at least {SHORTEST_KEY} characters"),
        );
        found.at_least_one("server.max_upload_bytes", server.max_upload_bytes as u64);
        found.at_least_one("server.max_matrix_bytes", server.max_matrix_bytes);
        found.at_least_one("server.max_ratio", server.max_ratio);
        found.at_least_one("server.max_json_bytes", server.max_json_bytes as u64);
        found.at_least_one("server.uploads_at_once", server.uploads_at_once as u64);
        found.at_least_one("server.uploads_per_client", server.uploads_per_client as u64);
        found.at_least_one("server.event_streams", server.event_streams as u64);
        let each = server.event_streams_per_client as u64;
        found.at_least_one("server.event_streams_per_client", each);
        found.seconds("server.body_idle_s", server.body_idle_s);
        found.at_least_one("server.body_bytes_per_s", server.body_bytes_per_s);
        found.at_least_one("server.max_connections", server.max_connections as u64);
        let each = server.connections_per_client as u64;
        found.at_least_one("server.connections_per_client", each);
        found.seconds("server.headers_s", server.headers_s);
        found.seconds("server.answer_s", server.answer_s);
        found.seconds("server.upload_s", server.upload_s);
        found.seconds("server.read_s", server.read_s);
        found.seconds("server.sse_keep_alive_s", server.sse_keep_alive_s);
        found.seconds("server.shutdown_s", server.shutdown_s);
        let data = &self.data;
        found.unless(!data.dir.as_os_str().is_empty(), "data.dir", "must not be empty");
        let grace = (1.0..=24.0 * 366.0).contains(&data.blob_grace_h);
        found.unless(
            grace,
            "data.blob_grace_h",
            "must be at least 1 and at most 366 days, in hours",
        );
        let Retention { matrices, jobs, trials, plans } = &self.retention;
        for (kind, keeping) in
            [("matrices", matrices), ("jobs", jobs), ("trials", trials), ("plans", plans)]
        {
            let key = format!("retention.{kind}.days");
            let sane = (0.0..=36_600.0).contains(&keeping.days);
            found.unless(sane, &key, "must be at least 0 (no limit) and at most 36600");
        }
        let known = data.store.0.is_empty() || StorePlace::parse(&data.store.0).is_some();
        found.unless(
            known,
            "data.store",
            "must be empty, sqlite:// and a path, or postgres:// with host and database",
        );
        let postgres = &self.postgres;
        found.unless(postgres.connections >= 2, "postgres.connections", "must be at least 2");
        found.unless(
            postgres.read_connections >= 2,
            "postgres.read_connections",
            "must be at least 2",
        );
        found.seconds("postgres.statement_s", postgres.statement_s);
        found.seconds("postgres.wait_s", postgres.wait_s);
    }
}

pub(super) struct Mistakes(Vec<String>);

impl Mistakes {
    pub(super) fn unless(&mut self, holds: bool, key: &str, why: impl fmt::Display) {
        if !holds {
            self.0.push(format!("{key}: {why}"));
        }
    }

    pub(super) fn at_least_one(&mut self, key: &str, value: u64) {
        self.unless(value >= 1, key, "must be at least 1");
    }

    /// A year is practically unlimited, and fits every clock.
    pub(super) fn seconds(&mut self, key: &str, value: f64) {
        let sane = value > 0.0 && value <= 366.0 * 86_400.0;
        self.unless(sane, key, "must be above 0 and at most 366 days, in seconds");
    }
}

fn is_device(name: &str) -> bool {
    let number = name.strip_prefix("cuda:");
    let recording = name.strip_prefix("replay:");
    matches!(name, "auto" | "cpu")
        || recording.is_some_and(|file| !file.is_empty())
        || number
            .is_some_and(|n| n.len() <= 3 && !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}
