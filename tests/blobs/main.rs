//! What every blob store must do, on a folder and on a bucket of a real S3 server; and what a bucket must survive.

#[path = "../fixture/authority.rs"]
mod authority;
mod conformance;
mod faults;
mod losses;
mod proxy;
mod quota;
mod server;
mod service;
mod sharing;
mod tls;
#[path = "../tuning/server.rs"]
#[allow(dead_code)]
mod tuning;

use server::S3Server;
use sparsetune::domain::Digest;
use sparsetune::store::blobs::digest_of;
use sparsetune::store::{BlobPlace, Blobs};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::{TempDir, TempPath};

/// A blob store, and what a test does to it behind its back.
pub struct World {
    pub place: BlobPlace,
    pub blobs: Arc<dyn Blobs>,
    pub server: Option<S3Server>,
    _folder: TempDir,
}

impl World {
    async fn open(place: BlobPlace, server: Option<S3Server>, folder: TempDir) -> Self {
        let blobs = opened(&place).await;
        Self { place, blobs, server, _folder: folder }
    }

    async fn folder() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::open(BlobPlace::from(&folder.path().join("blobs")), None, folder).await
    }

    /// `None` where there is no S3 server.
    pub async fn bucket() -> Option<Self> {
        let (server, folder) = (S3Server::start()?, tempfile::tempdir().unwrap());
        let settings = server.settings(&server.address, &folder.path().join("cache"));
        Some(Self::open(BlobPlace::Bucket(Box::new(settings)), Some(server), folder).await)
    }

    /// The blobs as a process sees them that has read none of them and has no copies.
    pub async fn elsewhere(&self) -> (Arc<dyn Blobs>, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let mut place = self.place.clone();
        if let BlobPlace::Bucket(settings) = &mut place {
            settings.cache = folder.path().join("cache");
        }
        (opened(&place).await, folder)
    }

    /// The file that has the blob.
    pub fn file(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        match (&self.place, &self.server) {
            (BlobPlace::Folder(folder), _) => folder.join(&name[..2]).join(name),
            (BlobPlace::Bucket(_), server) => server.as_ref().unwrap().object("blobs", &name),
        }
    }

    /// A file that is to be put.
    pub async fn staged(&self, contents: &[u8]) -> TempPath {
        let mut staged = self.blobs.stage().await.unwrap();
        staged.write_all(contents).unwrap();
        staged.into_temp_path()
    }
}

pub async fn opened(place: &BlobPlace) -> Arc<dyn Blobs> {
    let blobs = place.open().await.unwrap();
    blobs.check_with(|path| digest_of(path).map(Some));
    blobs
}

/// Runs a test on each kind of store that can be had here.
pub async fn on_each(test: impl AsyncFn(&World)) {
    test(&World::folder().await).await;
    if let Some(world) = World::bucket().await {
        test(&world).await;
    }
}

/// Contents of so many bytes, that are not a period repeated.
pub fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

pub const SECOND: Duration = Duration::from_secs(1);
