//! Namespaces: what one has is not there for another, and goes only with the last that has it.

use crate::Harness;
use crate::plans::key;
use crate::words::*;
use sparsetune::domain::drift::{Check, Verdict};
use sparsetune::domain::plan::PlanKey;
use sparsetune::domain::webhook::{Webhook, WebhookId};
use sparsetune::domain::{
    Caller, DeviceClass, Digest, EventKind, Job, JobId, JobState, Matrix, Namespace, Plan,
    Timestamp, Token, TokenLimits,
};
use sparsetune::store::{
    JobFilter, NewWork, PageRequest, Pin, Pins, Store, StoreError, StoredBundle, StoredToken,
    Story, Submission, Weigh, Whose,
};
use std::sync::Arc;
use std::time::Duration;

/// The store of two namespaces.
async fn two(harness: &Harness) -> (Arc<dyn Store>, Arc<dyn Store>) {
    let store = harness.open().await;
    let there = within(&store, "b");
    (store, there)
}

fn within(store: &Arc<dyn Store>, namespace: &str) -> Arc<dyn Store> {
    store.on_behalf_of(&Caller::owner(None, namespace.parse().unwrap()))
}

async fn names(store: &dyn Store, of: &MatrixQuery) -> Vec<String> {
    let found = store.matrices(of, &PageRequest::ALL).await.unwrap().items;
    found.into_iter().map(|matrix| matrix.name.unwrap_or_default()).collect()
}

pub async fn a_matrix_of_another_is_not_there(harness: &Harness) {
    let (a, b) = two(harness).await;
    let ours = matrix("ours", 1);
    assert!(a.insert_matrix(&ours).await.unwrap());
    let queries = [
        MatrixQuery::All,
        MatrixQuery::Named("our".to_owned()),
        MatrixQuery::Between(ours.digest, ours.digest),
        MatrixQuery::Between(ours.pattern_digest, ours.pattern_digest),
        MatrixQuery::Known(ours.digest),
        MatrixQuery::Known(ours.pattern_digest),
    ];
    for of in &queries {
        assert_eq!(names(&*a, of).await, ["ours"], "{of:?}");
        assert!(names(&*b, of).await.is_empty(), "{of:?}");
    }
    assert_eq!(b.matrix(&ours.digest).await.unwrap(), None);
    assert!(b.matrix_names(&[ours.digest]).await.unwrap().is_empty());
    assert!(!b.delete_matrix(&ours.digest).await.unwrap());
    let pin = Pin::Matrix(ours.digest);
    assert_eq!(b.pin(&pin, true).await.unwrap(), None);
    let submitted = b.submit(&new_job(&ours, "x", 1)).await;
    assert!(matches!(submitted, Err(StoreError::Missing(_))), "{submitted:?}");
    // Stored there as well it is another's, with a name, a time and a pin of its own.
    let theirs =
        Matrix { name: Some("theirs".to_owned()), created_at: Timestamp(9), ..ours.clone() };
    assert!(b.insert_matrix(&theirs).await.unwrap(), "as if nobody had it");
    assert!(!b.insert_matrix(&theirs).await.unwrap());
    assert_eq!(b.pin(&pin, true).await.unwrap(), Some(true));
    for (store, is, name) in [(&a, &ours, "ours"), (&b, &theirs, "theirs")] {
        assert_eq!(store.matrix(&is.digest).await.unwrap().as_ref(), Some(is));
        assert_eq!(store.matrix_names(&[is.digest]).await.unwrap()[&is.digest], name);
        assert_eq!(names(&**store, &MatrixQuery::All).await, [name]);
    }
    assert_eq!(a.pins().await.unwrap(), Pins::default());
    assert_eq!(b.pins().await.unwrap().matrices, [ours.digest]);
}

