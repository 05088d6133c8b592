//! API tokens: those of the store and of the configuration, kept in memory, where every request looks them up.

use super::{Result, Service, ServiceError};
use crate::domain::{Caller, Digest, Namespace, Scopes, Timestamp, Token, TokenLimits, TokenName};
use crate::environment::random;
use crate::store::{NO_TOKENS_YET, StoredToken};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Most tokens of a namespace in force: all are in memory.
const MOST: u32 = 100;
/// By which people and scanners of files recognise a token.
const PREFIX: &str = "spt_";
/// When a token was last used is told to the hour.
const HOUR_MS: i64 = 3_600_000;
/// Longest life of a token.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);

/// A token to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewToken {
    pub name: TokenName,
    pub scopes: Scopes,
    /// `None`: it does not expire.
    pub lasting: Option<Duration>,
    pub limits: TokenLimits,
    /// `None`: that of who makes it. Only the operator makes tokens of others.
    pub namespace: Option<Namespace>,
    /// Whether other namespaces may be answered with its plans.
    pub share_plans: bool,
}

/// A token that has just been made, with its secret, which is kept nowhere.
#[derive(Clone, PartialEq)]
pub struct MadeToken {
    pub token: Token,
    pub secret: String,
}

impl fmt::Debug for MadeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MadeToken({})", self.token.name)
    }
}

/// The tokens that are in force or have expired; revoked ones are forgotten.
#[derive(Debug, Default)]
pub struct Ring {
    known: RwLock<Arc<Known>>,
    /// Once a token is required, it is until the process ends: revoking the last one opens nothing.
    required: AtomicBool,
    /// The operator's word that a store whose tokens have all ended needs none.
    open: AtomicBool,
    /// The revision of the store's tokens that was read.
    revision: AtomicU64,
    /// Held while they are read, so that no earlier reading replaces a later one.
    reading: tokio::sync::Mutex<()>,
    /// The hour in which each token was last used by this process.
    used: RwLock<HashMap<Digest, i64>>,
    /// Whether any of these is not in the store yet.
    unsaved: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    configured: Vec<Arc<StoredToken>>,
    by_hash: HashMap<Digest, Arc<StoredToken>>,
}

impl Known {
    fn of(configured: Vec<Arc<StoredToken>>, stored: Vec<Arc<StoredToken>>) -> Self {
        let all = stored.into_iter().chain(configured.iter().cloned());
        let by_hash = all.map(|one| (one.hash, one)).collect();
        Self { configured, by_hash }
    }
}

