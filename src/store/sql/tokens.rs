//! API tokens. Revoked ones stay for a while, for who asks later what a name in the audit log was.

use super::db::{self, Connection};
use super::{SqlStore, codec};
use crate::domain::{Digest, Namespace, Timestamp, Token, TokenLimits, TokenName};
use crate::store::{MOST_REVOKED, Result, StoreError, StoredToken, Tokens};
use async_trait::async_trait;

#[derive(sqlx::FromRow)]
struct TokenRow {
    hash: Vec<u8>,
    name: String,
    scopes: String,
    namespace: String,
    created_at: i64,
    expires_at: Option<i64>,
    revoked_at: Option<i64>,
    limits: String,
    share_plans: bool,
    last_used_at: Option<i64>,
}

impl TokenRow {
    fn token(self) -> Result<StoredToken> {
        let hash: Digest = codec::digest("token hash", &self.hash)?;
        let token = Token {
            name: self.name.parse().map_err(|error| codec::corrupt("token name", error))?,
            scopes: self.scopes.parse().map_err(|error| codec::corrupt("token scopes", error))?,
            namespace: codec::namespace(self.namespace)?,
            created_at: Timestamp(self.created_at),
            expires_at: self.expires_at.map(Timestamp),
            revoked_at: self.revoked_at.map(Timestamp),
            limits: codec::decode_part("token limits", &self.limits)?,
            share_plans: self.share_plans,
            last_used_at: self.last_used_at.map(Timestamp),
        };
        Ok(StoredToken { token, hash })
    }
}

/// Whose jobs have not ended is kept: what it may queue is told by its row.
const FORGET_REVOKED: &str = "DELETE FROM tokens WHERE namespace = $1 AND revoked_at <= (
         SELECT revoked_at FROM tokens WHERE namespace = $1 AND revoked_at IS NOT NULL ORDER BY revoked_at DESC LIMIT 1 OFFSET $2)
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.turn = tokens.namespace || '/' || tokens.name AND jobs.finished_at IS NULL)";

#[async_trait]
impl Tokens for SqlStore {
    async fn insert_token(&self, new: &StoredToken, most: u32) -> Result<bool> {
        let StoredToken { token, hash } = new;
        let mut tx = self.begin().await?;
        let in_force: i64 = db::query_scalar(
            "SELECT count(*) FROM tokens WHERE namespace = $1 AND revoked_at IS NULL",
        )
        .bind(token.namespace.as_str())
        .fetch_one(&mut *tx)
        .await?;
        if in_force >= i64::from(most) {
            return Err(StoreError::InUse(format!(
                "there are {in_force} tokens, as many as there may be: revoke some first"
            )));
        }
        let done = db::query(
            "INSERT INTO tokens (hash, name, scopes, namespace, created_at, expires_at, limits, share_plans)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
        )
        .bind(&hash.as_bytes()[..])
        .bind(token.name.as_str())
        .bind(token.scopes.to_string())
        .bind(token.namespace.as_str())
        .bind(token.created_at.0)
        .bind(token.expires_at.map(|end| end.0))
        .bind(codec::encode_part("token limits", &token.limits)?)
        .bind(token.share_plans)
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        raise(&mut tx).await?;
        if token.share_plans {
            // It changes what others are answered.
            tx.revise();
        }
        tx.commit(None).await?;
        Ok(true)
    }

    async fn tokens(&self, of: Option<&Namespace>) -> Result<Vec<StoredToken>> {
        let rows: Vec<TokenRow> = db::query_as(
            "SELECT hash, name, scopes, namespace, created_at, expires_at, revoked_at, limits, share_plans = 1 AS share_plans, last_used_at
             FROM tokens WHERE namespace = coalesce($1, namespace)
             ORDER BY created_at DESC, hash DESC",
        )
        .bind(of.map(Namespace::as_str))
        .fetch_all(&self.readers)
        .await?;
        Ok(read(rows))
    }

