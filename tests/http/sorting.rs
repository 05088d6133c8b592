//! Lists in another order: by the API on all pages, and on pages of the dashboard by links, without scripts.

use crate::app::{TestApp, problem, tridiagonal};
use serde_json::Value;

/// A page of the dashboard.
async fn page(app: &TestApp, path: &str) -> String {
    let request = app.request(reqwest::Method::GET, path).header("accept", "text/html");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.unwrap()
}

/// The heading of this name: its tag, and where its link leads.
fn heading(html: &str, label: &str) -> (String, String) {
    let end = html.find(&format!("{label}</a></th>")).unwrap_or_else(|| panic!("no {label}"));
    let start = html[..end].rfind("<th").unwrap();
    let tag = html[start..end].to_owned();
    let link = tag.split("href=\"").nth(1).unwrap().split('"').next().unwrap();
    (tag.clone(), link.replace("&#38;", "&"))
}

/// All items of a list, page by page.
async fn all(app: &TestApp, path: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let cursor = next.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = app.json(&format!("{path}{cursor}")).await;
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        let Some(cursor) = page["next"].as_str() else { return items };
        next = Some(cursor.to_owned());
    }
}

#[tokio::test]
async fn matrices_are_sorted_by_the_api_and_by_the_headings_of_their_page() {
    let app = TestApp::new().await;
    for (rows, name) in [(6, "b"), (9, "a"), (4, "C"), (7, "d")] {
        let path = format!("/v1/matrices?name={name}");
        let request = app.request(reqwest::Method::POST, &path).body(tridiagonal(rows));
        assert_eq!(request.send().await.unwrap().status(), 201);
    }
    let rows = async |query: &str| -> Vec<u64> {
        let items = all(&app, &format!("/v1/matrices?limit=1{query}")).await;
        items.iter().map(|item| item["rows"].as_u64().unwrap()).collect()
    };
    assert_eq!(rows("").await, [7, 4, 9, 6]);
    assert_eq!(rows("&order=asc").await, [6, 9, 4, 7]);
    assert_eq!(rows("&sort=nnz").await, [9, 7, 6, 4]);
    assert_eq!(rows("&sort=rows&order=asc").await, [4, 6, 7, 9]);
    assert_eq!(rows("&sort=name").await, [9, 6, 4, 7]);
    let wrong = problem(app.get("/v1/matrices?sort=colour").await, 400, "invalid-parameter").await;
    assert!(wrong["detail"].as_str().unwrap().contains("colour"), "{wrong}");
    // A cursor of another order is refused.
    let first = app.json("/v1/matrices?limit=1&sort=rows").await;
    let cursor = first["next"].as_str().unwrap();
    let path = format!("/v1/matrices?limit=1&sort=nnz&cursor={cursor}");
    problem(app.get(&path).await, 400, "invalid-parameter").await;

    let html = page(&app, "/matrices?limit=2&sort=rows&order=asc").await;
    let (tag, link) = heading(&html, "Rows × columns");
    assert!(tag.contains("aria-sort=\"ascending\""), "{tag}");
    assert_eq!(link, "/matrices?sort=rows&order=desc&limit=2");
    let (tag, link) = heading(&html, "Nonzeros");
    assert!(!tag.contains("aria-sort") && link == "/matrices?sort=nnz&order=desc&limit=2", "{tag}");
    // The order that nobody asks for has no parameters.
    assert_eq!(heading(&html, "Uploaded").1, "/matrices?limit=2");
    assert_eq!(
        heading(&page(&app, "/matrices").await, "Uploaded").1,
        "/matrices?sort=created_at&order=asc"
    );
    let (four, six) = (html.find("4 × 4").unwrap(), html.find("6 × 6").unwrap());
    assert!(four < six && !html.contains("7 × 7"));
    let next = html.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let next = next.replace("&#38;", "&");
    assert!(next.starts_with("/matrices?sort=rows&order=asc&limit=2&cursor="), "{next}");
    let rest = page(&app, &next).await;
    assert!(rest.contains("7 × 7") && rest.contains("9 × 9") && !rest.contains("6 × 6"));
    // What is searched for keeps the order, and the order what is searched for.
    let found = page(&app, "/matrices?q=a&sort=rows&order=asc&limit=3").await;
    for (name, value) in [("sort", "rows"), ("order", "asc"), ("limit", "3")] {
        let field = format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">");
        assert!(found.contains(&field), "{field}");
    }
    assert_eq!(heading(&found, "Nonzeros").1, "/matrices?q=a&sort=nnz&order=desc&limit=3");
}

