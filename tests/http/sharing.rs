//! What namespaces have to do with each other: plans that are shared by consent, and the operator's rights.

use crate::app::{lookup, problem};
use crate::namespaces::{text, two};
use crate::tokens::{ADMIN, server};
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::{Digest, PlanId, QuarantineScope, Timestamp};
use sparsetune::store::{Quarantined, StoredBundle};
use std::collections::BTreeSet;

const NAME: &str = "a-secret-name";

#[tokio::test]
async fn plans_are_shared_by_consent_as_long_as_it_stands() {
    let app = server().await;
    let (a, b) = two(&app).await;
    let sharing = json!({"name": "open", "namespace": "a", "share_plans": true});
    let sharing = app.token(&sharing).await;
    let (_, matrix) = app.put_matrix(&a, NAME).await;
    let path = lookup(&matrix, 3);
    app.measured(&a, "a", &matrix, 3).await;
    assert_ne!(app.grade(&path, &b).await, "exact", "nobody consented");
    let (job, plan) = app.measured(&sharing, "a", &matrix, 3).await;
    let answer = app.got(Method::GET, &path, &b, None).await;
    assert_eq!((&answer["match"]["grade"], &answer["plan"]["id"]), (&json!("exact"), &json!(plan)));
    let told = answer.to_string();
    assert!(!told.contains(&job) && !told.contains(NAME) && !told.contains("open"), "{told}");
    let one = format!("/v1/plans/{plan}");
    assert_eq!(app.got(Method::GET, &one, &b, None).await["provenance"].get("job"), None);
    assert!(app.got(Method::GET, &one, &a, None).await["provenance"]["job"].is_string());
    for page in [format!("/plans/{plan}"), format!("/plans/{plan}/search")] {
        let shown = app.with_token(Method::GET, &page, &b).send().await.unwrap();
        assert_eq!(shown.status(), 200, "{page}");
        let shown = shown.text().await.unwrap();
        assert!(!shown.contains(&job) && !shown.contains(NAME), "{page}: {shown}");
    }
    // It is shown and no more: no pin, no list, no bundle of a matrix that is not there.
    assert_eq!(app.status_of(Method::PUT, &format!("{one}/pin"), &b).await, 404);
    let bundle = app.with_token(Method::GET, &format!("{one}/bundle"), &b).send().await.unwrap();
    problem(bundle, 409, "conflict").await;
    let listed = format!("/v1/matrices/{}/plans", text(&matrix["digest"]));
    assert_eq!(app.status_of(Method::GET, &listed, &b).await, 404);
    // A prediction or a neighbour of another is none, and their own measured plan comes first.
    let (_, theirs) = app.put_matrix(&b, "theirs").await;
    let (_, own) = app.measured(&b, "b", &theirs, 3).await;
    let answer = app.got(Method::GET, &path, &b, None).await;
    assert_eq!(answer["plan"]["id"], json!(own));
    let c = app.token(&json!({"name": "ci", "namespace": "c"})).await;
    assert_eq!(app.grade(&path, &c).await, "exact");
    // What came from elsewhere is no measurement of this store, whoever consents.
    let (_, brought) = app.measured(&sharing, "a", &matrix, 5).await;
    let bundle = StoredBundle {
        plan: PlanId(brought),
        without_values: true,
        blob: Digest::of(b"made up"),
        bytes: 7,
        sha256: [0; 32],
        imported: true,
        created_at: Timestamp::now(),
    };
    app.running.service.store().put_bundle(&bundle).await.unwrap();
    assert_eq!(app.grade(&lookup(&matrix, 5), &a).await, "exact");
    assert_ne!(app.grade(&lookup(&matrix, 5), &c).await, "exact");
    assert_eq!(app.status_of(Method::DELETE, "/v1/tokens/open", &a).await, 204);
    assert_eq!(app.grade(&path, &c).await, "none", "the consent has ended");
    assert_eq!(app.status_of(Method::GET, &one, &c).await, 404);
    assert_eq!(app.grade(&path, &a).await, "exact");
}

