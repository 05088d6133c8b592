//! Plans that lack a file: what can be done about each, and doing it.

use super::CheckupError;
use crate::domain::{Digest, JobId, Namespace, Plan, PlanId, Work};
use crate::service::devices::Target;
use crate::service::{jobs, request};
use crate::store::{
    Jobs as _, KeptPlan, NewWork, Plans as _, Retaining as _, SqliteStore, StoreError, Submission,
};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;

/// A plan whose program, arrays or bundle are missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LackingPlan {
    pub plan: PlanId,
    pub namespace: Namespace,
    pub matrix: Digest,
    pub files: Vec<Digest>,
    pub remedy: Remedy,
}

/// What is to be done about a plan that lacks a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Only a bundle is missing that is built again when it is asked for: a repair forgets it.
    Build,
    /// A newer plan has replaced it, or it is predicted again when it is looked up: a repair forgets it.
    Forget,
    /// Its matrix is stored: a repair queues its job again, which makes a new plan in its place.
    Tune(JobId),
    /// Its matrix is not stored.
    Upload,
    /// It came from elsewhere.
    Import,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Build => {
                "its bundle is built again when it is asked for (--repair forgets the missing one)"
            }
            Self::Forget => {
                "a newer plan has replaced it, or it can be predicted again (--repair forgets it)"
            }
            Self::Tune(_) => {
                "tune it again (--repair queues its job, which makes a plan in its place)"
            }
            Self::Upload => {
                "its matrix is not stored: upload it and tune it again, or restore a backup"
            }
            Self::Import => "it came from elsewhere: import its bundle again, or restore a backup",
        })
    }
}

/// The plans that name a missing file. `sound` are the blobs that are there.
pub(super) async fn lacking(
    store: &SqliteStore,
    missing: &[Digest],
    sound: &HashSet<Digest>,
) -> Result<Vec<LackingPlan>, CheckupError> {
    let missing: HashSet<&Digest> = missing.iter().collect();
    let mut found = Vec::new();
    for plan in store.kept_plans().await? {
        let bundles = plan.bundles.iter().map(|bundle| &bundle.blob);
        let names = plan.files.iter().chain(bundles).filter(|file| missing.contains(file));
        let files: Vec<Digest> = names.copied().collect();
        if !files.is_empty() {
            let remedy = remedy(store, &plan, &files, sound).await?;
            let KeptPlan { id, namespace, matrix, .. } = plan;
            found.push(LackingPlan { plan: id, namespace, matrix, files, remedy });
        }
    }
    Ok(found)
}

async fn remedy(
    store: &SqliteStore,
    plan: &KeptPlan,
    lacks: &[Digest],
    sound: &HashSet<Digest>,
) -> Result<Remedy, CheckupError> {
    if plan.superseded && !plan.pinned {
        return Ok(Remedy::Forget);
    }
    let imported = plan.bundles.iter().find(|bundle| bundle.imported);
    if let Some(imported) = imported
        && (lacks.contains(&imported.blob) || plan.files.iter().any(|file| lacks.contains(file)))
    {
        return Ok(Remedy::Import);
    }
    if !plan.files.iter().any(|file| lacks.contains(file)) {
        return Ok(Remedy::Build);
    }
    let Some(job) = &plan.job else { return Ok(Remedy::Forget) };
    let known = matches!(store.within(&plan.namespace).work(job).await?, Some(Work::Tune(_)));
    Ok(match known && sound.contains(&plan.matrix) {
        true => Remedy::Tune(job.clone()),
        false => Remedy::Upload,
    })
}

/// Does what can be done here, and says what was; returns whether nothing is missing of the plan any more.
pub(super) async fn mend(
    store: &SqliteStore,
    lacking: &LackingPlan,
    repaired: &mut Vec<String>,
) -> Result<bool, CheckupError> {
    let id = &lacking.plan;
    match &lacking.remedy {
        Remedy::Build => {
            for file in &lacking.files {
                store.forget_bundles(file).await?;
            }
            repaired.push(format!("the bundle of plan {id} is built again when it is asked for"));
            Ok(true)
        }
        Remedy::Forget => {
            let gone = store.delete_plans(std::slice::from_ref(id)).await? > 0;
            if gone {
                repaired.push(format!("plan {id} was forgotten"));
            }
            Ok(gone)
        }
        Remedy::Tune(job) => {
            repaired.extend(tune_again(&store.within(&lacking.namespace), id, job).await?);
            Ok(false)
        }
        Remedy::Upload | Remedy::Import => Ok(false),
    }
}

async fn tune_again(
    store: &SqliteStore,
    id: &PlanId,
    job: &JobId,
) -> Result<Option<String>, CheckupError> {
    let (Some(plan), Some(Work::Tune(made_by))) = (store.plan(id).await?, store.work(job).await?)
    else {
        return Ok(None);
    };
    let mut request = made_by.request.clone();
    // This plan alone: that of the other triangle is judged by itself. It still has to go with this one.
    if request.search.then.take().is_some() {
        let Plan { problem, candidate, device, .. } = &plan;
        request.search = request::second_search(&request.search, problem, candidate, device.kind);
    }
    // Any device of the plan's class.
    let target = Target { device: plan.device, only: None };
    let again = NewWork {
        dedup_key: request::dedup_key(&request, &target.queue(), plan.l2_policy),
        work: jobs::queued(request, &target).into(),
        idempotency: None,
        priority: 0,
        continues: false,
    };
    match store.submit(&again).await {
        Ok(Submission::Created(work) | Submission::Existing(work)) => Ok(Some(format!(
            "job {} was queued, which makes a plan in the place of plan {id}",
            work.id()
        ))),
        Ok(Submission::KeyReused) | Err(StoreError::Missing(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
