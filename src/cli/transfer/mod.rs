//! `sparsetune export` and `import`: from one store to another, and to the formats of other tuners.

mod foreign;
mod kernel_tuner;
mod t4;

use super::show::table;
use super::token::folder;
use super::{ServerArgs, say, serve};
use crate::domain::transfer::Selection;
use crate::domain::{Caller, DeviceClass, Digest, Namespace, Op, Timestamp};
use crate::service::Service;
use crate::wire::{ImportReport, Taken};
use anyhow::{Context, ensure};
use futures_util::StreamExt;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::NamedTempFile;

/// Where the store is: a data folder, or else a server.
#[derive(Debug, clap::Args)]
struct Store {
    /// The data folder of a server on this host
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "token_file"])]
    data: Option<PathBuf>,
    /// Configuration file with the data folder
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "token_file"])]
    config: Option<PathBuf>,
    /// The namespace of the data folder; on a server it is the token's
    #[arg(long, value_name = "NAME", conflicts_with_all = ["server", "token_file"])]
    namespace: Option<Namespace>,
    #[command(flatten)]
    server: ServerArgs,
}

impl Store {
    /// The service of the data folder, if one is named.
    async fn folder(&self) -> anyhow::Result<Option<Service>> {
        if self.data.is_none() && self.config.is_none() {
            ensure!(self.namespace.is_none(), "--namespace is that of a data folder: --data DIR");
            return Ok(None);
        }
        let service = folder(self.config.as_deref(), self.data.as_deref()).await?;
        let namespace = self.namespace.clone().unwrap_or_default();
        Ok(Some(service.on_behalf_of(&Caller::owner(None, namespace))))
    }
}

/// What an export is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For `sparsetune import`: one file with plans, trials and models
    Sparsetune,
    /// A folder of T4 results, one file for each operation, matrix, problem and device
    T4,
    /// A folder of Kernel Tuner's caches, likewise
    KernelTuner,
}

#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The file to write, or the new folder of `--format t4` and `kernel-tuner`
    to: PathBuf,
    /// What it is written as
    #[arg(long, value_enum, default_value = "sparsetune")]
    format: Format,
    /// Only these, between commas: plans, trials, models, none
    #[arg(long, value_name = "PARTS", value_parser = parts)]
    only: Option<String>,
    /// With the programs and arrays of plans
    #[arg(long)]
    files: bool,
    /// With the stored matrices of plans and searches; with `--only none` all matrices
    #[arg(long)]
    matrices: bool,
    /// Only of this class of device, as plans name it (`cuda/NVIDIA H200/cc9.0/132sm`)
    #[arg(long, value_name = "CLASS")]
    device_class: Option<String>,
    /// Only of this operation
    #[arg(long)]
    op: Option<Op>,
    /// Only of the matrix or pattern with this digest
    #[arg(long, value_name = "DIGEST")]
    matrix: Option<Digest>,
    /// Only what was made at this time or later: 2026-11-21, or 2026-11-21T02:14:44.123Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only what was made before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    #[command(flatten)]
    store: Store,
}

#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// A file that `sparsetune export` wrote
    from: PathBuf,
    /// Show what would be taken in, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    store: Store,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn parts(text: &str) -> Result<String, String> {
    Selection::default().only(text).map(|()| text.to_owned())
}

/// A day is its first moment.
fn time(text: &str) -> Result<Timestamp, String> {
    let whole = if text.contains('T') { text.to_owned() } else { format!("{text}T00:00:00.000Z") };
    whole.parse()
}

impl ExportArgs {
    fn selection(&self) -> Result<Selection, String> {
        let mut selection = Selection {
            files: self.files,
            matrices: self.matrices,
            device_class: self.device_class.clone().map(DeviceClass),
            op: self.op,
            matrix: self.matrix,
            since: self.since,
            until: self.until,
            ..Selection::default()
        };
        match (self.format, &self.only) {
            (Format::Sparsetune, Some(only)) => selection.only(only)?,
            (Format::Sparsetune, None) => {}
            // What the other formats hold.
            _ => {
                selection.only("trials")?;
                (selection.files, selection.matrices) = (false, false);
            }
        }
        Ok(selection)
    }
}

