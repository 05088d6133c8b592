//! Runs one training from its claim to its end.

use super::handle::{Keeper, TrainingHandle};
use super::lesson::{self, Lesson};
use super::material::{self, Material};
use super::threads::Threads;
use super::{Halt, Trainer, describe, verdict};
use crate::domain::learned::{Activation, LearnedModel, MODEL_VERSION};
use crate::domain::training::{Activate, TrainingStage};
use crate::domain::{Digest, JobState, ModelId, Timestamp, Training};
use crate::ops::features;
use crate::service::ServiceError;
use crate::store::{PutToUse, StoreError, TrainingFence};
use metrics::{counter, histogram};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A trained model, ready to be stored, with the activation verdict.
struct Made {
    model: LearnedModel,
    file: Vec<u8>,
    /// Why it is activated (`Ok`) or not (`Err`).
    verdict: Result<String, String>,
    /// The scope's newest activation on which the verdict is based; absent if the verdict does not depend on it.
    judged_beside: Option<Option<Activation>>,
}

impl Trainer {
    /// Runs a claimed training and stores its end. On shutdown the training returns to the queue; if the lease is lost
    /// nothing is stored. In both cases the next claim starts it from the beginning. False where the store did not
    /// answer: the training is queued again, and the caller should wait before it claims the next.
    pub(super) async fn carry(
        &self,
        mut training: Training,
        fence: &TrainingFence,
        shutdown: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let store = self.service.store();
        training.state = JobState::Running;
        training.features_version = Some(features::version(training.request.scope.op));
        let started = *training.started_at.get_or_insert_with(Timestamp::now);
        let lease_ms = self.service.settings().lease_ms;
        let handle = Arc::new(TrainingHandle::new(training, shutdown));
        let keeper = Keeper::start(store.clone(), fence.clone(), lease_ms, Arc::clone(&handle));
        let made = self.make(&handle).await;
        keeper.end().await;
        let mut training = handle.snapshot();
        if handle.lost.is_cancelled() {
            tracing::warn!(training = %training.id, "the training was taken over by another trainer");
            return Ok(true);
        }
        let made = match made {
            Ok(made) => {
                training.state = JobState::Succeeded;
                Some(made)
            }
            Err(Halt::Stopped) if handle.cancelled.is_cancelled() => {
                training.state = JobState::Cancelled;
                None
            }
            Err(Halt::Stopped) => {
                tracing::info!(training = %training.id, "training returned to the queue");
                self.release(fence).await?;
                return Ok(true);
            }
            Err(Halt::Later(why)) => {
                tracing::error!(training = %training.id, why, "the training is queued again");
                self.release(fence).await?;
                return Ok(false);
            }
            Err(Halt::Failed(why)) => {
                training.state = JobState::Failed;
                training.error = Some(why);
                None
            }
        };
        training.finished_at = Some(Timestamp::now());
        let activation = made.as_ref().and_then(activation);
        if let Some(Made { model, verdict, .. }) = &made {
            training.stage = TrainingStage::Done;
            training.progress = 1.0;
            training.model = Some(model.id.clone());
            training.activated = activation.is_some();
            training.message = Some(match verdict {
                Ok(why) => format!("activated: {why}"),
                Err(why) => format!("not activated: {why}"),
            });
        }
        let stored = made.as_ref().map(|made| (&made.model, made.file.as_slice()));
        let judged_beside = made.as_ref().and_then(|made| made.judged_beside.as_ref());
        let change = activation.as_ref().map(|activation| PutToUse {
            activation,
            only_after: judged_beside.map(Option::as_ref),
        });
        let training = match store.finish_training(fence, &training, stored, change).await {
            Err(StoreError::Fenced(_)) => {
                tracing::warn!(training = %training.id, "the training was taken over by another trainer");
                return Ok(true);
            }
            ended => ended?,
        };
        if training.activated {
            self.service.signals().changed_here();
        }
        tell(&training, started);
        Ok(true)
    }

    async fn release(&self, fence: &TrainingFence) -> Result<(), StoreError> {
        match self.service.store().release_training(fence).await {
            // Another trainer has already claimed it, so there is nothing to release.
            Err(StoreError::Fenced(_)) => Ok(()),
            released => released,
        }
    }

    /// All steps from recorded trials to a model.
    async fn make(&self, handle: &Arc<TrainingHandle>) -> Result<Made, Halt> {
        let Training { id, request, .. } = handle.snapshot();
        let (service, scope) = (&self.service, &request.scope);
        let settings = &service.settings().learning;
        let threads = Threads::start(settings.threads)?;
        handle.stage(TrainingStage::Describing, "describing trials that have no features yet");
        let described = describe::describe_all(service, scope, &threads, handle).await?;
        handle.stage(
            TrainingStage::Reading,
            format!("features of {described} jobs computed; reading trials"),
        );
        let Material { data, corrected, used } =
            material::read(service, scope, &threads, handle).await?;
        material::suffices(&used, scope, settings)?;
        let (groups, matrices, trials) = (used.groups, used.matrices, used.trials);
        let story = format!(
            "cross-validating on {groups} jobs over {matrices} matrices with {trials} trials"
        );
        handle.stage(TrainingStage::Judging, story);
        let (told, seed, of) = (Arc::clone(handle), request.seed, scope.clone());
        let give = move || lesson::give(&data, &corrected, &of, seed, &told);
        let lesson = threads.run(give).await??;
        let Lesson { learner, quality, importance, file } = lesson;
        let (verdict, judged_beside) = match request.activate {
            Activate::Never => (Err("as requested".to_owned()), None),
            Activate::Always => (Ok("as requested".to_owned()), None),
            Activate::IfBetter => {
                // Read before the model, so that a change in between is detected when the training ends.
                let newest = service.store().activations(scope, 1).await?.pop();
                let in_use = service.active_model(scope).await.map_err(|error| match error {
                    error @ ServiceError::Unavailable { .. } => Halt::Later(error.to_string()),
                    error if error.is_failure() => Halt::Later(error.to_string()),
                    error => Halt::Failed(error.to_string()),
                })?;
                let chosen = verdict::chosen_otherwise(newest.as_ref(), in_use.is_some());
                let verdict = chosen.and_then(|()| {
                    verdict::better(&quality, learner, in_use.as_ref().map(|model| &model.card))
                });
                (verdict, Some(newest))
            }
        };
        let model = LearnedModel {
            version: MODEL_VERSION,
            id: ModelId::fresh(),
            learner,
            features_version: features::version(request.scope.op),
            scope: request.scope,
            data: used,
            quality,
            importance,
            seed,
            training: Some(id),
            digest: Digest::of(&file),
            created_at: Timestamp::now(),
        };
        Ok(Made { model, file, verdict, judged_beside })
    }
}

fn activation(made: &Made) -> Option<Activation> {
    let reason = made.verdict.as_ref().ok()?;
    Some(Activation {
        scope: made.model.scope.clone(),
        model: Some(made.model.id.clone()),
        reason: format!("trained: {reason}"),
        at: made.model.created_at,
    })
}

fn tell(training: &Training, started: Timestamp) {
    let state = training.state.name();
    let seconds = training.finished_at.map_or(0, |at| at.0 - started.0).max(0) as f64 / 1000.0;
    counter!("sparsetune_trainings_ended_total", "state" => state).increment(1);
    histogram!("sparsetune_training_seconds", "state" => state).record(seconds);
    let Training { id, model, activated, error, message, .. } = training;
    let model = model.as_ref().map(ToString::to_string);
    tracing::info!(training = %id, state, model, activated, error, message, seconds, "training ended");
}
