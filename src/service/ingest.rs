//! Ingest: an upload becomes a canonical matrix, a blob and a row. Nothing that the client declares is trusted.

mod clerk;
mod fenced;

use self::fenced::Staged;
use super::{Result, Service, ServiceError, ServiceSettings};
use crate::domain::{Digest, Matrix};
use crate::sparse::read::{self, Coding, Held, Limits, Parsed};
use crate::sparse::{Csr, canonical, digest, features};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use metrics::{counter, histogram};
use std::fmt::Display;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tempfile::{NamedTempFile, TempPath};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::sync::OwnedSemaphorePermit;

/// Prefix of the names of upload files; upkeep removes files of killed processes.
pub(super) const UPLOAD_PREFIX: &str = "sparsetune-upload-";
/// Each flush switches to a blocking thread, so flushes are few and large.
const WRITE_BUFFER: usize = 1 << 20;

/// The stored matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Uploaded {
    pub matrix: Matrix,
    /// False if the same matrix was already stored, in any format and under any name.
    pub created: bool,
}

/// A parsed upload with its identity, not yet stored.
struct Read {
    csr: Csr,
    pattern: Digest,
    digest: Digest,
    declared_name: Option<String>,
    /// Its file, if another process has written it.
    staged: Option<Staged>,
    /// What its memory is charged with.
    held: Option<Arc<Held>>,
    /// Parsing and the following steps hold a matrix in memory, so the permit is kept with it.
    _permit: OwnedSemaphorePermit,
}

impl Service {
    /// Takes in one matrix. A dropped call leaves nothing behind: the temporary file is removed with it, or with the parser
    /// that is still reading it.
    pub async fn upload<S, E>(&self, body: S, name: Option<String>) -> Result<Uploaded>
    where
        S: Stream<Item = std::result::Result<Bytes, E>> + Send,
        E: Display,
    {
        self.upload_coded(body, None, name).await
    }

    /// [`Self::upload`] of a body that was packed on its way.
    pub async fn upload_coded<S, E>(
        &self,
        body: S,
        coding: Option<Coding>,
        name: Option<String>,
    ) -> Result<Uploaded>
    where
        S: Stream<Item = std::result::Result<Bytes, E>> + Send,
        E: Display,
    {
        let result = self.ingest(body, coding, name).await;
        let result = result.inspect_err(|error| self.make_room(error));
        let answer = match &result {
            Ok(uploaded) if uploaded.created => "created",
            Ok(_) => "known",
            Err(_) => "refused",
        };
        counter!("sparsetune_uploads_total", "answer" => answer).increment(1);
        result
    }

    async fn ingest<S, E>(
        &self,
        body: S,
        coding: Option<Coding>,
        name: Option<String>,
    ) -> Result<Uploaded>
    where
        S: Stream<Item = std::result::Result<Bytes, E>> + Send,
        E: Display,
    {
        let settings = &self.inner.settings;
        let file = receive(body, settings).await?;
        let permit = self.inner.parses.clone().acquire_owned().await?;
        let read = match &self.inner.readers {
            Some(readers) => self.read_fenced(readers, &file, coding, permit).await?,
            None => {
                let limits = settings.limits.clone();
                let parse = move || parse(&file, coding, &limits, permit);
                tokio::task::spawn_blocking(parse).await??
            }
        };
        if let Some(matrix) = self.stored(&read.digest).await? {
            if let Some(staged) = read.staged {
                staged.discard().await;
            }
            return Ok(Uploaded { matrix, created: false });
        }
        self.keep(read, name).await
    }

    /// Stores a matrix that is already in memory.
    pub async fn store_csr(&self, csr: Csr, name: Option<String>) -> Result<Uploaded> {
        let permit = self.inner.parses.clone().acquire_owned().await?;
        let read = tokio::task::spawn_blocking(move || identified(csr, name, permit)).await?;
        if let Some(matrix) = self.stored(&read.digest).await? {
            return Ok(Uploaded { matrix, created: false });
        }
        self.keep(read, None).await
    }

