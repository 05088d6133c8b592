//! A server of one's own for the length of a command: on loopback, on a free port, behind a token nobody else knows.

use super::assemble::{Parts, Running};
use super::client::Client;
use super::config::Config;
use anyhow::Context;
use figment::value::Value;
use std::path::PathBuf;

/// What a command may want to be different.
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// Folder to keep plans in; a temporary one, removed at the end, when absent.
    pub data: Option<PathBuf>,
    /// The device asked for: only that one is opened, unless it is `auto`.
    pub device: String,
}

/// A running server and a client that knows its token.
pub struct Local {
    pub client: Client,
    running: Running,
    /// Removed when dropped, after everything that writes to it has ended.
    _folder: Option<tempfile::TempDir>,
}

impl Local {
    pub async fn start(options: &LocalOptions) -> anyhow::Result<Self> {
        let folder = match &options.data {
            Some(_) => None,
            None => Some(
                tempfile::Builder::new()
                    .prefix("sparsetune-")
                    .tempdir()
                    .context("cannot make a temporary folder")?,
            ),
        };
        let data = options.data.as_deref().or(folder.as_ref().map(|folder| folder.path()));
        let data = data.context("there is no folder to work in")?;
        let token = fresh_token();
        let config = Config::load(
            None,
            &[
                ("server.listen", Value::from("127.0.0.1:0")),
                ("server.tokens", Value::from(vec![token.clone()])),
                ("data.dir", Value::from(data.to_string_lossy().into_owned())),
                ("devices.use", Value::from(vec![options.device.clone()])),
            ],
        )?;
        let running = Running::start(&config, Parts::Whole).await?;
        let address = running.address.context("the server has no address")?;
        let client = Client::new(&format!("http://{address}"), Some(token))?;
        Ok(Self { client, running, _folder: folder })
    }

    pub async fn stop(self) {
        self.running.stop().await;
    }
}

/// 148 random bits: each UUIDv7 holds 74.
fn fresh_token() -> String {
    let parts = [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()];
    parts.map(|part| part.simple().to_string()).concat()
}
