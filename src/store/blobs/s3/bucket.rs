//! The objects of one prefix of a bucket: requests with the retries, conditions and errors that the blobs need.

use super::cache::STAGING;
use super::fault::{Fault, Kind};
use super::transport::{LIMIT, StoreClock, Transport, roles};
use super::{BucketSettings, CONFIGURED};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::path::Path as Key;
use object_store::signer::{Method, SignedUrlOptions, Signer};
use object_store::{
    BackoffConfig, CopyOptions, GetOptions, GetRange, MultipartUpload as _, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, RetryConfig,
};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub(super) type Result<T> = std::result::Result<T, Fault>;

/// Bytes that are read by one request, and written by one where there are more.
pub(super) const PART: u64 = 8 << 20;
/// Requests of one transfer at a time.
const AT_ONCE: usize = 4;
/// Most parts of an upload, a little below what S3 permits.
const MOST_PARTS: u64 = 9_000;
/// Longest object that S3 copies by itself.
const LONGEST_COPY: u64 = 5 << 30;
/// How much longer than others a request for a copy may take, and the least bytes a second that it is given time for.
const COPY_LIMITS: u32 = 5;
const COPY_RATE: u64 = 8 << 20;
/// First and longest pause before a request is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub bytes: u64,
    /// By the store's clock.
    pub written: SystemTime,
    /// Another object under the key has another one.
    pub version: String,
}

impl From<ObjectMeta> for Facts {
    fn from(meta: ObjectMeta) -> Self {
        let written = meta.last_modified.into();
        let version = meta.e_tag.unwrap_or_else(|| format!("{}/{written:?}", meta.size));
        Self { bytes: meta.size, written, version }
    }
}

pub(super) struct Bucket {
    store: AmazonS3,
    prefix: Key,
    clock: Arc<StoreClock>,
    /// How long a request is repeated that may succeed.
    patience: Duration,
    /// Longest time of one request.
    limit: Duration,
    /// Where files are made that nobody else sees.
    staging: PathBuf,
}

