//! The service's side while a process reads an upload: what it is given, and what it has made when it is gone.
//!
//! What the process says is not believed. It writes to descriptors of files of this process's own, and is gone before these are looked at.

use super::fenced::{Staged, distrusted, printable};
use super::{Received, temporary};
use crate::bundle::Extract;
use crate::domain::reading::{Answer, Order, Said, Wanted};
use crate::pool::{Ending, Host, Readers};
use crate::service::room::Room;
use crate::service::{Result, Service, ServiceError};
use crate::sparse::read::{Coding, Held, Limits, ReadError};
use crate::store::Blobs;
use async_trait::async_trait;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

/// Longest word for what memory is for, in characters.
const LONGEST_PLACE: usize = 60;

/// Answers what one reader asks for.
pub(super) struct Clerk {
    wanted: Wanted,
    pub(super) limits: Limits,
    memory: Held,
    disk: Held,
    blobs: Arc<dyn Blobs>,
    room: Arc<Room>,
    folder: PathBuf,
    spooled: bool,
    /// What is unpacked, where that is wanted.
    unpacked: Option<NamedTempFile>,
    /// The canonical form of a matrix.
    pub(super) staged: Option<Staged>,
    /// What is said of a bundle, its bytes, and the disk that it takes.
    extract: Option<(File, u64, Held)>,
    /// Why something was denied: the client is told this, and not what the reader makes of it.
    denied: Option<ServiceError>,
}

impl Service {
    /// Has a process read an upload; gives the name that the process says, and what it has written. It has ended.
    pub(super) async fn have_read(
        &self,
        readers: &Readers,
        wanted: Wanted,
        (upload, coding): (&Path, Option<Coding>),
    ) -> Result<(Option<String>, Clerk)> {
        let settings = &self.inner.settings;
        let limits = settings.limits.clone();
        let order = Order {
            wanted,
            coding: coding.map(|coding| coding.name().to_owned()),
            max_rows: limits.max_rows,
            max_cols: limits.max_cols,
            max_nnz: limits.max_nnz,
            max_decompressed_bytes: limits.max_decompressed_bytes,
            max_ratio: limits.max_ratio,
        };
        let failed = |error| ServiceError::of_io("an upload", error);
        let upload = tokio::fs::File::open(upload).await.map_err(failed)?.into_std().await;
        let mut clerk = Clerk {
            wanted,
            memory: limits.budget(),
            disk: limits.disk.open(u64::MAX),
            blobs: Arc::clone(&self.inner.blobs),
            room: Arc::clone(&self.inner.room),
            folder: settings.temp_dir.clone(),
            limits,
            spooled: false,
            unpacked: None,
            staged: None,
            extract: None,
            denied: None,
        };
        let ending = readers.read(&order, &upload, &mut clerk).await;
        if let Some(why) = clerk.denied.take() {
            return Err(why);
        }
        // What it was granted is free again, and is charged to this process by what there is to read.
        clerk.memory.keep(0);
        match ending? {
            Ending::Done { name } => Ok((name, clerk)),
            Ending::Refused(refusal) => Err(ReadError::from(refusal).into()),
        }
    }
}

impl Clerk {
    /// Gives back what the reader was granted of the disk.
    pub(super) fn give_disk(&self) {
        self.disk.keep(0);
    }

    /// What was packed on its way, unpacked, with the disk that it takes. Blocks.
    pub(super) fn unpacked(&mut self) -> Result<Option<Received>> {
        let Some(file) = self.unpacked.take() else { return Ok(None) };
        let facts = file.as_file().metadata();
        let bytes = facts.map_err(|error| ServiceError::of_io("an upload", error))?.len();
        if bytes > self.disk.bytes() {
            return Err(distrusted("it wrote more than it was granted"));
        }
        let disk = std::mem::replace(&mut self.disk, self.limits.disk.open(u64::MAX));
        disk.keep(bytes);
        Ok(Some(Received { file: file.into_temp_path(), _disk: disk }))
    }

    /// What is kept of the bundle in a file of so many bytes. Blocks.
    pub(super) fn extract(&mut self, bundle: u64) -> Result<Extract> {
        let Some((file, announced, _disk)) = self.extract.take() else {
            return Err(distrusted("it asked for no file to write to"));
        };
        let failed = |error| ServiceError::of_io("a bundle", error);
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes != announced {
            return Err(distrusted(format!("it wrote {bytes} bytes instead of {announced}")));
        }
        let held = self.limits.budget();
        held.charge(Extract::memory(bytes), 1, "what is kept of the bundle")?;
        // At most [`Extract::MOST`].
        let mut json = vec![0; bytes as usize];
        file.read_exact_at(&mut json, 0).map_err(failed)?;
        Extract::read(&json, bundle)
            .map_err(|error| distrusted(format!("what it said of the bundle is wrong: {error}")))
    }

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
        let failed = |error| ServiceError::of_io("unpacked bytes", error);
        if self.wanted == Wanted::Matrix {
            let spool = self.limits.spool.clone();
            let file = tokio::task::spawn_blocking(move || spool.file()).await?;
            return Ok((Answer::File, Some(file.map_err(failed)?)));
        }
        let folder = self.folder.clone();
        let file = tokio::task::spawn_blocking(move || temporary(&folder)).await??;
        let output = file.reopen().map_err(failed)?;
        self.unpacked = Some(file);
        Ok((Answer::File, Some(output)))
    }

    async fn output(&mut self, bytes: u64) -> Result<(Answer, Option<File>)> {
        if self.staged.is_some() || self.extract.is_some() {
            return Err(distrusted("it asked for a second file to write to"));
        }
        let output = match self.wanted {
            Wanted::Matrix => self.staged(bytes).await?,
            Wanted::Bundle if bytes <= Extract::MOST => self.said(bytes).await?,
            Wanted::Bundle | Wanted::Unpacked => {
                return Err(distrusted(format!("it asked for a file of {bytes} bytes")));
            }
        };
        Ok((Answer::File, Some(output)))
    }

    /// A file for the canonical form.
    async fn staged(&mut self, bytes: u64) -> Result<File> {
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
        Ok(output)
    }

    /// A file for what is said of a bundle.
    async fn said(&mut self, bytes: u64) -> Result<File> {
        let disk = self.limits.disk.open(u64::MAX);
        disk.charge(bytes, 1, "what is kept of the bundle")?;
        let spool = self.limits.spool.clone();
        let file = tokio::task::spawn_blocking(move || spool.file()).await?;
        let file = file.and_then(|file| Ok((file.try_clone()?, file)));
        let (own, output) = file.map_err(|error| ServiceError::of_io("a bundle", error))?;
        self.extract = Some((own, bytes, disk));
        Ok(output)
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
