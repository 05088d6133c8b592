//! Webhooks as the API has them: where they may lead, and what is kept of them.

use crate::app::*;
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::Timestamp;
use sparsetune::domain::webhook::WebhookId;
use sparsetune::store::{AttemptEnd, Attempted};

#[tokio::test]
async fn no_webhook_leads_into_the_servers_own_network() {
    let app = TestApp::new().await;
    for (url, why) in [
        ("http://127.0.0.1:9/", "not an address of the internet"),
        ("http://[::ffff:169.254.169.254]/latest", "not an address of the internet"),
        ("http://0/", "not an address of the internet"),
        ("https://example.com/", "http only"),
        ("ftp://example.com/", "http only"),
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
    let claimed = store.claim_deliveries(&hooks[..1], until, 9).await.unwrap();
    let [first] = claimed.as_slice() else { panic!("{}", claimed.len()) };
    assert_eq!((&first.hook, first.attempts), (&hooks[1], 1));
    let claimed = store.claim_deliveries(&[], until, 9).await.unwrap();
    assert_eq!(claimed.len(), 2, "the next of each");
    assert!(claimed.iter().all(|one| one.id != first.id));
    let end = |end| Attempted { status: None, end, pause_ms: 0 };
    let again = AttemptEnd::Again(Timestamp(0), "no".to_owned());
    store.delivery_attempted(&first.id, 1, &end(again)).await.unwrap();
    let claimed = store.claim_deliveries(&[], until, 9).await.unwrap();
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
