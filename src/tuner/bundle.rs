//! A plan's bundle, written by the library's caller.

use super::{Tuner, TunerError};
use crate::bundle::{self, Parts, Values};
use crate::domain::{Digest, PlanId};
use crate::sparse::canonical;
use futures_util::TryStreamExt;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;

impl Tuner {
    /// Writes the bundle of a plan, which is complete or not there.
    ///
    /// # Errors
    /// The plan or its matrix is not stored here, the plan has no program, or the file cannot be written.
    pub fn bundle(&self, plan: &PlanId, path: &Path) -> Result<(), TunerError> {
        let unwritten = |source| TunerError::Written { path: path.to_owned(), source };
        let (plan, file) = self.runtime.block_on(async {
            let plan = self.service.plan(plan).await?;
            let file = self.service.matrix_file(&plan.matrix).await?;
            Ok::<_, TunerError>((plan, file))
        })?;
        let (matrix, _) = canonical::open(&file)?;
        let blob = |digest: &Digest| {
            self.runtime.block_on(async {
                let blob = self.service.plan_blob(&plan.id, digest).await;
                let content = blob.map_err(io::Error::other)?.content;
                let parts: Vec<_> = content.try_collect().await.map_err(io::Error::other)?;
                Ok(parts.concat())
            })
        };
        let parts = Parts { plan: &plan, matrix: Arc::new(matrix), blob: &blob };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut partial =
            tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(unwritten)?;
        bundle::build(&parts, Values::Included, BufWriter::new(partial.as_file_mut()))?;
        partial.persist(path).map_err(|failed| unwritten(failed.error))?;
        Ok(())
    }
}
