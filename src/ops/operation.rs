//! What an operation and its problems must answer about themselves, and the registry of all operations.
//!
//! This is the only file of `ops` that names every operation.

use super::family::Family;
use super::limit::Least;
use super::{Lowerer, Narrowing, Space, Unsupported, spmm, sptrsv};
use crate::domain::{Candidate, Device, DeviceKind, Digest, Matrix, Op, Problem};
use crate::sparse::Csr;
use std::sync::{Arc, LazyLock};

/// An operation, independent of the problem.
pub trait TunableOperation: Sync {
    fn op(&self) -> Op;

    /// Its kernels: our own for GPUs, our own for the host, and the vendors'.
    fn families(&self) -> Vec<&'static dyn Family>;

    /// Version of the features that learned models read; raised whenever a feature is added or removed or changes its
    /// meaning.
    fn features_version(&self) -> u32;

    /// Names of the features that all candidates of a job share, then of a candidate's own features, in order.
    fn feature_names(&self) -> (Vec<String>, Vec<String>);
}

/// A problem of an operation, as the search for its fastest kernel sees it.
pub trait TunableProblem {
    fn op(&self) -> Op;

    /// Whether the problem, within the limits of its operation, can be tuned for a matrix with these facts.
    fn check(&self, matrix: &Matrix) -> Result<(), Unsupported>;

    /// The analytic model that predicts the times of its candidates.
    fn model_name(&self, kind: DeviceKind) -> &'static str;

    /// Enumerates, prunes and predicts. The narrowing's figures are of kernels compiled for this class of device.
    fn space(
        &self,
        matrix: &Csr,
        device: &Device,
        narrowing: &Narrowing,
    ) -> Result<Space, Unsupported>;

    /// Whether [`Self::space`] prunes by compilers' figures on this kind of device.
    fn prunes_by_figures(&self, kind: DeviceKind) -> bool;

    /// Identifies the kernel of a candidate by all that its binary depends on: its text, the headers of its family, the
    /// compiler. The matrix is data, so one identity serves every matrix. `None` if the space is not pruned by figures, and
    /// for a candidate without a kernel of our own.
    fn kernel_identity(&self, candidate: &Candidate, device: &Device) -> Option<Digest>;

    fn lowerer(&self, matrix: Arc<Csr>, device: &Device) -> Result<Box<dyn Lowerer>, Unsupported>;

    /// Bytes of the matrix's entries that each lowered candidate keeps in a separate form; `None` if candidates use the
    /// matrix as it is, or share what they pack.
    fn bytes_per_candidate(&self, nnz: u64) -> Option<u64>;

    /// A candidate this many times slower than the best so far is timed only once.
    fn hopeless_factor(&self) -> f64;

    /// The least time of one call on a device.
    fn least(&self, matrix: &Csr, device: &Device) -> Result<Least, Unsupported>;
}

/// The implementation of an operation.
pub const fn operation(op: Op) -> &'static dyn TunableOperation {
    match op {
        Op::Spmm => &spmm::SpmmOperation,
        Op::Sptrsv => &sptrsv::SptrsvOperation,
    }
}

/// The implementation of a problem.
pub const fn of(problem: &Problem) -> &dyn TunableProblem {
    match problem {
        Problem::Spmm(spmm) => spmm,
        Problem::Sptrsv(sptrsv) => sptrsv,
    }
}

/// All operations.
pub(super) static OPERATIONS: LazyLock<Vec<&'static dyn TunableOperation>> =
    LazyLock::new(|| Op::ALL.map(operation).to_vec());
