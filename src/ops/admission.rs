//! Checks before a problem is tuned for a matrix: the memory of its operands, and values of the matrix that do not suit it.

use crate::domain::problem::Diagonal;
use crate::domain::{Dtype, Matrix, Problem, Sptrsv};
use crate::sparse::Csr;
use crate::sparse::triangle::{TriangleError, diagonal_of};

/// Upper estimate of the bytes that a problem needs, whichever kernels will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Host memory of the evaluator's process at its peak.
    pub host: u128,
    /// Memory of a GPU.
    pub gpu: u128,
}

impl Footprint {
    pub fn of(matrix: &Matrix, problem: &Problem) -> Self {
        let sizes = Sizes::of(matrix, problem);
        match problem {
            Problem::Spmm(_) => Self { host: sizes.product_on_host(), gpu: sizes.product_on_gpu() },
            Problem::Sptrsv(_) => Self { host: sizes.solve_on_host(), gpu: sizes.solve_on_gpu() },
        }
    }
}

/// Why the values of a matrix do not suit a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The field of the problem that the values do not allow, if a single field is the cause.
    pub field: Option<&'static str>,
    pub why: String,
}

/// Whether [`check_values`] can refuse the problem although the matrix's facts allow it. The facts describe the diagonal in
/// double precision; in f32, 1e-60 becomes zero and 1e40 is out of range.
pub fn values_matter(matrix: &Matrix, problem: &Problem) -> bool {
    let Problem::Sptrsv(Sptrsv { diagonal: Diagonal::NonUnit, dtype, .. }) = problem else {
        return false;
    };
    !matrix.has_full_diagonal || *dtype != Dtype::F64
}

/// Whether the diagonal of a solve's matrix is complete in the problem's type; names the rows that lack it.
pub fn check_values(matrix: &Csr, problem: &Problem) -> Result<(), Unfit> {
    let Problem::Sptrsv(solve) = problem else { return Ok(()) };
    let unfit = |error: TriangleError| Unfit {
        field: matches!(error, TriangleError::Diagonal { .. }).then_some("diagonal"),
        why: error.to_string(),
    };
    diagonal_of(matrix, solve).map(|_| ()).map_err(unfit)
}

/// Elements of the operands; shapes and widths below 2^32 cannot overflow 128 bits.
struct Sizes {
    rows: u128,
    nnz: u128,
    b: u128,
    c: u128,
    /// Elements of the C that a call adds to; 0 if it adds to none.
    c0: u128,
    element: u128,
    /// Bytes of an element of C.
    result: u128,
    /// Rows of the stored matrix if kernels work on its transpose.
    stored_rows: Option<u128>,
}

impl Sizes {
    fn of(matrix: &Matrix, problem: &Problem) -> Self {
        let (rows, cols) = problem.operand_shape(matrix.rows, matrix.cols);
        let (b_lines, width, dtype) = match problem {
            Problem::Spmm(p) => (cols, p.n, p.dtype),
            Problem::Sptrsv(p) => (rows, p.rhs, p.dtype),
        };
        let (rows, width) = (u128::from(rows), u128::from(width));
        let adds = matches!(problem, Problem::Spmm(spmm) if spmm.accumulate);
        Self {
            rows,
            nnz: u128::from(matrix.nnz),
            b: u128::from(b_lines) * width,
            c: rows * width,
            c0: if adds { rows * width } else { 0 },
            element: u128::from(dtype.bytes()),
            result: u128::from(problem.result().bytes()),
            stored_rows: problem.works_on_transpose().then_some(u128::from(matrix.rows)),
        }
    }

