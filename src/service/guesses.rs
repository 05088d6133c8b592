//! Predicted plans for lookups without a measured plan: an existing prediction is reused, otherwise one is made in the
//! background, once for all requests that wait for it. It is stored only for who asks for that.

use super::lookup::Keeping;
use super::predicted::{Subject, plan, rank_unmeasured};
use super::{Ranker, Result, Service, ServiceError, request};
use crate::domain::learned::Scope;
use crate::domain::plan::PlanKey;
use crate::domain::{
    CandidateId, Device, DeviceKind, Digest, Matrix, Namespace, Plan, PlanId, Problem,
    QuotaExceeded, Timestamp,
};
use crate::ops::{self, Figures, Narrowing};
use crate::sparse::canonical::{self, CanonicalError};
use crate::store::{BlobError, PageRequest, PlanQuery, StoreError};
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

/// Maximum number of entries of a matrix for which a lookup predicts a plan; larger matrices need a job.
const MOST_ENTRIES: u64 = 1 << 24;
/// Number of newest predicted plans of a key that are checked for one that is still valid.
const NEWEST: u32 = 16;
/// Maximum number of predicted plans stored per pattern, so that requests cannot fill the disk.
pub(super) const MOST_STORED: u32 = 64;
/// How the reason ends for which a lookup has no prediction now, but may have one later.
pub const TRY_AGAIN: &str = "try again";
/// Maximum number of predictions that are waiting or running, and of one namespace.
const MOST_UNDER_WAY: usize = 64;
const MOST_OF_ONE: usize = 16;
/// One that is not begun within this time since it was last asked for is given up: whoever asked has left.
const ABANDONED: Duration = Duration::from_secs(30);
/// Maximum number of remembered answers.
const MOST_KNOWN: u64 = 1024;

const NO_ENTRIES: &str = "the entries of the matrix are not stored here (any more)";

/// A predicted plan, or the reason why there is none.
#[derive(Clone, Debug)]
pub(super) enum Guess {
    Plan { plan: Box<Plan>, found: Found },
    None(String),
}

/// Where a predicted plan is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// In the store, by its id.
    Stored,
    /// Only in this answer, and in this process for the next.
    Made,
    /// Likewise, although it was to be stored: the pattern already has [`MOST_STORED`].
    NoRoom,
    /// Likewise: the caller's token may store no more.
    OverQuota(QuotaExceeded),
}

impl Guess {
    fn stored(plan: Plan) -> Self {
        Self::Plan { plan: Box::new(plan), found: Found::Stored }
    }

    fn nothing(why: impl std::fmt::Display) -> Self {
        Self::None(format!("nothing is predicted: {why}"))
    }
}

/// Identifies a prediction: the plan's id covers everything it depends on, and the digest is the matrix, because it is not
/// known in advance whether its values matter.
type PredictionKey = (PlanId, Digest);
/// Several requests may wait for one prediction.
type PredictionReceiver = watch::Receiver<Option<Result<Guess>>>;

/// A prediction that is waiting or running.
#[derive(Debug)]
struct Begun {
    receiver: PredictionReceiver,
    namespace: Namespace,
    asked: Instant,
}

#[derive(Debug)]
pub(super) struct Guesses {
    under_way: HashMap<PredictionKey, Begun>,
    /// One place for each namespace that waits, so that they take turns at the one place that there is for all.
    turns: HashMap<Namespace, Arc<Semaphore>>,
    /// Answers that would be the same at every request: that nothing can be predicted, and plans.
    known: moka::sync::Cache<PredictionKey, Guess>,
}

impl Default for Guesses {
    fn default() -> Self {
        // By recency: the default policy may refuse a new key while the cache is full of keys that nobody asks for any more.
        let known = moka::sync::Cache::builder()
            .max_capacity(MOST_KNOWN)
            .eviction_policy(moka::policy::EvictionPolicy::lru())
            .build();
        Self { under_way: HashMap::new(), turns: HashMap::new(), known }
    }
}

/// Removes a prediction from the list of running ones, however it ends.
struct UnderWay {
    service: Service,
    key: PredictionKey,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut guesses = self.service.guesses();
        guesses.under_way.remove(&self.key);
        let Guesses { under_way, turns, .. } = &mut *guesses;
        turns.retain(|namespace, _| under_way.values().any(|begun| begun.namespace == *namespace));
    }
}

