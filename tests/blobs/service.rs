//! The program as it is run, with its blobs in a bucket: uploads and jobs while the store fails, downloads past the server, backups.

use crate::proxy::{Fault, Proxy};
use crate::server::{BUCKET, KEY, S3Server, SECRET};
use crate::tuning::Server;
use reqwest::{Method, StatusCode, redirect};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output};

struct Setting(Vec<(&'static str, String)>);

impl Setting {
    fn new(address: &str) -> Self {
        Self(vec![
            ("SPARSETUNE_DATA__BLOBS", format!("s3://{BUCKET}/of/the/service")),
            ("SPARSETUNE_S3__ENDPOINT", format!("http://{address}")),
            ("SPARSETUNE_S3__ALLOW_HTTP", "true".to_owned()),
            ("SPARSETUNE_S3__TIMEOUT_S", "5".to_owned()),
            ("SPARSETUNE_S3__RETRY_S", "6".to_owned()),
            ("SPARSETUNE_DATA__PRESIGN", "true".to_owned()),
            // As other programs have them.
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ])
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    fn command(&self, arguments: &[&str], data: &Path) -> Output {
        Command::new(env!("CARGO_BIN_EXE_sparsetune"))
            .args(arguments)
            .args(["--data", data.to_str().unwrap()])
            .envs(self.variables())
            .output()
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_and_jobs_go_on_once_the_store_does() {
    let Some(s3) = S3Server::start() else { return };
    let proxy = Proxy::before(&s3.address).await;
    let (folder, setting) = (tempfile::tempdir().unwrap(), Setting::new(&proxy.address));
    let server = Server::start(folder.path(), &setting.variables()).await;
    let matrix = server.grid(20).await;

    proxy.rule(|_| Some(Fault::Answer(503, "SlowDown")));
    let other = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 3\n";
    let upload = || server.request(Method::POST, "/v1/matrices").body(other);
    let refused = upload().send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    assert!(!refused.text().await.unwrap().contains(&proxy.address), "no address of the inside");

    // The copy that the upload left is gone.
    let copies = folder.path().join("blob-cache");
    std::fs::remove_file(copies.join(&matrix[..2]).join(&matrix)).unwrap();
    let body = json!({
        "matrix": matrix, "problem": {"op": "spmm", "n": 8}, "device": "cpu",
        "search": {"strategy": "exhaustive"},
    });
    let job = server.submit(&body).await;
    let id = job["id"].as_str().unwrap();
    let (mut told, mut last) = (String::new(), None);
    while !told.contains("the job goes on later") {
        for event in server.events(id, last, 1).await {
            last = Some(event.id);
            told.push_str(&event.data.to_string());
        }
    }
    assert!(told.contains("(503)") && !told.contains(SECRET), "{told}");
    proxy.as_it_is();
    assert_eq!(upload().send().await.unwrap().status(), StatusCode::CREATED);
    let ended = server.ended(id).await;
    assert_eq!((&ended["state"], &ended["attempts"]), (&json!("succeeded"), &json!(1)), "{ended}");

    // A bundle that is stored comes from the store, unless the client does not want that.
    let plan = ended["plan"].as_str().unwrap();
    let bundle = format!("/v1/plans/{plan}/bundle");
    let built = server.request(Method::GET, &bundle).send().await.unwrap();
    assert_eq!(built.status(), 200, "not stored yet");
    let built = built.bytes().await.unwrap();
    assert_eq!(server.request(Method::POST, &bundle).send().await.unwrap().status(), 201);
    let stays = reqwest::Client::builder().redirect(redirect::Policy::none()).build().unwrap();
    let url = server.request(Method::GET, &bundle).build().unwrap().url().clone();
    let sent = stays.get(url.clone()).send().await.unwrap();
    assert_eq!(
        (sent.status().as_u16(), &sent.headers()["cache-control"]),
        (307, &"no-store".parse().unwrap())
    );
    let link = sent.headers()["location"].to_str().unwrap().to_owned();
    assert!(link.contains("X-Amz-Signature") && !link.contains(SECRET), "{link}");
    assert_eq!(reqwest::get(&link).await.unwrap().bytes().await.unwrap(), built);
    let here = stays.get(url).header("sparsetune-redirect", "never").send().await.unwrap();
    assert_eq!(here.status(), 200);
    assert_eq!(here.bytes().await.unwrap(), built);
    assert!(server.stop().success());

    // Its bucket is no other database's, and a backup has its blobs.
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = setting.command(&["serve", "--listen", "127.0.0.1:0"], elsewhere.path());
    let said = String::from_utf8(foreign.stderr).unwrap();
    assert!(said.contains("has blobs of one") && !said.contains(SECRET), "{said}");
    let saved = elsewhere.path().join("saved");
    let backup = setting.command(&["backup", saved.to_str().unwrap()], folder.path());
    assert!(backup.status.success(), "{backup:?}");
    let manifest = std::fs::read_to_string(saved.join("backup.json")).unwrap();
    assert!(manifest.contains("\"without\": []"), "{manifest}");
    let whole = setting.command(&["fsck"], folder.path());
    assert!(whole.status.success(), "{whole:?}");
}
