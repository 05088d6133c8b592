//! `sparsetune migrate`: a store from one database to another.

use super::say;
use crate::store::{StoreOptions, StorePlace, Upkeep as _};
use anyhow::{Context, ensure};
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// The store that is there: `sqlite:PATH` or `postgres://...`
    #[arg(long, value_name = "STORE")]
    from: String,
    /// Where it is to be: `sqlite:PATH` or `postgres://...`; empty, or what an interrupted migration has left
    #[arg(long, value_name = "STORE")]
    to: String,
    /// Either goes through a pooler that gives each transaction another connection
    #[arg(long)]
    pooled: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let place = |flag: &str, text: &str| {
        StorePlace::parse(text)
            .with_context(|| format!("{flag} must be sqlite: and a path, or the URL of a database"))
    };
    let (from, to) = (place("--from", &args.from)?, place("--to", &args.to)?);
    ensure!(!from.is_missing(), "there is no store {from}");
    ensure!(from != to, "--from and --to are the same");
    let mut how = StoreOptions::default();
    how.postgres.pooled = args.pooled;
    let source = from.open(how).await.with_context(|| format!("cannot open {from}"))?;
    let target = to.open(how).await.with_context(|| format!("cannot open {to}"))?;
    let moved = source
        .move_to(&target, &to.to_string(), |moved| {
            if !args.json {
                eprintln!("{}: {} rows", moved.table, moved.rows);
            }
        })
        .await?;
    let id = target.id().await?;
    source.close().await;
    target.close().await;
    let rows: u64 = moved.iter().map(|moved| moved.rows).sum();
    if args.json {
        let tables: Vec<_> = moved
            .iter()
            .map(|one| json!({ "table": one.table, "rows": one.rows, "digest": one.digest }))
            .collect();
        say(json!({ "store": id, "rows": rows, "tables": tables }))?;
    } else {
        say(format_args!(
            "store {id}: {rows} rows are in {to} as they are in {from}. Set data.store to it, and leave data.blobs as it is"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
