//! A random problem for the engine, and a plain kernel for it.

use sparsetune::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Recipe, Step};
use sparsetune::domain::{Candidate, Dtype, L2Policy, Layout, Problem, Spmm};
use sparsetune::engine::{Expected, Operands};
use sparsetune::sparse::Csr;
use sparsetune::sparse::oracle::Product;
use std::sync::Arc;

/// One thread per element of C, with the row as the slow index. `STORE` is what it does with its sum.
const BODY: &str = r#"
extern "C" __global__ void spmm(const unsigned* row_ptr, const unsigned* col_idx, const float* values,
                                const float* b, float* c, const unsigned* order, unsigned rows,
                                unsigned cols, unsigned n) {
  const unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (unsigned long long)rows * n) return;
  const unsigned row = order[i / n], j = i % n;
  float sum = 0.f;
  for (unsigned k = row_ptr[row]; k < row_ptr[row + 1]; ++k) sum += values[k] * b[B_AT(col_idx[k], j)];
  STORE
}
"#;

const BLOCK: u32 = 128;

/// A small fixed generator: the engine is under test here, not the statistics.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn real(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
}

pub struct Case {
    pub operands: Operands,
    pub rows: usize,
    pub cols: usize,
    pub spmm: Spmm,
}

/// A random matrix with about `row_nnz` entries per row, B, and the product.
pub fn case(rows: usize, cols: usize, row_nnz: usize, n: usize, layout: Layout) -> Case {
    let mut random = Lcg(rows as u64 * 31 + n as u64);
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        // Every seventh row is empty.
        let wanted = if row % 7 == 3 { 0 } else { row_nnz };
        let mut columns: Vec<u32> =
            (0..wanted).map(|_| (random.next() % cols as u64) as u32).collect();
        columns.sort_unstable();
        columns.dedup();
        values.extend(columns.iter().map(|_| f64::from(random.real()) * 1.000_000_01));
        indices.extend(columns);
        indptr.push(indices.len());
    }
    let matrix = Csr::new(rows, cols, indptr, indices, values).expect("canonical");
    let b: Vec<f32> = (0..cols * n).map(|_| random.real()).collect();
    let at = |count: usize, row: usize, j: usize| match layout {
        Layout::Row => row * n + j,
        Layout::Col => j * count + row,
    };
    let mut product = Product { value: vec![0.0; rows * n], scale: vec![0.0; rows * n] };
    for row in 0..rows {
        let (columns, values) = matrix.row(row);
        for j in 0..n {
            let (mut value, mut scale) = (0.0, 0.0);
            for (&column, &a) in columns.iter().zip(values) {
                let term = f64::from(a as f32) * f64::from(b[at(cols, column as usize, j)]);
                value += term;
                scale += term.abs();
            }
            product.value[at(rows, row, j)] = value;
            product.scale[at(rows, row, j)] = scale as f32;
        }
    }
    let spmm = Spmm::new(n as u32, Dtype::F32, layout);
    let operands = Operands {
        matrix: Arc::new(matrix),
        problem: Problem::Spmm(spmm),
        l2_policy: L2Policy::Warm,
        b: b.into(),
        c0: None,
        expected: Expected::Product(Arc::new(product)),
    };
    Case { operands, rows, cols, spmm }
}

impl Case {
    /// The test's kernel with its last statement replaced.
    pub fn kernel(&self, store: &str) -> Recipe {
        let (b_at, c_at) = match self.spmm.layout {
            Layout::Row => {
                ("((r) * (unsigned long long)n + (j))", "((r) * (unsigned long long)n + (j))")
            }
            Layout::Col => {
                ("((j) * (unsigned long long)cols + (r))", "((j) * (unsigned long long)rows + (r))")
            }
        };
        let source = format!(
            "#define B_AT(r, j) {b_at}\n#define C_AT(r, j) {c_at}\n{}",
            BODY.replace("STORE", store)
        );
        // Reversed, to see that arrays arrive.
        let order: Arc<[u32]> = (0..self.rows as u32).rev().collect();
        let elements = self.rows as u64 * u64::from(self.spmm.n);
        let [rows, cols] = [self.rows, self.cols].map(|count| Arg::U32(count as u32));
        let operands = [Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::B, Arg::C, Arg::Array(0)];
        let grid = elements.div_ceil(u64::from(BLOCK)).max(1) as u32;
        let args = operands.into_iter().chain([rows, cols, Arg::U32(self.spmm.n)]).collect();
        let program = CudaProgram::of(source, Step::of("spmm", grid, BLOCK, args));
        let arrays = vec![Array { name: "order".to_owned(), data: ArrayData::U32(order) }];
        Recipe { arrays, ..Recipe::bare(&Candidate::new("test"), Program::Cuda(program)) }
    }
}
