//! A plan's bundle, written by the library's caller.

use super::{Tuner, TunerError};
use crate::bundle::Values;
use crate::domain::PlanId;
use std::fs::File;
use std::io;
use std::path::Path;

impl Tuner {
    /// Writes the bundle of a plan, which is complete or not there.
    ///
    /// # Errors
    /// The plan or its matrix is not stored here, the plan has no program, its values cannot be left out, or the file cannot be
    /// written.
    pub fn bundle(&self, plan: &PlanId, values: Values, path: &Path) -> Result<(), TunerError> {
        let unwritten = |source| TunerError::Written { path: path.to_owned(), source };
        let bundle = self.runtime.block_on(self.service.bundle(plan, values))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut partial =
            tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(unwritten)?;
        let mut from = File::open(&*bundle.file).map_err(unwritten)?;
        io::copy(&mut from, &mut partial).map_err(unwritten)?;
        partial.persist(path).map_err(|failed| unwritten(failed.error))?;
        Ok(())
    }
}
