//! A database and the blobs that it names belong together. Neither is opened with another's: upkeep would remove every blob that
//! the database does not name.

use super::{BlobError, Blobs, Cause, LocalBlobs, SqliteStore, StoreError, Upkeep};
use std::io;
use std::path::{Path, PathBuf};

/// Why a database and a folder of blobs are not opened together.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot open the store {} (data.store): {source}", path.display())]
    Store { path: PathBuf, source: StoreError },
    #[error("cannot open the blobs {} (data.blobs): {source}", path.display())]
    Blobs { path: PathBuf, source: BlobError },
    #[error(
        "{} cannot be written: {source}; the data folder needs a file system and an owner that let this user write (data.dir)",
        path.display()
    )]
    ReadOnly { path: PathBuf, source: Cause },
    /// The database is missing, and a new one would know none of the blobs.
    #[error("there is no database {}, but {} has blobs of one: {REMEDY}", store.display(), blobs.display())]
    NoDatabase { store: PathBuf, blobs: PathBuf },
    /// The folder says that it belongs to another database, or does not say and the database names none of its blobs.
    #[error("the database {} and the blobs {} are not of one store: {REMEDY}", store.display(), blobs.display())]
    Foreign { store: PathBuf, blobs: PathBuf },
}

const REMEDY: &str = "put the right one back (`sparsetune restore` does from a backup), or set data.store and data.blobs to what belongs \
    together; `sparsetune fsck --adopt` gives the blobs to this database instead, and those that it does not name are then removed \
    after data.blob_grace_h";

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        Self::other(error)
    }
}

/// Opens a database and its blobs, or creates both.
///
/// # Errors
/// See [`OpenError`]; no blob has been changed if they do not belong together.
pub async fn open(file: &Path, folder: &Path) -> Result<(SqliteStore, LocalBlobs), OpenError> {
    let (store, blobs) = (file.to_owned(), folder.to_owned());
    open_with(file, folder, false).await?.ok_or(OpenError::Foreign { store, blobs })
}

/// [`open`], but blobs of another store, or of an unknown one, become those of this database.
///
/// # Errors
/// Either cannot be opened.
pub async fn adopt(file: &Path, folder: &Path) -> Result<(SqliteStore, LocalBlobs), OpenError> {
    let (store, blobs) = (file.to_owned(), folder.to_owned());
    open_with(file, folder, true).await?.ok_or(OpenError::Foreign { store, blobs })
}

async fn open_with(
    file: &Path,
    folder: &Path,
    adopting: bool,
) -> Result<Option<(SqliteStore, LocalBlobs)>, OpenError> {
    let of_blobs = |source: BlobError| OpenError::Blobs { path: folder.to_owned(), source };
    let of_store = |source| OpenError::Store { path: file.to_owned(), source };
    let io = |error: io::Error| of_blobs(error.into());
    let blobs = LocalBlobs::open(folder).map_err(of_blobs)?;
    if !adopting && !file.exists() && !blobs.all().map_err(io)?.is_empty() {
        let (store, blobs) = (file.to_owned(), folder.to_owned());
        return Err(OpenError::NoDatabase { store, blobs });
    }
    let store = SqliteStore::open(file).await.map_err(of_store)?;
    // A folder that cannot be written would otherwise look like a device that cannot be registered.
    store
        .check_writable()
        .await
        .map_err(|source| OpenError::ReadOnly { path: file.to_owned(), source: source.into() })?;
    blobs
        .stage()
        .await
        .map_err(|source| OpenError::ReadOnly { path: folder.to_owned(), source: source.into() })?;
    let id = store.id().await.map_err(of_store)?;
    let owner = blobs.owner().map_err(io)?;
    if owner.as_ref() == Some(&id) {
        return Ok(Some((store, blobs)));
    }
    let present = blobs.all().map_err(io)?;
    // Folders of earlier versions do not say whose they are.
    let known = present.is_empty()
        || owner.is_none() && {
            let named = store.named_blobs().await.map_err(of_store)?;
            present.iter().any(|digest| named.contains(digest))
        };
    if !known && !adopting {
        store.close().await;
        return Ok(None);
    }
    blobs.give_to(&id).map_err(io)?;
    Ok(Some((store, blobs)))
}
