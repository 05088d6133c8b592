//! The page of jobs as a browser gets it: list, filters, the live fragment, the form, the find box, failures.

use crate::app::{TestApp, problem, tridiagonal};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};

const ID: &str = "0193a7c4-1111-7222-8333-444455556666";

/// As a browser navigates, but for following redirects.
async fn navigate(app: &TestApp, path: &str) -> Response {
    let client = Client::builder().redirect(Policy::none()).build().unwrap();
    client.get(app.url(path)).header("accept", "text/html").send().await.unwrap()
}

async fn page(app: &TestApp, path: &str, status: u16) -> String {
    let response = navigate(app, path).await;
    assert_eq!(response.status(), status, "{path}");
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    response.text().await.unwrap()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap()
}

#[tokio::test]
async fn a_server_without_jobs_says_what_to_do_first() {
    let app = TestApp::new().await;
    for path in ["/", "/jobs"] {
        let html = page(&app, path, 200).await;
        assert!(html.contains("No jobs yet") && html.contains("curl -X POST -T"));
        // The form is open, and what it needs is there.
        assert!(html.contains("<details id=\"submit-card\" class=\"card\" open>"));
        for id in ["submit", "file", "drop", "device", "op", "n", "submit-go", "upload-progress"] {
            assert!(html.contains(&format!("id=\"{id}\"")), "{id}");
        }
    }
    // A program gets the index.
    assert_eq!(app.json("/").await["name"], "sparsetune");
}

#[tokio::test]
async fn jobs_are_listed_with_what_became_of_them() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(9, 8).await;
    let waiting = app.job(&matrix, 16).await;
    let html = page(&app, "/", 200).await;
    for shown in [
        "SpMM N=8 f32 row",
        "SpMM N=16 f32 row",
        "2.00×",
        "12.5 µs",
        &format!("href=\"/plans/{}\"", plan.id),
        &format!("href=\"/matrices/{}\"", text(&matrix, "digest")),
        &format!("data-job=\"{}\"", text(&waiting, "id")),
        &format!("data-cancel=\"{}\"", text(&waiting, "id")),
        "1 queued",
        "1 succeeded",
    ] {
        assert!(html.contains(shown), "{shown}");
    }
    // What has ended cannot be cancelled.
    assert_eq!(html.matches("data-cancel=").count(), 1);
    assert!(!html.contains("id=\"submit-card\" class=\"card\" open"));
}

#[tokio::test]
async fn filters_narrow_the_list_and_stay_in_its_address() {
    let app = TestApp::new().await;
    let (matrix, _) = app.tuned(9, 8).await;
    let other = app.matrix(12).await;
    app.job(&other, 16).await;
    let rows = |html: &str| html.matches("data-job=").count();
    let digest = text(&other, "digest").to_owned();
    for (query, expected) in [
        ("", 2),
        ("?state=&device=&matrix=", 2),
        ("?state=queued", 1),
        ("?state=failed", 0),
        (&format!("?matrix={digest}"), 1),
        (&format!("?matrix=%20{}", digest.to_uppercase()), 1),
        (&format!("?state=succeeded&matrix={digest}"), 0),
        (&format!("?matrix={}", digest[..12].to_uppercase()), 1),
        (&format!("?state=succeeded&matrix={}", &digest[..12]), 0),
        ("?matrix=poisson", 0),
        ("?device=cuda:77", 0),
        ("?op=spmm", 2),
        ("?op=sptrsv", 0),
    ] {
        assert_eq!(rows(&page(&app, &format!("/jobs{query}"), 200).await), expected, "{query}");
    }
    let html = page(&app, &format!("/jobs?state=queued&matrix={digest}"), 200).await;
    assert!(html.contains("<option value=\"queued\" selected>"));
    assert!(html.contains(&format!("hx-get=\"/fragments/jobs?state=queued&#38;matrix={digest}\"")));
    assert!(page(&app, "/jobs?state=failed", 200).await.contains("No matching jobs"));
    for wrong in ["?op=sddmm", "?state=lost", "?cursor=nonsense", "?page=2"] {
        page(&app, &format!("/jobs{wrong}"), 400).await;
    }
    assert!(page(&app, "/jobs", 200).await.contains(text(&matrix, "digest")));
}

