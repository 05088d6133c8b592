//! Who is admitted to a server: tokens, or nobody's leave where none was ever made.

use super::config::Config;
use super::session_key;
use crate::http::{Access, Attempts, Tokens, Without};
use crate::service::Service;
use anyhow::ensure;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Who is admitted at an address, which a setting names; fails if nobody would have to show a token where others can reach it.
pub async fn of(
    config: &Config,
    service: &Service,
    (setting, listen): (&str, SocketAddr),
) -> anyhow::Result<Access> {
    let server = &config.server;
    // Invalid tokens were refused with the configuration.
    let hashes = server.tokens.iter().filter_map(|token| token.hash());
    let hashes = hashes.map(|hash| *hash.as_bytes());
    service.open_ring(hashes, &server.namespace, server.insecure).await?;
    let key = session_key::of_config(config)?;
    let tokens = Tokens::new(Arc::clone(service.ring()), &key);
    let tokens = tokens.lasting(Duration::from_secs_f64(server.session_s));
    let own = listen.ip().is_loopback();
    ensure!(
        own || tokens.required() || server.insecure,
        "{setting}: {listen} is reachable from other machines: make a token (`sparsetune token create --data {}`), or pass --insecure",
        config.data.dir.display()
    );
    if !server.tokens.is_empty() {
        tracing::info!(
            tokens = server.tokens.len(),
            "tokens of the configuration (server.tokens) permit everything; `sparsetune token create` makes tokens that permit less and expire"
        );
    }
    if service.ring().admits_nobody() {
        tracing::warn!(
            "tokens were made here and none is in force, so nobody is admitted: make one (`sparsetune token create --data {}`), or pass \
             --insecure",
            config.data.dir.display()
        );
    }
    if !own && !tokens.required() {
        tracing::warn!("{}", open_to_all(listen));
    }
    let without = if own { Without::Loopback } else { Without::Everybody };
    let attempts = Attempts::new(server.wrong_tokens_per_min);
    Ok(Access { tokens, without, attempts, forwarded: server.forwarded_for })
}

/// What an operator should hear at every start of a server without tokens that others can reach.
fn open_to_all(listen: SocketAddr) -> String {
    format!(
        "{listen} is reachable from other machines, and no token is required (server.insecure): whoever reaches it may read and change \
         everything, and run kernels on this host"
    )
}
