//! `sparsetune token`: makes, lists and revokes API tokens, on a server or in a data folder.

use super::config::Config;
use super::show::table;
use super::{ServerArgs, say, serve};
use crate::domain::{AuditEntry, Namespace, Scopes, TokenLimits, TokenName};
use crate::service::{NewToken, Service};
use crate::wire::{MadeToken, Token, TokenRequest};
use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use toml::Value;

#[derive(Debug, clap::Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    action: Action,
    /// Work on the data folder of a server that runs on this host or will; the first token is made like this
    #[arg(long, global = true, value_name = "DIR", conflicts_with_all = ["server", "token_file"])]
    data: Option<PathBuf>,
    /// Work on the data folder of this configuration
    #[arg(long, global = true, value_name = "FILE", conflicts_with_all = ["server", "token_file"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token and print it: it is shown only now
    Create {
        /// By which logs, the audit log and `revoke` call it
        #[arg(long)]
        name: TokenName,
        /// What it permits, of read, submit, tune, metrics, admin
        #[arg(long, value_name = "LIST", default_value = "read,submit,tune")]
        scopes: Scopes,
        /// When it expires: a number with s, m, h or d, such as 90d, or never
        #[arg(long, value_name = "TIME", default_value = "never", value_parser = lasting)]
        expires: Lasting,
        /// A limit: stored_bytes, matrices, queued_jobs, search_seconds_per_day, job_seconds, job_trials or max_priority, with its
        /// value. Can be given several times
        #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
        limits: Vec<(String, serde_json::Value)>,
        /// To whom it belongs: matrices, jobs and plans of other namespaces are not seen with it. Unless given, that of the token that
        /// makes it
        #[arg(long)]
        namespace: Option<Namespace>,
        /// Lookups of other namespaces may be answered with plans that it measured, as long as it is in force
        #[arg(long)]
        share_plans: bool,
        /// Write it to a file that only its owner can read, instead of printing it
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List tokens, newest first
    List,
    /// End tokens: requests with them are refused from now on
    Revoke {
        /// The tokens' names
        #[arg(required = true)]
        names: Vec<TokenName>,
        /// Of another namespace than one's own
        #[arg(long)]
        namespace: Option<Namespace>,
    },
}

/// How long a token lasts; `None` for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lasting(Option<Duration>);

fn lasting(text: &str) -> Result<Lasting, String> {
    if text == "never" {
        return Ok(Lasting(None));
    }
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let found = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    let seconds = found.filter(|seconds| *seconds > 0);
    let duration = seconds.map(|seconds| Lasting(Some(Duration::from_secs(seconds))));
    duration.ok_or_else(|| "write 90d, 12h, 30m, 45s or never".to_owned())
}

fn limit(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let value = serde_json::from_str(value).map_err(|_| format!("`{value}` is no number"))?;
    Ok((name.to_owned(), value))
}

fn limited(limits: Vec<(String, serde_json::Value)>) -> anyhow::Result<TokenLimits> {
    serde_json::from_value(limits.into_iter().collect()).context("--limit")
}

pub async fn run(args: TokenArgs) -> anyhow::Result<ExitCode> {
    let place = match args.data.is_some() || args.config.is_some() {
        true => {
            Place::Folder(Box::new(folder(args.config.as_deref(), args.data.as_deref()).await?))
        }
        false => Place::Server(args.server.client()?),
    };
    let done = act(&place, args.action, args.json).await;
    if let Place::Folder(service) = &place {
        serve::close(service).await;
    }
    done.map(|()| ExitCode::SUCCESS)
}

/// Where the tokens are.
enum Place {
    Folder(Box<Service>),
    Server(super::client::Client),
}

/// The service of a data folder, which is made if there is none yet.
pub async fn folder(config: Option<&Path>, data: Option<&Path>) -> anyhow::Result<Service> {
    let mut flags: Vec<(&str, Value)> =
        vec![("devices.use", Value::Array(Vec::new())), ("learning.shipped", false.into())];
    if let Some(data) = data {
        let data = data.to_str().context("--data: the folder's name is not UTF-8")?;
        flags.push(("data.dir", data.into()));
    }
    let config = Config::load(config, &flags)?;
    let (service, _) = serve::open(&config).await?;
    let hashes = config.server.tokens.iter().filter_map(|token| token.hash());
    let hashes = hashes.map(|hash| *hash.as_bytes());
    service.open_ring(hashes, &config.server.namespace, config.server.insecure).await?;
    Ok(service)
}