#[tokio::test]
async fn a_name_that_means_no_one_matrix_is_told_of_and_loses_no_other_filter() {
    let app = TestApp::new().await;
    let named = async |rows: usize, name: &str| {
        let path = format!("/v1/matrices?name={name}");
        let sent = app.request(Method::POST, &path).body(tridiagonal(rows)).send().await.unwrap();
        sent.json::<Value>().await.unwrap()
    };
    let (wide, narrow) = (named(7, "bridge-wide").await, named(8, "bridge-narrow").await);
    let plain = named(9, "Bridge").await;
    app.job(&wide, 4).await;
    let html = page(&app, "/jobs?state=queued&matrix=bridge-", 200).await;
    assert!(html.contains("Several matrices") && html.contains("aria-invalid=\"true\""));
    for one in [&wide, &narrow] {
        let kept = format!("href=\"/jobs?state=queued&#38;matrix={}\"", text(one, "digest"));
        assert!(html.contains(&kept), "{html}");
    }
    // The one that is called so is meant, whatever others contain it.
    let rows = |html: &str| html.matches("data-job=").count();
    assert!(!page(&app, "/jobs?matrix=bridge", 200).await.contains("Several matrices"));
    assert_eq!(rows(&page(&app, "/jobs?matrix=bridge", 200).await), 0);
    assert_eq!(rows(&page(&app, "/jobs?matrix=E-WIDE", 200).await), 1);
    for wrong in ["nothing", "0123456789"] {
        let html = page(&app, &format!("/jobs?state=queued&device=cpu&matrix={wrong}"), 200).await;
        assert!(html.contains("No matrix here") && html.contains(&format!("value=\"{wrong}\"")));
        assert!(html.contains("<option value=\"queued\" selected>"));
    }

    // The search box of every page, and the API that the form asks.
    let found = async |q: &str| navigate(&app, &format!("/find?q={q}")).await;
    let place = |response: &Response| response.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(place(&found("bridge-n").await), format!("/matrices/{}", text(&narrow, "digest")));
    assert_eq!(place(&found("BRIDGE").await), format!("/matrices/{}", text(&plain, "digest")));
    let several = found("bridge-").await;
    assert_eq!(several.status(), 200);
    let listed = several.text().await.unwrap();
    assert!(listed.contains("bridge-wide") && listed.contains("bridge-narrow"), "{listed}");
    assert_eq!(found("viaduct").await.status(), 404);
    let asked = async |q: &str| app.json(&format!("/v1/matrices?q={q}")).await["items"].clone();
    assert_eq!(asked("-wid").await.as_array().unwrap().len(), 1);
    assert_eq!(asked(&text(&wide, "digest")[..8]).await[0]["name"], "bridge-wide");
    assert_eq!(asked("viaduct").await, json!([]));
    assert_eq!(app.get("/v1/matrices?q=").await.status(), 400);
}

#[tokio::test]
async fn ages_are_written_out_on_the_page_and_left_to_its_script_in_what_renews_it() {
    let app = TestApp::new().await;
    app.tuned(9, 8).await;
    let age = |html: &str| {
        let (_, rest) = html.split_once("data-age>").unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    };
    let whole = age(&page(&app, "/jobs", 200).await);
    assert!(whole == "now" || whole.ends_with(" ago"), "{whole}");
    assert!(age(&page(&app, "/fragments/jobs", 200).await).starts_with("20"));
}

