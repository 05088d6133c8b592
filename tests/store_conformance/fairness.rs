//! Turns among tokens, priorities, and the limits of tokens.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::plan::PREDICTED_VERSION;
use sparsetune::domain::{
    Caller, Digest, JobState, Namespace, Plan, PlanId, Scopes, Timestamp, Token, TokenLimits, Work,
};
use sparsetune::store::{Claim, NewWork, Store, StoreError, StoredBundle, StoredToken, Submission};
use std::sync::Arc;

fn on_behalf_of(store: &Arc<dyn Store>, token: &str, limits: TokenLimits) -> Arc<dyn Store> {
    let token = Some(token.parse().unwrap());
    store.on_behalf_of(&Caller { limits, ..Caller::owner(token, Namespace::default()) })
}

fn seconds(new: &mut NewWork, budget: f64) {
    if let Work::Tune(job) = &mut new.work {
        job.request.search.seconds = Some(budget);
    }
}

/// Claims the next job, says that it took so many seconds of search, and ends it; gives whose it was and which.
async fn turn(store: &dyn Store, took: f64) -> Option<(String, i64)> {
    let queue = of_cpu();
    let claim = store.claim(&queue, "w", LEASE, u32::MAX).await.unwrap()?;
    let whose = claim.by.token.as_ref().map(ToString::to_string).unwrap_or_default();
    Some((whose, end(store, claim, took).await))
}

async fn end(store: &dyn Store, claim: Claim, took: f64) -> i64 {
    let Claim { work: Work::Tune(job), fence, .. } = claim else { panic!("a training") };
    let mut finish = ended(&job, JobState::Failed, None);
    if let Work::Tune(job) = &mut finish.work {
        job.search_seconds = took;
        job.finished_at = Some(sparsetune::domain::Timestamp::now());
    }
    store.finish(&fence, &finish).await.unwrap();
    job.created_at.0
}

/// A turn that takes 30 seconds for the greedy one, and 10 for the other.
async fn by_whose(store: &dyn Store) -> String {
    let queue = of_cpu();
    let claim = store.claim(&queue, "w", LEASE, u32::MAX).await.unwrap().unwrap();
    let greedy = claim.by.token.as_ref().is_some_and(|token| token.as_str() == "greedy");
    end(store, claim, if greedy { 30.0 } else { 10.0 }).await;
    if greedy { "g" } else { "m" }.to_owned()
}

pub async fn a_thousand_jobs_of_one_do_not_starve_anothers(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    let greedy = on_behalf_of(&store, "greedy", TokenLimits::default());
    let modest = on_behalf_of(&store, "modest", TokenLimits::default());
    for at in 0..1000 {
        greedy.submit(&new_job(&matrix, &format!("g{at}"), at)).await.unwrap();
    }
    assert_eq!(turn(&*store, 30.0).await, Some(("greedy".to_owned(), 0)));
    // Submitted last of all, and next in turn.
    modest.submit(&new_job(&matrix, "m1", 5000)).await.unwrap();
    assert_eq!(turn(&*store, 10.0).await, Some(("modest".to_owned(), 5000)));
    // From now on by the seconds that each has searched: three of 10 seconds for one of 30.
    for at in 5001..5007 {
        modest.submit(&new_job(&matrix, &format!("m{at}"), at)).await.unwrap();
    }
    let mut turns = String::new();
    for _ in 0..8 {
        turns.push_str(&by_whose(&*store).await);
    }
    // 30 to 10 seconds so far: the modest one catches up, and then has three turns for each of the other.
    assert_eq!(turns, "mmgmmmgm");
    // Jobs of one token stay in their order, and those that fail at once are no free rides.
    let mut last = 0;
    for _ in 0..5 {
        let (whose, at) = turn(&*store, 0.0).await.unwrap();
        if whose == "greedy" {
            assert!(at > last);
            last = at;
        }
    }
}

