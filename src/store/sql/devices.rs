//! Devices with the workers that serve them, and the quarantine of candidates that hung or killed a device.

use super::SqlStore;
use super::codec::{self, Stored, decode, encode};
use super::db::{self, Text};
use crate::domain::{
    Candidate, Device, DeviceClass, Digest, NameHolder, Process, QuarantineId, Serving, Timestamp,
};
use crate::store::{
    Change, Devices, Page, PageRequest, Quarantined, Result, SeenDevice, StoreError,
};
use async_trait::async_trait;
use std::collections::HashMap;

pub(super) const QUARANTINE_COUNTS: &str =
    "SELECT device_class, count(*) FROM quarantine GROUP BY device_class";

const LIST: &str = "quarantine";

const ENTRIES: &str =
    "SELECT device_class, kernel_digest, version, candidate, scope, reason, at FROM quarantine";

/// Those that count for a namespace on a pattern.
const BARRED: &str = "SELECT device_class, kernel_digest, version, candidate, scope, reason, at FROM quarantine AS q
     WHERE q.device_class = $1 AND (q.scope = 'class' OR EXISTS (
         SELECT 1 FROM witnesses AS a
         WHERE a.device_class = q.device_class AND a.kernel_digest = q.kernel_digest AND a.candidate_id = q.candidate_id
             AND a.namespace = $2 AND (a.pattern_digest = $3 OR EXISTS (
                 SELECT 1 FROM witnesses AS b
                 WHERE b.device_class = a.device_class AND b.kernel_digest = a.kernel_digest AND b.candidate_id = a.candidate_id
                     AND b.namespace = a.namespace AND b.pattern_digest <> a.pattern_digest))))";

/// What the witnesses of an entry say together.
const JUDGE: &str = "UPDATE quarantine SET scope = coalesce((
         SELECT CASE WHEN max(CASE WHEN a.namespace <> b.namespace THEN 1 ELSE 0 END) = 1 THEN 'class' ELSE 'namespace' END
         FROM witnesses AS a JOIN witnesses AS b
             ON b.device_class = a.device_class AND b.kernel_digest = a.kernel_digest AND b.candidate_id = a.candidate_id
             AND b.pattern_digest <> a.pattern_digest
         WHERE a.device_class = $1 AND a.kernel_digest = $2 AND a.candidate_id = $3
         HAVING count(*) > 0), scope)
     WHERE device_class = $1 AND kernel_digest = $2 AND candidate_id = $3 AND scope <> 'class'";

#[derive(sqlx::FromRow)]
struct QuarantineRow {
    device_class: String,
    kernel_digest: Vec<u8>,
    version: i64,
    candidate: String,
    scope: String,
    reason: String,
    at: i64,
}

impl QuarantineRow {
    fn entry(self) -> Result<Quarantined> {
        Ok(Quarantined {
            class: DeviceClass(self.device_class),
            kernel_digest: codec::digest("quarantine", &self.kernel_digest)?,
            candidate: decode(self.version, &self.candidate)?,
            scope: codec::named("quarantine", self.scope)?,
            reason: self.reason,
            at: Timestamp(self.at),
        })
    }
}

/// The position of an entry in the list: its time, then its key.
pub(super) struct Place {
    at: i64,
    class: String,
    kernel: Digest,
    candidate: String,
}

impl Place {
    /// The class comes last, because it may contain any character.
    fn cursor(entry: &Quarantined) -> String {
        let Quarantined { class, kernel_digest, candidate, at, .. } = entry;
        codec::cursor(LIST, at.0, &format!("{kernel_digest}|{}|{class}", candidate.id()))
    }

    fn read(text: &str) -> Result<Self> {
        let (at, key) = codec::read_cursor(LIST, text)?;
        let mut parts = key.splitn(3, '|');
        match (parts.next().map(str::parse), parts.next(), parts.next()) {
            (Some(Ok(kernel)), Some(candidate), Some(class)) => {
                Ok(Self { at, class: class.to_owned(), kernel, candidate: candidate.to_owned() })
            }
            _ => Err(StoreError::BadCursor),
        }
    }
}

