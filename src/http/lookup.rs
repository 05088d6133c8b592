//! Lookup by digest, and the cache that lets it answer without the store: serialised answers by query string and namespace.

mod cache;

pub use cache::LookupCache;

use super::App;
use super::behalf::OnBehalf;
use super::error::Problem;
use super::etag;
use super::extract::Query;
use super::problems::ProblemIn;
use crate::domain::catalog::operation::Gathered;
use crate::domain::{Caller, Digest, L2Policy};
use crate::service::LookupQuery;
use crate::wire::Lookup;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Uri};
use axum::response::Response;
use cache::{Answer, Moment};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

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

/// Takes the whole request, because extractors for headers and query would copy both.
pub async fn lookup(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let asked = (request.uri(), caller(&request)?);
    let key = key(asked);
    let answer = match app.lookups.current(&key, moment(&app)) {
        Some(answer) => {
            // The service counts the lookups that reach it; answers from the cache do not.
            app.metrics.count_kept_lookup(answer.grade);
            answer
        }
        None => renew(&app, asked, &key).await?,
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
    OnBehalf(app): OnBehalf,
    uri: Uri,
    Query(input): Query<LookupIn>,
) -> Result<Json<Lookup>, Problem> {
    let query = LookupQuery::try_from(input)?;
    let lookup = app.service.lookup_and_keep(&query).await?;
    // The answer to a GET may say that nothing is stored.
    app.lookups.forget(&key((&uri, &app.caller)));
    Ok(Json(Lookup::from(lookup)))
}

fn moment(app: &App) -> Moment {
    let (epoch, confirmed) = app.whole.epoch();
    Moment { epoch, now: Instant::now(), confirmed }
}

/// The address with the query, and on whose behalf. The request itself cannot be lent to another thread.
type Asked<'a> = (&'a Uri, &'a Caller);

/// What an answer is kept by: the query, and behind it the namespace, since each has answers of its own. The default one's is left out,
/// so that most lookups allocate nothing; a query has no line's end.
fn key<'a>((uri, caller): Asked<'a>) -> Cow<'a, str> {
    let query = uri.query().unwrap_or_default();
    match caller.is_operators() {
        true => Cow::Borrowed(query),
        false => Cow::Owned(format!("{query}\n{}", caller.namespace)),
    }
}

async fn renew(app: &App, asked: Asked<'_>, key: &str) -> Result<Answer, Problem> {
    let Some(slot) = app.lookups.slot(key, moment(app)) else {
        return ask(app, asked).await;
    };
    let _turn = slot.renewal.lock().await;
    if let Some(answer) = slot.current(moment(app)) {
        app.metrics.count_kept_lookup(answer.grade);
        return Ok(answer);
    }
    match ask(app, asked).await {
        Ok(answer) => {
            app.lookups.put(&slot, answer.clone());
            Ok(answer)
        }
        Err(problem) => {
            app.lookups.forget(key);
            Err(problem)
        }
    }
}

async fn ask(app: &App, (uri, caller): Asked<'_>) -> Result<Answer, Problem> {
    let Query(input) = Query::<LookupIn>::of(uri)?;
    let query = LookupQuery::try_from(input)?;
    // Read before the lookup: a plan stored in the meantime makes this answer outdated at once, rather than valid forever.
    let Moment { epoch, now: at, .. } = moment(app);
    let lookup = app.whole.on_behalf_of(caller).lookup(&query).await?;
    let grade = lookup.grade;
    let body = Lookup::from(lookup).to_json().map_err(Problem::internal)?;
    // A serializer's vector has up to as much again behind its end, for as long as the answer is kept.
    let body = Bytes::from(body.into_boxed_slice());
    Ok(Answer { tag: etag::of(&body), body, grade, epoch, at })
}

fn caller(request: &Request) -> Result<&Caller, Problem> {
    let caller = request.extensions().get::<Caller>();
    caller.ok_or_else(|| Problem::internal("a lookup without a caller"))
}
