//! What operators see of a job's life in a server as it is run: its log lines with their ids, its metrics, the dashboard.

#[path = "tuning/server.rs"]
#[allow(dead_code)]
mod server;

use reqwest::Method;
use serde_json::{Value, json};
use server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;

const DASHBOARD: &str = include_str!("../docker/grafana/sparsetune.json");
const ALERTS: &str = include_str!("../docker/prometheus-alerts.yml");

/// A job for a few candidates of a small matrix.
fn small(matrix: &str) -> Value {
    let search = json!({"strategy": "ranked", "top_k": 3, "seconds": 20});
    json!({"matrix": matrix, "problem": {"op": "spmm", "n": 8}, "device": "cpu", "search": search})
}

/// The lines of a log, each of which must be JSON.
fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let parsed =
        |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parsed).collect()
}

/// A field of the innermost span of that name around a line.
fn of_span<'a>(line: &'a Value, span: &str, field: &str) -> Option<&'a Value> {
    let spans = line["spans"].as_array()?;
    let found = spans.iter().rev().find(|found| found["name"] == span)?;
    found.get(field)
}

#[tokio::test]
async fn json_logs_lead_from_a_request_to_its_job_and_to_each_trial() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let settings =
        [("SPARSETUNE_LOG__FORMAT", "json"), ("SPARSETUNE_LOG__FILTER", "sparsetune=debug")];
    let heard = Stdio::from(File::create(&log).unwrap());
    let server = Server::start_heard(&folder.path().join("data"), &settings, heard).await;
    let matrix = server.grid(12).await;
    let submit = server.request(Method::POST, "/v1/jobs").header("x-request-id", "asked-7");
    let job: Value = submit.json(&small(&matrix)).send().await.unwrap().json().await.unwrap();
    let id = job["id"].as_str().unwrap();
    assert_eq!(server.ended(id).await["state"], "succeeded");
    let trials = server.trials(id).await;
    assert!(server.stop().success());

    let lines = lines(&log);
    let submitted =
        lines.iter().find(|line| of_span(line, "request", "id") == Some(&json!("asked-7")));
    let submitted = submitted.expect("a line with the request's id");
    assert_eq!((&submitted["message"], &submitted["job"]), (&json!("job submitted"), &json!(id)));
    assert_eq!(of_span(submitted, "request", "job"), Some(&json!(id)));

    let of_job: Vec<&Value> =
        lines.iter().filter(|line| of_span(line, "job", "job") == Some(&json!(id))).collect();
    assert!(of_job.iter().all(|line| of_span(line, "job", "matrix") == Some(&json!(matrix))));
    let told: Vec<(String, String)> = of_job
        .iter()
        .filter(|line| line["message"] == "measured")
        .map(|line| {
            let field = |name| of_span(line, "trial", name).unwrap();
            assert!(field("median_us").as_f64().unwrap() > 0.0);
            assert!(field("ordinal").is_u64() && field("state") == "measured");
            let text = |name| field(name).as_str().unwrap().to_owned();
            (text("candidate"), text("family"))
        })
        .collect();
    let measured: Vec<(String, String)> = trials
        .iter()
        .filter(|trial| trial["state"] == "measured")
        .map(|trial| {
            let candidate = &trial["candidate"];
            let text = |name: &str| candidate[name].as_str().unwrap().to_owned();
            (text("id"), text("family"))
        })
        .collect();
    assert!(!measured.is_empty());
    assert_eq!(told, measured, "one line for each trial");
}

/// The names of families in a query.
fn families(expr: &str) -> impl Iterator<Item = &str> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("sparsetune_"))
}

/// The names of families in a dashboard's queries.
fn queried(panel: &Value, names: &mut BTreeSet<String>) {
    for inner in panel["panels"].as_array().into_iter().flatten() {
        queried(inner, names);
    }
    for target in panel["targets"].as_array().into_iter().flatten() {
        names.extend(families(target["expr"].as_str().unwrap()).map(str::to_owned));
    }
}