/// Everything that a prediction depends on, except the matrix's entries.
struct Basis {
    key: PlanKey,
    matrix: Matrix,
    device: Device,
    learned: Option<Ranker>,
    /// Candidates of the operation that hung or killed the device with the current kernel text.
    quarantined: HashSet<CandidateId>,
    id: PlanId,
}

impl Basis {
    fn new(
        (key, of): (&PlanKey, &Namespace),
        matrix: &Matrix,
        device: &Device,
        learned: Option<Ranker>,
        quarantined: HashSet<CandidateId>,
    ) -> Self {
        let model = model_name(learned.as_ref(), &key.problem, device.kind);
        let id = name(key, (device, of), &model, &quarantined);
        let (key, matrix, device) = (key.clone(), matrix.clone(), device.clone());
        Self { key, matrix, device, learned, quarantined, id }
    }

    /// Whether a stored plan equals the current prediction, or a job predicted the same and also compiled it.
    fn is_of(&self, plan: &Plan) -> bool {
        if plan.provenance.job.is_none() {
            return plan.id == self.id;
        }
        let (from, device) = (&plan.provenance, &self.device);
        let model = model_name(self.learned.as_ref(), &self.key.problem, device.kind);
        plan.predicted.as_ref().is_some_and(|said| said.model == model)
            && from.model.as_ref() == self.learned.as_ref().map(|ranker| &ranker.card().id)
            && from.environment == device.environment()
            && from.kernel_digest.as_ref() == device.kernels.get(&plan.candidate.family)
            && !self.quarantined.contains(&plan.candidate.id())
    }
}

impl Service {
    /// The learned model that ranks for a problem on a device, if there is one.
    pub(in crate::service) async fn ranker(
        &self,
        problem: &Problem,
        device: &Device,
    ) -> Result<Option<Ranker>> {
        let scope = Scope { op: problem.op(), device_class: device.class() };
        self.active_model(&scope).await
    }

    /// The predicted plan of a key that has no measured one: a stored plan if model, software and quarantine are unchanged
    /// since; otherwise a new one, made from the matrix alone under an id derived from them, and stored if it is to be kept. The
    /// caller waits no longer than `until`.
    pub(super) async fn guess(
        &self,
        (key, keeping): (&PlanKey, Keeping),
        matrix: &Matrix,
        device: &Device,
        until: Instant,
    ) -> Result<Guess> {
        let policy = self.inner.settings.l2_policy;
        if key.l2_policy != policy {
            return Ok(Guess::None(format!("plans are predicted for L2 policy {policy} only")));
        }
        let learned = self.ranker(&key.problem, device).await?;
        let quarantined = self.barred(key, device).await?;
        let basis = Basis::new((key, &self.caller.namespace), matrix, device, learned, quarantined);
        if let Some(plan) = self.guessed(&basis).await? {
            return Ok(Guess::stored(plan));
        }
        if matrix.nnz > MOST_ENTRIES {
            return Ok(Guess::None(format!(
                "the matrix has {} entries, and a lookup predicts for at most {MOST_ENTRIES}: a job of strategy predicted \
                 does it for more",
                matrix.nnz
            )));
        }
        match request::check(matrix, &key.problem, device, self.inner.settings.max_host_bytes) {
            Ok(()) => match (self.guess_once(basis, until).await?, keeping) {
                (Guess::Plan { plan, .. }, Keeping::Predictions) => self.store_guess(*plan).await,
                (guess, _) => Ok(guess),
            },
            Err(error) if error.is_failure() => Err(error),
            Err(refusal) => Ok(Guess::nothing(refusal)),
        }
    }

    /// Quarantined candidates of the key's operation on the device in its current state.
    async fn barred(&self, key: &PlanKey, device: &Device) -> Result<HashSet<CandidateId>> {
        let all = self.store.barred(&key.device_class, &key.pattern_digest).await?.into_iter();
        let barred = all.filter(|entry| {
            let family = &entry.candidate.family;
            ops::has_own_family(key.problem.op(), family)
                && device.kernels.get(family) == Some(&entry.kernel_digest)
        });
        Ok(barred.map(|entry| entry.candidate.id()).collect())
    }

