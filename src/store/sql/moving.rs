//! All of a store to another database, and the proof that it is all there: each table's rows, hashed on both sides.

use super::db::{self, Cells, Connection};
use super::errors::MOVED_AWAY;
use super::{Place, SqlStore, Write};
use crate::store::{Result, StoreError, Upkeep as _};
use sqlx::AssertSqlSafe;

/// Rows that are read and written at a time; of models, whose files have megabytes, fewer.
const PAGE: i64 = 500;
const MODELS: i64 = 4;
/// Most values in one statement: SQLite takes 32,766, PostgreSQL twice as many.
const VALUES: usize = 30_000;

struct Table {
    name: &'static str,
    /// The first columns are the key, by which rows are ordered in both databases alike.
    columns: &'static str,
    keys: usize,
}

const fn table(name: &'static str, keys: usize, columns: &'static str) -> Table {
    Table { name, columns, keys }
}

/// What is referred to comes first. `store_id` and the revisions go by themselves; what is `stored` is counted anew, and names of processes
/// and rounds of upkeep are of those who are there.
const TABLES: [Table; 20] = [
    table("matrices", 1, "digest, pattern_digest, created_at, version, facts"),
    table(
        "holdings",
        2,
        "namespace, digest, pattern_digest, name, created_at, token, charged, pinned_at, n_rows, nnz",
    ),
    table(
        "plans",
        1,
        "id, pattern_digest, problem, device_class, l2_policy, matrix, created_at, version, body, facts_version, facts, predicted, \
         pinned_at, namespace, token, charged",
    ),
    table("bundles", 2, "plan, without_values, blob, bytes, sha256, imported, created_at"),
    table(
        "drift",
        1,
        "plan, uses, used_at, checked_at, verdict, why, median_us, vendor_us, renewed_at, renewed_for, uses_before, period",
    ),
    table(
        "jobs",
        1,
        "id, version, request, dedup_key, state, stage, done, total, best, plan, stopped_by, error, attempts, search_seconds, created_at, \
         started_at, finished_at, cancel_requested, owner, epoch, lease_until, last_seq, follow_up, kind, device, matrix, detail, \
         lease_ms, token, namespace, priority, imported_from, imported_at, device_class, only_on, ran_on, needs, second_part",
    ),
    table("idempotency_keys", 1, "rowid, key, request, job, created_at"),
    table("trials", 2, "job, ordinal, candidate_id, state, version, body, features"),
    table("events", 2, "job, seq, at, version, body, trial"),
    table(
        "job_features",
        1,
        "job, op, device_class, features_version, problem, matrix, pattern_digest, matrix_name, shared, created_at, described",
    ),
    table("devices", 2, "owner, id, seen_at, version, body, serving"),
    table(
        "quarantine",
        3,
        "device_class, kernel_digest, candidate_id, version, candidate, reason, at, scope",
    ),
    table(
        "witnesses",
        5,
        "device_class, kernel_digest, candidate_id, namespace, pattern_digest, at",
    ),
    table("kernel_figures", 2, "device_class, kernel, registers, local_bytes, learnt_at, seen_at"),
    table("models", 1, "id, op, device_class, features_version, created_at, version, card, file"),
    table("activations", 1, "seq, op, device_class, model, reason, at"),
    table("searched", 3, "turn, since, slot, seconds"),
    table(
        "tokens",
        1,
        "hash, name, scopes, namespace, created_at, expires_at, revoked_at, limits, share_plans, last_used_at",
    ),
    table("audit", 1, "seq, at, token, namespace, peer, request, action, subject, status"),
    table("webhooks", 1, "id, url, secret, states, created_at, namespace, failures, paused_until"),
];

/// Behind what it refers to.
const LAST: Table = table(
    "deliveries",
    1,
    "id, hook, job, body, state, attempts, next_at, status, error, created_at, ended_at",
);

/// Columns by which PostgreSQL numbers rows itself.
const NUMBERED: [(&str, &str); 3] =
    [("activations", "seq"), ("audit", "seq"), ("idempotency_keys", "rowid")];

