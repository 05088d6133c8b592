//! `sparsetune doctor`: reports devices, libraries and versions, what is missing, and how to install it.

mod advice;
mod fence;

use super::config::Config;
use super::{assemble, exposed, say, show};
use crate::domain::{Device, DeviceId};
use crate::engine::cuda::probe::{LibraryReport, probe};
use crate::engine::libraries::Library;
use crate::pool::Evaluator;
use crate::store::BlobPlace;
use anyhow::Context;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;
use toml::Value;

#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Configuration file; libraries named there are tried first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder, whose permissions are looked at
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl DoctorArgs {
    fn configured(&self) -> anyhow::Result<Config> {
        let mut flags: Vec<(&str, Value)> = Vec::new();
        if let Some(folder) = &self.data {
            let folder = folder.to_str().context("--data: the folder's name is not UTF-8")?;
            flags.push(("data.dir", folder.into()));
        }
        Ok(Config::load(self.config.as_deref(), &flags)?)
    }
}

/// A device that was opened by an evaluator, as by a worker, or the reason why it could not be opened.
struct Tried {
    id: DeviceId,
    found: Result<Device, String>,
}

/// Prints the report; missing parts are findings, not failures.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    // In a temporary folder, since nothing is kept.
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let data = folder.path().to_str().context("the temporary folder's name is not UTF-8")?;
    let configured = args.configured()?;
    let exposed = exposed::sentences(&configured, args.config.as_deref());
    let blobs = super::on_one_core(blobs(&configured))?;
    let config = Config::load(args.config.as_deref(), &[("data.dir", Value::from(data))])?;
    let probe = probe(&assemble::library_paths(&config));
    let devices = super::on_one_core(try_devices(&config))?;
    let fence = fence::attempts(&config);
    if args.json {
        let newer = advice::newer(&probe);
        let libraries = probe.libraries.iter();
        let libraries: Vec<_> = libraries.map(|report| library_json(report, &newer)).collect();
        let devices: Vec<_> = devices.iter().map(device_json).collect();
        say(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "libraries": libraries,
            "devices": devices,
            "device_problem": probe.device_problem,
            "blobs": blobs.as_ref().map(|(place, found)| json!({
                "place": place, "works": found.is_ok(), "problem": found.as_ref().err(),
            })),
            "exposed": exposed,
            "fence": {
                "extent": config.evaluator.fence.name(),
                "attempts": fence.as_ref().ok(),
                "problem": fence.as_ref().err().map(|error| format!("{error:#}")),
            },
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("sparsetune {}\n", env!("CARGO_PKG_VERSION")))?;
    say(format_args!("{}\n", libraries(&probe.libraries)))?;
    say(device_table(&devices))?;
    say(format_args!("\n{}", fence::sentence(config.evaluator.fence.name(), &fence)))?;
    if let Some(problem) = &probe.device_problem {
        say(format_args!("\nThe driver is installed, but reports no devices: {problem}"))?;
    }
    let others: String = probe.libraries.iter().map(others).collect();
    if !others.is_empty() {
        say(others)?;
    }
    if let Some(sentence) = advice::newer(&probe) {
        say(format_args!("\n{}: {sentence}", Library::Cusparse.name()))?;
    }
    match &blobs {
        None => {}
        Some((place, Ok(()))) => say(format_args!("\nblobs: {place} does what is needed"))?,
        Some((place, Err(problem))) => {
            say(format_args!("\nblobs: {place} does not work: {problem}"))?
        }
    }
    for found in &exposed {
        say(format_args!("\n{found}"))?;
    }
    let missing = probe.libraries.iter().filter(|report| report.found.is_err());
    for report in missing {
        say(format_args!("\n{}: {}", report.library.name(), remedy(report.library)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The bucket of the blobs and what is wrong with it, if they are in one. Nothing is taken for its own there.
async fn blobs(config: &Config) -> anyhow::Result<Option<(String, Result<(), String>)>> {
    let place = config.blobs();
    if !matches!(place, BlobPlace::Bucket(_)) {
        return Ok(None);
    }
    let opened = place.open().await;
    Ok(Some((place.to_string(), opened.map(drop).map_err(|error| error.to_string()))))
}

async fn try_devices(config: &Config) -> anyhow::Result<Vec<Tried>> {
    let mut tried = Vec::new();
    for id in assemble::devices(config) {
        let mut evaluator = Evaluator::new(assemble::evaluator_spec(config, &id)?);
        let found = evaluator.open(&CancellationToken::new()).await;
        evaluator.close().await;
        tried.push(Tried { id, found: found.map_err(|error| error.to_string()) });
    }
    Ok(tried)
}

fn libraries(reports: &[LibraryReport]) -> String {
    let mut table = show::table(&["library", "version", "found"]);
    for report in reports {
        let name = report.library.name();
        match &report.found {
            Ok(facts) => {
                let named = if facts.named { " (named by the configuration)" } else { "" };
                let found = format!("{}{named}", facts.path.display());
                table.add_row([name, &facts.version, &found])
            }
            Err(error) => table.add_row([name, "missing", &error.to_string()]),
        };
    }
    table.to_string()
}

/// A line for each copy that was passed over; nothing if there is none.
fn others(report: &LibraryReport) -> String {
    let lines = report.passed_over.iter().map(|passed| {
        let version = passed.version.as_deref().unwrap_or("of unknown version");
        let (name, file) = (report.library.name(), passed.file.display());
        format!("\nnot used: {name} {version}, {file}: {}", passed.reason)
    });
    lines.collect()
}

fn device_table(devices: &[Tried]) -> String {
    let mut table = show::table(&["device", "name", "", "copy GB/s", "vendor library", "software"]);
    for Tried { id, found } in devices {
        match found {
            Ok(device) => table.add_row([
                id.to_string(),
                device.name.clone(),
                format!("{}, {} units", device.compute_capability, device.multiprocessors),
                format!("{:.1}", device.copy_gbps),
                vendor(device),
                format!("{}; {}", device.driver, device.compiler),
            ]),
            Err(error) => table.add_row([id.to_string(), format!("does not work: {error}")]),
        };
    }
    table.to_string()
}

/// The library with which kernels are compared on the device, and where it was opened from.
fn vendor(device: &Device) -> String {
    let name = device.vendor.clone().unwrap_or_else(|| "none".to_owned());
    match &device.vendor_file {
        Some(file) => format!("{name} ({}, {})", file.version, file.path),
        None => name,
    }
}

fn library_json(report: &LibraryReport, newer: &Option<String>) -> serde_json::Value {
    let mut told = match &report.found {
        Ok(facts) => json!({
            "name": report.library.name(), "found": true, "version": facts.version, "path": facts.path,
            "named": facts.named,
        }),
        Err(error) => json!({
            "name": report.library.name(), "found": false,
            "problem": error.to_string(), "remedy": remedy(report.library),
        }),
    };
    let others = report.passed_over.iter().map(
        |passed| json!({"path": passed.file, "version": passed.version, "reason": passed.reason}),
    );
    told["not_used"] = others.collect();
    if let (Library::Cusparse, Some(sentence)) = (report.library, newer) {
        told["advice"] = json!(sentence);
    }
    told
}

fn device_json(tried: &Tried) -> serde_json::Value {
    match &tried.found {
        Ok(device) => json!({
            "id": tried.id, "works": true, "kind": device.kind, "name": device.name, "class": device.class(),
            "compute_capability": device.compute_capability, "copy_gbps": device.copy_gbps,
            "driver": device.driver, "compiler": device.compiler, "vendor": device.vendor,
            "vendor_file": device.vendor_file,
        }),
        Err(error) => json!({"id": tried.id, "works": false, "problem": error}),
    }
}

/// What does not work without the library, and how to install it.
fn remedy(library: Library) -> &'static str {
    match library {
        Library::Driver => {
            "without it no GPU can be used, only the CPU. Install NVIDIA's driver so that nvidia-smi lists \
             the GPU; a container needs `--gpus all` and the NVIDIA Container Toolkit on its host."
        }
        Library::Nvrtc => {
            "without it no kernel can be compiled for a GPU. `pip install nvidia-cuda-nvrtc`, the toolkit's package \
             cuda-nvrtc, or a path in evaluator.nvrtc."
        }
        Library::Cusparse => {
            "without it plans for GPUs have no vendor to compare with. `pip install nvidia-cusparse`, the toolkit's \
             package libcusparse, or a path in evaluator.cusparse."
        }
        Library::Cublas => {
            "without it nearly dense matrices are not tried as dense products. `pip install nvidia-cublas`, the \
             toolkit's package libcublas, or a path in evaluator.cublas."
        }
        Library::Mkl => {
            "without it plans for the CPU are compared with plain kernels instead of MKL's. `pip install mkl`, oneAPI, or a path \
             in evaluator.mkl."
        }
        Library::Nvml => {
            "without it clock rates and throttling of a GPU are not monitored. It comes with the driver; a container needs the \
             driver capability `utility`."
        }
    }
}