/// A namespace is no sooner served for having more tokens, and these share what it gets.
pub async fn many_tokens_are_one_namespaces_turn(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    let of = |namespace: &str, token: &str| {
        let token = Some(token.parse().unwrap());
        store.on_behalf_of(&Caller::owner(token, namespace.parse().unwrap()))
    };
    for namespace in ["many", "one"] {
        of(namespace, "t0").insert_matrix(&matrix).await.unwrap();
    }
    // All of the many's came first.
    for at in 0..12 {
        let own = of("many", &format!("t{}", at % 4));
        own.submit(&new_job(&matrix, &format!("many {at}"), at)).await.unwrap();
    }
    for at in 100..106 {
        let own = of("one", "t0");
        own.submit(&new_job(&matrix, &format!("one {at}"), at)).await.unwrap();
    }
    let queue = of_cpu();
    let (mut turns, mut tokens) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let claim = store.claim(&queue, "w", LEASE, u32::MAX).await.unwrap().unwrap();
        turns.push(claim.by.namespace.to_string());
        if turns.last().unwrap() == "many" {
            tokens.push(claim.by.token.as_ref().unwrap().to_string());
        }
        end(&*store, claim, 10.0).await;
    }
    assert_eq!(turns, ["many", "one", "many", "one", "many", "one", "many", "one"]);
    assert_eq!(tokens, ["t0", "t1", "t2", "t3"]);
    // Also by what is under way: two jobs of two tokens are two of one namespace.
    let hold = async || store.claim(&queue, "w", LEASE, u32::MAX).await.unwrap().unwrap();
    let held = [hold().await, hold().await, hold().await, hold().await];
    let running = held.iter().filter(|claim| claim.by.namespace.as_str() == "one").count();
    assert_eq!(running, 2, "of the one with one token");
}

pub async fn a_higher_priority_comes_first(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    let one = on_behalf_of(&store, "one", TokenLimits::default());
    for (at, priority) in [(1, -5), (2, 0), (3, 7), (4, 7)] {
        let new = NewWork { priority, ..new_job(&matrix, &at.to_string(), at) };
        let whose = if at == 2 { &store } else { &one };
        assert!(matches!(whose.submit(&new).await.unwrap(), Submission::Created(_)));
    }
    let mut order = Vec::new();
    while let Some((_, at)) = turn(&*store, 5.0).await {
        order.push(at);
    }
    assert_eq!(order, [3, 4, 2, 1]);
}

fn exceeded<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> (&'static str, f64, bool) {
    match answer {
        Err(StoreError::Quota(quota)) => (quota.quota, quota.used, quota.passes),
        other => panic!("{other:?}"),
    }
}

pub async fn a_token_keeps_within_its_limits(harness: &Harness) {
    let store = harness.open().await;
    let bytes = matrix("a", 1).charged_bytes();
    let limits = TokenLimits {
        matrices: Some(2),
        stored_bytes: Some(3 * bytes),
        queued_jobs: Some(2),
        search_seconds_per_day: Some(100.0),
        ..TokenLimits::default()
    };
    let own = on_behalf_of(&store, "own", limits.clone());
    let (a, b, c) = (matrix("a", 1), matrix("b", 2), matrix("c", 3));
    assert!(own.insert_matrix(&a).await.unwrap() && own.insert_matrix(&b).await.unwrap());
    assert_eq!(exceeded(own.insert_matrix(&c).await), ("matrices", 2.0, false));
    assert!(!own.insert_matrix(&a).await.unwrap(), "what is known takes no room");
    let narrow = TokenLimits { stored_bytes: Some(2 * bytes), matrices: None, ..limits };
    let narrow = on_behalf_of(&store, "own", narrow);
    assert_eq!(exceeded(narrow.insert_matrix(&c).await).0, "stored_bytes");
    assert!(store.insert_matrix(&c).await.unwrap(), "nobody's");
    assert!(own.delete_matrix(&b.digest).await.unwrap());
    assert!(own.insert_matrix(&b).await.unwrap());

    let job = |dedup: &str, budget: f64| {
        let mut new = new_job(&a, dedup, 1);
        seconds(&mut new, budget);
        new
    };
    own.submit(&job("1", 60.0)).await.unwrap();
    // Budgets of jobs that have not ended count.
    let spent = exceeded(own.submit(&job("2", 50.0)).await);
    assert_eq!(spent, ("search_seconds_per_day", 60.0, true));
    own.submit(&job("2", 40.0)).await.unwrap();
    assert_eq!(exceeded(own.submit(&job("3", 1.0)).await), ("queued_jobs", 2.0, true));
    assert!(matches!(own.submit(&job("1", 60.0)).await.unwrap(), Submission::Existing(_)));
    // Another token of the same name as before a rotation has the same use; others have their own.
    on_behalf_of(&store, "other", TokenLimits { queued_jobs: Some(1), ..TokenLimits::default() })
        .submit(&job("4", 60.0))
        .await
        .unwrap();
    // Ended, they count with what they took.
    while turn(&*store, 20.0).await.is_some() {}
    own.submit(&job("5", 60.0)).await.unwrap();
    let spent = exceeded(own.submit(&job("6", 1.0)).await);
    assert_eq!(spent, ("search_seconds_per_day", 100.0, true));
}

