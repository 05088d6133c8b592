//! An S3 server for tests: s3s-fs, a program that keeps buckets in a folder, on a port of its own.
//!
//! `SPARSETUNE_S3_SERVER` names it; else it is looked for where `scripts/test` installs it. Without it the tests fail, unless
//! `SPARSETUNE_TEST_WITHOUT_S3` is set.

use sparsetune::store::{BucketSettings, Secret};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub const BUCKET: &str = "bucket";
pub const PREFIX: &str = "some/prefix";
/// Set to leave out what needs the server. Continuous integration does not set it.
const WITHOUT: &str = "SPARSETUNE_TEST_WITHOUT_S3";
pub const KEY: &str = "AKIDOFTHETESTS";
pub const SECRET: &str = "a-secret-of-the-tests-alone";

pub struct S3Server {
    child: Child,
    pub address: String,
    pub folder: TempDir,
}

impl S3Server {
    /// `None` where the program is missing and what needs it is left out.
    pub fn start() -> Option<Self> {
        let Some(program) = program() else {
            assert!(
                std::env::var_os(WITHOUT).is_some(),
                "there is no s3s-fs: `scripts/test` installs it; set {WITHOUT}=1 to leave out what needs it"
            );
            eprintln!("left out, since {WITHOUT} is set");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let mut child = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", "0", "--access-key", KEY])
            .args(["--secret-key", SECRET])
            .arg(folder.path())
            .env("RUST_LOG", "s3s_fs=info")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("running at http://")?;
            Some(address.split(',').next().unwrap().trim().to_owned())
        });
        // It must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { child, address: address.unwrap(), folder })
    }

    /// Settings that reach it, directly or through something at another address, with copies in this folder.
    pub fn settings(&self, address: &str, cache: &Path) -> BucketSettings {
        let options = [
            ("aws_endpoint_url", format!("http://{address}")),
            ("aws_region", "us-east-1".to_owned()),
            ("aws_access_key_id", KEY.to_owned()),
            ("aws_secret_access_key", SECRET.to_owned()),
        ];
        BucketSettings {
            bucket: BUCKET.to_owned(),
            prefix: PREFIX.to_owned(),
            options: options.map(|(name, value)| (name.to_owned(), Secret(value))).to_vec(),
            allow_http: true,
            ca_file: None,
            timeout: Duration::from_secs(5),
            retry: Duration::from_secs(5),
            presign: true,
            cache: cache.to_owned(),
            cache_most: 256 << 20,
        }
    }

    /// The file of an object.
    pub fn object(&self, folder: &str, name: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(PREFIX).join(folder).join(name)
    }

    /// The names of the objects in a folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.object(folder, "")) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SPARSETUNE_S3_SERVER") {
        return Some(named.into());
    }
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/s3s-fs");
    installed.is_file().then_some(installed)
}
