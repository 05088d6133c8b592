//! Both triangles of one matrix: tuned by one request, written as one file.

use super::{Tuner, TunerError};
use crate::bundle::{Bundle, Pair, PairError};
use crate::domain::{Plan, PlanId, Problem, Search};
use crate::tuner::Matrix;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;
use std::sync::Arc;

impl Tuner {
    /// Tunes both triangles of combined factors, one after the other, each within half of the search's budget, and waits for the
    /// plans. Their order is that of their calls. Otherwise as [`Tuner::tune_with`].
    ///
    /// # Errors
    /// As [`Tuner::tune_with`], and if the problem does not name both triangles.
    pub fn tune_both(
        &self,
        matrix: &Matrix,
        problem: &Problem,
        search: Search,
        expected_calls: Option<u64>,
    ) -> Result<[Plan; 2], TunerError> {
        if problem.parts().is_none() {
            return Err(TunerError::Failed("the problem does not name both triangles".to_owned()));
        }
        self.runtime.block_on(async {
            let job = self.submitted(matrix, problem, search, expected_calls).await?;
            let first = self.ended(job).await?;
            let (id, follow_up) = (first.id.clone(), first.follow_up.clone());
            let plan = self.plan_of(first).await?;
            let second = follow_up.ok_or_else(|| {
                TunerError::Failed(format!(
                    "job {id} has the plan {} of the first triangle, but no job was submitted for the other: its log says why",
                    plan.id
                ))
            })?;
            let second = self.ended(self.service.job(&second).await?).await?;
            Ok([plan, self.plan_of(second).await?])
        })
    }

    /// Writes two plans as one file, which one call runs. It is complete or not there.
    ///
    /// # Errors
    /// As [`Tuner::bundle`], and if the two plans are not the two triangles of one matrix, in their order.
    pub fn bundle_both(&self, plans: [&PlanId; 2], path: &Path) -> Result<(), TunerError> {
        let unwritten = |source| TunerError::Written { path: path.to_owned(), source };
        let invalid = |error: PairError| unwritten(io::Error::other(error));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let scratch = tempfile::tempdir_in(folder).map_err(unwritten)?;
        let mut parts = Vec::new();
        for (plan, name) in plans.into_iter().zip(["first", "second"]) {
            let part = scratch.path().join(name);
            self.bundle(plan, crate::bundle::Values::Included, &part)?;
            parts.push(Arc::new(Bundle::open(&part).map_err(|error| invalid(error.into()))?));
        }
        let [first, second] = [parts[0].clone(), parts[1].clone()];
        let pair = Pair::of(first, second).map_err(|error| invalid(error.into()))?;
        let mut partial = tempfile::NamedTempFile::new_in(folder).map_err(unwritten)?;
        pair.write(&mut partial).map_err(invalid)?;
        partial.flush().and_then(|()| partial.rewind()).map_err(unwritten)?;
        partial.persist(path).map_err(|failed| unwritten(failed.error))?;
        Ok(())
    }
}
