//! Stored matrices: facts, lists, pictures, and their end.

use super::{Result, Service, ServiceError};
use crate::domain::{Digest, Matrix, MatrixProfile};
use crate::sparse::{canonical, profile, spy};
use crate::store::{Page, PageRequest};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Bytes of pictures kept; one is drawn in the time that its matrix takes to read.
const PICTURE_BYTES: usize = 16 << 20;

/// Profiles kept: at most some 30 kB each.
const PROFILES: usize = 256;

/// The pictures asked for last, newest at the back.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    kept: VecDeque<((Digest, u32), Bytes)>,
    bytes: usize,
}

impl Pictures {
    fn get(&mut self, key: &(Digest, u32)) -> Option<Bytes> {
        let place = self.kept.iter().position(|(kept, _)| kept == key)?;
        let found = self.kept.remove(place)?;
        let png = found.1.clone();
        self.kept.push_back(found);
        Some(png)
    }

    fn put(&mut self, key: (Digest, u32), png: Bytes) {
        if self.kept.iter().any(|(kept, _)| *kept == key) {
            return;
        }
        self.bytes += png.len();
        self.kept.push_back((key, png));
        while self.bytes > PICTURE_BYTES {
            let Some((_, oldest)) = self.kept.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    fn forget(&mut self, digest: &Digest) {
        self.kept.retain(|(key, _)| key.0 != *digest);
        self.bytes = self.kept.iter().map(|(_, png)| png.len()).sum();
    }
}

impl Service {
    pub async fn matrix(&self, digest: &Digest) -> Result<Matrix> {
        let matrix = self.inner.store.matrix(digest).await?;
        matrix.ok_or_else(|| ServiceError::not_found("matrix", digest))
    }

    pub async fn matrices(&self, page: &PageRequest) -> Result<Page<Matrix>> {
        Ok(self.inner.store.matrices(page).await?)
    }

    /// Removes facts and entries; plans stay. Refused while a job needs the matrix.
    pub async fn delete_matrix(&self, digest: &Digest) -> Result<()> {
        let _alone = self.inner.publishing.lock().await;
        if !self.inner.store.delete_matrix(digest).await? {
            return Err(ServiceError::not_found("matrix", digest));
        }
        self.pictures().forget(digest);
        self.profiles().remove(digest);
        self.inner.blobs.delete(digest).await?;
        Ok(())
    }

    /// The canonical file of a stored matrix: the evaluator reads it by path.
    pub fn matrix_path(&self, digest: &Digest) -> PathBuf {
        self.inner.blobs.local_path(digest)
    }

    /// Where the entries lie, as a PNG whose longer side has `size` pixels.
    pub async fn spy_png(&self, digest: &Digest, size: u32) -> Result<Bytes> {
        self.matrix(digest).await?;
        let key = (*digest, size);
        if let Some(png) = self.pictures().get(&key) {
            return Ok(png);
        }
        let permit = self.inner.drawing.clone().acquire_owned().await;
        let permit = permit.map_err(|error| ServiceError::Internal(error.to_string()))?;
        // Another request may have drawn it while this one waited.
        if let Some(png) = self.pictures().get(&key) {
            return Ok(png);
        }
        let (service, path) = (self.clone(), self.matrix_path(digest));
        // Kept by the task, not by its waiter: who drew for longer than a client waits has not drawn in vain.
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let png = draw(&path, size)?;
            service.pictures().put(key, png.clone());
            Ok(png)
        })
        .await?
    }

