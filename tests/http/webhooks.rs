//! Webhooks as the API has them: where they may lead, and what is kept of them.

use crate::app::*;
use crate::authority::{Authority, VALID};
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::Timestamp;
use sparsetune::domain::webhook::WebhookId;
use sparsetune::store::{AttemptEnd, Attempted};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

#[tokio::test]
async fn no_webhook_leads_into_the_servers_own_network() {
    let app = TestApp::new().await;
    for (url, why) in [
        ("http://127.0.0.1:9/", "not an address of the internet"),
        ("http://[::ffff:169.254.169.254]/latest", "not an address of the internet"),
        ("http://0/", "not an address of the internet"),
        ("https://127.0.0.1:9/", "not an address of the internet"),
        ("ftp://example.com/", "http and https"),
        ("nowhere", "no URL"),
    ] {
        let answer = app.post("/v1/webhooks", &json!({"url": url})).await;
        let refused = problem(answer, 422, "invalid-body").await;
        assert_eq!(refused["pointer"], "/url", "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains(why), "{url}: {refused}");
    }
    for states in [json!([]), json!(["running"]), json!(["done"])] {
        let body = json!({"url": "http://example.com/", "states": states});
        problem(app.post("/v1/webhooks", &body).await, 422, "invalid-body").await;
    }
    assert_eq!(app.json("/v1/webhooks").await, json!({"items": []}));
    let none = "/v1/webhooks/00000000-0000-7000-8000-000000000000";
    problem(app.get(&format!("{none}/deliveries")).await, 404, "not-found").await;
    problem(app.request(Method::DELETE, none).send().await.unwrap(), 404, "not-found").await;
}

/// A name may have been public when the webhook was made: its addresses are looked at whenever something is sent.
#[tokio::test]
async fn a_name_that_leads_within_is_not_called() {
    let app = TestApp::with(&[("worker.poll_ms", 20.into())]).await;
    let made = app.post("/v1/webhooks", &json!({"url": "http://localhost:1/hook"})).await;
    assert_eq!(
        (made.status().as_u16(), &made.headers()["cache-control"]),
        (201, &"no-store".parse().unwrap())
    );
    let hook: Value = made.json().await.unwrap();
    app.tuned(9, 4).await;
    let path = format!("/v1/webhooks/{}/deliveries", hook["id"].as_str().unwrap());
    let refused = async {
        loop {
            let told = app.json(&path).await["items"][0].clone();
            if told["error"].is_string() {
                return told;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let told = tokio::time::timeout(std::time::Duration::from_secs(20), refused).await.unwrap();
    assert!(told["error"].as_str().unwrap().contains("not an address of the internet"), "{told}");
    assert_eq!((&told["state"], &told["attempts"]), (&json!("pending"), &json!(1)));
}

#[tokio::test]
async fn deliveries_are_claimed_one_for_each_webhook_and_by_one_process() {
    let app = TestApp::with(&[("worker.poll_ms", 3_600_000.into())]).await;
    let mut hooks = Vec::new();
    for _ in 0..2 {
        let made = app.post("/v1/webhooks", &json!({"url": "http://example.com/"})).await;
        let hook: Value = made.json().await.unwrap();
        hooks.push(WebhookId(hook["id"].as_str().unwrap().to_owned()));
    }
    // The service itself has looked once, before anything was due.
    for n in [4, 8] {
        app.tuned(9, n).await;
    }
    let store = app.running.service.store();
    let until = Timestamp::now().plus_millis(60_000);
    let claimed = store.claim_deliveries(&hooks[..1], until, (9, 9)).await.unwrap();
    let [first] = claimed.as_slice() else { panic!("{}", claimed.len()) };
    assert_eq!((&first.hook, first.attempts), (&hooks[1], 1));
    let claimed = store.claim_deliveries(&[], until, (9, 9)).await.unwrap();
    assert_eq!(claimed.len(), 2, "the next of each");
    assert!(claimed.iter().all(|one| one.id != first.id));
    let end = |end| Attempted { status: None, end, pause_ms: 0 };
    let again = AttemptEnd::Again(Timestamp(0), "no".to_owned());
    store.delivery_attempted(&first.id, 1, &end(again)).await.unwrap();
    let claimed = store.claim_deliveries(&[], until, (9, 9)).await.unwrap();
    let second = claimed.iter().find(|one| one.id == first.id).unwrap();
    assert_eq!((second.attempts, &second.body), (2, &first.body));
    // Who was slow changes nothing any more, but a receiver that has heard it has.
    let late = AttemptEnd::GivenUp("late".to_owned());
    store.delivery_attempted(&first.id, 1, &end(late)).await.unwrap();
    let path = format!("/v1/webhooks/{}/deliveries?limit=1", hooks[1]);
    let state = async || {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = app.json(&format!("{path}{cursor}")).await;
            all.extend(page["items"].as_array().unwrap().clone());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(all.len(), 2);
        all.into_iter().find(|one| one["id"] == first.id.0).unwrap()["state"].clone()
    };
    assert_eq!(state().await, "pending");
    store.delivery_attempted(&first.id, 1, &end(AttemptEnd::Delivered)).await.unwrap();
    assert_eq!(state().await, "delivered");
}

/// Hears one request by TLS and answers it; what it heard.
async fn hear(listener: &TcpListener, tls: &TlsAcceptor) -> String {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        // Who does not trust the certificate says so and leaves.
        let Ok(mut socket) = tls.accept(socket).await else { continue };
        let (mut heard, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let read = socket.read(&mut part).await.unwrap();
            heard.extend_from_slice(&part[..read]);
            let text = String::from_utf8_lossy(&heard);
            if read == 0 || text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.ends_with('}'))
            {
                break;
            }
        }
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        socket.shutdown().await.unwrap();
        return String::from_utf8(heard).unwrap();
    }
}

#[tokio::test]
async fn a_receiver_is_called_by_tls_if_its_certificate_is_the_hosts() {
    let (authority, stranger) = (Authority::new(), Authority::named("others"));
    let tls = TlsAcceptor::from(Arc::new(authority.signs("receiver", VALID)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let settings = |ca: &Authority| {
        [
            ("worker.poll_ms", 20.into()),
            ("webhooks.allow", vec!["127.0.0.1".to_owned(), "::1".to_owned()].into()),
            ("webhooks.ca_file", ca.ca().to_str().unwrap().into()),
        ]
    };
    let made = async |app: &TestApp, host: &str| {
        let url = format!("https://{host}:{port}/hook?to=me");
        let made = app.post("/v1/webhooks", &json!({"url": url})).await;
        assert_eq!(made.status(), 201);
        made.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    };
    let told = async |app: &TestApp, hook: &str| loop {
        let path = format!("/v1/webhooks/{hook}/deliveries");
        let told = app.json(&path).await["items"][0].clone();
        if told["error"].is_string() || told["state"] == "delivered" {
            return told;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let within = Duration::from_secs(20);

    let app = TestApp::with(&settings(&authority)).await;
    let hook = made(&app, "127.0.0.1").await;
    app.tuned(9, 4).await;
    let heard = tokio::time::timeout(within, hear(&listener, &tls)).await.unwrap();
    assert!(heard.starts_with("POST /hook?to=me HTTP/1.1\r\n"), "{heard}");
    assert!(heard.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{heard}");
    assert!(heard.contains("webhook-signature: v1,"), "{heard}");
    let end = tokio::time::timeout(within, told(&app, &hook)).await.unwrap();
    assert_eq!((&end["state"], &end["status"]), (&json!("delivered"), &json!(204)));

    // The address is the same and permitted, but the certificate is not for that name.
    tokio::spawn(async move {
        loop {
            hear(&listener, &tls).await;
        }
    });
    let hook = made(&app, "localhost").await;
    app.tuned(9, 8).await;
    let refused = tokio::time::timeout(within, told(&app, &hook)).await.unwrap();
    let why = refused["error"].as_str().unwrap();
    assert!(why.contains("the receiver's certificate is not for localhost"), "{why}");

    let app = TestApp::with(&settings(&stranger)).await;
    let hook = made(&app, "127.0.0.1").await;
    app.tuned(9, 4).await;
    let refused = tokio::time::timeout(within, told(&app, &hook)).await.unwrap();
    let why = refused["error"].as_str().unwrap();
    assert!(why.contains("no authority of webhooks.ca_file has signed"), "{why}");
}
