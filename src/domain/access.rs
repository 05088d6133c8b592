//! Who asks, and what they may do: tokens with names and scopes, and the namespaces that they belong to.

use super::Timestamp;
use serde::{Deserialize, Serialize};
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
    /// Read the metrics, which count for all namespaces.
    Metrics,
    /// Everything, with what concerns all users: tokens, models, the quarantine, the audit log.
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
    /// To whom matrices, jobs and plans belong; other namespaces do not see them.
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
}

impl Caller {
    /// Whoever reaches a server that requires no tokens.
    pub fn anyone() -> Self {
        Self { token: None, scopes: Scopes::all(), namespace: Namespace::default() }
    }
}

impl From<&Token> for Caller {
    fn from(token: &Token) -> Self {
        Self {
            token: Some(token.name.clone()),
            scopes: token.scopes.clone(),
            namespace: token.namespace.clone(),
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
