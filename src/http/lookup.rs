//! Lookup by digest, and the cache that lets it answer without the store: serialised answers by query string.

use super::App;
use super::error::Problem;
use super::etag;
use super::extract::Query;
use super::problems::ProblemIn;
use crate::domain::catalog::operation::Gathered;
use crate::domain::{Caller, Digest, Grade, L2Policy};
use crate::service::LookupQuery;
use crate::wire::Lookup;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Uri};
use axum::response::Response;
use axum::{Extension, Json};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// The parameters of a lookup, besides a problem's fields.
pub struct LookupIn {
    matrix: Digest,
    problem: ProblemIn,
    device: Option<String>,
    l2: Option<L2Policy>,
    neighbour: Option<bool>,
    predicted: Option<bool>,
}

/// Implemented by hand: serde's flattened structs require text for numbers in a query, and do not detect unknown names.
impl<'de> Deserialize<'de> for LookupIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parameters;

        impl<'de> Visitor<'de> for Parameters {
            type Value = LookupIn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the parameters of a lookup")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LookupIn, A::Error> {
                let mut problem = Gathered::default();
                let (mut matrix, mut device, mut l2) = (None, None, None);
                let (mut neighbour, mut predicted) = (None, None);
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "matrix" => once("matrix", &mut matrix, &mut map)?,
                        "device" => once("device", &mut device, &mut map)?,
                        "l2" => once("l2", &mut l2, &mut map)?,
                        "neighbour" => once("neighbour", &mut neighbour, &mut map)?,
                        "predicted" => once("predicted", &mut predicted, &mut map)?,
                        name if problem.take(name, &mut map)? => {}
                        name => {
                            let why = format!("a lookup has no parameter `{name}`");
                            return Err(A::Error::custom(why));
                        }
                    }
                }
                let matrix = matrix.ok_or_else(|| A::Error::missing_field("matrix"))?;
                let problem = ProblemIn(problem.draft()?);
                Ok(LookupIn { matrix, problem, device, l2, neighbour, predicted })
            }
        }

        deserializer.deserialize_map(Parameters)
    }
}

/// Reads a parameter that may be given once.
fn once<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    name: &'static str,
    slot: &mut Option<T>,
    map: &mut A,
) -> Result<(), A::Error> {
    match slot.replace(map.next_value()?) {
        Some(_) => Err(A::Error::duplicate_field(name)),
        None => Ok(()),
    }
}

impl TryFrom<LookupIn> for LookupQuery {
    type Error = Problem;

    fn try_from(input: LookupIn) -> Result<Self, Problem> {
        Ok(Self {
            matrix: input.matrix,
            problem: input.problem.of_query()?,
            device: input.device,
            l2_policy: input.l2,
            neighbour: input.neighbour.unwrap_or_default(),
            predicted: input.predicted.unwrap_or(true),
        })
    }
}

/// How long an answer is valid if this process knows of no change: another process may share the store.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// Bounds of the cache. Keys are chosen by clients, so both their count and their size are bounded.
const MAX_ANSWERS: usize = 4096;
const MAX_BYTES: usize = 64 << 20;
/// Longer query strings are not frequent lookups, and would make keys the larger part of the cache.
const MAX_QUERY: usize = 1024;

/// The epoch of the plans, and the time: together they decide whether an answer is still valid.
type Moment = (u64, Instant);

/// A serialised answer; clones share the bytes.
#[derive(Clone)]
struct Answer {
    body: Bytes,
    tag: HeaderValue,
    grade: Grade,
    epoch: u64,
    at: Instant,
}

impl Answer {
    fn stands(&self, (epoch, now): Moment) -> bool {
        self.epoch == epoch && now.duration_since(self.at) < TRUSTED_FOR
    }
}

/// The answer to one query and a lock for renewing it, so that a thousand requests for an outdated answer cause one lookup.
#[derive(Default)]
struct Slot {
    answer: RwLock<Option<Answer>>,
    renewal: Mutex<()>,
}

impl Slot {
    fn current(&self, moment: Moment) -> Option<Answer> {
        let answer = self.answer.read().unwrap_or_else(PoisonError::into_inner);
        answer.as_ref().filter(|answer| answer.stands(moment)).cloned()
    }
}

/// Answers by raw query string. A hit takes two read locks and no write lock, which is half the time of `moka`, because that
/// records every read (0.34 against 0.66 microseconds, two million hits of one thread over 64 queries).
#[derive(Default)]
pub struct LookupCache {
    slots: RwLock<HashMap<Box<str>, Arc<Slot>>>,
}

impl LookupCache {
    fn current(&self, query: &str, moment: Moment) -> Option<Answer> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(query)?.current(moment)
    }

    /// The slot of a query, created if there is room; `None` if the cache is full of valid answers.
    fn slot(&self, query: &str, moment: Moment) -> Option<Arc<Slot>> {
        if query.len() > MAX_QUERY {
            return None;
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(query) {
            return Some(Arc::clone(slot));
        }
        if is_full(&slots) {
            // Slots being filled have no answer yet, but a request holds them.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.current(moment).is_some());
            if is_full(&slots) {
                return None;
            }
        }
        let slot = Arc::<Slot>::default();
        slots.insert(query.into(), Arc::clone(&slot));
        Some(slot)
    }

    fn forget(&self, query: &str) {
        self.slots.write().unwrap_or_else(PoisonError::into_inner).remove(query);
    }
}

