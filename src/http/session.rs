//! How tokens are verified: the hash that a bearer token is compared with, and the session value that a browser holds
//! instead of the token.
//!
//! A browser sends its cookies to every port of a host, and stores them in a file. Therefore it gets not the token but a
//! value derived from the token's hash and a key known only to this server: it is valid for pages of this server only, and
//! only as long as the token is configured.

use axum::http::{HeaderMap, header};
use std::fmt;
use std::sync::Arc;

/// The cookie that holds a session.
pub const COOKIE: &str = "sparsetune_session";

/// The configured tokens. Comparing BLAKE3 hashes takes constant time.
#[derive(Clone)]
pub struct Tokens(Arc<[Known]>);

#[derive(Clone, Copy)]
struct Known {
    token: blake3::Hash,
    session: blake3::Hash,
}

/// A session in a log would admit everyone who reads the log.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

impl Tokens {
    /// `key` is the server's secret; changing it ends all sessions.
    pub fn new(hashes: impl IntoIterator<Item = blake3::Hash>, key: &[u8; 32]) -> Self {
        let known = |token: blake3::Hash| {
            let session = blake3::keyed_hash(key, token.as_bytes());
            Known { token, session }
        };
        Self(hashes.into_iter().map(known).collect())
    }

    /// Whether this is one of the tokens. All are compared, so the time does not reveal which one was close.
    pub fn knows(&self, token: &[u8]) -> bool {
        self.session(token).is_some()
    }

    /// The session value for this token; `None` for an unknown token.
    pub fn session(&self, token: &[u8]) -> Option<blake3::Hash> {
        let given = blake3::hash(token);
        self.0.iter().fold(
            None,
            |found, known| {
                if known.token == given { Some(known.session) } else { found }
            },
        )
    }

    /// Whether this is the session value of one of the tokens.
    pub fn opened(&self, session: &[u8]) -> bool {
        let Ok(given) = blake3::Hash::from_hex(session) else { return false };
        self.0.iter().fold(false, |hit, known| hit | (known.session == given))
    }
}

/// The values of all cookies with our name.
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

/// `Set-Cookie` that removes the session.
pub fn no_cookie(secure: bool) -> String {
    set_cookie("", "; Max-Age=0", secure)
}

/// Lax: a link from another site leads to the page instead of the sign-in. Changes require our Origin anyway.
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
        // After the token has been removed from the configuration, or on another server, the session is invalid.
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
