//! How tokens are verified: the hash that a bearer token is compared with, and the session value that a browser holds
//! instead of the token.
//!
//! A browser sends its cookies to every port of a host, and stores them in a file. Therefore it gets not the token but a
//! value derived from the token's hash, a key known only to this server and the time of its end: it is valid for pages of this
//! server only, until then, and only as long as the token is in force. The token's name is beside it, to find it by.

use crate::domain::{Digest, Timestamp};
use crate::service::{Ring, StoredToken};
use axum::http::{HeaderMap, header};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The cookie that holds a session.
pub const COOKIE: &str = "sparsetune_session";

/// The server's tokens, and the sessions of browsers that signed in with one. Comparing BLAKE3 hashes takes constant time.
#[derive(Clone)]
pub struct Tokens {
    ring: Arc<Ring>,
    /// The server's secret, which sessions are made with.
    key: [u8; 32],
    /// How long a session lasts.
    lasting: Duration,
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
    pub fn new(ring: Arc<Ring>, key: &[u8; 32]) -> Self {
        Self { ring, key: *key, lasting: LASTING }
    }

    /// The same tokens, with sessions that last for so long.
    pub fn lasting(self, lasting: Duration) -> Self {
        Self { lasting, ..self }
    }

    /// Whether requests need a token.
    pub fn required(&self) -> bool {
        self.ring.required()
    }

    /// The token with this secret, which may have expired.
    pub fn find(&self, secret: &[u8]) -> Option<Arc<StoredToken>> {
        self.ring.find(secret)
    }

    /// Notes that a request was admitted with the token of this hash.
    pub fn note_use(&self, hash: &Digest) {
        self.ring.note_use(hash, Timestamp::now());
    }

    /// The value of a session for this token that begins now; `None` for an unknown or expired token. It ends with the token at the
    /// latest.
    pub fn session(&self, secret: &[u8]) -> Option<String> {
        self.session_from(secret, now())
    }

    fn session_from(&self, secret: &[u8], begin: Duration) -> Option<String> {
        let end = (begin + self.lasting).as_secs();
        let token = self.find(secret).filter(|one| !one.token.is_expired(at(begin)))?;
        Some(format!("{end:x}.{}.{}", self.seal(&token.hash, end).to_hex(), token.token.name))
    }

    /// The token of a session that has not ended.
    pub fn of_session(&self, session: &[u8]) -> Option<Arc<StoredToken>> {
        self.of_session_at(session, now())
    }

    fn of_session_at(&self, session: &[u8], now: Duration) -> Option<Arc<StoredToken>> {
        let mut parts = std::str::from_utf8(session).ok()?.splitn(3, '.');
        let (end, seal, name) = (parts.next()?, parts.next()?, parts.next()?);
        let (end, seal) = (u64::from_str_radix(end, 16).ok()?, blake3::Hash::from_hex(seal).ok()?);
        if now.as_secs() >= end {
            return None;
        }
        // Only the named one is compared, of which each namespace may have its own: whoever asks may send what they like.
        let mut named = self.ring.named(name).into_iter();
        let token = named.rfind(|one| self.seal(&one.hash, end) == seal);
        token.filter(|one| !one.token.is_expired(at(now)))
    }

    fn seal(&self, token: &Digest, end: u64) -> blake3::Hash {
        let key = blake3::keyed_hash(&self.key, token.as_bytes());
        blake3::keyed_hash(key.as_bytes(), &end.to_le_bytes())
    }

    /// `Set-Cookie` for a session, which the browser drops when it has ended.
    pub fn cookie(&self, session: &str, secure: bool) -> String {
        set_cookie(session, &format!("; Max-Age={}", self.lasting.as_secs()), secure)
    }
}

