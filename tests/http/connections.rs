//! Connections as raw sockets see them: what follows a refusal on the same connection.

use crate::app::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection, and what was received of it and not yet looked at.
pub struct Raw {
    stream: TcpStream,
    seen: Vec<u8>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn closes(&self) -> bool {
        self.head.to_ascii_lowercase().contains("\r\nconnection: close")
    }
}

impl Raw {
    pub async fn new(app: &TestApp) -> Self {
        let stream = TcpStream::connect(app.running.address).await.unwrap();
        Self { stream, seen: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Receives more; false at the end of the connection.
    async fn more(&mut self) -> bool {
        let mut piece = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(10), self.stream.read(&mut piece));
        let read = read.await.expect("the server answers in time").unwrap_or(0);
        self.seen.extend_from_slice(&piece[..read]);
        read > 0
    }

    /// The next answer; `None` if the connection ended before it.
    pub async fn answer(&mut self) -> Option<Answer> {
        let end = loop {
            match self.seen.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None if self.more().await => {}
                None => return None,
            }
        };
        let head = String::from_utf8(self.seen.drain(..end).collect()).unwrap();
        let length = head.to_ascii_lowercase();
        let length = length
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
        while self.seen.len() < length && self.more().await {}
        let body = String::from_utf8(self.seen.drain(..length).collect()).unwrap();
        let status = head[9..12].parse().unwrap();
        Some(Answer { status, head, body })
    }

    /// Whether the server ended the connection.
    pub async fn ended(&mut self) -> bool {
        self.seen.is_empty() && !self.more().await
    }
}

pub fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Of 7,051 requests behind an early refusal 1,277 were lost: their connection was ended without a word.
#[tokio::test]
async fn a_refusal_ends_no_connection_without_saying_so() {
    let app = TestApp::with(&[("server.max_json_bytes", 500.into())]).await;
    let json = "content-type: application/json\r\n";
    let small = "x".repeat(300);
    let refusals = [
        (404, post("/nowhere", "", &small)),
        (405, post("/healthz", "", &small)),
        (415, post("/v1/jobs", "", &small)),
        (400, post("/v1/jobs", json, &small)),
        (413, post("/v1/jobs", json, &"x".repeat(100_000))),
        (415, post("/v1/matrices", "content-type: multipart/form-data\r\n", &small)),
        (415, post("/v1/matrices", "content-encoding: br\r\n", &small)),
        (400, post("/v1/matrices?nme=x", "", &small)),
        (403, post("/v1/jobs", "origin: http://elsewhere.example\r\n", &small)),
    ];
    let mut kept = 0;
    for turn in 0..20 {
        let mut raw = Raw::new(&app).await;
        for (status, request) in &refusals {
            // The body comes at once, or a moment later than the head.
            let head = request.find("\r\n\r\n").unwrap() + 4;
            let (first, rest) = request.split_at(if turn % 2 == 0 { request.len() } else { head });
            raw.send(first).await.unwrap();
            tokio::task::yield_now().await;
            raw.send(rest).await.unwrap();
            let answer = raw.answer().await.expect("a refusal is an answer");
            assert_eq!(answer.status, *status, "{}", answer.body);
            if answer.closes() {
                assert!(raw.ended().await);
                raw = Raw::new(&app).await;
            } else {
                raw.send(HEALTH).await.unwrap();
                let next = raw.answer().await.expect("a connection that was not ended is there");
                assert_eq!(next.status, 200);
                kept += 1;
            }
        }
    }
    assert_eq!(kept, 20 * refusals.len(), "small bodies are read to their end");
}

#[tokio::test]
async fn a_client_that_still_sends_gets_its_refusal() {
    let app = TestApp::with(&[("server.max_json_bytes", 500.into())]).await;
    let large = "x".repeat(40_000_000);
    let json = "content-type: application/json\r\n";
    for request in [post("/nowhere", "", &large), post("/v1/jobs", json, &large)] {
        let mut raw = Raw::new(&app).await;
        // All of it, although the answer is there early.
        raw.send(&request).await.unwrap();
        let answer = raw.answer().await.expect("the answer arrives");
        assert!(matches!(answer.status, 404 | 413) && answer.closes(), "{}", answer.head);
        assert!(raw.ended().await);
    }
    // Who waits for a go-ahead gets the refusal instead.
    let mut raw = Raw::new(&app).await;
    let head = post("/nowhere", "expect: 100-continue\r\n", &large);
    raw.send(&head[..head.find("\r\n\r\n").unwrap() + 4]).await.unwrap();
    let answer = raw.answer().await.unwrap();
    assert!(answer.status == 404 && answer.closes(), "{}", answer.head);
}

