//! Plans from a model alone: its order of the candidates, the plan of the first, and the one that a lookup makes at once.

use super::{ActiveModel, Result, Service, ServiceError, request};
use crate::domain::learned::Scope;
use crate::domain::plan::{
    Limit, PREDICTED_VERSION, PlanKey, Predicted, Provenance, TrialCounts, Validity,
};
use crate::domain::{
    Candidate, CandidateId, Device, DeviceKind, Digest, FunnelStep, JobId, JobRequest, Matrix,
    ModelId, Op, Plan, PlanId, Problem, Search, StoppedBy, Strategy, Timestamp,
};
use crate::ops::limit::Least;
use crate::ops::{self, Figures, Space};
use crate::sparse::canonical;
use crate::store::StoreError;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

/// What the model would take next, as far as a plan tells.
const ALTERNATIVES: usize = 7;
/// Entries of the largest matrix that a lookup reads to predict for: a job takes what is larger.
pub(super) const MOST_ENTRIES: u64 = 1 << 24;

/// Candidates as a model would take them, the first first.
pub(in crate::service) struct Ranking {
    pub order: Vec<(Candidate, f64)>,
    /// The model's name: a learned one's id, or the analytic one's.
    pub model: String,
    pub learned: Option<ModelId>,
}

/// Ranks by the learned model, or by the analytic one where there is none. What hung or killed the device is left out.
pub(in crate::service) fn rank(
    space: &Space,
    learned: Option<&ActiveModel>,
    quarantined: &HashSet<CandidateId>,
) -> Ranking {
    let analytic: Vec<f64> = space.scored.iter().map(|(_, us)| *us).collect();
    let times = match learned {
        Some(active) => {
            let described = &space.described;
            let text = |at: usize| space.scored[at].0.to_string();
            active.file.order(&described.shared, &described.own, &analytic, text)
        }
        None => analytic,
    };
    let candidates = space.scored.iter().map(|(candidate, _)| candidate.clone());
    let mut order: Vec<(Candidate, f64)> = candidates.zip(times).collect();
    order.retain(|(candidate, us)| us.is_finite() && !quarantined.contains(&candidate.id()));
    // Stable: what the model cannot tell apart stays in the space's order.
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let learned = learned.map(|active| active.card.id.clone());
    let model = learned.as_ref().map_or_else(|| space.model.to_owned(), ToString::to_string);
    Ranking { order, model, learned }
}

/// What a predicted plan is of.
pub(in crate::service) struct Subject<'a> {
    pub matrix: &'a Matrix,
    pub problem: Problem,
    pub device: &'a Device,
    pub least: Least,
    pub funnel: Vec<FunnelStep>,
    pub job: Option<JobId>,
    pub expected_calls: Option<u64>,
    pub seed: u64,
    /// Since when it was sought.
    pub started: Instant,
}

/// The plan of the ranking's candidate `at`; `None` where there is none. It has no launch: who can compile adds one.
pub(in crate::service) fn plan(
    service: &Service,
    subject: Subject<'_>,
    ranking: &Ranking,
    at: usize,
) -> Option<Plan> {
    let Subject { matrix, device, least, .. } = subject;
    let (candidate, us) = ranking.order.get(at)?.clone();
    let next = ranking.order.iter().skip(at + 1).take(ALTERNATIVES);
    Some(Plan {
        version: PREDICTED_VERSION,
        id: PlanId::fresh(),
        matrix: matrix.digest,
        pattern_digest: matrix.pattern_digest,
        problem: subject.problem,
        l2_policy: service.settings().l2_policy,
        device: device.clone(),
        measured: None,
        tie: false,
        runner_up: None,
        baseline: None,
        speedup: None,
        limit: Limit {
            us: least.us,
            bound: least.bound,
            fraction: if us > 0.0 { least.us / us } else { 0.0 },
            bytes: least.bytes,
        },
        predicted: Some(Predicted { model: ranking.model.clone(), median_us: us }),
        model_error: None,
        funnel: subject.funnel,
        trials: TrialCounts::default(),
        alternatives: next.map(|(candidate, _)| candidate.clone()).collect(),
        preprocess_ms: None,
        expected_calls: subject.expected_calls,
        break_even_calls: None,
        validity: Validity {
            values_may_change: true,
            pattern_may_change: false,
            update_values_ms: 0.0,
            dense_must_be_finite: ops::dense_must_be_finite(&candidate, device.kind),
            n_may_change: false,
        },
        launch: None,
        host: None,
        resources: None,
        provenance: Provenance {
            job: subject.job,
            model: ranking.learned.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            environment: device.environment(),
            kernel_digest: device.kernels.get(&candidate.family).copied(),
            seed: subject.seed,
            stopped_by: StoppedBy::Completed,
            search_seconds: subject.started.elapsed().as_secs_f64(),
        },
        candidate,
        created_at: Timestamp::now(),
    })
}

