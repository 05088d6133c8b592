//! Trials: written in batches under a fence, read in the order of their ordinals.

use super::SqlStore;
use super::codec::{self, Stored, encode};
use super::db::{self, Connection};
use super::{events, jobs, learning};
use crate::domain::{JobId, Trial, TrialCount, TrialFilter};
use crate::store::{Change, Fence, Page, PageRequest, Result, StoreError, TrialQuery, Trials};
use async_trait::async_trait;
use std::collections::HashSet;

const LIST: &str = "trials";

/// Covered by the index `trials_sorted`, which contains these expressions.
pub(super) const COUNTS: &str =
    "SELECT body ->> '$.candidate.family', state, body ->> '$.state.pruned_by', count(*)
     FROM trials /*[*/INDEXED BY trials_sorted/*|]*/ WHERE job = $1 GROUP BY 1, 2, 3";

/// Raw samples make up most of a measured trial and are replaced by an empty list; missing paths are left alone.
pub(super) const SUMMARIES: &str =
    "SELECT version, json_replace(body, '$.state.timing.samples_us', json('[]')) FROM trials /*[*/INDEXED BY trials_tried/*|]*/
     WHERE job = $1 AND ordinal > $2 AND state <> 'pruned' ORDER BY ordinal LIMIT $3";

/// Multiples of the golden ratio spread the ordinals evenly over 2^32, so the ordinals below a fraction of that range are
/// the same fraction of all trials, evenly distributed. The index covers this decision.
pub(super) const PRUNED_SAMPLE: &str =
    "SELECT version, body FROM trials /*[*/INDEXED BY trials_sorted/*|]*/
     WHERE job = $1 AND body ->> '$.candidate.family' = $2 AND state = 'pruned'
     AND (ordinal * 2654435769 & 4294967295) * (
         SELECT count(*) FROM trials /*[*/INDEXED BY trials_sorted/*|]*/
         WHERE job = $1 AND body ->> '$.candidate.family' = $2 AND state = 'pruned'
     ) < 4294967296 * $3";

#[async_trait]
impl Trials for SqlStore {
    async fn record_trials(&self, fence: &Fence, trials: &[Trial]) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        // The fence is checked first, even if no new trial turns out to need an event.
        events::check(&mut tx, fence).await?;
        let inserted = insert(&mut tx, &fence.job, trials).await?;
        check_known(&mut tx, &fence.job, trials, &inserted).await?;
        let mut tried: Vec<i64> = trials
            .iter()
            .filter(|trial| trial.state.outcome().is_some())
            .map(|trial| i64::from(trial.ordinal))
            .filter(|ordinal| inserted.contains(ordinal))
            .collect();
        tried.sort_unstable();
        let features = |trial: &&Trial| {
            learned_from(trial).is_some() && inserted.contains(&i64::from(trial.ordinal))
        };
        let described = trials.iter().filter(features).count();
        if described > 0 {
            learning::count_described(&mut tx, &fence.job, described as i64).await?;
        }
        if !tried.is_empty() {
            let first = events::reserve(&mut tx, fence, tried.len() as i64).await?;
            events::append_trials(&mut tx, &fence.job, first, &tried).await?;
        }
        let recorded = trials.iter().map(Change::of_trial);
        tx.commit(std::iter::once(Change::Job(fence.job.clone())).chain(recorded)).await
    }

    async fn trials(&self, id: &JobId, of: &TrialQuery, page: &PageRequest) -> Result<Page<Trial>> {
        let limit = codec::page_limit(page.limit);
        let after = match &page.after {
            Some(text) => {
                let (ordinal, job) = codec::read_cursor(LIST, text)?;
                if job != id.0 {
                    return Err(StoreError::BadCursor);
                }
                ordinal
            }
            None => -1,
        };
        let mut reader = self.readers.acquire().await?;
        if !jobs::is_here(&mut reader, self, id).await? {
            return Ok(Page { items: Vec::new(), next: None });
        }
        let query = db::query_as(statement(of)).bind(&id.0);
        let query = match of {
            TrialQuery::PrunedSample { family } => {
                let items = codec::decode_all(
                    query.bind(family).bind(limit.min(1 << 30)).fetch_all(&mut reader).await?,
                )?;
                return Ok(Page { items, next: None });
            }
            TrialQuery::Of(TrialFilter::Pruned | TrialFilter::Tried)
            | TrialQuery::All
            | TrialQuery::Summaries => query.bind(after).bind(limit + 1),
            TrialQuery::Of(state) => {
                query.bind(after).bind(limit + 1).bind(codec::name("trial state", state)?)
            }
        };
        let items = codec::decode_all(query.fetch_all(&mut reader).await?)?;
        Ok(codec::cut(items, limit, |trial: &Trial| {
            codec::cursor(LIST, trial.ordinal.into(), &id.0)
        }))
    }

    async fn trial_counts(&self, id: &JobId) -> Result<Vec<TrialCount>> {
        let mut reader = self.readers.acquire().await?;
        if !jobs::is_here(&mut reader, self, id).await? {
            return Ok(Vec::new());
        }
        let rows: Vec<(String, String, Option<String>, i64)> =
            db::query_as(COUNTS).bind(&id.0).fetch_all(&mut reader).await?;
        rows.into_iter()
            .map(|(family, state, pruned_by, count)| {
                let count = codec::count("trials", count)?;
                Ok(TrialCount { family, state, pruned_by, count })
            })
            .collect()
    }
}

