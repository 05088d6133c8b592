//! How long a server may take for an answer, and which connections of a pool are of no use any more: those that were made before the server
//! was seen to be gone, or to be another's replica.

use sqlx::postgres::PgDatabaseError;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How much longer than its own limit a statement is waited for. The server ends it at that limit: who hears nothing even then has a host
/// before him that vanished without a word, of which the system would tell only much later, or never.
const LATE: Duration = Duration::from_secs(5);
/// The longest that a statement without a limit is waited for.
const LONGEST_STUDY: Duration = Duration::from_secs(3600);
/// Shorter silences are a busy server's.
const AWAY: Duration = Duration::from_secs(1);
/// No lease is longer, so that earlier silences have ended none.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);

/// Who waits for a server, and for how long. When its connections were last seen to be of no use, those made before are replaced as they
/// come from the pool or go back to it: one that met the end of its server has company.
#[derive(Clone, Debug)]
pub(in crate::store::sql) struct Doubt {
    limit: Duration,
    /// Statements may take as long as they do, and say nothing of the server meanwhile.
    patient: bool,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    spent: Option<Instant>,
    silent: Option<Instant>,
    /// When the server last said anything to this process.
    heard: Option<Instant>,
    /// How many calls wait for an answer,
    waiting: usize,
    /// and since when any has waited with none answered.
    since: Option<Instant>,
    /// When silences ended and how long they were, each longer than those after it.
    silences: VecDeque<(Instant, Duration)>,
}

impl Seen {
    /// Notes how long there was silence until now, whether it has ended or only been given up on.
    fn silence(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let long = now.duration_since(since);
        if long < AWAY {
            return;
        }
        while self.silences.back().is_some_and(|(_, shorter)| *shorter <= long) {
            self.silences.pop_back();
        }
        self.silences.push_back((now, long));
        while self.silences.front().is_some_and(|(at, _)| at.elapsed() > LONGEST_LEASE) {
            self.silences.pop_front();
        }
    }

    fn heard(&mut self, now: Instant) {
        self.silence(now);
        self.heard = Some(now);
        self.since = (self.waiting > 0).then_some(now);
    }
}

/// One who waits for an answer of the server.
struct Waiting<'a>(Option<&'a Doubt>);

impl<'a> Waiting<'a> {
    fn of(doubt: &'a Doubt) -> Self {
        if doubt.patient {
            return Self(None);
        }
        let mut seen = doubt.seen();
        seen.waiting += 1;
        seen.since.get_or_insert_with(Instant::now);
        Self(Some(doubt))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(doubt) = self.0 else { return };
        let mut seen = doubt.seen();
        seen.waiting = seen.waiting.saturating_sub(1);
        if seen.waiting == 0 {
            // Who is asked nothing is not silent.
            seen.since = None;
        }
    }
}

impl Doubt {
    /// For statements that the server ends after this time.
    pub fn new(statement_timeout: Duration) -> Self {
        Self { limit: statement_timeout.saturating_add(LATE), patient: false, seen: Arc::default() }
    }

    /// The same for statements that take as long as they do.
    pub fn patient(&self) -> Self {
        Self { limit: LONGEST_STUDY.max(self.limit), patient: true, ..self.clone() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call to the server brings, or that it brings nothing.
    pub async fn of<T>(&self, call: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        self.within(self.limit, call).await
    }

    /// [`Self::of`] within another time.
    pub async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let _waiting = Waiting::of(self);
        let found = self.limited(limit, call, !self.patient).await;
        if found.is_ok() {
            self.seen().heard(Instant::now());
        }
        found
    }

    /// [`Self::of`] a connection of the pool, which may be one that was used a moment ago: the server has said nothing then.
    pub async fn of_pool<T>(&self, call: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        self.limited(self.limit, call, false).await
    }

    async fn limited<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = sqlx::Result<T>>,
        is_waiting: bool,
    ) -> sqlx::Result<T> {
        // Dropped after the doubt is on record: its connection must not go back to the pool as one that is trusted.
        let mut call = pin!(call);
        let found = timeout(limit, &mut call).await;
        let found = found.unwrap_or_else(|_| Err(sqlx::Error::Io(silence(limit))));
        found.inspect_err(|error| self.failed(error, is_waiting))
    }

