//! Lookups that come at once share a statement: waking a connection's thread, beginning a read and ending it are paid for once a batch
//! and not once a lookup. A few statements may be under way; a lookup that comes when there are fewer is a batch of one, and waits for
//! nobody.

use super::SqlStore;
use super::db::{self, Pool};
use crate::domain::Digest;
use crate::domain::plan::PlanKey;
use crate::store::{Result, StoreError};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use tokio::sync::oneshot;

/// For each key, its newest measured plan. The digest asked for is that of a matrix that is stored or has a plan, and else that of a
/// pattern. `$1` is an array of the terms of [`PendingLookup`]. PostgreSQL would join `plans` by reading all of it, for it expects a hundred
/// keys; by a lateral join it looks each of them up.
pub(super) const OF_MATRICES: &str = "WITH asked AS MATERIALIZED (
         SELECT key AS place, value ->> 0 AS namespace, unhex(value ->> 1) AS digest, value ->> 2 AS problem,
             value ->> 3 AS device_class, value ->> 4 AS l2_policy
         FROM json_each($1))
     SELECT asked.place, plans.version, plans.body
     FROM asked CROSS JOIN /*[*/plans ON plans.id = (SELECT newest.id/*|LATERAL (SELECT newest.version, newest.body]*/
         FROM plans newest
         WHERE newest.namespace = asked.namespace AND newest.pattern_digest = coalesce(
                 (SELECT pattern_digest FROM holdings WHERE holdings.namespace = asked.namespace AND holdings.digest = asked.digest),
                 (SELECT pattern_digest FROM plans made
                  WHERE made.namespace = asked.namespace AND made.matrix = asked.digest AND made.predicted = 0 LIMIT 1),
                 asked.digest)
             AND newest.problem = asked.problem AND newest.device_class = asked.device_class
             AND newest.l2_policy = asked.l2_policy AND newest.predicted = 0
         ORDER BY newest.created_at DESC, newest.id DESC LIMIT 1)/*[*//*| plans]*/";

/// Maximum number of lookups in one statement: a connection is not held for long, and few bodies are in memory at once.
const MOST_IN_A_BATCH: usize = 32;

/// The version and the body of a plan.
type Found = Option<(i64, String)>;

/// Namespace, digest in hexadecimal, problem, device class and policy of the cache.
type Terms = [String; 5];

/// What a lookup asks for, and who waits for the answer.
#[derive(Debug)]
struct PendingLookup {
    terms: Terms,
    /// Dropped without an answer if who waits is to ask alone.
    answer: oneshot::Sender<Result<Found>>,
}

/// The lookups of all clones of a store.
#[derive(Debug)]
pub(super) struct LookupBatches {
    queue: Mutex<Queue>,
    /// Number of statements at once: enough that one that waits for the disk does not hold up all, and few enough that batches form.
    at_once: usize,
}

impl Default for LookupBatches {
    fn default() -> Self {
        let cores = available_parallelism().map_or(2, NonZeroUsize::get);
        Self { queue: Mutex::default(), at_once: cores.clamp(2, 4) }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<PendingLookup>,
    /// Statements under way.
    busy: usize,
}

impl LookupBatches {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that answers batch after batch. However it ends, another may begin.
struct BatchRunner {
    batches: Arc<LookupBatches>,
    ended: bool,
}

impl BatchRunner {
    /// Answers until nobody waits.
    async fn run(mut self, readers: Pool) {
        while let Some(batch) = self.next_batch() {
            let terms: Vec<&Terms> = batch.iter().map(|asked| &asked.terms).collect();
            let found = read(&readers, &terms).await;
            self.answer(batch, found);
        }
    }

