//! Pictures and profiles of stored matrices. Each requires reading the whole matrix, so they are cached.

use super::{Result, Service, ServiceError};
use crate::domain::{Digest, MatrixProfile};
use crate::sparse::{Csr, canonical, profile, spy};
use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use std::sync::Arc;

/// Length in pixels of the longer side of the picture on a matrix's page.
pub const PAGE_SPY: u32 = 640;

/// Maximum size of the cache in bytes.
const KEPT_BYTES: usize = 16 << 20;

/// What can be drawn from a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// The positions of the entries, with this many pixels on the longer side.
    Spy(u32),
    Profile,
}

#[derive(Clone, Debug)]
enum Drawing {
    Spy(Bytes),
    Profile(Arc<MatrixProfile>),
}

/// What a matrix's page shows: a client that asks for one of these will ask for the other.
const OF_A_PAGE: [Subject; 2] = [Subject::Spy(PAGE_SPY), Subject::Profile];

impl Drawing {
    fn of(matrix: &Csr, subject: Subject) -> Result<Self> {
        Ok(match subject {
            Subject::Spy(size) => {
                Self::Spy(spy::png(matrix, size).map_err(ServiceError::internal)?.into())
            }
            Subject::Profile => Self::Profile(Arc::new(profile::of(matrix))),
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Spy(png) => png.len(),
            Self::Profile(profile) => {
                let levels = [&profile.lower, &profile.upper].into_iter().flatten();
                let levels: usize = levels.map(|levels| size_of_val(levels.bins.as_slice())).sum();
                size_of::<MatrixProfile>() + size_of_val(profile.row_nnz.as_slice()) + levels
            }
        }
    }
}

/// Recently requested drawings, by matrix and subject.
#[derive(Debug)]
pub(super) struct Drawings(Cache<(Digest, Subject), Drawing>);

impl Default for Drawings {
    fn default() -> Self {
        let bytes = |_: &(Digest, Subject), drawing: &Drawing| {
            u32::try_from(drawing.bytes()).unwrap_or(u32::MAX)
        };
        let builder = Cache::builder().max_capacity(KEPT_BYTES as u64).weigher(bytes);
        Self(builder.eviction_policy(EvictionPolicy::lru()).build())
    }
}

impl Drawings {
    pub(super) fn forget(&self, digest: &Digest) {
        let of_matrix = self.0.iter().filter(|(key, _)| key.0 == *digest);
        of_matrix.for_each(|(key, _)| self.0.invalidate(&*key));
    }
}

impl Service {
    /// The positions of the entries, as a PNG whose longer side has `size` pixels.
    pub async fn spy_png(&self, digest: &Digest, size: u32) -> Result<Bytes> {
        match self.drawn(digest, Subject::Spy(size)).await? {
            Drawing::Spy(png) => Ok(png),
            Drawing::Profile(_) => {
                Err(ServiceError::internal("the cache holds a profile instead of a picture"))
            }
        }
    }

    /// The distributions of row lengths and level widths.
    pub async fn matrix_profile(&self, digest: &Digest) -> Result<Arc<MatrixProfile>> {
        match self.drawn(digest, Subject::Profile).await? {
            Drawing::Profile(profile) => Ok(profile),
            Drawing::Spy(_) => {
                Err(ServiceError::internal("the cache holds a picture instead of a profile"))
            }
        }
    }

