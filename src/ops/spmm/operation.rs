//! SpMM as an operation: its problems, its kernels, and the way from a problem to its candidates.

use super::family::{self, FAMILIES};
use super::host::HOST_FAMILIES;
use super::{SpmmLowerer, features, model, model_host};
use crate::domain::catalog::vendor::Library;
use crate::domain::{Candidate, Device, DeviceKind, Digest, Matrix, Op, Problem, Spmm};
use crate::ops::family::Family;
use crate::ops::limit::{self, Least};
use crate::ops::operation::{TunableOperation, TunableProblem};
use crate::ops::vendor::{VendorLibrary, stored};
use crate::ops::{Lowerer, Narrowing, Space, Unsupported, check_device};
use crate::sparse::Csr;
use std::sync::Arc;

pub struct SpmmOperation;

/// The vendors' routines for products.
static VENDORS: [VendorLibrary; 5] = [
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
        id: "spmm.mkl",
        op: Op::Spmm,
        device: DeviceKind::Cpu,
        library: Library::MklProduct,
        title: "MKL",
        summary: "A sparse product of Intel's library, which inspects the matrix first, on all threads.",
        stored: &[stored(Library::MklProduct)],
    },
    VendorLibrary {
        id: "spmm.plain",
        op: Op::Spmm,
        device: DeviceKind::Cpu,
        library: Library::PlainProduct,
        title: "Plain CSR product",
        summary: "Where MKL is not installed: a loop over CSR on all threads, with rows split evenly by their entries.",
        stored: &[stored(Library::PlainProduct)],
    },
    VendorLibrary {
        id: "spmm.sprs",
        op: Op::Spmm,
        device: DeviceKind::Cpu,
        library: Library::Sprs,
        title: "sprs",
        summary: "The product of the Rust crate sprs, on one thread: the baseline of plans of earlier versions.",
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
        narrowing: &Narrowing,
    ) -> Result<Space, Unsupported> {
        check_device(&Problem::Spmm(*self), device)?;
        Ok(super::space(matrix, self, device, narrowing))
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
    use crate::domain::{Dtype, Layout, Output};
    use crate::ops::tests::device;

    #[test]
    fn tf32_is_for_f32_and_the_host_has_no_types_of_16_bits() {
        let spmm = |dtype| Spmm::new(8, dtype, Layout::Row);
        let tuned = |spmm: Spmm| Problem::Spmm(spmm).limit(None).is_none();
        let on = |spmm: Spmm, kind| check_device(&Problem::Spmm(spmm), &device(kind));
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
            assert!(tuned(spmm(dtype)) && on(spmm(dtype), DeviceKind::Cuda).is_ok());
            let consenting = Spmm { tf32: true, ..spmm(dtype) };
            assert_eq!(tuned(consenting), dtype == Dtype::F32);
            let wide = Spmm { output: Output::F32, ..spmm(dtype) };
            assert_eq!(tuned(wide), dtype.is_half());
            assert!(on(wide, DeviceKind::Cpu).is_err());
            let accumulating = Spmm { accumulate: true, ..spmm(dtype) };
            assert!(tuned(accumulating));
            for asked in [spmm(dtype), accumulating] {
                let host = on(asked, DeviceKind::Cpu);
                assert_eq!(host.is_ok(), !dtype.is_half(), "{asked:?}: {host:?}");
            }
        }
        for (capability, dtype, fits) in [
            ("7.5", Dtype::Bf16, false),
            ("7.5", Dtype::F16, true),
            ("8.0", Dtype::Bf16, true),
            ("10.0", Dtype::Bf16, true),
        ] {
            let compute_capability = capability.to_owned();
            let device = Device { compute_capability, ..device(DeviceKind::Cuda) };
            let checked = check_device(&Problem::Spmm(spmm(dtype)), &device);
            assert_eq!(checked.is_ok(), fits, "{capability} {dtype}: {checked:?}");
        }
    }
}