/// A predicted plan, or why there is none.
pub(super) enum Guess {
    Plan(Box<Plan>),
    None(String),
}

impl Service {
    /// The model in use for a problem on a device, where there is one.
    pub(in crate::service) async fn ranker(
        &self,
        problem: &Problem,
        device: &Device,
    ) -> Result<Option<Arc<ActiveModel>>> {
        let scope = Scope { op: Op::of(problem), device_class: device.class() };
        self.active_model(&scope).await
    }

    /// The predicted plan of a key that has no measured one: what is stored, where model and software are still those it
    /// was made with; else a new one, made of the matrix alone and stored under a name that follows from all it rests on.
    pub(super) async fn guess(
        &self,
        key: &PlanKey,
        matrix: &Matrix,
        device: &Device,
    ) -> Result<Guess> {
        let store = &self.inner.store;
        if key.l2_policy != self.inner.settings.l2_policy {
            let policy = self.inner.settings.l2_policy;
            return Ok(Guess::None(format!("plans are predicted for L2 policy {policy} only")));
        }
        let learned = self.ranker(&key.problem, device).await?;
        let id = learned.as_ref().map(|active| active.card.id.clone());
        let stored = store.predicted_plan(key).await?;
        let current = stored.filter(|plan| {
            plan.provenance.model == id
                && plan.provenance.environment == device.environment()
                && plan.provenance.kernel_digest.as_ref()
                    == device.kernels.get(&plan.candidate.family)
        });
        if let Some(plan) = current {
            return Ok(Guess::Plan(Box::new(plan)));
        }
        if matrix.nnz > MOST_ENTRIES {
            return Ok(Guess::None(format!(
                "the matrix has {} entries, and a lookup predicts for at most {MOST_ENTRIES}: a job of strategy predicted \
                 does it for more",
                matrix.nnz
            )));
        }
        let fits = request::check(matrix, &key.problem, device, self.inner.settings.max_host_bytes);
        match fits {
            Ok(()) => self.guess_anew(key, matrix, device, learned).await,
            Err(ServiceError::Internal(error)) => Err(ServiceError::Internal(error)),
            Err(refusal) => Ok(Guess::None(format!("nothing is predicted: {refusal}"))),
        }
    }

