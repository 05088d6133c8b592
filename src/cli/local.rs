//! A private server for the duration of a command: on loopback, on a free port, with a random token.

use super::INTERRUPTED;
use super::assemble;
use super::client::Client;
use super::config::Config;
use super::serve::{self, Running};
use crate::domain::{Caller, JobId, Namespace};
use crate::environment::random;
use crate::service::Service;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use toml::Value;

/// Time limit for an interrupted job to end, and the polling interval.
const CANCEL: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// The job or training to end if the command is interrupted.
#[derive(Debug, Default)]
pub struct InHand {
    id: Mutex<Option<String>>,
    /// Whether a job that is interrupted ends with the best so far, rather than with nothing.
    concludes: AtomicBool,
    /// Whether it was.
    concluded: AtomicBool,
    /// Whether it, or an earlier one, was.
    any_concluded: AtomicBool,
}

impl InHand {
    /// Sets the current job or training; earlier ones have ended, and an interruption that was spent on them was theirs.
    pub fn is(&self, id: &str) {
        self.concluded.store(false, Ordering::Relaxed);
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.to_owned());
    }

    /// Clears it: there is nothing to cancel.
    pub fn none(&self) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn id(&self) -> Option<String> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the first interruption end the job with the best so far; the second one cancels it.
    pub fn concludes(&self) {
        self.concludes.store(true, Ordering::Relaxed);
    }

    /// Whether nothing was concluded yet of what is current; from now on something was.
    fn is_first_interruption(&self) -> bool {
        self.any_concluded.store(true, Ordering::Relaxed);
        !self.concluded.swap(true, Ordering::Relaxed)
    }

    /// Whether an interruption has been spent in that way.
    pub fn concluded(&self) -> bool {
        self.any_concluded.load(Ordering::Relaxed)
    }
}

/// A running server and a client that knows its token.
pub struct Local {
    pub client: Client,
    /// In the namespace of the command.
    service: Service,
    shutdown: CancellationToken,
    running: Running,
    /// Removed on drop, after everything that writes to it has ended.
    _folder: Option<tempfile::TempDir>,
}

impl Local {
    /// Serves `data` or a temporary folder, with one device or (`auto`) with all; returns once they are open.
    pub async fn start(
        data: Option<PathBuf>,
        device: &str,
        namespace: Option<&Namespace>,
    ) -> anyhow::Result<Self> {
        let folder = match &data {
            Some(_) => None,
            None => {
                let folder = tempfile::Builder::new().prefix("sparsetune-").tempdir();
                Some(folder.context("cannot create a temporary folder")?)
            }
        };
        // Below the temporary folder, which others may enter, and made for its owner alone.
        let data = data.or(folder.as_ref().map(|folder| folder.path().join("data")));
        let token = fresh_token()?;
        let data = data.context("there is no folder to work in")?;
        Self::serve(&config(&data, &[device], &token, namespace)?, token, folder).await
    }

    /// Serves an existing folder, without devices.
    pub async fn without_devices(
        data: &Path,
        namespace: Option<&Namespace>,
    ) -> anyhow::Result<Self> {
        let token = fresh_token()?;
        let config = config(data, &[], &token, namespace)?;
        let store = config.data.store();
        anyhow::ensure!(
            !store.is_missing(),
            "{}: nothing has been recorded here: there is no {store}",
            data.display()
        );
        Self::serve(&config, token, None).await
    }