    /// What a call that failed says of the server, which may be one of those who are counted as waiting.
    fn failed(&self, error: &sqlx::Error, is_waiting: bool) {
        let now = Instant::now();
        let mut seen = self.seen();
        match error {
            error if is_spent(error) => (seen.spent, seen.silent) = (Some(now), Some(now)),
            // Others of this process may have all connections. If the server owes them an answer, it is judged by how long it has owed it.
            sqlx::Error::PoolTimedOut if seen.waiting > usize::from(is_waiting) => {
                seen.silence(now)
            }
            // Nobody else asks anything, so that none could be made.
            sqlx::Error::PoolTimedOut if seen.heard.is_none_or(|at| now - at >= AWAY) => {
                seen.silent = Some(now);
            }
            sqlx::Error::Database(_) => seen.heard(now),
            _ => {}
        }
    }

    /// Whether the server has answered all this time, as far as was asked: it was never silent for as much as a third of it, after which
    /// those who renew a lease of this time may be too late. Who has no connection left to ask by learns of a silence from those who have
    /// them, as they are answered at last.
    pub fn has_answered_for(&self, time: Duration) -> bool {
        let (now, seen) = (Instant::now(), self.seen());
        let lately = |at: Instant| now.duration_since(at) < time;
        let long = |silence: Duration| silence >= (time / 3).max(AWAY);
        !seen.silent.is_some_and(lately)
            && !seen.silences.iter().any(|(at, silence)| lately(*at) && long(*silence))
            && !seen.since.is_some_and(|since| long(now.duration_since(since)))
    }

    /// Whether a connection of this age may be used.
    pub fn trusts(&self, age: Duration) -> bool {
        self.seen().spent.is_none_or(|at| age < at.elapsed())
    }
}

fn silence(limit: Duration) -> std::io::Error {
    let what = format!("the database server has not answered within {:.1} s", limit.as_secs_f64());
    std::io::Error::new(std::io::ErrorKind::TimedOut, what)
}

/// Whether the connection is of no use: it was lost, for which its server may have gone or ended it; what it is connected to takes no writes
/// any more; it is within a transaction that failed; or it has plans of statements whose tables have changed. Nothing of the statement
/// was done.
pub(super) fn is_spent(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::BeginFailed => true,
        sqlx::Error::Database(cause) => match cause.try_downcast_ref::<PgDatabaseError>() {
            Some(cause) => is_code_of_spent(cause.code(), cause.routine()),
            None => false,
        },
        _ => false,
    }
}