#[tokio::test]
async fn what_is_found_by_its_digest_does_not_come_again_by_its_name() {
    let app = TestApp::new().await;
    let upload = async |name: &str, rows: usize| -> String {
        let path = format!("/v1/matrices?name={name}");
        let request = app.request(reqwest::Method::POST, &path).body(tridiagonal(rows));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 201);
        let stored: Value = response.json().await.unwrap();
        stored["digest"].as_str().unwrap().to_owned()
    };
    let digest = upload("first", 5).await;
    let gone = app.request(reqwest::Method::DELETE, &format!("/v1/matrices/{digest}"));
    assert!(gone.send().await.unwrap().status().is_success());
    let digits = &digest[..8];
    let mut expected = vec![upload(&format!("b-{digits}"), 5).await];
    for (name, rows) in [("a", 6), ("c", 7)] {
        expected.push(upload(&format!("{name}-{digits}"), rows).await);
    }
    for sort in ["&sort=name", ""] {
        let found = all(&app, &format!("/v1/matrices?q={digits}&limit=1{sort}")).await;
        let mut digests: Vec<&str> =
            found.iter().map(|item| item["digest"].as_str().unwrap()).collect();
        assert_eq!(digests[0], digest);
        digests.sort_unstable();
        expected.sort_unstable();
        assert_eq!(digests, expected, "each once{sort}");
    }
}

#[tokio::test]
async fn jobs_are_sorted_by_the_api_and_by_the_headings_of_their_page() {
    let app = TestApp::new().await;
    let (matrix, _) = app.tuned(9, 8).await;
    app.tuned(12, 8).await;
    let waiting = app.job(&matrix, 16).await;
    let ids = async |query: &str| -> Vec<String> {
        let items = all(&app, &format!("/v1/jobs?limit=1{query}")).await;
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    let newest = ids("").await;
    assert_eq!(newest.len(), 3);
    let mut oldest = ids("&sort=created_at&order=asc").await;
    oldest.reverse();
    let id = waiting["id"].as_str().unwrap();
    assert_eq!(newest[0], id);
    assert_eq!(oldest, newest);
    for sort in ["took", "median_us", "speedup"] {
        for order in ["asc", "desc"] {
            let sorted = ids(&format!("&sort={sort}&order={order}")).await;
            assert_eq!(sorted.len(), 3, "{sort} {order}");
            assert_eq!(sorted[2], id, "what has no {sort} comes last, {order}");
        }
    }
    let wrong = problem(app.get("/v1/jobs?order=up").await, 400, "invalid-parameter").await;
    assert!(wrong["detail"].as_str().unwrap().contains("`up`"), "{wrong}");

    let html = page(&app, "/jobs?op=spmm&sort=median_us").await;
    let (tag, link) = heading(&html, "Time</span>");
    assert!(tag.contains("aria-sort=\"ascending\""), "{tag}");
    assert_eq!(link, "/jobs?op=spmm&sort=median_us&order=desc");
    assert_eq!(heading(&html, "Created").1, "/jobs?op=spmm");
    // The part that is refreshed is of the same order.
    assert!(html.contains("/fragments/jobs?op=spmm&#38;sort=median_us&#38;order=asc"));
    let fragment = page(&app, "/fragments/jobs?op=spmm&sort=median_us&order=asc").await;
    assert!(heading(&fragment, "Time</span>").0.contains("aria-sort=\"ascending\""));
    let last = fragment.rfind("data-job=\"").unwrap();
    assert!(fragment[last..].starts_with(&format!("data-job=\"{id}\"")));
}
