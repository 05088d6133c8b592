//! What a token is known by: the hash that a bearer is compared with, and what a browser holds instead of the token.
//!
//! A browser sends its cookies to every port of a host, and keeps them in a file. So it is given no token but a value
//! made of the token's hash and a key that this server alone has: good for pages here, for nothing elsewhere, and for as
//! long as the token is one of the configuration's.

use axum::http::{HeaderMap, header};
use std::fmt;
use std::sync::Arc;

/// The cookie that holds a session.
pub const COOKIE: &str = "sparsetune_session";

/// The tokens of the configuration. Comparing BLAKE3 hashes takes the same time whatever they hold.
#[derive(Clone)]
pub struct Tokens(Arc<[Known]>);

#[derive(Clone, Copy)]
struct Known {
    token: blake3::Hash,
    session: blake3::Hash,
}

/// A session in a log would let its reader in.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

impl Tokens {
    /// `key` is the server's own secret; under another one all sessions have ended.
    pub fn new(hashes: impl IntoIterator<Item = blake3::Hash>, key: &[u8; 32]) -> Self {
        let known = |token: blake3::Hash| {
            let session = blake3::keyed_hash(key, token.as_bytes());
            Known { token, session }
        };
        Self(hashes.into_iter().map(known).collect())
    }

    /// Whether this is one of the tokens. Every one is compared, so the time does not tell which one was near.
    pub fn knows(&self, token: &[u8]) -> bool {
        self.session(token).is_some()
    }

    /// What a browser gets for this token; `None` for one that is not known.
    pub fn session(&self, token: &[u8]) -> Option<blake3::Hash> {
        let given = blake3::hash(token);
        self.0.iter().fold(
            None,
            |found, known| {
                if known.token == given { Some(known.session) } else { found }
            },
        )
    }

    /// Whether a browser got this for one of the tokens.
    pub fn opened(&self, session: &[u8]) -> bool {
        let Ok(given) = blake3::Hash::from_hex(session) else { return false };
        self.0.iter().fold(false, |hit, known| hit | (known.session == given))
    }
}

/// The values of all cookies of our name.
pub fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let pairs = headers.get_all(header::COOKIE).iter();
    pairs.flat_map(|value| value.as_bytes().split(|&byte| byte == b';')).filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|&byte| byte == b'=')?);
        let ours = name.trim_ascii() == COOKIE.as_bytes();
        ours.then_some(value.get(1..)?.trim_ascii())
    })
}

/// `Set-Cookie` for a session.
pub fn cookie(session: &blake3::Hash, secure: bool) -> String {
    set_cookie(&session.to_hex(), "", secure)
}

/// `Set-Cookie` that takes it away.
pub fn no_cookie(secure: bool) -> String {
    set_cookie("", "; Max-Age=0", secure)
}

/// Lax: a link from elsewhere leads to the page, not to the sign-in. What changes something needs our Origin anyway.
fn set_cookie(value: &str, age: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Lax{age}{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_of_one_token_and_one_server() {
        let hash = blake3::hash(b"sesame");
        let here = Tokens::new([blake3::hash(b"other"), hash], &[1; 32]);
        let session = here.session(b"sesame").unwrap().to_hex();
        assert!(here.opened(session.as_bytes()));
        assert!(
            here.knows(b"sesame") && !here.knows(session.as_bytes()) && !here.opened(b"sesame")
        );
        assert!(!here.opened(hash.to_hex().as_bytes()), "the configuration may have the hash");
        assert!(here.session(b"unknown").is_none() && !here.opened(b""));
        assert_ne!(session, here.session(b"other").unwrap().to_hex());
        // After the token has left the configuration, or on another server, it opens nothing.
        assert!(!Tokens::new([blake3::hash(b"other")], &[1; 32]).opened(session.as_bytes()));
        assert!(!Tokens::new([hash], &[2; 32]).opened(session.as_bytes()));
        assert!(Tokens::new([hash], &[1; 32]).opened(session.as_bytes()), "it outlives a restart");
    }

    #[test]
    fn a_cookie_is_not_for_scripts_nor_other_sites() {
        let session = blake3::hash(b"x");
        let set = cookie(&session, true);
        let value = session.to_hex();
        assert_eq!(set, format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Lax; Secure"));
        assert!(!cookie(&session, false).contains("Secure"));
        assert!(no_cookie(false).contains("Max-Age=0"));
    }
}