    async fn drawn(&self, digest: &Digest, subject: Subject) -> Result<Drawing> {
        self.matrix(digest).await?;
        let key = (*digest, subject);
        if let Some(drawing) = self.inner.drawings.0.get(&key) {
            return Ok(drawing);
        }
        // Checked before the permit is taken, so that nothing is awaited between the permit and the task that draws.
        let file = self.entries(digest).await?;
        let permit = self.inner.drawing.clone().acquire_owned().await?;
        // Another request may have drawn it while this one was waiting.
        if let Some(drawing) = self.inner.drawings.0.get(&key) {
            return Ok(drawing);
        }
        let service = self.clone();
        let (tell, told) = tokio::sync::oneshot::channel();
        // The task stores the result, not its waiter, so a drawing that takes longer than a client waits is not lost.
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let memory = &service.inner.settings.limits.memory;
            let (matrix, _, _held) = match canonical::open_in(&file, memory) {
                Ok(read) => read,
                Err(error) => return drop(tell.send(Err(error.into()))),
            };
            let drawing = Drawing::of(&matrix, subject);
            if let Ok(drawing) = &drawing {
                service.inner.drawings.0.insert(key, drawing.clone());
            }
            // There may be no receiver any more.
            drop(tell.send(drawing));
            service.draw_others(&matrix, key);
        });
        match told.await {
            Ok(drawing) => drawing,
            Err(_) => Err(task
                .await
                .err()
                .map_or_else(|| ServiceError::internal("nothing was drawn"), Into::into)),
        }
    }

    /// Also draws the rest of the page while the matrix is in memory: reading it is most of the work.
    fn draw_others(&self, matrix: &Csr, (digest, drawn): (Digest, Subject)) {
        if !OF_A_PAGE.contains(&drawn) {
            return;
        }
        for subject in OF_A_PAGE.into_iter().filter(|subject| *subject != drawn) {
            let key = (digest, subject);
            if self.inner.drawings.0.get(&key).is_some() {
                continue;
            }
            match Drawing::of(matrix, subject) {
                Ok(drawing) => self.inner.drawings.0.insert(key, drawing),
                Err(error) => tracing::warn!(%digest, %error, "a matrix could not be drawn"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ServiceSettings;
    use crate::store::{LocalBlobs, SqliteStore};

    /// A service with one matrix.
    async fn service(folder: &std::path::Path) -> (Service, Digest) {
        let store = SqliteStore::open(&folder.join("store")).await.unwrap();
        let blobs = LocalBlobs::open(&folder.join("blobs")).unwrap();
        let settings =
            ServiceSettings { temp_dir: folder.to_owned(), ..ServiceSettings::default() };
        let service = Service::new(Arc::new(store), Arc::new(blobs), settings);
        let text = "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1.0\n";
        let body = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(text))]);
        let digest = service.upload(body, None).await.unwrap().matrix.digest;
        (service, digest)
    }

    #[tokio::test]
    async fn a_picture_nobody_waits_for_any_more_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (service, digest) = service(folder.path()).await;
        // Parsing uploads does not delay drawing.
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
        // Free again when the task has ended.
        let _permit = service.inner.drawing.acquire().await.unwrap();
        assert!(service.inner.drawings.0.contains_key(&(digest, Subject::Spy(64))));
    }

    #[tokio::test]
    async fn a_profile_is_made_once_and_goes_with_its_matrix() {
        let folder = tempfile::tempdir().unwrap();
        let (service, digest) = service(folder.path()).await;
        let first = service.matrix_profile(&digest).await.unwrap();
        assert_eq!(first.row_nnz.iter().map(|bin| bin.rows).sum::<u64>(), 2);
        service.spy_png(&digest, 64).await.unwrap();
        // The file is not read again.
        std::fs::write(service.matrix_file(&digest).await.unwrap(), "spoilt").unwrap();
        let second = service.matrix_profile(&digest).await.unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let kept = &service.inner.drawings.0;
        kept.run_pending_tasks();
        assert!(kept.weighted_size() > 0);
        service.delete_matrix(&digest).await.unwrap();
        kept.run_pending_tasks();
        assert_eq!(kept.entry_count(), 0);
        let gone = service.matrix_profile(&digest).await;
        assert!(matches!(gone, Err(ServiceError::NotFound { .. })), "{gone:?}");
    }

    #[tokio::test]
    async fn a_page_reads_its_matrix_once() {
        let folder = tempfile::tempdir().unwrap();
        let (service, digest) = service(folder.path()).await;
        service.matrix_profile(&digest).await.unwrap();
        // Anything that is not drawn by now cannot be drawn.
        let permit = service.inner.drawing.acquire().await.unwrap();
        std::fs::write(service.matrix_file(&digest).await.unwrap(), "spoilt").unwrap();
        drop(permit);
        service.spy_png(&digest, PAGE_SPY).await.unwrap();
        assert!(service.spy_png(&digest, PAGE_SPY + 1).await.is_err(), "the file is corrupt");
    }

    #[test]
    fn drawings_are_bounded_and_forgotten() {
        let drawings = Drawings::default();
        let key = |n: u8| (Digest::of(&[n]), Subject::Spy(64));
        let get = |n: u8| {
            let found = drawings.0.get(&key(n));
            // Waits until the cache has recorded the last access.
            drawings.0.run_pending_tasks();
            found
        };
        let third = Drawing::Spy(Bytes::from(vec![0; KEPT_BYTES / 3]));
        for n in 0..3 {
            drawings.0.insert(key(n), third.clone());
        }
        // The cache applies reads before writes, so the writes come first here.
        drawings.0.run_pending_tasks();
        assert!(get(0).is_some());
        assert!(drawings.0.get(&(key(0).0, Subject::Profile)).is_none());
        drawings.0.insert(key(3), third.clone());
        drawings.0.run_pending_tasks();
        assert!(get(1).is_none(), "the least recently used entry is removed first");
        assert!(get(0).is_some());
        drawings.forget(&key(0).0);
        assert!(get(0).is_none());
        assert_eq!(drawings.0.weighted_size(), 2 * (KEPT_BYTES / 3) as u64);
    }
}