/// A table that is in both databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub table: &'static str,
    pub rows: u64,
    /// Of all values in the order of the keys: the same in both databases.
    pub digest: crate::domain::Digest,
}

impl Table {
    /// The names of the key's columns.
    fn key(&self) -> String {
        self.columns.split(", ").take(self.keys).collect::<Vec<_>>().join(", ")
    }

    async fn page(&self, on: &mut Connection, after: Option<&Cells>) -> Result<Vec<Cells>> {
        let (name, columns, key) = (self.name, self.columns, self.key());
        let marks: Vec<String> = (1..=self.keys).map(|n| format!("${n}")).collect();
        let beyond = match after {
            Some(_) => format!("WHERE ({key}) > ({})", marks.join(", ")),
            None => String::new(),
        };
        let page = if name == "models" { MODELS } else { PAGE };
        let text = format!("SELECT {columns} FROM {name} {beyond} ORDER BY {key} LIMIT {page}");
        // Made of names in this file; all values are bound.
        let mut query = db::query_as::<Cells>(AssertSqlSafe(text));
        if let Some(Cells(last)) = after {
            for cell in last.iter().take(self.keys) {
                query = query.bind(cell);
            }
        }
        Ok(query.fetch_all(on).await?)
    }

    /// The last row, which says how far an interrupted move has come: rows are written in the order of their keys.
    async fn last(&self, on: &mut Connection) -> Result<Option<Cells>> {
        let (name, columns) = (self.name, self.columns);
        let down = self.key().replace(", ", " DESC, ");
        let text = format!("SELECT {columns} FROM {name} ORDER BY {down} DESC LIMIT 1");
        Ok(db::query_as(AssertSqlSafe(text)).fetch_optional(on).await?)
    }

    async fn insert(&self, on: &mut Connection, rows: &[Cells]) -> Result<()> {
        let (name, columns) = (self.name, self.columns);
        let count = columns.split(", ").count();
        for rows in rows.chunks(VALUES / count) {
            let marks = |row: usize| {
                let marks = (1..=count).map(|n| format!("${}", row * count + n));
                format!("({})", marks.collect::<Vec<_>>().join(", "))
            };
            let marks: Vec<String> = (0..rows.len()).map(marks).collect();
            let text = format!("INSERT INTO {name} ({columns}) VALUES {}", marks.join(", "));
            let mut query = db::query(AssertSqlSafe(text));
            for cell in rows.iter().flat_map(|Cells(row)| row) {
                query = query.bind(cell);
            }
            query.execute(&mut *on).await?;
        }
        Ok(())
    }

