//! SpTRSV as an operation: its problems, its kernels, and the way from a problem to its schemes.

use super::families::OWN;
use super::{MODEL, SptrsvLowerer, features};
use crate::domain::catalog::vendor::Library;
use crate::domain::{Candidate, Device, DeviceKind, Digest, Matrix, Op, Sptrsv};
use crate::ops::family::Family;
use crate::ops::limit::{self, Least};
use crate::ops::operation::{TunableOperation, TunableProblem};
use crate::ops::vendor::{VendorLibrary, stored};
use crate::ops::{Lowerer, Narrowing, Space, Unsupported};
use crate::sparse::{Csr, Triangular};
use std::sync::Arc;

pub struct SptrsvOperation;

/// The vendors' routines for triangular solves.
static VENDORS: [VendorLibrary; 4] = [
    VendorLibrary {
        id: "sptrsv.cusparse",
        op: Op::Sptrsv,
        device: DeviceKind::Cuda,
        library: Library::CusparseSolve,
        title: "cuSPARSE",
        summary: "A triangular solve of NVIDIA's library, which analyses the matrix first.",
        stored: &[stored(Library::CusparseSolve)],
    },
    VendorLibrary {
        id: "sptrsv.mkl",
        op: Op::Sptrsv,
        device: DeviceKind::Cpu,
        library: Library::MklSolve,
        title: "MKL",
        summary: "A triangular solve of Intel's library, which inspects the matrix first, on all threads.",
        stored: &[stored(Library::MklSolve)],
    },
    VendorLibrary {
        id: "sptrsv.plain",
        op: Op::Sptrsv,
        device: DeviceKind::Cpu,
        library: Library::PlainSolve,
        title: "Plain substitution",
        summary: "Where MKL is not installed: row after row on one thread.",
        stored: &[stored(Library::PlainSolve)],
    },
    VendorLibrary {
        id: "sptrsv.sprs",
        op: Op::Sptrsv,
        device: DeviceKind::Cpu,
        library: Library::Sprs,
        title: "sprs",
        summary: "The triangular solve of the Rust crate sprs, on one thread: the baseline of plans of earlier versions.",
        stored: &[stored(Library::Sprs)],
    },
];

impl TunableOperation for SptrsvOperation {
    fn op(&self) -> Op {
        Op::Sptrsv
    }

    fn families(&self) -> Vec<&'static dyn Family> {
        OWN.iter().copied().chain(VENDORS.iter().map(|library| library as &dyn Family)).collect()
    }

    fn features_version(&self) -> u32 {
        features::VERSION
    }

    fn feature_names(&self) -> (Vec<String>, Vec<String>) {
        features::names()
    }
}

impl TunableProblem for Sptrsv {
    fn op(&self) -> Op {
        Op::Sptrsv
    }

    /// The diagonal is not checked here but by `sparse::Triangular`, which has the entries.
    fn check(&self, matrix: &Matrix) -> Result<(), Unsupported> {
        let (rows, cols) = (matrix.rows, matrix.cols);
        if rows != cols {
            let why =
                format!("the matrix is {rows} x {cols}: a triangular solve needs a square one");
            return Err(Unsupported(why));
        }
        let most = u32::MAX >> 1;
        if rows > u64::from(most) {
            let why = format!("the matrix has {rows} rows; at most {most} can be tuned");
            return Err(Unsupported(why));
        }
        Ok(())
    }

    fn model_name(&self, _: DeviceKind) -> &'static str {
        MODEL
    }

    fn space(
        &self,
        matrix: &Csr,
        device: &Device,
        narrowing: &Narrowing,
    ) -> Result<Space, Unsupported> {
        super::space(matrix, self, device, narrowing)
    }

    fn prunes_by_figures(&self, _: DeviceKind) -> bool {
        false
    }

    fn kernel_identity(&self, _: &Candidate, _: &Device) -> Option<Digest> {
        None
    }

    fn lowerer(&self, matrix: Arc<Csr>, device: &Device) -> Result<Box<dyn Lowerer>, Unsupported> {
        Ok(Box::new(SptrsvLowerer::new(&matrix, *self, device.clone())?))
    }

    /// A scheme packs its values, with their columns, in a scheme-specific order.
    fn bytes_per_candidate(&self, nnz: u64) -> Option<u64> {
        Some(nnz.max(1) * (4 + self.dtype.bytes()))
    }

    /// Warps of a solve wait for one another, so a solve that is far too slow can end itself early.
    fn hopeless_factor(&self) -> f64 {
        3.0
    }

    fn least(&self, matrix: &Csr, device: &Device) -> Result<Least, Unsupported> {
        let system = Triangular::of(matrix, self);
        let system = system.map_err(|error| Unsupported(error.to_string()))?;
        let levels = system.levels().widths.len();
        Ok(limit::solve(&system, levels, self, device))
    }
}