/// What a job's worker submits on behalf of its token is judged as what the token submits itself.
pub async fn a_claim_has_the_limits_of_its_token(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    let limits = TokenLimits {
        job_seconds: Some(1.0),
        search_seconds_per_day: Some(3.0),
        ..TokenLimits::default()
    };
    let token = Token {
        name: "one".parse().unwrap(),
        scopes: Scopes::all(),
        namespace: Namespace::default(),
        created_at: Timestamp(1),
        expires_at: None,
        revoked_at: None,
        limits: limits.clone(),
        share_plans: false,
        last_used_at: None,
    };
    let stored = StoredToken { token: token.clone(), hash: Digest::of(b"one") };
    assert!(store.insert_token(&stored, 9).await.unwrap());
    let mut new = new_job(&matrix, "first", 1);
    seconds(&mut new, 1.0);
    store.on_behalf_of(&Caller::from(&token)).submit(&new).await.unwrap();
    let queue = of_cpu();
    let claim = store.claim(&queue, "w", LEASE, u32::MAX).await.unwrap().unwrap();
    assert_eq!((&claim.by.token, &claim.by.limits), (&Some(token.name.clone()), &limits));
    let by = store.on_behalf_of(&claim.by);
    let mut more = new_job(&matrix, "more", 2);
    seconds(&mut more, 2.5);
    assert_eq!(exceeded(by.submit(&more).await), ("search_seconds_per_day", 1.0, true));
    seconds(&mut more, 2.0);
    let name = &token.name;
    store.revoke_token(&token.namespace, name, Timestamp(3)).await.unwrap().unwrap();
    let refused = by.submit(&more).await;
    assert!(matches!(&refused, Err(StoreError::InUse(why)) if why.contains("one")), "{refused:?}");
    // Another one of the same name is another token, under whose limits it goes on.
    let again = StoredToken {
        token: Token { created_at: Timestamp(4), ..token.clone() },
        hash: Digest::of(b"two"),
    };
    assert!(store.insert_token(&again, 9).await.unwrap());
    assert!(matches!(by.submit(&more).await.unwrap(), Submission::Created(_)));
    // One of the configuration is not in the store.
    let configured = on_behalf_of(&store, "configured-01234567", TokenLimits::owners());
    configured.submit(&NewWork { priority: 9, ..new_job(&matrix, "other", 5) }).await.unwrap();
    let claim = store.claim(&queue, "w", LEASE, u32::MAX).await.unwrap().unwrap();
    assert_eq!(claim.by.limits, TokenLimits::owners());
}

/// What is made of a token's plans takes room as well.
pub async fn bundles_and_predictions_count(harness: &Harness) {
    let store = harness.open().await;
    let m = matrix("m", 1);
    let room = m.charged_bytes() + 100;
    let limits = TokenLimits { stored_bytes: Some(room), ..TokenLimits::default() };
    let own = on_behalf_of(&store, "own", limits);
    own.insert_matrix(&m).await.unwrap();
    own.submit(&new_job(&m, "1", 1)).await.unwrap();
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let plan = plan(&m, &claim.job.id, 1);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    let bundle = |bytes: u64, without_values: bool| StoredBundle {
        plan: plan.id.clone(),
        without_values,
        blob: Digest::of(b"bundle"),
        bytes,
        sha256: [1; 32],
        imported: false,
        created_at: Timestamp(1),
    };
    own.put_bundle(&bundle(60, false)).await.unwrap();
    assert_eq!(exceeded(own.put_bundle(&bundle(60, true)).await).0, "stored_bytes");
    let predicted =
        Plan { id: PlanId::fresh(), version: PREDICTED_VERSION, measured: None, ..plan.clone() };
    let used = (room - 40) as f64;
    assert_eq!(
        exceeded(own.insert_predicted(&predicted, 9).await),
        ("stored_bytes", used, false),
        "a plan has more than forty bytes"
    );
    assert!(store.insert_predicted(&predicted, 9).await.unwrap(), "nobody's");
}

/// Whatever its tokens may, and also without any.
pub async fn a_namespace_has_only_so_many_jobs_that_wait(harness: &Harness) {
    let store = harness.open().await;
    let m = matrix("m", 1);
    harness
        .spoil(
            "INSERT INTO jobs (id, kind, version, request, dedup_key, state, stage, created_at)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
             SELECT 't' || i, 'train', 1, '{}', 't' || i, 'queued', 'waiting', 1 FROM n",
        )
        .await;
    store.insert_matrix(&m).await.unwrap();
    store.submit(&new_job(&m, "1", 1)).await.unwrap();
    assert_eq!(exceeded(store.submit(&new_job(&m, "2", 2)).await), ("queued_jobs", 10_000.0, true));
    assert!(matches!(store.submit(&new_job(&m, "1", 1)).await.unwrap(), Submission::Existing(_)));
    let elsewhere = store.on_behalf_of(&Caller::owner(None, "elsewhere".parse().unwrap()));
    elsewhere.insert_matrix(&m).await.unwrap();
    elsewhere.submit(&new_job(&m, "2", 2)).await.unwrap();
}
