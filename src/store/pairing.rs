//! A database and the blobs that it names belong together. Neither is opened with another's: upkeep would remove every blob that
//! the database does not name.

use super::{
    BlobError, BlobPlace, Blobs, Cause, SqlStore, StoreError, StoreOptions, StorePlace, Upkeep,
};
use crate::domain::Digest;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a database and blobs are not opened together.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open the store {place} (data.store): {source}")]
    Store { place: StorePlace, source: StoreError },
    #[error("cannot open the blobs {place} (data.blobs): {source}")]
    Blobs { place: BlobPlace, source: BlobError },
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
        "there is no database {store}, but {blobs} has blobs of one. If it was lost, {PUT_BACK}; for a new store, move the blobs away; {ADOPT}"
    )]
    NoDatabase { store: StorePlace, blobs: BlobPlace },
    /// What is there is not complete, and the database to come names blobs that a new one would not know.
    #[error(
        "a backup is being restored to {blobs}, or was until `sparsetune restore` was interrupted: wait for its end, or do it again; to \
         give it up, remove what is there"
    )]
    Restoring { blobs: BlobPlace },
    /// What goes on under its name is another database, whose blobs upkeep of this one would remove.
    #[error(
        "the store {store} was moved to {to}, and goes on there: set data.store to that, and end whoever uses this one. {ADOPT}, and makes \
         it one that is used again"
    )]
    Moved { store: StorePlace, to: String },
    /// Its copying was interrupted, or goes on.
    #[error(
        "the store {store} is not complete: `sparsetune migrate` is copying it there, or was until it was interrupted. Wait for its end, or do \
         it again; the store that is copied goes on until then"
    )]
    Arriving { store: StorePlace },
    /// The blobs say that they belong to another database, or do not say and the database names none of them.
    #[error(
        "the database {store} and the blobs {blobs} are not of one store: set data.store and data.blobs to what belongs together. If the \
         database of these blobs was lost, move this one away, and {PUT_BACK}; {ADOPT}"
    )]
    Foreign { store: StorePlace, blobs: BlobPlace },
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
    blobs: impl Into<BlobPlace>,
) -> Result<(SqlStore, Arc<dyn Blobs>), OpenError> {
    open_with(store, blobs, Opening::default()).await
}

/// [`open`], but blobs of another store, or of an unknown one, become those of this database.
///
/// # Errors
/// Either cannot be opened.
pub async fn adopt(
    store: impl Into<StorePlace>,
    blobs: impl Into<BlobPlace>,
) -> Result<(SqlStore, Arc<dyn Blobs>), OpenError> {
    open_with(store, blobs, Opening { adopt: true, ..Opening::default() }).await
}

/// [`open`] in the given way.
///
/// # Errors
/// See [`OpenError`].
pub async fn open_with(
    store: impl Into<StorePlace>,
    blobs: impl Into<BlobPlace>,
    how: Opening,
) -> Result<(SqlStore, Arc<dyn Blobs>), OpenError> {
    let place = store.into();
    let there = blobs.into();
    let of_blobs = |source: BlobError| OpenError::Blobs { place: there.clone(), source };
    let of_store = |source| match source {
        StoreError::Busy(_) => OpenError::Busy { place: place.clone(), source },
        _ => OpenError::Store { place: place.clone(), source },
    };
    let blobs = there.open().await.map_err(of_blobs)?;
    let filling = blobs.is_being_filled().await.map_err(of_blobs)?;
    if filling && place.is_missing() {
        return Err(OpenError::Restoring { blobs: there });
    }
    if !how.adopt && place.is_missing() && !blobs.all().await.map_err(of_blobs)?.is_empty() {
        return Err(OpenError::NoDatabase { store: place, blobs: there });
    }
    let store = place.open(how.store).await.map_err(of_store)?;
    // A folder that cannot be written would otherwise look like a device that cannot be registered.
    store.check_writable().await.or_else(|source| match source {
        // It was moved, which is told below.
        StoreError::InUse(_) => Ok(()),
        StoreError::Busy(_) => Err(of_store(source)),
        _ => Err(match place.file() {
            Some(file) => OpenError::ReadOnly { path: file.to_owned(), source: source.into() },
            None => OpenError::ReadOnlyServer { place: place.clone(), source },
        }),
    })?;
    let unwritable = |source: BlobError| {
        let path = there.folder().to_owned();
        OpenError::ReadOnly { path, source: source.into() }
    };
    blobs.stage().await.map_err(unwritable)?;
    if let Some(to) = store.moved_to().await.map_err(of_store)?
        && !how.adopt
    {
        store.close().await;
        return Err(OpenError::Moved { store: place, to });
    }
    if !how.adopt && store.is_arriving().await.map_err(of_store)? {
        store.close().await;
        return Err(OpenError::Arriving { store: place });
    }
    let id = store.id().await.map_err(of_store)?;
    let owner = blobs.owner().await.map_err(of_blobs)?;
    if owner.as_ref() == Some(&id) {
        if how.adopt {
            store.stays().await.map_err(of_store)?;
        }
        if filling {
            // The restoration was interrupted between its last two steps.
            blobs.end_filling().await.map_err(of_blobs)?;
        }
        return Ok((store, blobs));
    }
    // Of another database, which came between. A restoration may have begun since the blobs were looked at.
    let filling = blobs.is_being_filled().await.map_err(of_blobs)?;
    if filling && !how.adopt {
        store.close().await;
        return Err(OpenError::Restoring { blobs: there });
    }
    let present = blobs.all().await.map_err(of_blobs)?;
    // An empty folder may be what is left of a store that was given up. Whoever has an empty prefix of a bucket may be at work on another
    // host, on its first day.
    let free = owner.is_none() || matches!(there, BlobPlace::Folder(_));
    let known = free && present.is_empty()
        || owner.is_none() && names_any(&store, &present).await.map_err(of_store)?;
    if !known && !how.adopt {
        store.close().await;
        return Err(OpenError::Foreign { store: place, blobs: there });
    }
    // Adopted.
    store.stays().await.map_err(of_store)?;
    // The blobs say it for good: a loss of power that undid the id of a new database would leave it with blobs of another.
    store.checkpoint().await.map_err(of_store)?;
    blobs.give_to(&id).await.map_err(of_blobs)?;
    blobs.end_filling().await.map_err(of_blobs)?;
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