/// A page of the quarantine, in the order of the index for one class or for all.
pub(super) fn page_query(
    class: Option<&DeviceClass>,
    after: Option<Place>,
    limit: i64,
) -> Text<'static> {
    let mut query = Text::new(ENTRIES);
    match class {
        Some(class) => {
            query.push(" WHERE device_class = ").push_bind(class.0.clone());
            query.push(" AND (at, kernel_digest, candidate_id) < (");
        }
        None => {
            query.push(" WHERE (at, device_class, kernel_digest, candidate_id) < (");
        }
    }
    match after {
        Some(after) => {
            query.push_bind(after.at);
            if class.is_none() {
                query.push(", ").push_bind(after.class);
            }
            query.push(", ").push_bind(after.kernel.as_bytes().to_vec());
            query.push(", ").push_bind(after.candidate);
        }
        // Above every key: all times are smaller.
        None => {
            query.push_bind(i64::MAX);
            if class.is_none() {
                query.push(", ").push_bind("");
            }
            query.push(", ").push_bind(Vec::new()).push(", ").push_bind("");
        }
    }
    let order = match class {
        Some(_) => ") ORDER BY at DESC, kernel_digest DESC, candidate_id DESC LIMIT ",
        None => {
            ") ORDER BY at DESC, device_class DESC, kernel_digest DESC, candidate_id DESC LIMIT "
        }
    };
    query.push(order).push_bind(limit);
    query
}

#[async_trait]
impl Devices for SqlStore {
    async fn put_device(&self, owner: &str, device: &Device, serving: &Serving) -> Result<()> {
        let body = encode(device)?;
        // A worker writes rows of its own alone.
        let mut tx = self.begin_beside().await?;
        let known: Option<String> =
            db::query_scalar("SELECT body FROM devices WHERE owner = $1 AND id = $2")
                .bind(owner)
                .bind(&device.id.0)
                .fetch_optional(&mut *tx)
                .await?;
        // A heartbeat that changes nothing else does not change any answer.
        if known.as_ref() != Some(&body) {
            tx.revise();
        }
        db::query(
            "INSERT INTO devices (owner, id, seen_at, version, body, serving)
             VALUES ($1, $2, /*[*/$3/*|clock_ms()]*/, $4, $5, $6)
             ON CONFLICT (owner, id) DO UPDATE
             SET seen_at = excluded.seen_at, version = excluded.version, body = excluded.body, serving = excluded.serving",
        )
        .bind(owner)
        .bind(&device.id.0)
        .bind(self.now().0)
        .bind(Device::VERSION)
        .bind(body)
        .bind(codec::encode_part("device's worker", serving)?)
        .execute(&mut *tx)
        .await?;
        tx.commit(None).await
    }

    async fn forget_devices(&self, owner: &str) -> Result<()> {
        let mut tx = self.begin().await?;
        let any: Option<i64> =
            db::query_scalar("SELECT CAST(1 AS BIGINT) FROM devices WHERE owner = $1 LIMIT 1")
                .bind(owner)
                .fetch_optional(&mut *tx)
                .await?;
        if any.is_none() {
            return Ok(());
        }
        db::query("DELETE FROM devices WHERE owner = $1").bind(owner).execute(&mut *tx).await?;
        tx.revise();
        tx.commit(None).await
    }

    async fn devices(&self) -> Result<Vec<SeenDevice>> {
        let rows: Vec<(String, i64, String, Option<String>, i64, i64)> = db::query_as(
            "SELECT owner, version, body, serving, seen_at, /*[*/$1/*|clock_ms()]*/ - seen_at FROM devices ORDER BY owner, id",
        )
        .bind(self.now().0)
        .fetch_all(&self.readers)
        .await?;
        rows.into_iter()
            .map(|(owner, version, body, serving, seen, age_ms)| {
                let serving =
                    serving.map(|text| codec::decode_part("device's worker", &text)).transpose()?;
                Ok(SeenDevice {
                    owner,
                    device: decode(version, &body)?,
                    serving: serving.unwrap_or_default(),
                    seen_at: Timestamp(seen),
                    age_ms,
                })
            })
            .collect()
    }

    async fn keep_name(&self, process: &Process, silent_ms: i64) -> Result<Option<NameHolder>> {
        let Process { name, id, host, place, version } = process;
        // What is compared is the row as it is once it is locked.
        let mut tx = self.begin_beside().await?;
        let kept: Option<String> = db::query_scalar(
            "INSERT INTO workers (name, process, host, place, version, since, seen_at)
             VALUES ($1, $2, $3, $4, $5, /*[*/$6/*|clock_ms()]*/, /*[*/$6/*|clock_ms()]*/)
             ON CONFLICT (name) DO UPDATE SET process = excluded.process, host = excluded.host, place = excluded.place,
                 version = excluded.version, seen_at = excluded.seen_at,
                 since = CASE WHEN workers.process = excluded.process THEN workers.since ELSE excluded.since END
             WHERE workers.process = excluded.process OR workers.place = excluded.place
                 OR workers.seen_at <= excluded.seen_at - $7 OR workers.seen_at > excluded.seen_at + $7
             RETURNING process",
        )
        .bind(name)
        .bind(id)
        .bind(host)
        .bind(place)
        .bind(version)
        .bind(self.now().0)
        .bind(silent_ms)
        .fetch_optional(&mut *tx)
        .await?;
        if kept.is_some() {
            tx.commit(None).await?;
            return Ok(None);
        }
        let holder: Option<(String, i64)> = db::query_as(
            "SELECT host, /*[*/$2/*|clock_ms()]*/ - seen_at FROM workers WHERE name = $1",
        )
        .bind(name)
        .bind(self.now().0)
        .fetch_optional(&mut *tx)
        .await?;
        // It may have left just now, which the next attempt will find.
        let (host, silent_ms) = holder.unwrap_or_default();
        Ok(Some(NameHolder { host, silent_ms }))
    }

