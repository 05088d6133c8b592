//! Exports and imports over HTTP.

use crate::app::TestApp;
use reqwest::Method;
use serde_json::Value;

#[tokio::test]
async fn an_export_of_one_server_is_taken_in_by_another() {
    let (from, to) = (TestApp::new().await, TestApp::new().await);
    let (matrix, plan) = from.tuned(5, 4).await;
    let response = from.get("/v1/export?parts=plans,trials&matrices=true").await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/zstd".parse().unwrap())
    );
    let export = response.bytes().await.unwrap();
    let import = |body: Vec<u8>, query: &str| {
        to.request(Method::POST, &format!("/v1/import{query}")).body(body).send()
    };
    let dry: Value = import(export.to_vec(), "?dry_run=true").await.unwrap().json().await.unwrap();
    assert_eq!((&dry["dry_run"], &dry["plans"]["new"]), (&true.into(), &1.into()));
    assert_eq!(to.get(&format!("/v1/plans/{}", plan.id)).await.status(), 404);
    let report: Value = import(export.to_vec(), "").await.unwrap().json().await.unwrap();
    // The pruned candidate stays where it is.
    assert_eq!((&report["plans"]["new"], &report["trials"]["new"]), (&1.into(), &1.into()));
    let arrived = to.json(&format!("/v1/plans/{}", plan.id)).await;
    assert_eq!(arrived["provenance"]["imported"]["store"], report["store"]);
    assert_eq!(
        to.json(&format!("/v1/matrices/{}", matrix["digest"].as_str().unwrap())).await["nnz"],
        matrix["nnz"]
    );
    let page =
        to.request(Method::GET, &format!("/plans/{}", plan.id)).header("accept", "text/html");
    let page = page.send().await.unwrap().text().await.unwrap();
    assert!(page.contains("Imported from") && page.contains(report["store"].as_str().unwrap()));

    let refused = import(export[..export.len() / 2].to_vec(), "").await.unwrap();
    assert_eq!(refused.status(), 422);
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["type"], "/problems/unreadable-export");
    for wrong in ["parts=tokens", "since=yesterday", "op=gemm", "matrix=1", "tokens=true"] {
        assert_eq!(from.get(&format!("/v1/export?{wrong}")).await.status(), 400, "{wrong}");
    }
    let audit = to.json("/v1/audit").await;
    assert!(
        audit["items"].as_array().unwrap().iter().any(|entry| entry["action"] == "POST /v1/import")
    );
}
