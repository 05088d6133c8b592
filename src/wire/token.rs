//! API tokens.

use super::given;
use crate::domain::access::Scope;
use crate::domain::{self, Namespace, Timestamp, TokenLimits, TokenName};
use serde::{Deserialize, Serialize};

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Token {
    #[cfg_attr(test, schemars(with = "String"))]
    pub name: TokenName,
    pub scopes: Vec<Scope>,
    #[cfg_attr(test, schemars(with = "String"))]
    #[serde(default)]
    pub namespace: Namespace,
    pub created_at: String,
    /// When it expires or has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
    /// Whether it is one of the configuration (`server.tokens`).
    #[serde(default)]
    pub configured: bool,
    /// How much it may use.
    #[serde(default)]
    pub limits: TokenLimits,
    /// Whether other namespaces may be answered with its plans.
    #[serde(default)]
    pub share_plans: bool,
    /// The hour in which it was last used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
}

impl From<domain::Token> for Token {
    fn from(token: domain::Token) -> Self {
        let text = |time: Option<Timestamp>| time.map(Timestamp::to_rfc3339);
        Self {
            configured: token.name.is_configured(),
            name: token.name,
            scopes: token.scopes.as_slice().to_vec(),
            created_at: token.created_at.to_rfc3339(),
            expires_at: text(token.expires_at),
            revoked_at: text(token.revoked_at),
            limits: token.limits,
            namespace: token.namespace,
            share_plans: token.share_plans,
            last_used_at: text(token.last_used_at),
        }
    }
}

/// All tokens, on one page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tokens {
    pub items: Vec<Token>,
}

/// A token that has just been made.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MadeToken {
    /// The secret, which is told only here.
    pub token: String,
    #[serde(flatten)]
    pub facts: Token,
}

/// The request for a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    #[cfg_attr(test, schemars(with = "String"))]
    pub name: TokenName,
    /// `read`, `submit` and `tune` unless given.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
    /// Seconds from now; it does not expire unless given.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub expires_in_s: Option<u64>,
    /// How much it may use; without limits unless given.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub limits: Option<TokenLimits>,
    /// That of who asks unless given.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Whether other namespaces may be answered with its plans; not unless given.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub share_plans: Option<bool>,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditEntry {
    pub at: String,
    /// The token's name; absent if none was required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[cfg_attr(test, schemars(with = "String"))]
    #[serde(default)]
    pub namespace: Namespace,
    /// The address that the request came from; absent for commands on the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The request's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    pub action: String,
    /// The path of what was changed, if it is one thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub status: u16,
}

impl From<domain::AuditEntry> for AuditEntry {
    fn from(entry: domain::AuditEntry) -> Self {
        Self {
            at: entry.at.to_rfc3339(),
            token: entry.token,
            namespace: entry.namespace,
            peer: entry.peer,
            request: entry.request,
            action: entry.action,
            subject: entry.subject,
            status: entry.status,
        }
    }
}