    /// Peak memory of the evaluator's process. Per element of C: the reference's value (8) and scale (4), and the result
    /// itself. Per element of B, and of the C that is added to, two elements of its type: as generated, and as shared (or the
    /// engine's aligned or packed copy). Per entry of A 20 bytes: its column (4), its value in f64 (8), and its value in the
    /// problem's type, which the oracle widens to f64 again (8); and for kernels of a CPU that take the rows in another order
    /// a copy of it, its order and its pointers (12 per row).
    fn product_on_host(&self) -> u128 {
        let made = 2 * (self.element * self.b + self.result * self.c0);
        let ordered = (4 + self.element) * self.nnz + 12 * (self.rows + 1);
        let multiplying = (8 + 4 + self.result) * self.c + made + 20 * self.nnz + ordered;
        multiplying.max(self.transposing())
    }

    /// Host memory while the matrix is transposed, before there are dense operands. Per entry 28 bytes: in both matrices
    /// (12 each), and what the tasks count (4). Per row of either 8 bytes for its pointer, and 8 more for the sums of counts.
    fn transposing(&self) -> u128 {
        self.stored_rows.map_or(0, |stored| 28 * self.nnz + 8 * (stored + 1) + 16 * (self.rows + 1))
    }

    /// Memory of a GPU: A with 4-byte columns and row pointers, B, C, and the initial C of a verified call that adds to it.
    /// The reference adapts to the remaining memory: it is compared in slices if it does not fit beside the operands.
    fn product_on_gpu(&self) -> u128 {
        let dense = self.element * self.b + self.result * (self.c + self.c0);
        (4 + self.element) * self.nnz + 4 * (self.rows + 1) + dense
    }

    /// Peak memory of the evaluator's process for a solve. Per entry 44 bytes: in the matrix (12), in the system that x is
    /// checked with and in the one that schemes are lowered from (12 each), and once more as the engine uploads it (8). Per
    /// row 80 bytes: four row pointers (32), the diagonal of both systems (16), levels and their order (24), and the diagonal
    /// as uploaded (8). Per element of b: both right-hand sides, x, and x in f64.
    fn solve_on_host(&self) -> u128 {
        44 * self.nnz + 80 * (self.rows + 1) + (3 * self.element + 8) * self.b
    }

    /// Memory of a GPU for a solve: the strict triangle with its diagonal, both right-hand sides and x. Entries of the other
    /// triangle are counted as well, since the facts do not say how many there are. Schemes need further arrays; the engine
    /// refuses a scheme for which there is no room.
    fn solve_on_gpu(&self) -> u128 {
        (4 + self.element) * self.nnz
            + (4 + self.element) * (self.rows + 1)
            + 3 * self.element * self.b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Layout, Spmm};

    #[test]
    fn a_c_that_is_added_to_counts_on_host_and_gpu() {
        let sizes = |accumulate| Sizes {
            rows: 10,
            nnz: 30,
            b: 5 * 4,
            c: 10 * 4,
            c0: if accumulate { 10 * 4 } else { 0 },
            element: 2,
            result: 2,
            stored_rows: None,
        };
        let (plain, adding) = (sizes(false), sizes(true));
        assert_eq!(adding.product_on_gpu() - plain.product_on_gpu(), 2 * 40);
        assert_eq!(adding.product_on_host() - plain.product_on_host(), 2 * 2 * 40);
    }

    #[test]
    fn a_transposed_product_counts_its_own_shapes_and_the_transposition() {
        let matrix = Csr::new(1, 3000, vec![0, 2], vec![0, 9], vec![1.0; 2]).unwrap();
        let facts = crate::sparse::features::facts(&matrix, None);
        let plain = Spmm::new(4, Dtype::F32, Layout::Row);
        let of = |spmm| Footprint::of(&facts, &Problem::Spmm(spmm));
        let (given, turned) = (of(plain), of(Spmm { transpose: true, ..plain }));
        // B and C change places, and there are more row pointers.
        assert_eq!(turned.gpu - given.gpu, 4 * 2999);
        assert!(turned.host > given.host);
        let thin = of(Spmm { transpose: true, ..Spmm::new(1, Dtype::F32, Layout::Row) });
        assert_eq!(thin.host, 16 * 3000 + 8 + 28 * 2 + 12 * 3001);
    }
}
