//! How long loading takes, told before it begins: by the work that it is, and the pace at which this process loaded before.

use crate::domain::{Matrix, Problem};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds per step until a first loading has shown the pace: two cores of a small server.
const FIRST_PACE: f64 = 1.5e-9;

/// What every loading takes, however small the matrix.
const LEAST: Duration = Duration::from_millis(50);

/// Loadings with fewer steps than this say nothing of the pace.
const TELLING: f64 = 1e7;

/// How much of the pace the last loading decides.
const NEWEST: f64 = 0.5;

/// Seconds per step, as the bits of an f64; 0 before the first loading.
static PACE: AtomicU64 = AtomicU64::new(0);

/// The steps of loading a matrix for a problem: reading its entries, the reference product with every column, and both dense operands.
pub(super) fn work(matrix: &Matrix, problem: &Problem) -> f64 {
    /// Steps of reading an entry and of surveying its row, and of an element of a dense operand.
    const ENTRY: f64 = 40.0;
    const ELEMENT: f64 = 8.0;
    let columns = f64::from(problem.columns());
    let (entries, sides) = (matrix.nnz as f64, (matrix.rows + matrix.cols) as f64);
    entries * (ENTRY + 2.0 * columns) + ELEMENT * sides * columns
}

/// About how long this work takes.
pub(super) fn expected(work: f64) -> Duration {
    let known = f64::from_bits(PACE.load(Ordering::Relaxed));
    let pace = if known > 0.0 { known } else { FIRST_PACE };
    LEAST + Duration::try_from_secs_f64(pace * work).unwrap_or_default()
}

/// Learns from a loading.
pub(super) fn took(work: f64, time: Duration) {
    if work < TELLING {
        return;
    }
    let pace = time.saturating_sub(LEAST).as_secs_f64() / work;
    let known = f64::from_bits(PACE.load(Ordering::Relaxed));
    let pace = if known > 0.0 { NEWEST * pace + (1.0 - NEWEST) * known } else { pace };
    PACE.store(pace.to_bits(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_loading_is_expected_to_take_as_long_as_the_first() {
        let work = 4e8;
        assert!(expected(work) > Duration::from_millis(500));
        took(work, Duration::from_secs(10));
        let told = expected(work).as_secs_f64();
        assert!((9.9..10.1).contains(&told), "{told}");
        // Small ones tell nothing.
        took(1e3, Duration::from_secs(10));
        assert!(expected(work).as_secs_f64() < 10.1);
    }
}
