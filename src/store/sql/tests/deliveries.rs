//! The queue of what webhooks are told: nothing in it grows without bound, and a dead receiver costs little.

use super::raw;
use crate::domain::webhook::{DeliveryState, Webhook, WebhookId};
use crate::domain::{JobState, Timestamp};
use crate::store::sql::SqlStore;
use crate::store::{
    AttemptEnd, Attempted, DueDelivery, MOST_WAITING, PageRequest, Retention, Upkeep, Webhooks,
};

/// A store with a webhook that is told of all ends.
async fn store() -> (tempfile::TempDir, SqlStore, WebhookId) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqlStore::open(&folder.path().join("store")).await.unwrap();
    let states = vec![JobState::Succeeded, JobState::Failed, JobState::Cancelled];
    let (id, created_at) = (WebhookId::fresh(), Timestamp::now());
    let url = "http://example.com/".to_owned();
    let hook = Webhook { id: id.clone(), url, states, created_at, paused_until: None };
    store.insert_webhook(&hook, "whsec_", 1).await.unwrap();
    (folder, store, id)
}

/// Trainings, which have no matrix, that end at these times.
async fn end_trainings(store: &SqlStore, count: u32, at: Timestamp) {
    sqlx::query(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
         INSERT INTO jobs (id, kind, version, request, dedup_key, state, stage, created_at)
         SELECT 't' || i || '-' || ?2, 'train', 1, '{}', 't' || i || '-' || ?2, 'queued', 'waiting', ?2 FROM n",
    )
    .bind(count)
    .bind(at.0)
    .execute(raw(store))
    .await
    .unwrap();
    sqlx::query(
        "UPDATE jobs SET state = 'failed', error = 'too little', finished_at = created_at WHERE state = 'queued'",
    )
    .execute(raw(store))
    .await
    .unwrap();
}

async fn claim(store: &SqlStore) -> Option<DueDelivery> {
    let until = Timestamp::now().plus_millis(60_000);
    let mut claimed = store.claim_deliveries(&[], until, (8, 8)).await.unwrap();
    assert!(claimed.len() <= 1, "one for each webhook");
    claimed.pop()
}

async fn attempted(store: &SqlStore, one: &DueDelivery, end: AttemptEnd, pause_ms: i64) {
    let end = Attempted { status: Some(500), end, pause_ms };
    store.delivery_attempted(&one.id, one.attempts, &end).await.unwrap();
}

async fn paused_until(store: &SqlStore) -> Option<Timestamp> {
    store.webhooks().await.unwrap()[0].paused_until
}

#[tokio::test]
async fn a_training_is_told_without_a_matrix() {
    let (_folder, store, _) = store().await;
    end_trainings(&store, 1, Timestamp::now()).await;
    let told: serde_json::Value = serde_json::from_str(&claim(&store).await.unwrap().body).unwrap();
    assert!(told["job"]["matrix"].is_null() && told["job"]["kind"] == "train", "{told}");
}

#[tokio::test]
async fn failures_in_a_row_pause_a_webhook_until_one_is_heard() {
    let (_folder, store, _) = store().await;
    end_trainings(&store, 9, Timestamp::now()).await;
    let again = || AttemptEnd::Again(Timestamp::now().plus_millis(3_600_000), "no".to_owned());
    // An hour, so that it does not end while this runs; whether of one delivery or of several is the same.
    for _ in 0..2 {
        let one = claim(&store).await.unwrap();
        attempted(&store, &one, again(), 3_600_000).await;
        assert_eq!(paused_until(&store).await, None);
    }
    let last = claim(&store).await.unwrap();
    attempted(&store, &last, again(), 3_600_000).await;
    let until = paused_until(&store).await.unwrap();
    assert!(claim(&store).await.is_none(), "nothing is sent before {until:?}");
    attempted(&store, &last, AttemptEnd::GivenUp("no".to_owned()), 3_600_000).await;
    let later = paused_until(&store).await.unwrap();
    assert!(later.0 - until.0 > 3_000_000, "each failure adds as much: {until:?}, {later:?}");
    // Somebody who was slow has reached it.
    attempted(&store, &last, AttemptEnd::Delivered, 0).await;
    assert_eq!(paused_until(&store).await, None);
    assert!(claim(&store).await.is_some());
}

