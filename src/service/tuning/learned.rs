//! The session's connection to learning: it stores features for training, ranks candidates by the active model, and
//! starts with the winners on similar matrices.

use super::search_context::SearchContext;
use super::session::{Session, SessionError};
use crate::domain::learned::Scope;
use crate::domain::{Candidate, JobFeatures, Matrix, SearchStrategy, Timestamp};
use crate::ops::{Space, features};
use crate::service::predicted::rank;
use crate::service::{Ranker, neighbours};
use crate::store::DescribedJob;

/// Most trials for winners on similar matrices; if there are fewer than `FEW` trials, only one.
const WARM: usize = 2;
const FEW: u32 = 8;

impl Session<'_> {
    /// Stores the features that the candidates share, before the first trial stores its own.
    pub(super) async fn describe(
        &self,
        matrix: &Matrix,
        space: &Space,
    ) -> Result<(), SessionError> {
        let problem = self.recorder.job.request.problem;
        let described = JobFeatures {
            scope: Scope { op: problem.op(), device_class: self.device.class() },
            problem,
            matrix: matrix.digest,
            pattern: matrix.pattern_digest,
            name: matrix.name.clone(),
            features_version: features::version(problem.op()),
            shared: space.described.shared.clone(),
            created_at: Timestamp::now(),
        };
        Ok(self
            .service
            .store()
            .describe(DescribedJob::Running(self.recorder.fence()), &described)
            .await?)
    }

    /// The learned model that ranks. If it cannot be read the analytic model ranks; the job does not fail.
    pub(super) async fn learned(&self) -> Result<Option<Ranker>, SessionError> {
        let problem = &self.recorder.job.request.problem;
        match self.service.ranker(problem, self.device).await {
            Ok(learned) => Ok(learned),
            Err(error) => {
                self.recorder.log(format!("the learned model cannot be used: {error}")).await?;
                Ok(None)
            }
        }
    }

    /// Replaces the analytic predictions by the learned model's, if the strategy uses them. `sampled` and `full` produce
    /// data that models are trained on and judged by, so no model may influence them; `halving` computes with times, but for a perceptron only their order is
    /// meaningful.
    pub(super) async fn rank(
        &self,
        context: &mut SearchContext,
        wanted: SearchStrategy,
    ) -> Result<(), SessionError> {
        let follows = |learned: &Ranker| match wanted {
            SearchStrategy::Ranked | SearchStrategy::Exhaustive | SearchStrategy::Predicted => true,
            SearchStrategy::Halving => learned.card().learner.tells_times(),
            SearchStrategy::Sampled | SearchStrategy::Full => false,
        };
        context.learned = context.learned.take().filter(follows);
        let Some(learned) = context.learned.clone() else { return Ok(()) };
        // Quarantined candidates keep their rank and are refused when they are tried, so that this is recorded.
        let ranking = rank(&context.space, Some(&learned), &Default::default());
        let card = learned.card();
        let of = learned.borrowed_from().map_or_else(String::new, |class| {
            format!(", of {class}, the nearest class of device with a model")
        });
        let message = format!(
            "{} candidates ranked by model {} ({}, {} trials of {} matrices{of})",
            ranking.order.len(),
            card.id,
            card.learner.name(),
            card.data.trials,
            card.data.matrices,
        );
        self.recorder.log(message).await?;
        context.predicted = ranking.order.iter().map(|(c, us)| (c.id(), *us)).collect();
        context.model = ranking.model;
        context.space.scored = ranking.order;
        Ok(())
    }

    /// Legal candidates that won for the same problem on the nearest matrices, to be tried first.
    pub(super) async fn warm(
        &self,
        context: &SearchContext,
        top_k: u32,
    ) -> Result<Vec<Candidate>, SessionError> {
        let (settings, most) = (self.service.settings(), if top_k < FEW { 1 } else { WARM });
        let class = self.device.class();
        let problem = &self.recorder.job.request.problem;
        let (l2_policy, bound) = (settings.l2_policy, settings.neighbour_distance);
        let near =
            neighbours::winners(&self.service, &context.matrix, problem, &class, l2_policy, most);
        let near = match near.await {
            Ok(near) => near,
            Err(error) => {
                self.recorder
                    .log(format!("the nearest matrices could not be looked up: {error}"))
                    .await?;
                return Ok(Vec::new());
            }
        };
        let mut warm = Vec::new();
        for (distance, candidate) in near {
            if distance <= bound && context.predicted.contains_key(&candidate.id()) {
                let message =
                    format!("{candidate} won on a matrix {distance:.3} away: tried first");
                self.recorder.log(message).await?;
                warm.push(candidate);
            }
        }
        Ok(warm)
    }
}
