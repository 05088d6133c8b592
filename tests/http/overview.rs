//! What an overview is made of: a matrix's shape and plans, trials by state, models, the quarantine.

use crate::app::{TestApp, problem, tridiagonal};
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::{Candidate, Digest, QuarantineScope, Timestamp};
use sparsetune::store::Quarantined;

#[tokio::test]
async fn a_profile_tells_rows_and_levels() {
    let app = TestApp::new().await;
    let matrix = app.matrix(20).await;
    let path = format!("/v1/matrices/{}/profile", matrix["digest"].as_str().unwrap());
    let profile = app.get(&path).await;
    let tag = profile.headers()["etag"].clone();
    let profile: Value = profile.json().await.unwrap();
    let rows = json!([{"least": 2, "most": 2, "rows": 2}, {"least": 3, "most": 3, "rows": 18}]);
    assert_eq!(profile["row_nnz"], rows);
    for triangle in ["lower", "upper"] {
        // Each row waits for its neighbour.
        let levels = &profile[triangle];
        assert_eq!((&levels["levels"], &levels["widest"]), (&json!(20), &json!(1)));
        let bins = levels["bins"].as_array().unwrap();
        assert_eq!((bins.len(), &bins[19]["last"]), (20, &json!(19)));
    }
    let again = app.request(Method::GET, &path).header("if-none-match", tag).send().await.unwrap();
    assert_eq!(again.status(), 304);
    let wide = app.upload("%%MatrixMarket matrix coordinate pattern general\n1 2 1\n1 2\n").await;
    let wide: Value = wide.json().await.unwrap();
    let path = format!("/v1/matrices/{}/profile", wide["digest"].as_str().unwrap());
    let rows = json!([{"least": 1, "most": 1, "rows": 1}]);
    assert_eq!(app.json(&path).await, json!({"row_nnz": rows}));
    let nowhere = format!("/v1/matrices/{}/profile", "0".repeat(64));
    problem(app.get(&nowhere).await, 404, "not-found").await;
}

#[tokio::test]
async fn pictures_come_in_every_size_from_16_to_2048() {
    let app = TestApp::new().await;
    let matrix = app.matrix(20).await;
    let path = format!("/v1/matrices/{}/spy.png", matrix["digest"].as_str().unwrap());
    for size in [16, 17, 511, 2048] {
        let png = app.get(&format!("{path}?size={size}")).await;
        assert_eq!(png.status(), 200, "{size}");
        // The width of a PNG stands big-endian at byte 16.
        let png = png.bytes().await.unwrap();
        assert_eq!(u32::from_be_bytes(png[16..20].try_into().unwrap()), size);
    }
    for size in ["15", "2049", "0", "-1", "x"] {
        let refused = app.get(&format!("{path}?size={size}")).await;
        problem(refused, 400, "invalid-parameter").await;
    }
}

#[tokio::test]
async fn a_matrix_lists_its_plans() {
    let app = TestApp::new().await;
    let (matrix, old) = app.tuned(9, 4).await;
    let path = |digest: &Value| format!("/v1/matrices/{}/plans", digest.as_str().unwrap());
    let ids = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        items.map(|plan| plan["id"].as_str().unwrap().to_owned()).collect()
    };
    let (_, narrow) = app.tuned(9, 8).await;
    // The same key again.
    let (_, new) = app.tuned(9, 4).await;
    let first = app.json(&format!("{}?limit=1", path(&matrix["digest"]))).await;
    assert_eq!(ids(&first), std::slice::from_ref(&new.id.0));
    let next = first["next"].as_str().unwrap();
    let second = app.json(&format!("{}?limit=1&cursor={next}", path(&matrix["digest"]))).await;
    assert_eq!((ids(&second), &second["next"]), (vec![narrow.id.0.clone()], &Value::Null));
    let by_pattern = app.json(&path(&matrix["pattern_digest"])).await;
    assert_eq!(ids(&by_pattern), [new.id.0, narrow.id.0]);
    assert_eq!(app.json(&format!("/v1/plans/{}", old.id)).await["id"], old.id.0);
    assert_eq!(
        by_pattern["items"][0]["funnel"],
        app.json(&format!("/v1/plans/{}", old.id)).await["funnel"]
    );

    // Plans outlive their matrix, and so does their list.
    let gone = format!("/v1/matrices/{}", matrix["digest"].as_str().unwrap());
    assert_eq!(app.request(Method::DELETE, &gone).send().await.unwrap().status(), 204);
    assert_eq!(ids(&app.json(&path(&matrix["digest"])).await).len(), 2);
    let untuned: Value = app.upload(tridiagonal(5)).await.json().await.unwrap();
    assert_eq!(app.json(&path(&untuned["digest"])).await, json!({"items": []}));
    let nowhere = app.get(&path(&json!("0".repeat(64)))).await;
    problem(nowhere, 404, "not-found").await;
}

