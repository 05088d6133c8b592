//! `sparsetune backup`, `restore` and `fsck`: for who keeps a store.

use super::config::Config;
use super::{say, serve};
use crate::service::backup::{self, Manifest, Target};
use crate::service::checkup::{Checkup, checkup};
use crate::store::pairing::{self, Opening};
use crate::store::{Upkeep as _, private};
use anyhow::{Context, ensure};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use toml::Value;

/// Where the store is.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// Configuration file (config/default.toml documents all settings)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Place {
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let mut flags: Vec<(&str, Value)> = Vec::new();
        if let Some(folder) = &self.data {
            let folder = folder.to_str().context("--data: the folder's name is not UTF-8")?;
            flags.push(("data.dir", folder.into()));
        }
        Ok(Config::load(self.config.as_deref(), &flags)?)
    }
}

#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The folder to write: new, or empty
    to: PathBuf,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// A folder that `sparsetune backup` wrote
    from: PathBuf,
    /// The blobs of the saved store are still there, and only its database was lost
    #[arg(long)]
    keep_blobs: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
pub struct FsckArgs {
    /// Set damaged files aside, forget matrices whose file is gone, make plans again whose files are gone, and move what nothing
    /// names to the trash
    #[arg(long)]
    repair: bool,
    /// Make the blobs those of this database, if they are of another one or do not say
    #[arg(long)]
    adopt: bool,
    #[command(flatten)]
    place: Place,
}

pub async fn backup(args: BackupArgs) -> anyhow::Result<ExitCode> {
    let config = args.place.config()?;
    let store = file(&config, "`sparsetune backup`", "pg_dump")?;
    ensure!(store.is_file(), "there is no store {}", store.display());
    let made = backup::backup(&store, &config.blobs(), &args.to).await?;
    told(&args.place, &made, "saved")
}

pub async fn restore(args: RestoreArgs) -> anyhow::Result<ExitCode> {
    let config = args.place.config()?;
    let store = file(&config, "`sparsetune restore`", "pg_restore")?;
    if let Some(folder) = store.parent() {
        private::folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let into = if args.keep_blobs { Target::ItsBlobs } else { Target::Empty };
    let made = backup::restore(&args.from, &store, &config.blobs(), into).await?;
    told(&args.place, &made, "restored")
}

/// The file of the store. What is on a server has tools of its own.
fn file(config: &Config, command: &str, instead: &str) -> anyhow::Result<PathBuf> {
    let place = config.data.store();
    let file = place.file().with_context(|| {
        format!(
            "{command} is for a store in a file, and this one is {place}: use `{instead}` for the database, before the blobs are copied \
             (docs/postgres.md)"
        )
    })?;
    Ok(file.to_owned())
}

/// Failure if not all that the database names is there.
fn told(place: &Place, made: &Manifest, done: &str) -> anyhow::Result<ExitCode> {
    if place.json {
        say(serde_json::to_string(made)?)?;
    } else {
        let Manifest { store, blobs, bytes, .. } = made;
        say(format_args!("store {store} {done}: the database and {blobs} files of {bytes} bytes"))?;
    }
    for digest in &made.without {
        eprintln!("sparsetune: {digest} is missing or damaged, and was left out");
    }
    Ok(if made.without.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub async fn fsck(args: FsckArgs) -> anyhow::Result<ExitCode> {
    let config = args.place.config()?;
    let (place, folder) = (config.data.store(), config.blobs());
    // Blobs whose database was lost may be adopted by a new one.
    let there = !place.is_missing() || args.adopt && folder.folder().is_dir();
    ensure!(there, "there is no store {place}");
    let how = Opening { adopt: args.adopt, ..serve::opening(&config) };
    let (store, blobs) = pairing::open_with(&place, &folder, how).await?;
    if place.file().is_none() {
        eprintln!("sparsetune: the files of {place} are the server's: `pg_amcheck` looks at them");
    }
    let grace = Duration::from_secs_f64(config.data.blob_grace_h * 3600.0);
    let found = checkup(&store, blobs.as_ref(), grace, args.repair).await?;
    store.close().await;
    match args.place.json {
        true => say(serde_json::to_string(&found)?)?,
        false => say(words(&found))?,
    }
    Ok(if found.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn words(found: &Checkup) -> String {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(found.database.iter().map(|fault| format!("database: {fault}")));
    let each = |digests: &[crate::domain::Digest], what: &str| -> Vec<String> {
        digests.iter().map(|digest| format!("{digest}: {what}")).collect()
    };
    lines.extend(each(&found.unread, "could not be read: nothing is known of it"));
    lines.extend(each(&found.damaged, "damaged"));
    lines.extend(each(
        &found.matrices_without_file,
        "a matrix whose file is missing or damaged: upload it again, or --repair to forget it",
    ));
    for lacking in &found.plans {
        let (plan, files) = (&lacking.plan, lacking.files.len());
        lines.push(format!("plan {plan} lacks {files} files: {}", lacking.remedy));
    }
    lines.extend(found.repaired.iter().map(|what| format!("repaired: {what}")));
    if found.set_aside > 0 {
        lines.push(format!("{} damaged files were set aside before (*.damaged)", found.set_aside));
    }
    let left = match found.is_whole() {
        true => "the store is whole",
        false => "the store is not whole",
    };
    let Checkup { compared, unnamed, .. } = found;
    lines.push(format!("{compared} files compared, {unnamed} that nothing names: {left}"));
    lines.join("\n")
}
