//! How a session enters its field: the matrix loaded in the evaluator, its space pruned here, old failures remembered.

use super::session::{Session, SessionError};
use crate::domain::protocol::{Load, Loaded};
use crate::domain::{Candidate, CandidateId, FunnelStep, Matrix, Stage};
use crate::ops::{self, Space};
use crate::sparse::canonical;
use crate::store::{Quarantined, StoreError};
use std::collections::{HashMap, HashSet};

/// What is known once a job's matrix is loaded.
pub(super) struct Field {
    pub matrix: Matrix,
    pub loaded: Loaded,
    pub space: Space,
    pub funnel: Vec<FunnelStep>,
    pub predicted: HashMap<CandidateId, f64>,
    /// Tried whatever the strategy: the vendor's routines, and in tests of the service what hangs and faults.
    pub always: Vec<Candidate>,
    pub quarantined: HashSet<CandidateId>,
}

impl Session<'_> {
    /// Loads the matrix in the evaluator, and meanwhile reads its pattern here to prune the space.
    pub(super) async fn enter(&mut self, seed: u64) -> Result<Field, SessionError> {
        let request = self.recorder.job.request.clone();
        self.recorder.stage(Stage::Loading, format!("loading on {}", self.device.name)).await?;
        let matrix = self
            .service
            .store()
            .matrix(&request.matrix)
            .await?
            .ok_or_else(|| SessionError::Hopeless("the matrix has been deleted".to_owned()))?;
        let path = self.service.blobs().local_path(&request.matrix);
        let load = Load {
            path: path.clone(),
            digest: request.matrix,
            problem: request.problem,
            l2_policy: self.service.settings().l2_policy,
            seed,
        };
        let device = self.device.clone();
        let survey = tokio::task::spawn_blocking(move || {
            let (csr, _) = canonical::open(&path).map_err(|error| error.to_string())?;
            ops::space(&csr, &request.problem, &device).map_err(|error| error.to_string())
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
        Ok(Field {
            matrix,
            loaded,
            predicted: space.scored.iter().map(|(c, us)| (c.id(), *us)).collect(),
            funnel: space.pruned.funnel.clone(),
            always: self.always(&space),
            space,
            quarantined,
        })
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
        always.splice(at..at, ops::provocations(self.device));
        always
    }
}