    /// The facts of a matrix whose file also exists, which is used by this.
    async fn stored(&self, digest: &Digest) -> Result<Option<Matrix>> {
        // Before the lock: what was never read is compared with its digest, which may take long.
        let row = self.store.matrix(digest).await?;
        if row.is_none() || !self.inner.blobs.exists(digest).await? {
            return Ok(None);
        }
        // Nobody deletes it between the look and the answer that it is here.
        let _alone = self.publishing().await?;
        let row = self.store.matrix(digest).await?;
        Ok(if self.inner.blobs.renew(digest).await? { row } else { None })
    }

    async fn keep(&self, read: Read, name: Option<String>) -> Result<Uploaded> {
        let blobs = &self.inner.blobs;
        let new = if read.staged.is_none() { Some(blobs.stage().await?) } else { None };
        let room = Arc::clone(&self.inner.room);
        let (matrix, staged, _reserved) = tokio::task::spawn_blocking(move || -> Result<_> {
            let Read { csr, pattern, digest, declared_name, staged, held, _permit } = read;
            let (staged, reserved) = match (staged, new) {
                (Some(written), _) => {
                    let (written, reserved) = written.into_file()?;
                    let signed = canonical::sign(written.as_file(), pattern, digest);
                    signed.map_err(|error| ServiceError::of_io("a matrix file", error))?;
                    (written, reserved)
                }
                (None, Some(mut new)) => {
                    let reserved = room.take(canonical::file_bytes(&csr))?;
                    canonical::write(&csr, &mut new, pattern, digest).map_err(not_written)?;
                    (new, reserved)
                }
                (None, None) => return Err(ServiceError::internal("a matrix without a file")),
            };
            let matrix = features::facts_under(&csr, name.or(declared_name), pattern, digest);
            drop((csr, held));
            // [`Blobs`] could do this, but it must happen under the lock of `publish`.
            let synced = staged.as_file().sync_all();
            synced.map_err(|error| ServiceError::of_io("a matrix file", error))?;
            Ok((matrix, staged.into_temp_path(), reserved))
        })
        .await??;
        self.publish(matrix, staged).await
    }

    /// Writes the file first and the row after it, so that a row always has its file. The lock keeps a deletion from
    /// interfering; rename and insertion are short, so one lock serves all matrices.
    async fn publish(&self, matrix: Matrix, staged: TempPath) -> Result<Uploaded> {
        if self.store.matrix(&matrix.digest).await?.is_none() {
            self.store.may_store(matrix.charged_bytes(), 1).await?;
        }
        // Where it takes long, nobody has to wait for it.
        let sent = self.inner.blobs.send_ahead(&staged, &matrix.digest).await?;
        let _alone = self.publishing().await?;
        // What is refused gets no place: the file would stay there, with nothing that names it.
        if self.store.matrix(&matrix.digest).await?.is_none() {
            self.store.may_store(matrix.charged_bytes(), 1).await?;
        }
        let missing = sent || !self.inner.blobs.exists(&matrix.digest).await?;
        self.inner.blobs.put_file(staged, Some(matrix.digest)).await?;
        if self.store.insert_matrix(&matrix).await? {
            return Ok(Uploaded { matrix, created: true });
        }
        // Another upload stored the same matrix first, or its file was lost or damaged; its name is kept.
        let known = self.store.matrix(&matrix.digest).await?;
        let matrix = known.ok_or_else(|| {
            ServiceError::internal(format!(
                "matrix {} was deleted while it was being stored",
                matrix.digest
            ))
        })?;
        if missing {
            tracing::warn!(matrix = %matrix.digest, "an upload replaced the matrix's missing file");
        }
        Ok(Uploaded { matrix, created: missing })
    }
}

/// A body as a file, which is removed when this is dropped, and the disk that it takes.
pub(super) struct Received {
    file: TempPath,
    _disk: Held,
}

impl Deref for Received {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.file
    }
}