async fn act(place: &Place, action: Action, json: bool) -> anyhow::Result<()> {
    match action {
        Action::Create { name, scopes, expires, limits, namespace, share_plans, output } => {
            let asked = TokenRequest {
                name,
                scopes: Some(scopes.as_slice().to_vec()),
                expires_in_s: expires.0.map(|life| life.as_secs()),
                limits: Some(limited(limits)?),
                namespace,
                share_plans: Some(share_plans),
            };
            // Before the token exists: a secret that cannot be written is lost.
            let file = output.as_deref().map(private).transpose()?;
            let made = make(place, asked).await?;
            match (file, output) {
                (Some(mut file), Some(path)) => {
                    writeln!(file, "{}", made.token)
                        .with_context(|| format!("cannot write {}", path.display()))?;
                    match json {
                        true => say(json!(made.facts)),
                        false => say(format_args!(
                            "token {} written to {}",
                            made.facts.name,
                            path.display()
                        )),
                    }
                }
                _ if json => say(json!(made)),
                _ => {
                    eprintln!("{}; it is shown only now:", described(&made.facts));
                    say(&made.token)
                }
            }
        }
        Action::List => {
            let tokens: Vec<Token> = match place {
                Place::Folder(service) => {
                    service.tokens().await?.into_iter().map(Token::from).collect()
                }
                Place::Server(client) => client.tokens().await?.items,
            };
            match json {
                true => say(json!({ "items": tokens })),
                false if tokens.is_empty() => say("there are no tokens"),
                false => say(listed(tokens)),
            }
        }
        Action::Revoke { names, namespace } => {
            for name in &names {
                match place {
                    Place::Folder(service) => {
                        service.revoke_token(name, namespace.as_ref()).await?;
                        recorded(service, "token revoke", name).await?;
                    }
                    Place::Server(client) => client.revoke_token(name, namespace.as_ref()).await?,
                }
            }
            match json {
                true => say(json!({ "revoked": names })),
                false => say(format_args!("{} revoked", names.len())),
            }
        }
    }
}

async fn make(place: &Place, asked: TokenRequest) -> anyhow::Result<MadeToken> {
    Ok(match place {
        Place::Server(client) => client.make_token(&asked).await?,
        Place::Folder(service) => {
            let made = service.make_token(NewToken::from(asked)).await?;
            recorded(service, "token create", &made.token.name).await?;
            MadeToken { token: made.secret, facts: made.token.into() }
        }
    })
}

/// Writes a change to the audit log that no request has made.
async fn recorded(service: &Service, action: &str, name: &TokenName) -> anyhow::Result<()> {
    let subject = Some(format!("/v1/tokens/{name}"));
    let entry = AuditEntry { subject, ..service.change(format!("command {action}")) };
    Ok(service.record_change(&entry).await?)
}

/// A new file that only its owner can read.
fn private(path: &Path) -> anyhow::Result<std::fs::File> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match file {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{} exists already", path.display())
        }
        file => file.with_context(|| format!("cannot create {}", path.display())),
    }
}

fn scopes(token: &Token) -> String {
    Scopes::of(token.scopes.iter().copied()).to_string()
}

fn described(token: &Token) -> String {
    let end = token
        .expires_at
        .as_deref()
        .map_or_else(|| "does not expire".to_owned(), |end| format!("expires at {end}"));
    format!("token {} of {} ({}) {end}", token.name, token.namespace, scopes(token))
}

fn listed(tokens: Vec<Token>) -> comfy_table::Table {
    let mut table =
        table(&["name", "namespace", "scopes", "made", "expires", "last used", "state", "limits"]);
    let now = crate::domain::Timestamp::now().to_rfc3339();
    for token in tokens {
        let expired = token.expires_at.as_ref().is_some_and(|end| *end <= now);
        let state = match (&token.revoked_at, token.configured) {
            (Some(at), _) => format!("revoked {at}"),
            (None, true) => "of the configuration".to_owned(),
            (None, false) if expired => "expired".to_owned(),
            (None, false) => "in force".to_owned(),
        };
        let scopes = scopes(&token);
        let limits = json!(token.limits).to_string().replace(['{', '}', '"'], "");
        let end = token.expires_at.unwrap_or_else(|| "never".to_owned());
        let used = token.last_used_at.unwrap_or_else(|| "never".to_owned());
        let (name, namespace) = (token.name.to_string(), token.namespace.to_string());
        table.add_row([name, namespace, scopes, token.created_at, end, used, state, limits]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_number_with_a_unit() {
        assert_eq!(lasting("never"), Ok(Lasting(None)));
        assert_eq!(lasting("90d"), Ok(Lasting(Some(Duration::from_secs(90 * 86_400)))));
        assert_eq!(lasting("30m"), Ok(Lasting(Some(Duration::from_secs(1800)))));
        for bad in ["", "d", "0d", "-1d", "90", "1.5h", "99999999999999999999d"] {
            assert!(lasting(bad).is_err(), "{bad}");
        }
    }
}