pub async fn export(args: ExportArgs) -> anyhow::Result<ExitCode> {
    let selection = args.selection().map_err(anyhow::Error::msg)?;
    match args.format {
        Format::Sparsetune => {
            let parent = args.to.parent().filter(|path| !path.as_os_str().is_empty());
            let file = fetched(&args.store, &selection, parent.unwrap_or(Path::new("."))).await?;
            let bytes = file.as_file().metadata()?.len();
            file.as_file().sync_all()?;
            file.persist(&args.to)
                .with_context(|| format!("cannot write {}", args.to.display()))?;
            say(format_args!("{}: {bytes} bytes", args.to.display()))?;
        }
        format => {
            let there = args.to.is_dir() && std::fs::read_dir(&args.to)?.next().is_some();
            ensure!(
                !there,
                "{} is not empty: such an export is a folder of its own",
                args.to.display()
            );
            std::fs::create_dir_all(&args.to)
                .with_context(|| format!("cannot create {}", args.to.display()))?;
            let file = fetched(&args.store, &selection, &args.to).await?;
            let made = foreign::write(file.path(), &args.to, format)?;
            say(format_args!(
                "{}: {} files with {} results",
                args.to.display(),
                made.files,
                made.results
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The export as a file in this folder, where it keeps no name if this fails.
async fn fetched(store: &Store, of: &Selection, folder: &Path) -> anyhow::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix(".sparsetune-export-")
        .tempfile_in(folder)
        .with_context(|| format!("cannot write to {}", folder.display()))?;
    match store.folder().await? {
        Some(service) => {
            let written = async {
                let mut pieces = service.export(of.clone()).await?;
                while let Some(piece) = pieces.next().await {
                    file.write_all(&piece?)?;
                }
                anyhow::Ok(())
            };
            let written = written.await;
            serve::close(&service).await;
            written?;
        }
        None => store.server.client()?.export(of, &mut file).await?,
    }
    Ok(file)
}

pub async fn import(args: ImportArgs) -> anyhow::Result<ExitCode> {
    ensure!(args.from.is_file(), "there is no file {}", args.from.display());
    let report = match args.store.folder().await? {
        Some(service) => {
            let report = service.import(&args.from, args.dry_run).await;
            serve::close(&service).await;
            report.map(ImportReport::from)?
        }
        None => args.store.server.client()?.import(&args.from, args.dry_run).await?,
    };
    match args.json {
        true => say(json!(report))?,
        false => say(words(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn words(report: &ImportReport) -> String {
    let mut table = table(&["what", "new", "known", "left out"]);
    let kinds = [
        ("plans", report.plans),
        ("jobs", report.jobs),
        ("trials", report.trials),
        ("models", report.models),
        ("files", report.files),
        ("matrices", report.matrices),
    ];
    for (name, Taken { new, known, left_out }) in kinds {
        table.add_row([name.to_owned(), new.to_string(), known.to_string(), left_out.to_string()]);
    }
    let mut lines = vec![
        format!("an export of store {}, made at {}", report.store, report.made_at),
        table.to_string(),
    ];
    let ImportReport { plans_before, plans_behind, plans_without_program, .. } = report;
    if plans_before + plans_behind > 0 {
        lines.push(format!(
            "of the new plans {plans_before} answer in place of one that was here, and {plans_behind} stand behind one that was"
        ));
    }
    if *plans_without_program > 0 {
        lines.push(format!(
            "{plans_without_program} plans came without their program (export --files brings them)"
        ));
    }
    lines.extend(report.left_out.iter().map(|what| format!("left out: {what}")));
    if report.dry_run {
        lines.push("nothing was stored: this is what would be".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{parts, time};

    #[test]
    fn days_are_times() {
        assert_eq!(time("2026-11-21"), time("2026-11-21T00:00:00.000Z"));
        assert!(time("yesterday").is_err() && time("2026-13-01").is_err());
        assert!(parts("plans,models").is_ok() && parts("plans,tokens").is_err());
    }
}
