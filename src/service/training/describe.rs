//! Computes features for jobs that were measured without them, or with those of an earlier version: the matrix is read
//! or generated again.

use super::Halt;
use super::handle::TrainingHandle;
use super::threads::Threads;
use crate::domain::learned::Scope;
use crate::domain::{Caller, CandidateId, Digest, JobFeatures, Matrix, Timestamp};
use crate::ops::{self, Figures, Narrowing, features};
use crate::service::{PageRequest, Service};
use crate::sparse::generate::Spec;
use crate::sparse::read::{Held, Pool};
use crate::sparse::{Csr, digest};
use crate::store::{BlobError, DescribedJob, TrialQuery, Undescribed};
use std::collections::HashSet;

/// Jobs fetched at a time.
const CHUNK: u32 = 64;

/// Most entries that a specification may generate per entry of the original matrix.
const MOST_DRAWN: f64 = 8.0;
/// Bytes that an entry takes while a matrix is generated: drawn, and in the matrix.
const GENERATED: u64 = 28;

/// Computes the missing features of all finished jobs of the scope, and returns their number. Jobs that fail, or whose
/// matrix was deleted and cannot be generated again, are skipped.
pub(super) async fn describe_all(
    service: &Service,
    scope: &Scope,
    threads: &Threads,
    handle: &TrainingHandle,
) -> Result<u64, Halt> {
    let mut described = 0;
    let mut page = PageRequest { after: None, limit: CHUNK };
    loop {
        let jobs = service.store().undescribed(scope, features::version(scope.op), &page).await?;
        let count = jobs.items.len();
        for (done, job) in jobs.items.iter().enumerate() {
            if !handle.progress(done as f64 / count as f64) {
                return Err(Halt::Stopped);
            }
            match describe(service, scope, job, threads).await {
                Ok(Ok(())) => described += 1,
                Ok(Err(why)) => {
                    tracing::debug!(job = %job.job, why, "no features can be computed for a job")
                }
                Err(halt @ (Halt::Stopped | Halt::Later(_))) => return Err(halt),
                Err(Halt::Failed(why)) => {
                    tracing::error!(job = %job.job, why, "computing the features of a job failed");
                }
            }
        }
        page.after = jobs.next;
        if page.after.is_none() {
            return Ok(described);
        }
    }
}

