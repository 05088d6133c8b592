//! SpMM: `C = A B`, A sparse (CSR), B dense.

pub mod column_major;
pub mod constraints;
pub mod family;
pub mod inspect;
pub mod lower;
pub mod model;
pub mod model_host;
pub mod panels;
pub mod resident;
pub mod row_panel;
pub mod row_split;
pub mod shared;
pub mod space;
pub mod tiled_row;

pub use lower::Lowerer;

use super::Space;
use crate::domain::{Device, DeviceKind, Spmm};
use crate::search;
use crate::sparse::Csr;
use inspect::Inspection;

/// The space of a matrix on a device: enumerated, pruned, predicted.
pub fn space(matrix: &Csr, problem: &Spmm, device: &Device) -> Space {
    let inspection = Inspection::of(matrix);
    let constraints = constraints::all(&inspection, problem, device);
    let pruned = search::prune(space::enumerate(problem, device.kind), &constraints);
    let predict = |candidate| match device.kind {
        DeviceKind::Cuda => family::kernel(candidate, problem)
            .map_or(f64::INFINITY, |kernel| kernel.predict_us(&inspection, problem, device)),
        DeviceKind::Cpu => model_host::predict_us(candidate, &inspection, problem, device),
    };
    let scored =
        pruned.kept.iter().map(|candidate| (candidate.clone(), predict(candidate))).collect();
    let model = match device.kind {
        DeviceKind::Cuda => model::NAME,
        DeviceKind::Cpu => model_host::NAME,
    };
    Space { scored, vendor: space::vendor(device), pruned, model }
}