#[tokio::test]
async fn a_page_has_fifty_jobs_and_a_link_to_older_ones() {
    let app = TestApp::new().await;
    let matrix = app.matrix(5).await;
    for n in 1..=51 {
        app.job(&matrix, n).await;
    }
    let html = page(&app, "/jobs?state=queued", 200).await;
    assert_eq!(html.matches("data-job=").count(), 50);
    let (_, rest) = html.split_once("<nav class=\"pager\"").unwrap();
    let (_, rest) = rest.split_once("href=\"").unwrap();
    let older = rest.split('"').next().unwrap().replace("&#38;", "&");
    assert!(older.starts_with("/jobs?state=queued&cursor="), "{older}");
    let html = page(&app, &older, 200).await;
    assert_eq!(html.matches("data-job=").count(), 1);
    assert!(html.contains("SpMM N=1 f32 row") && html.contains(">Newest</a>"));
    assert!(!html.contains(">Older</a>"));
}

#[tokio::test]
async fn a_list_that_stays_is_not_sent_again() {
    let app = TestApp::new().await;
    let matrix = app.matrix(5).await;
    app.job(&matrix, 8).await;
    let ask = |tag: Option<String>| {
        let mut request = app.request(Method::GET, "/fragments/jobs").header("hx-request", "true");
        if let Some(tag) = tag {
            request = request.header("if-none-match", tag);
        }
        async move { request.send().await.unwrap() }
    };
    let first = ask(None).await;
    assert_eq!(first.status(), 200);
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    let html = first.text().await.unwrap();
    assert!(html.contains("data-job=") && !html.contains("<html"));
    assert_eq!(ask(Some(tag.clone())).await.status(), 304);
    app.claim().await;
    let changed = ask(Some(tag)).await;
    assert_eq!(changed.status(), 200);
    assert!(changed.text().await.unwrap().contains("data-state=\"running\""));
}

#[tokio::test]
async fn names_of_matrices_are_text() {
    let app = TestApp::new().await;
    let name = "%3Cimg%20src=x%20onerror=alert(1)%3E%22'%26";
    let upload = app.request(Method::POST, &format!("/v1/matrices?name={name}"));
    let upload = upload.body(crate::app::tridiagonal(5)).send().await.unwrap();
    let matrix: Value = upload.json().await.unwrap();
    app.job(&matrix, 8).await;
    for path in ["/", "/fragments/jobs"] {
        let html = page(&app, path, 200).await;
        assert!(!html.contains("<img") && html.contains("&#60;img"), "{path}");
    }
}

#[tokio::test]
async fn the_find_box_leads_to_what_is_named() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(9, 8).await;
    let job = app.job(&matrix, 16).await;
    let digest = text(&matrix, "digest");
    for (asked, found) in [
        (digest.to_owned(), format!("/matrices/{digest}")),
        (format!("%20{}%20", digest.to_uppercase()), format!("/matrices/{digest}")),
        (digest[..6].to_owned(), format!("/matrices/{digest}")),
        (text(&matrix, "pattern_digest")[..12].to_owned(), format!("/matrices/{digest}")),
        (text(&job, "id").to_owned(), format!("/jobs/{}", text(&job, "id"))),
        (plan.id.to_string(), format!("/plans/{}", plan.id)),
    ] {
        let response = navigate(&app, &format!("/find?q={asked}")).await;
        assert_eq!(response.status(), 303, "{asked}");
        assert_eq!(response.headers()["location"], found.as_str());
    }
    for (asked, words) in [
        ("0".repeat(64), "No stored matrix has the digest"),
        (ID.to_owned(), "No job or plan on this server has the id"),
        (digest[..5].to_owned(), "no matrix digest begins with it"),
        ("ffffffffff".to_owned(), "no matrix digest begins with it"),
        ("%3Cb%3Epoisson".to_owned(), "&#60;b&#62;poisson"),
    ] {
        let html = page(&app, &format!("/find?q={asked}"), 404).await;
        assert!(html.contains(words) && !html.contains("<b>poisson"), "{asked}");
    }
    page(&app, "/find", 200).await;
    // The same pattern with other values: one beginning, two matrices.
    let twice = crate::app::tridiagonal(9).replace(".5", ".25");
    let other: Value = app.upload(twice).await.json().await.unwrap();
    assert_eq!(other["pattern_digest"], matrix["pattern_digest"]);
    let pattern = text(&other, "pattern_digest");
    let html = page(&app, &format!("/find?q={pattern}"), 200).await;
    for one in [digest, text(&other, "digest")] {
        assert!(html.contains(&format!("href=\"/matrices/{one}\"")));
    }
}

