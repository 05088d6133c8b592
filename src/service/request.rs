//! What a job request must be before anything is stored, and the question it asks once its defaults are filled in.

use super::{Result, SearchDefaults, ServiceError};
use crate::domain::{Device, JobRequest, L2Policy, Matrix, Problem, Search, Strategy};
use crate::ops;

/// The longest search: a budget beyond it is a mistake, not a wish.
const MAX_SECONDS: f64 = 24.0 * 3600.0;
/// The most trials: each is a row with its samples.
const MAX_TRIALS: u32 = 1_000_000;

/// The request with every absent field of its search filled in, so that the job says all that it does.
pub(super) fn fill(request: &JobRequest, defaults: &SearchDefaults) -> Result<JobRequest> {
    let search = &request.search;
    if search.strategy == Strategy::Predicted {
        return Err(ServiceError::Unsupported {
            pointer: Some("/search/strategy".to_owned()),
            message: "nothing can be predicted yet: no model has been trained".to_owned(),
        });
    }
    let filled = Search {
        strategy: search.strategy,
        top_k: Some(search.top_k.unwrap_or(defaults.top_k)),
        seconds: Some(search.seconds.unwrap_or(defaults.seconds)),
        trials: Some(search.trials.unwrap_or(defaults.trials)),
        seed: Some(search.seed.unwrap_or(defaults.seed)),
    };
    // NaN is in no range.
    if filled.seconds.is_some_and(|s| !(s > 0.0 && s <= MAX_SECONDS)) {
        let message = format!("seconds must be above 0 and at most {MAX_SECONDS}");
        return Err(ServiceError::invalid("/search/seconds", message));
    }
    for (pointer, count) in [("/search/trials", filled.trials), ("/search/top_k", filled.top_k)] {
        if count.is_some_and(|count| !(1..=MAX_TRIALS).contains(&count)) {
            return Err(ServiceError::invalid(pointer, format!("must be 1 to {MAX_TRIALS}")));
        }
    }
    if request.expected_calls == Some(0) {
        let message = "a kernel that is never called needs no plan: at least 1, or absent";
        return Err(ServiceError::invalid("/expected_calls", message));
    }
    Ok(JobRequest { search: filled, ..request.clone() })
}

/// Whether the problem can be tuned for the matrix, and its operands fit the device and this host.
pub(super) fn check(
    matrix: &Matrix,
    problem: &Problem,
    device: &Device,
    max_dense_bytes: u64,
) -> Result<()> {
    if let Problem::Spmm(spmm) = problem
        && !(1..=ops::MAX_COLUMNS).contains(&spmm.n)
    {
        let message = format!("n must be 1 to {}, not {}", ops::MAX_COLUMNS, spmm.n);
        return Err(ServiceError::invalid("/problem/n", message));
    }
    ops::check(matrix, problem).map_err(|unsupported| ServiceError::Unsupported {
        pointer: Some("/problem".to_owned()),
        message: unsupported.to_string(),
    })?;
    let dense = dense_bytes(matrix, problem);
    if dense > u128::from(max_dense_bytes) {
        return Err(ServiceError::TooLarge {
            message: format!(
                "B and C would take {dense} bytes together, the most that is taken here is {max_dense_bytes}"
            ),
        });
    }
    // Column indices and values of 4 bytes each, row pointers of 4: what every device holds of A.
    let sparse = 8 * u128::from(matrix.nnz) + 4 * (u128::from(matrix.rows) + 1);
    if sparse + dense > u128::from(device.memory_bytes) {
        return Err(ServiceError::TooLarge {
            message: format!(
                "A, B and C take {} bytes, device {} has {}",
                sparse + dense,
                device.id,
                device.memory_bytes
            ),
        });
    }
    Ok(())
}

/// Bytes of the dense operands; shapes and widths below 2^32 cannot overflow 128 bits.
fn dense_bytes(matrix: &Matrix, problem: &Problem) -> u128 {
    let (lines, width, dtype) = match problem {
        Problem::Spmm(p) => (u128::from(matrix.rows) + u128::from(matrix.cols), p.n, p.dtype),
        Problem::Sptrsv(p) => (2 * u128::from(matrix.rows), p.rhs, p.dtype),
    };
    lines * u128::from(width) * u128::from(dtype.bytes())
}

/// Requests with one key ask one question: while one is being answered, the others wait for the same answer.
pub(super) fn dedup_key(filled: &JobRequest, device: &Device, l2_policy: L2Policy) -> String {
    let Search { strategy, top_k, seconds, trials, seed } = &filled.search;
    format!(
        "{};{};{};l2={l2_policy};{strategy:?};{top_k:?};{seconds:?};{trials:?};{seed:?};{:?}",
        filled.matrix, filled.problem, device.id, filled.expected_calls
    )
}