/// The time since 1970; before, no session has ended.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn at(time: Duration) -> Timestamp {
    Timestamp(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

/// Cookies of one request that are looked at. Other paths of this server may have set some of the same name, but not many.
const MOST_COOKIES: usize = 4;

/// The values of the first cookies with our name.
pub fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let pairs = headers.get_all(header::COOKIE).iter();
    let pairs = pairs.flat_map(|value| value.as_bytes().split(|&byte| byte == b';'));
    let values = pairs.filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|&byte| byte == b'=')?);
        let ours = name.trim_ascii() == COOKIE.as_bytes();
        ours.then_some(value.get(1..)?.trim_ascii())
    });
    values.take(MOST_COOKIES)
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
    use crate::domain::{Namespace, Scopes, Token, TokenLimits};

    fn tokens(secrets: &[(&str, Option<i64>)], key: u8) -> Tokens {
        let token = |(secret, end): &(&str, Option<i64>)| StoredToken {
            hash: Digest::of(secret.as_bytes()),
            token: Token {
                name: secret.parse().unwrap(),
                scopes: Scopes::all(),
                namespace: Namespace::default(),
                created_at: Timestamp(0),
                expires_at: end.map(Timestamp),
                revoked_at: None,
                limits: TokenLimits::default(),
                share_plans: false,
                last_used_at: None,
            },
        };
        Tokens::new(Arc::new(Ring::of(secrets.iter().map(token))), &[key; 32])
    }

    #[test]
    fn a_session_is_of_one_token_and_one_server() {
        let here = tokens(&[("other", None), ("sesame", None)], 1);
        let session = here.session(b"sesame").unwrap();
        let name = |tokens: &Tokens, session: &[u8]| {
            tokens.of_session(session).map(|one| one.token.name.to_string())
        };
        assert_eq!(name(&here, session.as_bytes()).as_deref(), Some("sesame"));
        assert!(here.find(b"sesame").is_some() && here.find(session.as_bytes()).is_none());
        assert_eq!(name(&here, b"sesame"), None);
        let hash = Digest::of(b"sesame").to_string();
        assert_eq!(name(&here, hash.as_bytes()), None, "the store has the hash");
        assert_eq!((name(&here, b"1.2"), name(&here, b"1.2.3")), (None, None));
        let of_another = session.replace(".sesame", ".other");
        assert_eq!(name(&here, of_another.as_bytes()), None, "it is of the token that it names");
        assert!(here.session(b"unknown").is_none() && name(&here, b"").is_none());
        assert_ne!(session, here.session(b"other").unwrap());
        // After the token has been removed, or on another server, the session is invalid.
        assert_eq!(name(&tokens(&[("other", None)], 1), session.as_bytes()), None);
        assert_eq!(name(&tokens(&[("sesame", None)], 2), session.as_bytes()), None);
        let again = tokens(&[("sesame", None)], 1);
        assert!(name(&again, session.as_bytes()).is_some(), "it outlives a restart");
    }

    /// A cookie that was copied once was valid for as long as its token.
    #[test]
    fn a_session_ends_and_so_does_its_token() {
        let known = tokens(&[("sesame", None), ("brief", Some(1_030_000))], 1);
        let known = known.lasting(Duration::from_secs(60));
        let at = Duration::from_secs;
        let session = known.session_from(b"sesame", at(1000)).unwrap();
        let opened =
            |session: &str, when| known.of_session_at(session.as_bytes(), at(when)).is_some();
        assert!(opened(&session, 1000) && opened(&session, 1059) && !opened(&session, 1060));
        // Nobody but the server moves the end.
        let (end, seal) = session.split_once('.').unwrap();
        assert_eq!(end, "424");
        for other in [format!("fff.{seal}"), seal.to_owned(), format!(".{seal}"), format!("{end}.")]
        {
            assert!(!opened(&other, 1000), "{other}");
        }
        assert!(known.of_session(session.as_bytes()).is_none(), "that was in 1970");
        let brief = known.session_from(b"brief", at(1000)).unwrap();
        assert!(opened(&brief, 1029) && !opened(&brief, 1030), "the token has expired");
        assert!(known.session_from(b"brief", at(1030)).is_none());
    }

    /// Whoever asks may send thousands.
    #[test]
    fn few_cookies_of_a_request_are_looked_at() {
        let mut headers = HeaderMap::new();
        let many = format!("a=b; {}", format!("{COOKIE}=x; ").repeat(1000));
        for _ in 0..3 {
            headers.append(header::COOKIE, many.parse().unwrap());
        }
        assert_eq!(cookies(&headers).collect::<Vec<_>>(), [b"x"; MOST_COOKIES]);
    }

    #[test]
    fn a_cookie_is_not_for_scripts_nor_other_sites() {
        let tokens = tokens(&[], 1).lasting(Duration::from_secs(5));
        let set = tokens.cookie("x", true);
        assert_eq!(set, format!("{COOKIE}=x; Path=/; HttpOnly; SameSite=Lax; Max-Age=5; Secure"));
        assert!(!tokens.cookie("x", false).contains("Secure"));
        assert!(no_cookie(false).contains("Max-Age=0"));
    }
}