pub async fn a_file_goes_with_the_last_holding(harness: &Harness) {
    let (a, b) = two(harness).await;
    let m = matrix("m", 1);
    a.insert_matrix(&m).await.unwrap();
    b.insert_matrix(&m).await.unwrap();
    // What keeps it in one keeps it in no other.
    b.pin(&Pin::Matrix(m.digest), true).await.unwrap();
    created(b.submit(&new_job(&m, "x", 1)).await.unwrap());
    assert!(matches!(b.delete_matrix(&m.digest).await, Err(StoreError::InUse(_))));
    assert!(a.delete_matrix(&m.digest).await.unwrap());
    assert!(a.is_held(&m.digest).await.unwrap());
    assert!(a.named_blobs().await.unwrap().contains(&m.digest));
    assert_eq!(a.matrix(&m.digest).await.unwrap(), None);
    assert_eq!(b.matrix(&m.digest).await.unwrap(), Some(m.clone()));
    let claimed = claim(&*a, "w", LEASE).await.unwrap();
    a.finish(&claimed.fence, &ended(&claimed.job, JobState::Failed, None)).await.unwrap();
    b.pin(&Pin::Matrix(m.digest), false).await.unwrap();
    assert!(b.delete_matrix(&m.digest).await.unwrap());
    assert!(!b.is_held(&m.digest).await.unwrap() && a.named_blobs().await.unwrap().is_empty());
}

pub async fn jobs_of_another_are_not_there(harness: &Harness) {
    let (a, b) = two(harness).await;
    let m = matrix("m", 1);
    a.insert_matrix(&m).await.unwrap();
    b.insert_matrix(&m).await.unwrap();
    let keyed = |at| NewWork {
        idempotency: Some(("key".to_owned(), Digest::of(b"request"))),
        ..new_job(&m, "same", at)
    };
    let job = created(a.submit(&keyed(1)).await.unwrap());
    // Neither the equal job nor the key is theirs.
    assert_eq!(b.keyed("key", &Digest::of(b"request")).await.unwrap(), None);
    assert_eq!(b.keyed("key", &Digest::of(b"other")).await.unwrap(), None);
    let other = created(b.submit(&keyed(2)).await.unwrap());
    assert_ne!(job.id, other.id);
    for (store, own) in [(&a, &job), (&b, &other)] {
        let again = store.submit(&new_job(&m, "same", 3)).await.unwrap();
        assert_eq!(again, Submission::Existing(own.clone().into()));
        let known = store.keyed("key", &Digest::of(b"request")).await.unwrap();
        assert_eq!(known, Some(Submission::Existing(own.clone().into())));
    }
    let claimed = claim(&*a, "w", LEASE).await.unwrap();
    assert_eq!(claimed.job.id, job.id, "workers claim the jobs of all");
    a.record_trials(&claimed.fence, &[trial(&job.id, 0, 1.0), pruned(&job.id, 1)]).await.unwrap();
    let log = EventKind::Log { message: "hello".to_owned() };
    a.log(&claimed.fence, &log).await.unwrap();
    let filters = [
        JobFilter::default(),
        JobFilter { state: Some(JobState::Running), ..JobFilter::default() },
        JobFilter { matrix: Some(m.digest), ..JobFilter::default() },
        JobFilter { device: Some(cpu()), ..JobFilter::default() },
    ];
    for filter in &filters {
        let seen = |page: sparsetune::store::Page<Job>| {
            page.items.into_iter().map(|job| job.id).collect::<Vec<JobId>>()
        };
        let theirs = seen(b.jobs(filter, &PageRequest::ALL).await.unwrap());
        assert!(!theirs.contains(&job.id), "{filter:?}");
        assert_eq!(
            seen(a.jobs(filter, &PageRequest::ALL).await.unwrap()),
            std::slice::from_ref(&job.id)
        );
    }
    assert_eq!(b.work(&job.id).await.unwrap(), None);
    assert_eq!(b.request_cancel(&job.id).await.unwrap(), None);
    assert_eq!(b.events(&job.id, 0, 99).await.unwrap(), []);
    assert_eq!(b.story(&job.id).await.unwrap(), Story::default());
    for of in [TrialQuery::All, TrialQuery::Summaries, sample("row_split")] {
        assert_eq!(b.trials(&job.id, &of, &PageRequest::ALL).await.unwrap().items, [], "{of:?}");
        assert!(!a.trials(&job.id, &of, &PageRequest::ALL).await.unwrap().items.is_empty());
    }
    assert!(b.trial_counts(&job.id).await.unwrap().is_empty());
    assert!(!a.story(&job.id).await.unwrap().log.is_empty());
    let counted = |counts: Vec<(_, _, u64)>| counts.iter().map(|(_, _, n)| n).sum::<u64>();
    assert_eq!(counted(b.job_counts(Whose::Own).await.unwrap()), 1);
    assert_eq!(counted(b.job_counts(Whose::All).await.unwrap()), 2);
    assert!(a.renew(&claimed.fence, LEASE).await.is_ok_and(|renewal| !renewal.cancel_requested));
}