    async fn guessed(&self, basis: &Basis) -> Result<Option<Plan>> {
        let store = &self.store;
        let query = PlanQuery::Predicted(basis.key.clone());
        let newest = store.plans(&query, &PageRequest::first(NEWEST)).await?;
        match newest.items.into_iter().find(|plan| basis.is_of(plan)) {
            Some(plan) => Ok(Some(plan)),
            // A model that was active before may be activated again.
            None => Ok(store.plan(&basis.id).await?),
        }
    }

    /// One prediction for all requests for it. Once begun it runs to its end even if nobody waits any more.
    async fn guess_once(&self, basis: Basis, until: Instant) -> Result<Guess> {
        let key = (basis.id.clone(), basis.matrix.digest);
        let mut receiver = {
            let mut guesses = self.guesses();
            if let Some(known) = guesses.known.get(&key) {
                return Ok(known);
            }
            let namespace = self.caller.namespace.clone();
            let own = guesses.under_way.values().filter(|begun| begun.namespace == namespace);
            let own = own.count();
            let all = guesses.under_way.len();
            match guesses.under_way.get_mut(&key) {
                Some(begun) => {
                    begun.asked = Instant::now();
                    begun.receiver.clone()
                }
                None if all >= MOST_UNDER_WAY || own >= MOST_OF_ONE => {
                    let waiting = if own >= MOST_OF_ONE { own } else { all };
                    let why = format!("{waiting} other predictions are waiting: {TRY_AGAIN}");
                    return Ok(Guess::None(why));
                }
                None => {
                    let (sender, receiver) = watch::channel(None);
                    let (receiver_kept, asked) = (receiver.clone(), Instant::now());
                    let begun = Begun { receiver: receiver_kept, namespace, asked };
                    guesses.under_way.insert(key.clone(), begun);
                    let under_way = UnderWay { service: self.clone(), key };
                    tokio::spawn(async move {
                        let made = under_way.service.make(&basis, &under_way.key).await;
                        if let Err(error) = &made {
                            tracing::warn!(matrix = %basis.matrix.digest, %error, "a prediction failed");
                        }
                        drop(under_way);
                        // There may be no receiver any more.
                        drop(sender.send(Some(made)));
                    });
                    receiver
                }
            }
        };
        let ended = timeout_at(until, receiver.wait_for(Option::is_some)).await;
        match ended {
            Err(_) => Ok(Guess::None(format!("a prediction is being made: {TRY_AGAIN}"))),
            Ok(Ok(answer)) => match &*answer {
                Some(made) => made.clone(),
                None => Err(ServiceError::internal("a prediction has no answer")),
            },
            Ok(Err(_)) => Err(ServiceError::internal("a prediction ended without an answer")),
        }
    }