/// Computes the features of one job. The inner error says why it is skipped.
async fn describe(
    service: &Service,
    scope: &Scope,
    job: &Undescribed,
    threads: &Threads,
) -> Result<Result<(), String>, Halt> {
    // A model learns from what every namespace has measured.
    let service = &service.on_behalf_of(&Caller::owner(None, job.namespace.clone()));
    let store = service.store();
    let Some(facts) = store.known_matrix(&job.matrix).await? else {
        return Ok(Err("the matrix is unknown".to_owned()));
    };
    let Some(ended) = store.job(&job.job).await? else {
        return Ok(Err("the job no longer exists".to_owned()));
    };
    let file = match service.matrix_file(&job.matrix).await {
        Ok(file) => Some(file),
        Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => None,
        Err(error @ BlobError::Unavailable(_)) => return Err(Halt::Later(error.to_string())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let (wanted, problem, device) = (facts.clone(), job.problem, job.device.clone());
    let digest = job.matrix;
    // With the compiler's figures known when the job began, so that the features are those it would have had then.
    let figures = match ended.started_at {
        Some(started) if ops::of(&problem).prunes_by_figures(device.kind) => {
            store.kernel_figures(&scope.device_class, started).await?
        }
        _ => Figures::new(),
    };
    // And among the candidates that it was to search.
    let narrowing = Narrowing::of(&ended.request, figures);
    let memory = service.settings().limits.memory.clone();
    let read = match file {
        Some(file) => match service.read_patiently(&file).await {
            Ok(read) => Some(read),
            Err(error) => return Ok(Err(error.to_string())),
        },
        None => None,
    };
    let space = move || {
        let (matrix, _held) = match read {
            Some(read) => read,
            None => generated(&digest, &wanted, &memory)?,
        };
        let matrix = ops::operand(matrix, &problem);
        let space = ops::of(&problem).space(&matrix, &device, &narrowing);
        space.map_err(|error| error.to_string())
    };
    let space = match threads.run(space).await? {
        Ok(space) => space,
        Err(why) => return Ok(Err(why)),
    };
    let tried = store.trials(&job.job, &TrialQuery::Summaries, &PageRequest::ALL).await?.items;
    let tried: HashSet<CandidateId> = tried.iter().map(|trial| trial.candidate.id()).collect();
    let numbered = space.scored.iter().zip(space.described.own);
    let own: Vec<_> = numbered
        .map(|((candidate, _), own)| (candidate.id(), own))
        .filter(|(id, _)| tried.contains(id))
        .collect();
    let features = JobFeatures {
        scope: scope.clone(),
        problem: job.problem,
        matrix: job.matrix,
        pattern: facts.pattern_digest,
        name: facts.name,
        features_version: features::version(scope.op),
        shared: space.described.shared,
        // The time of measurement, by which trainings count new trials.
        created_at: ended.finished_at.unwrap_or_else(Timestamp::now),
    };
    store.describe(DescribedJob::Ended { job: &job.job, own: &own }, &features).await?;
    Ok(Ok(()))
}

/// A deleted matrix, generated again if its name is a specification that reproduces it exactly, in memory that readers share.
fn generated(wanted: &Digest, facts: &Matrix, memory: &Pool) -> Result<(Csr, Held), String> {
    let name = facts.name.as_deref().unwrap_or_default();
    let spec = Spec::parse(name).map_err(|_| "the matrix was deleted".to_owned())?;
    // Clients choose names, so a name must not trigger the generation of something much larger. Entries may be drawn
    // twice.
    let alike = spec.size().filter(|size| {
        (size.rows, size.cols) == (facts.rows, facts.cols)
            && size.entries <= MOST_DRAWN * facts.nnz as f64
    });
    let Some(size) = alike else {
        return Err(format!(
            "the matrix was deleted, and the specification {name:?} generates one of another size"
        ));
    };
    let held = memory.open(u64::MAX);
    let entries =
        held.charge((size.entries as u64).max(facts.nnz), GENERATED, "entries that are generated");
    let rows = entries.and_then(|()| held.charge(size.rows + 1, 8, "row pointers"));
    rows.map_err(|error| error.to_string())?;
    let matrix = spec.generate().map_err(|error| error.to_string())?;
    let found = digest::digest(&matrix, &digest::pattern_digest(&matrix));
    match found == *wanted {
        true => Ok((matrix, held)),
        false => Err(format!(
            "the matrix was deleted, and the specification {name:?} generates another matrix"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::features::features;

    #[test]
    fn a_deleted_matrix_is_generated_again_if_identical() {
        let spec = "poisson2d:nx=5,ny=4,seed=3";
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let pattern_digest = digest::pattern_digest(&matrix);
        let own = digest::digest(&matrix, &pattern_digest);
        let facts = |name: Option<&str>| Matrix {
            digest: own,
            pattern_digest,
            name: name.map(str::to_owned),
            rows: 20,
            cols: 20,
            nnz: matrix.nnz() as u64,
            symmetric: false,
            has_full_diagonal: true,
            features: features(&matrix),
            created_at: Timestamp(0),
        };
        let memory = Pool::memory(10_000);
        let bring = |facts: Matrix| generated(&own, &facts, &memory).map(|(matrix, _)| matrix);
        assert_eq!(bring(facts(Some(spec))).unwrap().nnz(), matrix.nnz());
        assert!(generated(&own, &facts(Some(spec)), &Pool::memory(1000)).is_err());
        let other = bring(facts(Some("poisson2d:nx=5,ny=4,seed=4")));
        assert!(other.is_err_and(|why| why.contains("another")));
        for other in ["poisson2d:nx=20000,ny=20000", "banded:n=20,half=19"] {
            let facts = Matrix { nnz: 40, ..facts(Some(other)) };
            let other = bring(facts);
            assert!(other.is_err_and(|why| why.contains("another size")));
        }
        assert!(bring(facts(Some("a name"))).is_err());
        assert!(bring(facts(None)).is_err());
    }
}
