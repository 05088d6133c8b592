//! How tokens are verified: the hash that a bearer token is compared with, and the session value that a browser holds
//! instead of the token.
//!
//! A browser sends its cookies to every port of a host, and stores them in a file. Therefore it gets not the token but a
//! value derived from the token's hash, a key known only to this server and the time of its end: it is valid for pages of this
//! server only, until then, and only as long as the token is configured.

use axum::http::{HeaderMap, header};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The cookie that holds a session.
pub const COOKIE: &str = "sparsetune_session";

/// The configured tokens. Comparing BLAKE3 hashes takes constant time.
#[derive(Clone)]
pub struct Tokens {
    known: Arc<[Known]>,
    /// How long a session lasts.
    lasting: Duration,
}

#[derive(Clone, Copy)]
struct Known {
    token: blake3::Hash,
    /// The key that sessions of this token are made with.
    key: blake3::Hash,
}

/// How long a session lasts unless the configuration says otherwise.
const LASTING: Duration = Duration::from_secs(7 * 24 * 3600);

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
            let key = blake3::keyed_hash(key, token.as_bytes());
            Known { token, key }
        };
        Self { known: hashes.into_iter().map(known).collect(), lasting: LASTING }
    }

    /// The same tokens, with sessions that last for so long.
    pub fn lasting(self, lasting: Duration) -> Self {
        Self { lasting, ..self }
    }

    /// Whether this is one of the tokens. All are compared, so the time does not reveal which one was close.
    pub fn knows(&self, token: &[u8]) -> bool {
        self.find(token).is_some()
    }

    fn find(&self, token: &[u8]) -> Option<Known> {
        let given = blake3::hash(token);
        let found = |found, known: &Known| if known.token == given { Some(*known) } else { found };
        self.known.iter().fold(None, found)
    }

    /// The value of a session for this token that begins now; `None` for an unknown token.
    pub fn session(&self, token: &[u8]) -> Option<String> {
        self.session_from(token, now())
    }

    fn session_from(&self, token: &[u8], begin: Duration) -> Option<String> {
        let end = (begin + self.lasting).as_secs();
        self.find(token).map(|known| format!("{end:x}.{}", known.seal(end).to_hex()))
    }

    /// Whether this is the value of a session of one of the tokens that has not ended.
    pub fn opened(&self, session: &[u8]) -> bool {
        self.opened_at(session, now())
    }

    fn opened_at(&self, session: &[u8], now: Duration) -> bool {
        self.of_session(session, now).is_some()
    }

    /// The token of a session that has not ended.
    fn of_session(&self, session: &[u8], now: Duration) -> Option<Known> {
        let parts = std::str::from_utf8(session).ok().and_then(|text| text.split_once('.'));
        let (end, seal) = parts?;
        let (end, seal) = (u64::from_str_radix(end, 16).ok()?, blake3::Hash::from_hex(seal).ok()?);
        let of = |of, known: &Known| if known.seal(end) == seal { Some(*known) } else { of };
        let known = self.known.iter().fold(None, of);
        known.filter(|_| now.as_secs() < end)
    }

    /// The name of a token in logs, if the server knows it: the first 8 hex digits of its BLAKE3 hash, by which an operator finds it in
    /// the configuration, and which nobody can use.
    pub fn name(&self, token: &[u8]) -> Option<String> {
        self.find(token).map(Known::name)
    }

    /// The same for the token of a session.
    pub fn name_of_session(&self, session: &[u8]) -> Option<String> {
        self.of_session(session, now()).map(Known::name)
    }

    /// `Set-Cookie` for a session, which the browser drops when it has ended.
    pub fn cookie(&self, session: &str, secure: bool) -> String {
        set_cookie(session, &format!("; Max-Age={}", self.lasting.as_secs()), secure)
    }
}

impl Known {
    fn name(self) -> String {
        self.token.to_hex()[..8].to_owned()
    }

    fn seal(&self, end: u64) -> blake3::Hash {
        blake3::keyed_hash(self.key.as_bytes(), &end.to_le_bytes())
    }
}

/// The time since 1970; before, no session has ended.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
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
        let session = here.session(b"sesame").unwrap();
        assert!(here.opened(session.as_bytes()));
        assert!(
            here.knows(b"sesame") && !here.knows(session.as_bytes()) && !here.opened(b"sesame")
        );
        assert!(!here.opened(hash.to_hex().as_bytes()), "the configuration may have the hash");
        let name = Some(hash.to_hex()[..8].to_owned());
        assert_eq!((here.name(b"sesame"), here.name(b"unknown")), (name.clone(), None));
        assert_eq!(here.name_of_session(session.as_bytes()), name);
        assert_eq!(here.name_of_session(b"1.2"), None);
        assert!(here.session(b"unknown").is_none() && !here.opened(b""));
        assert_ne!(session, here.session(b"other").unwrap());
        // After the token has been removed from the configuration, or on another server, the session is invalid.
        assert!(!Tokens::new([blake3::hash(b"other")], &[1; 32]).opened(session.as_bytes()));
        assert!(!Tokens::new([hash], &[2; 32]).opened(session.as_bytes()));
        assert!(Tokens::new([hash], &[1; 32]).opened(session.as_bytes()), "it outlives a restart");
    }

    /// A cookie that was copied once was valid for as long as its token.
    #[test]
    fn a_session_ends() {
        let tokens = Tokens::new([blake3::hash(b"sesame")], &[1; 32]);
        let tokens = tokens.lasting(Duration::from_secs(60));
        let at = Duration::from_secs;
        let session = tokens.session_from(b"sesame", at(1000)).unwrap();
        let opened = |session: &str, when| tokens.opened_at(session.as_bytes(), at(when));
        assert!(opened(&session, 1000) && opened(&session, 1059) && !opened(&session, 1060));
        // Nobody but the server moves the end.
        let (end, seal) = session.split_once('.').unwrap();
        assert_eq!(end, "424");
        for other in [format!("fff.{seal}"), seal.to_owned(), format!(".{seal}"), format!("{end}.")]
        {
            assert!(!opened(&other, 1000), "{other}");
        }
        assert!(!tokens.opened(session.as_bytes()), "that was in 1970");
    }

    #[test]
    fn a_cookie_is_not_for_scripts_nor_other_sites() {
        let tokens = Tokens::new([], &[1; 32]).lasting(Duration::from_secs(5));
        let set = tokens.cookie("x", true);
        assert_eq!(set, format!("{COOKIE}=x; Path=/; HttpOnly; SameSite=Lax; Max-Age=5; Secure"));
        assert!(!tokens.cookie("x", false).contains("Secure"));
        assert!(no_cookie(false).contains("Max-Age=0"));
    }
}
