//! `sparsetune bundle`: writes, verifies, runs and imports bundles, which are plans as files.

use super::client::Client;
use super::files::write_whole;
use super::local::Local;
use super::show::{right, table};
use super::{ServerArgs, say};
use crate::bundle::{Bundle, LoadedPlan, Opened, Pair, Place, cpp};
use crate::domain::bundle::{DenseOperand, Forward, UpdateValues};
use crate::domain::{DeviceKind, Digest};
use anyhow::Context;
use clap::Subcommand;
use serde_json::{Value, json};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// The bundle's own check failed.
const WRONG: u8 = 1;

#[derive(Debug, clap::Args)]
pub struct BundleArgs {
    #[command(subcommand)]
    action: Action,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the bundle of a plan
    Export {
        /// The plan's id; with --cpp also a bundle's file
        plan: String,
        /// The plan of the other triangle: both go into one file, in the order of their calls
        #[arg(long, value_name = "PLAN")]
        second: Option<String>,
        /// The file to write; PLAN.stplan in this folder by default
        #[arg(long, short)]
        output: Option<PathBuf>,
        /// Write what a C++ program needs into this folder: the bundle, a header and loader, a self-test, a CMake file
        #[arg(long, value_name = "DIR", conflicts_with = "output")]
        cpp: Option<PathBuf>,
        /// Leave the matrix's values out; the program that runs the plan supplies them
        #[arg(long)]
        without_values: bool,
        /// The data folder that holds the plan, instead of a server
        #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "token_file"])]
        data: Option<PathBuf>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Verify every hash and every statement of bundles
    Verify {
        /// The bundles' files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Load a bundle's plan, check it against the bundle's samples, and time its calls
    Run {
        /// The bundle's file
        file: PathBuf,
        /// cpu, or cuda:0 for the first GPU; by default what the plan is for
        #[arg(long)]
        device: Option<String>,
        /// Calls that are timed, from and to host memory
        #[arg(long, default_value_t = 20)]
        calls: u32,
        /// A CUDA library (driver, cuSPARSE, cuBLAS), or a folder with them, that takes precedence over the system's;
        /// cusparse=PATH and the like are for one library alone
        #[arg(long = "library-path", value_name = "PATH")]
        libraries: Vec<PathBuf>,
    },
    /// Store a bundle's plan on a server
    Import {
        /// The bundle's file
        file: PathBuf,
        /// The data folder to store it in, instead of a server
        #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "token_file"])]
        data: Option<PathBuf>,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub async fn run(args: BundleArgs) -> anyhow::Result<ExitCode> {
    let BundleArgs { action, json } = args;
    match action {
        Action::Export { plan, second, output, cpp, without_values, data, server } => {
            let wanted = Export { plan, second, output, cpp, without_values };
            at(&server, data, async |client| wanted.carry_out(client, json).await).await
        }
        Action::Verify { files } => verify(&files, json),
        Action::Run { file, device, calls, libraries } => {
            check_and_time(&file, device.as_deref(), calls, libraries, json)
        }
        Action::Import { file, data, server } => {
            at(&server, data, async |client| import(client, &file, json).await).await
        }
    }
}

/// Works with a server, or with a data folder through a server of its own.
async fn at<F>(server: &ServerArgs, data: Option<PathBuf>, work: F) -> anyhow::Result<ExitCode>
where
    F: AsyncFnOnce(&Client) -> anyhow::Result<ExitCode>,
{
    match data {
        None => work(&server.client()?).await,
        Some(data) => {
            let local = Local::without_devices(&data, None).await?;
            local.carry(async |local, _| work(&local.client).await).await
        }
    }
}

struct Export {
    plan: String,
    second: Option<String>,
    output: Option<PathBuf>,
    cpp: Option<PathBuf>,
    without_values: bool,
}

impl Export {
    async fn carry_out(&self, client: &Client, json: bool) -> anyhow::Result<ExitCode> {
        if let Some(folder) = &self.cpp {
            let opened = match Path::new(&self.plan) {
                file if file.is_file() && self.second.is_none() => Opened::open(file)?,
                _ => Opened::from_bytes(self.download(client).await?)?,
            };
            let name = opened.parts()[0].manifest().plan.0.clone();
            let files = match &opened {
                Opened::One(bundle) => cpp::export(bundle, &name, folder)?,
                Opened::Two(pair) => cpp::export_pair(pair, &name, folder)?,
            };
            say(match json {
                true => json!({ "files": files }).to_string(),
                false => format!("wrote {} files into {}", files.len(), folder.display()),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        let bytes = self.download(client).await?;
        let output = self.output.clone().unwrap_or_else(|| format!("{}.stplan", self.plan).into());
        write(&output, &bytes)?;
        say(match json {
            true => json!({ "file": output, "bytes": bytes.len(), "digest": Digest::of(&bytes) })
                .to_string(),
            false => format!("wrote {} ({} bytes)", output.display(), bytes.len()),
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn download(&self, client: &Client) -> anyhow::Result<Vec<u8>> {
        let plans = [Some(self.plan.as_str()), self.second.as_deref()];
        download(client, plans, self.without_values).await
    }
}

/// The bundle of a plan, or of two in one file.
pub async fn download(
    client: &Client,
    plans: [Option<&str>; 2],
    without_values: bool,
) -> anyhow::Result<Vec<u8>> {
    let mut files = Vec::new();
    for plan in plans.into_iter().flatten() {
        files.push(client.bundle(plan, without_values).await?);
    }
    let second = if files.len() > 1 { files.pop() } else { None };
    let first = files.pop().context("no plan is named")?;
    let Some(second) = second else { return Ok(first) };
    let [first, second] = [first, second].map(|file| Bundle::from_bytes(file).map(Arc::new));
    let mut file = Cursor::new(Vec::new());
    Pair::of(first?, second?)?.write(&mut file)?;
    Ok(file.into_inner())
}

/// Writes the file under another name first, so that a reader never sees a part of it.
pub fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_whole(path, |file| Ok(std::io::Write::write_all(file, bytes)?))
}

fn verify(files: &[PathBuf], json: bool) -> anyhow::Result<ExitCode> {
    let mut all = Vec::new();
    for file in files {
        let opened = Opened::open(file).with_context(|| file.display().to_string())?;
        match (&opened, json) {
            (Opened::One(bundle), true) => all.push(facts(bundle)),
            (Opened::Two(pair), true) => {
                all.push(json!({ "bytes": file.metadata()?.len(), "manifest": pair.summary() }));
            }
            (_, false) => {
                let parts = opened.parts().iter().map(|part| summary(part));
                let parts = parts.collect::<Vec<_>>().join("\n");
                say(format_args!("{}: intact\n{parts}", file.display()))?;
            }
        }
    }
    if json {
        say(Value::Array(all))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn facts(bundle: &Bundle) -> Value {
    json!({ "bytes": bundle.bytes().len(), "manifest": bundle.manifest() })
}

fn summary(bundle: &Bundle) -> String {
    let manifest = bundle.manifest();
    let mut rows = table(&["", ""]);
    let dense = |operand: &DenseOperand| {
        let DenseOperand { rows, cols, element, layout, .. } = operand;
        format!("{rows} x {cols} {} {layout}", element.name())
    };
    let program = match &manifest.forward {
        Forward::Cuda(cuda) => format!("{} launches on a GPU", cuda.steps.len()),
        Forward::Host(_) => "a kernel of sparsetune's library on the CPU".to_owned(),
        Forward::Vendor(vendor) => {
            format!("{} of {} {}", vendor.function, vendor.library, vendor.version)
        }
    };
    let update = match &manifest.update_values {
        UpdateValues::Gather(_) => "new values are put in place".to_owned(),
        UpdateValues::Host(host) => {
            format!("the host makes the arrays again ({:.1} ms)", host.milliseconds)
        }
        UpdateValues::Impossible { reason } => format!("none: {reason}"),
    };
    rows.add_row(["plan", &manifest.plan.0]);
    rows.add_row(["problem", &manifest.problem.to_string()]);
    rows.add_row(["matrix", &manifest.matrix.digest.to_string()]);
    rows.add_row(["candidate", &manifest.candidate.to_string()]);
    rows.add_row(["device", &manifest.target.name]);
    rows.add_row(["program", &program]);
    rows.add_row(["B", &dense(&manifest.call.b)]);
    rows.add_row(["C", &dense(&manifest.call.c)]);
    rows.add_row(["new values", &update]);
    rows.add_row(["size", &format!("{} bytes", bundle.bytes().len())]);
    rows.to_string()
}

fn check_and_time(
    file: &Path,
    device: Option<&str>,
    calls: u32,
    libraries: Vec<PathBuf>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let opened = Opened::open(file).with_context(|| file.display().to_string())?;
    let place = place(device, opened.parts()[0].manifest().target.kind, libraries)?;
    let loading = Instant::now();
    let plan = LoadedPlan::open(&opened, &place)?;
    let load_ms = loading.elapsed().as_secs_f64() * 1e3;
    let report = plan.check()?;
    let times = time(&plan, calls)?;
    let median = times.get(times.len() / 2).copied();
    let promised = match &opened {
        Opened::One(bundle) => bundle.manifest().promise.median_us,
        Opened::Two(pair) => pair.summary().promise.median_us,
    };
    if json {
        say(json!({
            "passed": report.passed(), "samples": report.samples, "worst": report.worst,
            "load_ms": load_ms, "median_us": median, "promised_us": promised,
            "warnings": plan.warnings(),
        }))?;
    } else {
        for warning in plan.warnings() {
            eprintln!("sparsetune: {warning}");
        }
        let mut rows = table(&["", ""]);
        let verdict = if report.passed() { "passed" } else { "FAILED" };
        let share = format!(
            "{verdict}: the worst of {} samples is at {:.3} of its error bound",
            report.samples, report.worst
        );
        rows.add_row(["check", &share]);
        rows.add_row(["loaded in", &format!("{load_ms:.1} ms")]);
        let us = |us: Option<f64>| {
            us.map_or_else(|| "not measured".to_owned(), |us| format!("{us:.1} us"))
        };
        rows.add_row(["a call from and to host memory", &us(median)]);
        rows.add_row(["the plan's time on its device", &us(promised)]);
        right(&mut rows, 2..2);
        say(rows)?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

fn place(device: Option<&str>, kind: DeviceKind, libraries: Vec<PathBuf>) -> anyhow::Result<Place> {
    match (device, kind) {
        (None, DeviceKind::Cpu) | (Some("cpu"), _) => Ok(Place::Host),
        (None, DeviceKind::Cuda) => Ok(Place::Cuda { ordinal: 0, libraries }),
        (Some(name), _) => {
            let ordinal = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
            let ordinal = ordinal.with_context(|| format!("`{name}` is neither cpu nor cuda:N"))?;
            Ok(Place::Cuda { ordinal, libraries })
        }
    }
}

/// Times calls in microseconds, from the shortest to the longest.
fn time(plan: &LoadedPlan, calls: u32) -> anyhow::Result<Vec<f64>> {
    let bytes =
        |operand: &DenseOperand| (operand.rows * operand.cols * operand.element.bytes()) as usize;
    // In 64-bit words, so that both are aligned to any element. Zeros are as fast as other numbers.
    let buffer = |operand: &DenseOperand| vec![0u64; bytes(operand).div_ceil(8)];
    let (b, mut c) = (buffer(&plan.call().b), buffer(&plan.call().c));
    let (b_bytes, c_bytes) = (bytes(&plan.call().b), bytes(&plan.call().c));
    let mut times = Vec::with_capacity(calls as usize);
    for _ in 0..calls {
        let started = Instant::now();
        let b = &bytemuck::cast_slice(&b)[..b_bytes];
        let c = &mut bytemuck::cast_slice_mut(&mut c)[..c_bytes];
        plan.run_on_host(b, c, 1.0, 0.0)?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

async fn import(client: &Client, file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let (plan, created) = client.import_bundle(file).await?;
    match json {
        true => say(plan.raw)?,
        false => {
            let what = if created { "stored" } else { "already there:" };
            say(format_args!("{what} plan {} of matrix {}", plan.view.id, plan.view.matrix))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
