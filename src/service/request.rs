//! What a job request must be before anything is stored, and the question it asks once its defaults are filled in.

use super::{Result, SearchDefaults, ServiceError};
use crate::domain::{
    Device, DeviceKind, JobRequest, L2Policy, Matrix, Problem, Search, SearchStrategy, Sptrsv,
};
use crate::ops;
use crate::sparse::canonical;
use crate::sparse::triangle::{TriangleError, diagonal_of};
use std::path::Path;

/// The longest search: a budget beyond it is a mistake, not a wish.
const MAX_SECONDS: f64 = 24.0 * 3600.0;
/// The most trials: each is a row with its samples.
const MAX_TRIALS: u32 = 1_000_000;

/// The request with every absent field of its search filled in, so that the job says all that it does.
pub(super) fn fill(request: &JobRequest, defaults: &SearchDefaults) -> Result<JobRequest> {
    let search = &request.search;
    if search.measure && search.strategy != SearchStrategy::Predicted {
        let message = "only the strategy predicted leaves something to be measured afterwards";
        return Err(ServiceError::invalid("/search/measure", message));
    }
    let filled = Search {
        strategy: search.strategy,
        top_k: Some(search.top_k.unwrap_or(defaults.top_k)),
        seconds: Some(search.seconds.unwrap_or(defaults.seconds)),
        trials: Some(search.trials.unwrap_or(defaults.trials_of(search.strategy))),
        seed: Some(search.seed.unwrap_or(defaults.seed)),
        measure: search.measure,
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
    max_host_bytes: u64,
) -> Result<()> {
    if let Problem::Spmm(spmm) = problem
        && !(1..=ops::MAX_COLUMNS).contains(&spmm.n)
    {
        let message = format!("n must be 1 to {}, not {}", ops::MAX_COLUMNS, spmm.n);
        return Err(ServiceError::invalid("/problem/n", message));
    }
    if let Problem::Sptrsv(solve) = problem
        && !(1..=Sptrsv::MAX_RHS).contains(&solve.rhs)
    {
        let message = format!("rhs must be 1 to {}, not {}", Sptrsv::MAX_RHS, solve.rhs);
        return Err(ServiceError::invalid("/problem/rhs", message));
    }
    let fits = ops::check(matrix, problem).and_then(|()| ops::check_device(problem, device.kind));
    fits.map_err(|unsupported| ServiceError::Unsupported {
        pointer: Some("/problem".to_owned()),
        message: unsupported.to_string(),
    })?;
    let sizes = Sizes::of(matrix, problem);
    let (host, gpu) = match problem {
        Problem::Spmm(_) => (sizes.product_on_host(), sizes.product_on_gpu()),
        Problem::Sptrsv(_) => (sizes.solve_on_host(), sizes.solve_on_gpu()),
    };
    if host > u128::from(max_host_bytes) {
        let message = format!(
            "the operands and what the result is checked with take {host} bytes of a host's memory, at most \
             {max_host_bytes} are granted here"
        );
        return Err(ServiceError::TooLarge { message });
    }
    let held = match device.kind {
        DeviceKind::Cpu => host,
        DeviceKind::Cuda => gpu,
    };
    if held > u128::from(device.memory_bytes) {
        let Device { id, memory_bytes, .. } = device;
        let message =
            format!("the operands take {held} bytes on device {id}, which has {memory_bytes}");
        return Err(ServiceError::TooLarge { message });
    }
    Ok(())
}

/// Whether the diagonal of the matrix is whole in the problem's type; names the rows that lack it. Reads the matrix, and
/// blocks meanwhile.
pub(super) fn check_diagonal(path: &Path, problem: &Problem) -> Result<()> {
    let Problem::Sptrsv(solve) = problem else { return Ok(()) };
    let (csr, _) = canonical::open(path).map_err(ServiceError::internal)?;
    match diagonal_of(&csr, solve) {
        Ok(_) => Ok(()),
        Err(error @ TriangleError::Diagonal { .. }) => {
            Err(ServiceError::invalid("/problem/diagonal", error.to_string()))
        }
        Err(error) => Err(ServiceError::Unsupported {
            pointer: Some("/problem".to_owned()),
            message: error.to_string(),
        }),
    }
}

/// Elements of the operands; shapes and widths below 2^32 cannot overflow 128 bits.
struct Sizes {
    rows: u128,
    nnz: u128,
    b: u128,
    c: u128,
    /// Of the C that a call adds to; 0 where it adds to none.
    c0: u128,
    element: u128,
}

impl Sizes {
    fn of(matrix: &Matrix, problem: &Problem) -> Self {
        let (b_lines, width, dtype) = match problem {
            Problem::Spmm(p) => (matrix.cols, p.n, p.dtype),
            Problem::Sptrsv(p) => (matrix.rows, p.rhs, p.dtype),
        };
        let (rows, width) = (u128::from(matrix.rows), u128::from(width));
        let adds = matches!(problem, Problem::Spmm(spmm) if spmm.accumulate);
        Self {
            rows,
            nnz: u128::from(matrix.nnz),
            b: u128::from(b_lines) * width,
            c: rows * width,
            c0: if adds { rows * width } else { 0 },
            element: u128::from(dtype.bytes()),
        }
    }

    /// What the evaluator's process holds at its fullest. For an element of C the reference's value (8) and scale (4),
    /// and the result itself. For one of B, and of the C that is added to, two of its type: as it was made, and as it is
    /// shared, or the engine's aligned or packed copy. For an entry of A 20: its column (4), its value in f64 (8), and
    /// its value as the problem's type has it, which the oracle widens to f64 again (8).
    fn product_on_host(&self) -> u128 {
        let made = 2 * self.element * (self.b + self.c0);
        (8 + 4 + self.element) * self.c + made + 20 * self.nnz
    }

    /// What a GPU must hold: A with 4-byte columns and row pointers, B, C, and what a verified C begins as where it is
    /// added to. The reference adapts to what is left: it is compared in slices where it does not fit beside them.
    fn product_on_gpu(&self) -> u128 {
        let dense = self.b + self.c + self.c0;
        (4 + self.element) * self.nnz + 4 * (self.rows + 1) + self.element * dense
    }

    /// What the evaluator's process holds at its fullest for a solve. For an entry 44 bytes: in the matrix (12), in the
    /// system that x is checked with and in the one that schemes are lowered from (12 each), and one more as the engine
    /// uploads it (8). For a row 80: four row pointers (32), the diagonal of both systems (16), levels and their order
    /// (24), and the diagonal as uploaded (8). For an element of b: both right-hand sides, x, and x in f64.
    fn solve_on_host(&self) -> u128 {
        44 * self.nnz + 80 * (self.rows + 1) + (3 * self.element + 8) * self.b
    }

    /// What a GPU must hold for a solve: the strict triangle with its diagonal, both right-hand sides and x. What lies in
    /// the other triangle is counted as well: the facts do not tell how much that is. Schemes bring their own arrays;
    /// one for which there is no room is refused by the engine.
    fn solve_on_gpu(&self) -> u128 {
        (4 + self.element) * self.nnz
            + (4 + self.element) * (self.rows + 1)
            + 3 * self.element * self.b
    }
}

/// Requests with one key ask one question: while one is being answered, the others wait for the same answer.
pub(super) fn dedup_key(filled: &JobRequest, device: &Device, l2_policy: L2Policy) -> String {
    let Search { strategy, top_k, seconds, trials, seed, measure } = &filled.search;
    let measured = if *measure { ";measure" } else { "" };
    format!(
        "{};{};{};l2={l2_policy};{strategy:?};{top_k:?};{seconds:?};{trials:?};{seed:?};{:?}{measured}",
        filled.matrix, filled.problem, device.id, filled.expected_calls
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_c_that_is_added_to_counts_on_host_and_gpu() {
        let sizes = |accumulate| Sizes {
            rows: 10,
            nnz: 30,
            b: 5 * 4,
            c: 10 * 4,
            c0: if accumulate { 10 * 4 } else { 0 },
            element: 2,
        };
        let (plain, adding) = (sizes(false), sizes(true));
        assert_eq!(adding.product_on_gpu() - plain.product_on_gpu(), 2 * 40);
        assert_eq!(adding.product_on_host() - plain.product_on_host(), 2 * 2 * 40);
    }
}