/// A plan of a finished job in the namespace of the store.
async fn measured(store: &dyn Store, m: &Matrix, at: i64) -> Plan {
    store.insert_matrix(m).await.unwrap();
    let job = created(store.submit(&new_job(m, "plan", at)).await.unwrap());
    let claimed = claim(store, "w", LEASE).await.unwrap();
    let plan = plan(m, &job.id, at);
    let end = ended(&claimed.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claimed.fence, &end).await.unwrap();
    plan
}

pub async fn plans_of_another_are_not_there(harness: &Harness) {
    let (a, b) = two(harness).await;
    let m = matrix("m", 1);
    let ours = measured(&*a, &m, 1).await;
    let key = key(&ours);
    let bundle = StoredBundle {
        plan: ours.id.clone(),
        without_values: false,
        blob: Digest::of(b"bundle"),
        bytes: 5,
        sha256: [1; 32],
        imported: false,
        created_at: Timestamp(1),
    };
    a.put_bundle(&bundle).await.unwrap();
    for held in [false, true] {
        if held {
            // Who has the matrix as well has no more of the plan.
            b.insert_matrix(&m).await.unwrap();
        }
        assert_eq!(b.plan(&ours.id).await.unwrap(), None);
        assert_eq!(b.bundle(&ours.id, false).await.unwrap(), None);
        assert_eq!(answer(&*b, &key).await, None);
        for asked in [m.digest, m.pattern_digest] {
            assert_eq!(b.plan_for(&asked, &key).await.unwrap(), None);
            assert_eq!(a.plan_for(&asked, &key).await.unwrap().as_ref(), Some(&ours));
        }
        assert!(b.plan_keys(&m.pattern_digest).await.unwrap().is_empty());
        let near = b.plans_for(&problem(), &key.device_class, key.l2_policy, 9).await.unwrap();
        assert!(near.is_empty());
        let listed = PlanQuery::NewestOfPattern(m.pattern_digest);
        assert_eq!(b.plans(&listed, &PageRequest::ALL).await.unwrap().items, []);
        assert_eq!(b.pin(&Pin::Plan(ours.id.clone()), true).await.unwrap(), None);
    }
    assert_eq!(a.bundle(&ours.id, false).await.unwrap(), Some(bundle));
    // Each has its own, and its own facts of the matrix, also when the matrix is gone.
    let renamed = Matrix { name: Some("theirs".to_owned()), ..m.clone() };
    assert!(b.delete_matrix(&m.digest).await.unwrap());
    let theirs = measured(&*b, &renamed, 2).await;
    assert_eq!(answer(&*a, &key).await.unwrap().id, ours.id);
    assert_eq!(answer(&*b, &key).await.unwrap().id, theirs.id);
    assert!(a.delete_matrix(&m.digest).await.unwrap() && b.delete_matrix(&m.digest).await.unwrap());
    assert_eq!(a.known_matrix(&m.digest).await.unwrap(), Some(m.clone()));
    assert_eq!(b.known_matrix(&m.digest).await.unwrap().unwrap().name, renamed.name);
    assert_eq!(b.matrix_names(&[m.digest]).await.unwrap()[&m.digest], "theirs");
}

pub async fn quotas_and_turns_are_of_a_namespace(harness: &Harness) {
    let store = harness.open().await;
    let of = |namespace: &str| {
        let limits =
            TokenLimits { matrices: Some(1), queued_jobs: Some(1), ..TokenLimits::default() };
        let owner = Caller::owner(Some("ci".parse().unwrap()), namespace.parse().unwrap());
        store.on_behalf_of(&Caller { limits, ..owner })
    };
    // Two tokens of one name in two namespaces are two.
    for namespace in ["default", "b"] {
        let store = of(namespace);
        let m = matrix("m", 1);
        assert!(store.insert_matrix(&m).await.unwrap());
        let more = store.insert_matrix(&matrix("more", 2)).await;
        assert!(matches!(more, Err(StoreError::Quota(_))), "{more:?}");
        created(store.submit(&new_job(&m, "x", 1)).await.unwrap());
        let more = store.submit(&new_job(&m, "y", 2)).await;
        assert!(matches!(more, Err(StoreError::Quota(_))), "{more:?}");
    }
    assert!(of("b").delete_matrix(&matrix("m", 1).digest).await.is_err(), "its job needs it");
}

