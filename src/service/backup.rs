//! Backups: a folder with a copy of the database and of every blob that it names, made while a server runs.

use super::whole::name_of;
use crate::domain::{Digest, Timestamp};
use crate::store::{
    BlobError, BlobPlace, Blobs, LocalBlobs, SqliteStore, StoreError, Upkeep as _, private,
};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// The files of a backup.
const DATABASE: &str = "sparsetune.db";
const BLOBS: &str = "blobs";
/// Written last: without it a backup is not complete.
const MANIFEST: &str = "backup.json";

const VERSION: u32 = 1;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    /// The version of the program that made it.
    pub program: String,
    /// The id of the store.
    pub store: String,
    pub made_at: String,
    pub blobs: u64,
    /// Of the blobs.
    pub bytes: u64,
    /// Blobs that the database names, and that were missing or damaged where the backup was made.
    pub without: Vec<Digest>,
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("{} is not empty: a backup is written to a folder of its own", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} is no complete backup: {why}", path.display())]
    NoBackup { path: PathBuf, why: String },
    #[error(
        "{} is there already: a backup is restored to where no store is, so move it away first; blobs of the store that was saved may \
         stay if its database alone was lost (--keep-blobs)",
        .0.display()
    )]
    InTheWay(PathBuf),
    #[error(
        "the blobs are those of store {owner}, and the backup is of store {saved}: restore it to an empty folder"
    )]
    OfAnother { owner: String, saved: String },
    #[error("the database of the backup is damaged: {0}")]
    Damaged(String),
    #[error("the store {}: {source}", path.display())]
    Store { path: PathBuf, source: StoreError },
    #[error("the blobs: {0}")]
    Blobs(#[from] BlobError),
}

type Result<T> = std::result::Result<T, BackupError>;

/// Copies database and blobs of a store, which others may use meanwhile, to a folder.
///
/// # Errors
/// The folder is not empty, or something cannot be read or written. Missing and damaged blobs are no error: the manifest names
/// them.
pub async fn backup(store: &Path, blobs: impl Into<BlobPlace>, to: &Path) -> Result<Manifest> {
    let folder = |source| BackupError::Folder { path: to.to_owned(), source };
    private::folder(to).map_err(folder)?;
    if std::fs::read_dir(to).map_err(folder)?.next().is_some() {
        return Err(BackupError::NotEmpty(to.to_owned()));
    }
    close_to_others(to).map_err(folder)?;
    let copy = to.join(DATABASE);
    let of_copy = |source| BackupError::Store { path: copy.clone(), source };
    // SQLite writes into an empty file as into a new one.
    private::file(&copy).map_err(folder)?;
    SqliteStore::copy(store, &copy)
        .await
        .map_err(|source| BackupError::Store { path: store.to_owned(), source })?;
    let database = SqliteStore::open(&copy).await.map_err(of_copy)?;
    let named = sorted(database.named_blobs().await.map_err(of_copy)?);
    let id = database.id().await.map_err(of_copy)?;
    database.close().await;
    let (from, target) = (blobs.into().open().await?, LocalBlobs::open(&to.join(BLOBS))?);
    let mut manifest = Manifest {
        version: VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        store: id.clone(),
        made_at: Timestamp::now().to_rfc3339(),
        blobs: 0,
        bytes: 0,
        without: Vec::new(),
    };
    for digest in named {
        match copied(from.as_ref(), &target, &digest).await? {
            Some(bytes) => {
                manifest.blobs += 1;
                manifest.bytes += bytes;
            }
            None => manifest.without.push(digest),
        }
    }
    target.give_to(&id).await?;
    let text = serde_json::to_string_pretty(&manifest).map_err(|error| folder(error.into()))?;
    let mut file = File::create(to.join(MANIFEST)).map_err(folder)?;
    writeln!(file, "{text}").and_then(|()| file.sync_all()).map_err(folder)?;
    File::open(to).and_then(|it| it.sync_all()).map_err(folder)?;
    Ok(manifest)
}

/// What a restoration finds where the blobs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing. The restored store is another than the one that was saved, which may go on: it gets an id of its own.
    Empty,
    /// The blobs of the store that was saved, which lost its database. It keeps its id, and gets the blobs that it lacks.
    ItsBlobs,
}

