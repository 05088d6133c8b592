//! API tokens, by the hash of their secret.

use super::Result;
use crate::domain::{Digest, Namespace, Timestamp, Token, TokenName};
use async_trait::async_trait;

/// A token and the BLAKE3 hash of its secret.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredToken {
    pub token: Token,
    pub hash: Digest,
}

/// The revision of a store in which no token was ever made.
pub const NO_TOKENS_YET: u64 = 1;

/// Most revoked tokens of a namespace that are kept for who asks what a name was.
pub const MOST_REVOKED: u32 = 500;

#[async_trait]
pub trait Tokens: Send + Sync {
    /// Returns false, and changes nothing, if a token of its namespace in force has this name. `InUse` if `most` of them are in
    /// force.
    async fn insert_token(&self, new: &StoredToken, most: u32) -> Result<bool>;
    /// The tokens of a namespace or of all, also revoked and expired ones, newest first.
    async fn tokens(&self, of: Option<&Namespace>) -> Result<Vec<StoredToken>>;
    /// Those of all namespaces that were not revoked.
    async fn live_tokens(&self) -> Result<Vec<StoredToken>>;
    /// Ends the token in force of this name in a namespace; `None` if there is none.
    ///
    /// Of those of the namespace that were revoked, the last [`MOST_REVOKED`] are kept, and all whose jobs have not ended.
    async fn revoke_token(
        &self,
        of: &Namespace,
        name: &TokenName,
        at: Timestamp,
    ) -> Result<Option<Token>>;
    /// Notes when the tokens with these hashes were last used, unless a later time is known. Changes no revision.
    async fn note_uses(&self, uses: &[(Digest, Timestamp)]) -> Result<()>;
    /// Removes tokens that were revoked or expired before this time; returns how many.
    async fn forget_tokens(&self, before: Timestamp) -> Result<u64>;
    /// Grows with every change of the tokens by any process, and is [`NO_TOKENS_YET`] before the first one was made.
    async fn tokens_revision(&self) -> Result<u64>;
}