    async fn make(&self, basis: &Basis, prediction: &PredictionKey) -> Result<Guess> {
        let Basis { key, matrix, device, .. } = basis;
        let store = &self.store;
        // One at a time, because it holds the matrix in memory, and one of each namespace waits for that.
        let turn = {
            let mut guesses = self.guesses();
            let turn = guesses.turns.entry(self.caller.namespace.clone());
            Arc::clone(turn.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        let turn = turn.acquire_owned().await?;
        let permit = self.inner.predicting.clone().acquire_owned().await?;
        let patience = ABANDONED.max(2 * self.inner.settings.prediction_wait);
        let asked = self.guesses().under_way.get(prediction).map(|begun| begun.asked);
        if asked.is_some_and(|asked| asked.elapsed() > patience) {
            return Ok(Guess::None(format!("it was given up, since nobody waited: {TRY_AGAIN}")));
        }
        let started = std::time::Instant::now();
        let figures = match ops::of(&key.problem).prunes_by_figures(device.kind) {
            true => store.kernel_figures(&key.device_class, Timestamp::now()).await?,
            false => Figures::new(),
        };
        let file = match self.matrix_file(&matrix.digest).await {
            Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => {
                return Ok(Guess::nothing(NO_ENTRIES));
            }
            found => found?,
        };
        let (problem, on) = (key.problem, device.clone());
        let narrowing = Narrowing { figures, ..Narrowing::default() };
        let (learned, quarantined) = (basis.learned.clone(), basis.quarantined.clone());
        let memory = self.inner.settings.limits.memory.clone();
        let surveyed = tokio::task::spawn_blocking(move || {
            let _permits = (permit, turn);
            let (csr, _, _held) = canonical::open_in(&file, &memory)?;
            let csr = ops::operand(csr, &problem);
            let space = ops::of(&problem).space(&csr, &on, &narrowing);
            let surveyed = space.and_then(|space| {
                let least = ops::of(&problem).least(&csr, &on)?;
                let ranking = rank_unmeasured(&space, learned.as_ref(), &quarantined);
                let first = ranking.order.first();
                let said = first.map(|(first, _)| (space.judged(first), space.intensity(first)));
                Ok((ranking, least, space.pruned.funnel, said.unwrap_or_default()))
            });
            Ok::<_, CanonicalError>(surveyed)
        });
        let (ranking, least, funnel, (judged, intensity)) = match surveyed.await? {
            Ok(Ok(surveyed)) => surveyed,
            Ok(Err(unsupported)) => {
                let guess = Guess::nothing(unsupported);
                self.guesses().known.insert(prediction.clone(), guess.clone());
                return Ok(guess);
            }
            Err(CanonicalError::Io(error)) if error.kind() == ErrorKind::NotFound => {
                return Ok(Guess::nothing(NO_ENTRIES));
            }
            Err(error) => return Err(error.into()),
        };
        let seed = self.inner.settings.search.seed;
        let problem = key.problem;
        let job = None;
        let subject = Subject {
            matrix,
            problem,
            device,
            least,
            funnel,
            judged,
            intensity,
            job,
            seed,
            started,
        };
        let Some(mut plan) = plan(self, subject, &ranking, 0) else {
            let guess = Guess::nothing("no candidate is left");
            self.guesses().known.insert(prediction.clone(), guess.clone());
            return Ok(guess);
        };
        plan.id = basis.id.clone();
        let guess = Guess::Plan { plan: Box::new(plan), found: Found::Made };
        self.guesses().known.insert(prediction.clone(), guess.clone());
        Ok(guess)
    }

    /// Stores a prediction, if its pattern does not have too many.
    async fn store_guess(&self, plan: Plan) -> Result<Guess> {
        let store = &self.store;
        match store.insert_predicted(&plan, MOST_STORED).await {
            Ok(true) => {}
            Ok(false) => {
                return Ok(Guess::Plan { plan: Box::new(plan), found: Found::NoRoom });
            }
            // The answer takes no room: only what would be left behind does.
            Err(StoreError::Quota(exceeded)) => {
                let found = Found::OverQuota(exceeded);
                return Ok(Guess::Plan { plan: Box::new(plan), found });
            }
            // The matrix was deleted after it was read.
            Err(StoreError::Missing(what)) => {
                return Ok(Guess::nothing(format!("{what} is gone")));
            }
            Err(error) => return Err(error.into()),
        }
        // Another process may have stored the same plan first.
        Ok(match store.plan(&plan.id).await? {
            Some(plan) => Guess::stored(plan),
            None => Guess::None("the predicted plan has been removed".to_owned()),
        })
    }

    fn guesses(&self) -> MutexGuard<'_, Guesses> {
        self.inner.guesses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn model_name(learned: Option<&Ranker>, problem: &Problem, kind: DeviceKind) -> String {
    learned.map_or_else(
        || ops::of(problem).model_name(kind).to_owned(),
        |ranker| ranker.card().id.to_string(),
    )
}

/// The same id for the same key, namespace, model, software and quarantine.
fn name(
    key: &PlanKey,
    (device, of): (&Device, &Namespace),
    model: &str,
    quarantined: &HashSet<CandidateId>,
) -> PlanId {
    let kernels: Vec<String> =
        device.kernels.iter().map(|(family, digest)| format!("{family}={digest}")).collect();
    let mut barred: Vec<&str> = quarantined.iter().map(|id| id.0.as_str()).collect();
    barred.sort_unstable();
    let PlanKey { pattern_digest, problem, device_class, l2_policy } = key;
    let text = format!(
        "sparsetune predicted plan v2\0{pattern_digest}\0{problem}\0{device_class}\0{l2_policy}\0{model}\0{}\0{}\0{}",
        device.environment(),
        kernels.join(","),
        barred.join(",")
    );
    // Those of the default one are as they were before there were others.
    let text = match *of == Namespace::default() {
        true => text,
        false => format!("{text}\0{of}"),
    };
    PlanId::derived(&text)
}

#[cfg(test)]
mod tests;
