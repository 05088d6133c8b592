//! The least time of one call, from the bytes that any kernel must move and, for a solve, from the chain of its levels. Plans
//! are compared with it, whether an evaluator loaded the matrix or a lookup predicted without one.

use crate::domain::plan::Bound;
use crate::domain::problem::Diagonal;
use crate::domain::{Device, DeviceKind, Spmm, Sptrsv};
use crate::sparse::{Csr, Triangular};
use rayon::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// What L2 gives per byte that memory does, about.
pub const L2_OVER_MEMORY: f64 = 2.0;

/// The least time of a problem on a device, as a reference for its plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    pub us: f64,
    pub bound: Bound,
    /// Each input read once, each output written once.
    pub bytes: u64,
}

/// Compulsory bytes at the measured copy bandwidth: A once, each row of B that some entry needs once, and C once, or twice if
/// it is also read.
///
/// A is counted with 32-bit row pointers and column indices, as every kernel here stores it.
pub fn product(matrix: &Csr, spmm: &Spmm, device: &Device) -> Least {
    let (rows, nnz, n) = (matrix.rows() as u64, matrix.nnz() as u64, u64::from(spmm.n));
    let element = spmm.dtype.bytes();
    let a = 4 * (rows + 1) + nnz * (4 + element);
    let c = if spmm.accumulate { 2 * rows } else { rows };
    let bytes = a + (touched_columns(matrix) * element + c * spmm.result().bytes()) * n;
    Least { us: bytes_us(bytes, device), bound: Bound::Bytes, bytes }
}

/// The larger of two times: compulsory bytes (T once with 32-bit indices, its diagonal unless that is all ones, b, x) at the
/// measured copy bandwidth, and levels x hop. A scheme that rewrites the system to fewer levels, or stays within one
/// multiprocessor, may take less than the latter: it is a reference for the system as it was given.
pub fn solve(system: &Triangular, levels: usize, problem: &Sptrsv, device: &Device) -> Least {
    let element = problem.dtype.bytes();
    let (rows, nnz) = (system.rows() as u64, system.nnz() as u64);
    let diagonal = match problem.diagonal {
        Diagonal::NonUnit => rows * element,
        Diagonal::Unit => 0,
    };
    let sides = 2 * rows * u64::from(problem.rhs) * element;
    let bytes = 4 * (rows + 1) + nnz * (4 + element) + diagonal + sides;
    let by_bytes = bytes_us(bytes, device);
    let by_levels = match device.kind {
        // A single thread of a host makes no hop.
        DeviceKind::Cpu => 0.0,
        DeviceKind::Cuda => levels as f64 * device.hop_ns / 1e3,
    };
    let (us, bound) = match by_levels > by_bytes {
        true => (by_levels, Bound::Latency),
        false => (by_bytes, Bound::Bytes),
    };
    Least { us, bound, bytes }
}

/// The least time of moving this many bytes, microseconds.
fn bytes_us(bytes: u64, device: &Device) -> f64 {
    // 1 GB/s is 1e3 bytes per microsecond. A device whose bandwidth could not be measured has no limit to report.
    if device.copy_gbps > 0.0 { bytes as f64 / (device.copy_gbps * 1e3) } else { 0.0 }
}

