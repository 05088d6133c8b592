//! Bundles end to end: the real binary tunes on the host's processor, its server hands the plan out as a file, another takes it
//! in, and the file runs by itself.

use reqwest::{Client, Response};
use serde_json::{Value, json};
use sparsetune::store::{Blobs as _, LocalBlobs};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparsetune"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

fn sparsetune(args: &[&str]) -> Output {
    binary().args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

fn succeeded(args: &[&str]) -> Value {
    let output = sparsetune(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// A server that is killed when the test is over.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(data: &Path) -> Self {
        Self::start_with(data, 0)
    }

    /// One that may have so many bytes of temporary files; 0 for the default.
    fn start_with(data: &Path, temporary_bytes: usize) -> Self {
        let mut child = binary()
            .args(["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()])
            .env("SPARSETUNE_DATA__MAX_TEMPORARY_BYTES", temporary_bytes.to_string())
            .env("SPARSETUNE_DEVICES__USE", r#"["cpu"]"#)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, url }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let request = Client::new().get(format!("{}{path}", self.url));
        headers
            .iter()
            .fold(request, |it, (name, value)| it.header(*name, *value))
            .send()
            .await
            .unwrap()
    }

    async fn import(&self, body: Vec<u8>) -> Response {
        Client::new().post(format!("{}/v1/bundles", self.url)).body(body).send().await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn header(response: &Response, name: &str) -> String {
    response.headers().get(name).map(|it| it.to_str().unwrap().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn a_plan_leaves_its_server_and_enters_another() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (matrix, file, data) = (at("a.mtx"), at("a.stplan"), at("data"));
    succeeded(&["generate", "poisson2d:nx=40,ny=31,seed=3", "-o", &matrix]);
    let tuned = succeeded(&[
        "tune", &matrix, "--n", "8", "--device", "cpu", "--top-k", "2", "--data", &data,
        "--bundle", &file, "--json",
    ]);
    let id = tuned["plan"]["id"].as_str().unwrap();
    let verified = succeeded(&["bundle", "verify", &file, "--json"]);
    assert_eq!(verified[0]["manifest"]["plan"], id);
    let ran = succeeded(&["bundle", "run", &file, "--json"]);
    assert_eq!(ran["passed"], true, "{ran}");

    let server = Server::start(Path::new(&data));
    let path = format!("/v1/plans/{id}/bundle");
    let whole = server.get(&path, &[]).await;
    assert_eq!(whole.status(), 200);
    let tag = header(&whole, "etag");
    let digest = header(&whole, "repr-digest");
    assert!(header(&whole, "content-disposition").contains(&format!("{id}.stplan")));
    let bytes = whole.bytes().await.unwrap();
    assert_eq!(bytes, std::fs::read(&file).unwrap());
    {
        use base64::Engine as _;
        use sha2::Digest as _;
        let hash = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(&bytes));
        assert_eq!(digest, format!("sha-256=:{hash}:"));
    }
    let part = server.get(&path, &[("range", "bytes=64-127"), ("if-range", &tag)]).await;
    assert_eq!((part.status().as_u16(), header(&part, "repr-digest")), (206, digest));
    assert_eq!(header(&part, "content-range"), format!("bytes 64-127/{}", bytes.len()));
    assert_eq!(part.bytes().await.unwrap(), bytes[64..128]);
    assert_eq!(server.get(&path, &[("if-none-match", &tag)]).await.status(), 304);
    let beyond = server.get(&path, &[("range", "bytes=99999999-")]).await;
    assert_eq!(beyond.status(), 416);
    assert_eq!(beyond.json::<Value>().await.unwrap()["type"], "/problems/range-not-satisfiable");
    let bare = server.get(&format!("{path}?values=external"), &[]).await;
    assert_eq!(bare.status(), 200);
    assert!(bare.bytes().await.unwrap().len() < bytes.len());
    assert_eq!(server.get(&format!("{path}?values=some"), &[]).await.status(), 400);
    let none = "/v1/plans/00000000-0000-7000-8000-000000000000/bundle";
    assert_eq!(server.get(none, &[]).await.status(), 404);

    drop(server);
    // What is kept for a next download is a part of the disk for temporary files, which all that arrives needs as well.
    let server = Server::start_with(Path::new(&data), bytes.len() + 100);
    for path in [&path, &format!("{path}?values=external"), &path] {
        let started = Instant::now();
        loop {
            let answer = server.get(path, &[]).await;
            let status = answer.status();
            answer.bytes().await.unwrap();
            if status == 200 {
                break;
            }
            // The one before may not have ended for the server.
            assert!(started.elapsed() < Duration::from_secs(10), "{path}: {status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    drop(server);
    let server = Server::start_with(Path::new(&data), bytes.len() - 1);
    let refused = server.get(&path, &[]).await;
    assert!(!refused.status().is_success());
    assert!(
        refused.json::<Value>().await.unwrap()["detail"].as_str().unwrap().contains("a bundle")
    );
    drop(server);
    let server = Server::start(Path::new(&data));

    // Downloads store nothing; who asks for it has the file kept.
    let blobs = || {
        let mut find = Command::new("find");
        let found = find.args([&data, "-path", "*/blobs/*", "-type", "f"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().count()
    };
    let before = blobs();
    for (status, more) in [(201, 1), (200, 1)] {
        let kept = Client::new().post(format!("{}{path}", server.url)).send().await.unwrap();
        assert_eq!((kept.status().as_u16(), header(&kept, "location")), (status, path.clone()));
        let kept: Value = kept.json().await.unwrap();
        assert_eq!(kept["bytes"], bytes.len());
        assert_eq!(blobs(), before + more);
    }
    assert_eq!(header(&server.get(&path, &[]).await, "etag"), tag, "the same file");

    // Another service has never seen the matrix.
    let other = Server::start(&folder.path().join("other"));
    // A lookup asks for a plan of the server's device, which takes a moment to open.
    succeeded(&["ready", "--server", &other.url, "--wait", "60"]);
    let matrix_digest = tuned["plan"]["matrix"].as_str().unwrap();
    let lookup = format!("/v1/plans?matrix={matrix_digest}&op=spmm&n=8");
    assert_eq!(
        other.get(&lookup, &[]).await.json::<Value>().await.unwrap()["match"]["grade"],
        "none"
    );
    let imported = other.import(bytes.to_vec()).await;
    assert_eq!(
        (imported.status().as_u16(), header(&imported, "location")),
        (201, format!("/v1/plans/{id}"))
    );
    assert_eq!(imported.json::<Value>().await.unwrap()["id"], id);
    assert_eq!(other.import(bytes.to_vec()).await.status(), 200);
    let found = other.get(&lookup, &[]).await.json::<Value>().await.unwrap();
    assert_eq!((&found["match"]["grade"], &found["plan"]["id"]), (&json!("exact"), &json!(id)));
    // It hands on what it took in, although it cannot build it.
    assert_eq!(other.get(&path, &[]).await.bytes().await.unwrap(), bytes);
    let refused = other.get(&format!("{path}?values=external"), &[]).await;
    assert_eq!(refused.status(), 409);
    assert!(
        refused.json::<Value>().await.unwrap()["detail"]
            .as_str()
            .unwrap()
            .contains("upload it again")
    );

    for (garbage, expected) in [
        (b"not an archive".to_vec(), "not a ZIP archive"),
        (bytes[..bytes.len() / 2].to_vec(), "not a ZIP archive"),
    ] {
        let refused = other.import(garbage).await;
        assert_eq!(refused.status(), 422);
        let problem = refused.json::<Value>().await.unwrap();
        assert_eq!(problem["type"], "/problems/unreadable-bundle");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{problem}");
    }
    let mut flipped = bytes.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let refused = other.import(flipped).await;
    assert!(matches!(refused.status().as_u16(), 200 | 422), "{}", refused.status());

    let client = ["bundle", "import", &file, "--server", &other.url, "--json"];
    assert_eq!(succeeded(&client)["id"], id);
    let again = at("again.stplan");
    succeeded(&["bundle", "export", id, "-o", &again, "--server", &other.url]);
    assert_eq!(std::fs::read(&again).unwrap(), bytes);
    let folder = at("cpp");
    succeeded(&["bundle", "export", id, "--cpp", &folder, "--server", &other.url]);
    assert_eq!(std::fs::read(format!("{folder}/{id}.stplan")).unwrap(), bytes);
    for name in ["plan.hpp", "main.cpp", "CMakeLists.txt"] {
        assert!(Path::new(&folder).join(name).is_file(), "{name}");
    }

    // What a quota refuses takes no disk.
    let (poor, secret) = (at("poor"), at("poor.token"));
    let limit = format!("stored_bytes={}", bytes.len() - 1);
    let scopes = ["--name", "poor", "--scopes", "submit", "--limit", &limit];
    succeeded(&[&["token", "create", "--data", &poor, "-o", &secret][..], &scopes].concat());
    let server = Server::start(Path::new(&poor));
    let asked = Client::new().post(format!("{}/v1/bundles", server.url)).body(bytes.to_vec());
    let secret = std::fs::read_to_string(secret).unwrap();
    let refused = asked.bearer_auth(secret.trim()).send().await.unwrap();
    assert_eq!(refused.status(), 403);
    assert_eq!(refused.json::<Value>().await.unwrap()["quota"], "stored_bytes");
    let files = LocalBlobs::open(&Path::new(&poor).join("blobs")).unwrap();
    assert_eq!(files.all().await.unwrap(), []);
}

/// Its plan names any file it likes: there is no lowering that the importing service could compare it with.
#[tokio::test]
async fn a_plan_from_elsewhere_reads_no_file_that_it_did_not_bring() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (mine, theirs, data) = (at("mine.mtx"), at("theirs.mtx"), at("data"));
    succeeded(&["generate", "poisson2d:nx=12,ny=11,seed=3", "-o", &mine]);
    succeeded(&["generate", "poisson2d:nx=13,ny=11,seed=3", "-o", &theirs]);
    let tuned = succeeded(&[
        "tune", &mine, "--n", "8", "--device", "cpu", "--top-k", "1", "--data", &data, "--json",
    ]);
    let id = tuned["plan"]["id"].as_str().unwrap();
    let store = async |server: &Server| {
        let body = std::fs::read(&theirs).unwrap();
        let stored = Client::new().post(format!("{}/v1/matrices", server.url)).body(body);
        let stored: Value = stored.send().await.unwrap().json().await.unwrap();
        stored["digest"].as_str().unwrap().to_owned()
    };
    // The file of a matrix is named by its digest, which others may know.
    let digest = store(&Server::start(Path::new(&data))).await;
    {
        use sqlx::Connection as _;
        let database = format!("sqlite:{data}/sparsetune.db");
        let mut database = sqlx::SqliteConnection::connect(&database).await.unwrap();
        let launch = json!({"entry": "mine", "source": digest, "cubin": null, "grid": [1, 1, 1], "block": [1, 1, 1],
            "shared_bytes": 0, "arguments": []});
        let crafted =
            sqlx::query("UPDATE plans SET body = json_set(body, '$.launch', json(?)) WHERE id = ?")
                .bind(launch.to_string())
                .bind(id)
                .execute(&mut database)
                .await;
        assert_eq!(crafted.unwrap().rows_affected(), 1);
    }
    let from = Server::start(Path::new(&data));
    let path = format!("/v1/plans/{id}/blobs/{digest}");
    assert_eq!(from.get(&path, &[]).await.status(), 200);
    let crafted = from.get(&format!("/v1/plans/{id}/bundle"), &[]).await;
    assert_eq!(crafted.status(), 200);
    let to = Server::start(&folder.path().join("to"));
    assert_eq!(store(&to).await, digest);
    assert_eq!(to.import(crafted.bytes().await.unwrap().to_vec()).await.status(), 201);
    for header in [("accept", "*/*"), ("if-none-match", "*")] {
        assert_eq!(to.get(&path, &[header]).await.status(), 404);
    }
    drop(to);

    // Many downloads at once, each of which reads what the plan brought before it builds: none waits for what another holds.
    let to = Server::start(&folder.path().join("to"));
    let upload = async |body: Vec<u8>| {
        let asked = Client::new().post(format!("{}/v1/matrices", to.url)).body(body);
        asked.timeout(Duration::from_secs(60)).send().await.unwrap().status().as_u16()
    };
    assert_eq!(upload(std::fs::read(&mine).unwrap()).await, 201);
    let path = format!("/v1/plans/{id}/bundle?values=external");
    let all = futures_util::future::join_all((0..8).map(|_| to.get(&path, &[])));
    let all = tokio::time::timeout(Duration::from_secs(60), all).await.expect("they end");
    assert!(all.iter().all(|answer| answer.status() == 200), "{all:?}");
    assert_eq!(upload(std::fs::read(&theirs).unwrap()).await, 200);

    // A list of members is refused before it takes memory, whatever it says of its length.
    let record = [&b"PK\x01\x02"[..], &[0; 42]].concat();
    let mut many = record.repeat(1_000_000);
    let bytes = many.len() as u32;
    many.extend_from_slice(b"PK\x05\x06\0\0\0\0\x05\0\x05\0");
    many.extend_from_slice(&bytes.to_le_bytes());
    many.extend_from_slice(&[0; 6]);
    let refused = to.import(many).await;
    assert_eq!(refused.status(), 422);
    let problem = refused.json::<Value>().await.unwrap();
    assert_eq!(problem["type"], "/problems/unreadable-bundle", "{problem}");
}
