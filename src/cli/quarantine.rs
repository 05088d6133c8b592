//! `sparsetune quarantine`: lists the candidates that hung or killed a device, and lets them be tried again.

use super::show::table;
use super::{ServerArgs, say};
use crate::domain::QuarantineId;
use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct QuarantineArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the response as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List quarantined candidates, newest first
    List {
        /// Only of this device class
        #[arg(long)]
        class: Option<String>,
    },
    /// Let searches try candidates again
    Lift {
        /// The ids that `list` prints
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// All of them, or all of a device class
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// With --all: only of this device class
        #[arg(long, requires = "all")]
        class: Option<String>,
    },
}

pub async fn run(args: QuarantineArgs) -> anyhow::Result<ExitCode> {
    let client = args.server.client()?;
    match args.action {
        Action::List { class } => {
            let entries = client.quarantine(class.as_deref()).await?;
            if args.json {
                let items: Vec<Value> = entries.into_iter().map(|entry| entry.raw).collect();
                say(json!({ "items": items }))?;
            } else if entries.is_empty() {
                say("nothing is in quarantine")?;
            } else {
                let mut table =
                    table(&["id", "candidate", "device class", "scope", "since", "reason"]);
                for entry in entries.into_iter().map(|entry| entry.view) {
                    let candidate = entry.candidate.to_string();
                    let (class, since) = (entry.device_class.0, entry.at);
                    let scope = entry.scope.name().to_owned();
                    table.add_row([entry.id.0, candidate, class, scope, since, entry.reason]);
                }
                say(table)?;
            }
        }
        Action::Lift { ids, all, class } => {
            let ids = if all {
                let entries = client.quarantine(class.as_deref()).await?;
                entries.into_iter().map(|entry| entry.view.id).collect()
            } else {
                ids.into_iter().map(checked).collect::<anyhow::Result<Vec<_>>>()?
            };
            for id in &ids {
                client.lift_quarantine(id).await?;
            }
            match args.json {
                true => say(json!({ "lifted": ids }))?,
                false => say(format_args!("{} lifted", ids.len()))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// It becomes part of an address, so nothing but an id may be in it.
fn checked(id: String) -> anyhow::Result<QuarantineId> {
    let fits = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !fits {
        bail!("`{id}` is no id of the quarantine: `sparsetune quarantine list` prints them");
    }
    Ok(QuarantineId(id.to_ascii_lowercase()))
}
