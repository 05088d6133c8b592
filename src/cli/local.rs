//! A server of one's own for the length of a command: on loopback, on a free port, behind a token nobody else knows.

use super::INTERRUPTED;
use super::assemble;
use super::client::Client;
use super::config::Config;
use super::serve::{self, Running};
use anyhow::Context;
use figment::value::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long an interrupted job has to end, and the time between two looks at it.
const CANCEL: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// A running server and a client that knows its token.
pub struct Local {
    pub client: Client,
    shutdown: CancellationToken,
    running: Running,
    /// Removed when dropped, after everything that writes to it has ended.
    _folder: Option<tempfile::TempDir>,
}

impl Local {
    /// Serves `data`, or a temporary folder, with one device or (`auto`) with all of them; returns once they are open.
    pub async fn start(data: Option<PathBuf>, device: &str) -> anyhow::Result<Self> {
        let folder = match &data {
            Some(_) => None,
            None => {
                let folder = tempfile::Builder::new().prefix("sparsetune-").tempdir();
                Some(folder.context("cannot make a temporary folder")?)
            }
        };
        let data = data.as_deref().or(folder.as_ref().map(|folder| folder.path()));
        let token = fresh_token();
        let config = config(data.context("there is no folder to work in")?, device, &token)?;
        let shutdown = CancellationToken::new();
        let (workers, opening) = assemble::workers(&config)?;
        let running =
            serve::start(&config, shutdown.clone(), |service, stop| workers.loops(service, stop))
                .await?;
        let client = Client::new(&format!("http://{}", running.address), Some(token))?;
        let local = Self { client, shutdown, running, _folder: folder };
        match opening.verdict().await {
            Ok(()) => Ok(local),
            Err(error) => {
                local.stop().await;
                Err(error)
            }
        }
    }

    /// Does `work`, which says what job it has submitted, and ends the server. Ctrl-c cancels that job first: in a folder
    /// that stays it would otherwise be taken up again by the next server.
    pub async fn carry<F>(self, work: F) -> anyhow::Result<ExitCode>
    where
        F: AsyncFnOnce(&Client, &OnceLock<String>) -> anyhow::Result<()>,
    {
        let job = OnceLock::new();
        let done = tokio::select! {
            done = work(&self.client, &job) => done.map(|()| ExitCode::SUCCESS),
            _ = tokio::signal::ctrl_c() => {
                eprintln!("sparsetune: interrupted");
                if let Some(id) = job.get() {
                    self.cancel(id).await;
                }
                Ok(ExitCode::from(INTERRUPTED))
            }
        };
        self.stop().await;
        done
    }

    /// Until the job has ended: a server that stops meanwhile would give it back to the queue.
    async fn cancel(&self, id: &str) {
        let cancelled = async {
            let mut job = self.client.cancel(id).await?;
            while !job.view.state.is_final() {
                tokio::time::sleep(PAUSE).await;
                job = self.client.job(id).await?;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(CANCEL, cancelled).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(job = id, %error, "the job was not cancelled"),
            Err(_) => tracing::warn!(job = id, "the job did not end in time"),
        }
    }

    /// Ends the server, and removes the folder if it was temporary.
    async fn stop(self) {
        self.shutdown.cancel();
        self.running.finished().await;
    }
}

fn config(data: &Path, device: &str, token: &str) -> anyhow::Result<Config> {
    let data = data.to_str().context("the data folder's name is not UTF-8")?;
    let flags: [(&str, Value); 6] = [
        ("server.listen", "127.0.0.1:0".into()),
        ("server.tokens", vec![Value::from(token)].into()),
        ("data.dir", data.into()),
        ("data.store", "".into()),
        ("data.blobs", "".into()),
        ("devices.use", vec![Value::from(device)].into()),
    ];
    Ok(Config::load(None, &flags)?)
}

/// 148 random bits: each UUIDv7 holds 74.
fn fresh_token() -> String {
    let parts = [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()];
    parts.map(|part| part.simple().to_string()).concat()
}
