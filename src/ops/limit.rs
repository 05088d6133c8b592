//! The least time of one call, by what any kernel has to move and, for a solve, by the way through its levels: for plans
//! that are made without an evaluator, which otherwise says it.

use super::Unsupported;
use crate::domain::plan::Bound;
use crate::domain::problem::Diagonal;
use crate::domain::{Device, DeviceKind, Problem};
use crate::sparse::{Csr, Triangular};

/// A yardstick of a problem on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    pub us: f64,
    pub bound: Bound,
    /// Each input read once, each output written once.
    pub bytes: u64,
}

/// As `protocol::Loaded` has it: compulsory bytes at the measured copy bandwidth, or levels x hop where that is more.
pub fn least(matrix: &Csr, problem: &Problem, device: &Device) -> Result<Least, Unsupported> {
    match problem {
        Problem::Spmm(spmm) => {
            let (rows, nnz) = (matrix.rows() as u64, matrix.nnz() as u64);
            let element = spmm.dtype.bytes();
            let mut touched = vec![false; matrix.cols()];
            matrix.indices().iter().for_each(|column| touched[*column as usize] = true);
            let touched = touched.into_iter().filter(|touched| *touched).count() as u64;
            let written = if spmm.accumulate { 2 * rows } else { rows };
            let dense = (touched + written) * u64::from(spmm.n) * element;
            let bytes = 4 * (rows + 1) + nnz * (4 + element) + dense;
            Ok(Least { us: bytes_us(bytes, device), bound: Bound::Bytes, bytes })
        }
        Problem::Sptrsv(solve) => {
            let system = Triangular::of(matrix, solve);
            let system = system.map_err(|error| Unsupported(error.to_string()))?;
            let (rows, nnz) = (system.rows() as u64, system.nnz() as u64);
            let element = solve.dtype.bytes();
            let diagonal = match solve.diagonal {
                Diagonal::NonUnit => rows * element,
                Diagonal::Unit => 0,
            };
            let sides = 2 * rows * u64::from(solve.rhs) * element;
            let bytes = 4 * (rows + 1) + nnz * (4 + element) + diagonal + sides;
            let by_bytes = bytes_us(bytes, device);
            let hops = match device.kind {
                DeviceKind::Cpu => 0.0,
                DeviceKind::Cuda => system.levels().widths.len() as f64 * device.hop_ns / 1e3,
            };
            Ok(match hops > by_bytes {
                true => Least { us: hops, bound: Bound::Latency, bytes },
                false => Least { us: by_bytes, bound: Bound::Bytes, bytes },
            })
        }
    }
}

fn bytes_us(bytes: u64, device: &Device) -> f64 {
    match device.copy_gbps > 0.0 {
        true => bytes as f64 / (device.copy_gbps * 1e3),
        false => 0.0,
    }
}