pub(super) const ALL: &str = "SELECT version, body FROM trials
     WHERE job = $1 AND ordinal > $2 ORDER BY ordinal LIMIT $3";

pub(super) const PRUNED: &str = "SELECT version, body FROM trials
     WHERE job = $1 AND ordinal > $2 AND state = 'pruned' ORDER BY ordinal LIMIT $3";

/// The index is named, because with the statistics of ANALYZE the planner would scan the whole job.
pub(super) const TRIED: &str = "SELECT version, body FROM trials /*[*/INDEXED BY trials_tried/*|]*/
     WHERE job = $1 AND ordinal > $2 AND state <> 'pruned' ORDER BY ordinal LIMIT $3";

/// `state <> 'pruned'` is the condition of the partial index of tried trials, so it is repeated for a query of one state.
pub(super) const OF_STATE: &str = "SELECT version, body FROM trials /*[*/INDEXED BY trials_tried/*|]*/
     WHERE job = $1 AND ordinal > $2 AND state <> 'pruned' AND state = $4 ORDER BY ordinal LIMIT $3";

const fn statement(of: &TrialQuery) -> &'static str {
    match of {
        TrialQuery::All => ALL,
        TrialQuery::Of(TrialFilter::Pruned) => PRUNED,
        TrialQuery::Of(TrialFilter::Tried) => TRIED,
        TrialQuery::Of(_) => OF_STATE,
        TrialQuery::Summaries => SUMMARIES,
        TrialQuery::PrunedSample { .. } => PRUNED_SAMPLE,
    }
}

/// The features of a tried candidate; models do not learn from untried ones.
fn learned_from(trial: &Trial) -> Option<&[f32]> {
    trial.state.outcome().and(trial.features.as_deref())
}

/// Inserts the whole batch in one statement, because a funnel may contain thousands of pruned candidates. Returns the
/// ordinals that are new.
pub(super) async fn insert(
    tx: &mut Connection,
    job: &JobId,
    trials: &[Trial],
) -> Result<HashSet<i64>> {
    // JSON has no byte strings, so features are passed as hexadecimal digits; the thousands of pruned candidates have none.
    let rows: Vec<(u32, String, &str, String, Option<String>)> = trials
        .iter()
        .map(|t| {
            let features = learned_from(t).map(codec::floats_hex);
            Ok((t.ordinal, t.candidate.id().0, t.state.name(), encode(t)?, features))
        })
        .collect::<Result<_>>()?;
    // `WHERE true` tells SQLite's parser that ON CONFLICT is not a join condition.
    let ordinals: Vec<i64> = db::query_scalar(
        "INSERT INTO trials (job, ordinal, candidate_id, state, version, body, features)
         SELECT $1, CAST(value ->> 0 AS BIGINT), value ->> 1, value ->> 2, $2, value ->> 3, unhex(value ->> 4)
         FROM json_each($3) WHERE true
         ON CONFLICT DO NOTHING RETURNING ordinal",
    )
    .bind(&job.0)
    .bind(Trial::VERSION)
    .bind(codec::encode_part("trials", &rows)?)
    .fetch_all(tx)
    .await?;
    Ok(ordinals.into_iter().collect())
}

/// A trial that is not new must equal the stored one. Another candidate under a used ordinal would be lost silently, so this
/// is an error of the caller.
async fn check_known(
    tx: &mut Connection,
    job: &JobId,
    trials: &[Trial],
    inserted: &HashSet<i64>,
) -> Result<()> {
    for trial in trials.iter().filter(|trial| !inserted.contains(&i64::from(trial.ordinal))) {
        let known: Option<i64> = db::query_scalar(
            "SELECT CAST(1 AS BIGINT) FROM trials WHERE job = $1 AND candidate_id = $2",
        )
        .bind(&job.0)
        .bind(trial.candidate.id().0)
        .fetch_optional(&mut *tx)
        .await?;
        if known.is_none() {
            return Err(StoreError::Misuse(
                format!(
                    "trial {} of job {job} is already stored for a candidate other than {}",
                    trial.ordinal, trial.candidate
                )
                .into(),
            ));
        }
    }
    Ok(())
}