/// The crate's own texts may have credentials.
impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Bucket {
    pub(super) fn new(settings: &BucketSettings) -> Result<Self> {
        let BucketSettings { bucket, prefix, allow_http, timeout, retry, .. } = settings;
        let clock = Arc::new(StoreClock::default());
        let transport = Transport {
            limit: *timeout,
            plain: *allow_http,
            roles: roles(&settings.options),
            ca_file: settings.ca_file.clone(),
            clock: Arc::clone(&clock),
        };
        let mut builder = AmazonS3Builder::new();
        for (name, value) in &settings.options {
            // Of the variables of the environment, some are for other programs.
            if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value.0.clone());
            }
        }
        let retry_config = RetryConfig {
            backoff: BackoffConfig { init_backoff: PAUSES.0, max_backoff: PAUSES.1, base: 2. },
            max_retries: usize::MAX,
            retry_timeout: *retry,
        };
        let store = builder
            .with_bucket_name(bucket)
            .with_allow_http(*allow_http)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One by one, which every store knows.
            .with_disable_bulk_delete(true)
            .with_retry(retry_config)
            .with_http_connector(transport)
            .build()
            .map_err(|error| Fault::of(CONFIGURED, &error))?;
        let (prefix, staging) = (Key::from(prefix.as_str()), settings.cache.join(STAGING));
        Ok(Self { store, prefix, clock, patience: *retry, limit: *timeout, staging })
    }

    pub(super) fn key(&self, folder: &str, name: &str) -> Key {
        let parts = self.prefix.parts().map(|part| part.as_ref().to_owned());
        let own = [folder, name].into_iter().filter(|part| !part.is_empty()).map(str::to_owned);
        Key::from_iter(parts.chain(own))
    }

    /// Whether something that was written then is so old. The store tells its clock in whole seconds, so that it may be up to a second
    /// older than it looks.
    pub(super) fn is_older(&self, written: SystemTime, age: Duration) -> bool {
        age.is_zero() || self.clock.now().duration_since(written).is_ok_and(|passed| passed >= age)
    }

    pub(super) async fn facts(&self, key: &Key) -> Result<Option<Facts>> {
        match self.store.head(key).await {
            Ok(meta) => Ok(Some(meta.into())),
            Err(error) => absent(Fault::of("look at an object", &error)),
        }
    }

    /// A small object.
    pub(super) async fn read(&self, key: &Key) -> Result<Option<Bytes>> {
        let read = async { self.store.get(key).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => absent(Fault::of("read an object", &error)),
        }
    }

    /// Writes an object in place of any other. Its version.
    pub(super) async fn write(&self, key: &Key, bytes: Bytes) -> Result<String> {
        self.put(key, bytes, PutMode::Overwrite).await
    }

    /// Writes an object unless there is one, which is [`Kind::Exists`]. Its version. A conflict, and an answer that did not come, say
    /// nothing about that, so the request is repeated.
    pub(super) async fn create(&self, key: &Key, bytes: Bytes) -> Result<String> {
        let began = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            match self.put(key, bytes.clone(), PutMode::Create).await {
                Err(fault)
                    if matches!(fault.kind, Kind::Conflict | Kind::Passes)
                        && began.elapsed() < self.patience =>
                {
                    tracing::debug!(%fault, "an object is written again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                done => return done,
            }
        }
    }

    async fn put(&self, key: &Key, bytes: Bytes, mode: PutMode) -> Result<String> {
        let length = bytes.len();
        let options = PutOptions { mode, ..PutOptions::default() };
        let done = self.store.put_opts(key, PutPayload::from(bytes), options).await;
        let done = done.map_err(|error| Fault::of("write an object", &error))?;
        Ok(done.e_tag.unwrap_or_else(|| format!("{length}/unknown")))
    }

    /// Writes a file as an object, in place of any other. Its version.
    pub(super) async fn write_file(
        &self,
        key: &Key,
        file: Arc<File>,
        bytes: u64,
    ) -> Result<String> {
        let part = PART.max(bytes.div_ceil(MOST_PARTS));
        if bytes <= part {
            return self.write(key, range(&file, 0..bytes).await?).await;
        }
        let tried = "write an object in parts";
        let before = self.facts(key).await?;
        let begun = self.store.put_multipart_opts(key, PutMultipartOptions::default()).await;
        let mut upload = begun.map_err(|error| Fault::of(tried, &error))?;
        let starts = (0..bytes).step_by(usize::try_from(part).unwrap_or(usize::MAX));
        let parts = futures_util::stream::iter(starts).then(|start| {
            let file = Arc::clone(&file);
            async move { range(&file, start..bytes.min(start + part)).await }
        });
        let parts = parts.map_ok(|bytes| {
            let sent = upload.put_part(PutPayload::from(bytes));
            async move { sent.await.map_err(|error| Fault::of(tried, &error)) }
        });
        let sent = parts.try_buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await;
        let done = match sent {
            Ok(_) => upload.complete().await.map_err(|error| Fault::of(tried, &error)),
            Err(fault) => Err(fault),
        };
        match done {
            Ok(done) => Ok(done.e_tag.unwrap_or_else(|| format!("{bytes}/unknown"))),
            // It was completed before, and that answer was lost: then the object is there, and was not before this upload.
            Err(fault) if fault.kind == Kind::Missing => match self.facts(key).await? {
                Some(facts) if facts.bytes == bytes && before.as_ref() != Some(&facts) => {
                    Ok(facts.version)
                }
                _ => Err(Fault::new(Kind::Passes, fault.to_string())),
            },
            Err(fault) => {
                // What is left of it costs room until the bucket's own rule removes it.
                if let Err(error) = upload.abort().await {
                    tracing::debug!(%error, "an upload in parts was not given up in order");
                }
                Err(fault)
            }
        }
    }

    /// Reads an object to the beginning of a file, several ranges at a time. [`Kind::Changed`] if it is replaced meanwhile.
    pub(super) async fn read_to(&self, key: &Key, facts: &Facts, file: Arc<File>) -> Result<()> {
        let starts = (0..facts.bytes).step_by(PART as usize);
        let version = facts.version.starts_with(['"', 'W']).then(|| facts.version.clone());
        let ranges = futures_util::stream::iter(starts).map(|start| {
            let end = facts.bytes.min(start + PART);
            let (file, if_match) = (Arc::clone(&file), version.clone());
            async move {
                let range = Some(GetRange::Bounded(start..end));
                let options = GetOptions { range, if_match, ..GetOptions::default() };
                let read = async { self.store.get_opts(key, options).await?.bytes().await };
                let bytes = read.await.map_err(|error| Fault::of("read an object", &error))?;
                if bytes.len() as u64 != end - start {
                    let why = "cannot read an object: the store sent another length than it said";
                    return Err(Fault::new(Kind::Passes, why));
                }
                blocking(move || file.write_all_at(&bytes, start)).await
            }
        });
        ranges.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
    }

    /// Copies an object within the store; false if there is none.
    pub(super) async fn copy(&self, from: &Key, to: &Key) -> Result<bool> {
        let Some(facts) = self.facts(from).await? else { return Ok(false) };
        if facts.bytes > LONGEST_COPY {
            // Beside the copies: the system's folder for temporary files may be memory.
            let folder = self.staging.clone();
            let file = Arc::new(blocking(move || tempfile::tempfile_in(folder)).await?);
            self.read_to(from, &facts, Arc::clone(&file)).await?;
            self.write_file(to, file, facts.bytes).await?;
            return Ok(true);
        }
        // The store answers once it has read and written all of it.
        let limit = self.limit * COPY_LIMITS + Duration::from_secs(facts.bytes / COPY_RATE);
        let copied = self.store.copy_opts(from, to, CopyOptions::default());
        match LIMIT.scope(limit, copied).await {
            Ok(()) => Ok(true),
            Err(error) => {
                let fault = Fault::of("copy an object", &error);
                if fault.kind == Kind::Missing { Ok(false) } else { Err(fault) }
            }
        }
    }

    pub(super) async fn delete(&self, key: &Key) -> Result<()> {
        match self.store.delete(key).await {
            Ok(()) => Ok(()),
            Err(error) => absent::<()>(Fault::of("delete an object", &error)).map(drop),
        }
    }

    /// Names and facts of all objects in a folder.
    pub(super) async fn list(&self, folder: &str) -> Result<Vec<(String, Facts)>> {
        let within = self.key(folder, "");
        let listed = self.store.list(Some(&within)).map_ok(|meta| {
            let name = meta.location.filename().unwrap_or_default().to_owned();
            (name, Facts::from(meta))
        });
        listed.try_collect().await.map_err(|error| Fault::of("list objects", &error))
    }

    /// Where anyone may read the object for a time, who is then told what it is.
    pub(super) async fn link(
        &self,
        key: &Key,
        told: &[(&str, &str)],
        valid: Duration,
    ) -> Result<String> {
        let query = told.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let options = SignedUrlOptions::default().with_query(query);
        let signed = self.store.signed_url_opts(Method::GET, key, valid, &options).await;
        signed.map(String::from).map_err(|error| Fault::of("sign an address", &error))
    }
}

/// Part of a file.
async fn range(file: &Arc<File>, part: std::ops::Range<u64>) -> Result<Bytes> {
    let file = Arc::clone(file);
    blocking(move || {
        let mut bytes = vec![0; usize::try_from(part.end - part.start).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, part.start)?;
        Ok(bytes.into())
    })
    .await
}

/// A file as it is to be sent.
pub(super) fn opened(path: &Path) -> io::Result<(Arc<File>, u64)> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    Ok((Arc::new(file), bytes))
}

/// Work on files of this host.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::other);
    done.and_then(|done| done).map_err(|error| {
        let kind = if crate::store::is_full(&error) { Kind::Full } else { Kind::Lasts };
        Fault::new(kind, format!("a file of the cache of blobs: {error}"))
    })
}

fn absent<T>(fault: Fault) -> Result<Option<T>> {
    if fault.kind == Kind::Missing { Ok(None) } else { Err(fault) }
}