/// The head of an upload whose body stalls.
fn stalled(more: &str) -> String {
    post("/v1/matrices", more, &"x".repeat(1000)).trim_end_matches('x').to_owned()
}

#[tokio::test]
async fn bodies_that_stall_are_given_up() {
    let settings = [("server.body_idle_s", 0.3.into()), ("server.uploads_at_once", 1.into())];
    let app = TestApp::with(&settings).await;
    let json = post("/v1/jobs", "content-type: application/json\r\n", "{\"matrix\": ");
    let json = json.replace("content-length: 11", "content-length: 500");
    for head in [stalled(""), json] {
        let mut raw = Raw::new(&app).await;
        raw.send(&head).await.unwrap();
        let answer = raw.answer().await.expect("an answer");
        assert!(answer.status == 408 && answer.closes(), "{}", answer.head);
        assert!(answer.head.contains("application/problem+json"), "{}", answer.head);
        assert!(answer.body.contains("/problems/slow-client"), "{}", answer.body);
        assert!(raw.ended().await);
    }
    // A body that is still awaited when the time for an answer is over is the client's fault, not the server's.
    let app = TestApp::with(&[("server.answer_s", 0.3.into())]).await;
    let mut raw = Raw::new(&app).await;
    let train = post("/v1/models/train", "content-type: application/json\r\n", "{");
    raw.send(train.replace("content-length: 1", "content-length: 100")).await.unwrap();
    let answer = raw.answer().await.unwrap();
    assert!(answer.status == 408 && answer.body.contains("slow-client"), "{}", answer.body);
}

/// A pipe whose other end computes may pause; sockets that trickle hold no places that others need.
#[tokio::test]
async fn uploads_may_pause_until_places_are_short() {
    let settings = [("server.body_idle_s", 0.3.into()), ("server.uploads_per_client", 4.into())];
    let app = TestApp::with(&settings).await;
    let whole = tridiagonal(50);
    let (first, rest) = whole.split_at(100);
    let upload = post("/v1/matrices", "", &whole);
    let head = upload.strip_suffix(rest).unwrap();
    let mut honest = Raw::new(&app).await;
    honest.send(head).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    honest.send(rest).await.unwrap();
    let answer = honest.answer().await.unwrap();
    assert_eq!(answer.status, 201, "{} of {first}", answer.body);

    let mut stalling = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::new(&app).await;
        raw.send(stalled("")).await.unwrap();
        stalling.push(raw);
    }
    let room = async {
        while app.upload(tridiagonal(51)).await.status() != 201 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), room).await.expect("some of them give way");
    // Which of them do is decided by whose pause is noticed first.
    let mut given_up = 0;
    for raw in &mut stalling {
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(200), raw.answer()).await {
            assert_eq!(answer.expect("an answer").status, 408);
            given_up += 1;
        }
    }
    assert!(given_up > 0);
}

#[tokio::test]
async fn one_client_leaves_upload_places_for_others() {
    let app = TestApp::with(&[("server.forwarded_for", true.into())]).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::new(&app).await;
        raw.send(stalled("x-forwarded-for: 10.0.0.1\r\n")).await.unwrap();
        held.push(raw);
    }
    let upload = |client: &'static str| {
        let request = app.request(reqwest::Method::POST, "/v1/matrices");
        request.header("x-forwarded-for", client).body(tridiagonal(5)).send()
    };
    // The two have to be there first.
    let busy = loop {
        let answer = upload("10.0.0.1").await.unwrap();
        if !answer.status().is_success() {
            break answer;
        }
    };
    assert!(busy.headers().contains_key("retry-after"));
    let busy = problem(busy, 503, "busy").await;
    assert!(busy["detail"].as_str().unwrap().contains("from this address"), "{busy}");
    assert!(upload("10.0.0.2").await.unwrap().status().is_success());
    drop(held);
    while !upload("10.0.0.1").await.unwrap().status().is_success() {}
}