/// Columns with at least one entry.
fn touched_columns(matrix: &Csr) -> u64 {
    let words: Vec<AtomicU64> =
        std::iter::repeat_with(AtomicU64::default).take(matrix.cols().div_ceil(64)).collect();
    matrix.indices().par_chunks(1 << 16).for_each(|columns| {
        for &col in columns {
            let (word, bit) = (&words[col as usize / 64], 1 << (col % 64));
            // Most entries find their bit set: reading first keeps the line shared among the cores.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    });
    words.into_iter().map(|word| u64::from(word.into_inner().count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::Triangle;
    use crate::domain::{Dtype, Layout, Output, Problem};
    use crate::ops::of;

    fn gpu() -> Device {
        let device = r#"{"id":"cuda:0","kind":"cuda","name":"x","compute_capability":"9.0",
            "multiprocessors":1,"warp_size":32,"max_threads_per_block":1,"max_threads_per_multiprocessor":1,
            "max_blocks_per_multiprocessor":1,"registers_per_thread":1,"registers_per_block":1,
            "registers_per_multiprocessor":1,"shared_bytes_per_block":1,"shared_bytes_per_multiprocessor":1,
            "l2_bytes":1,"memory_bytes":1,"copy_gbps":1.0,"hop_ns":250.0,"driver":"","compiler":"","vendor":null}"#;
        serde_json::from_str(device).unwrap()
    }

    #[test]
    fn a_product_counts_each_needed_byte_once() {
        // 2 x 70 with entries in columns 0, 69 and 69: 12 + 3 * 8 for A, 2 rows of B, 2 rows of C.
        let matrix = Csr::new(2, 70, vec![0, 2, 3], vec![0, 69, 69], vec![1.0; 3]).unwrap();
        assert_eq!(touched_columns(&matrix), 2);
        let single = Spmm::new(5, Dtype::F32, Layout::Row);
        let of = |matrix: &Csr, spmm: &Spmm| product(matrix, spmm, &gpu());
        let bytes = 12 + 24 + (2 + 2) * 5 * 4;
        let bound = Bound::Bytes;
        assert_eq!(of(&matrix, &single), Least { us: bytes as f64 / 1e3, bound, bytes });
        let half = Spmm { dtype: Dtype::F16, accumulate: true, ..single };
        assert_eq!(of(&matrix, &half).bytes, 12 + 3 * 6 + (2 + 4) * 5 * 2);
        let wide = Spmm { output: Output::F32, ..half };
        assert_eq!(of(&matrix, &wide).bytes, 12 + 3 * 6 + 2 * 5 * 2 + 4 * 5 * 4);
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(of(&empty, &single).bytes, 4);
        let unmeasured = Device { copy_gbps: 0.0, ..gpu() };
        assert_eq!(product(&matrix, &single, &unmeasured), Least { us: 0.0, bound, bytes });
    }

    fn solve_in(dtype: Dtype, diagonal: Diagonal) -> Problem {
        let triangle = Triangle::Lower;
        Problem::Sptrsv(Sptrsv {
            rhs: 3,
            dtype,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        })
    }

    /// A chain of four rows, with an entry above the diagonal that no lower solve reads.
    fn chain() -> Csr {
        let (indptr, indices) = (vec![0, 2, 4, 6, 8], vec![0, 3, 0, 1, 1, 2, 2, 3]);
        Csr::new(4, 4, indptr, indices, vec![2.0, 1e300, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]).unwrap()
    }

    #[test]
    fn a_solve_counts_the_triangle_and_nothing_else() {
        let bytes = |matrix: &Csr, dtype, diagonal| {
            of(&solve_in(dtype, diagonal)).least(matrix, &gpu()).unwrap().bytes
        };
        let all = 20 + 3 * 12 + 4 * 8 + 2 * 4 * 3 * 8;
        assert_eq!(bytes(&chain(), Dtype::F64, Diagonal::NonUnit), all);
        // The entry beyond f32 lies in the other triangle.
        assert_eq!(bytes(&chain(), Dtype::F32, Diagonal::Unit), 20 + 3 * 8 + 2 * 4 * 3 * 4);
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(bytes(&empty, Dtype::F32, Diagonal::NonUnit), 4);
    }

    #[test]
    fn a_solve_takes_the_larger_of_bytes_and_levels() {
        let asked = solve_in(Dtype::F64, Diagonal::NonUnit);
        let on = |device: &Device| {
            let least = of(&asked).least(&chain(), device).unwrap();
            (least.us, least.bound)
        };
        assert_eq!(on(&gpu()), (1.0, Bound::Latency));
        let slow = Device { copy_gbps: 0.1, ..gpu() };
        assert_eq!(on(&slow), (2.8, Bound::Bytes));
        let host = Device { kind: DeviceKind::Cpu, ..gpu() };
        assert_eq!(on(&host), (0.28, Bound::Bytes));
        let unmeasured = Device { copy_gbps: 0.0, hop_ns: 0.0, ..gpu() };
        assert_eq!(on(&unmeasured), (0.0, Bound::Bytes));
        let wide = Csr::new(1, 2, vec![0, 0], vec![], vec![]).unwrap();
        assert!(of(&asked).least(&wide, &gpu()).unwrap_err().0.contains("square"));
    }
}