/// What was packed on its way, unpacked by this process. Blocks.
fn decoded(packed: &Path, coding: Coding, settings: &ServiceSettings) -> Result<Received> {
    let failed = |error| ServiceError::of_io("an upload", error);
    let disk = settings.limits.disk.open(u64::MAX);
    let (packed, mut file) = (File::open(packed).map_err(failed)?, temporary(&settings.temp_dir)?);
    read::decode_file(&packed, coding, &settings.limits, (file.as_file_mut(), &disk))?;
    Ok(Received { file: file.into_temp_path(), _disk: disk })
}

/// A temporary file, which upkeep removes if this process is killed.
pub(super) fn temporary(folder: &Path) -> Result<NamedTempFile> {
    let made = tempfile::Builder::new().prefix(UPLOAD_PREFIX).tempfile_in(folder);
    made.map_err(|error| ServiceError::of_io("an upload's temporary file", error))
}

/// Streams the body to a file, and stops as soon as it is too long.
pub(super) async fn receive<S, E>(body: S, settings: &ServiceSettings) -> Result<Received>
where
    S: Stream<Item = std::result::Result<Bytes, E>> + Send,
    E: Display,
{
    let (folder, most) = (settings.temp_dir.clone(), settings.max_upload_bytes);
    let disk = settings.limits.disk.open(u64::MAX);
    let file = tokio::task::spawn_blocking(move || temporary(&folder)).await??;
    let (file, path) = file.into_parts();
    let mut out = BufWriter::with_capacity(WRITE_BUFFER, tokio::fs::File::from_std(file));
    let mut body = std::pin::pin!(body);
    let mut bytes = 0u64;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| {
            unreadable(format!("the upload was interrupted after {bytes} bytes: {error}"))
        })?;
        bytes += chunk.len() as u64;
        if bytes > most {
            let message =
                format!("the upload is larger than {most} bytes, the limit of this server");
            return Err(ServiceError::TooLarge { message });
        }
        disk.charge(chunk.len() as u64, 1, "the upload as it arrived")?;
        out.write_all(&chunk).await.map_err(|error| ServiceError::of_io("an upload", error))?;
    }
    out.flush().await.map_err(|error| ServiceError::of_io("an upload", error))?;
    histogram!("sparsetune_upload_bytes").record(bytes as f64);
    Ok(Received { file: path, _disk: disk })
}

/// Blocks. The file is removed at the end of this call, whatever the result and even if nobody waits for it.
fn parse(
    file: &Received,
    coding: Option<Coding>,
    limits: &Limits,
    permit: OwnedSemaphorePermit,
) -> Result<Read> {
    let started = Instant::now();
    let Parsed { csr, declared_name, held, .. } = read::read_path_coded(file, coding, limits)?;
    // Charged as everything that the following steps allocate.
    held.charge(features::memory(&csr).max(digest::MEMORY), 1, "the matrix's properties")?;
    let read = Read { held: Some(held), ..identified(csr, declared_name, permit) };
    histogram!("sparsetune_parse_seconds").record(started.elapsed().as_secs_f64());
    Ok(read)
}

fn identified(csr: Csr, declared_name: Option<String>, permit: OwnedSemaphorePermit) -> Read {
    let pattern = digest::pattern_digest(&csr);
    let digest = digest::digest(&csr, &pattern);
    Read { csr, pattern, digest, declared_name, staged: None, held: None, _permit: permit }
}

fn unreadable(message: String) -> ServiceError {
    ServiceError::Unreadable { message, line: None, byte: None }
}

fn not_written(error: canonical::CanonicalError) -> ServiceError {
    match error {
        canonical::CanonicalError::Io(cause) => ServiceError::of_io("a matrix file", cause),
        other => ServiceError::internal(other),
    }
}

#[cfg(test)]
mod tests {
    use super::ServiceError;
    use crate::sparse::read::{ReadError, ReadErrorKind};

    #[test]
    fn a_full_disk_passes_and_is_not_the_upload_s_fault() {
        let of = |kind| {
            ServiceError::from(ReadError {
                kind,
                message: "writing".to_owned(),
                line: None,
                byte: None,
                shortage: None,
            })
        };
        assert!(matches!(of(ReadErrorKind::StorageFull), ServiceError::Full(_)));
        assert!(matches!(of(ReadErrorKind::Io), ServiceError::Internal(_)));
    }
}