    async fn live_tokens(&self) -> Result<Vec<StoredToken>> {
        let rows: Vec<TokenRow> = db::query_as(
            "SELECT hash, name, scopes, namespace, created_at, expires_at, revoked_at, limits, share_plans = 1 AS share_plans, last_used_at
             FROM tokens WHERE revoked_at IS NULL",
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(read(rows))
    }

    async fn revoke_token(
        &self,
        of: &Namespace,
        name: &TokenName,
        at: Timestamp,
    ) -> Result<Option<Token>> {
        let mut tx = self.begin().await?;
        let row: Option<TokenRow> = db::query_as(
            "UPDATE tokens SET revoked_at = $1 WHERE namespace = $2 AND name = $3 AND revoked_at IS NULL
             RETURNING hash, name, scopes, namespace, created_at, expires_at, revoked_at, limits,
                 share_plans = 1 AS share_plans, last_used_at",
        )
        .bind(at.0)
        .bind(of.as_str())
        .bind(name.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        db::query(FORGET_REVOKED)
            .bind(of.as_str())
            .bind(i64::from(MOST_REVOKED))
            .execute(&mut *tx)
            .await?;
        raise(&mut tx).await?;
        let token = row.token()?.token;
        if token.share_plans {
            tx.revise();
        }
        tx.commit(None).await?;
        Ok(Some(token))
    }

    async fn note_uses(&self, uses: &[(Digest, Timestamp)]) -> Result<()> {
        let uses: Vec<(String, i64)> =
            uses.iter().map(|(hash, at)| (hash.to_string(), at.0)).collect();
        let mut tx = self.begin().await?;
        db::query(
            "UPDATE tokens SET last_used_at = CAST(used.value ->> 1 AS BIGINT) FROM json_each($1) used
             WHERE hash = unhex(used.value ->> 0) AND coalesce(last_used_at, 0) < CAST(used.value ->> 1 AS BIGINT)",
        )
        .bind(codec::encode_part("uses of tokens", &uses)?)
        .execute(&mut *tx)
        .await?;
        tx.commit([]).await
    }

    async fn forget_tokens(&self, before: Timestamp) -> Result<u64> {
        let mut tx = self.begin().await?;
        let gone = db::query("DELETE FROM tokens WHERE revoked_at < $1 OR expires_at < $1")
            .bind(before.0)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if gone > 0 {
            raise(&mut tx).await?;
            tx.commit([]).await?;
        }
        Ok(gone)
    }

    async fn tokens_revision(&self) -> Result<u64> {
        let value: i64 =
            db::query_scalar("SELECT value FROM tokens_revision").fetch_one(&self.readers).await?;
        codec::count("tokens revision", value)
    }
}

/// One that cannot be read admits nobody, and must not shut the others out.
fn read(rows: Vec<TokenRow>) -> Vec<StoredToken> {
    let read = |row: TokenRow| match row.token() {
        Ok(token) => Some(token),
        Err(error) => {
            tracing::error!(%error, "a token is left out");
            None
        }
    };
    rows.into_iter().filter_map(read).collect()
}

/// What a token may use, and whether it was revoked or has expired.
pub(super) struct Standing {
    pub limits: TokenLimits,
    pub ended: bool,
}

/// How a token stands, the one in force or else the one that was made last; `None` if the store has none of this name, as it has none of
/// the configuration.
pub(super) async fn standing(
    tx: &mut Connection,
    namespace: &Namespace,
    name: &TokenName,
    now: Timestamp,
) -> Result<Option<Standing>> {
    let row: Option<(String, bool)> = db::query_as(
        "SELECT limits, revoked_at IS NOT NULL OR COALESCE(expires_at <= $3, FALSE) FROM tokens WHERE namespace = $1 AND name = $2
         ORDER BY revoked_at IS NOT NULL, created_at DESC LIMIT 1",
    )
    .bind(namespace.as_str())
    .bind(name.as_str())
    .bind(now.0)
    .fetch_optional(tx)
    .await?;
    let Some((limits, ended)) = row else { return Ok(None) };
    Ok(Some(Standing { limits: codec::decode_part("token limits", &limits)?, ended }))
}

async fn raise(tx: &mut Connection) -> Result<()> {
    db::query("UPDATE tokens_revision SET value = value + 1").execute(tx).await?;
    Ok(())
}
