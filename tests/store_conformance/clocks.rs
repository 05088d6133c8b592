//! The server's clock, where it is another than the host's; and two who write the same rows, in the order in which each of them does.

use crate::words::*;
use crate::{Harness, postgres};
use sparsetune::domain::webhook::{Webhook, WebhookId};
use sparsetune::domain::{JobState, Serving, Timestamp};
use sparsetune::store::{AttemptEnd, Attempted, DueDelivery, Store};
use sqlx::{Connection as _, Executor as _, PgConnection};
use std::time::{Duration, Instant};

const MINUTE: i64 = 60_000;

/// From now on the server's clock is ahead of the host's by so much.
async fn shift(harness: &Harness, by_ms: i64) {
    let Harness::Postgres { database, .. } = harness else { panic!("there is no server") };
    for (name, volatility, of) in [
        ("clock_ms", "VOLATILE", "clock_timestamp"),
        ("statement_ms", "STABLE", "statement_timestamp"),
    ] {
        let function = format!(
            "CREATE OR REPLACE FUNCTION {name}() RETURNS BIGINT LANGUAGE SQL {volatility} PARALLEL SAFE AS
             $$ SELECT CAST(extract(epoch FROM {of}()) * 1000 AS BIGINT) + {by_ms} $$"
        );
        postgres::shared().execute(database, function).await;
    }
}

/// What is due, and is due again a minute later.
async fn due(store: &dyn Store) -> Vec<DueDelivery> {
    store.claim_deliveries(&[], Timestamp::now().plus_millis(MINUTE), (9, 9)).await.unwrap()
}

/// What webhooks are told is due, waits and is tried again by the server's clock alone.
pub async fn deliveries_are_due_by_the_servers_clock(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, _) = queued(&*store).await;
    let hook = Webhook {
        id: WebhookId("hook".to_owned()),
        url: "https://example.com".to_owned(),
        states: vec![JobState::Failed],
        created_at: Timestamp::now(),
        paused_until: None,
    };
    store.insert_webhook(&hook, "secret", 9).await.unwrap();
    for (number, ahead) in [10 * MINUTE, -10 * MINUTE].into_iter().enumerate() {
        if number > 0 {
            store.submit(&new_job(&matrix, "another", 2)).await.unwrap();
        }
        shift(harness, ahead).await;
        let held = claim(&*store, "w", LEASE).await.unwrap();
        store.finish(&held.fence, &ended(&held.job, JobState::Failed, None)).await.unwrap();
        let first = due(&*store).await.pop().expect("it is due at once");
        assert!(due(&*store).await.is_empty(), "a minute has not passed, {ahead} ms ahead");
        let at = Timestamp::now().plus_millis(2 * MINUTE);
        let again = AttemptEnd::Again(at, "it was busy".to_owned());
        let end = Attempted { status: Some(503), end: again, pause_ms: MINUTE };
        store.delivery_attempted(&first.id, first.attempts, &end).await.unwrap();
        assert!(due(&*store).await.is_empty(), "two minutes have not passed, {ahead} ms ahead");
        shift(harness, ahead + MINUTE).await;
        assert!(due(&*store).await.is_empty(), "one has, {ahead} ms ahead");
        shift(harness, ahead + 3 * MINUTE).await;
        let second = due(&*store).await.pop().expect("two minutes have passed");
        assert_eq!((&second.id, second.attempts), (&first.id, first.attempts + 1));
        let end = Attempted { status: Some(200), end: AttemptEnd::Delivered, pause_ms: MINUTE };
        store.delivery_attempted(&second.id, second.attempts, &end).await.unwrap();
    }
}

/// Whoever forgets devices locks their rows before it waits for the revision, as heartbeats do: else each would wait for the other.
pub async fn devices_are_forgotten_beside_a_heartbeat(harness: &Harness) {
    let Harness::Postgres { database, .. } = harness else { panic!("there is no server") };
    let store = harness.open().await;
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
    let mut heartbeat = PgConnection::connect(&harness.url().0).await.unwrap();
    let begin = "BEGIN; SET LOCAL lock_timeout = '5s'; UPDATE devices SET seen_at = seen_at + 1 WHERE owner = 'w'";
    heartbeat.execute(sqlx::raw_sql(begin)).await.unwrap();
    let forgets = {
        let store = store.clone();
        tokio::spawn(async move { store.forget_devices("w").await })
    };
    let begun = Instant::now();
    let waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while postgres::shared().execute(database, waiting.to_owned()).await == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it did not wait for the row");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let revised = heartbeat.execute("UPDATE revision SET value = value + 1").await;
    assert_eq!(revised.expect("the revision is free").rows_affected(), 1);
    heartbeat.execute("COMMIT").await.unwrap();
    forgets.await.unwrap().unwrap();
    assert!(store.devices().await.unwrap().is_empty());
}
