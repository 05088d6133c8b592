//! The pages of plans, devices, models and the API: what they say, and what they never let through.

use crate::app::{TestApp, fixture};
use reqwest::Method;
use sparsetune::domain::{Candidate, DeviceKind, Digest, QuarantineScope};
use sparsetune::store::Quarantined;
use sparsetune::usage;

async fn page(app: &TestApp, path: &str) -> String {
    let response = app.request(Method::GET, path).header("accept", "text/html").send().await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    response.text().await.unwrap()
}

#[tokio::test]
async fn a_plan_says_what_won_and_why() {
    let app = TestApp::new().await;
    let (_, plan) = app.tuned(9, 32).await;
    let text = page(&app, &format!("/plans/{}", plan.id)).await;
    for id in ["winner", "why", "roofline", "source", "download"] {
        assert!(text.contains(&format!("id=\"{id}\"")), "{id}");
    }
    for said in [
        "12.5 µs",
        "95 % between 12.2 µs and 12.8 µs, 31 samples",
        "2.00×",
        "row_panel{m1=4}",
        "8.0 % more",
        "csr_mulacc_dense (one thread)",
        "Relative to copy bandwidth",
        "at copy bandwidth: 6.25 µs",
        "Copy bandwidth: each input read once",
        ">must not change</span> <span>The matrix&#39;s pattern.",
        "on up to 2 threads of the host",
        "arithmetic intensity (FLOP per compulsory byte)",
        "41 calls",
        "1 refused",
        "the top 16 by the model",
        "36 B filled with 0xffffffff",
    ] {
        assert!(text.contains(said), "{said}");
    }
    let blob = plan.launch.as_ref().unwrap().arrays[0].blob.to_string();
    assert!(text.contains(&format!("/v1/plans/{}/blobs/{blob}", plan.id)));
    assert!(text.contains(&format!("/jobs/{}", plan.provenance.job.as_ref().unwrap())));
    assert!(!text.contains("limit</"), "a bound is no limit");
    assert!(!text.contains("scope=\"col\">Grid"), "the host has no grid");
    assert!(!text.contains("style=\""), "the policy forbids inline styles");
}

#[tokio::test]
async fn a_search_is_told_with_its_own_numbers() {
    let app = TestApp::new().await;
    let (_, plan) = app.tuned(9, 32).await;
    let path = format!("/plans/{}/search", plan.id);
    let text = page(&app, &path).await;
    for said in [
        "The matrix has 9 rows, 9 columns and 25 entries",
        "It removed 40 of 100 candidates (40 %) and left 60.",
        "16 vector registers, at most 32",
        "LO-SpMM, section 3.2; a hard rule",
        "the top 16 by the model",
        "id=\"finals\"",
        "id=\"papers\"",
    ] {
        assert!(text.contains(said), "{said}");
    }
    assert!(!text.contains("style=\"") && !text.contains("onclick"));
    for linking in [format!("/plans/{}", plan.id), "/how".to_owned()] {
        assert!(page(&app, &linking).await.contains(&path), "{linking}");
    }
    let how = page(&app, "/how").await;
    for said in ["COV_row", "TCA-SpMM", "AG-SpTRSV", "ag_lanes", "href=\"/v1/rules\""] {
        assert!(how.contains(said), "{said}");
    }
}

#[tokio::test]
async fn a_plan_says_first_how_to_use_it() {
    let app = TestApp::new().await;
    let (_, plan) = app.tuned(9, 32).await;
    let (path, id) = (format!("/plans/{}", plan.id), &plan.id);
    let text = page(&app, &path).await;
    let section = text.split_once("id=\"use\"").unwrap().1.split_once("</section>").unwrap().0;
    assert!(text.find("id=\"use\"") < text.find("aria-label=\"Summary\""));
    for said in [
        &format!("href=\"/v1/plans/{id}/bundle\""),
        "sparsetune.Client(&#34;<span data-origin>http://",
        &format!(".bundle(&#34;{id}&#34;, &#34;{id}.stplan&#34;))"),
        &format!("sparsetune bundle export --cpp plan {id} --server &#39;<span data-origin>"),
        &format!("sparsetune bundle run {id}.stplan</code>"),
        "data-copy-from=\"#use-python\"",
    ] {
        assert!(section.contains(said), "{said}: {section}");
    }
    // Without the compiled kernel of a GPU there is nothing to run.
    let mut predicted = fixture();
    predicted.device.kind = DeviceKind::Cuda;
    predicted.launch = None;
    assert!(usage::hindrance(&predicted).is_some());
    let vendor = r#"{"family": "vendor", "params": {"algorithm": "csr_alg2"}}"#;
    predicted.candidate = serde_json::from_str(vendor).unwrap();
    assert!(usage::hindrance(&predicted).is_none());
}

#[tokio::test]
async fn a_plan_outlives_its_matrix() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(9, 32).await;
    let stored = format!("/v1/matrices/{}", matrix["digest"].as_str().unwrap());
    assert_eq!(app.request(Method::DELETE, &stored).send().await.unwrap().status(), 204);
    let text = page(&app, &format!("/plans/{}", plan.id)).await;
    assert!(text.contains("No roofline") && text.contains("no longer stored"));
    let search = page(&app, &format!("/plans/{}/search", plan.id)).await;
    assert!(search.contains("id=\"finals\"") && !search.contains("The matrix has"));
}

#[tokio::test]
async fn a_matrix_name_is_text() {
    let app = TestApp::new().await;
    let upload = app.request(Method::POST, "/v1/matrices?name=%3Cscript%3Ealert(1)%3C/script%3E");
    let response = upload.body(crate::app::tridiagonal(9)).send().await.unwrap();
    assert!(response.status().is_success(), "{}", response.status());
    let matrix = response.json().await.unwrap();
    app.job(&matrix, 32).await;
    let plan = app.finish(&app.claim().await).await;
    let text = page(&app, &format!("/plans/{}", plan.id)).await;
    assert!(text.contains("alert(1)") && !text.contains("<script>alert"));
}