/// Makes a store of a backup, where none is. The database comes last, so that what is interrupted is no store, and can be done
/// again. The manifest that is returned names the store as it is now.
///
/// # Errors
/// The backup is incomplete or damaged, a store is there already, or something cannot be read or written.
pub async fn restore(
    from: &Path,
    store: &Path,
    blobs: impl Into<BlobPlace>,
    into: Target,
) -> Result<Manifest> {
    let no_backup = |why: String| BackupError::NoBackup { path: from.to_owned(), why };
    let text = std::fs::read_to_string(from.join(MANIFEST));
    let text = text.map_err(|error| no_backup(format!("{MANIFEST}: {error}")))?;
    let mut manifest: Manifest =
        serde_json::from_str(&text).map_err(|error| no_backup(format!("{MANIFEST}: {error}")))?;
    if manifest.version != VERSION {
        return Err(no_backup(format!("its version is {}", manifest.version)));
    }
    free(store)?;
    let source = LocalBlobs::open(&from.join(BLOBS))?;
    let place = blobs.into();
    let target = place.open().await?;
    match into {
        Target::Empty if target.is_being_filled().await? => {}
        Target::Empty if !target.all().await?.is_empty() => {
            return Err(BackupError::InTheWay(place.to_string().into()));
        }
        Target::Empty => target.begin_to_fill().await?,
        Target::ItsBlobs => match target.owner().await? {
            Some(owner) if owner != manifest.store => {
                return Err(BackupError::OfAnother { owner, saved: manifest.store });
            }
            _ => {}
        },
    }
    let staged = with_end(store, ".restoring");
    let beside = |source| BackupError::Folder { path: staged.clone(), source };
    // Of a restoration that was interrupted.
    clear(&staged).map_err(beside)?;
    private_copy(&from.join(DATABASE), &staged).map_err(beside)?;
    let of_staged = |source| BackupError::Store { path: staged.clone(), source };
    let database = SqliteStore::open(&staged).await.map_err(of_staged)?;
    if let Some(fault) = database.faults().await.map_err(of_staged)?.into_iter().next() {
        return Err(BackupError::Damaged(fault));
    }
    manifest.store = match into {
        Target::Empty => database.renew_id().await.map_err(of_staged)?,
        Target::ItsBlobs => database.id().await.map_err(of_staged)?,
    };
    let named = sorted(database.named_blobs().await.map_err(of_staged)?);
    database.close().await;
    target.check_with(name_of);
    manifest.without.clear();
    for digest in named {
        let there = into == Target::ItsBlobs && target.exists(&digest).await?;
        if !there && copied(&source, target.as_ref(), &digest).await?.is_none() {
            manifest.without.push(digest);
        }
    }
    File::open(&staged).and_then(|file| file.sync_all()).map_err(beside)?;
    let of_store = |source| BackupError::Store { path: store.to_owned(), source };
    let closed = SqliteStore::keep_closed(store).await.map_err(of_store)?;
    free(store)?;
    // First whose the blobs are: from the next step on the store is one that others open.
    target.give_to(&manifest.store).await?;
    publish(&staged, store)?;
    drop(closed);
    let parent = store.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new("."))).and_then(|it| it.sync_all()).map_err(beside)?;
    target.end_filling().await?;
    clear(&staged).map_err(beside)?;
    Ok(manifest)
}

/// Whether nothing is where the database goes. SQLite would replay a log that a lost one left behind into the restored one.
fn free(store: &Path) -> Result<()> {
    let mut found = [""].iter().chain(&LOGS).map(|end| with_end(store, end));
    match found.find(|path| path.exists()) {
        Some(path) => Err(BackupError::InTheWay(path)),
        None => Ok(()),
    }
}

/// Gives a database its name, unless another process has made one of this name meanwhile, which would lose what it has taken in.
fn publish(staged: &Path, store: &Path) -> Result<()> {
    let named =
        TempPath::try_from_path(staged).and_then(|staged| Ok(staged.persist_noclobber(store)?));
    named.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BackupError::InTheWay(store.to_owned()),
        _ => BackupError::Folder { path: store.to_owned(), source },
    })
}

/// Copies a file whatever its permissions are to one that only its owner may use.
fn private_copy(from: &Path, to: &Path) -> io::Result<()> {
    private::file(to)?;
    io::copy(&mut File::open(from)?, &mut File::options().write(true).open(to)?).map(drop)
}

/// What SQLite keeps beside a database.
const LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Removes a database and what belongs to it.
fn clear(database: &Path) -> io::Result<()> {
    for end in ["", ".lock"].iter().chain(&LOGS) {
        match std::fs::remove_file(with_end(database, end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// In one order, so that equal stores give equal manifests.
fn sorted(named: HashSet<Digest>) -> Vec<Digest> {
    let mut named: Vec<Digest> = named.into_iter().collect();
    named.sort_unstable();
    named
}

/// Copies one blob and compares the copy with its digest; its bytes, or `None` if it is missing or damaged.
async fn copied(from: &dyn Blobs, to: &dyn Blobs, digest: &Digest) -> Result<Option<u64>> {
    let mut judged = false;
    loop {
        let file = match from.local_copy(digest).await {
            Err(BlobError::NotFound(_)) => return Ok(None),
            found => found?,
        };
        let staged = to.stage().await?;
        let copy = move || {
            let bytes = std::fs::copy(&file, &staged)?;
            io::Result::Ok((name_of(staged.path())?, bytes, staged.into_temp_path()))
        };
        let done = tokio::task::spawn_blocking(copy).await.map_err(io::Error::other);
        let (name, bytes, staged) = match done.and_then(|done| done) {
            // Deleted in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            done => done.map_err(BlobError::from)?,
        };
        if name == Some(*digest) {
            to.put_file(staged, Some(*digest)).await?;
            return Ok(Some(bytes));
        }
        // What this host has of a blob that is elsewhere may be spoilt, while that is sound: it is read there before it is left out.
        if std::mem::replace(&mut judged, true) || !from.forget_copy(digest).await? {
            return Ok(None);
        }
    }
}

/// A backup has everything that a token protects.
fn close_to_others(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
}
