//! Stored matrices: facts, lists, names, deletion.

use super::{Result, Service, ServiceError};
use crate::domain::{Digest, Matrix};
use crate::store::{BlobError, Guard, LocalFile, MatrixOrder, MatrixQuery, Page, PageRequest};
use std::collections::{HashMap, HashSet};
use tokio::sync::MutexGuard;

/// Fewest digits by which a digest is found; fewer begin too many.
pub const FEWEST_DIGITS: usize = 6;

/// The one that a name means: the one that is called so, whatever the case, or else the only one that was found.
pub fn meant<'a>(found: &'a [Matrix], name: &str) -> Option<&'a Matrix> {
    let called = |matrix: &&Matrix| {
        matrix.name.as_deref().is_some_and(|own| own.to_lowercase() == name.to_lowercase())
    };
    let mut so = found.iter().filter(called);
    match (so.next(), so.next()) {
        (Some(one), None) => Some(one),
        (None, _) if found.len() == 1 => found.first(),
        _ => None,
    }
}

impl Service {
    pub async fn matrix(&self, digest: &Digest) -> Result<Matrix> {
        let matrix = self.store.matrix(digest).await?;
        matrix.ok_or_else(|| ServiceError::not_found("matrix", digest))
    }

    pub async fn matrices(&self, page: &PageRequest) -> Result<Page<Matrix>> {
        Ok(self.store.matrices(&MatrixQuery::All, page).await?)
    }

    /// The names of the matrices, as far as they are known.
    pub async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>> {
        Ok(self.store.matrix_names(digests).await?)
    }

    /// Held while a matrix's file and row are created or deleted together. Tasks of this process wait in order, and only one of them
    /// for other processes.
    pub(super) async fn publishing(&self) -> Result<(MutexGuard<'_, ()>, Guard)> {
        let here = self.inner.publishing.lock().await;
        Ok((here, self.store.publishing().await?))
    }

    /// Deletes facts and entries; plans are kept. Refused while a job needs the matrix.
    pub async fn delete_matrix(&self, digest: &Digest) -> Result<()> {
        let (_here, alone) = self.publishing().await?;
        self.delete_published(digest, &alone).await
    }

    /// [`Self::delete_matrix`], for who holds the lock.
    pub(super) async fn delete_published(&self, digest: &Digest, alone: &Guard) -> Result<()> {
        if !self.store.delete_matrix(digest).await? {
            return Err(ServiceError::not_found("matrix", digest));
        }
        // The file is for all namespaces that have the matrix.
        if self.store.is_held(digest).await? {
            return Ok(());
        }
        self.store.settle().await?;
        self.inner.drawings.forget(digest);
        if let Err(error) = alone.is_still_held().await {
            // Another may have stored it again meanwhile. What nothing names is left to upkeep.
            tracing::warn!(matrix = %digest, %error, "the file of a deleted matrix is left to upkeep");
            return Ok(());
        }
        self.inner.blobs.delete(digest).await?;
        Ok(())
    }

    /// The canonical file of a stored matrix.
    pub async fn matrix_file(&self, digest: &Digest) -> std::result::Result<LocalFile, BlobError> {
        self.inner.blobs.local_copy(digest).await
    }

    /// Matrices that the text may mean: those whose digest or pattern digest begins with it, if it may be the beginning of one, then those
    /// whose name contains it, newest first. The first page alone has those by digest.
    pub async fn matrices_like(&self, text: &str, page: &PageRequest) -> Result<Page<Matrix>> {
        self.sorted_matrices(Some(text), MatrixOrder::default(), page).await
    }

    /// All matrices, or those that the text may mean ([`Self::matrices_like`]), in the order that is asked for.
    pub async fn sorted_matrices(
        &self,
        text: Option<&str>,
        order: MatrixOrder,
        page: &PageRequest,
    ) -> Result<Page<Matrix>> {
        let Some(text) = text else {
            return Ok(self.store.sorted_matrices(None, order, page).await?);
        };
        let mut found = Vec::new();
        // On later pages as well, to leave them out: those whose name contains their own digits were shown.
        if text.len() >= FEWEST_DIGITS {
            let digits = text.to_ascii_lowercase();
            let (first, last) = (format!("{digits:0<64}"), format!("{digits:f<64}"));
            if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
                let between = MatrixQuery::Between(first, last);
                let few = PageRequest::first(page.limit);
                found = self.store.matrices(&between, &few).await?.items;
            }
        }
        let mut named = self.store.sorted_matrices(Some(text), order, page).await?;
        let known: HashSet<Digest> = found.iter().map(|matrix| matrix.digest).collect();
        named.items.retain(|matrix| !known.contains(&matrix.digest));
        if page.after.is_some() {
            return Ok(named);
        }
        found.append(&mut named.items);
        Ok(Page { items: found, next: named.next })
    }
}