#[tokio::test]
async fn a_receiver_that_is_slow_is_paused_as_one_that_fails() {
    let (_folder, store, _) = store().await;
    end_trainings(&store, 9, Timestamp::now()).await;
    for nth in 1..=3 {
        let one = claim(&store).await.unwrap();
        attempted(&store, &one, AttemptEnd::DeliveredLate, 3_600_000).await;
        assert_eq!(paused_until(&store).await.is_some(), nth == 3, "{nth}");
    }
    assert!(claim(&store).await.is_none());
    let sql = "SELECT count(*) FROM deliveries WHERE state = 'delivered' AND ended_at IS NOT NULL";
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(raw(&store)).await.unwrap(), 3);
}

/// Webhooks of one namespace do not take all places, and another's turn comes with the first.
#[tokio::test]
async fn namespaces_take_turns() {
    let (_folder, store, _) = store().await;
    let of = |name: &str| store.within(&name.parse().unwrap());
    let hook = |at: i64| Webhook {
        id: WebhookId::fresh(),
        url: "http://example.com/".to_owned(),
        states: vec![JobState::Failed],
        created_at: Timestamp(at),
        paused_until: None,
    };
    for nth in 0..6 {
        of("many").insert_webhook(&hook(nth), "whsec_", 32).await.unwrap();
    }
    let few = hook(9);
    of("few").insert_webhook(&few, "whsec_", 32).await.unwrap();
    // What is told to the many has waited longer.
    for (namespace, at) in [("many", 1), ("few", 2)] {
        sqlx::query(
            "INSERT INTO jobs (id, kind, version, request, dedup_key, state, stage, created_at, namespace)
             VALUES (?1, 'train', 1, '{}', ?1, 'queued', 'waiting', ?2, ?1)",
        )
        .bind(namespace)
        .bind(at)
        .execute(raw(&store))
        .await
        .unwrap();
        let sql = "UPDATE jobs SET state = 'failed', finished_at = created_at WHERE id = ?1";
        sqlx::query(sql).bind(namespace).execute(raw(&store)).await.unwrap();
    }
    let until = Timestamp::now().plus_millis(60_000);
    let first = store.claim_deliveries(&[], until, (2, 3)).await.unwrap();
    assert_eq!(first.len(), 2);
    assert!(first.iter().any(|one| one.hook == few.id), "the second place is another's");
    let busy: Vec<WebhookId> = first.into_iter().map(|one| one.hook).collect();
    let more = store.claim_deliveries(&busy, until, (9, 3)).await.unwrap();
    assert_eq!(more.len(), 2, "three of one namespace at a time, with the one that is busy");
}

#[tokio::test]
async fn what_waits_is_bounded_in_number_and_in_time() {
    let (_folder, store, hook) = store().await;
    let now = Timestamp::now();
    for (count, at) in [(9, now.plus_millis(-9)), (3, now.plus_millis(-5)), (MOST_WAITING - 7, now)]
    {
        end_trainings(&store, count, at).await;
    }
    let (nothing, waiting) = (Timestamp(0), async || {
        let sql = "SELECT count(*) FROM deliveries WHERE state = 'pending'";
        sqlx::query_scalar::<_, u32>(sql).fetch_one(raw(&store)).await.unwrap()
    });
    let mut retention = Retention {
        idempotency_keys: nothing,
        events: nothing,
        devices: nothing,
        predicted: nothing,
        bundles: nothing,
        deliveries: nothing,
    };
    assert_eq!(waiting().await, MOST_WAITING + 5);
    store.prune(&retention).await.unwrap();
    assert_eq!(waiting().await, MOST_WAITING);
    let page = PageRequest { limit: 20, ..PageRequest::ALL };
    let mut told = Vec::new();
    let mut after = None;
    loop {
        let next = store.deliveries(&hook, &PageRequest { after, ..page.clone() }).await.unwrap();
        told.extend(next.items.into_iter().filter(|one| one.state == DeliveryState::Failed));
        after = next.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(told.len(), 5);
    let why = told[0].error.as_deref().unwrap();
    assert!(why.contains("too much waited") && told[0].ended_at.is_some(), "{why}");
    retention.deliveries = now;
    store.prune(&retention).await.unwrap();
    assert_eq!(waiting().await, MOST_WAITING - 7);
}
