//! Uploads in every wrapping, their refusals, and what can be asked of a stored matrix.

use crate::app::{TestApp, problem, spmm, tridiagonal};
use bytes::Bytes;
use futures_util::stream;
use reqwest::{Body, Method};
use serde_json::json;
use std::io::Read;
use std::time::Duration;

fn gzip(bytes: impl Read) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut out).unwrap();
    out
}

#[tokio::test]
async fn one_matrix_in_many_wrappings_is_one_matrix() {
    let app = TestApp::new().await;
    let text = tridiagonal(30);
    let named = app.request(Method::POST, "/v1/matrices?name=first").body(text.clone());
    let first = named.send().await.unwrap();
    assert_eq!(first.status(), 201);
    let location = first.headers()["location"].to_str().unwrap().to_owned();
    let facts: serde_json::Value = first.json().await.unwrap();
    assert_eq!(location, format!("/v1/matrices/{}", facts["digest"].as_str().unwrap()));
    assert_eq!(
        (&facts["rows"], &facts["nnz"], &facts["name"]),
        (&30.into(), &88.into(), &"first".into())
    );

    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    let wrapped = [
        (gzip(text.as_bytes()), None),
        (gzip(text.as_bytes()), Some("gzip")),
        (zstd.clone(), None),
        (zstd, Some("zstd")),
        (gzip(&gzip(text.as_bytes())[..]), Some("gzip")),
    ];
    for (body, encoding) in wrapped {
        let mut request = app.request(Method::POST, "/v1/matrices?name=second").body(body);
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        let again = request.send().await.unwrap();
        assert_eq!(again.status(), 200, "{encoding:?}");
        assert_eq!(again.json::<serde_json::Value>().await.unwrap(), facts);
    }
    assert_eq!(app.json(&location).await, facts);
    let head = app.request(Method::HEAD, &location).send().await.unwrap();
    assert_eq!((head.status().as_u16(), head.text().await.unwrap().len()), (200, 0));
}

#[tokio::test]
async fn unreadable_uploads_say_where() {
    let app = TestApp::new().await;
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n7 1 2.0\n";
    let body = problem(app.upload(text).await, 422, "unreadable-matrix").await;
    assert_eq!(body["line"], 4, "{body}");
    problem(app.upload("").await, 422, "unreadable-matrix").await;
    let complex = "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.0 2.0\n";
    problem(app.upload(complex).await, 422, "unsupported-matrix").await;
    let form = app.request(Method::POST, "/v1/matrices");
    let form = form.header("content-type", "multipart/form-data; boundary=x").body("--x--");
    problem(form.send().await.unwrap(), 415, "unsupported-media-type").await;
    for name in ["", "a%0Ab"] {
        let upload = app.request(Method::POST, &format!("/v1/matrices?name={name}"));
        let upload = upload.body(tridiagonal(3)).send().await.unwrap();
        problem(upload, 400, "invalid-parameter").await;
    }
}

#[tokio::test]
async fn a_body_is_limited_after_it_is_unpacked() {
    let app = TestApp::with(&[("server.max_upload_bytes", 100_000.into())]).await;
    let bomb = gzip(std::io::repeat(b' ').take(50_000_000));
    assert!(bomb.len() < 1_000_000);
    for (body, encoding) in [(bomb.clone(), "gzip"), (vec![b' '; 100_001], "identity")] {
        let request =
            app.request(Method::POST, "/v1/matrices").header("content-encoding", encoding);
        problem(request.body(body).send().await.unwrap(), 413, "too-large").await;
    }
    // A matrix that is itself compressed is the reader's to limit.
    let status = app.upload(bomb).await.status();
    assert!(status == 413 || status == 422, "{status}");
    // Without Content-Length the limit must be found while streaming.
    let chunks =
        stream::iter((0..200).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b'%'; 1000]))));
    problem(app.upload(Body::wrap_stream(chunks)).await, 413, "too-large").await;
    let torn = &gzip(tridiagonal(50).as_bytes())[..60];
    let request = app.request(Method::POST, "/v1/matrices").header("content-encoding", "gzip");
    problem(request.body(torn.to_vec()).send().await.unwrap(), 422, "unreadable-matrix").await;
    assert_eq!(std::fs::read_dir(app.folder.path().join("uploads")).unwrap().count(), 0);
}

/// bgzip writes many members and an empty one; only the first was read of a body with a Content-Encoding, and junk was not seen.
#[tokio::test]
async fn all_members_are_read_and_nothing_else() {
    let app = TestApp::new().await;
    let text = tridiagonal(30);
    let (first, second) = text.as_bytes().split_at(200);
    let members = [gzip(first), gzip(second), gzip(&b""[..])].concat();
    let frames = [zstd::encode_all(first, 1).unwrap(), zstd::encode_all(second, 1).unwrap()];
    let facts: serde_json::Value = app.upload(text.clone()).await.json().await.unwrap();
    for (body, coding) in [(members, "gzip"), (frames.concat(), "zstd")] {
        for encoding in [coding, "identity"] {
            let send = |body: Vec<u8>| {
                let request = app.request(Method::POST, "/v1/matrices");
                request.header("content-encoding", encoding).body(body).send()
            };
            let answer = send(body.clone()).await.unwrap();
            assert_eq!(answer.status(), 200, "{coding} {encoding}");
            assert_eq!(answer.json::<serde_json::Value>().await.unwrap(), facts);
            for junk in [&b"junk"[..], &[0; 20], first] {
                let answer = send([&body, junk].concat()).await.unwrap();
                // Tapes append zeros, and gzip passes over them.
                if coding == "gzip" && junk == [0; 20] {
                    assert_eq!(answer.status(), 200, "{encoding}");
                    continue;
                }
                let answer = problem(answer, 422, "unreadable-matrix").await;
                let detail = answer["detail"].as_str().unwrap();
                assert!(detail.contains("stream is corrupt"), "{coding} {encoding}: {detail}");
            }
        }
    }
}

