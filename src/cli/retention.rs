//! `sparsetune retention`: what goes by the rules of the configuration, and makes it go.

use super::keeping::Place;
use super::show::table;
use super::{say, serve};
use crate::service::{Going, Gone, Part, Service};
use crate::store::pairing;
use anyhow::ensure;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Debug, clap::Args)]
pub struct RetentionArgs {
    /// Show what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

pub async fn run(args: RetentionArgs) -> anyhow::Result<ExitCode> {
    let config = args.place.config()?;
    let (file, folder) = (config.data.store(), config.blobs());
    ensure!(!file.is_missing(), "there is no store {file}");
    let rules = config.retention.rules();
    if rules.is_empty() && !args.place.json {
        say("no rule is set ([retention] in the configuration): everything is kept")?;
        return Ok(ExitCode::SUCCESS);
    }
    let (store, blobs) = pairing::open_with(&file, &folder, serve::opening(&config)).await?;
    let service = Service::new(Arc::new(store), blobs, serve::settings(&config));
    let going = service.going(&rules).await?;
    let gone = match args.dry_run {
        true => None,
        false => Some(service.remove_going(&going).await?),
    };
    serve::close(&service).await;
    match args.place.json {
        true => say(json!({ "going": going, "gone": gone }))?,
        false => say(words(&going, gone.as_ref()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn words(going: &Going, gone: Option<&Gone>) -> String {
    let mut lines = Vec::new();
    if !going.is_empty() {
        let mut table = table(&["kind", "goes", "bytes", "first of them"]);
        let Going { plans, jobs, trials, trial_rows, matrices } = going;
        let mut row = |kind: &str, number: u64, bytes: u64, first: Option<String>| {
            let first = first.unwrap_or_default();
            table.add_row([kind.to_owned(), number.to_string(), bytes.to_string(), first]);
        };
        row("plans", number(plans), plans.bytes, first(plans));
        row("jobs", number(jobs), jobs.bytes, first(jobs));
        row("trials", *trial_rows, trials.bytes, first(trials).map(|job| format!("of job {job}")));
        row("matrices", number(matrices), matrices.bytes, first(matrices));
        lines.push(table.to_string());
    }
    lines.push(match (gone, going.is_empty()) {
        (_, true) => "nothing goes by the rules".to_owned(),
        (None, false) => "nothing was removed: this is what would go".to_owned(),
        (Some(gone), false) => format!(
            "removed: {} plans, {} jobs, {} trials, {} matrices",
            gone.plans, gone.jobs, gone.trials, gone.matrices
        ),
    });
    lines.join("\n")
}

fn number<T>(part: &Part<T>) -> u64 {
    part.items.len() as u64
}

fn first<T: ToString>(part: &Part<T>) -> Option<String> {
    part.items.first().map(ToString::to_string)
}
