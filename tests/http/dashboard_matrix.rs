//! The pages of matrices and comparisons, as a browser asks for them.

use super::app::{TestApp, problem, spmm, tridiagonal};
use reqwest::{Method, Response};
use serde_json::Value;

const HOSTILE: &str = "<script>alert(1)</script>\"'&";

async fn browse(app: &TestApp, path: &str) -> Response {
    app.request(Method::GET, path).header("accept", "text/html").send().await.unwrap()
}

/// The text of a page that is there.
async fn page(app: &TestApp, path: &str) -> String {
    let response = browse(app, path).await;
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.unwrap()
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

fn digest(matrix: &Value) -> &str {
    matrix["digest"].as_str().unwrap()
}

/// A value as it may stand in a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn named(app: &TestApp, rows: usize, name: &str) -> Value {
    let path = format!("/v1/matrices?name={}", encoded(name));
    let request = app.request(Method::POST, &path).body(tridiagonal(rows));
    request.send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn lists_say_what_is_stored_and_go_on() {
    let app = TestApp::new().await;
    has(&page(&app, "/matrices").await, &["No matrix yet", "/#submit"]);
    for rows in 3..6 {
        named(&app, rows, &format!("size-{rows}")).await;
    }
    let all = page(&app, "/matrices").await;
    has(&all, &["size-3", "size-4", "size-5", "5 × 5"]);
    assert!(!all.contains("rel=\"next\""), "one page holds them");
    let newest = page(&app, "/matrices?limit=2").await;
    assert!(!newest.contains("size-3"));
    let next = newest.split("cursor=").nth(1).unwrap();
    let next = next.split(['"', '&']).next().unwrap();
    let older = page(&app, &format!("/matrices?cursor={next}")).await;
    has(&older, &["size-3", "Newest"]);
    assert!(!older.contains("size-5"));
    assert_eq!(browse(&app, "/matrices?cursor=nonsense").await.status(), 400);
}

#[tokio::test]
async fn a_matrix_shows_its_facts_its_plans_and_commands() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(40, 32).await;
    let digest = digest(&matrix);
    let text = page(&app, &format!("/matrices/{digest}")).await;
    has(
        &text,
        &[
            "Unnamed matrix",
            &format!("<code id=\"digest\">{digest}</code>"),
            matrix["pattern_digest"].as_str().unwrap(),
            "40 × 40, 118 nonzeros",
            "id=\"spy\"",
            "spy.png?size=640\" width=\"640\" height=\"640\"",
            &format!("hx-get=\"/fragments/matrices/{digest}/profile\""),
            "id=\"row-lengths\"",
            "id=\"levels\"",
            &format!("href=\"/plans/{}\">SpMM N=32 f32 row</a>", plan.id),
            "12.5 µs",
            "2.00×",
            "50 %",
            "of copy bandwidth",
            "over sprs, one thread",
            "Copy bandwidth: each input read once",
            &format!("/#submit={digest}"),
            &format!("/compare?matrix={digest}"),
            &format!("/jobs?matrix={digest}"),
        ],
    );
    // What the page says to type is what answers.
    let asked = text.split("id=\"command-curl\">curl &#39;<span data-origin>").nth(1).unwrap();
    let asked = asked.split("&#39;").next().unwrap().replace("&#38;", "&").replace("</span>", "");
    let found: Value = app.client.get(&asked).send().await.unwrap().json().await.unwrap();
    assert_eq!(found["plan"]["id"], plan.id.0.as_str(), "{asked}");
}

#[tokio::test]
async fn the_profile_is_drawn_and_said() {
    let app = TestApp::new().await;
    let matrix = app.matrix(40).await;
    let text = page(&app, &format!("/fragments/matrices/{}/profile", digest(&matrix))).await;
    has(
        &text,
        &[
            "id=\"row-lengths\"",
            "median 3, longest 3 entries",
            "38 rows have 3 entries",
            "id=\"levels\"",
            "40 levels, widest 1 rows",
            "<svg",
        ],
    );
    assert!(!text.contains("<html"), "a fragment");
    let wide = "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 3 1.5\n";
    let wide: Value = app.upload(wide).await.json().await.unwrap();
    let path = format!("/fragments/matrices/{}/profile", digest(&wide));
    has(&page(&app, &path).await, &["not square", "longest 1 entries"]);
}

