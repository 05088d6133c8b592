//! Puts devices and workers together with the server of `serve.rs`: what `serve`, `worker`, `tune` and `quickstart`
//! stand on.

use super::config::Config;
use super::logging;
use super::serve::{self, ServeArgs, WorkerLoops};
use crate::domain::DeviceId;
use crate::engine::cuda;
use crate::pool::{Deadlines, Evaluator, EvaluatorSpec};
use crate::service::Service;
use crate::service::tuning::{Measuring, Worker};
use anyhow::bail;
use futures_util::FutureExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// `sparsetune serve`: HTTP and a worker for each device, until a signal.
pub async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = args.config()?;
    let export = logging::install(&config.log, &config.telemetry)?;
    let shutdown = serve::stop_on_signals()?;
    let (workers, opening) = workers(&config)?;
    let verdict = tokio::spawn(opening.verdict_or_stop(shutdown.clone()));
    let served =
        serve::serve(&config, shutdown, |service, stop| workers.loops(service, stop)).await;
    export.finish().await;
    served?;
    startup_result(verdict).await?;
    Ok(ExitCode::SUCCESS)
}

/// The result of opening the devices, as far as it is known. A server that has ended waits for none: a device that hangs while it is opened
/// holds its worker's end of the channel for as long.
async fn startup_result(verdict: JoinHandle<anyhow::Result<()>>) -> anyhow::Result<()> {
    verdict.abort();
    match verdict.await {
        Err(error) if error.is_cancelled() => Ok(()),
        startup_result => startup_result?,
    }
}

/// The workers that a configuration asks for, not yet started.
pub struct Workers {
    members: Vec<EvaluatorSpec>,
    tx: mpsc::UnboundedSender<Opened>,
}

/// What became of opening a device.
struct Opened {
    device: DeviceId,
    error: Option<String>,
}

/// Waits for the devices to open.
pub struct Opening {
    wanted: usize,
    /// The devices were found, not named: one that does not work is left out.
    automatic: bool,
    rx: mpsc::UnboundedReceiver<Opened>,
}

/// Looks for the devices; each gets an evaluator and a worker.
pub fn workers(config: &Config) -> anyhow::Result<(Workers, Opening)> {
    let members = devices(config)
        .iter()
        .map(|device| evaluator_spec(config, device))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (tx, rx) = mpsc::unbounded_channel();
    let automatic = config.devices.r#use.iter().any(|name| name == "auto");
    let opening = Opening { wanted: members.len(), automatic, rx };
    Ok((Workers { members, tx }, opening))
}

impl Workers {
    /// Each opens its device, then works until it is told to stop.
    pub fn loops(self, service: &Service, stop: &CancellationToken) -> WorkerLoops {
        let Self { members, tx } = self;
        let one = |spec: EvaluatorSpec| {
            let (service, stop, tx) = (service.clone(), stop.clone(), tx.clone());
            // From before any of them opens: the process is not ready while one is still to come.
            let coming = service.opening(spec.device.clone());
            async move {
                let device = spec.device.clone();
                let opening = Worker::open(service, Evaluator::new(spec), Measuring::default());
                let Some(opened) = stop.run_until_cancelled(opening).await else { return };
                drop(coming);
                let error = opened.as_ref().err().map(ToString::to_string);
                // Nobody listens once the startup result is known; the log has it too.
                let _ = tx.send(Opened { device: device.clone(), error });
                match opened {
                    Ok(worker) => worker.run(stop).await,
                    Err(error) => tracing::error!(%device, %error, "the device is not worked on"),
                }
            }
            .boxed()
        };
        members.into_iter().map(one).collect()
    }
}

impl Opening {
    /// Waits until every device is open or has failed. An error when one that was named failed, or all did.
    pub async fn verdict(mut self) -> anyhow::Result<()> {
        let mut open = 0;
        for _ in 0..self.wanted {
            // The senders are gone when the workers were told to stop first.
            let Some(Opened { device, error }) = self.rx.recv().await else { return Ok(()) };
            match error {
                None => open += 1,
                Some(error) if !self.automatic => bail!("device {device}: {error}"),
                Some(_) => {}
            }
        }
        if open == 0 && self.wanted > 0 {
            bail!("no device could be opened; `sparsetune doctor` says what is missing");
        }
        Ok(())
    }

    async fn verdict_or_stop(self, stop: CancellationToken) -> anyhow::Result<()> {
        let verdict = self.verdict().await;
        if verdict.is_err() {
            stop.cancel();
        }
        verdict
    }
}

/// The devices to work on: those listed, or every CUDA device that the driver shows and the CPU. The driver is asked
/// for names only; no context is opened in this process.
pub fn devices(config: &Config) -> Vec<DeviceId> {
    let listed = &config.devices.r#use;
    if !listed.iter().any(|name| name == "auto") {
        return listed.iter().map(|name| DeviceId(name.clone())).collect();
    }
    let found = cuda::probe::devices(&library_paths(config)).into_iter().map(|device| device.id);
    found.chain([DeviceId("cpu".to_owned())]).collect()
}

/// CUDA libraries named by the configuration, which win over those that are found.
pub fn library_paths(config: &Config) -> Vec<PathBuf> {
    let evaluator = &config.evaluator;
    let named = [evaluator.cuda(), evaluator.nvrtc(), evaluator.cusparse()];
    named.into_iter().flatten().map(Path::to_owned).collect()
}

pub fn evaluator_spec(config: &Config, device: &DeviceId) -> anyhow::Result<EvaluatorSpec> {
    let mut spec = EvaluatorSpec::of_this_binary(device.clone(), &device.0)?
        .arg("--cubin-cache")
        .arg(config.data.dir.join("cubins"));
    for path in library_paths(config) {
        spec = spec.arg("--library-path").arg(path);
    }
    let seconds = Duration::from_secs_f64;
    let evaluator = &config.evaluator;
    if evaluator.allow_hostile {
        spec = spec.arg("--allow-hostile");
    }
    spec.deadlines = Deadlines {
        open: seconds(evaluator.open_s),
        load: seconds(evaluator.load_s),
        compile: seconds(evaluator.compile_s),
        verify: seconds(evaluator.measure_s),
        time: seconds(evaluator.measure_s),
        ..Deadlines::default()
    };
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::{Opened, Opening, startup_result};
    use crate::domain::DeviceId;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn a_server_that_has_ended_waits_for_no_device() {
        let (tx, rx) = mpsc::unbounded_channel();
        let opening = Opening { wanted: 1, automatic: false, rx };
        let stop = CancellationToken::new();
        let verdict = tokio::spawn(opening.verdict_or_stop(stop.clone()));
        tokio::task::yield_now().await;
        let ended =
            tokio::time::timeout(std::time::Duration::from_secs(10), startup_result(verdict)).await;
        assert!(ended.unwrap().is_ok());
        drop(tx);
    }

    #[tokio::test]
    async fn a_verdict_that_ended_the_server_is_told() {
        let (tx, rx) = mpsc::unbounded_channel();
        let opening = Opening { wanted: 1, automatic: false, rx };
        let stop = CancellationToken::new();
        let verdict = tokio::spawn(opening.verdict_or_stop(stop.clone()));
        let error = Some("it is on fire".to_owned());
        tx.send(Opened { device: DeviceId("cuda:0".to_owned()), error }).unwrap();
        stop.cancelled().await;
        let error = startup_result(verdict).await.unwrap_err();
        assert_eq!(error.to_string(), "device cuda:0: it is on fire");
    }
}
