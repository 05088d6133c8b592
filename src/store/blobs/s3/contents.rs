//! What blobs contain: sent once, fetched once for all who ask, and compared with their digests when this process first meets them.

use super::super::checking::Verdict;
use super::bucket::{PART, opened};
use super::cache::{Coming, InUse, Turn};
use super::fault::{Fault, Kind};
use super::{BlobError, Inner, Result, S3Blobs, not_found};
use crate::domain::Digest;
use bytes::Bytes;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a blob is looked for again that is replaced, or goes and comes back, meanwhile.
const ATTEMPTS: usize = 4;
/// How long what this process has put counts as put just now.
const FRESH: Duration = Duration::from_secs(600);
/// Most blobs of which that is remembered.
const MOST_FRESH: u64 = 100_000;
/// How long a blob waits for room among copies that are in use.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which it is looked whether another has fetched a blob, or room was made.
const AGAIN: Duration = Duration::from_millis(50);

/// What this process knows of blobs, by the versions of their objects.
#[derive(Debug)]
pub(super) struct Known {
    sound: Mutex<HashMap<Digest, String>>,
    damaged: Mutex<HashMap<Digest, String>>,
    fresh: moka::sync::Cache<Digest, ()>,
    /// For each blob that is being fetched a lock, so that those who ask for it here wait in order.
    fetching: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

impl Default for Known {
    fn default() -> Self {
        let fresh = moka::sync::Cache::builder().max_capacity(MOST_FRESH).time_to_live(FRESH);
        Self {
            sound: Mutex::default(),
            damaged: Mutex::default(),
            fresh: fresh.build(),
            fetching: Mutex::default(),
        }
    }
}

impl Known {
    pub(super) fn forget(&self, digest: &Digest) {
        locked(&self.sound).remove(digest);
        locked(&self.damaged).remove(digest);
        self.fresh.invalidate(digest);
    }

    fn written(&self, digest: &Digest, version: String) {
        locked(&self.damaged).remove(digest);
        locked(&self.sound).insert(*digest, version);
        self.fresh.insert(*digest, ());
    }

    fn is(map: &Mutex<HashMap<Digest, String>>, digest: &Digest, version: &str) -> bool {
        locked(map).get(digest).is_some_and(|known| known == version)
    }

    pub(super) fn is_damaged(&self, digest: &Digest, version: &str) -> bool {
        Self::is(&self.damaged, digest, version)
    }
}

impl S3Blobs {
    /// Stores bytes in one object, or finds that they are.
    pub(super) async fn put_bytes(&self, digest: &Digest, bytes: Bytes) -> Result<()> {
        let inner = &self.0;
        for _ in 0..ATTEMPTS {
            match inner.bucket.create(&inner.blob(digest), bytes.clone()).await {
                Ok(version) => {
                    inner.known.written(digest, version);
                    return Ok(());
                }
                Err(fault) if fault.kind == Kind::Exists => {}
                Err(fault) => return Err(fault.into()),
            }
            if self.put_again(digest).await? {
                return Ok(());
            }
            if inner.bucket.facts(&inner.blob(digest)).await?.is_some() {
                // It is damaged. Who is about to throw it away sees the mark.
                inner.write_mark(digest).await?;
                let version = inner.bucket.write(&inner.blob(digest), bytes).await?;
                inner.known.written(digest, version);
                return Ok(());
            }
        }
        Err(replaced(digest).into())
    }

    /// Stores a file, or finds that it is; true if it was not there.
    pub(super) async fn send(&self, file: &Path, digest: &Digest) -> Result<bool> {
        let path = file.to_owned();
        let (file, bytes) = self.with_files(move |_| opened(&path)).await?;
        let most = self.0.cache.most();
        if bytes > most {
            let why = format!(
                "a blob of {bytes} bytes could not be read here: data.blob_cache_max is {most}"
            );
            return Err(BlobError::Full(why.into()));
        }
        if bytes <= PART {
            let there = self.put_again(digest).await?;
            if !there {
                let contents = read_whole(file, bytes).await?;
                self.put_bytes(digest, contents).await?;
            }
            return Ok(!there);
        }
        if self.put_again(digest).await? {
            return Ok(false);
        }
        let inner = &self.0;
        inner.write_mark(digest).await?;
        let version = inner.bucket.write_file(&inner.blob(digest), file, bytes).await?;
        inner.known.written(digest, version);
        Ok(true)
    }