    /// Rows by length and levels by width. Takes the time that the matrix takes to read, the first time.
    pub async fn matrix_profile(&self, digest: &Digest) -> Result<Arc<MatrixProfile>> {
        self.matrix(digest).await?;
        if let Some(known) = self.profiles().get(digest) {
            return Ok(Arc::clone(known));
        }
        let permit = self.inner.drawing.clone().acquire_owned().await;
        let permit = permit.map_err(|error| ServiceError::Internal(error.to_string()))?;
        if let Some(known) = self.profiles().get(digest) {
            return Ok(Arc::clone(known));
        }
        let (service, path, digest) = (self.clone(), self.matrix_path(digest), *digest);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let (csr, _) = canonical::open(&path)
                .map_err(|error| ServiceError::Internal(error.to_string()))?;
            let profile = Arc::new(profile::of(&csr));
            let mut known = service.profiles();
            if known.len() >= PROFILES {
                known.clear();
            }
            known.insert(digest, Arc::clone(&profile));
            Ok(profile)
        })
        .await?
    }

    /// The names that matrices were given, as far as they are known.
    pub async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>> {
        Ok(self.inner.store.matrix_names(digests).await?)
    }

    /// The matrices whose digest, or whose pattern's, begins with these hex digits; the first few of them.
    pub async fn matrices_starting(&self, digits: &str, limit: u32) -> Result<Vec<Digest>> {
        let (first, last) = (format!("{digits:0<64}").parse(), format!("{digits:f<64}").parse());
        match (first, last) {
            (Ok(first), Ok(last)) => {
                Ok(self.inner.store.matrices_between(&first, &last, limit).await?)
            }
            _ => Ok(Vec::new()),
        }
    }

    fn profiles(&self) -> MutexGuard<'_, HashMap<Digest, Arc<MatrixProfile>>> {
        self.inner.profiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pictures(&self) -> MutexGuard<'_, Pictures> {
        self.inner.pictures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn draw(path: &std::path::Path, size: u32) -> Result<Bytes> {
    let internal = |error: &dyn std::fmt::Display| ServiceError::Internal(error.to_string());
    let (csr, _) = canonical::open(path).map_err(|error| internal(&error))?;
    let png = spy::png(&csr, size).map_err(|error| internal(&error))?;
    Ok(Bytes::from(png))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ServiceSettings;
    use crate::store::{Blobs, SqliteStore};

    #[tokio::test]
    async fn a_picture_nobody_waits_for_any_more_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store")).await.unwrap();
        let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
        let settings =
            ServiceSettings { temp_dir: folder.path().to_owned(), ..ServiceSettings::default() };
        let service = Service::new(Arc::new(store), blobs, settings);
        let text = "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1.0\n";
        let body = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(text))]);
        let digest = service.upload(body, None).await.unwrap().matrix.digest;
        // Uploads that parse hold up no picture.
        let permits = service.inner.parses.available_permits() as u32;
        let _parses = service.inner.parses.acquire_many(permits).await.unwrap();
        let mut waiter = Box::pin(service.spy_png(&digest, 64));
        while service.inner.drawing.available_permits() > 0 {
            tokio::select! {
                biased;
                drawn = &mut waiter => {
                    drawn.unwrap();
                    break;
                }
                () = tokio::task::yield_now() => {}
            }
        }
        drop(waiter);
        // Free again once the task has ended.
        let _permit = service.inner.drawing.acquire().await.unwrap();
        assert!(service.pictures().get(&(digest, 64)).is_some());
    }

    #[test]
    fn pictures_are_bounded_and_forgotten() {
        let mut pictures = Pictures::default();
        let key = |n: u8| (Digest::of(&[n]), 64);
        let third = Bytes::from(vec![0; PICTURE_BYTES / 3]);
        for n in 0..3 {
            pictures.put(key(n), third.clone());
        }
        assert!(pictures.get(&key(0)).is_some());
        pictures.put(key(3), third.clone());
        assert!(pictures.get(&key(1)).is_none(), "the one asked for longest ago goes first");
        assert!(pictures.get(&key(0)).is_some());
        pictures.forget(&key(0).0);
        assert!(pictures.get(&key(0)).is_none());
        assert_eq!(pictures.bytes, 2 * (PICTURE_BYTES / 3));
    }
}
