//! `sparsetune audit`: shows who changed what, from a server or a data folder.

use super::show::table;
use super::token::folder;
use super::{ServerArgs, say, serve};
use crate::domain::TokenName;
use crate::service::PageRequest;
use crate::wire::AuditEntry;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    /// Only what was done with this token
    #[arg(long, value_name = "NAME")]
    token: Option<TokenName>,
    /// How many of the newest entries
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
    /// Read the data folder of a server on this host
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "token_file"])]
    data: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the entries as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: AuditArgs) -> anyhow::Result<ExitCode> {
    let entries: Vec<AuditEntry> = match &args.data {
        None => args.server.client()?.audit(args.token.as_ref(), args.limit).await?.items,
        Some(data) => {
            let service = folder(None, Some(data)).await?;
            let token = args.token.as_ref().map(TokenName::as_str);
            let page = service.audit(token, &PageRequest::first(args.limit)).await;
            serve::close(&service).await;
            page?.items.into_iter().map(AuditEntry::from).collect()
        }
    };
    if args.json {
        say(json!({ "items": entries }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table(&["time", "namespace", "token", "from", "change", "of", "request"]);
    for entry in entries {
        let text = |text: Option<String>| text.unwrap_or_default();
        let (token, peer) = (text(entry.token), text(entry.peer));
        let (subject, request) = (text(entry.subject), text(entry.request));
        table.add_row([
            entry.at,
            entry.namespace.to_string(),
            token,
            peer,
            entry.action,
            subject,
            request,
        ]);
    }
    say(table)?;
    Ok(ExitCode::SUCCESS)
}
