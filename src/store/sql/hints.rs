//! Hints between the servers of one database, by LISTEN and NOTIFY: that work was queued, and that answers to lookups may differ.
//!
//! A hint makes others look earlier than they would have; whoever misses one polls. NOTIFY makes commits wait for each other, so it is a
//! transaction of its own, with what a fifth of a second brought together, and never of a trial or of a job's progress.

use super::SqlStore;
use super::db::PostgresPool;
use crate::store::{Change, Upkeep as _};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The shortest time between two hints of one process.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the listener waits before it connects again.
const AGAIN: Duration = Duration::from_secs(2);
/// How long nothing is heard before the server is asked whether it is there.
const QUIET: Duration = Duration::from_secs(60);
/// How long it may take to say so.
const ANSWER: Duration = Duration::from_secs(10);

const QUEUED: u8 = 1;
const REVISED: u8 = 2;

/// What is to be told to others.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    /// Marks what is told, so that nobody hears himself.
    own: uuid::Uuid,
    pending: Arc<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    what: AtomicU8,
    some: Notify,
}

impl Default for Hints {
    fn default() -> Self {
        Self { own: uuid::Uuid::now_v7(), pending: Arc::default() }
    }
}

impl Hints {
    pub(super) fn of(&self, change: &Change) {
        let what = match change {
            Change::Submitted(_) | Change::Released => QUEUED,
            Change::Revision(_) => REVISED,
            Change::Job(_) | Change::Ended(_) | Change::Trial { .. } | Change::Quarantined => {
                return;
            }
        };
        self.pending.what.fetch_or(what, Ordering::AcqRel);
        self.pending.some.notify_one();
    }

    /// Tells others of what happens here, until the end.
    pub(super) async fn tell(self, pool: PostgresPool, channel: String, end: CancellationToken) {
        let told = async {
            loop {
                self.pending.some.notified().await;
                let what = self.pending.what.swap(0, Ordering::AcqRel);
                if what == 0 {
                    continue;
                }
                let notify = sqlx::query("SELECT pg_notify($1, $2)");
                let notify = notify.bind(&channel).bind(format!("{what} {}", self.own));
                // Who is not told looks for itself.
                if let Err(error) = pool.doubt.of(notify.execute(&pool.pool)).await {
                    tracing::debug!(%error, "other servers were not told of a change");
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let _: Option<()> = end.run_until_cancelled(told).await;
    }
}

/// Passes the hints of others on to the listeners of this process, until the end. That a connection was lost counts as a hint, since
/// others may have been missed.
pub(super) async fn hear(
    server: PgConnectOptions,
    channel: String,
    (store, own): (SqlStore, Hints),
    end: CancellationToken,
) {
    let heard = async {
        let mut missed = 0;
        loop {
            if let Err(error) = hear_on(&server, &channel, &store, (&own, missed)).await {
                tracing::debug!(%error, "hints of other servers are not heard for a while");
            }
            missed = QUEUED | REVISED;
            tokio::time::sleep(AGAIN).await;
        }
    };
    let _: Option<()> = end.run_until_cancelled(heard).await;
}

async fn hear_on(
    server: &PgConnectOptions,
    channel: &str,
    store: &SqlStore,
    (own, missed): (&Hints, u8),
) -> sqlx::Result<()> {
    // A connection of its own each time: one whose server has vanished may be waited for as long as the system knows nothing of that.
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(ANSWER);
    let mut listener = PgListener::connect_with(&pool.connect_lazy_with(server.clone())).await?;
    in_time(listener.listen(channel)).await?;
    pass_on(store, missed).await;
    loop {
        let Ok(heard) = timeout(QUIET, listener.try_recv()).await else {
            in_time(sqlx::query("SELECT 1").execute(&mut listener)).await?;
            continue;
        };
        let Some(hint) = heard? else { return Ok(()) };
        let (what, by) = hint.payload().split_once(' ').unwrap_or_default();
        if by != own.own.to_string() {
            pass_on(store, what.parse().unwrap_or(QUEUED | REVISED)).await;
        }
    }
}

async fn in_time<T>(call: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    timeout(ANSWER, call).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

async fn pass_on(store: &SqlStore, what: u8) {
    if what & QUEUED > 0 {
        store.listeners.publish([Change::Released]);
    }
    // The number itself is read, which tells the listeners.
    if what & REVISED > 0
        && let Err(error) = store.revision().await
    {
        tracing::debug!(%error, "the revision was not read");
    }
}
