//! The page of jobs as a browser gets it: list, filters, the live fragment, the form, the find box, failures.

use crate::app::{TestApp, problem};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response};
use serde_json::Value;

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
    ] {
        assert_eq!(rows(&page(&app, &format!("/jobs{query}"), 200).await), expected, "{query}");
    }
    let html = page(&app, &format!("/jobs?state=queued&matrix={digest}"), 200).await;
    assert!(html.contains("<option value=\"queued\" selected>"));
    assert!(html.contains(&format!("hx-get=\"/fragments/jobs?state=queued&#38;matrix={digest}\"")));
    assert!(page(&app, "/jobs?state=failed", 200).await.contains("No matching jobs"));
    for wrong in ["?state=lost", "?cursor=nonsense", "?page=2"] {
        page(&app, &format!("/jobs{wrong}"), 400).await;
    }
    assert!(page(&app, "/jobs", 200).await.contains(text(&matrix, "digest")));
}

#[tokio::test]
async fn a_digest_that_names_no_one_matrix_is_told_of_and_loses_no_other_filter() {
    let app = TestApp::new().await;
    let mut digests = Vec::new();
    // Of seventeen, two begin with the same digit.
    for rows in 3..20 {
        digests.push(text(&app.matrix(rows).await, "digest").to_owned());
    }
    let of = |digit: &char| digests.iter().filter(|d| d.starts_with(*digit)).count();
    let shared = "0123456789abcdef".chars().find(|digit| of(digit) > 1).unwrap();
    let one = digests.iter().find(|digest| digest.starts_with(shared)).unwrap();
    let html = page(&app, &format!("/jobs?state=queued&matrix={shared}"), 200).await;
    let kept = format!("href=\"/jobs?state=queued&#38;matrix={one}\"");
    assert!(html.contains("Several matrices") && html.contains("aria-invalid=\"true\""));
    assert!(of(&shared) > 6 || html.contains(&kept), "{html}");
    for (wrong, said) in
        [("nothing", "A digest has up to 64 digits"), ("0123456789", "No matrix here")]
    {
        let html = page(&app, &format!("/jobs?state=queued&device=cpu&matrix={wrong}"), 200).await;
        assert!(html.contains(said) && html.contains(&format!("value=\"{wrong}\"")), "{wrong}");
        assert!(html.contains("<option value=\"queued\" selected>"));
    }
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
        (digest[..5].to_owned(), "part of a digest"),
        ("ffffffffff".to_owned(), "part of a digest"),
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
