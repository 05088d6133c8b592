//! One attempt to deliver: signed, to addresses that have been checked, by TLS if the webhook's address says so, without redirects,
//! bounded in time.

use super::address::{Network, is_permitted};
use crate::domain::Timestamp;
use crate::store::DueDelivery;
use crate::store::tls::{Called, Trust};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::Request;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use reqwest::Url;
use sha2::Sha256;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Time limits of an attempt: for the addresses of a name, for a connection, and in all.
const RESOLVING: Duration = Duration::from_secs(5);
const CONNECTING: Duration = Duration::from_secs(5);
const IN_ALL: Duration = Duration::from_secs(15);
/// Longest address of a webhook.
pub(super) const LONGEST_URL: usize = 2000;

/// What secrets begin with; base64 of the key follows.
const PREFIX: &str = "whsec_";

/// A secret with this key.
pub(super) fn secret(key: &[u8; 32]) -> String {
    format!("{PREFIX}{}", STANDARD.encode(key))
}

/// The signature of a delivery, over its id, the time of the attempt in seconds, and its body, separated by dots. `None` if the
/// secret is none.
fn signature(secret: &str, id: &str, seconds: i64, body: &str) -> Option<String> {
    let key = STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    let mut hmac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    hmac.update(format!("{id}.{seconds}.{body}").as_bytes());
    Some(format!("v1,{}", STANDARD.encode(hmac.finalize().into_bytes())))
}