    async fn serve(
        config: &Config,
        token: String,
        folder: Option<tempfile::TempDir>,
    ) -> anyhow::Result<Self> {
        let shutdown = CancellationToken::new();
        let (workers, opening) = assemble::workers(config)?;
        let running =
            serve::start(config, shutdown.clone(), |service, stop| workers.loops(service, stop))
                .await?;
        let client = Client::new(&format!("http://{}", running.address), Some(token))?;
        let owner = Caller::owner(None, config.server.namespace.clone());
        let service = running.service.on_behalf_of(&owner);
        let local = Self { client, service, shutdown, running, _folder: folder };
        match opening.verdict().await {
            Ok(()) => Ok(local),
            Err(error) => {
                local.stop().await;
                Err(error.into())
            }
        }
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Starts to run trainings in the background.
    pub fn train(&self) {
        self.running.train();
    }

    /// Runs `work`, which registers the job it submits, and stops the server. Ctrl-C first cancels that job, because in
    /// a permanent folder it would otherwise be resumed by the next server.
    pub async fn carry<F>(self, work: F) -> anyhow::Result<ExitCode>
    where
        F: AsyncFnOnce(&Self, &InHand) -> anyhow::Result<ExitCode>,
    {
        let job = InHand::default();
        let done = {
            let mut work = std::pin::pin!(work(&self, &job));
            loop {
                tokio::select! {
                    done = &mut work => break done,
                    _ = tokio::signal::ctrl_c() => {}
                }
                if self.concludes(&job).await {
                    continue;
                }
                eprintln!("sparsetune: interrupted");
                if let Some(id) = job.id() {
                    self.cancel(&id).await;
                }
                break Ok(ExitCode::from(INTERRUPTED));
            }
        };
        self.stop().await;
        done
    }

    /// Has the job end with the best so far, if the command asked for that, something has been measured, and this is the first
    /// interruption.
    async fn concludes(&self, job: &InHand) -> bool {
        let Some(id) = job.id().filter(|_| job.concludes.load(Ordering::Relaxed)) else {
            return false;
        };
        if !job.is_first_interruption() {
            return false;
        }
        let measured = self.client.job(&id).await.is_ok_and(|job| job.view.best.is_some());
        if measured {
            eprintln!(
                "sparsetune: interrupted: the best so far is timed again and is the plan; interrupt once more to discard it"
            );
            self.service.conclude(&JobId(id));
        }
        measured
    }

    /// Cancels the job and waits for its end, because a server that stops before would return it to the queue; and the job that one for
    /// both triangles has submitted as it ended.
    async fn cancel(&self, id: &str) {
        let cancelled = async {
            self.cancel_one(id).await?;
            match self.client.job(id).await.map(|job| job.view) {
                Ok(job) if job.then.is_some() => match &job.follow_up {
                    Some(second) => self.cancel_one(&second.0).await,
                    None => Ok(()),
                },
                // It is a training, or there is no more to it.
                _ => Ok(()),
            }
        };
        match tokio::time::timeout(CANCEL, cancelled).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(job = id, %error, "the job was not cancelled"),
            Err(_) => tracing::warn!(job = id, "the job did not end in time"),
        }
    }

    async fn cancel_one(&self, id: &str) -> anyhow::Result<()> {
        let mut state = self.client.cancel(id).await?;
        while !state.is_final() {
            tokio::time::sleep(PAUSE).await;
            state = self.client.state(id).await?;
        }
        Ok(())
    }

    /// Stops the server, and removes the folder if it was temporary.
    async fn stop(self) {
        self.shutdown.cancel();
        self.running.finished_for_good().await;
    }
}

fn config(
    data: &Path,
    devices: &[&str],
    token: &str,
    namespace: Option<&Namespace>,
) -> anyhow::Result<Config> {
    let data = data.to_str().context("the data folder's name is not UTF-8")?;
    let devices: Vec<Value> = devices.iter().map(|device| Value::from(*device)).collect();
    let mut flags: Vec<(&str, Value)> = vec![
        ("server.listen", "127.0.0.1:0".into()),
        ("server.tokens", vec![Value::from(token)].into()),
        ("data.dir", data.into()),
        ("data.store", "".into()),
        ("data.blobs", "".into()),
        ("devices.use", devices.into()),
        // A server or another command may use the folder as well.
        ("worker.name", format!("command/{}", uuid::Uuid::now_v7()).into()),
        // Background work would interfere with the command.
        ("learning.retrain_trials", 0.into()),
    ];
    // Else that of the environment, or the default one.
    flags.extend(namespace.map(|namespace| ("server.namespace", namespace.as_str().into())));
    Ok(Config::load(None, &flags)?)
}

fn fresh_token() -> anyhow::Result<String> {
    let secret = random::secret().context("no random bytes")?;
    Ok(crate::domain::Digest::from_bytes(secret).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The job of the other triangle follows: the first interruption of it ends it with its best so far, too.
    #[test]
    fn an_interruption_is_spent_on_one_job() {
        let job = InHand::default();
        job.concludes();
        job.is("first");
        assert!(!job.concluded());
        assert!(job.is_first_interruption() && !job.is_first_interruption());
        job.is("second");
        assert!(job.is_first_interruption() && !job.is_first_interruption());
        assert!(job.concluded(), "and the command says so at its end");
        job.none();
        assert!(job.id().is_none());
    }
}