#[tokio::test]
async fn event_streams_are_limited() {
    let each = [("server.event_streams_per_client", 2.into())];
    let app = TestApp::with(&each).await;
    let job = app.job(&app.matrix(8).await, 4).await;
    let events = format!("/v1/jobs/{}/events", job["id"].as_str().unwrap());
    let first = app.get(&events).await;
    let second = app.get(&events).await;
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    problem(app.get(&events).await, 503, "busy").await;
    drop((first, second));
    let again = async {
        while app.get(&events).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), again).await.expect("the places are free again");
}

#[tokio::test]
async fn health_is_answered_when_all_connections_are_taken() {
    let app = TestApp::with(&[("server.max_connections", 3.into())]).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut raw = Raw::new(&app).await;
        raw.send(HEALTH).await.unwrap();
        assert!(!raw.answer().await.unwrap().closes());
        held.push(raw);
    }
    let mut raw = Raw::new(&app).await;
    raw.send(HEALTH).await.unwrap();
    let answer = raw.answer().await.unwrap();
    assert!(answer.status == 200 && answer.closes(), "{}", answer.head);
    let mut raw = Raw::new(&app).await;
    raw.send(HEALTH.replace("/healthz", "/v1/jobs")).await.unwrap();
    let answer = raw.answer().await.unwrap();
    assert!(answer.status == 503 && answer.closes(), "{}", answer.head);
    assert!(answer.body.contains("/problems/busy"), "{}", answer.body);
    drop(held);
    // Once there is a usual place, the next connection has it.
    let usual = async {
        while app.get("/v1/jobs").await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), usual).await.expect("places are free again");
}

/// Of one client, with as little as it can send: neither the usual places nor the reserve are theirs for long.
#[tokio::test(flavor = "multi_thread")]
async fn health_is_answered_beside_a_thousand_sockets_that_trickle() {
    let app = TestApp::with(&[("server.connections_per_client", 20.into())]).await;
    let mut trickling = Vec::new();
    for _ in 0..1000 {
        let mut raw = Raw::new(&app).await;
        raw.send("GET /healthz HTTP/1.1\r\nhost: local").await.unwrap();
        trickling.push(raw);
    }
    let mut slowest = Duration::ZERO;
    for raw in &mut trickling {
        // Not all are there to trickle any more.
        drop(raw.send("h").await);
        let began = std::time::Instant::now();
        let mut health = Raw::new(&app).await;
        health.send(HEALTH).await.unwrap();
        assert_eq!(health.answer().await.expect("the check is answered").status, 200);
        slowest = slowest.max(began.elapsed());
    }
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    let mut ended = 0;
    for raw in &mut trickling {
        ended += usize::from(raw.send("o").await.is_err());
    }
    assert!(ended >= 900, "{ended}: the reserve is not theirs");
    // What is not a check is refused, not left waiting, and other addresses have places of their own.
    let mut raw = Raw::new(&app).await;
    raw.send(HEALTH.replace("/healthz", "/v1/jobs")).await.unwrap();
    let answer = raw.answer().await.unwrap();
    assert!(answer.status == 503 && answer.body.contains("/problems/busy"), "{}", answer.body);
    let address = app.running.address;
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = Raw { stream: other.connect(address).await.unwrap(), seen: Vec::new() };
    other.send(HEALTH.replace("/healthz", "/v1/jobs")).await.unwrap();
    assert_eq!(other.answer().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_request_has_one_host() {
    let app = TestApp::new().await;
    let two = HEALTH.replace("host: localhost\r\n", "host: localhost\r\nHost: evil.example\r\n");
    let none = HEALTH.replace("host: localhost\r\n", "");
    for (request, status) in
        [(two, 400), (none.clone(), 400), (none.replace("HTTP/1.1", "HTTP/1.0"), 200)]
    {
        let mut raw = Raw::new(&app).await;
        raw.send(&request).await.unwrap();
        let answer = raw.answer().await.expect("an answer");
        assert_eq!(answer.status, status, "{request}");
        assert!(status == 200 || answer.body.contains("\"parameter\":\"Host\""), "{}", answer.body);
    }
}
