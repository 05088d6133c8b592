//! Spans as a collector gets them: the request's and the job's in one trace, which is its caller's.
#![cfg(feature = "otel")]

#[path = "tuning/server.rs"]
#[allow(dead_code)]
mod server;

use axum::body::Bytes;
use axum::http::HeaderMap;
use reqwest::Method;
use serde_json::{Value, json};
use server::Server;
use std::sync::{Arc, Mutex};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A span, as much of it as is looked at.
#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    attributes: Vec<(String, String)>,
}

/// The fields of a protobuf message: numbers, and the bytes of those that have a length.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => {
                varint(&mut message);
                continue;
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (value, rest) = message.split_at(length);
        found.push((key >> 3, value));
        message = rest;
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (first, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return value;
        }
    }
}

fn all(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    fields(message).into_iter().filter(move |field| field.0 == number).map(|field| field.1)
}

fn text(message: &[u8], number: u64) -> String {
    String::from_utf8_lossy(all(message, number).next().unwrap_or_default()).into_owned()
}

fn hex(message: &[u8], number: u64) -> String {
    all(message, number)
        .next()
        .unwrap_or_default()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Key and text of the attributes in that field.
fn attributes(message: &[u8], number: u64) -> Vec<(String, String)> {
    let value = |pair| all(pair, 2).next().map(|value| text(value, 1)).unwrap_or_default();
    all(message, number).map(|pair| (text(pair, 1), value(pair))).collect()
}

/// The resource's attributes and the spans of an `ExportTraceServiceRequest`.
fn read(export: &[u8]) -> (Vec<(String, String)>, Vec<Span>) {
    let (mut resource, mut spans) = (Vec::new(), Vec::new());
    for group in all(export, 1) {
        resource.extend(all(group, 1).flat_map(|resource| attributes(resource, 1)));
        for span in all(group, 2).flat_map(|scope| all(scope, 2).collect::<Vec<_>>()) {
            spans.push(Span {
                trace: hex(span, 1),
                id: hex(span, 2),
                parent: hex(span, 4),
                name: text(span, 5),
                attributes: attributes(span, 9),
            });
        }
    }
    (resource, spans)
}

/// Takes exports; gives its address.
async fn collector(taken: Arc<Mutex<Vec<Bytes>>>) -> String {
    let take = async move |headers: HeaderMap, body: Bytes| {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        taken.lock().unwrap().push(body);
    };
    let router = axum::Router::new().route("/v1/traces", axum::routing::post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_trace_goes_on_through_request_job_and_trials() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let endpoint = collector(taken.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    // What is logged has no say in what is exported.
    let settings = [
        ("SPARSETUNE_TELEMETRY__OTLP_ENDPOINT", endpoint.as_str()),
        ("SPARSETUNE_LOG__FILTER", "warn"),
    ];
    let server = Server::start(folder.path(), &settings).await;
    let matrix = server.grid(12).await;
    let problem = json!({"op": "spmm", "n": 8});
    let body =
        json!({"matrix": matrix, "problem": problem, "device": "cpu", "search": {"top_k": 2}});
    let submit = server.request(Method::POST, "/v1/jobs");
    let submit = submit.header("traceparent", format!("00-{TRACE}-{CALLER}-01")).json(&body);
    let job: Value = submit.send().await.unwrap().json().await.unwrap();
    let id = job["id"].as_str().unwrap();
    assert_eq!(server.ended(id).await["state"], "succeeded");
    // Not the batch's pause but the orderly end sends what is left.
    assert!(tokio::task::spawn_blocking(|| server.stop()).await.unwrap().success());

    let exports = taken.lock().unwrap();
    let read: Vec<_> = exports.iter().map(|export| read(export)).collect();
    for (resource, _) in &read {
        let has = |key: &str, value: &str| resource.contains(&(key.to_owned(), value.to_owned()));
        assert!(
            has("service.name", "sparsetune") && has("service.version", "0.1.0"),
            "{resource:?}"
        );
    }
    let spans: Vec<&Span> = read.iter().flat_map(|(_, spans)| spans).collect();
    let one = |name: &str| {
        spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}"))
    };
    let (request, job) = (one("POST /v1/jobs"), one("job"));
    assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, CALLER));
    assert_eq!((job.trace.as_str(), &job.parent), (TRACE, &request.id));
    for span in [request, job] {
        assert!(span.attributes.contains(&("job".to_owned(), id.to_owned())), "{span:?}");
    }
    let trials = spans.iter().filter(|span| span.name == "trial" && span.parent == job.id);
    assert!(trials.count() >= 2, "{spans:?}");
    // Nobody asked for these to be traced: each is a trace of its own.
    assert_ne!(one("POST /v1/matrices").trace, TRACE);
    assert!(
        spans.iter().all(|span| !span.name.starts_with("GET ")),
        "reads are not traced unasked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_costs_no_answer_and_no_orderly_end() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("SPARSETUNE_TELEMETRY__OTLP_ENDPOINT", "http://127.0.0.1:9")];
    let server = Server::start(folder.path(), &settings).await;
    server.grid(6).await;
    assert!(tokio::task::spawn_blocking(|| server.stop()).await.unwrap().success());
}
