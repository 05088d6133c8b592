//! Sets up the context of a search: loads the matrix in the evaluator, prunes the search space, and reads the
//! quarantine.

use super::loading;
use super::session::{Session, SessionError};
use crate::domain::plan::PlanKey;
use crate::domain::protocol::{Load, Loaded};
use crate::domain::{
    Candidate, CandidateId, FunnelStep, KernelFigures, Matrix, Outcome, Resources, Search,
    SearchStrategy, Stage,
};
use crate::ops::{self, Figures, Narrowing, Space};
use crate::service::Ranker;
use crate::service::whole::upload_again;
use crate::store::{LocalFile, Quarantined, StoreError};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// The state of a search after the job's matrix has been loaded.
pub(super) struct SearchContext {
    pub matrix: Matrix,
    /// Held as long as the evaluator may load the matrix again.
    _file: LocalFile,
    pub loaded: Loaded,
    pub space: Space,
    pub funnel: Vec<FunnelStep>,
    /// Predictions of the ranking model for the candidates of the search.
    pub predicted: HashMap<CandidateId, f64>,
    /// The candidates' own features, stored with each trial.
    pub own: HashMap<CandidateId, Vec<f32>>,
    /// The ranking model: the analytic model's name, or the id of the learned model.
    pub model: String,
    pub learned: Option<Ranker>,
    /// What the analytic model would try first, where a learned one ranks.
    pub second_opinion: Vec<Candidate>,
    /// Tried with every strategy: vendor routines, and hostile candidates in tests of the service.
    pub always: Vec<Candidate>,
    pub quarantined: HashSet<CandidateId>,
}

impl Session<'_> {
    /// Loads the matrix in the evaluator, and meanwhile reads its pattern here to prune the search space.
    pub(super) async fn enter(
        &mut self,
        seed: u64,
        seconds: f64,
    ) -> Result<SearchContext, SessionError> {
        let request = self.recorder.job.request.clone();
        let began = Instant::now();
        let matrix = self
            .service
            .store()
            .matrix(&request.matrix)
            .await?
            .ok_or_else(|| SessionError::Hopeless("the matrix has been deleted".to_owned()))?;
        let work = loading::work(&matrix, &request.problem);
        let expected = loading::expected(work);
        let covers = match request.search.strategy {
            SearchStrategy::Predicted => String::new(),
            _ => format!("; the budget of {seconds} s covers loading, trials and finals"),
        };
        let message = format!(
            "loading on {}, which takes about {:.1} s{covers}",
            self.device.name,
            expected.as_secs_f64()
        );
        self.recorder.long_stage(Stage::Loading, expected, message).await?;
        let file = self.service.matrix_file(&request.matrix).await;
        let file = file.map_err(|error| match upload_again(&error, &request.matrix) {
            Some(why) => SessionError::Hopeless(why),
            None => error.into(),
        })?;
        let load = Load {
            path: file.to_path_buf(),
            digest: request.matrix,
            problem: request.problem,
            l2_policy: self.service.settings().l2_policy,
            seed,
        };
        let figures = self.figures(&matrix).await?;
        let (device, narrowing) = (self.device.clone(), Narrowing::of(&request, figures));
        let (service, survey_file) = (self.service.clone(), file.clone());
        let survey = tokio::spawn(async move {
            let read = service.read_patiently(&survey_file).await;
            let (csr, held) = read.map_err(|error| error.to_string())?;
            let surveyed = tokio::task::spawn_blocking(move || {
                let _held = held;
                let csr = ops::operand(csr, &request.problem);
                let space = ops::of(&request.problem).space(&csr, &device, &narrowing);
                space.map_err(|error| error.to_string())
            });
            surveyed.await.map_err(|error| format!("pruning failed: {error}"))?
        });
        let loaded = self.evaluator.load(load, &self.signals.stop).await?;
        let space = tokio::select! {
            space = survey => space,
            () = self.signals.stop.cancelled() => return Err(SessionError::Stopped),
        };
        let space = space
            .map_err(|error| SessionError::Hopeless(format!("pruning failed: {error}")))?
            .map_err(SessionError::Hopeless)?;
        loading::took(work, began.elapsed());
        let Search { families, fixed, .. } = &self.recorder.job.request.search;
        if let Some(why) = space.nothing_of(families, fixed) {
            self.recorder.funnel(&space.pruned.funnel).await?;
            return Err(SessionError::Hopeless(why));
        }
        let quarantined = self.quarantined(&matrix).await?;
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
            second_opinion: Vec::new(),
            funnel: space.pruned.funnel.clone(),
            always: self.always(&space),
            space,
            quarantined,
        })
    }

    /// Compiler figures of kernels from before this job's first attempt, so that all attempts prune alike. Without
    /// those of the kernel that won this key before, which was the fastest regardless of spills.
    async fn figures(&self, matrix: &Matrix) -> Result<Figures, StoreError> {
        let problem = self.recorder.job.request.problem;
        let started = self.recorder.job.started_at;
        let prunes = ops::of(&problem).prunes_by_figures(self.device.kind);
        let Some(started) = started.filter(|_| prunes) else { return Ok(Figures::new()) };
        let store = self.service.store();
        let mut figures = store.kernel_figures(&self.device.class(), started).await?;
        let key = PlanKey {
            pattern_digest: matrix.pattern_digest,
            problem,
            device_class: self.device.class(),
            l2_policy: self.service.settings().l2_policy,
        };
        let plan = self.service.measured_plan(&key).await?;
        let won = plan.filter(|plan| plan.created_at < started);
        let won =
            won.and_then(|plan| ops::of(&problem).kernel_identity(&plan.candidate, self.device));
        if let Some(kernel) = won {
            figures.remove(&kernel);
        }
        Ok(figures)
    }

    /// Stores the compiler's figures of this job's kernels for later searches, including kernels that were wrong or
    /// gave up. From earlier attempts only those of measured kernels are known.
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
            let kernel = ops::of(problem).kernel_identity(candidate, self.device)?;
            let Resources { registers, local_bytes, .. } = resources;
            Some((kernel, KernelFigures { registers, local_bytes }))
        };
        let figures: Vec<_> = here.chain(earlier).filter_map(figures).collect();
        if figures.is_empty() {
            return Ok(());
        }
        self.service.store().record_kernel_figures(&self.device.class(), &figures).await
    }

    async fn quarantined(&self, matrix: &Matrix) -> Result<HashSet<CandidateId>, StoreError> {
        let class = self.device.class();
        let entries = self.service.store().barred(&class, &matrix.pattern_digest).await?;
        let still = |entry: &Quarantined| {
            self.device.kernels.get(&entry.candidate.family) == Some(&entry.kernel_digest)
        };
        Ok(entries.iter().filter(|entry| still(entry)).map(|entry| entry.candidate.id()).collect())
    }

    /// A hostile candidate comes after the first vendor routine, so that there is a time to compare with.
    fn always(&self, space: &Space) -> Vec<Candidate> {
        let mut always = space.vendor.clone();
        let at = always.len().min(1);
        always.splice(at..at, ops::hostile_candidates(self.device));
        always
    }
}
