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

/// The analytic model's best of a family is tried beside a learned model's choice if it is predicted within this factor of its
/// best of all, in at most so many families.
const SECOND_NEAR: f64 = 1.25;
const SECOND_MOST: usize = 3;

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
        context.second_opinion = second_opinion(&context.space.scored);
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

    /// Candidates that are tried first besides the ranking model's: those that won for the same problem on the nearest matrices,
    /// if they are legal, and the second opinion.
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
        let mut warm = match top_k < FEW {
            true => Vec::new(),
            false => context.second_opinion.clone(),
        };
        for (distance, candidate) in near {
            let known = |it: &Candidate| context.predicted.contains_key(&it.id());
            let Some(candidate) = candidate.forms().into_iter().find(known) else { continue };
            if distance <= bound {
                let message =
                    format!("{candidate} won on a matrix {distance:.3} away: tried first");
                self.recorder.log(message).await?;
                warm.push(candidate);
            }
        }
        Ok(warm)
    }
}

/// The analytic model's best candidate of each of the few families that it predicts near its best of all. A learned model may never
/// have seen a matrix like this one: on a pruned layer of 6.7 million entries, ten times those that it was trained on, it missed the
/// family that is 1.3 times as fast, which the analytic model puts first.
fn second_opinion(scored: &[(Candidate, f64)]) -> Vec<Candidate> {
    let mut best: Vec<&(Candidate, f64)> = Vec::new();
    for one in scored {
        match best.iter_mut().find(|other| other.0.family == one.0.family) {
            None => best.push(one),
            Some(other) if one.1 < other.1 => *other = one,
            Some(_) => {}
        }
    }
    best.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    let near = best.first().map_or(0.0, |(_, us)| SECOND_NEAR * us);
    let chosen = best.into_iter().take(SECOND_MOST).filter(|(_, us)| *us <= near);
    chosen.map(|(candidate, _)| candidate.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opinion_is_the_best_of_the_few_families_near_the_best() {
        let of = |family: &str, x: i64, us: f64| (Candidate::new(family).with("x", x), us);
        let scored = [
            of("far", 0, 1.3),
            of("near", 0, 1.2),
            of("best", 1, 1.1),
            of("best", 0, 1.0),
            of("near", 1, 1.15),
            of("fourth", 0, 1.22),
            of("third", 0, 1.21),
        ];
        let chosen = second_opinion(&scored);
        assert_eq!(chosen, [3, 4, 6].map(|at: usize| scored[at].0.clone()));
        assert!(second_opinion(&[]).is_empty());
    }
}
