//! Learned models with their files, and the history of activations.

use super::codec::{self, Stored, decode, encode};
use super::db::{self, Connection, Query};
use super::learning::read_scope;
use super::{SqlStore, Write};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{LearnedModel, ModelId, Timestamp};
use crate::store::{ActivationQuery, PutToUse, Result, RollBack, StoreError};

/// Number of never activated models kept per scope; upkeep removes older ones. Models that were active are kept permanently,
/// because a roll-back may need them.
const MOST_UNUSED: i64 = 20;

pub(super) const ALL: &str =
    "SELECT id, version, card FROM models ORDER BY created_at DESC, id DESC";

pub(super) const OF_SCOPE: &str =
    "SELECT id, version, card FROM models WHERE op = $1 AND device_class = $2
     ORDER BY created_at DESC, id DESC";

/// The newest activation of each scope is found in the index, and only these rows are read.
pub(super) const ACTIVE: &str = "SELECT op, device_class, model, reason, at FROM activations
     WHERE seq IN (SELECT max(seq) FROM activations GROUP BY op, device_class) ORDER BY op, device_class";

pub(super) const HISTORY: &str = "SELECT op, device_class, model, reason, at FROM activations
     WHERE op = $1 AND device_class = $2 ORDER BY seq DESC LIMIT $3";

const NEWEST: &str = "SELECT op, device_class, model, reason, at FROM activations
     WHERE op = $1 AND device_class = $2 ORDER BY seq DESC LIMIT 1";

/// All activations of a scope; there are few, since operators make them.
pub(super) const CHANGES: &str =
    "SELECT a.model, a.reason, m.features_version FROM activations a LEFT JOIN models m ON m.id = a.model
     WHERE a.op = $1 AND a.device_class = $2 ORDER BY a.seq DESC";