#[tokio::test]
async fn uploads_beyond_the_places_are_told_to_come_back() {
    let app = TestApp::with(&[("server.uploads_at_once", 1.into())]).await;
    let (mut writer, reader) = tokio::io::duplex(64);
    let body = Body::wrap_stream(tokio_util::io::ReaderStream::new(reader));
    let slow = tokio::spawn(app.request(Method::POST, "/v1/matrices").body(body).send());
    tokio::io::AsyncWriteExt::write_all(&mut writer, b"%%MatrixMarket").await.unwrap();
    let busy = loop {
        let second = app.upload(tridiagonal(3)).await;
        if second.status() != 201 && second.status() != 200 {
            break second;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(busy.headers().contains_key("retry-after"));
    problem(busy, 503, "busy").await;
    drop(writer);
    problem(slow.await.unwrap().unwrap(), 422, "unreadable-matrix").await;
    assert!(app.upload(tridiagonal(3)).await.status().is_success(), "the place is free again");
}

#[tokio::test]
async fn an_upload_that_stalls_is_ended() {
    let app = TestApp::with(&[("server.upload_s", 0.2.into())]).await;
    let body = Body::wrap_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    problem(app.upload(body).await, 408, "slow-client").await;
}

#[tokio::test]
async fn pictures_have_tags() {
    let app = TestApp::new().await;
    let matrix = app.matrix(20).await;
    let path = format!("/v1/matrices/{}/spy.png?size=64", matrix["digest"].as_str().unwrap());
    let picture = app.get(&path).await;
    assert_eq!(
        (picture.status().as_u16(), &picture.headers()["content-type"]),
        (200, &"image/png".parse().unwrap())
    );
    let tag = picture.headers()["etag"].clone();
    assert!(picture.bytes().await.unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    let again = app.request(Method::GET, &path).header("if-none-match", tag).send().await.unwrap();
    assert_eq!(again.status(), 304);
}

#[tokio::test]
async fn removal_waits_for_jobs_and_lists_page() {
    let app = TestApp::new().await;
    let matrix = app.matrix(4).await;
    app.matrix(5).await;
    app.matrix(6).await;
    let page = app.json("/v1/matrices?limit=2").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    let rest = format!("/v1/matrices?limit=2&cursor={}", page["next"].as_str().unwrap());
    let rest = app.json(&rest).await;
    assert_eq!(
        (&rest["items"][0]["digest"], &rest["next"]),
        (&matrix["digest"], &serde_json::Value::Null)
    );

    let job: serde_json::Value = app.submit(&spmm(&matrix, 2)).await.json().await.unwrap();
    let path = format!("/v1/matrices/{}", matrix["digest"].as_str().unwrap());
    let delete = || app.request(Method::DELETE, &path).send();
    problem(delete().await.unwrap(), 409, "conflict").await;
    let cancel = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(app.request(Method::DELETE, &cancel).send().await.unwrap().status(), 200);
    assert_eq!(delete().await.unwrap().status(), 204);
    problem(delete().await.unwrap(), 404, "not-found").await;
}

#[tokio::test]
async fn what_is_pinned_is_listed_and_not_deleted() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(5, 32).await;
    let digest = matrix["digest"].as_str().unwrap();
    let (of_matrix, of_plan) =
        (format!("/v1/matrices/{digest}/pin"), format!("/v1/plans/{}/pin", plan.id));
    for path in [&of_matrix, &of_plan, &of_matrix] {
        assert_eq!(app.request(Method::PUT, path).send().await.unwrap().status(), 204);
    }
    let pins = app.json("/v1/pins").await;
    assert_eq!(pins, json!({"matrices": [digest], "plans": [plan.id]}));
    let delete = || app.request(Method::DELETE, &format!("/v1/matrices/{digest}")).send();
    let told = problem(delete().await.unwrap(), 409, "conflict").await;
    assert!(told["detail"].as_str().unwrap().contains("pinned"), "{told}");
    for path in [&of_matrix, &of_plan] {
        assert_eq!(app.request(Method::DELETE, path).send().await.unwrap().status(), 204);
    }
    assert_eq!(app.json("/v1/pins").await, json!({"matrices": [], "plans": []}));
    assert_eq!(delete().await.unwrap().status(), 204);
    let gone = app.request(Method::PUT, &of_matrix).send().await.unwrap();
    problem(gone, 404, "not-found").await;
}