pub async fn webhooks_hear_of_their_own(harness: &Harness) {
    let (a, b) = two(harness).await;
    let hook = |url: &str| Webhook {
        id: WebhookId::fresh(),
        url: url.to_owned(),
        states: vec![JobState::Failed],
        created_at: Timestamp(1),
        paused_until: None,
    };
    let (ours, theirs) = (hook("http://a"), hook("http://b"));
    a.insert_webhook(&ours, "s", 1).await.unwrap();
    b.insert_webhook(&theirs, "s", 1).await.unwrap();
    let m = matrix("m", 1);
    b.insert_matrix(&m).await.unwrap();
    created(b.submit(&new_job(&m, "x", 1)).await.unwrap());
    let claimed = claim(&*a, "w", LEASE).await.unwrap();
    a.finish(&claimed.fence, &ended(&claimed.job, JobState::Failed, None)).await.unwrap();
    let told = b.deliveries(&theirs.id, &PageRequest::ALL).await.unwrap().items;
    assert_eq!(told.iter().map(|one| &one.job).collect::<Vec<_>>(), [&claimed.job.id]);
    assert_eq!(a.deliveries(&ours.id, &PageRequest::ALL).await.unwrap().items, []);
    // Nor does one see the other's.
    assert_eq!(a.deliveries(&theirs.id, &PageRequest::ALL).await.unwrap().items, []);
    assert_eq!(a.webhooks().await.unwrap(), std::slice::from_ref(&ours));
    assert_eq!(b.webhooks().await.unwrap(), std::slice::from_ref(&theirs));
    assert!(!a.delete_webhook(&theirs.id).await.unwrap());
    assert!(b.delete_webhook(&theirs.id).await.unwrap());
}

pub async fn the_service_weighs_all_of_them(harness: &Harness) {
    let (a, b) = two(harness).await;
    let m = matrix("m", 1);
    let (first, second) = (measured(&*a, &m, 1).await, measured(&*b, &m, 2).await);
    let b_is: Namespace = "b".parse().unwrap();
    for store in [&a, &b] {
        let mut kept = store.kept_matrices().await.unwrap();
        kept.sort_by(|x, y| x.namespace.cmp(&y.namespace));
        let of: Vec<&Namespace> = kept.iter().map(|one| &one.namespace).collect();
        assert_eq!(of, [&b_is, &Namespace::default()]);
        assert!(kept.iter().all(|one| one.digest == m.digest && !one.needed));
        let mut plans = store.kept_plans().await.unwrap();
        plans.sort_by_key(|plan| plan.created_at);
        let ids: Vec<_> = plans.iter().map(|plan| (&plan.id, plan.superseded)).collect();
        assert_eq!(ids, [(&first.id, false), (&second.id, false)], "each answers in its own");
        assert_eq!(plans[1].namespace, b_is);
        assert_eq!(store.kept_jobs(Weigh::Jobs).await.unwrap().len(), 2);
    }
}

/// Of plans that are looked at again, the namespaces take turns, whatever one has of them.
pub async fn namespaces_take_turns_at_what_may_have_drifted(harness: &Harness) {
    let (a, b) = two(harness).await;
    let (mut many, soon) = (Vec::new(), Timestamp(i64::MAX));
    for nth in 1..=3 {
        many.push(measured(&*a, &matrix(&format!("m{nth}"), nth), nth).await);
    }
    let few = measured(&*b, &matrix("few", 9), 9).await;
    let class = few.device.class();
    // Uses: the least used of the one comes before the second of the other.
    let uses: Vec<_> = many.iter().map(|plan| (plan.id.clone(), 100)).collect();
    a.count_uses(&uses).await.unwrap();
    a.count_uses(&[(few.id.clone(), 1)]).await.unwrap();
    let order = async || {
        let used = a.most_used(&class, Timestamp(0), 9).await.unwrap();
        used.iter().position(|used| used.plan.id == few.id).unwrap()
    };
    assert_eq!(order().await, 1);
    assert!(a.renew_plan(&many[0].id, "newer", Timestamp(0), 9).await.unwrap());
    assert_eq!(order().await, 0, "the other had its turn today");
    // What was used much, once, counts no more.
    harness.spoil("UPDATE drift SET period = period - 2 WHERE uses > 50").await;
    assert_eq!(a.most_used(&class, Timestamp(0), 9).await.unwrap().len(), 1);
    a.count_uses(&uses[..1]).await.unwrap();
    harness.spoil("UPDATE drift SET period = period - 1 WHERE uses > 50").await;
    a.count_uses(&[(many[0].id.clone(), 1)]).await.unwrap();
    assert_eq!(a.most_used(&class, Timestamp(0), 9).await.unwrap().len(), 2);

    for (store, plan) in many.iter().map(|plan| (&a, plan)).chain([(&b, &few)]) {
        store.pin(&Pin::Plan(plan.id.clone()), true).await.unwrap();
    }
    let mut turns = Vec::new();
    for at in 1..=4 {
        let due = a.unchecked(&class, soon, 9).await.unwrap();
        let (namespace, plan) = due.first().unwrap();
        turns.push(namespace.to_string());
        let check = Check {
            plan: plan.id.clone(),
            at: Timestamp(at),
            verdict: Verdict::Holds,
            why: String::new(),
            median_us: None,
            vendor_us: None,
        };
        assert!(a.record_check(&check).await.unwrap());
    }
    turns[..2].sort();
    turns[2..].sort();
    assert_eq!(turns, ["b", "default", "b", "default"]);
}