#[tokio::test]
async fn names_are_text_whatever_is_in_them() {
    let app = TestApp::new().await;
    let matrix = named(&app, 5, HOSTILE).await;
    assert_eq!(matrix["name"], HOSTILE);
    let digest = digest(&matrix);
    app.submit(&spmm(&matrix, 32)).await;
    app.finish(&app.claim().await).await;
    let paths = [
        "/matrices".to_owned(),
        format!("/matrices/{digest}"),
        "/compare".to_owned(),
        "/compare?q=%3Cscript%3Ealert(1)".to_owned(),
        "/compare?q=%22%3E%3Cscript%3Ealert(1)nothing".to_owned(),
        format!("/compare?matrix={digest}"),
        format!("/compare?matrix={digest}&by=problem"),
    ];
    for path in paths {
        let text = page(&app, &path).await;
        assert!(!text.contains("<script>alert"), "{path}: {text}");
        has(&text, &["&#60;script&#62;alert(1)"]);
    }
}

#[tokio::test]
async fn a_matrix_that_is_gone_says_where_its_plans_are() {
    let app = TestApp::new().await;
    let (matrix, _) = app.tuned(9, 32).await;
    let path = format!("/matrices/{}", digest(&matrix));
    app.request(Method::DELETE, &format!("/v1{path}")).send().await.unwrap();
    let response = browse(&app, &path).await;
    assert_eq!(response.status(), 404);
    has(&response.text().await.unwrap(), &["it was deleted; its plans are kept"]);
    let never = format!("/matrices/{}", "0".repeat(64));
    let response = browse(&app, &never).await;
    assert_eq!(response.status(), 404);
    has(&response.text().await.unwrap(), &["never uploaded"]);
    // Programs get what they always get.
    problem(app.get(&never).await, 404, "not-found").await;
}

#[tokio::test]
async fn comparing_begins_with_a_choice() {
    let app = TestApp::new().await;
    has(&page(&app, "/compare").await, &["No matrix yet"]);
    let one = named(&app, 5, "Alpha").await;
    named(&app, 6, "Beta").await;
    has(&page(&app, "/compare?matrix=&q=").await, &["Alpha", "Beta"]);
    let some = page(&app, "/compare?q=alph").await;
    has(&some, &["Alpha", &format!("/compare?matrix={}", digest(&one))]);
    assert!(!some.contains("Beta"));
    has(&page(&app, "/compare?q=gamma").await, &["Not found"]);
    let begins = page(&app, &format!("/compare?q={}", &digest(&one)[..8].to_uppercase())).await;
    assert!(begins.contains("Alpha") && !begins.contains("Beta"));
    has(&page(&app, &format!("/compare?q={}", digest(&one))).await, &["Alpha", "No plan yet"]);
    assert_eq!(browse(&app, "/compare?matrix=x").await.status(), 400);
    assert_eq!(browse(&app, "/compare?by=colour").await.status(), 400);
}

#[tokio::test]
async fn plans_stand_side_by_side() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(40, 32).await;
    app.submit(&spmm(&matrix, 8)).await;
    app.finish(&app.claim().await).await;
    let path = format!("/compare?matrix={}", digest(&matrix));
    let text = page(&app, &path).await;
    has(
        &text,
        &[
            "id=\"comparison\"",
            "All plans of this matrix are for one device class",
            "by=problem",
            "a processor, 2 threads",
            "SpMM N=8 f32 row",
            &format!("href=\"/plans/{}\"", plan.id),
            "2.00× over sprs, one thread",
            "50 % of copy bandwidth",
            &format!("href=\"/#submit={}\"", digest(&matrix)),
            "Copy bandwidth: each input read once",
            "class=\"part-name\"",
            "<svg",
        ],
    );
    assert!(!text.contains("fastest"), "one device is not faster than itself");
    let text = page(&app, &format!("{path}&by=problem")).await;
    // 2 x 118 x 32 / 12.5 us, and a column of 32 and of 8.
    has(&text, &["id=\"comparison\"", "0.604", "0.391 µs", "1.56 µs", "highest"]);
    let class = encoded(&plan.device.class().0);
    let chosen = page(&app, &format!("{path}&by=problem&device={class}")).await;
    has(&chosen, &["selected"]);
    assert_eq!(browse(&app, &format!("{path}&by=problem&device=x")).await.status(), 400);
}