fn is_full(slots: &HashMap<Box<str>, Arc<Slot>>) -> bool {
    let bytes = |slot: &Arc<Slot>| {
        let answer = slot.answer.read().unwrap_or_else(PoisonError::into_inner);
        answer.as_ref().map_or(0, |answer| answer.body.len())
    };
    slots.len() >= MAX_ANSWERS || slots.values().map(bytes).sum::<usize>() >= MAX_BYTES
}

/// Takes the whole request, because extractors for headers and query would copy both.
pub async fn lookup(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let query = request.uri().query().unwrap_or_default();
    let answer = match app.lookups.current(query, moment(&app)) {
        Some(answer) => {
            // The service counts the lookups that reach it; answers from the cache do not.
            app.metrics.count_kept_lookup(answer.grade);
            answer
        }
        None => renew(&app, (request.uri(), caller(&request)?), query).await?,
    };
    Ok(etag::respond(
        request.headers(),
        answer.tag,
        HeaderValue::from_static("application/json"),
        HeaderValue::from_static("private, no-cache"),
        answer.body,
    ))
}

/// The same lookup, with what may follow of it: its prediction is stored, and a measuring job queued if the operator permits it.
pub async fn keep(
    State(app): State<App>,
    uri: Uri,
    Extension(caller): Extension<Caller>,
    Query(input): Query<LookupIn>,
) -> Result<Json<Lookup>, Problem> {
    let query = LookupQuery::try_from(input)?;
    let lookup = app.service.on_behalf_of(&caller).lookup_and_keep(&query).await?;
    // The answer to a GET may say that nothing is stored.
    app.lookups.forget(uri.query().unwrap_or_default());
    Ok(Json(Lookup::from(lookup)))
}

fn moment(app: &App) -> Moment {
    (app.service.plans_epoch(), Instant::now())
}

/// The address with the query, and on whose behalf. The request itself cannot be lent to another thread.
type Asked<'a> = (&'a Uri, &'a Caller);

async fn renew(app: &App, asked: Asked<'_>, query: &str) -> Result<Answer, Problem> {
    let Some(slot) = app.lookups.slot(query, moment(app)) else {
        return ask(app, asked).await;
    };
    let _turn = slot.renewal.lock().await;
    if let Some(answer) = slot.current(moment(app)) {
        app.metrics.count_kept_lookup(answer.grade);
        return Ok(answer);
    }
    match ask(app, asked).await {
        Ok(answer) => {
            let mut kept = slot.answer.write().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(answer.clone());
            Ok(answer)
        }
        Err(problem) => {
            app.lookups.forget(query);
            Err(problem)
        }
    }
}

async fn ask(app: &App, (uri, caller): Asked<'_>) -> Result<Answer, Problem> {
    let Query(input) = Query::<LookupIn>::of(uri)?;
    let query = LookupQuery::try_from(input)?;
    // Read before the lookup: a plan stored in the meantime makes this answer outdated at once, rather than valid forever.
    let (epoch, at) = moment(app);
    let lookup = app.service.on_behalf_of(caller).lookup(&query).await?;
    let grade = lookup.grade;
    let body = serde_json::to_vec(&Lookup::from(lookup)).map_err(Problem::internal)?;
    Ok(Answer { tag: etag::of(&body), body: body.into(), grade, epoch, at })
}

fn caller(request: &Request) -> Result<&Caller, Problem> {
    let caller = request.extensions().get::<Caller>();
    caller.ok_or_else(|| Problem::internal("a lookup without a caller"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &LookupCache, query: &str, (epoch, at): Moment) {
        let slot = cache.slot(query, (epoch, at)).unwrap();
        let body = Bytes::from_static(b"{}");
        let answer = Answer { tag: etag::of(&body), body, grade: Grade::Exact, epoch, at };
        *slot.answer.write().unwrap() = Some(answer);
    }

    #[test]
    fn an_answer_stands_for_a_second_of_one_epoch() {
        let (cache, start) = (LookupCache::default(), Instant::now());
        put(&cache, "a", (7, start));
        let almost = start + TRUSTED_FOR - Duration::from_nanos(1);
        assert!(cache.current("a", (7, almost)).is_some());
        assert!(cache.current("a", (8, start)).is_none());
        assert!(cache.current("a", (7, start + TRUSTED_FOR)).is_none());
    }

    #[test]
    fn a_full_cache_lets_go_of_old_answers_only() {
        let (cache, start) = (LookupCache::default(), Instant::now());
        // A clock of the test's own, so that the result does not depend on its speed.
        let now = (7, start + TRUSTED_FOR);
        put(&cache, "old", (7, start));
        for i in 1..MAX_ANSWERS {
            put(&cache, &i.to_string(), now);
        }
        assert!(cache.slot("new", now).is_some(), "the old answer makes room");
        put(&cache, "new", now);
        assert!(cache.slot("newer", now).is_none() && cache.current("1", now).is_some());
        assert!(cache.slot(&"x".repeat(MAX_QUERY + 1), now).is_none());
    }
}
