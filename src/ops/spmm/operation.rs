//! SpMM as an operation: which problems it has, its kernels, and the way from a problem to its candidates.

use super::family::{self, FAMILIES};
use super::host::HOST_FAMILIES;
use super::{SpmmLowerer, features, model, model_host};
use crate::domain::catalog::vendor::Library;
use crate::domain::{Candidate, Device, DeviceKind, Digest, Dtype, Matrix, Op, Spmm};
use crate::ops::family::Family;
use crate::ops::limit::{self, Least};
use crate::ops::operation::{TunableOperation, TunableProblem};
use crate::ops::vendor::{VendorLibrary, stored};
use crate::ops::{Figures, Lowerer, MAX_COLUMNS, Space, Unsupported};
use crate::sparse::Csr;
use std::sync::Arc;

pub struct SpmmOperation;

/// Products of the vendors.
static VENDORS: [VendorLibrary; 3] = [
    VendorLibrary {
        id: "spmm.cusparse",
        op: Op::Spmm,
        device: DeviceKind::Cuda,
        library: Library::CusparseProduct,
        title: "cuSPARSE",
        summary: "A sparse product of NVIDIA's library.",
        stored: &[stored(Library::CusparseProduct)],
    },
    VendorLibrary {
        id: "spmm.cublas",
        op: Op::Spmm,
        device: DeviceKind::Cuda,
        library: Library::Cublas,
        title: "cuBLAS",
        summary: "A dense product of NVIDIA's library with the sparse matrix made dense.",
        stored: &[stored(Library::Cublas)],
    },
    VendorLibrary {
        id: "spmm.sprs",
        op: Op::Spmm,
        device: DeviceKind::Cpu,
        library: Library::Sprs,
        title: "sprs",
        summary: "The product of the Rust crate sprs, on one thread.",
        stored: &[stored(Library::Sprs)],
    },
];

impl TunableOperation for SpmmOperation {
    fn op(&self) -> Op {
        Op::Spmm
    }

    fn families(&self) -> Vec<&'static dyn Family> {
        let gpu = FAMILIES.iter().map(|family| *family as &dyn Family);
        let host = HOST_FAMILIES.iter().map(|family| *family as &dyn Family);
        let vendors = VENDORS.iter().map(|library| library as &dyn Family);
        gpu.chain(host).chain(vendors).collect()
    }

    fn features_version(&self) -> u32 {
        features::VERSION
    }

    fn feature_names(&self) -> (Vec<String>, Vec<String>) {
        features::names()
    }
}

impl TunableProblem for Spmm {
    fn op(&self) -> Op {
        Op::Spmm
    }

    fn check(&self, _: &Matrix) -> Result<(), Unsupported> {
        if self.tf32 && self.dtype != Dtype::F32 {
            return Err(Unsupported(format!(
                "tf32 is consent to a rounding of f32 operands; the problem is in {}",
                self.dtype
            )));
        }
        if self.n == 0 || self.n > MAX_COLUMNS {
            return Err(Unsupported(format!("n is {}, it must be in 1..={MAX_COLUMNS}", self.n)));
        }
        Ok(())
    }

    /// Consent to tf32 is no demand for it, so the host ignores it.
    fn check_device(&self, kind: DeviceKind) -> Result<(), Unsupported> {
        if kind == DeviceKind::Cuda {
            return Ok(());
        }
        if self.dtype != Dtype::F32 {
            let why = format!("spmm in {} is for GPUs; a CPU device multiplies in f32", self.dtype);
            return Err(Unsupported(why));
        }
        if self.accumulate {
            let why = "spmm with accumulate is for GPUs; a CPU device computes C = A B";
            return Err(Unsupported(why.to_owned()));
        }
        Ok(())
    }

    fn model_name(&self, kind: DeviceKind) -> &'static str {
        match kind {
            DeviceKind::Cuda => model::NAME,
            DeviceKind::Cpu => model_host::NAME,
        }
    }

    fn space(
        &self,
        matrix: &Csr,
        device: &Device,
        figures: &Figures,
    ) -> Result<Space, Unsupported> {
        self.check_device(device.kind)?;
        Ok(super::space(matrix, self, device, figures))
    }

    fn prunes_by_figures(&self, kind: DeviceKind) -> bool {
        kind == DeviceKind::Cuda
    }

    fn kernel_identity(&self, candidate: &Candidate, device: &Device) -> Option<Digest> {
        if device.kind != DeviceKind::Cuda {
            return None;
        }
        let text = family::kernel(candidate, self)?.source();
        let headers = device.kernels.get(&candidate.family)?;
        let compiler = &device.compiler;
        let text = format!("sparsetune kernel v1\0{compiler}\0{headers}\0{text}");
        Some(Digest::of(text.as_bytes()))
    }

    fn lowerer(&self, matrix: Arc<Csr>, device: &Device) -> Result<Box<dyn Lowerer>, Unsupported> {
        Ok(Box::new(SpmmLowerer::new(matrix, *self, device.clone())))
    }

    fn bytes_per_candidate(&self, _: u64) -> Option<u64> {
        None
    }

    fn hopeless_factor(&self) -> f64 {
        8.0
    }

    fn least(&self, matrix: &Csr, device: &Device) -> Result<Least, Unsupported> {
        Ok(limit::product(matrix, self, device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Layout;

    #[test]
    fn tf32_is_for_f32_and_the_host_multiplies_in_f32() {
        let spmm = |dtype| Spmm::new(8, dtype, Layout::Row);
        let facts = crate::sparse::features::facts(&Csr::empty(), None);
        for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
            assert_eq!(spmm(dtype).check(&facts), Ok(()));
            let consenting = Spmm { tf32: true, ..spmm(dtype) };
            assert_eq!(consenting.check(&facts).is_ok(), dtype == Dtype::F32);
            assert_eq!(consenting.check_device(DeviceKind::Cpu).is_ok(), dtype == Dtype::F32);
        }
        let accumulating = Spmm { accumulate: true, ..spmm(Dtype::F32) };
        assert_eq!(accumulating.check(&facts), Ok(()));
        let refused = accumulating.check_device(DeviceKind::Cpu);
        assert!(refused.is_err_and(|why| why.0.contains("accumulate")));
    }
}
