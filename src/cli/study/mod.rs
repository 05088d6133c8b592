//! `sparsetune study`: what each technique and each pruning rule is worth, from searches that were recorded in full.

mod gather;
mod paper;
mod picture;
mod record;
mod regret;
mod shares;
mod table;
mod worth;

use super::bench::suite::Suite;
use super::local::Local;
use super::say;
use anyhow::{Context, ensure};
use record::Search;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct StudyArgs {
    /// Data folder with searches of `--strategy full` and others; no server may run on it
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
    data: Option<PathBuf>,
    /// Read searches from a file of `--export`; may be given several times
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// The suite that was measured, for the classes of its matrices
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Write the searches to a file, compressed if its name ends with .gz, and print nothing
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Write every table as a CSV file in this folder
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write the tables into this Markdown file, one section for each publication: what is between markers is replaced, and
    /// everything else is kept
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Draw predicted against measured times into this SVG file, a panel for each family
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only problems whose text contains this, such as `dtype=f16`
    #[arg(long, value_name = "TEXT")]
    problem: Option<String>,
    /// Only devices whose name contains this, such as `H200`
    #[arg(long, value_name = "TEXT")]
    device: Option<String>,
}

pub async fn run(args: StudyArgs) -> anyhow::Result<ExitCode> {
    let mut searches = Vec::new();
    for file in &args.from {
        let file = file.clone();
        searches.extend(tokio::task::spawn_blocking(move || record::import(&file)).await??);
    }
    let Some(data) = &args.data else { return finish(&args, searches) };
    let classes = args.classes()?;
    let local = Local::without_devices(data, None).await?;
    local
        .carry(async |local, _| {
            searches.extend(gather::gather(local.service(), &classes).await?);
            finish(&args, searches)
        })
        .await
}

impl StudyArgs {
    /// The class of each matrix of the suite, by name.
    fn classes(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let Some(file) = &self.suite else { return Ok(BTreeMap::new()) };
        let class =
            |entry: &super::bench::suite::Entry| Some((entry.name(), entry.class()?.to_owned()));
        Ok(Suite::read(file)?.matrix.iter().filter_map(class).collect())
    }
}

fn finish(args: &StudyArgs, mut searches: Vec<Search>) -> anyhow::Result<ExitCode> {
    if let Some(text) = &args.problem {
        searches.retain(|search| search.problem.contains(text.as_str()));
    }
    if let Some(text) = &args.device {
        searches.retain(|search| search.device.contains(text.as_str()));
    }
    ensure!(!searches.is_empty(), "there are no searches that measured");
    if let Some(file) = &args.export {
        record::export(file, &searches)?;
        say(format_args!("{} searches written to {}", searches.len(), file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let devices: BTreeSet<&str> = searches.iter().map(|search| search.device.as_str()).collect();
    ensure!(
        devices.len() == 1,
        "the searches are of several devices, which no table mixes: choose one of {} with --device",
        devices.into_iter().collect::<Vec<_>>().join(", ")
    );
    if let Some(file) = &args.svg {
        std::fs::write(file, picture::draw(&searches)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    ensure!(
        searches.iter().any(Search::is_full),
        "none of {} searches is of the strategy full, which a study is made of",
        searches.len()
    );
    let sections = paper::sections(&record::joined(searches));
    if let Some(folder) = &args.csv {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        for table in sections.iter().flat_map(|section| &section.tables) {
            let file = folder.join(format!("{}.csv", table.name));
            std::fs::write(&file, table.csv())
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    match &args.write {
        Some(file) => paper::write(file, &sections)?,
        None => say(paper::markdown(&sections))?,
    }
    Ok(ExitCode::SUCCESS)
}
