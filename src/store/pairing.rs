//! A database and the blobs that it names belong together. Neither is opened with another's: upkeep would remove every blob that
//! the database does not name.

use super::{
    BlobError, Blobs, Cause, LocalBlobs, SqlStore, StoreError, StoreOptions, StorePlace, Upkeep,
};
use crate::domain::Digest;
use std::io;
use std::path::{Path, PathBuf};

/// Why a database and a folder of blobs are not opened together.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open the store {place} (data.store): {source}")]
    Store { place: StorePlace, source: StoreError },
    #[error("cannot open the blobs {} (data.blobs): {source}", path.display())]
    Blobs { path: PathBuf, source: BlobError },
    /// Another process kept the database locked for as long as a writer waits.
    #[error(
        "the database {place} is busy: another process kept it locked all the time that a writer waits. Try again, or end that process \
         ({source})"
    )]
    Busy { place: StorePlace, source: StoreError },
    #[error(
        "{} cannot be written: {source}; the data folder needs a file system and an owner that let this user write (data.dir)",
        path.display()
    )]
    ReadOnly { path: PathBuf, source: Cause },
    #[error(
        "the database {place} cannot be written: {source}; the user of its URL needs the rights to change it, and the server must be no replica"
    )]
    ReadOnlyServer { place: StorePlace, source: StoreError },
    /// The database is missing, and a new one would know none of the blobs.
    #[error(
        "there is no database {store}, but {} has blobs of one. If it was lost, {PUT_BACK}; for a new store, move the blobs away; {ADOPT}",
        blobs.display()
    )]
    NoDatabase { store: StorePlace, blobs: PathBuf },
    /// What is there is not complete, and the database to come names blobs that a new one would not know.
    #[error(
        "a backup is being restored to {}, or was until `sparsetune restore` was interrupted: wait for its end, or do it again; to give it \
         up, remove the folder",
        blobs.display()
    )]
    Restoring { blobs: PathBuf },
    /// The folder says that it belongs to another database, or does not say and the database names none of its blobs.
    #[error(
        "the database {store} and the blobs {} are not of one store: set data.store and data.blobs to what belongs together. If the \
         database of these blobs was lost, move this one away, and {PUT_BACK}; {ADOPT}",
        blobs.display()
    )]
    Foreign { store: StorePlace, blobs: PathBuf },
}

const PUT_BACK: &str = "put it back from a backup (`sparsetune restore --keep-blobs` does, and brings blobs that are missing)";
const ADOPT: &str = "`sparsetune fsck --adopt` gives the blobs to the database that is configured, which is created if it is missing, \
    and those that it does not name are then removed: to the trash after data.blob_grace_h, from there after as long again";

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        Self::other(error)
    }
}

/// How a database and its blobs are opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening {
    pub store: StoreOptions,
    /// Whether blobs of another store, or of an unknown one, become those of this database.
    pub adopt: bool,
}

/// Opens a database and its blobs, or creates both.
///
/// # Errors
/// See [`OpenError`]; no blob has been changed if they do not belong together.
pub async fn open(
    store: impl Into<StorePlace>,
    folder: &Path,
) -> Result<(SqlStore, LocalBlobs), OpenError> {
    open_with(store, folder, Opening::default()).await
}

/// [`open`], but blobs of another store, or of an unknown one, become those of this database.
///
/// # Errors
/// Either cannot be opened.
pub async fn adopt(
    store: impl Into<StorePlace>,
    folder: &Path,
) -> Result<(SqlStore, LocalBlobs), OpenError> {
    open_with(store, folder, Opening { adopt: true, ..Opening::default() }).await
}

/// [`open`] in the given way.
///
/// # Errors
/// See [`OpenError`].
pub async fn open_with(
    store: impl Into<StorePlace>,
    folder: &Path,
    how: Opening,
) -> Result<(SqlStore, LocalBlobs), OpenError> {
    let place = store.into();
    let of_blobs = |source: BlobError| OpenError::Blobs { path: folder.to_owned(), source };
    let of_store = |source| match source {
        StoreError::Busy(_) => OpenError::Busy { place: place.clone(), source },
        _ => OpenError::Store { place: place.clone(), source },
    };
    let io = |error: io::Error| of_blobs(error.into());
    let blobs = LocalBlobs::open(folder).map_err(of_blobs)?;
    let filling = blobs.is_being_filled().map_err(io)?;
    if filling && place.is_missing() {
        return Err(OpenError::Restoring { blobs: folder.to_owned() });
    }
    if !how.adopt && place.is_missing() && !blobs.all().map_err(io)?.is_empty() {
        let (store, blobs) = (place.clone(), folder.to_owned());
        return Err(OpenError::NoDatabase { store, blobs });
    }
    let store = place.open(how.store).await.map_err(of_store)?;
    // A folder that cannot be written would otherwise look like a device that cannot be registered.
    store.check_writable().await.map_err(|source| match source {
        StoreError::Busy(_) => of_store(source),
        _ => match place.file() {
            Some(file) => OpenError::ReadOnly { path: file.to_owned(), source: source.into() },
            None => OpenError::ReadOnlyServer { place: place.clone(), source },
        },
    })?;
    blobs
        .stage()
        .await
        .map_err(|source| OpenError::ReadOnly { path: folder.to_owned(), source: source.into() })?;
    let id = store.id().await.map_err(of_store)?;
    let owner = blobs.owner().map_err(io)?;
    if owner.as_ref() == Some(&id) {
        if filling {
            // The restoration was interrupted between its last two steps.
            blobs.end_filling().map_err(io)?;
        }
        return Ok((store, blobs));
    }
    // Of another database, which came between. A restoration may have begun since the folder was looked at.
    let filling = blobs.is_being_filled().map_err(io)?;
    if filling && !how.adopt {
        store.close().await;
        return Err(OpenError::Restoring { blobs: folder.to_owned() });
    }
    let present = blobs.all().map_err(io)?;
    let known = present.is_empty()
        || owner.is_none() && names_any(&store, &present).await.map_err(of_store)?;
    if !known && !how.adopt {
        store.close().await;
        let (store, blobs) = (place.clone(), folder.to_owned());
        return Err(OpenError::Foreign { store, blobs });
    }
    // The folder says it for good: a loss of power that undid the id of a new database would leave it with blobs of another.
    store.checkpoint().await.map_err(of_store)?;
    blobs.give_to(&id).and_then(|()| blobs.end_filling()).map_err(io)?;
    Ok((store, blobs))
}

/// Whether blobs of a folder that does not say whose it is, as those of earlier versions do not, may be this database's: it names
/// one of them. A database of an earlier version that names no blob at all may have left these behind; then nothing tells whose
/// they are, and what is removed lies in the trash first.
async fn names_any(store: &SqlStore, present: &[Digest]) -> Result<bool, StoreError> {
    let named = store.named_blobs().await?;
    if !named.is_empty() {
        return Ok(present.iter().any(|digest| named.contains(digest)));
    }
    let earlier = store.is_of_earlier_version().await?;
    if earlier {
        tracing::warn!(
            blobs = present.len(),
            "the database names no blob, and the folder does not say whose it is: taken for its own"
        );
    }
    Ok(earlier)
}
