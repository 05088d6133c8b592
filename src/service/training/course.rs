//! Runs one training from its claim to its end.

use super::handle::TrainingHandle;
use super::lesson::{self, Lesson};
use super::material::{self, Material};
use super::threads::Threads;
use super::{Halt, Look, Trainer, describe, verdict};

use crate::domain::learned::{Activation, LearnedModel, MODEL_VERSION};
use crate::domain::training::{Activate, TrainingStage};
use crate::domain::{Digest, JobState, ModelId, Timestamp, Training, Work, discreet};
use crate::ops::features;
use crate::service::lease::LeaseKeeper;
use crate::service::{Ranker, ServiceError};
use crate::store::{ActivationQuery, Fence, Finish, NewModel, StoreError};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A trained model, ready to be stored, with the activation verdict.
struct Trained {
    model: NewModel,
    /// Why it is activated (`Ok`) or not (`Err`).
    verdict: Result<String, String>,
}

impl Trainer {
    /// Runs a claimed training and stores its end. On shutdown the training returns to the queue; if the lease is lost
    /// nothing is stored. In both cases the next claim starts it from the beginning.
    pub(super) async fn run_training(
        &self,
        mut training: Training,
        fence: &Fence,
        shutdown: &CancellationToken,
    ) -> Result<Look, StoreError> {
        let store = self.service.store();
        training.features_version = Some(features::version(training.request.scope.op));
        let handle = Arc::new(TrainingHandle::new(training, shutdown));
        let signals = &handle.signals;
        let _keeper = LeaseKeeper::start(&self.service, fence.clone(), signals.clone());
        let over = CancellationToken::new();
        let made = async {
            let made = self.make(&handle).await;
            over.cancel();
            made
        };
        let (made, ()) = tokio::join!(made, handle.report(&**store, fence, &over));
        signals.ended.cancel();
        let mut training = handle.snapshot();
        if signals.lost.is_cancelled() {
            return Ok(taken_over(fence));
        }
        let made = match made {
            Ok(made) => {
                training.state = JobState::Succeeded;
                Some(made)
            }
            Err(Halt::Stopped) if signals.cancelled.is_cancelled() => {
                training.state = JobState::Cancelled;
                None
            }
            Err(Halt::Stopped) => {
                tracing::info!(training = %training.id, "training returned to the queue");
                self.release(fence).await?;
                return Ok(Look::Done);
            }
            Err(Halt::Later(why)) => {
                self.release(fence).await?;
                return Ok(Look::Later(why));
            }
            Err(Halt::Failed(why)) => {
                training.state = JobState::Failed;
                training.error = Some(discreet(&why));
                None
            }
        };
        training.finished_at = Some(Timestamp::now());
        let model = made.map(|Trained { model, verdict }| {
            training.stage = TrainingStage::Done;
            training.progress = 1.0;
            training.model = Some(model.card.id.clone());
            training.activated = model.activation.is_some();
            training.message = Some(match verdict {
                Ok(why) => format!("activated: {why}"),
                Err(why) => format!("not activated: {why}"),
            });
            model
        });
        match store.finish(fence, &Finish::training(training, model)).await {
            Err(StoreError::Fenced(_)) => return Ok(taken_over(fence)),
            ended => log_end(&ended?),
        }
        Ok(Look::Done)
    }

    async fn release(&self, fence: &Fence) -> Result<(), StoreError> {
        match self.service.store().release(fence).await {
            // Another trainer has already claimed it, so there is nothing to release.
            Err(StoreError::Fenced(_)) => Ok(()),
            released => released,
        }
    }

    /// All steps from recorded trials to a model.
    async fn make(&self, handle: &Arc<TrainingHandle>) -> Result<Trained, Halt> {
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
        let (shared_handle, seed, of) = (Arc::clone(handle), request.seed, scope.clone());
        let lender = service.lender(scope).await.map_err(halted)?;
        let lent = lender.as_ref().map(|lender| lender.card.id.clone());
        let train = move || {
            lesson::train_best(&data, &corrected, &of, seed, lender.as_deref(), &shared_handle)
        };
        let lesson = threads.run(train).await??;
        let Lesson { learner, started_from, quality, importance, file } = lesson;
        let (verdict, compared_with) = match request.activate {
            Activate::Never => (Err("as requested".to_owned()), None),
            Activate::Always => (Ok("as requested".to_owned()), None),
            Activate::IfBetter => {
                // Read before the model, so that a change in between is detected when the training ends.
                let newest =
                    service.store().activations(ActivationQuery::OfScope(scope, 1)).await?.pop();
                let in_use = service.active_model(scope).await.map_err(halted)?;
                let chosen = verdict::chosen_otherwise(
                    newest.as_ref(),
                    matches!(in_use, Some(Ranker::Own(_))),
                );
                let better = || verdict::better(&quality, learner, in_use.as_ref(), lent.as_ref());
                let verdict = chosen.and_then(|()| better());
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
            started_from,
            training: Some(id),
            digest: Digest::of(&file),
            created_at: Timestamp::now(),
        };
        let activation = verdict.as_ref().ok().map(|reason| Activation {
            scope: model.scope.clone(),
            model: Some(model.id.clone()),
            reason: format!("trained: {reason}"),
            at: model.created_at,
        });
        // The verdict holds for what is in use now: it is no reason to replace anything else.
        let model = NewModel { card: model, file, activation, only_after: compared_with };
        Ok(Trained { model, verdict })
    }
}

/// Why a training cannot go on without an answer about the models in use.
fn halted(error: ServiceError) -> Halt {
    match error {
        error @ ServiceError::Unavailable { .. } => Halt::Later(error.to_string()),
        error if error.is_failure() => Halt::Later(error.to_string()),
        error => Halt::Failed(error.to_string()),
    }
}

fn taken_over(fence: &Fence) -> Look {
    tracing::warn!(training = %fence.job, "the training was taken over by another trainer");
    Look::Done
}

fn log_end(work: &Work) {
    let Work::Train(training) = work else { return };
    let Training { id, state, model, activated, error, message, .. } = &**training;
    let (state, model) = (state.name(), model.as_ref().map(ToString::to_string));
    tracing::info!(training = %id, state, model, activated, error, message, "training ended");
}
