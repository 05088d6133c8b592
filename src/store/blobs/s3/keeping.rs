//! Whose blobs a prefix has, the trash, and what was found damaged.

use super::bucket::{Bucket, Facts, Result, opened};
use super::fault::{Fault, Kind};
use super::{BlobError, Inner};
use crate::domain::Digest;
use crate::store::BlobFacts;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

const BLOBS: &str = "blobs";
const MARKS: &str = "put";
const TRASH: &str = "trash";
const DAMAGED: &str = "damaged";
const OWNER: &str = "store-id";
const FILLING: &str = "restoring";
/// Most damaged blobs that are kept, as in a folder.
const MOST_DAMAGED: usize = 32;
/// Requests at a time for a list of blobs.
const AT_ONCE: usize = 16;
/// From so many blobs on, all are listed instead of looking at each.
const MANY: usize = 500;

/// How long a blob's copy stays in the trash at least, where the blob is in its place: who moves it there may not have come to its end.
const SETTLED: Duration = Duration::from_secs(900);
/// For so long it is not asked again whose the prefix is.
const CONFIRMED: Duration = Duration::from_secs(1);

type OfBlobs<T> = super::Result<T>;

/// Whose blobs these were when they were opened, and when that was last seen to be so.
#[derive(Debug, Default)]
pub(super) struct Whose {
    owner: Mutex<Option<String>>,
    seen: Mutex<Option<Instant>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(super) fn blob(&self, digest: &Digest) -> Key {
        self.bucket.key(BLOBS, &digest.to_string())
    }

    pub(super) fn mark(&self, digest: &Digest) -> Key {
        self.bucket.key(MARKS, &digest.to_string())
    }

    fn trashed(&self, digest: &Digest) -> Key {
        self.bucket.key(TRASH, &digest.to_string())
    }

    pub(super) async fn read_owner(&self) -> OfBlobs<Option<String>> {
        let owner = self.owner_there().await?;
        let mut known = locked(&self.whose.owner);
        if known.is_none() {
            known.clone_from(&owner);
        }
        drop(known);
        Ok(owner)
    }