    /// Whether the blob exists and is sound; if so, this counts as putting it.
    pub(super) async fn put_again(&self, digest: &Digest) -> Result<bool> {
        let inner = &self.0;
        for _ in 0..ATTEMPTS {
            if !self.has(digest).await? {
                return Ok(false);
            }
            if inner.known.fresh.contains_key(digest) {
                return Ok(true);
            }
            inner.write_mark(digest).await?;
            inner.known.fresh.insert(*digest, ());
            // It may have gone to the trash before the mark was seen.
            if inner.bucket.facts(&inner.blob(digest)).await?.is_some() {
                return Ok(true);
            }
        }
        Err(replaced(digest).into())
    }

    /// Whether the blob exists and is sound.
    pub(super) async fn has(&self, digest: &Digest) -> Result<bool> {
        let inner = &self.0;
        let facts = match inner.present(digest).await {
            Err(BlobError::NotFound(_)) => return Ok(false),
            facts => facts?,
        };
        let version = &facts.version;
        if inner.checking.name_of.get().is_none() || Known::is(&inner.known.sound, digest, version)
        {
            return Ok(true);
        }
        if inner.known.is_damaged(digest, version) {
            return Ok(false);
        }
        if facts.bytes > inner.cache.most() {
            // Another host may keep larger ones; who reads it here is told.
            return Ok(true);
        }
        match self.copy_of(digest).await {
            Ok(_) => {
                // A copy of an earlier process was one of the same blob.
                locked(&inner.known.sound).insert(*digest, facts.version);
                Ok(true)
            }
            Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A copy of the blob, whose contents have been compared if they are to be.
    pub(super) async fn copy_of(&self, digest: &Digest) -> Result<InUse> {
        if let Some(copy) = self.sound_copy(digest).await? {
            return Ok(copy);
        }
        // It goes on if nobody waits for it any more: who asks next finds it further.
        let (blobs, wanted) = (self.clone(), *digest);
        let fetched = tokio::spawn(async move {
            let turn = Arc::clone(locked(&blobs.0.known.fetching).entry(wanted).or_default());
            let fetched = {
                let _turn = turn.lock().await;
                blobs.fetched(&wanted).await
            };
            drop(turn);
            let mut fetching = locked(&blobs.0.known.fetching);
            if fetching.get(&wanted).is_some_and(|turn| Arc::strong_count(turn) == 1) {
                fetching.remove(&wanted);
            }
            fetched
        });
        fetched.await.map_err(io::Error::other)?
    }

    /// The copy that there is. One that is not what it should be is removed, and fetched again.
    async fn sound_copy(&self, digest: &Digest) -> Result<Option<InUse>> {
        let digest = *digest;
        self.with_files(move |inner| {
            let Some(copy) = inner.cache.take(&digest)? else { return Ok(None) };
            match inner.checking.verdict(&digest, &copy.path)? {
                Verdict::Sound => Ok(Some(copy)),
                Verdict::Damaged(_) => {
                    tracing::warn!(%digest, "a copy of a blob is damaged: it is fetched again");
                    inner.checking.forget(&digest);
                    inner.cache.remove(&digest)?;
                    Ok(None)
                }
            }
        })
        .await
    }

    async fn fetched(&self, digest: &Digest) -> Result<InUse> {
        let wanted = *digest;
        loop {
            if let Some(copy) = self.sound_copy(digest).await? {
                return Ok(copy);
            }
            // Another process may have the same copies.
            match self.with_files(move |inner| inner.cache.turn(&wanted)).await? {
                Turn::Others => tokio::time::sleep(AGAIN).await,
                Turn::Ours(coming) => {
                    if let Some(copy) = self.sound_copy(digest).await? {
                        drop(std::fs::remove_file(&coming.path));
                        return Ok(copy);
                    }
                    let coming = Arc::new(coming);
                    let fetched = self.fetch(digest, Arc::clone(&coming)).await;
                    if fetched.is_err() {
                        // Before another can have its turn.
                        drop(std::fs::remove_file(&coming.path));
                    }
                    if let Some(copy) = fetched? {
                        return Ok(copy);
                    }
                }
            }
        }
    }

    /// Fetches a blob, and compares it; `None` if the copy was removed at once to make room.
    async fn fetch(&self, digest: &Digest, coming: Arc<Coming>) -> Result<Option<InUse>> {
        let (inner, wanted) = (&self.0, *digest);
        let began = Instant::now();
        let mut mismatched = None;
        for _ in 0..ATTEMPTS {
            let facts = inner.present(digest).await?;
            if inner.known.is_damaged(digest, &facts.version) {
                return Err(BlobError::NotFound(*digest));
            }
            let bytes = facts.bytes;
            self.room_for(&coming, bytes).await?;
            let (key, file) = (inner.blob(digest), Arc::clone(&coming.file));
            match inner.bucket.read_to(&key, &facts, file).await {
                Err(fault) if matches!(fault.kind, Kind::Changed | Kind::Missing) => continue,
                read => read.map_err(not_found(digest))?,
            }
            let path = coming.path.clone();
            let verdict = self.with_files(move |inner| {
                // Whatever was compared before under this name: these bytes were not.
                inner.checking.forget(&wanted);
                inner.checking.verdict(&wanted, &path)
            });
            match verdict.await? {
                Verdict::Sound => {
                    let seconds = began.elapsed().as_secs_f64();
                    tracing::debug!(%digest, bytes, seconds, "blob fetched");
                    metrics::counter!("sparsetune_blobs_fetched_total").increment(1);
                    metrics::counter!("sparsetune_blob_bytes_fetched_total").increment(bytes);
                    locked(&inner.known.sound).insert(*digest, facts.version);
                    return self
                        .with_files(move |inner| inner.cache.publish(&coming, &wanted))
                        .await;
                }
                // Once more: it may have been damaged on its way.
                Verdict::Damaged(_) if mismatched.as_ref() != Some(&facts.version) => {
                    mismatched = Some(facts.version);
                }
                Verdict::Damaged(_) => {
                    inner.put_aside(digest).await;
                    locked(&inner.known.damaged).insert(*digest, facts.version);
                    return Err(BlobError::Damaged(*digest));
                }
            }
        }
        Err(replaced(digest).into())
    }

    /// Waits until there is room for a copy, and takes it.
    async fn room_for(&self, coming: &Arc<Coming>, bytes: u64) -> Result<()> {
        let began = Instant::now();
        let most = self.0.cache.most();
        let lacks = |why: &str| {
            let why = format!(
                "a copy of {bytes} bytes has no room in the {most} bytes of data.blob_cache_max: {why}"
            );
            Err(BlobError::Full(why.into()))
        };
        if bytes > most {
            return lacks("it is larger");
        }
        loop {
            let coming = Arc::clone(coming);
            if self.with_files(move |inner| inner.cache.reserve(&coming, bytes)).await? {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return lacks("others are in use");
            }
            tokio::time::sleep(AGAIN * 5).await;
        }
    }
}

impl Inner {
    /// Says that a blob is put again, before it is looked at or written: who is just moving it to the trash looks for this afterwards.
    async fn write_mark(&self, digest: &Digest) -> Result<()> {
        self.bucket.write(&self.mark(digest), Bytes::from_static(b"1")).await?;
        Ok(())
    }

    /// What the store has under a blob's name, which comes back from the trash if need be.
    pub(super) async fn present(&self, digest: &Digest) -> Result<super::bucket::Facts> {
        for _ in 0..ATTEMPTS {
            if let Some(facts) = self.bucket.facts(&self.blob(digest)).await? {
                return Ok(facts);
            }
            if !self.recover(digest).await? {
                self.is_ours().await?;
                self.known.forget(digest);
                self.checking.forget(digest);
                return Err(BlobError::NotFound(*digest));
            }
        }
        Err(replaced(digest).into())
    }
}

async fn read_whole(file: Arc<std::fs::File>, bytes: u64) -> Result<Bytes> {
    use std::os::unix::fs::FileExt;
    let read = super::blocking(move || {
        let mut contents = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        file.read_exact_at(&mut contents, 0)?;
        Ok(contents.into())
    });
    Ok(read.await?)
}

fn replaced(digest: &Digest) -> Fault {
    Fault::new(Kind::Changed, format!("blob {digest} is replaced all the time"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