#[tokio::test]
async fn trials_are_asked_for_by_state() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    let job = app.job(&matrix, 4).await;
    app.finish(&app.claim().await).await;
    let path = format!("/v1/jobs/{}/trials", job["id"].as_str().unwrap());
    for (state, count) in [("tried", 1), ("measured", 1), ("pruned", 1), ("crashed", 0)] {
        let page = app.json(&format!("{path}?state={state}")).await;
        let items = page["items"].as_array().unwrap();
        assert_eq!(items.len(), count, "{state}");
        assert!(items.iter().all(|trial| state == "tried" || trial["state"] == state));
    }
    assert_eq!(app.json(&path).await["items"].as_array().unwrap().len(), 2);
    for odd in ["slow", "", "Tried", "tried,pruned"] {
        problem(app.get(&format!("{path}?state={odd}")).await, 400, "invalid-parameter").await;
    }
}

#[tokio::test]
async fn models_and_quarantine_are_told() {
    let app = TestApp::new().await;
    assert_eq!(app.json("/v1/models").await, json!({"items": []}));
    assert_eq!(app.json("/v1/quarantine").await, json!({"items": []}));
    let (_, plan) = app.tuned(9, 4).await;
    let error = plan.model_error.unwrap();
    let models = app.json("/v1/models").await;
    let model = &models["items"][0];
    assert_eq!((&model["kind"], &model["model"]), (&json!("analytic"), &json!(error.model)));
    assert_eq!((&model["op"], &model["plans"]), (&json!("spmm"), &json!(1)));
    assert_eq!(model["trials"], error.trials);

    let class = plan.device.class();
    let entry = Quarantined {
        class: class.clone(),
        kernel_digest: Digest::of(b"text"),
        candidate: Candidate::new("row_split"),
        scope: QuarantineScope::Pattern,
        reason: "timed_out: <b>no answer</b>".to_owned(),
        at: Timestamp(1),
    };
    app.running.service.store().quarantine(&entry, &plan.pattern_digest).await.unwrap();
    let listed = app.json("/v1/quarantine").await;
    let item = &listed["items"][0];
    assert_eq!((&item["device_class"], &item["reason"]), (&json!(class.0), &json!(entry.reason)));
    assert_eq!(item["candidate"]["family"], "row_split");
    let of = async |class: &str| {
        let asked = app.url("/v1/quarantine");
        let asked = reqwest::Url::parse_with_params(&asked, [("class", class)]).unwrap();
        let listed: Value = app.client.get(asked).send().await.unwrap().json().await.unwrap();
        listed["items"].as_array().unwrap().len()
    };
    assert_eq!((of(&class.0).await, of("another").await), (1, 0));
    let other = Quarantined { candidate: Candidate::new("row_panel"), at: Timestamp(2), ..entry };
    app.running.service.store().quarantine(&other, &plan.pattern_digest).await.unwrap();
    let first = app.json("/v1/quarantine?limit=1").await;
    assert_eq!(first["items"][0]["candidate"]["family"], "row_panel", "newest first");
    let next = first["next"].as_str().unwrap();
    let second = app.json(&format!("/v1/quarantine?limit=1&cursor={next}")).await;
    assert_eq!((&second["items"][0], &second["next"]), (item, &Value::Null));
    problem(app.get("/v1/quarantine?cursor=x").await, 400, "invalid-parameter").await;
    assert_eq!(app.json("/v1/devices").await["items"][0]["quarantined"], 2);
    assert_eq!(app.json("/v1/devices").await["items"][0]["restarts"], 0);

    let lift = async |id: &str| {
        app.client.delete(app.url(&format!("/v1/quarantine/{id}"))).send().await.unwrap()
    };
    let id = item["id"].as_str().unwrap();
    assert_eq!(lift(id).await.status(), 204);
    problem(lift(id).await, 404, "not-found").await;
    problem(lift("xyz").await, 400, "invalid-parameter").await;
    assert_eq!(app.json("/v1/devices").await["items"][0]["quarantined"], 1);
}
