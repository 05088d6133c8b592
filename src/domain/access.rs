//! Who asks, and what they may do: tokens with names and scopes, and the namespaces that they belong to.

use super::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a token permits. Every operation of the API needs one of them, and `admin` includes the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// See matrices, jobs, plans, devices and models, and look plans up.
    Read,
    /// Store and delete matrices, and import bundles.
    Submit,
    /// Queue and cancel jobs, which use the devices.
    Tune,
    /// Read the metrics.
    Metrics,
    /// Everything in the token's namespace, with its tokens, webhooks and audit log. In the namespace `default`, that of who runs the
    /// service, also what concerns all: tokens of every namespace, models, the quarantine, the metrics.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Read, Self::Submit, Self::Tune, Self::Metrics, Self::Admin];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Tune => "tune",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a text is not what it should be, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotValid(String);

impl fmt::Display for NotValid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotValid {}

impl FromStr for Scope {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            NotValid(format!("`{text}` is no scope; there are {known}"))
        })
    }
}

/// Several scopes, in their order and without repetitions; written as `read,submit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scopes(Vec<Scope>);

impl Scopes {
    pub fn all() -> Self {
        Self(vec![Scope::Admin])
    }

    pub fn of(scopes: impl IntoIterator<Item = Scope>) -> Self {
        let mut scopes: Vec<Scope> = scopes.into_iter().collect();
        scopes.sort_unstable();
        scopes.dedup();
        Self(scopes)
    }

    pub fn permit(&self, scope: Scope) -> bool {
        self.0.iter().any(|own| *own == scope || *own == Scope::Admin)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_slice(&self) -> &[Scope] {
        &self.0
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|scope| scope.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Scopes {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let scopes: Vec<Scope> =
            text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Self::of(scopes))
    }
}

/// A text that can stand in addresses, logs and files: 1 to 64 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit.
fn checked(what: &str, text: &str) -> Result<String, NotValid> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if first && text.len() <= 64 && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(NotValid(format!(
        "a {what} has 1 to 64 of a-z, A-Z, 0-9, `.`, `_` and `-`, and begins with a letter or digit"
    )))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NotValid;

            fn from_str(text: &str) -> Result<Self, NotValid> {
                checked($what, text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotValid;

            fn try_from(text: String) -> Result<Self, NotValid> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a token, unique among those in force.
    TokenName, "token's name"
}
name! {
    /// To whom matrices, jobs, plans, webhooks and entries of the audit log belong: what is of another is not seen.
    Namespace, "namespace"
}

impl Default for Namespace {
    /// The namespace of everything that was stored without one.
    fn default() -> Self {
        Self("default".to_owned())
    }
}

/// What tokens of the configuration are called: this, and the first 8 hex digits of their hash.
const CONFIGURED: &str = "configured-";

impl TokenName {
    /// The name of a token of the configuration with this BLAKE3 hash in hex digits.
    pub fn configured(hash: &str) -> Self {
        Self(format!("{CONFIGURED}{}", hash.get(..8).unwrap_or(hash)))
    }

    /// Whether the name is kept for tokens of the configuration.
    pub fn is_configured(&self) -> bool {
        self.0.starts_with(CONFIGURED)
    }
}

/// Deserialises an optional member of a request that may be absent but not null: there is only one way to omit it.
pub fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// How much a token may use; an absent limit is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenLimits {
    /// Bytes of the matrices that it has stored, as [`super::Matrix::charged_bytes`] counts them, and of the programs, arrays and bundles of
    /// its plans.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Matrices that it has stored.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub matrices: Option<u64>,
    /// Jobs that wait at once.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub queued_jobs: Option<u64>,
    /// Seconds of search in 24 hours, with the budgets of jobs that wait or run.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub search_seconds_per_day: Option<f64>,
    /// The largest budget of a job in seconds; the server's own bound applies as well.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub job_seconds: Option<f64>,
    /// The largest budget of a job in trials.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub job_trials: Option<u32>,
    /// The highest priority of a job.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i32>,
}

impl TokenLimits {
    /// The range of priorities.
    pub const PRIORITIES: std::ops::RangeInclusive<i32> = -100..=100;

    /// Which limit makes no sense, if any does not.
    ///
    /// # Errors
    /// Names the limit.
    pub fn check(&self) -> Result<(), NotValid> {
        let positive = |name: &str, value: Option<f64>| match value {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                Err(NotValid(format!("{name} must be above 0")))
            }
            _ => Ok(()),
        };
        positive("search_seconds_per_day", self.search_seconds_per_day)?;
        positive("job_seconds", self.job_seconds)?;
        positive("job_trials", self.job_trials.map(f64::from))?;
        // Counts are signed in every store.
        let most = [self.stored_bytes, self.matrices, self.queued_jobs];
        if most.into_iter().flatten().any(|most| i64::try_from(most).is_err()) {
            return Err(NotValid(format!("a limit is at most {}", i64::MAX)));
        }
        match self.max_priority.filter(|most| !Self::PRIORITIES.contains(most)) {
            Some(_) => Err(NotValid("max_priority must be -100 to 100".to_owned())),
            None => Ok(()),
        }
    }