    async fn guess_anew(
        &self,
        key: &PlanKey,
        matrix: &Matrix,
        device: &Device,
        learned: Option<Arc<ActiveModel>>,
    ) -> Result<Guess> {
        let started = Instant::now();
        let store = &self.inner.store;
        let figures = match (&key.problem, device.kind) {
            (Problem::Spmm(_), DeviceKind::Cuda) => {
                store.learnt(&key.device_class, Timestamp::now()).await?
            }
            _ => Figures::new(),
        };
        let quarantined = store.quarantined(&key.device_class).await?.into_iter();
        let quarantined: HashSet<CandidateId> = quarantined
            .filter(|entry| {
                device.kernels.get(&entry.candidate.family) == Some(&entry.kernel_digest)
            })
            .map(|entry| entry.candidate.id())
            .collect();
        // One at a time, like pictures: it takes the matrix in memory.
        let permit = self.inner.drawing.clone().acquire_owned().await;
        let permit = permit.map_err(|error| ServiceError::Internal(error.to_string()))?;
        let (path, problem, on) = (self.matrix_path(&matrix.digest), key.problem, device.clone());
        let surveyed = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let (csr, _) = canonical::open(&path)
                .map_err(|error| ServiceError::Internal(error.to_string()))?;
            let space = ops::space_knowing(&csr, &problem, &on, &figures);
            let surveyed = space.and_then(|space| {
                let least = ops::limit::least(&csr, &problem, &on)?;
                Ok((rank(&space, learned.as_deref(), &quarantined), least, space.pruned.funnel))
            });
            Ok::<_, ServiceError>(surveyed)
        });
        let (ranking, least, funnel) = match surveyed.await?? {
            Ok(surveyed) => surveyed,
            Err(unsupported) => {
                return Ok(Guess::None(format!("nothing is predicted: {unsupported}")));
            }
        };
        let subject = Subject {
            matrix,
            problem: key.problem,
            device,
            least,
            funnel,
            job: None,
            expected_calls: None,
            seed: self.inner.settings.search.seed,
            started,
        };
        let Some(mut plan) = plan(self, subject, &ranking, 0) else {
            return Ok(Guess::None("nothing is predicted: no candidate is left".to_owned()));
        };
        plan.id = name(key, device, &ranking.model);
        match store.insert_predicted(&plan).await {
            // Deleted since it was read.
            Err(StoreError::Missing(what)) => {
                return Ok(Guess::None(format!("nothing is predicted: {what} is gone")));
            }
            inserted => inserted?,
        }
        // Whoever asked at the same time may have been first.
        Ok(match store.plan(&plan.id).await? {
            Some(plan) => Guess::Plan(Box::new(plan)),
            None => Guess::None("the predicted plan is gone again".to_owned()),
        })
    }

    /// Queues the job that measures what a lookup did not find, once in the time that idempotency keys are kept.
    pub(super) async fn measure_miss(
        &self,
        key: &PlanKey,
        matrix: &Matrix,
        device: &Device,
    ) -> Result<Option<JobId>> {
        let settings = &self.inner.settings;
        if !settings.measure_misses || key.l2_policy != settings.l2_policy {
            return Ok(None);
        }
        let asked = measuring(matrix.digest, key.problem, device, None);
        // Clients' keys have no spaces, so that this is none of theirs.
        let once = format!("miss of {} {} {}", matrix.digest, key.problem, device.id);
        match self.submit(&asked, Some(once)).await {
            Ok(submitted) => Ok(Some(submitted.job.id)),
            Err(error @ ServiceError::Internal(_)) => Err(error),
            // The prediction says why it cannot be done.
            Err(_) => Ok(None),
        }
    }
}

/// The request for a job that measures, as the operation does where nothing else is said.
pub(in crate::service) fn measuring(
    matrix: Digest,
    problem: Problem,
    device: &Device,
    expected_calls: Option<u64>,
) -> JobRequest {
    let search = Search { strategy: Strategy::default_for(&problem), ..Search::default() };
    JobRequest { matrix, problem, device: device.id.0.clone(), search, expected_calls }
}

/// One name for one key, model and software.
fn name(key: &PlanKey, device: &Device, model: &str) -> PlanId {
    let kernels: Vec<String> =
        device.kernels.iter().map(|(family, digest)| format!("{family}={digest}")).collect();
    let PlanKey { pattern_digest, problem, device_class, l2_policy } = key;
    let text = format!(
        "sparsetune predicted plan v1\0{pattern_digest}\0{problem}\0{device_class}\0{l2_policy}\0{model}\0{}\0{}",
        device.environment(),
        kernels.join(",")
    );
    let digest = Digest::of(text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    PlanId(uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string())
}