impl Ring {
    /// A ring of these tokens alone.
    pub fn of(tokens: impl IntoIterator<Item = StoredToken>) -> Self {
        let ring = Self::default();
        ring.set(Known::of(tokens.into_iter().map(Arc::new).collect(), Vec::new()), false);
        ring
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `made`: whether tokens were ever made, of which none may be left.
    fn set(&self, known: Known, made: bool) {
        if !known.by_hash.is_empty() || made && !self.open.load(Ordering::Acquire) {
            self.required.store(true, Ordering::Release);
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Whether requests need a token.
    pub fn required(&self) -> bool {
        self.required.load(Ordering::Acquire)
    }

    /// Whether requests need a token and there is none that would do.
    pub fn admits_nobody(&self) -> bool {
        let now = Timestamp::now();
        self.required() && self.known().by_hash.values().all(|one| one.token.is_expired(now))
    }

    /// The token with this secret, which may have expired. It is found by its hash, so that the time tells nothing of other tokens, and
    /// hashes are compared in constant time.
    pub fn find(&self, secret: &[u8]) -> Option<Arc<StoredToken>> {
        let given = blake3::hash(secret);
        let known = self.known();
        let found = known.by_hash.get(&Digest::from_bytes(*given.as_bytes()))?;
        (given == *found.hash.as_bytes()).then(|| Arc::clone(found))
    }

    /// The token of a caller, in force or expired.
    pub fn of_caller(&self, caller: &Caller) -> Option<Arc<StoredToken>> {
        let name = caller.token.as_ref()?;
        let is_it = |token: &Token| token.name == *name && token.namespace == caller.namespace;
        self.known().by_hash.values().find(|one| is_it(&one.token)).cloned()
    }

    /// Whether a token may still be used that was admitted before; without one, whether none is required.
    pub fn still_admits(&self, token: Option<&StoredToken>) -> bool {
        match token {
            None => !self.required(),
            Some(token) => {
                let expired = token.token.is_expired(Timestamp::now());
                !expired && self.known().by_hash.contains_key(&token.hash)
            }
        }
    }

    /// Notes that the token with this hash is used. Within an hour nothing is written again, not even in memory.
    pub fn note_use(&self, hash: &Digest, now: Timestamp) {
        let hour = now.0 - now.0.rem_euclid(HOUR_MS);
        if self.used.read().unwrap_or_else(PoisonError::into_inner).get(hash) == Some(&hour) {
            return;
        }
        self.used.write().unwrap_or_else(PoisonError::into_inner).insert(*hash, hour);
        self.unsaved.store(true, Ordering::Release);
    }

    fn last_use(&self, hash: &Digest) -> Option<Timestamp> {
        let used = self.used.read().unwrap_or_else(PoisonError::into_inner);
        used.get(hash).copied().map(Timestamp)
    }

    /// The last uses that are known, of tokens that still are.
    fn uses(&self) -> Vec<(Digest, Timestamp)> {
        let known = self.known();
        let mut used = self.used.write().unwrap_or_else(PoisonError::into_inner);
        used.retain(|hash, _| known.by_hash.contains_key(hash));
        used.iter().map(|(hash, at)| (*hash, Timestamp(*at))).collect()
    }

    /// The tokens of this name, in force or expired: each namespace may have one.
    pub fn named(&self, name: &str) -> Vec<Arc<StoredToken>> {
        let known = self.known();
        let named = known.by_hash.values().filter(|one| one.token.name.as_str() == name);
        named.cloned().collect()
    }
}

impl Service {
    /// The tokens of this service.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.inner.ring
    }

    /// Reads the store's tokens, and adds those of the configuration: these permit everything in the namespace
    /// that is given. Where tokens
    /// were ever made, one is required, also if all have ended since or cannot be read, unless `open` is the operator's word.
    pub async fn open_ring(
        &self,
        configured: impl IntoIterator<Item = [u8; 32]>,
        namespace: &Namespace,
        open: bool,
    ) -> Result<()> {
        let of = |hash: [u8; 32]| {
            let hash = Digest::from_bytes(hash);
            let token = Token {
                name: TokenName::configured(&hash.to_string()),
                scopes: Scopes::all(),
                namespace: namespace.clone(),
                created_at: Timestamp::now(),
                expires_at: None,
                revoked_at: None,
                limits: TokenLimits::owners(),
                share_plans: false,
                last_used_at: None,
            };
            Arc::new(StoredToken { token, hash })
        };
        let ring = &self.inner.ring;
        ring.open.store(open, Ordering::Release);
        ring.set(Known::of(configured.into_iter().map(of).collect(), Vec::new()), false);
        self.read_tokens().await
    }

    /// Takes over what other processes have changed.
    pub(super) async fn look_at_tokens(&self) -> Result<()> {
        let seen = self.inner.ring.revision.load(Ordering::Acquire);
        if self.store.tokens_revision().await? != seen {
            self.read_tokens().await?;
        }
        Ok(())
    }

    async fn read_tokens(&self) -> Result<()> {
        let _alone = self.inner.ring.reading.lock().await;
        // Before the tokens: a change in between is read twice, and not missed.
        let revision = self.store.tokens_revision().await?;
        let stored = self.store.live_tokens().await?.into_iter().map(Arc::new).collect();
        let ring = &self.inner.ring;
        ring.set(Known::of(ring.known().configured.clone(), stored), revision != NO_TOKENS_YET);
        ring.revision.store(revision, Ordering::Release);
        Ok(())
    }

    /// Makes a token. Its secret is in the answer and nowhere else.
    pub async fn make_token(&self, asked: NewToken) -> Result<MadeToken> {
        let NewToken { name, scopes, lasting, limits, namespace, share_plans } = asked;
        let namespace = namespace.unwrap_or_else(|| self.caller.namespace.clone());
        let own = self.caller.namespace == namespace;
        if !own && !self.caller.is_operators() {
            let message = "this token makes tokens of its own namespace";
            return Err(ServiceError::invalid("/namespace", message));
        }
        if !self.caller.is_operators() && !self.caller.limits.bounds_nothing() {
            let message =
                "a token with limits makes no others: with these it could use more than it may";
            return Err(ServiceError::invalid("/limits", message));
        }
        // Priorities are among the jobs of all.
        if !self.caller.is_operators()
            && limits.highest_priority() > self.caller.limits.highest_priority()
        {
            let message = "no token makes one with a higher max_priority than its own";
            return Err(ServiceError::invalid("/limits", message));
        }
        if scopes.is_empty() {
            return Err(ServiceError::invalid("/scopes", "a token needs at least one scope"));
        }
        if name.is_configured() {
            let message = "names of this form are those of tokens of the configuration";
            return Err(ServiceError::invalid("/name", message));
        }
        if lasting.is_some_and(|life| life.is_zero() || life > LONGEST) {
            let message = "a token lasts at least a second and at most ten years";
            return Err(ServiceError::invalid("/expires_in_s", message));
        }
        limits.check().map_err(|error| ServiceError::invalid("/limits", error.to_string()))?;
        let random = random::secret().map_err(|error| ServiceError::of_io("a token", error))?;
        let secret = format!("{PREFIX}{}", Digest::from_bytes(random));
        let created_at = Timestamp::now();
        let ends = |life: Duration| {
            created_at.plus_millis(i64::try_from(life.as_millis()).unwrap_or(i64::MAX))
        };
        let token = Token {
            name,
            scopes,
            namespace,
            created_at,
            expires_at: lasting.map(ends),
            revoked_at: None,
            limits,
            share_plans,
            last_used_at: None,
        };
        let hash = Digest::from_bytes(*blake3::hash(secret.as_bytes()).as_bytes());
        let stored = StoredToken { token, hash };
        if !self.store.insert_token(&stored, MOST).await? {
            let message = format!(
                "a token named {} is in force: revoke it first, or choose another name",
                stored.token.name
            );
            return Err(ServiceError::Conflict { message });
        }
        self.read_tokens().await?;
        Ok(MadeToken { token: stored.token, secret })
    }

    /// The tokens of the caller's namespace, newest first, also revoked and expired ones; for the operator those of the configuration,
    /// then those of all namespaces.
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        let own = &self.caller.namespace;
        let of = (!self.caller.is_operators()).then_some(own);
        let ring = &self.inner.ring;
        let used = |hash: &Digest, token: Token| {
            let last_used_at = token.last_used_at.max(ring.last_use(hash));
            Token { last_used_at, ..token }
        };
        let configured = ring.known().configured.clone();
        let configured = configured.iter().map(|one| used(&one.hash, one.token.clone()));
        let configured = configured.filter(|one| of.is_none_or(|of| one.namespace == *of));
        let stored = self.store.tokens(of).await?.into_iter();
        Ok(configured.chain(stored.map(|one| used(&one.hash, one.token))).collect())
    }

    /// Ends a token in force of a namespace, else of the caller's: the next request with it is refused here, and by other processes of
    /// the store within a moment. Only the operator ends those of other namespaces.
    pub async fn revoke_token(&self, name: &TokenName, of: Option<&Namespace>) -> Result<()> {
        let own = &self.caller.namespace;
        let of = of.unwrap_or(own);
        if of != own && !self.caller.is_operators() {
            return Err(ServiceError::not_found("token", name));
        }
        if name.is_configured() && self.caller.is_operators() {
            let message = "tokens of the configuration are removed there (server.tokens)";
            return Err(ServiceError::Conflict { message: message.to_owned() });
        }
        let revoked = self.store.revoke_token(of, name, Timestamp::now()).await?;
        if revoked.is_none() {
            return Err(ServiceError::not_found("token", name));
        }
        self.read_tokens().await
    }

    /// Stores when tokens were last used, which requests only note in memory: by the hour, so that this is seldom written.
    pub(super) async fn save_uses(&self) -> Result<()> {
        let ring = &self.inner.ring;
        if !ring.unsaved.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let uses = ring.uses();
        let saved = self.store.note_uses(&uses).await;
        if saved.is_err() {
            ring.unsaved.store(true, Ordering::Release);
        }
        Ok(saved?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, secret: &str) -> Arc<StoredToken> {
        let token = Token {
            name: name.parse().unwrap(),
            scopes: Scopes::all(),
            namespace: Namespace::default(),
            created_at: Timestamp(0),
            expires_at: None,
            revoked_at: None,
            limits: TokenLimits::default(),
            share_plans: false,
            last_used_at: None,
        };
        let hash = Digest::from_bytes(*blake3::hash(secret.as_bytes()).as_bytes());
        Arc::new(StoredToken { token, hash })
    }

    #[test]
    fn a_ring_that_was_closed_stays_closed() {
        let ring = Ring::default();
        assert!(!ring.required() && ring.find(b"sesame").is_none());
        ring.set(Known::of(vec![token("a", "sesame")], vec![token("b", "other")]), true);
        assert_eq!(ring.find(b"sesame").unwrap().token.name.as_str(), "a");
        assert_eq!(ring.find(b"other").unwrap().token.name.as_str(), "b");
        assert!(ring.find(b"sesam").is_none() && ring.find(b"").is_none());
        assert_eq!(ring.named("b")[0].token.name.as_str(), "b");
        assert!(ring.named("c").is_empty());
        assert!(!ring.admits_nobody());
        let mut expired = StoredToken::clone(&token("c", "late"));
        expired.token.expires_at = Some(Timestamp(5));
        ring.set(Known::of(Vec::new(), vec![Arc::new(expired)]), true);
        assert!(ring.required() && ring.admits_nobody() && ring.find(b"late").is_some());
        ring.set(Known::default(), true);
        assert!(ring.required() && ring.admits_nobody() && ring.find(b"sesame").is_none());
    }
}