/// Nobody is answered with what another's narrow search left over.
pub async fn a_plan_of_a_narrowed_search_is_not_shared(harness: &Harness) {
    let store = harness.open().await;
    let token = Token {
        name: "open".parse().unwrap(),
        scopes: "tune".parse().unwrap(),
        namespace: "b".parse().unwrap(),
        created_at: Timestamp(0),
        expires_at: None,
        revoked_at: None,
        limits: TokenLimits::default(),
        share_plans: true,
        last_used_at: None,
    };
    let stored = StoredToken { token: token.clone(), hash: Digest::of(b"open") };
    assert!(store.insert_token(&stored, 9).await.unwrap());
    let sharing = store.on_behalf_of(&Caller::from(&token));
    let m = matrix("m", 1);
    let shared = measured(&*sharing, &m, 1).await;
    let found = async |by: &Arc<dyn Store>| {
        let plan = by.plan_for(&m.digest, &key(&shared)).await.unwrap();
        plan.map(|plan| plan.id)
    };
    assert_eq!(found(&store).await, Some(shared.id.clone()));
    harness
        .spoil(
            r#"UPDATE plans SET body = replace(body, '"search_seconds":', '"narrowed":"few","search_seconds":')"#,
        )
        .await;
    assert_eq!(found(&store).await, None);
    assert_eq!(store.plan(&shared.id).await.unwrap(), None);
    assert_eq!(found(&sharing).await, Some(shared.id.clone()));
}

/// Lookups that come at once share a statement, and each gets its own answer: of its namespace, of its key, or none. Who leaves takes
/// nothing from the others, nor does a key that a server refuses.
pub async fn lookups_at_once_get_their_own_answers(harness: &Harness) {
    let (a, b) = two(harness).await;
    let mut asked = Vec::new();
    for number in 0..40 {
        let m = matrix(&format!("m{number}"), number);
        let (by, other) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let plan = measured(&**by, &m, number).await;
        let key = key(&plan);
        let absent = PlanKey { device_class: DeviceClass("another".to_owned()), ..key.clone() };
        let refused = PlanKey { device_class: DeviceClass("a\0".to_owned()), ..key.clone() };
        asked.push((by, m.digest, key.clone(), Some(plan.clone())));
        asked.push((by, m.pattern_digest, key.clone(), Some(plan)));
        asked.push((by, m.digest, absent, None));
        asked.push((other, m.digest, key, None));
        if number % 20 == 7 {
            asked.push((other, m.digest, refused, None));
        }
    }
    for leave in [None, Some(5)] {
        let mut all = tokio::task::JoinSet::new();
        for (at, (by, digest, key, expected)) in asked.iter().cloned().enumerate() {
            let by = Arc::clone(by);
            all.spawn(async move {
                let lookup = by.plan_for(&digest, &key);
                if leave.is_some_and(|leave| at % leave == 1) {
                    let _ = tokio::time::timeout(Duration::ZERO, lookup).await;
                } else if key.device_class.0.contains('\0') {
                    // No text of PostgreSQL has such a character.
                    assert!(lookup.await.ok().flatten().is_none());
                } else {
                    assert_eq!(lookup.await.unwrap(), expected, "lookup {at}");
                }
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
    }
}