/// Returns false, and changes nothing, if the id was already known.
pub(super) async fn insert(
    connection: &mut Connection,
    model: &LearnedModel,
    file: &[u8],
) -> Result<bool> {
    let done = db::query(
        "INSERT INTO models (id, op, device_class, features_version, created_at, version, card, file)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING",
    )
    .bind(&model.id.0)
    .bind(model.scope.op.name())
    .bind(&model.scope.device_class.0)
    .bind(model.features_version)
    .bind(model.created_at.0)
    .bind(i64::from(model.version))
    .bind(encode(model)?)
    .bind(file)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Decodes a card and checks it against the id of its row.
fn read(id: &str, version: i64, card: &str) -> Result<LearnedModel> {
    let model: LearnedModel = decode(version, card)?;
    if model.id.0 != id {
        let why = format!("the card under {id} is that of {}", model.id);
        return Err(codec::corrupt(LearnedModel::WHAT, why));
    }
    Ok(model)
}

/// A model that cannot be read is logged and does not hide the others.
pub(super) async fn list(store: &SqlStore, scope: Option<&Scope>) -> Result<Vec<LearnedModel>> {
    let query = match scope {
        Some(scope) => db::query_as(OF_SCOPE).bind(scope.op.name()).bind(&scope.device_class.0),
        None => db::query_as(ALL),
    };
    let rows: Vec<(String, i64, String)> = query.fetch_all(&store.readers).await?;
    let mut models = Vec::with_capacity(rows.len());
    for (id, version, card) in rows {
        match read(&id, version, &card) {
            Ok(model) => models.push(model),
            Err(error) => tracing::error!(model = id, %error, "a model is left out of the list"),
        }
    }
    Ok(models)
}

pub(super) async fn card(store: &SqlStore, id: &ModelId) -> Result<Option<LearnedModel>> {
    let row: Option<(i64, String)> = db::query_as("SELECT version, card FROM models WHERE id = $1")
        .bind(&id.0)
        .fetch_optional(&store.readers)
        .await?;
    row.map(|(version, card)| read(&id.0, version, &card)).transpose()
}

pub(super) async fn file(store: &SqlStore, id: &ModelId) -> Result<Option<Vec<u8>>> {
    let file = db::query_scalar("SELECT file FROM models WHERE id = $1")
        .bind(&id.0)
        .fetch_optional(&store.readers)
        .await?;
    Ok(file)
}

/// Activates a model of the scope, or deactivates all of them. This may change answers to lookups.
pub(super) async fn activate(tx: &mut Write, activation: &Activation) -> Result<()> {
    let Activation { scope, model, reason, at } = activation;
    if let Some(model) = model {
        let known: Option<i64> = db::query_scalar(
            "SELECT CAST(1 AS BIGINT) FROM models WHERE id = $1 AND op = $2 AND device_class = $3",
        )
        .bind(&model.0)
        .bind(scope.op.name())
        .bind(&scope.device_class.0)
        .fetch_optional(&mut **tx)
        .await?;
        if known.is_none() {
            let what = format!("model {model} for {} on {}", scope.op, scope.device_class);
            return Err(StoreError::Missing(what));
        }
    }
    db::query(
        "INSERT INTO activations (op, device_class, model, reason, at) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(scope.op.name())
    .bind(&scope.device_class.0)
    .bind(model.as_ref().map(|model| &model.0))
    .bind(reason)
    .bind(at.0)
    .execute(&mut **tx)
    .await?;
    tx.revise();
    Ok(())
}

/// Rolls back the newest activation that has not been rolled back yet. Each roll-back row cancels one earlier activation,
/// so, going back in time, each of them makes one older activation ineffective, and itself too. Models with another features
/// version than `reads` are skipped: they are activated and rolled back in the same transaction, so that no later roll-back
/// meets them again.
pub(super) async fn roll_back(
    tx: &mut Write,
    scope: &Scope,
    reads: u32,
    at: Timestamp,
) -> Result<RollBack> {
    let changes: Vec<(Option<String>, String, Option<i64>)> = db::query_as(CHANGES)
        .bind(scope.op.name())
        .bind(&scope.device_class.0)
        .fetch_all(&mut **tx)
        .await?;
    let mut undone: u64 = 0;
    let mut standing = changes.into_iter().filter(|(_, reason, _)| {
        let back = reason == Activation::ROLLED_BACK;
        let stands = !back && undone == 0;
        undone = if back { undone.saturating_add(1) } else { undone.saturating_sub(1) };
        stands
    });
    if standing.next().is_none() {
        return Ok(RollBack::Nothing);
    }
    loop {
        let (id, version) = standing.next().map_or((None, None), |(id, _, version)| (id, version));
        let fits = id.is_none() || version == Some(i64::from(reads));
        let reason = Activation::ROLLED_BACK.to_owned();
        let model = id.map(ModelId);
        let activation = Activation { scope: scope.clone(), model, reason, at };
        activate(tx, &activation).await?;
        if fits {
            return Ok(RollBack::Done(activation));
        }
    }
}

/// Returns false, and changes nothing, if another activation has happened since.
pub(super) async fn put_to_use(tx: &mut Write, change: &PutToUse<'_>) -> Result<bool> {
    if let Some(seen) = change.only_after
        && newest(tx, &change.activation.scope).await?.as_ref() != seen
    {
        return Ok(false);
    }
    activate(tx, change.activation).await.map(|()| true)
}

/// The scope's newest activation, as seen by the transaction.
pub(super) async fn newest(tx: &mut Connection, scope: &Scope) -> Result<Option<Activation>> {
    let row: Option<ActivationRow> = db::query_as(NEWEST)
        .bind(scope.op.name())
        .bind(&scope.device_class.0)
        .fetch_optional(tx)
        .await?;
    row.map(read_activation).transpose()
}

type ActivationRow = (String, String, Option<String>, String, i64);

fn read_activation((op, class, model, reason, at): ActivationRow) -> Result<Activation> {
    let scope = read_scope(op, class)?;
    Ok(Activation { scope, model: model.map(ModelId), reason, at: Timestamp(at) })
}

pub(super) async fn activations(
    store: &SqlStore,
    of: ActivationQuery<'_>,
) -> Result<Vec<Activation>> {
    let query = match of {
        ActivationQuery::InUse => db::query_as(ACTIVE),
        ActivationQuery::OfScope(scope, limit) => {
            db::query_as(HISTORY).bind(scope.op.name()).bind(&scope.device_class.0).bind(limit)
        }
    };
    let rows: Vec<ActivationRow> = query.fetch_all(&store.readers).await?;
    rows.into_iter().map(read_activation).collect()
}

/// Removes so many of the models that were never active and are not among the newest of these in their scope.
pub(super) fn unused(most: i64) -> Query<'static, ()> {
    db::query(
        "DELETE FROM models WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (
                     PARTITION BY op, device_class ORDER BY created_at DESC, id DESC) AS age
                 FROM models WHERE NOT EXISTS (SELECT 1 FROM activations a WHERE a.model = models.id)) unused
             WHERE age > $1 LIMIT $2)",
    )
    .bind(MOST_UNUSED)
    .bind(most)
}
