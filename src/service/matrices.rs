//! Stored matrices: facts, lists, names, deletion.

use super::{Result, Service, ServiceError};
use crate::domain::{Digest, Matrix};
use crate::store::{BlobError, Guard, LocalFile, MatrixQuery, Page, PageRequest};
use std::collections::HashMap;
use tokio::sync::MutexGuard;

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

    /// Those of the newest matrices whose name contains this text, newest first.
    pub async fn matrices_named(&self, part: &str, limit: u32) -> Result<Vec<Matrix>> {
        let named = MatrixQuery::Named(part.to_owned());
        Ok(self.store.matrices(&named, &PageRequest::first(limit)).await?.items)
    }

    /// The newest matrices whose digest or pattern digest begins with these hex digits.
    pub async fn matrices_starting(&self, digits: &str, limit: u32) -> Result<Vec<Digest>> {
        let (first, last) = (format!("{digits:0<64}").parse(), format!("{digits:f<64}").parse());
        let (Ok(first), Ok(last)) = (first, last) else { return Ok(Vec::new()) };
        let between = MatrixQuery::Between(first, last);
        let found = self.store.matrices(&between, &PageRequest::first(limit)).await?;
        Ok(found.items.into_iter().map(|matrix| matrix.digest).collect())
    }
}
