//! An upload that is read behind the fence, by a process of its own, unless this process reads what is its own (`Tuner`, commands).
//!
//! Of a matrix, this process reads the file that the other wrote as it reads any stored matrix, with every bound and order checked, and
//! computes digests and properties from what it has read. So the worst that a reader can do is to hand in another matrix than the
//! upload has, under that matrix's own digest, as its client could have done without it.
//!
//! Of a bundle, it takes the plan, which is checked as far as the service relies on it, and the places of files, whose contents are compared
//! with the digests that the plan names: the worst is a plan that its bundle does not have, for the same client.

use super::{Read, Received, decoded, identified};
use crate::bundle::{BundleError, Extract};
use crate::domain::LONGEST_NAME;
use crate::domain::reading::Wanted;
use crate::pool::{ReaderError, Readers};
use crate::service::room::Reserved;
use crate::service::{Result, Service, ServiceError};
use crate::sparse::canonical::{self, CanonicalError};
use crate::sparse::read::{Coding, Limits};
use crate::sparse::{digest, features};
use metrics::histogram;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tempfile::NamedTempFile;
use tokio::sync::OwnedSemaphorePermit;

/// The canonical file of a matrix, without its digests.
pub(super) struct Staged {
    pub(super) file: NamedTempFile,
    pub(super) bytes: u64,
    /// Its room, or why it may not be stored, unless it is stored already.
    pub(super) room: Result<Reserved>,
}

impl Staged {
    /// The file, if there is room for it.
    pub(super) fn into_file(self) -> Result<(NamedTempFile, Reserved)> {
        Ok((self.file, self.room?))
    }

    /// It is not needed: the matrix is stored already.
    pub(super) async fn discard(self) {
        if let Ok(room) = self.room {
            room.give().await;
        }
    }
}

impl Service {
    /// Has the upload read by a process of its own.
    pub(super) async fn read_fenced(
        &self,
        readers: &Readers,
        file: &Received,
        coding: Option<Coding>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Read> {
        let started = Instant::now();
        let (name, mut clerk) = self.have_read(readers, Wanted::Matrix, (file, coding)).await?;
        clerk.give_disk();
        let staged = clerk.staged.take();
        let staged = staged.ok_or_else(|| distrusted("it asked for no file to write to"))?;
        let read = move || checked(staged, name, &clerk.limits, permit);
        let read = tokio::task::spawn_blocking(read).await??;
        histogram!("sparsetune_parse_seconds").record(started.elapsed().as_secs_f64());
        Ok(read)
    }

    /// What is kept of a bundle, and the file that it was unpacked to if it was packed on its way. The caller has a permit to read.
    pub(in crate::service) async fn read_bundle(
        &self,
        upload: &Path,
        coding: Option<Coding>,
    ) -> Result<(Extract, Option<Received>)> {
        let path = upload.to_owned();
        let failed = |error| ServiceError::of_io("a bundle", error);
        let Some(readers) = &self.inner.readers else {
            let settings = self.inner.settings.clone();
            let read = move || {
                let unpacked =
                    coding.map(|coding| decoded(&path, coding, &settings)).transpose()?;
                let file = File::open(unpacked.as_deref().unwrap_or(&path)).map_err(failed)?;
                Ok((Extract::of_file(&file, &settings.limits.memory)?, unpacked))
            };
            return tokio::task::spawn_blocking(read).await?;
        };
        let (_, mut clerk) = self.have_read(readers, Wanted::Bundle, (upload, coding)).await?;
        let read = move || {
            let unpacked = clerk.unpacked()?;
            if unpacked.is_some() != coding.is_some() {
                return Err(distrusted("it unpacked what was not packed, or did not"));
            }
            let bundle = unpacked.as_deref().unwrap_or(&path);
            let bytes = std::fs::metadata(bundle).map_err(failed)?.len();
            Ok((clerk.extract(bytes)?, unpacked))
        };
        tokio::task::spawn_blocking(read).await?
    }

    /// What was received, unpacked if it was packed on its way.
    pub(in crate::service) async fn unpacked(
        &self,
        received: Received,
        coding: Option<Coding>,
    ) -> Result<Received> {
        let Some(coding) = coding else { return Ok(received) };
        let _permit = self.inner.parses.clone().acquire_owned().await?;
        let Some(readers) = &self.inner.readers else {
            let settings = self.inner.settings.clone();
            return tokio::task::spawn_blocking(move || decoded(&received, coding, &settings))
                .await?;
        };
        let asked = self.have_read(readers, Wanted::Unpacked, (&received, Some(coding)));
        let (_, mut clerk) = asked.await?;
        let unpacked = tokio::task::spawn_blocking(move || clerk.unpacked()).await??;
        unpacked.ok_or_else(|| distrusted("it asked for no file to unpack to"))
    }
}

/// Why this process refuses a bundle.
impl From<BundleError> for ServiceError {
    fn from(error: BundleError) -> Self {
        match error {
            BundleError::Io(error) => Self::of_io("a bundle", error),
            BundleError::Memory(error) => error.into(),
            error => Self::BadBundle { message: error.to_string() },
        }
    }
}

/// Reads what a reader wrote, as any stored matrix is read. Blocks.
fn checked(
    staged: Staged,
    name: Option<String>,
    limits: &Limits,
    permit: OwnedSemaphorePermit,
) -> Result<Read> {
    let file = staged.file.as_file();
    let facts = file.metadata().map_err(|error| ServiceError::of_io("a matrix file", error))?;
    if facts.len() != staged.bytes {
        let (written, bytes) = (facts.len(), staged.bytes);
        return Err(distrusted(format!("it wrote {written} bytes instead of {bytes}")));
    }
    let (csr, _, held) = canonical::read_in(file, &limits.memory).map_err(|error| match error {
        CanonicalError::Memory(error) => (*error).into(),
        CanonicalError::Io(error) => ServiceError::of_io("a matrix file", error),
        error => distrusted(format!("what it wrote cannot be read: {error}")),
    })?;
    held.charge(features::memory(&csr).max(digest::MEMORY), 1, "the matrix's properties")?;
    let name = name.map(|name| printable(&name, LONGEST_NAME)).filter(|name| !name.is_empty());
    let read = identified(csr, name, permit);
    Ok(Read { held: Some(Arc::new(held)), staged: Some(staged), ..read })
}

/// A text of a reader, as far as it may be shown.
pub(super) fn printable(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}

pub(super) fn distrusted(how: impl Into<String>) -> ServiceError {
    ReaderError::Garbage(how.into()).into()
}
