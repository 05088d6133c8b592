//! Combines devices and workers with the server of `serve.rs`, for `serve`, `worker`, `tune` and `quickstart`.

use super::config::Config;
use super::logging;
use super::serve::{self, ServeArgs};
use crate::domain::DeviceId;
use crate::engine::cuda;
use crate::pool::{Deadlines, EvaluatorSpec};
use crate::tuner::{Opening, OpeningError, Workers};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinHandle;

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

/// The result of opening the devices, as far as it is known. After the server has ended it must not be awaited, since a
/// device that hangs during opening keeps its worker's end of the channel open.
async fn startup_result(verdict: JoinHandle<Result<(), OpeningError>>) -> anyhow::Result<()> {
    verdict.abort();
    match verdict.await {
        Err(error) if error.is_cancelled() => Ok(()),
        startup_result => Ok(startup_result??),
    }
}

/// Finds the devices; each gets an evaluator and a worker.
pub fn workers(config: &Config) -> anyhow::Result<(Workers, Opening)> {
    let members = devices(config)
        .iter()
        .map(|device| evaluator_spec(config, device))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let automatic = config.devices.r#use.iter().any(|name| name == "auto");
    Ok(Workers::new(members, automatic))
}

/// The devices to work on: those listed, or all CUDA devices that the driver reports and the CPU. Only names are
/// queried; no context is opened in this process.
pub fn devices(config: &Config) -> Vec<DeviceId> {
    let listed = &config.devices.r#use;
    if !listed.iter().any(|name| name == "auto") {
        return listed.iter().map(|name| DeviceId(name.clone())).collect();
    }
    let found = cuda::probe::devices(&library_paths(config)).into_iter().map(|device| device.id);
    found.chain([DeviceId("cpu".to_owned())]).collect()
}

/// Vendors' libraries named by the configuration, which take precedence over those found; each path with the library that it is
/// named for, as an evaluator takes them.
pub fn library_paths(config: &Config) -> Vec<PathBuf> {
    let named = config.evaluator.libraries().into_iter();
    let named = named.filter_map(|(key, path)| path.map(|path| (key, path)));
    named
        .map(|(key, path)| {
            let mut place = OsString::from(format!("{key}="));
            place.push(path);
            PathBuf::from(place)
        })
        .collect()
}

pub fn evaluator_spec(config: &Config, device: &DeviceId) -> anyhow::Result<EvaluatorSpec> {
    let mut spec = EvaluatorSpec::of_this_binary(device.clone(), &device.0)?
        .arg("--cubin-cache")
        .arg(config.data.dir.join("cubins"))
        .fenced(config.evaluator.fence.name(), &config.evaluator.user, &config.blobs().exports());
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
    use super::startup_result;
    use crate::tuner::OpeningError;
    use std::future::pending;

    #[tokio::test]
    async fn a_server_that_has_ended_does_not_wait_for_devices() {
        let verdict = tokio::spawn(pending::<Result<(), OpeningError>>());
        tokio::task::yield_now().await;
        let ended =
            tokio::time::timeout(std::time::Duration::from_secs(10), startup_result(verdict)).await;
        assert!(ended.unwrap().is_ok());
    }

    #[tokio::test]
    async fn an_error_that_ended_the_server_is_its_result() {
        let verdict = tokio::spawn(async { Err(OpeningError::NoDevice) });
        while !verdict.is_finished() {
            tokio::task::yield_now().await;
        }
        let error = startup_result(verdict).await.unwrap_err();
        assert_eq!(error.to_string(), OpeningError::NoDevice.to_string());
    }
}