    /// Those that wait, but for who has left: as many as one statement takes.
    fn next_batch(&mut self) -> Option<Vec<PendingLookup>> {
        let mut queue = self.batches.queue();
        queue.waiting.retain(|asked| !asked.answer.is_closed());
        if queue.waiting.is_empty() {
            queue.busy -= 1;
            self.ended = true;
            return None;
        }
        let some = queue.waiting.len().min(MOST_IN_A_BATCH);
        Some(queue.waiting.drain(..some).collect())
    }

    /// Answers a batch. Who has left meanwhile needs no answer.
    fn answer(&self, mut batch: Vec<PendingLookup>, found: Result<Vec<Found>>) {
        match found {
            Ok(found) => {
                for (lookup, found) in batch.into_iter().zip(found) {
                    let _ = lookup.answer.send(Ok(found));
                }
            }
            Err(error @ (StoreError::Busy(_) | StoreError::Full(_))) => {
                // No connection, or no room: those who came meanwhile would wait as long for the same.
                batch.append(&mut self.batches.queue().waiting);
                for lookup in batch {
                    let _ = lookup.answer.send(Err(again(&error)));
                }
            }
            Err(error) => {
                // Of several lookups it may be about one's terms: they are dropped, and each is asked alone.
                if let (Some(lookup), true) = (batch.pop(), batch.is_empty()) {
                    let _ = lookup.answer.send(Err(error));
                }
            }
        }
    }
}

impl Drop for BatchRunner {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // It was aborted, or panicked.
        let mut queue = self.batches.queue();
        queue.busy -= 1;
        if queue.busy == 0 {
            // Nobody would answer these; who waits asks alone.
            queue.waiting.clear();
        }
    }
}

/// The same error for another lookup.
fn again(error: &StoreError) -> StoreError {
    match error {
        StoreError::Busy(cause) => StoreError::Busy(cause.to_string().into()),
        StoreError::Full(cause) => StoreError::Full(cause.to_string().into()),
        other => StoreError::Backend(other.to_string().into()),
    }
}

/// What is found for each of the terms, in their order.
async fn read(readers: &Pool, terms: &[&Terms]) -> Result<Vec<Found>> {
    let asked = serde_json::to_string(terms).map_err(|error| StoreError::Misuse(error.into()))?;
    let rows: Vec<(i64, i64, String)> =
        db::query_as(OF_MATRICES).bind(asked).fetch_all(readers).await?;
    let mut found = vec![None; terms.len()];
    for (place, version, body) in rows {
        if let Some(slot) = usize::try_from(place).ok().and_then(|place| found.get_mut(place)) {
            *slot = Some((version, body));
        }
    }
    Ok(found)
}

impl SqlStore {
    /// The plan of this namespace for a matrix, beside those of all who ask meanwhile.
    pub(super) async fn batched_lookup(&self, asked: &Digest, key: &PlanKey) -> Result<Found> {
        let terms = [
            self.namespace().to_owned(),
            asked.to_string(),
            key.problem.to_string(),
            key.device_class.0.clone(),
            key.l2_policy.to_string(),
        ];
        // A server refuses such a text, and with it the statement of all.
        if terms.iter().any(|term| term.contains('\0')) {
            return self.alone(&terms).await;
        }
        let (answer, answered) = oneshot::channel();
        let begins = {
            let mut queue = self.lookup_batches.queue();
            queue.waiting.push(PendingLookup { terms: terms.clone(), answer });
            let begins = queue.busy < self.lookup_batches.at_once;
            queue.busy += usize::from(begins);
            begins
        };
        if begins {
            // On its own, and in no request's span: whoever asked may leave, and others wait for the same statement.
            let runner = BatchRunner { batches: Arc::clone(&self.lookup_batches), ended: false };
            tokio::spawn(runner.run(self.readers.clone()));
        }
        match answered.await {
            Ok(found) => found,
            Err(_) => self.alone(&terms).await,
        }
    }

    async fn alone(&self, terms: &Terms) -> Result<Found> {
        Ok(read(&self.readers, &[terms]).await?.pop().flatten())
    }
}