    async fn digest(&self, on: &mut Connection) -> Result<Moved> {
        let (mut rows, mut hasher) = (0, blake3::Hasher::new());
        let mut after = None;
        loop {
            let page = self.page(on, after.as_ref()).await?;
            for row in &page {
                row.add_to(&mut hasher);
            }
            rows += page.len() as u64;
            match page.into_iter().last() {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        let digest = crate::domain::Digest::from_bytes(*hasher.finalize().as_bytes());
        Ok(Moved { table: self.name, rows, digest })
    }
}

impl SqlStore {
    /// Copies everything to another store, which has the same id afterwards and so the same blobs, and compares both. Nobody can write to
    /// this one meanwhile, nor afterwards, also who has had it open all the time: it says that it was moved there, by the name `place`. The
    /// other is not opened before all of it is there. Interrupted, it goes on where it was, and at no moment are both in use; `told` hears of
    /// each table.
    ///
    /// # Errors
    /// A job is being worked on, this store was moved elsewhere, the other has something that is not of this one, a table differs in the end,
    /// or either database fails.
    pub async fn move_to(
        &self,
        to: &Self,
        place: &str,
        told: impl Fn(&Moved),
    ) -> Result<Vec<Moved>> {
        let id = self.id().await?;
        let arrives = to.id().await? == id;
        if arrives && !to.is_arriving().await? {
            return Err(StoreError::InUse(
                "the store that is to be written is this one already, and complete: only an empty one is written".into(),
            ));
        }
        if let Some(elsewhere) = self.moved_to().await?
            && !(arrives && elsewhere == place)
        {
            return Err(StoreError::InUse(format!("the store was moved to {elsewhere} already")));
        }
        let mut held = self.hold().await?;
        let mut from = self.readers.study().await?;
        // The other one is written to meanwhile, table by table.
        from.stay().await?;
        if !arrives {
            to.take_over(&id).await?;
        }
        let mut all = Vec::new();
        for table in TABLES.iter().chain([&LAST]) {
            let mut after = {
                let mut reader = to.readers.acquire().await?;
                table.last(&mut reader).await?
            };
            loop {
                let page = table.page(&mut from, after.as_ref()).await?;
                if page.is_empty() {
                    break;
                }
                let mut tx = to.begin().await?;
                table.insert(&mut tx, &page).await?;
                tx.commit(None).await?;
                after = page.into_iter().last();
            }
            let there = table.digest(&mut to.readers.snapshot().await?).await?;
            let here = table.digest(&mut from).await?;
            if here != there {
                return Err(StoreError::Backend(
                    format!(
                        "table {} differs: {} rows of digest {} here, {} rows of {} there. Was the other written to meanwhile?",
                        table.name, here.rows, here.digest, there.rows, there.digest
                    )
                    .into(),
                ));
            }
            told(&here);
            all.push(here);
        }
        to.end_move(&mut from).await?;
        drop(from);
        // This one first: interrupted in between, neither is used, and a repetition ends it.
        db::query("UPDATE store_id SET moved_to = $1").bind(place).execute(&mut *held).await?;
        seal(&mut held, &self.place).await?;
        held.commit(None).await?;
        let mut tx = to.begin().await?;
        db::query("UPDATE store_id SET arriving = 0").execute(&mut *tx).await?;
        tx.commit(None).await?;
        Ok(all)
    }

    /// A transaction beside which nobody writes, however long it takes; who tries is told that the store is busy.
    async fn hold(&self) -> Result<Write> {
        let mut tx = self.begin().await?;
        let tables: Vec<&str> = TABLES.iter().chain([&LAST]).map(|table| table.name).collect();
        tx.stay().await?;
        tx.run(format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", tables.join(", "))).await?;
        let working: i64 = db::query_scalar(
            "SELECT count(*) FROM jobs WHERE state IN ('queued', 'running') AND state = 'running'
             AND lease_until > /*[*/$1/*|clock_ms() + 0 * $1]*/",
        )
        .bind(self.now().0)
        .fetch_one(&mut *tx)
        .await?;
        if working > 0 {
            return Err(StoreError::InUse(format!(
                "{working} jobs are being worked on: stop all servers and workers first, and wait until their leases have expired"
            )));
        }
        Ok(tx)
    }

    /// Where the store goes on, if it was moved.
    ///
    /// # Errors
    /// The database fails.
    pub async fn moved_to(&self) -> Result<Option<String>> {
        let moved: Option<String> =
            db::query_scalar("SELECT moved_to FROM store_id").fetch_one(&self.readers).await?;
        Ok(moved)
    }

    /// Whether the store is being copied here, and not all of it is there yet.
    ///
    /// # Errors
    /// The database fails.
    pub async fn is_arriving(&self) -> Result<bool> {
        let arriving: bool =
            db::query_scalar("SELECT arriving = 1 FROM store_id").fetch_one(&self.readers).await?;
        Ok(arriving)
    }

    /// The store goes on here, although it was moved, or has not arrived as a whole.
    ///
    /// # Errors
    /// The database fails.
    pub async fn stays(&self) -> Result<()> {
        let mut tx = self.begin().await?;
        let marked: Option<i64> = db::query_scalar(
            "UPDATE store_id SET moved_to = NULL, arriving = 0
             WHERE moved_to IS NOT NULL OR arriving = 1 RETURNING CAST(1 AS BIGINT)",
        )
        .fetch_optional(&mut *tx)
        .await?;
        if marked.is_none() {
            return Ok(());
        }
        unseal(&mut tx, &self.place).await?;
        tx.commit(None).await
    }

    /// Gives an empty store the id of another.
    async fn take_over(&self, id: &str) -> Result<()> {
        let mut tx = self.begin().await?;
        for table in TABLES.iter().chain([&LAST]) {
            if table.last(&mut tx).await?.is_some() {
                return Err(StoreError::InUse(format!(
                    "the store that is to be written has rows in {}: only an empty one is, or one that an interrupted move of the same \
                     store has left",
                    table.name
                )));
            }
        }
        db::query("UPDATE store_id SET id = $1, arriving = 1").bind(id).execute(&mut *tx).await?;
        tx.commit(None).await
    }

    /// What is left once all rows are there: revisions, which only grow, and the numbers of rows to come.
    async fn end_move(&self, from: &mut Connection) -> Result<()> {
        let mut tx = self.begin().await?;
        for table in ["revision", "tokens_revision"] {
            let read = AssertSqlSafe(format!("SELECT value FROM {table}"));
            let value: i64 = db::query_scalar(read).fetch_one(&mut *from).await?;
            let write = AssertSqlSafe(format!("UPDATE {table} SET value = max(value, $1)"));
            db::query(write).bind(value).execute(&mut *tx).await?;
        }
        if let Place::Server(_) = &*self.place {
            for (table, column) in NUMBERED {
                let next = format!(
                    "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), (SELECT coalesce(max({column}), 1) FROM {table}))"
                );
                let _: i64 = db::query_scalar(AssertSqlSafe(next)).fetch_one(&mut *tx).await?;
            }
        }
        tx.commit(None).await
    }
}

/// What every write is told once a store was moved; by triggers, so that whoever has it open cannot miss it.
pub(super) const MOVED: &str =
    "the store was moved to another database and goes on there: set data.store to that";

/// Lets nobody write to the tables any more.
async fn seal(tx: &mut Connection, place: &Place) -> Result<()> {
    if let Place::Server(_) = place {
        let refuse = format!(
            "CREATE OR REPLACE FUNCTION moved_away() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN RAISE EXCEPTION ''{MOVED}'' USING ERRCODE = ''{MOVED_AWAY}''; END'"
        );
        tx.run(refuse).await?;
    }
    for Table { name, .. } in TABLES.iter().chain([&LAST]) {
        match place {
            Place::Server(_) => {
                let trigger = format!(
                    "DROP TRIGGER IF EXISTS moved_away ON {name};
                     CREATE TRIGGER moved_away BEFORE INSERT OR UPDATE OR DELETE ON {name} FOR EACH STATEMENT EXECUTE FUNCTION moved_away()"
                );
                tx.run(trigger).await?;
            }
            Place::File(_) => {
                for what in WRITES {
                    let trigger = format!(
                        "CREATE TRIGGER IF NOT EXISTS moved_{name}_{what} BEFORE {what} ON {name} BEGIN SELECT RAISE(ABORT, '{MOVED}'); END"
                    );
                    db::query(AssertSqlSafe(trigger)).execute(&mut *tx).await?;
                }
            }
        }
    }
    Ok(())
}

const WRITES: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Lets them be written to again.
async fn unseal(tx: &mut Connection, place: &Place) -> Result<()> {
    match place {
        Place::Server(_) => {
            tx.run("DROP FUNCTION IF EXISTS moved_away() CASCADE".to_owned()).await?;
        }
        Place::File(_) => {
            for Table { name, .. } in TABLES.iter().chain([&LAST]) {
                for what in WRITES {
                    let drop = format!("DROP TRIGGER IF EXISTS moved_{name}_{what}");
                    db::query(AssertSqlSafe(drop)).execute(&mut *tx).await?;
                }
            }
        }
    }
    Ok(())
}