    async fn leave_name(&self, process: &Process) -> Result<()> {
        db::query("DELETE FROM workers WHERE name = $1 AND process = $2")
            .bind(&process.name)
            .bind(&process.id)
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    async fn quarantine(&self, entry: &Quarantined, pattern: &Digest) -> Result<()> {
        let mut tx = self.begin().await?;
        let (class, candidate) = (&entry.class.0, entry.candidate.id().0);
        let kernel = &entry.kernel_digest.as_bytes()[..];
        // The first reason is kept, because it was observed on a sound device.
        db::query(
            "INSERT INTO quarantine (device_class, kernel_digest, candidate_id, version, candidate, scope, reason, at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
        )
        .bind(class)
        .bind(kernel)
        .bind(&candidate)
        .bind(Candidate::VERSION)
        .bind(encode(&entry.candidate)?)
        .bind(entry.scope.name())
        .bind(&entry.reason)
        .bind(entry.at.0)
        .execute(&mut *tx)
        .await?;
        db::query(
            "INSERT INTO witnesses (device_class, kernel_digest, candidate_id, namespace, pattern_digest, at)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        )
        .bind(class)
        .bind(kernel)
        .bind(&candidate)
        .bind(self.namespace())
        .bind(&pattern.as_bytes()[..])
        .bind(entry.at.0)
        .execute(&mut *tx)
        .await?;
        db::query(JUDGE).bind(class).bind(kernel).bind(&candidate).execute(&mut *tx).await?;
        tx.commit([Change::Quarantined]).await
    }

    async fn barred(&self, class: &DeviceClass, pattern: &Digest) -> Result<Vec<Quarantined>> {
        let rows: Vec<QuarantineRow> = db::query_as(BARRED)
            .bind(&class.0)
            .bind(self.namespace())
            .bind(&pattern.as_bytes()[..])
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter().map(QuarantineRow::entry).collect()
    }

    async fn lift_quarantine(&self, id: &QuarantineId) -> Result<Option<Quarantined>> {
        let mut tx = self.begin().await?;
        let rows: Vec<QuarantineRow> = db::query_as(ENTRIES).fetch_all(&mut *tx).await?;
        // An entry that cannot be read has no id, and must not keep the others from being lifted.
        let found = rows.into_iter().filter_map(|row| row.entry().ok()).find(|one| one.id() == *id);
        let Some(entry) = found else { return Ok(None) };
        for statement in [
            "DELETE FROM witnesses WHERE device_class = $1 AND kernel_digest = $2 AND candidate_id = $3",
            "DELETE FROM quarantine WHERE device_class = $1 AND kernel_digest = $2 AND candidate_id = $3",
        ] {
            db::query(statement)
                .bind(&entry.class.0)
                .bind(&entry.kernel_digest.as_bytes()[..])
                .bind(entry.candidate.id().0)
                .execute(&mut *tx)
                .await?;
        }
        // Predictions may name the candidate again.
        tx.revise();
        tx.commit(None).await?;
        Ok(Some(entry))
    }

    async fn quarantine_counts(&self) -> Result<HashMap<DeviceClass, u64>> {
        let rows: Vec<(String, i64)> =
            db::query_as(QUARANTINE_COUNTS).fetch_all(&self.readers).await?;
        rows.into_iter()
            .map(|(class, count)| Ok((DeviceClass(class), codec::count("quarantine", count)?)))
            .collect()
    }

    async fn quarantined(
        &self,
        class: Option<&DeviceClass>,
        page: &PageRequest,
    ) -> Result<Page<Quarantined>> {
        let limit = codec::page_limit(page.limit);
        let after = page.after.as_deref().map(Place::read).transpose()?;
        let rows: Vec<QuarantineRow> =
            page_query(class, after, limit + 1).query_as().fetch_all(&self.readers).await?;
        let items: Vec<Quarantined> =
            rows.into_iter().map(QuarantineRow::entry).collect::<Result<_>>()?;
        Ok(codec::cut(items, limit, Place::cursor))
    }
}
