//! How a session enters its field: the matrix loaded in the evaluator, its space pruned here, old failures remembered.

use super::session::{Session, SessionError};
use crate::domain::plan::PlanKey;
use crate::domain::protocol::{Load, Loaded};
use crate::domain::{
    Candidate, CandidateId, DeviceKind, FunnelStep, KernelFigures, Matrix, Outcome, Problem,
    Resources, Stage,
};
use crate::ops::{self, Figures, Space};
use crate::service::ActiveModel;
use crate::sparse::canonical;
use crate::store::{LocalFile, Quarantined, StoreError};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is known once a job's matrix is loaded.
pub(super) struct SearchContext {
    pub matrix: Matrix,
    /// Held as long as the evaluator may load the matrix again.
    _file: LocalFile,
    pub loaded: Loaded,
    pub space: Space,
    pub funnel: Vec<FunnelStep>,
    /// Of the candidates to search among, by the model that ranks.
    pub predicted: HashMap<CandidateId, f64>,
    /// Their own features, kept with each trial.
    pub own: HashMap<CandidateId, Vec<f32>>,
    /// What ranks: the analytic model's name, or the id of the learned one in use.
    pub model: String,
    pub learned: Option<Arc<ActiveModel>>,
    /// Tried whatever the strategy: the vendor's routines, and in tests of the service what hangs and faults.
    pub always: Vec<Candidate>,
    pub quarantined: HashSet<CandidateId>,
}

impl Session<'_> {
    /// Loads the matrix in the evaluator, and meanwhile reads its pattern here to prune the space.
    pub(super) async fn enter(&mut self, seed: u64) -> Result<SearchContext, SessionError> {
        let request = self.recorder.job.request.clone();
        self.recorder.stage(Stage::Loading, format!("loading on {}", self.device.name)).await?;
        let matrix = self
            .service
            .store()
            .matrix(&request.matrix)
            .await?
            .ok_or_else(|| SessionError::Hopeless("the matrix has been deleted".to_owned()))?;
        let file = self.service.matrix_file(&request.matrix).await?;
        let load = Load {
            path: file.to_path_buf(),
            digest: request.matrix,
            problem: request.problem,
            l2_policy: self.service.settings().l2_policy,
            seed,
        };
        let (device, figures) = (self.device.clone(), self.figures(&matrix).await?);
        let survey_file = file.clone();
        let survey = tokio::task::spawn_blocking(move || {
            let (csr, _) = canonical::open(&survey_file).map_err(|error| error.to_string())?;
            ops::space_knowing(&csr, &request.problem, &device, &figures)
                .map_err(|error| error.to_string())
        });
        let loaded = self.evaluator.load(load, &self.signals.stop).await?;
        let space = tokio::select! {
            space = survey => space,
            () = self.signals.stop.cancelled() => return Err(SessionError::Stopped),
        };
        let space = space
            .map_err(|error| SessionError::Hopeless(format!("pruning failed: {error}")))?
            .map_err(SessionError::Hopeless)?;
        let quarantined = self.quarantined().await?;
        self.describe(&matrix, &space).await?;
        let learned = self.learned().await?;
        let named = space.scored.iter().zip(&space.described.own);
        Ok(SearchContext {
            matrix,
            _file: file,
            loaded,
            predicted: space.scored.iter().map(|(c, us)| (c.id(), *us)).collect(),
            own: named.map(|((candidate, _), own)| (candidate.id(), own.clone())).collect(),
            model: space.model.to_owned(),
            learned,
            funnel: space.pruned.funnel.clone(),
            always: self.always(&space),
            space,
            quarantined,
        })
    }

    /// What compilers made of kernels before this job was first taken up: later attempts see the same, and prune alike.
    /// Nothing of the kernel that won here before: it was the fastest whatever it spills.
    async fn figures(&self, matrix: &Matrix) -> Result<Figures, StoreError> {
        let problem = self.recorder.job.request.problem;
        let (Some(started), DeviceKind::Cuda, Problem::Spmm(_)) =
            (self.recorder.job.started_at, self.device.kind, &problem)
        else {
            return Ok(Figures::new());
        };
        let store = self.service.store();
        let mut figures = store.kernel_figures(&self.device.class(), started).await?;
        let key = PlanKey {
            pattern_digest: matrix.pattern_digest,
            problem,
            device_class: self.device.class(),
            l2_policy: self.service.settings().l2_policy,
        };
        let plan = store.plan_by_key(&key).await?;
        let won = plan.filter(|plan| plan.created_at < started);
        let won = won.and_then(|plan| ops::kernel_identity(&plan.candidate, &problem, self.device));
        if let Some(kernel) = won {
            figures.remove(&kernel);
        }
        Ok(figures)
    }

    /// Keeps what the compiler made of this job's kernels, for the next matrix: also of those that were wrong or gave up.
    /// Of what an earlier attempt compiled only the measured are known.
    pub(super) async fn record_kernel_figures(&self) -> Result<(), StoreError> {
        let problem = &self.recorder.job.request.problem;
        let resources = |outcome: &Outcome| match outcome {
            Outcome::Measured { resources, .. } => *resources,
            _ => None,
        };
        let tried = self.recorder.tried().into_iter();
        let earlier =
            tried.filter_map(|(candidate, outcome)| Some((candidate, resources(outcome)?)));
        let here = self.compiled.iter().map(|(candidate, resources)| (candidate, *resources));
        let figures = |(candidate, resources): (&Candidate, Resources)| {
            let kernel = ops::kernel_identity(candidate, problem, self.device)?;
            let Resources { registers, local_bytes, .. } = resources;
            Some((kernel, KernelFigures { registers, local_bytes }))
        };
        let figures: Vec<_> = here.chain(earlier).filter_map(figures).collect();
        if figures.is_empty() {
            return Ok(());
        }
        self.service.store().record_kernel_figures(&self.device.class(), &figures).await
    }

    async fn quarantined(&self) -> Result<HashSet<CandidateId>, StoreError> {
        let entries = self.service.store().quarantined(&self.device.class()).await?;
        let still = |entry: &Quarantined| {
            self.device.kernels.get(&entry.candidate.family) == Some(&entry.kernel_digest)
        };
        Ok(entries.iter().filter(|entry| still(entry)).map(|entry| entry.candidate.id()).collect())
    }

    /// A hostile candidate follows the first routine of the vendor, so that there is a time to compare with.
    fn always(&self, space: &Space) -> Vec<Candidate> {
        let mut always = space.vendor.clone();
        let at = always.len().min(1);
        always.splice(at..at, ops::hostile_candidates(self.device));
        always
    }
}