#[tokio::test]
async fn a_plan_that_is_not_there_is_a_page_too() {
    let app = TestApp::new().await;
    let path = format!("/plans/{}", fixture().id);
    let missing =
        app.request(Method::GET, &path).header("accept", "text/html").send().await.unwrap();
    assert_eq!(missing.status(), 404);
    assert!(missing.text().await.unwrap().contains("<h1>"));
}

#[tokio::test]
async fn devices_and_what_is_kept_from_them() {
    let app = TestApp::new().await;
    let empty = page(&app, "/devices").await;
    assert!(empty.contains("id=\"devices\"") && empty.contains("Nothing is in quarantine"));
    assert!(
        empty.contains("a processor") && empty.contains("10.5 GB/s") && empty.contains("263 ns")
    );
    assert!(empty.contains(">online<"));
    let entry = Quarantined {
        class: fixture().device.class(),
        kernel_digest: Digest::of(b"text"),
        candidate: Candidate::new("row_split").with("lanes", 8),
        scope: QuarantineScope::Pattern,
        reason: "timed_out: <no> answer".to_owned(),
        at: fixture().created_at,
    };
    let (store, pattern) = (app.running.service.store(), fixture().pattern_digest);
    store.quarantine(&entry, &pattern).await.unwrap();
    app.running.service.set_device_trouble(&fixture().device.id, Some("it fell & broke".into()));
    let whole = page(&app, "/devices").await;
    assert!(whole.contains("row_split{lanes=8}") && whole.contains("<td>one pattern</td>"));
    assert!(whole.contains("timed_out: &#60;no&#62; answer") && !whole.contains("Only the newest"));
    for lanes in 0..50 {
        let candidate = Candidate::new("row_split").with("ways", lanes);
        store.quarantine(&Quarantined { candidate, ..entry.clone() }, &pattern).await.unwrap();
    }
    let cut = page(&app, "/devices").await;
    assert!(cut.contains("Only the newest 50") && cut.contains("href=\"/v1/quarantine\""));
    let live = page(&app, "/fragments/devices").await;
    assert!(live.contains("<a href=\"#quarantine\">51</a>") && !live.contains("row_split{"));
    assert!(live.contains(">failing<") && live.contains("it fell &#38; broke"));
    assert!(!live.contains("<html"));
}

#[tokio::test]
async fn models_are_listed_once_a_plan_tells_of_them() {
    let app = TestApp::new().await;
    assert!(page(&app, "/models").await.contains("No data yet"));
    app.tuned(9, 32).await;
    let text = page(&app, "/models").await;
    assert!(
        text.contains("id=\"models\"")
            && text.contains("analytic model <code class=\"soft\">intensity</code>")
    );
    assert!(text.contains("1.25×") && text.contains("too optimistic") && text.contains("0.75"));
    assert!(text.contains("close to the measured order"));
}

#[tokio::test]
async fn the_api_page_alone_allows_inline_styles() {
    let app = TestApp::new().await;
    let policy = |path: &'static str| {
        let request = app.request(Method::GET, path).header("accept", "text/html");
        async move {
            let response = request.send().await.unwrap();
            response.headers()["content-security-policy"].to_str().unwrap().to_owned()
        }
    };
    let (docs, models) = (policy("/docs").await, policy("/models").await);
    assert!(docs.contains("style-src 'self' 'unsafe-inline'") && !models.contains("unsafe"));
    let scripts = |policy: &str| policy.contains("script-src 'self';");
    assert!(scripts(&docs) && scripts(&models));
    assert!(page(&app, "/docs").await.contains("<rapi-doc spec-url=\"/openapi.yaml\""));
}

#[tokio::test]
async fn the_description_travels_compressed_under_a_tag_that_holds() {
    let app = TestApp::new().await;
    let ask = || app.request(Method::GET, "/openapi.yaml").header("accept-encoding", "gzip");
    let packed = ask().send().await.unwrap();
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    let tag = packed.headers()["etag"].clone();
    // The same tag for either form, so it must not promise the same bytes.
    assert!(tag.to_str().unwrap().starts_with("W/\""));
    let again = ask().header("if-none-match", &tag).send().await.unwrap();
    assert_eq!((again.status().as_u16(), again.text().await.unwrap().len()), (304, 0));
    let plain = app.get("/openapi.yaml").await;
    assert_eq!(plain.headers()["etag"], tag);
    assert!(plain.text().await.unwrap().starts_with("openapi:"));
}

#[tokio::test]
async fn a_plan_says_how_to_ask_for_it() {
    let app = TestApp::new().await;
    let (_, plan) = app.tuned(9, 32).await;
    let path = format!("/plans/{}", plan.id);
    let line = |text: &str| {
        let line = text.split("id=\"command-curl\">curl &#39;<span data-origin>").nth(1).unwrap();
        line.split("&#39;").next().unwrap().replace("&#38;", "&").replace("</span>", "")
    };
    let asked = line(&page(&app, &path).await);
    let found: serde_json::Value =
        app.client.get(&asked).send().await.unwrap().json().await.unwrap();
    assert_eq!(found["plan"]["id"], plan.id.0.as_str(), "{asked}");
    let proxied = app.request(Method::GET, &path).header("x-forwarded-proto", "HTTPS, http");
    let proxied = line(&proxied.send().await.unwrap().text().await.unwrap());
    assert_eq!(proxied, asked.replace("http:", "https:"));
}
