//! Lookups that come at once share a statement: what wakes a connection's thread, begins a read and ends it is paid for once a batch
//! and not once a lookup. A lookup that comes alone is a batch of one, and waits for nobody.

use super::SqlStore;
use super::db::{self, Pool};
use crate::domain::Digest;
use crate::domain::plan::PlanKey;
use crate::store::{Result, StoreError};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use tokio::sync::oneshot;

/// The newest plan of each key by the pattern of a matrix that is stored, or that a plan was made for; else the digest is that of a
/// pattern. `$1` is an array of [`Asked::terms`].
pub(super) const OF_MATRICES: &str = "WITH asked AS MATERIALIZED (
         SELECT key AS place, value ->> 0 AS namespace, unhex(value ->> 1) AS digest, value ->> 2 AS problem,
             value ->> 3 AS device_class, value ->> 4 AS l2_policy
         FROM json_each($1))
     SELECT asked.place, plans.version, plans.body FROM asked CROSS JOIN plans
     WHERE plans.id = (
         SELECT newest.id FROM plans newest
         WHERE newest.namespace = asked.namespace AND newest.pattern_digest = coalesce(
                 (SELECT pattern_digest FROM holdings WHERE holdings.namespace = asked.namespace AND holdings.digest = asked.digest),
                 (SELECT pattern_digest FROM plans made
                  WHERE made.namespace = asked.namespace AND made.matrix = asked.digest AND made.predicted = 0 LIMIT 1),
                 asked.digest)
             AND newest.problem = asked.problem AND newest.device_class = asked.device_class
             AND newest.l2_policy = asked.l2_policy AND newest.predicted = 0
         ORDER BY newest.created_at DESC, newest.id DESC LIMIT 1)";

/// Maximum number of lookups in one statement: a connection is not held for long, and few bodies are in memory at once.
const MOST: usize = 32;

/// The version and the body of a plan.
type Found = Option<(i64, String)>;

/// What a lookup asks for, and who waits for the answer.
#[derive(Debug)]
struct Asked {
    /// Namespace, digest in hexadecimal, problem, device class and policy of the cache.
    terms: [String; 5],
    answer: oneshot::Sender<Found>,
}

/// The lookups of all clones of a store.
#[derive(Debug)]
pub(super) struct Gathered {
    queue: Mutex<Queue>,
    /// Number of statements at once: enough that one that waits for the disk does not hold up all, and few enough that batches form.
    at_once: usize,
}

impl Default for Gathered {
    fn default() -> Self {
        let cores = available_parallelism().map_or(2, NonZeroUsize::get);
        Self { queue: Mutex::default(), at_once: cores.clamp(2, 4) }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Asked>,
    /// Statements under way.
    busy: usize,
}

impl Gathered {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the tasks that answer. However it ends, another may begin.
struct Turn(Arc<Gathered>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.busy -= 1;
        // Nobody would answer these; who waits asks alone.
        if queue.busy == 0 {
            queue.waiting.clear();
        }
    }
}

impl Turn {
    /// Answers until nobody waits.
    async fn answer(self, readers: Pool) {
        loop {
            let batch: Vec<Asked> = {
                let mut queue = self.0.queue();
                let some = queue.waiting.len().min(MOST);
                queue.waiting.drain(..some).collect()
            };
            if batch.is_empty() {
                return;
            }
            let terms: Vec<&[String; 5]> = batch.iter().map(|asked| &asked.terms).collect();
            match read(&readers, &terms).await {
                Ok(found) => {
                    for (asked, found) in batch.into_iter().zip(found) {
                        // Who has left needs no answer.
                        let _ = asked.answer.send(found);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, lookups = batch.len(), "a batch of lookups failed: each is asked alone")
                }
            }
        }
    }
}

/// What is found for each of the terms, in their order.
async fn read(readers: &Pool, terms: &[&[String; 5]]) -> Result<Vec<Found>> {
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
    pub(super) async fn gathered(&self, asked: &Digest, key: &PlanKey) -> Result<Found> {
        let terms = [
            self.namespace().to_owned(),
            asked.to_string(),
            key.problem.to_string(),
            key.device_class.0.clone(),
            key.l2_policy.to_string(),
        ];
        let (answer, answered) = oneshot::channel();
        let begins = {
            let mut queue = self.gathered.queue();
            queue.waiting.push(Asked { terms: terms.clone(), answer });
            let begins = queue.busy < self.gathered.at_once;
            queue.busy += usize::from(begins);
            begins
        };
        if begins {
            // On its own: whoever asked may leave, and others wait for the same statement.
            let turn = Turn(Arc::clone(&self.gathered));
            tokio::spawn(turn.answer(self.readers.clone()));
        }
        match answered.await {
            Ok(found) => Ok(found),
            // The batch failed, maybe by another's terms: this one's error is told to this one.
            Err(_) => Ok(read(&self.readers, &[&terms]).await?.pop().flatten()),
        }
    }
}