    async fn owner_there(&self) -> Result<Option<String>> {
        let read = self.bucket.read(&self.bucket.key("", OWNER)).await?;
        Ok(read.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
    }

    /// Fails with `Unavailable` unless the bucket is there and has the blobs that were opened: to be asked before a blob is taken for missing,
    /// since a `HEAD` does not tell a missing object from a missing bucket, nor from a store that was started on another disk.
    pub(super) async fn is_ours(&self) -> OfBlobs<()> {
        if locked(&self.whose.seen).is_some_and(|at| at.elapsed() < CONFIRMED) {
            return Ok(());
        }
        let gone = |why: String| Err(BlobError::Unavailable(why.into()));
        let there = match self.owner_there().await {
            Err(fault) if fault.kind == Kind::Lasts => return gone(fault.to_string()),
            there => there?,
        };
        let expected = locked(&self.whose.owner).clone();
        match (expected, there) {
            (Some(_), None) => gone(
                "the bucket has no store-id any more: it is another one, or was emptied".into(),
            ),
            (Some(expected), Some(there)) if expected != there => {
                gone(format!("the blobs in the bucket are of another store by now ({there})"))
            }
            _ => {
                *locked(&self.whose.seen) = Some(Instant::now());
                Ok(())
            }
        }
    }

    pub(super) async fn write_owner(&self, id: &str) -> OfBlobs<()> {
        self.write_owner_there(id).await?;
        *locked(&self.whose.owner) = Some(id.to_owned());
        Ok(())
    }

    async fn write_owner_there(&self, id: &str) -> OfBlobs<()> {
        let (key, text) = (self.bucket.key("", OWNER), Bytes::from(format!("{id}\n")));
        if self.owner_there().await?.is_some() {
            self.bucket.write(&key, text).await?;
            return Ok(());
        }
        match self.bucket.create(&key, text).await {
            Err(fault) if fault.kind == Kind::Exists => match self.owner_there().await? {
                Some(owner) if owner == id => Ok(()),
                _ => Err(BlobError::Failed("another store has taken them at this time".into())),
            },
            done => Ok(done.map(drop)?),
        }
    }

    pub(super) async fn is_filling(&self) -> OfBlobs<bool> {
        Ok(self.bucket.facts(&self.bucket.key("", FILLING)).await?.is_some())
    }

    pub(super) async fn filling(&self) -> OfBlobs<()> {
        self.bucket.write(&self.bucket.key("", FILLING), Bytes::from_static(b"1")).await?;
        Ok(())
    }

    pub(super) async fn filled(&self) -> OfBlobs<()> {
        Ok(self.bucket.delete(&self.bucket.key("", FILLING)).await?)
    }

    pub(super) async fn list_all(&self) -> OfBlobs<Vec<Digest>> {
        Ok(list(&self.bucket, BLOBS).await?.into_keys().collect())
    }

    pub(super) async fn count_bytes(&self) -> OfBlobs<u64> {
        let mut bytes = 0;
        for folder in [BLOBS, TRASH, DAMAGED] {
            bytes += list(&self.bucket, folder).await?.values().map(|it| it.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    pub(super) async fn list_damaged(&self) -> OfBlobs<Vec<Digest>> {
        Ok(list(&self.bucket, DAMAGED).await?.into_keys().collect())
    }

    /// Copies a blob that was found damaged, for who looks into the cause; the blob itself is overwritten by the next upload.
    pub(super) async fn put_aside(&self, digest: &Digest) {
        tracing::error!(%digest, "a stored blob is damaged: it is set aside");
        metrics::counter!("sparsetune_damaged_blobs_total").increment(1);
        let aside = async {
            self.bucket
                .copy(&self.blob(digest), &self.bucket.key(DAMAGED, &digest.to_string()))
                .await?;
            let mut all: Vec<_> = list(&self.bucket, DAMAGED).await?.into_iter().collect();
            all.sort_unstable_by_key(|(_, facts)| facts.written);
            let excess = all.len().saturating_sub(MOST_DAMAGED);
            for (old, _) in &all[..excess] {
                self.bucket.delete(&self.bucket.key(DAMAGED, &old.to_string())).await?;
            }
            Ok::<(), Fault>(())
        };
        if let Err(fault) = aside.await {
            tracing::warn!(%digest, %fault, "no copy of a damaged blob was kept");
        }
    }

    /// When each of these was last put, and its bytes.
    pub(super) async fn facts_of(&self, digests: &[Digest]) -> OfBlobs<Vec<Option<BlobFacts>>> {
        if digests.len() >= MANY {
            let (blobs, marks) = self.list_put().await?;
            let one = |digest: &Digest| blobs.get(digest).map(|it| facts(it, marks.get(digest)));
            return Ok(digests.iter().map(one).collect());
        }
        let each = futures_util::stream::iter(digests.to_vec()).map(|digest| async move {
            let Some(blob) = self.bucket.facts(&self.blob(&digest)).await? else { return Ok(None) };
            let mark = self.bucket.facts(&self.mark(&digest)).await?;
            Ok::<_, Fault>(Some(facts(&blob, mark.as_ref())))
        });
        Ok(each.buffered(AT_ONCE).try_collect().await?)
    }

    async fn list_put(&self) -> Result<(BTreeMap<Digest, Facts>, BTreeMap<Digest, Facts>)> {
        // The marks last: one that is written meanwhile is seen.
        let blobs = list(&self.bucket, BLOBS).await?;
        Ok((blobs, list(&self.bucket, MARKS).await?))
    }

    pub(super) async fn list_older(&self, age: Duration) -> OfBlobs<Vec<Digest>> {
        let (blobs, marks) = self.list_put().await?;
        // Of blobs that are gone.
        let mut stale = Vec::new();
        for (digest, mark) in &marks {
            if !blobs.contains_key(digest) && self.bucket.is_older(mark.written, age) {
                stale.push(self.mark(digest));
            }
        }
        futures_util::stream::iter(stale)
            .map(|mark| async move { self.bucket.delete(&mark).await })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        let old = blobs
            .iter()
            .filter(|(digest, blob)| self.bucket.is_older(last_put(blob, marks.get(*digest)), age));
        Ok(old.map(|(digest, _)| *digest).collect())
    }

    /// Moves those that are still older than `age` to the trash; returns their number.
    pub(super) async fn discard(&self, digests: &[Digest], age: Duration) -> OfBlobs<u64> {
        let moved = futures_util::stream::iter(digests.to_vec()).map(|digest| async move {
            self.discard_one(&digest, age).await.unwrap_or_else(|fault| {
                tracing::warn!(%digest, %fault, "an old blob cannot be moved to the trash");
                false
            })
        });
        Ok(moved.buffer_unordered(AT_ONCE).filter(|moved| std::future::ready(*moved)).count().await
            as u64)
    }

    async fn discard_one(&self, digest: &Digest, age: Duration) -> Result<bool> {
        let (blob, mark) = (self.blob(digest), self.mark(digest));
        let Some(facts) = self.bucket.facts(&blob).await? else { return Ok(false) };
        let marked = self.bucket.facts(&mark).await?;
        if !self.bucket.is_older(last_put(&facts, marked.as_ref()), age) {
            return Ok(false);
        }
        if !self.bucket.copy(&blob, &self.trashed(digest)).await? {
            return Ok(false);
        }
        // What has taken its place meanwhile, as what mends a damaged blob, stays.
        if self.bucket.facts(&blob).await?.as_ref() != Some(&facts) {
            return Ok(false);
        }
        self.bucket.delete(&blob).await?;
        self.known.forget(digest);
        // Who put it again meanwhile has marked it before looking whether it is there.
        if self.bucket.facts(&mark).await? != marked {
            self.bring_back(digest).await?;
            return Ok(false);
        }
        self.bucket.delete(&mark).await?;
        Ok(true)
    }

    /// Brings a blob back that somebody has put while it was moved to the trash.
    async fn bring_back(&self, digest: &Digest) -> Result<()> {
        if self.bucket.facts(&self.blob(digest)).await?.is_some() || self.recover(digest).await? {
            return Ok(());
        }
        // Another has emptied the trash. What this host has of it is as good.
        let copy = self.cache.take(digest).ok().flatten();
        let Some((file, bytes)) = copy.as_ref().and_then(|copy| opened(&copy.path).ok()) else {
            tracing::error!(%digest, "a blob that was put while it was moved to the trash is lost: it has to be uploaded again");
            return Ok(());
        };
        self.bucket.write_file(&self.blob(digest), file, bytes).await?;
        tracing::warn!(%digest, "a blob that was put while it was moved to the trash is back from this host's copy");
        Ok(())
    }

    /// Brings a blob back from the trash; false if it is not there.
    pub(super) async fn recover(&self, digest: &Digest) -> Result<bool> {
        if !self.bucket.copy(&self.trashed(digest), &self.blob(digest)).await? {
            // Another was faster: it brought it back, or deleted it.
            return Ok(self.bucket.facts(&self.blob(digest)).await?.is_some());
        }
        // What lies in the trash stays there for a while: another may just be moving what came back there again.
        tracing::warn!(%digest, "a blob was needed that nothing had named: it is back from the trash");
        Ok(true)
    }

    /// Deletes a blob for good, also from the trash. False if there was none.
    pub(super) async fn remove(&self, digest: &Digest) -> OfBlobs<bool> {
        let mut removed = false;
        for key in [self.blob(digest), self.trashed(digest)] {
            if self.bucket.facts(&key).await?.is_some() {
                self.bucket.delete(&key).await?;
                removed = true;
            }
        }
        if removed {
            self.bucket.delete(&self.mark(digest)).await?;
        }
        self.known.forget(digest);
        Ok(removed)
    }

    pub(super) async fn list_trash(&self) -> OfBlobs<Vec<Digest>> {
        Ok(list(&self.bucket, TRASH).await?.into_keys().collect())
    }

    pub(super) async fn empty(&self, named: &[Digest], age: Duration) -> OfBlobs<u64> {
        for digest in named {
            match self.bucket.facts(&self.blob(digest)).await? {
                // It was put anew, beside what lies in the trash; or it is just being moved there.
                Some(_) => {
                    let trashed = self.trashed(digest);
                    let facts = self.bucket.facts(&trashed).await?;
                    if facts.is_some_and(|facts| self.bucket.is_older(facts.written, SETTLED)) {
                        self.bucket.delete(&trashed).await?;
                    }
                }
                None => drop(self.recover(digest).await?),
            }
        }
        let mut deleted = 0;
        for (digest, facts) in list(&self.bucket, TRASH).await? {
            if self.bucket.is_older(facts.written, age) {
                self.bucket.delete(&self.trashed(&digest)).await?;
                deleted += 1;
            }
        }
        Ok(deleted)
    }
}

/// The objects of a folder that are named by digests.
async fn list(bucket: &Bucket, folder: &str) -> Result<BTreeMap<Digest, Facts>> {
    let listed = bucket.list(folder).await?;
    Ok(listed.into_iter().filter_map(|(name, facts)| Some((name.parse().ok()?, facts))).collect())
}

fn last_put(blob: &Facts, mark: Option<&Facts>) -> SystemTime {
    mark.map_or(blob.written, |mark| blob.written.max(mark.written))
}

fn facts(blob: &Facts, mark: Option<&Facts>) -> BlobFacts {
    BlobFacts { bytes: blob.bytes, put_at: last_put(blob, mark) }
}
