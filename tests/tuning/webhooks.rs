//! Webhooks through real processes: signed, repeated, and not lost when the server is killed.

use crate::server::Server;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::Sha256;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

const SETTINGS: [(&str, &str); 2] =
    [("SPARSETUNE_WEBHOOKS__ALLOW", r#"["127.0.0.1"]"#), ("SPARSETUNE_WEBHOOKS__RETRY_S", "0.2")];

/// A request as the receiver has it.
struct Told {
    head: String,
    body: String,
}

impl Told {
    fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("{name}: {}", self.head))
    }

    fn is_signed_by(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut hmac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        let (id, at) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        hmac.update(format!("{id}.{at}.{}", self.body).as_bytes());
        let signed = format!("v1,{}", STANDARD.encode(hmac.finalize().into_bytes()));
        signed == self.header("webhook-signature")
    }
}

/// Answers the next request with a status.
fn answer(receiver: &TcpListener, status: &str) -> Told {
    let (mut stream, _) = receiver.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let head = head.replace("\r\n", "\n");
    let told = Told { head, body: String::new() };
    let length = told.header("content-length").parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let more = "location: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close";
    write!(stream, "HTTP/1.1 {status} X\r\n{more}\r\n\r\n").unwrap();
    Told { body: String::from_utf8(body).unwrap(), ..told }
}

async fn next(receiver: &TcpListener, status: &'static str) -> Told {
    let receiver = receiver.try_clone().unwrap();
    let told = tokio::task::spawn_blocking(move || answer(&receiver, status));
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("it is told").unwrap()
}

async fn deliveries(server: &Server, hook: &Value) -> Vec<Value> {
    let path = format!("/v1/webhooks/{}/deliveries", hook["id"].as_str().unwrap());
    server.json(&path).await["items"].as_array().unwrap().clone()
}

async fn as_soon_as(server: &Server, hook: &Value, so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        if let Some(found) = deliveries(server, hook).await.into_iter().find(&so) {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", deliveries(server, hook).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_told_until_they_are_heard_whoever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &SETTINGS).await;
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    let made = server.request(Method::POST, "/v1/webhooks").json(&json!({"url": url})).send().await;
    let made = made.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED);
    let hook: Value = made.json().await.unwrap();
    let secret = hook["secret"].as_str().unwrap();
    let listed = server.json("/v1/webhooks").await;
    assert_eq!(listed["items"][0]["id"], hook["id"]);
    assert!(!listed.to_string().contains(secret), "it is told once");
    // Of another end nothing is told.
    let other = json!({"url": url, "states": ["cancelled"]});
    let other = server.request(Method::POST, "/v1/webhooks").json(&other).send().await.unwrap();
    let other: Value = other.json().await.unwrap();

    let matrix = server.grid(20).await;
    let body = json!({
        "matrix": matrix, "problem": {"op": "spmm", "n": 8}, "device": "cpu",
        "search": {"top_k": 1},
    });
    let job = server.submit(&body).await;
    let id = job["id"].as_str().unwrap();
    // A redirect is no answer, and is not followed.
    let first = next(&receiver, "302").await;
    assert!(first.is_signed_by(secret) && first.header("host").starts_with("127.0.0.1"));
    let told: Value = serde_json::from_str(&first.body).unwrap();
    let ended = server.ended(id).await;
    assert_eq!((&told["type"], &told["job"]["id"]), (&json!("job.ended"), &job["id"]));
    for member in ["state", "plan", "matrix", "created_at", "finished_at"] {
        assert_eq!(told["job"][member], ended[member], "{member}: {told}");
    }
    let delivery = as_soon_as(&server, &hook, |one| one["status"] == 302).await;
    assert_eq!((&delivery["job"], &delivery["state"]), (&job["id"], &json!("pending")));
    assert_eq!(delivery["id"], first.header("webhook-id"));
    assert!(delivery["error"].as_str().unwrap().contains("redirects"), "{delivery}");

    // Killed before it was heard: the next process goes on.
    server.kill();
    let server = Server::start(folder.path(), &SETTINGS).await;
    let again = next(&receiver, "503").await;
    assert_eq!(again.header("webhook-id"), first.header("webhook-id"));
    assert_eq!(again.body, first.body);
    let last = next(&receiver, "204").await;
    assert!(again.is_signed_by(secret) && last.is_signed_by(secret));
    assert_eq!(last.header("webhook-id"), first.header("webhook-id"));
    let done = as_soon_as(&server, &hook, |one| one["state"] == "delivered").await;
    assert_eq!((&done["status"], done.get("next_at")), (&json!(204), None));
    assert!(done["attempts"].as_u64().unwrap() >= 3 && done.get("error").is_none(), "{done}");
    assert_eq!(deliveries(&server, &hook).await.len(), 1);
    assert!(deliveries(&server, &other).await.is_empty());

    let path = format!("/v1/webhooks/{}", hook["id"].as_str().unwrap());
    for status in [204, 404] {
        let gone = server.request(Method::DELETE, &path).send().await.unwrap();
        assert_eq!(gone.status(), status);
    }
}
