//! An upload that is read behind the fence, by a process of its own.
//!
//! What the process says is not believed: it writes a canonical file, to a descriptor of this process's own staged file, and is gone
//! before that file is looked at. This process then reads the file as it reads any stored matrix, with every bound and order checked,
//! and computes digests and properties from what it has read. So the worst that a reader can do is to hand in another matrix than the
//! upload has, under that matrix's own digest, as its client could have done without it.

use super::{Read, Received, identified};
use crate::domain::LONGEST_NAME;
use crate::domain::reading::{Answer, Order, Said};
use crate::pool::{Ending, Host, ReaderError, Readers};
use crate::service::room::{Reserved, Room};
use crate::service::{Result, Service, ServiceError};
use crate::sparse::canonical::{self, CanonicalError};
use crate::sparse::read::{Coding, Held, Limits, ReadError};
use crate::sparse::{digest, features};
use crate::store::Blobs;
use async_trait::async_trait;
use metrics::histogram;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;
use tempfile::NamedTempFile;
use tokio::sync::OwnedSemaphorePermit;

/// Longest word for what memory is for, in characters.
const LONGEST_PLACE: usize = 60;

/// The canonical file of a matrix, without its digests.
pub(super) struct Staged {
    pub(super) file: NamedTempFile,
    bytes: u64,
    /// Its room, or why it may not be stored, unless it is stored already.
    room: Result<Reserved>,
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

/// Answers what one reader asks for.
struct Clerk {
    limits: Limits,
    memory: Held,
    disk: Held,
    blobs: Arc<dyn Blobs>,
    room: Arc<Room>,
    spooled: bool,
    staged: Option<Staged>,
    /// Why something was denied: the client is told this, and not what the reader makes of it.
    denied: Option<ServiceError>,
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
        let limits = self.inner.settings.limits.clone();
        let order = Order {
            coding: coding.map(|coding| coding.name().to_owned()),
            max_rows: limits.max_rows,
            max_cols: limits.max_cols,
            max_nnz: limits.max_nnz,
            max_decompressed_bytes: limits.max_decompressed_bytes,
            max_ratio: limits.max_ratio,
        };
        let failed = |error| ServiceError::of_io("an upload", error);
        let upload = tokio::fs::File::open(&**file).await.map_err(failed)?.into_std().await;
        let mut clerk = Clerk {
            memory: limits.budget(),
            disk: limits.disk.open(u64::MAX),
            blobs: Arc::clone(&self.inner.blobs),
            room: Arc::clone(&self.inner.room),
            limits,
            spooled: false,
            staged: None,
            denied: None,
        };
        let ending = readers.read(&order, &upload, &mut clerk).await;
        if let Some(why) = clerk.denied {
            return Err(why);
        }
        let name = match ending? {
            Ending::Done { name } => name,
            Ending::Refused(refusal) => return Err(ReadError::from(refusal).into()),
        };
        let staged = clerk.staged.ok_or_else(|| distrusted("it asked for no file to write to"))?;
        // What it was granted is free again, and is charged to this process by what there is to read.
        drop((clerk.memory, clerk.disk));
        let read = move || checked(staged, name, &clerk.limits, permit);
        let read = tokio::task::spawn_blocking(read).await??;
        histogram!("sparsetune_parse_seconds").record(started.elapsed().as_secs_f64());
        Ok(read)
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
fn printable(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}

fn distrusted(how: impl Into<String>) -> ServiceError {
    ReaderError::Garbage(how.into()).into()
}

impl Clerk {
    fn grant(held: &Held, least: u64, most: u64, place: &str) -> Result<(Answer, Option<File>)> {
        let place = printable(place, LONGEST_PLACE);
        let most = most.max(least);
        let bytes = match held.charge(most, 1, place.clone()) {
            Ok(()) => most,
            Err(_) => held.charge(least, 1, place).map(|()| least)?,
        };
        Ok((Answer::Granted { bytes }, None))
    }

    async fn spool(&mut self) -> Result<(Answer, Option<File>)> {
        if std::mem::replace(&mut self.spooled, true) {
            return Err(distrusted("it asked for a second file for unpacked bytes"));
        }
        let spool = self.limits.spool.clone();
        let file = tokio::task::spawn_blocking(move || spool.file()).await?;
        let file = file.map_err(|error| ServiceError::of_io("unpacked bytes", error))?;
        Ok((Answer::File, Some(file)))
    }

    async fn output(&mut self, bytes: u64) -> Result<(Answer, Option<File>)> {
        if self.staged.is_some() {
            return Err(distrusted("it asked for a second file to write to"));
        }
        let file = self.blobs.stage().await?;
        let room = Arc::clone(&self.room);
        let room = tokio::task::spawn_blocking(move || room.take(bytes)).await?;
        if let Err(why) = &room {
            // What is stored already needs no room, which is known only once it is written: to disk for temporary files.
            self.disk.charge(bytes, 1, "the matrix").map_err(|_| why.clone())?;
        }
        let output = file.reopen();
        let output = output.map_err(|error| ServiceError::of_io("a matrix file", error))?;
        self.staged = Some(Staged { file, bytes, room });
        Ok((Answer::File, Some(output)))
    }
}

#[async_trait]
impl Host for Clerk {
    async fn answer(&mut self, said: Said) -> (Answer, Option<File>) {
        let answered = match said {
            Said::Memory { least, most, place } => Self::grant(&self.memory, least, most, &place),
            Said::Disk { least, most, place } => Self::grant(&self.disk, least, most, &place),
            Said::Spool => self.spool().await,
            Said::Output { bytes } => self.output(bytes).await,
            Said::Done { .. } | Said::Refused(_) => Err(distrusted("it ended twice")),
        };
        answered.unwrap_or_else(|why| {
            self.denied.get_or_insert(why);
            (Answer::Denied, None)
        })
    }
}