#[tokio::test]
async fn failures_are_pages_for_browsers_and_problems_for_programs() {
    let app = TestApp::new().await;
    let html = page(&app, "/nowhere", 404).await;
    assert!(html.contains("id=\"failure\"") && html.contains("href=\"/\""));
    problem(app.get("/nowhere").await, 404, "not-found").await;
    let gone = app.request(Method::GET, &format!("/v1/jobs/{ID}")).header("accept", "text/html");
    problem(gone.send().await.unwrap(), 404, "not-found").await;
    // Within a page, a failure is a piece of it.
    let piece = app.request(Method::GET, "/fragments/jobs?state=lost").header("hx-request", "true");
    let piece = piece.send().await.unwrap();
    assert_eq!(piece.status(), 400);
    let html = piece.text().await.unwrap();
    assert!(html.contains("role=\"alert\"") && !html.contains("<html"));
    // What a refusal tells machines is told along with the page.
    let post = app.request(Method::POST, "/jobs").header("accept", "text/html");
    let post = post.send().await.unwrap();
    assert_eq!(
        (post.status().as_u16(), &post.headers()["allow"]),
        (405, &"GET,HEAD".parse().unwrap())
    );
}

#[tokio::test]
async fn jobs_and_matrices_stand_side_by_side_under_an_address_of_their_own() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(9, 8).await;
    let other = app.matrix(12).await;
    let queued = app.job(&other, 16).await;
    let ended = app.json("/v1/jobs?state=succeeded").await["items"][0]["id"].clone();
    let ids = format!("{},{}", ended.as_str().unwrap(), text(&queued, "id"));
    let html = page(&app, &format!("/compare?jobs={ids}"), 200).await;
    for part in ["Jobs side by side", "Time per call", "succeeded", "queued", "data-csv-of"] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(html.contains(&format!("/plans/{}", plan.id)), "{html}");
    let both = format!("{},{}", text(&matrix, "digest"), text(&other, "digest"));
    let html = page(&app, &format!("/compare?matrices={both}"), 200).await;
    assert!(html.contains("Matrices side by side") && html.contains("Best speed-up"), "{html}");
    let gone = format!("/compare?jobs={ids},0193a7c4-1111-7222-8333-444455556666");
    assert!(page(&app, &gone, 200).await.contains("1 of those in the address is not stored here"));
    for wrong in ["jobs=", "jobs=x", "matrices=ab", "jobs=a&jobs=b"] {
        page(&app, &format!("/compare?{wrong}"), 400).await;
    }
}

#[tokio::test]
async fn the_overview_tells_what_was_learnt() {
    let app = TestApp::new().await;
    assert!(page(&app, "/overview", 200).await.contains("No learned model yet"));
    let (matrix, plan) = app.tuned(9, 8).await;
    let told = app.json("/v1/overview").await;
    let class = &told["classes"][0];
    assert_eq!(
        (&told["plans"], &told["counted"], &class["plans"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(class["device_class"], plan.device.class().0);
    assert_eq!(class["median_speedup"].as_f64(), plan.speedup);
    assert_eq!(class["median_limit_fraction"].as_f64(), Some(plan.limit.fraction));
    let html = page(&app, "/overview", 200).await;
    assert!(html.contains("What the service has learnt") && html.contains("id=\"classes\""));

    // The list of matrices has the same figures, and is searched by name.
    let html = page(&app, "/matrices", 200).await;
    let speedup = format!("data-value=\"{}\"", plan.speedup.unwrap());
    assert!(html.contains(&speedup) && html.contains("data-sort=\"plans\""), "{html}");
    let digest = text(&matrix, "digest");
    assert!(page(&app, &format!("/matrices?q={}", &digest[..8]), 200).await.contains(digest));
    assert!(page(&app, "/matrices?q=viaduct", 200).await.contains("None found"));
    page(&app, "/matrices?name=x", 400).await;
}