    /// The highest priority that is permitted: 0 unless it says otherwise.
    pub fn highest_priority(&self) -> i32 {
        self.max_priority.unwrap_or(0)
    }

    /// Whether it may use as much as there is.
    pub fn bounds_nothing(&self) -> bool {
        Self { max_priority: None, ..self.clone() } == Self::default()
    }

    /// Those of who owns the server.
    pub fn owners() -> Self {
        Self { max_priority: Some(*Self::PRIORITIES.end()), ..Self::default() }
    }
}

/// A limit of a token that a request would have exceeded.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaExceeded {
    /// The limit's name in [`TokenLimits`].
    pub quota: &'static str,
    pub limit: f64,
    /// What is used already.
    pub used: f64,
    /// What the request needs.
    pub need: f64,
    /// Whether time alone makes room, without anything being deleted.
    pub passes: bool,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, limit, used, need, .. } = self;
        write!(f, "the quota {quota} is {limit}: {used} are used, and this needs {need}")
    }
}

impl std::error::Error for QuotaExceeded {}

/// An API token, without its secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub name: TokenName,
    pub scopes: Scopes,
    pub namespace: Namespace,
    pub created_at: Timestamp,
    /// `None`: it does not expire.
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub limits: TokenLimits,
    /// Whether lookups of other namespaces may be answered with measured plans that it made. It holds while the token is in force.
    pub share_plans: bool,
    /// The hour in which it was last used; `None` if it was not, or nobody has noted it yet.
    pub last_used_at: Option<Timestamp>,
}

impl Token {
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

/// On whose behalf a request is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    /// `None` if the server requires no tokens.
    pub token: Option<TokenName>,
    pub scopes: Scopes,
    pub namespace: Namespace,
    pub limits: TokenLimits,
}

impl Caller {
    /// Whoever reaches a server that requires no tokens.
    pub fn anyone() -> Self {
        Self::owner(None, Namespace::default())
    }

    /// Whether the caller is of the namespace of who runs the service: what concerns all users is changed from there alone.
    pub fn is_operators(&self) -> bool {
        self.namespace == Namespace::default()
    }

    /// Who has all rights in a namespace.
    pub fn owner(token: Option<TokenName>, namespace: Namespace) -> Self {
        Self { token, scopes: Scopes::all(), namespace, limits: TokenLimits::owners() }
    }
}

impl From<&Token> for Caller {
    fn from(token: &Token) -> Self {
        Self {
            token: Some(token.name.clone()),
            scopes: token.scopes.clone(),
            namespace: token.namespace.clone(),
            limits: token.limits.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written_and_admin_has_all() {
        let scopes: Scopes = "tune, read,read".parse().unwrap();
        assert_eq!(scopes.to_string(), "read,tune");
        assert!(scopes.permit(Scope::Tune) && !scopes.permit(Scope::Submit));
        assert!(Scope::ALL.into_iter().all(|scope| Scopes::all().permit(scope)));
        let wrong = "read,write".parse::<Scopes>().unwrap_err().to_string();
        assert!(wrong.contains("`write`") && wrong.contains("submit"), "{wrong}");
        assert!("".parse::<Scopes>().is_err());
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let read = |text: &str| serde_json::from_str::<TokenLimits>(text).unwrap().check();
        assert!(read("{}").is_ok() && TokenLimits::owners().check().is_ok());
        assert!(serde_json::from_str::<TokenLimits>(r#"{"max_priority": null}"#).is_err());
        assert!(read(r#"{"matrices": 0, "queued_jobs": 1, "job_seconds": 0.5}"#).is_ok());
        for bad in [
            r#"{"job_trials": 0}"#,
            r#"{"job_seconds": -1}"#,
            r#"{"max_priority": 101}"#,
            r#"{"stored_bytes": 18446744073709551615}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<TokenLimits>(r#"{"matrix": 1}"#).is_err());
    }

    #[test]
    fn names_are_plain() {
        for good in ["ci", "Team-7.x_y", "0"] {
            assert_eq!(good.parse::<TokenName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "-a", "a b", "a/b", "é", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<Namespace>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<TokenName>("\"a b\"").is_err());
        let own = TokenName::configured("0123456789abcdef");
        assert!(own.is_configured() && own.as_str() == "configured-01234567");
        assert!(own.as_str().parse::<TokenName>().is_ok());
    }
}
