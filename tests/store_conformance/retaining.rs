//! What retention weighs and removes, and pins.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::{Digest, JobId, JobState, Matrix, Plan, PlanId, Timestamp};
use sparsetune::store::{KeptJob, KeptMatrix, Pin, Store, StoreError, Weigh};

/// Runs a job with two trials, one of them pruned, to its end.
async fn tuned(store: &dyn Store, matrix: &Matrix, at: i64) -> (JobId, Plan) {
    store.insert_matrix(matrix).await.unwrap();
    let new = new_job(matrix, &format!("{} {at}", matrix.digest), at);
    store.submit(&new).await.unwrap();
    let claim = claim(store, "w", LEASE).await.unwrap();
    let id = claim.job.id.clone();
    store.record_trials(&claim.fence, &[trial(&id, 0, 0.1), pruned(&id, 1)]).await.unwrap();
    let plan = plan(matrix, &id, at);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    (id, plan)
}

async fn job_of(store: &dyn Store, id: &JobId) -> Option<KeptJob> {
    store.kept_jobs(Weigh::Bytes).await.unwrap().into_iter().find(|job| job.id == *id)
}

pub async fn what_is_kept_is_weighed(harness: &Harness) {
    let store = harness.open().await;
    let (a, b) = (matrix("a", 1), matrix("b", 2));
    let (first, old) = tuned(&*store, &a, 10).await;
    let (_, new) = tuned(&*store, &a, 20).await;
    store.insert_matrix(&b).await.unwrap();
    let live = created(store.submit(&new_job(&b, "live", 30)).await.unwrap());

    let mut matrices = store.kept_matrices().await.unwrap();
    matrices.sort_by_key(|kept| kept.used_at);
    let kept = |digest: Digest, used_at, needed| KeptMatrix {
        namespace: sparsetune::domain::Namespace::default(),
        digest,
        used_at: Timestamp(used_at),
        pinned: false,
        needed,
    };
    assert_eq!(matrices, [kept(a.digest, 20, false), kept(b.digest, 30, true)]);

    assert_eq!(job_of(&*store, &live.id).await, None, "it has not ended");
    let weighed = job_of(&*store, &first).await.unwrap();
    assert_eq!((weighed.finished_at, weighed.trials, weighed.pinned), (Timestamp(100), 2, false));
    assert!(weighed.trial_bytes > 200 && weighed.event_bytes > 100, "{weighed:?}");
    for (weigh, trials) in [(Weigh::Trials, 2), (Weigh::Jobs, 0)] {
        let quick = store.kept_jobs(weigh).await.unwrap();
        assert!(quick.len() == 2);
        assert!(quick.iter().all(|job| (job.trials, job.trial_bytes) == (trials, 0)), "{quick:?}");
    }

    let mut plans = store.kept_plans().await.unwrap();
    plans.sort_by_key(|kept| kept.created_at);
    let told: Vec<_> = plans.iter().map(|kept| (&kept.id, kept.superseded, kept.pinned)).collect();
    assert_eq!(told, [(&old.id, true, false), (&new.id, false, false)]);
    assert_eq!((&plans[0].job, plans[0].matrix), (&Some(first), a.digest));
    assert!(plans[0].bytes > 500 && plans[0].files.is_empty() && plans[0].bundles.is_empty());
}

pub async fn what_is_pinned_is_not_removed(harness: &Harness) {
    let store = harness.open().await;
    let m = matrix("m", 1);
    let (job, plan) = tuned(&*store, &m, 1).await;
    let (matrix_pin, plan_pin) = (Pin::Matrix(m.digest), Pin::Plan(plan.id.clone()));
    for pin in [&matrix_pin, &plan_pin] {
        assert_eq!(store.pin(pin, true).await.unwrap(), Some(true));
        assert_eq!(store.pin(pin, true).await.unwrap(), Some(false), "again is the same");
    }
    let pins = harness.open().await.pins().await.unwrap();
    assert_eq!((pins.matrices, pins.plans), (vec![m.digest], vec![plan.id.clone()]));
    assert_eq!(store.pin(&Pin::Plan(PlanId::fresh()), true).await.unwrap(), None);
    assert_eq!(store.pin(&Pin::Matrix(Digest::of(b"?")), false).await.unwrap(), None);

    let refused = store.delete_matrix(&m.digest).await;
    assert!(matches!(refused, Err(StoreError::InUse(why)) if why.contains("pinned")));
    let (jobs, plans) = ([job.clone()], [plan.id.clone()]);
    assert_eq!(store.delete_jobs(&jobs).await.unwrap(), 0);
    assert_eq!(store.delete_trials(&jobs).await.unwrap(), 0);
    assert_eq!(store.delete_plans(&plans).await.unwrap(), 0);
    assert!(job_of(&*store, &job).await.unwrap().pinned);
    assert!(store.kept_plans().await.unwrap()[0].pinned);
    assert!(store.kept_matrices().await.unwrap()[0].pinned);

    for pin in [&matrix_pin, &plan_pin] {
        assert_eq!(store.pin(pin, false).await.unwrap(), Some(true));
    }
    assert_eq!(store.pins().await.unwrap(), Default::default());
    assert_eq!(store.delete_jobs(&jobs).await.unwrap(), 1);
    assert_eq!(store.delete_plans(&plans).await.unwrap(), 1);
    assert!(store.delete_matrix(&m.digest).await.unwrap());
}

pub async fn what_is_removed_goes_with_all_that_is_its_own(harness: &Harness) {
    let store = harness.open().await;
    let m = matrix("m", 1);
    let (first, old) = tuned(&*store, &m, 1).await;
    let (second, new) = tuned(&*store, &m, 2).await;
    let live = created(store.submit(&new_job(&m, "live", 3)).await.unwrap());
    let all = [first.clone(), second.clone(), live.id.clone(), JobId::fresh()];

    // Trials alone: the job and how it ended are kept.
    assert_eq!(store.delete_trials(&[first.clone(), live.id.clone()]).await.unwrap(), 2);
    assert_eq!(trials_of(&*store, &first).await, []);
    let told = store.events(&first, 0, 100).await.unwrap();
    assert_eq!(told.last().unwrap().seq, 4, "its last event is how it ended: {told:?}");
    assert_eq!(job_of(&*store, &first).await.unwrap().trials, 0);
    assert_eq!(trials_of(&*store, &second).await.len(), 2);

    // A plan: its job is kept without it, and lookups learn of it.
    let before = store.revision().await.unwrap();
    assert_eq!(store.delete_plans(&[new.id.clone(), PlanId::fresh()]).await.unwrap(), 1);
    assert!(store.revision().await.unwrap() > before);
    assert_eq!(store.plan(&new.id).await.unwrap(), None);
    let job = store.job(&second).await.unwrap().unwrap();
    assert_eq!((job.state, job.plan), (JobState::Succeeded, None));
    assert_eq!(
        answer(&*store, &crate::plans::key(&old)).await,
        Some(old.clone()),
        "the one before answers"
    );

    // Jobs that ended, and no others; their plans are kept.
    assert_eq!(store.delete_jobs(&all).await.unwrap(), 2);
    assert_eq!(store.job(&first).await.unwrap(), None);
    assert_eq!(store.events(&first, 0, 100).await.unwrap(), []);
    assert_eq!(trials_of(&*store, &second).await, []);
    assert_eq!(store.plan(&old.id).await.unwrap(), Some(old));
    assert_eq!(store.job(&live.id).await.unwrap(), Some(live));
}
