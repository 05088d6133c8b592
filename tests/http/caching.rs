//! Tags, Vary and compression of what a browser asks for again: one tag of a text in either coding, and 304 that says so.

use crate::app::TestApp;
use reqwest::{Method, Response};

async fn ask(app: &TestApp, path: &str, coding: &str, tag: Option<&str>) -> Response {
    let mut request = app.request(Method::GET, path).header("accept-encoding", coding);
    if let Some(tag) = tag {
        request = request.header("if-none-match", tag);
    }
    request.send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn what_is_compressed_as_it_leaves_has_a_weak_tag() {
    let app = TestApp::new().await;
    let job = app.job(&app.matrix(5).await, 4).await;
    let standing = format!("/fragments/jobs/{}", job["id"].as_str().unwrap());
    for path in ["/openapi.yaml", "/fragments/jobs", "/fragments/devices", &standing] {
        let plain = ask(&app, path, "identity", None).await;
        let packed = ask(&app, path, "gzip", None).await;
        assert_eq!(header(&packed, "content-encoding"), "gzip", "{path}");
        assert_eq!(header(&plain, "content-encoding"), "", "{path}");
        let tag = header(&plain, "etag").to_owned();
        assert!(tag.starts_with("W/\"") && tag.len() == 36, "{path}: {tag}");
        assert_eq!(header(&packed, "etag"), tag, "{path}");
        for coding in ["identity", "gzip"] {
            let kept = ask(&app, path, coding, Some(&tag)).await;
            assert_eq!(kept.status(), 304, "{path}");
            assert_eq!((header(&kept, "etag"), header(&kept, "vary")), (&*tag, "accept-encoding"));
            // A proxy on the way may have made it strong.
            let strong = ask(&app, path, coding, tag.strip_prefix("W/")).await;
            assert_eq!(strong.status(), 304, "{path}");
        }
        assert_eq!(header(&plain, "vary"), "accept-encoding", "{path}");
        assert_eq!(header(&packed, "vary"), "accept-encoding", "{path}");
        assert_eq!(ask(&app, path, "gzip", Some("W/\"x\"")).await.status(), 200);
    }
}

#[tokio::test]
async fn fragments_tell_no_ages() {
    let app = TestApp::new().await;
    let html = app.get("/fragments/devices").await.text().await.unwrap();
    assert!(html.contains("data-age>") && !html.contains(" ago<") && !html.contains(">now<"));
}

#[tokio::test]
async fn files_come_in_the_coding_that_is_taken() {
    let app = TestApp::new().await;
    let path = "/static/app.css";
    for (coding, expected) in [
        ("gzip, deflate, br", "gzip"),
        ("*", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip;q=0.0", ""),
        ("gzip;q=0, *", ""),
        ("br", ""),
        ("identity", ""),
        // There is no form that is none of these; the plain one is better than a refusal.
        ("identity;q=0", ""),
    ] {
        let file = ask(&app, path, coding, None).await;
        assert_eq!((file.status().as_u16(), header(&file, "content-encoding")), (200, expected));
        assert_eq!(header(&file, "vary"), "accept-encoding", "{coding}");
        assert!(header(&file, "etag").starts_with('"'), "bytes have strong tags");
    }
    let (plain, packed) =
        (ask(&app, path, "identity", None).await, ask(&app, path, "gzip", None).await);
    assert_ne!(header(&plain, "etag"), header(&packed, "etag"));
}

#[tokio::test]
async fn only_the_address_with_the_digest_is_for_ever() {
    let app = TestApp::new().await;
    let login = app.request(Method::GET, "/login").header("accept", "text/html").send().await;
    let html = login.unwrap().text().await.unwrap();
    let named = html.split('"').find(|part| part.starts_with("/static/app.css?")).unwrap();
    assert!(header(&app.get(named).await, "cache-control").contains("immutable"));
    for other in ["/static/app.css", "/static/app.css?", "/static/app.css?000000000000"] {
        assert_eq!(header(&app.get(other).await, "cache-control"), "public, no-cache", "{other}");
    }
}