#[tokio::test]
async fn admins_of_a_namespace_are_not_the_operator() {
    let app = server().await;
    let (a, b) = two(&app).await;
    let refused = |method: Method, path: &'static str| {
        let asked = app.with_token(method, path, &a).json(&json!({"op": "spmm"}));
        async { problem(asked.send().await.unwrap(), 403, "missing-scope").await }
    };
    let models = "/v1/models/some/activate";
    for path in ["/v1/models/train", "/v1/models/roll-back", models, "/v1/import"] {
        let why = refused(Method::POST, path).await;
        assert!(why["detail"].as_str().unwrap().contains("namespace default"), "{why}");
    }
    refused(Method::DELETE, "/v1/quarantine/0123456789abcdef").await;
    refused(Method::GET, "/metrics").await;
    // They make and see tokens of their own namespace.
    let own = app.got(Method::POST, "/v1/tokens", &a, Some(json!({"name": "mine"}))).await;
    assert_eq!(own["namespace"], "a");
    for (body, place) in [
        (json!({"name": "x", "namespace": "b"}), "/namespace"),
        (json!({"name": "x", "namespace": "default"}), "/namespace"),
        (json!({"name": "x", "limits": {"max_priority": 1}}), "/limits"),
    ] {
        let asked = app.with_token(Method::POST, "/v1/tokens", &a).json(&body).send().await;
        let why = problem(asked.unwrap(), 422, "invalid-body").await;
        assert_eq!(why["pointer"], place, "{why}");
    }
    // One with limits would get rid of them.
    let bound =
        json!({"name": "y", "namespace": "a", "scopes": ["admin"], "limits": {"matrices": 3}});
    let bound = app.token(&bound).await;
    let asked = app.with_token(Method::POST, "/v1/tokens", &bound).json(&json!({"name": "z"}));
    problem(asked.send().await.unwrap(), 422, "invalid-body").await;
    assert_eq!(app.status_of(Method::DELETE, "/v1/tokens/y", &a).await, 204);
    let names = |list: Value| -> Vec<(String, String)> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|one| (text(&one["namespace"]), text(&one["name"]))).collect()
    };
    let of = |of: &str, name: &str| (of.to_owned(), name.to_owned());
    let seen = names(app.got(Method::GET, "/v1/tokens", &a, None).await);
    assert_eq!(seen, [of("a", "y"), of("a", "mine"), of("a", "ci")]);
    let all = names(app.got(Method::GET, "/v1/tokens", ADMIN, None).await);
    assert_eq!(all.len(), 5, "{all:?}");
    // When it was last used is noted, and told to the hour.
    let list = app.got(Method::GET, "/v1/tokens", &b, None).await;
    let used = text(&list["items"][0]["last_used_at"]);
    assert!(used.ends_with(":00:00.000Z"), "{used}");
    let audit = |token: &str| {
        let token = token.to_owned();
        let app = &app;
        async move {
            let log = app.got(Method::GET, "/v1/audit", &token, None).await;
            let items = log["items"].as_array().unwrap().clone();
            items.iter().map(|one| text(&one["namespace"])).collect::<BTreeSet<String>>()
        }
    };
    assert_eq!(audit(&b).await.len(), 0);
    assert_eq!(audit(&a).await, BTreeSet::from(["a".to_owned()]));
    assert_eq!(audit(ADMIN).await.len(), 2);
    // The operator ends them.
    let revoke = "/v1/tokens/mine?namespace=a";
    assert_eq!(app.status_of(Method::DELETE, revoke, ADMIN).await, 204);
}

/// A reason may tell of others' matrices what only they should know.
#[tokio::test]
async fn what_was_seen_of_a_kernel_is_told_to_the_operator_alone() {
    let app = server().await;
    let (a, _) = two(&app).await;
    let plan = crate::app::fixture();
    let entry = Quarantined {
        class: plan.device.class(),
        kernel_digest: Digest::of(b"text"),
        candidate: plan.candidate,
        scope: QuarantineScope::Pattern,
        reason: "timed_out: no reply to measure within 3000 ms".to_owned(),
        at: Timestamp::now(),
    };
    app.running.service.store().quarantine(&entry, &plan.pattern_digest).await.unwrap();
    for (token, reason) in [(ADMIN, entry.reason.as_str()), (&a, "timed_out")] {
        let listed = app.got(Method::GET, "/v1/quarantine", token, None).await;
        let item = &listed["items"][0];
        assert_eq!((&item["reason"], &item["scope"]), (&json!(reason), &json!("pattern")));
        let page = app.with_token(Method::GET, "/devices", token).send().await.unwrap();
        let page = page.text().await.unwrap();
        assert_eq!(page.contains("within 3000 ms"), token == ADMIN);
    }
}