/// By SQLSTATE and the routine of the server that says it.
pub(in crate::store::sql) fn is_code_of_spent(code: &str, routine: Option<&str>) -> bool {
    match code {
        // Administrator shutdown, crash shutdown, cannot connect now, idle session timeout; of a transaction: read-only, failed, idle for
        // too long.
        "57P01" | "57P02" | "57P03" | "57P05" | "25006" | "25P02" | "25P03" => true,
        // "cached plan must not change result type".
        "0A000" => routine == Some("RevalidateCachedQuery"),
        _ => code.starts_with("08"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_made_before_the_doubt_are_not_trusted() {
        let doubt = Doubt::new(Duration::from_secs(60));
        assert!(doubt.trusts(Duration::from_secs(3600)));
        doubt.failed(&sqlx::Error::RowNotFound, false);
        assert!(doubt.trusts(Duration::from_secs(3600)));
        doubt.failed(&sqlx::Error::BeginFailed, false);
        assert!(!doubt.trusts(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(5));
        assert!(doubt.trusts(Duration::ZERO));
        for (code, routine, spent) in [
            ("25006", None, true),
            ("08006", None, true),
            ("0A000", Some("RevalidateCachedQuery"), true),
            ("0A000", Some("transformInsertStmt"), false),
            ("57014", None, false),
            ("23505", None, false),
        ] {
            assert_eq!(is_code_of_spent(code, routine), spent, "{code}");
        }
    }

    #[tokio::test]
    async fn who_hears_nothing_doubts_before_the_call_is_given_up() {
        struct Call(Doubt);
        impl Drop for Call {
            fn drop(&mut self) {
                assert!(!self.0.trusts(Duration::from_secs(3600)));
            }
        }
        let doubt = Doubt::new(Duration::from_secs(60));
        let call = Call(doubt.clone());
        let never = async move {
            let _call = call;
            std::future::pending::<sqlx::Result<()>>().await
        };
        assert!(doubt.has_answered_for(Duration::from_secs(3600)));
        let begun = Instant::now();
        let silent = doubt.within(Duration::from_millis(20), never).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5) && is_spent(&silent), "{silent}");
        assert!(!doubt.has_answered_for(Duration::from_secs(1)));
        assert!(doubt.has_answered_for(Duration::ZERO));
        // One who waits for a connection in vain doubts none of them.
        let doubt = Doubt::new(Duration::from_secs(60));
        let busy = doubt.of(async { Err::<(), _>(sqlx::Error::PoolTimedOut) }).await;
        assert!(matches!(busy, Err(sqlx::Error::PoolTimedOut)));
        assert!(doubt.trusts(Duration::from_secs(3600)));
        assert!(!doubt.has_answered_for(Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn who_finds_no_connection_while_others_are_answered_says_nothing_of_the_server() {
        let doubt = Doubt::new(Duration::from_secs(60));
        let others = doubt.clone();
        let waits = async {
            // A connection that is taken from the pool says nothing, and what is asked on it does.
            others.of_pool(async { Ok(()) }).await?;
            others.of(async { Ok(()) }).await?;
            Err::<(), _>(sqlx::Error::PoolTimedOut)
        };
        assert!(doubt.of_pool(waits).await.is_err());
        assert!(doubt.has_answered_for(Duration::from_secs(3600)));
        // What was said long before says nothing of it, where nobody else asks.
        tokio::time::sleep(AWAY).await;
        let waits = async {
            others.of_pool(async { Ok(()) }).await?;
            Err::<(), _>(sqlx::Error::PoolTimedOut)
        };
        assert!(doubt.of_pool(waits).await.is_err());
        assert!(!doubt.has_answered_for(Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn a_server_is_judged_by_its_longest_silence_while_it_was_asked() {
        let long = Duration::from_millis(1_100);
        let doubt = Doubt::new(Duration::from_secs(60));
        let answer = async || doubt.of(async { Ok(()) }).await.unwrap();
        answer().await;
        // Nobody asks.
        tokio::time::sleep(long).await;
        answer().await;
        assert!(doubt.has_answered_for(Duration::from_secs(3)));
        // One has a slow answer, and others are answered meanwhile; so it is for who takes his time.
        let slow = doubt.of(async {
            for _ in 0..6 {
                tokio::time::sleep(long / 6).await;
                answer().await;
            }
            Ok(())
        });
        slow.await.unwrap();
        let patient = doubt.patient();
        patient
            .of(async {
                tokio::time::sleep(long).await;
                Ok(())
            })
            .await
            .unwrap();
        assert!(doubt.has_answered_for(Duration::from_secs(3)));
        // Two wait for the same; the answer that was asked for last comes first. Who has no connection gives up before.
        let ends = Instant::now() + long;
        let frozen = async {
            tokio::time::sleep_until(ends.into()).await;
            answer().await;
            Ok(())
        };
        let late = async {
            tokio::time::sleep(long / 2).await;
            let busy = doubt.of(async { Err::<(), _>(sqlx::Error::PoolTimedOut) }).await;
            assert!(busy.is_err());
            assert!(doubt.has_answered_for(Duration::from_secs(3)), "half is no silence");
            tokio::time::sleep_until((ends - Duration::from_millis(20)).into()).await;
            doubt
                .of(async {
                    tokio::time::sleep(long / 10).await;
                    Ok(())
                })
                .await
                .unwrap();
        };
        let (first, ()) = tokio::join!(doubt.of(frozen), late);
        first.unwrap();
        // Of a lease of three seconds it is a third, and of one of a minute it is little.
        assert!(!doubt.has_answered_for(Duration::from_secs(3)));
        assert!(doubt.has_answered_for(Duration::from_secs(60)));
        // It has not ended yet.
        let doubt = Doubt::new(Duration::from_secs(60));
        let never = std::future::pending::<sqlx::Result<()>>();
        _ = timeout(long, async {
            tokio::join!(doubt.of(never), async {
                tokio::time::sleep(long - Duration::from_millis(50)).await;
                assert!(!doubt.has_answered_for(Duration::from_secs(3)));
            })
        })
        .await;
        // Who gave up has left nothing behind.
        assert!(doubt.has_answered_for(Duration::from_secs(3)));
    }
}
