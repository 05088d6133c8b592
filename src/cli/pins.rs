//! `sparsetune pin` and `unpin`: what a server's retention leaves alone.

use super::{ServerArgs, say};
use crate::domain::{Digest, PlanId};
use crate::store::Pin;
use anyhow::bail;
use serde_json::json;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct PinArgs {
    /// Digests of matrices and ids of plans; without any, what is pinned is listed
    what: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct UnpinArgs {
    /// Digests of matrices and ids of plans
    #[arg(required = true)]
    what: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub async fn pin(args: PinArgs) -> anyhow::Result<ExitCode> {
    if !args.what.is_empty() {
        return set(&args.server, &args.what, true).await;
    }
    let pins = args.server.client()?.pins().await?;
    if args.json {
        say(json!(pins.raw))?;
        return Ok(ExitCode::SUCCESS);
    }
    for digest in &pins.view.matrices {
        say(format_args!("matrix {digest}"))?;
    }
    for plan in &pins.view.plans {
        say(format_args!("plan {plan}"))?;
    }
    if pins.view.matrices.is_empty() && pins.view.plans.is_empty() {
        say("nothing is pinned")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn unpin(args: UnpinArgs) -> anyhow::Result<ExitCode> {
    set(&args.server, &args.what, false).await
}

async fn set(server: &ServerArgs, what: &[String], pinned: bool) -> anyhow::Result<ExitCode> {
    let pins = what.iter().map(|text| read(text)).collect::<anyhow::Result<Vec<Pin>>>()?;
    let client = server.client()?;
    for pin in &pins {
        client.pin(pin, pinned).await?;
    }
    let done = if pinned { "pinned" } else { "no longer pinned" };
    say(format_args!("{} {done}", pins.len()))?;
    Ok(ExitCode::SUCCESS)
}

/// It becomes part of an address, so nothing but a digest or an id may be in it.
fn read(text: &str) -> anyhow::Result<Pin> {
    if let Ok(digest) = text.parse::<Digest>() {
        return Ok(Pin::Matrix(digest));
    }
    match uuid::Uuid::try_parse(text) {
        Ok(id) => Ok(Pin::Plan(PlanId(id.hyphenated().to_string()))),
        Err(_) => {
            bail!("`{text}` is neither the digest of a matrix (64 hex digits) nor the id of a plan")
        }
    }
}
