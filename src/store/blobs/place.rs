//! Where blobs are kept, and how they are opened there.

use super::{Blobs, BucketSettings, LocalBlobs, Result, S3Blobs};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where blobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobPlace {
    Folder(PathBuf),
    Bucket(Box<BucketSettings>),
}

impl BlobPlace {
    /// Opens the blobs, and makes their place if it is a folder that is missing.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub async fn open(&self) -> Result<Arc<dyn Blobs>> {
        match self {
            Self::Folder(folder) => {
                let folder = folder.clone();
                let opened = tokio::task::spawn_blocking(move || LocalBlobs::open(&folder)).await;
                Ok(Arc::new(opened.map_err(io::Error::other)??))
            }
            Self::Bucket(settings) => Ok(Arc::new(S3Blobs::open(settings).await?)),
        }
    }

    /// The folder of this host that has the blobs, or the copies of those in use.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Bucket(settings) => &settings.cache,
        }
    }

    /// The folder in which the folders of [`Blobs::stage_folder`] lie.
    pub fn exports(&self) -> PathBuf {
        LocalBlobs::exports(self.folder())
    }
}

impl fmt::Display for BlobPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Bucket(settings) => write!(f, "s3://{}/{}", settings.bucket, settings.prefix),
        }
    }
}

impl From<&Path> for BlobPlace {
    fn from(folder: &Path) -> Self {
        Self::Folder(folder.to_owned())
    }
}

impl From<&PathBuf> for BlobPlace {
    fn from(folder: &PathBuf) -> Self {
        Self::Folder(folder.clone())
    }
}

impl From<&Self> for BlobPlace {
    fn from(place: &Self) -> Self {
        place.clone()
    }
}