/// An address that a webhook may have, as far as that can be told without asking for the addresses of its host.
pub(super) fn url(text: &str, allowed: &[Network]) -> Result<Url, String> {
    if text.len() > LONGEST_URL {
        return Err(format!("it is longer than {LONGEST_URL} bytes"));
    }
    let url: Url = text.parse().map_err(|error| format!("it is no URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("this server calls http and https, not {}", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("it has a user, a password or a fragment".to_owned());
    }
    let host = url.host_str().ok_or("it names no host")?;
    match literal(host) {
        Some(address) if !is_permitted(address, allowed) => Err(refused(host)),
        _ => Ok(url),
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn refused(host: &str) -> String {
    format!(
        "{host} is not an address of the internet, and not of a network that the operator permits (webhooks.allow)"
    )
}

/// The addresses of the host, all of which are permitted.
async fn addresses(url: &Url, allowed: &[Network]) -> Result<Vec<SocketAddr>, String> {
    let host = url.host_str().ok_or("it names no host")?;
    let port = url.port_or_known_default().unwrap_or(80);
    if let Some(address) = literal(host) {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = tokio::time::timeout(RESOLVING, tokio::net::lookup_host((host, port))).await;
    let found: Vec<SocketAddr> = found
        .map_err(|_| format!("the addresses of {host} were not found in time"))?
        .map_err(|error| format!("the addresses of {host} were not found: {error}"))?
        .collect();
    match found.iter().find(|address| !is_permitted(address.ip(), allowed)) {
        Some(_) => Err(refused(host)),
        None if found.is_empty() => Err(format!("{host} has no address")),
        None => Ok(found),
    }
}

/// What the configuration says of the receivers' certificates.
pub(super) const RECEIVER: Called = Called { name: "receiver", setting: "webhooks.ca_file" };

/// Sends it once; the status of the answer, or why there was none.
pub(super) async fn attempt(
    due: &DueDelivery,
    allowed: &[Network],
    ca_file: Option<&Path>,
) -> Result<u16, String> {
    let sent = tokio::time::timeout(IN_ALL, send(due, allowed, ca_file)).await;
    sent.unwrap_or_else(|_| Err("there was no answer in time".to_owned()))
}

async fn send(
    due: &DueDelivery,
    allowed: &[Network],
    ca_file: Option<&Path>,
) -> Result<u16, String> {
    let url = url(&due.url, allowed)?;
    let addresses = addresses(&url, allowed).await?;
    let host = url.host_str().ok_or("it names no host")?;
    let trust = trust(&url, ca_file).await?;
    // A client for this attempt alone: it connects to an address that was checked, whatever the name means by then, and asks no proxy,
    // follows nothing, and keeps no connection. What is there is taken for the host if its certificate is the host's.
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(trust.pinned(host, CONNECTING)?);
    let mut last = None;
    for address in addresses {
        match client.request(request(due, &url, address)?).await {
            // Of the answer only the status counts: its body is not read.
            Ok(answer) => return Ok(answer.status().as_u16()),
            Err(error) => match trust.distrust(&error) {
                Some(distrust) => return Err(distrust.to_string()),
                // Another address of the same host may answer.
                None if error.is_connect() => last = Some(error),
                None => return Err(told(&error)),
            },
        }
    }
    Err(last.map_or_else(|| format!("{host} has no address"), |error| told(&error)))
}

/// Nobody is trusted where nothing is encrypted.
async fn trust(url: &Url, ca_file: Option<&Path>) -> Result<Trust, String> {
    if url.scheme() != "https" {
        return Trust::nobody(RECEIVER);
    }
    let file = ca_file.map(Path::to_owned);
    let read = tokio::task::spawn_blocking(move || Trust::of(RECEIVER, file.as_deref()));
    read.await.map_err(|error| error.to_string())?
}

/// The request to one of the addresses, for the host that has them.
fn request(
    due: &DueDelivery,
    url: &Url,
    address: SocketAddr,
) -> Result<Request<Full<Bytes>>, String> {
    let seconds = Timestamp::now().0.div_euclid(1000);
    let signature = signature(&due.secret, &due.id.0, seconds, &due.body)
        .ok_or("the stored secret cannot be read")?;
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let host = url.host_str().unwrap_or_default();
    Request::post(format!("{}://{address}{}{query}", url.scheme(), url.path()))
        .header("host", format!("{host}{port}"))
        .header("user-agent", concat!("sparsetune/", env!("CARGO_PKG_VERSION")))
        .header("content-type", "application/json")
        .header("webhook-id", &due.id.0)
        .header("webhook-timestamp", seconds)
        .header("webhook-signature", signature)
        .body(Full::from(due.body.clone()))
        .map_err(|_| "its address cannot be asked".to_owned())
}

/// Addresses may hold secrets of their receivers, so none is repeated.
fn told(error: &Error) -> String {
    match error.is_connect() {
        true => "the connection was refused".to_owned(),
        false => "there was no answer: the connection was closed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification (Standard Webhooks), which its libraries verify.
    #[test]
    fn signatures_are_those_of_the_specification() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let found = signature(
            secret,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(found.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
        assert_eq!(signature("MfKQ", "a", 1, ""), None);
        assert_eq!(signature("whsec_?", "a", 1, ""), None);
    }

    #[test]
    fn urls_are_plain_and_public() {
        assert!(url("http://example.com/hook?to=me", &[]).is_ok());
        assert!(url("http://8.8.8.8:9000/", &[]).is_ok());
        assert!(url("https://example.com/hook?to=me", &[]).is_ok());
        for (bad, why) in [
            ("example.com", "no URL"),
            ("https://127.0.0.1/", "not an address of the internet"),
            ("https://[::1]/", "not an address of the internet"),
            ("file:///etc/passwd", "http and https"),
            ("http://me@example.com/", "a user"),
            ("http://example.com/#x", "a fragment"),
            ("http://127.0.0.1/", "not an address of the internet"),
            ("http://2130706433/", "not an address of the internet"),
            ("http://0x7f.1/", "not an address of the internet"),
            ("http://[::1]:80/", "not an address of the internet"),
            ("http://[::ffff:10.0.0.1]/", "not an address of the internet"),
        ] {
            let error = url(bad, &[]).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
        assert!(url(&format!("http://e/{}", "x".repeat(LONGEST_URL)), &[]).is_err());
        assert!(url("http://127.0.0.1/", &["127.0.0.0/8".parse().unwrap()]).is_ok());
    }

    #[tokio::test]
    async fn a_name_is_what_its_addresses_are() {
        let local: Url = "http://localhost:7/".parse().unwrap();
        assert!(addresses(&local, &[]).await.unwrap_err().contains("not an address"));
        let allowed = ["127.0.0.0/8", "::1"].map(|text| text.parse().unwrap());
        let found = addresses(&local, &allowed).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
    }
}