/// The answer of /metrics of a server that has run a job.
async fn metrics_after_a_job(folder: &Path) -> String {
    let server = Server::start(&folder.join("data"), &[]).await;
    let matrix = server.grid(12).await;
    let id = server.submit(&small(&matrix)).await["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id).await["state"], "succeeded");
    server.json(&format!("/v1/plans?matrix={matrix}&op=spmm&n=8&device=cpu")).await;
    server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap()
}

/// Each family of a query that has matchers, with them: label, operator, value.
fn matchers(expr: &str) -> Vec<(&str, &str, &str, &str)> {
    let mut found = Vec::new();
    for part in expr.split('}') {
        let Some((before, list)) = part.split_once('{') else { continue };
        let Some(family) = families(before).last() else { continue };
        for matcher in list.split(',').map(str::trim) {
            let (label, rest) = matcher.split_at(matcher.find(['=', '!']).unwrap());
            let (operator, value) = rest.split_at(rest.find('"').unwrap());
            found.push((family, label, operator, value.trim_matches('"')));
        }
    }
    found
}

#[tokio::test]
async fn alerts_are_on_metrics_and_labels_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let text = metrics_after_a_job(folder.path()).await;
    let rules: Value = serde_yaml_ng::from_str(ALERTS).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let mut watched = BTreeSet::new();
    for rule in rules {
        let (name, expr) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
        assert!(rule["labels"]["severity"].is_string(), "{name}");
        for family in families(expr) {
            let has = |line: &str| line.split(['{', ' ']).next() == Some(family);
            assert!(text.lines().any(has), "{name}: no {family} in\n{text}");
            watched.insert(family);
        }
        for (family, label, operator, value) in matchers(expr) {
            let of = || text.lines().filter(|line| line.starts_with(&format!("{family}{{")));
            let quoted = format!("{label}=\"");
            assert!(of().any(|line| line.contains(&quoted)), "{name}: {family} without {label}");
            // Statuses come as they occur; all other labels are there from the start.
            let there = of().any(|line| line.contains(&format!("{label}=\"{value}\"")));
            assert!(operator != "=" || label == "status" || there, "{name}: no {label}={value}");
        }
    }
    for family in [
        "sparsetune_ready",
        "sparsetune_disk_free_bytes",
        "sparsetune_evaluator_restarts_total",
        "sparsetune_quarantined_total",
        "sparsetune_queue_depth",
        "sparsetune_uploads_total",
    ] {
        assert!(watched.contains(family), "no alert on {family}");
    }
    assert_eq!(
        matchers("a / sparsetune_b{c!=\"d\", e=~\"f|g\"}"),
        [("sparsetune_b", "c", "!=", "d"), ("sparsetune_b", "e", "=~", "f|g")]
    );
}

#[tokio::test]
async fn the_grafana_dashboard_asks_for_metrics_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let text = metrics_after_a_job(folder.path()).await;
    let series: BTreeMap<&str, &str> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| Some((line.split(['{', ' ']).next()?, line)))
        .collect();
    let family = "family=\"";
    let trials = text.lines().filter(|line| line.starts_with("sparsetune_trial_seconds_count"));
    assert!(
        trials.clone().count() > 0 && trials.clone().all(|line| line.contains(family)),
        "{text}"
    );
    assert!(series["sparsetune_evaluator_restarts_total"].ends_with("{device=\"cpu\"} 0"));

    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut names = BTreeSet::new();
    queried(&dashboard, &mut names);
    assert!(names.len() >= 12, "{names:?}");
    let absent: Vec<&String> =
        names.iter().filter(|name| !series.contains_key(name.as_str())).collect();
    assert!(absent.is_empty(), "{absent:?} in the dashboard, but not in\n{text}");
    // And the other way: a family that nobody shows is one that nobody looks at.
    let bare = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = names.iter().map(|name| bare(name)).collect();
    let unshown: BTreeSet<String> =
        series.keys().map(|name| bare(name)).filter(|name| !shown.contains(name)).collect();
    assert!(unshown.is_empty(), "no panel shows {unshown:?}");
}

#[tokio::test]
async fn an_event_stream_is_counted_while_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]).await;
    let matrix = server.grid(60).await;
    let search = json!({"strategy": "exhaustive", "seconds": 120});
    let busy = json!({"matrix": matrix, "problem": {"op": "spmm", "n": 32}, "device": "cpu", "search": search});
    server.submit(&busy).await;
    // It waits behind the other, so its stream has no end of its own.
    let id = server.submit(&small(&matrix)).await["id"].as_str().unwrap().to_owned();
    let open = async || {
        let text =
            server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("sparsetune_event_streams "));
        line.unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(open().await, 0.0);
    let path = format!("/v1/jobs/{id}/events");
    let first = server.request(Method::GET, &path).send().await.unwrap();
    let second = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(open().await, 2.0);
    drop((first, second));
    // The server learns of it when the connection closes.
    let began = std::time::Instant::now();
    while open().await > 0.0 {
        assert!(began.elapsed().as_secs() < 20, "a stream nobody reads is still counted");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[test]
fn the_dashboard_is_tied_to_no_data_source() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39);
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let sources = DASHBOARD.matches("\"uid\":").count();
    assert_eq!(sources, DASHBOARD.matches("\"uid\": \"${datasource}\"").count());
    assert!(sources > 10, "{sources}");
}
