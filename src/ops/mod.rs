//! What is known of each operation: its space, its constraints, its models and its lowering.

pub mod admission;
pub mod features;
pub mod limit;
#[cfg(test)]
mod pinned;
pub mod program;
pub mod spmm;
pub mod sptrsv;

use crate::domain::recipe::Recipe;
use crate::domain::{
    Candidate, Device, DeviceKind, Digest, Dtype, KernelFigures, Matrix, Problem, Spmm, Sptrsv,
};
use crate::search::Pruned;
use crate::sparse::Csr;
use std::collections::HashMap;
use std::sync::Arc;

/// Widest B that a problem may ask for.
pub const MAX_COLUMNS: u32 = 65_536;

/// A problem that this version cannot tune, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// A candidate that cannot be lowered for this matrix, problem and device, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Whether the problem can be tuned for a matrix at all, as far as the matrix's facts tell: a solve's diagonal is looked
/// at by `sparse::Triangular`.
pub fn check(matrix: &Matrix, problem: &Problem) -> Result<(), Unsupported> {
    match problem {
        Problem::Spmm(spmm) => check_spmm(spmm),
        Problem::Sptrsv(solve) => check_sptrsv(matrix, solve),
    }?;
    if matrix.nnz == 0 {
        return Err(Unsupported("the matrix has no entries: there is nothing to tune".to_owned()));
    }
    if matrix.nnz > u64::from(u32::MAX >> 1) {
        return Err(Unsupported(format!(
            "the matrix has {} entries; the kernels index them with 32 bits, so at most {} can be tuned",
            matrix.nnz,
            u32::MAX >> 1
        )));
    }
    Ok(())
}

fn check_spmm(spmm: &Spmm) -> Result<(), Unsupported> {
    if spmm.tf32 && spmm.dtype != Dtype::F32 {
        return Err(Unsupported(format!(
            "tf32 is consent to a rounding of f32 operands; the problem is in {}",
            spmm.dtype
        )));
    }
    if spmm.n == 0 || spmm.n > MAX_COLUMNS {
        return Err(Unsupported(format!("n is {}, it must be in 1..={MAX_COLUMNS}", spmm.n)));
    }
    Ok(())
}

/// Whether a problem that passes `check` has kernels on this kind of device.
pub fn check_device(problem: &Problem, kind: DeviceKind) -> Result<(), Unsupported> {
    match (problem, kind) {
        (Problem::Spmm(spmm), DeviceKind::Cpu) => check_host(spmm),
        _ => Ok(()),
    }
}

/// What of SpMM the host's kernels do not have. Consent to tf32 is no demand for it, so it is passed over.
fn check_host(spmm: &Spmm) -> Result<(), Unsupported> {
    if spmm.dtype != Dtype::F32 {
        let why = format!("spmm in {} is for GPUs; a CPU device multiplies in f32", spmm.dtype);
        return Err(Unsupported(why));
    }
    if spmm.accumulate {
        let why = "spmm with accumulate is for GPUs; a CPU device computes C = A B";
        return Err(Unsupported(why.to_owned()));
    }
    Ok(())
}

fn check_sptrsv(matrix: &Matrix, solve: &Sptrsv) -> Result<(), Unsupported> {
    if solve.dtype == Dtype::F16 {
        let why = "sptrsv in f16 is not tuned: each level adds its rounding to the next, so f32 and f64 are";
        return Err(Unsupported(why.to_owned()));
    }
    if solve.rhs == 0 || solve.rhs > Sptrsv::MAX_RHS {
        return Err(Unsupported(format!(
            "rhs is {}, it must be in 1..={}",
            solve.rhs,
            Sptrsv::MAX_RHS
        )));
    }
    let (rows, cols) = (matrix.rows, matrix.cols);
    if rows != cols {
        let why = format!("the matrix is {rows} x {cols}: a triangular solve needs a square one");
        return Err(Unsupported(why));
    }
    if rows > u64::from(u32::MAX >> 1) {
        let most = u32::MAX >> 1;
        return Err(Unsupported(format!(
            "the matrix has {rows} rows; at most {most} can be tuned"
        )));
    }
    Ok(())
}

/// Candidates that survived, each with its predicted time, and what happened to the others.
pub struct Space {
    /// Candidates to search among, with predicted microseconds. Vendor routines are not here: they are always tried.
    pub scored: Vec<(Candidate, f64)>,
    pub vendor: Vec<Candidate>,
    pub pruned: Pruned,
    /// The model that predicted.
    pub model: &'static str,
    /// The candidates to search among in numbers, in their order.
    pub described: features::Described,
}

/// The model that [`space`] predicts with, which is known before the matrix is.
pub const fn model_name(problem: &Problem, kind: DeviceKind) -> &'static str {
    match (problem, kind) {
        (Problem::Spmm(_), DeviceKind::Cuda) => spmm::model::NAME,
        (Problem::Spmm(_), DeviceKind::Cpu) => spmm::model_host::NAME,
        (Problem::Sptrsv(_), _) => sptrsv::MODEL,
    }
}

/// Whether a family of our own is of the problem's operation.
pub fn has_family(problem: &Problem, family: &str) -> bool {
    let multiplies = spmm::family::FAMILIES.iter().any(|known| known.names().contains(&family));
    multiplies == matches!(problem, Problem::Spmm(_))
}

/// What compilers made of kernels, by [`kernel_identity`].
pub type Figures = HashMap<Digest, KernelFigures>;

/// Enumerates, prunes and predicts, with nothing known of any kernel but its text.
pub fn space(matrix: &Csr, problem: &Problem, device: &Device) -> Result<Space, Unsupported> {
    space_knowing(matrix, problem, device, &Figures::new())
}

/// Likewise, where kernels were compiled before for devices of this class.
pub fn space_knowing(
    matrix: &Csr,
    problem: &Problem,
    device: &Device,
    figures: &Figures,
) -> Result<Space, Unsupported> {
    match problem {
        Problem::Spmm(spmm) => {
            check_device(problem, device.kind)?;
            Ok(spmm::space(matrix, spmm, device, figures))
        }
        Problem::Sptrsv(solve) => sptrsv::space(matrix, solve, device),
    }
}

/// Names the kernel of a candidate by all that its binary depends on: its text, its family's headers, the compiler. The
/// matrix is data, so one name serves every matrix. `None` for what has no kernel on a GPU, and for SpTRSV, whose spaces
/// are not pruned by registers.
pub fn kernel_identity(
    candidate: &Candidate,
    problem: &Problem,
    device: &Device,
) -> Option<Digest> {
    match (problem, device.kind) {
        (Problem::Spmm(spmm), DeviceKind::Cuda) => {
            let text = spmm::family::kernel(candidate, spmm)?.source();
            let headers = device.kernels.get(&candidate.family)?;
            let compiler = &device.compiler;
            Some(Digest::of(
                format!("sparsetune kernel v1\0{compiler}\0{headers}\0{text}").as_bytes(),
            ))
        }
        _ => None,
    }
}

/// Names what of a candidate's lowering other candidates share: those of one name follow each other in a search, so that
/// the shared part is made once.
pub fn preparation(candidate: &Candidate) -> String {
    let shared: &[&str] = match candidate.family.as_str() {
        sptrsv::slices::scheme::FAMILY => &["window_ns", "terms", "lanes"],
        sptrsv::ag::FAMILY => &["merge", "reorder"],
        spmm::condensed_tc::FAMILY => &["order", "residue"],
        "tiled" => &["rows", "buffer", "order"],
        _ => &[],
    };
    let values = shared.iter().filter_map(|name| candidate.params.get(*name));
    values.fold(candidate.family.clone(), |name, value| format!("{name} {value:?}"))
}

/// Parameters that make up a candidate's main tile: rows and columns, and the threads that share them. The others (block,
/// fetch, unrolling, order of rows) are variants of the tile.
const TILE: &[&str] = &[
    "m1", "n1", "rows", "columns", "cols", "lanes", "vec", "r", "tile", "height", "width", "items",
    "buffer", "warps",
];

/// Names family and main tile: candidates of one name are variants of one kernel, and a ranked search spreads its places
/// over names.
pub fn variety(candidate: &Candidate) -> String {
    let name = match candidate.family.as_str() {
        // What these prepare is a variant of the tile: the order of rows, and what of them goes into tiles.
        spmm::condensed_tc::FAMILY | "tiled" => candidate.family.clone(),
        _ => preparation(candidate),
    };
    let values = TILE.iter().filter_map(|tile| Some((tile, candidate.params.get(*tile)?)));
    values.fold(name, |name, (tile, value)| format!("{name} {tile}={value:?}"))
}

/// Whether the kernel takes the matrix as it is, so that nothing is made or uploaded before the first call.
pub fn brings_nothing(candidate: &Candidate) -> bool {
    complexity(candidate) <= 1
}

/// What a user would rather deploy when speed does not decide: the vendor's routine, then what brings no arrays, then what
/// brings few. An AG-SpTRSV scheme brings a schedule for its warps beside its groups.
pub fn complexity(candidate: &Candidate) -> u32 {
    let ordered = u32::from(candidate.text("order").is_some_and(|order| order != "natural"));
    match candidate.family.as_str() {
        "vendor" if candidate.is_baseline() => 0,
        "serial" => 1,
        "row_split" => 1 + ordered,
        "levels" => 2,
        "ag" => 4,
        _ => 3,
    }
}

/// Families with kernel text on a GPU, and the headers under `kernels/` that hold it.
pub const KERNEL_HEADERS: &[(&str, &[&str])] = &[
    ("ag", &["sptrsv/ag.cuh"]),
    ("condensed_tc", &["spmm/condensed_tc.cuh"]),
    ("slices", &["sptrsv/slices.cuh"]),
    ("resident", &["spmm/resident.cuh"]),
    ("row_panel", &["spmm/row_panel.cuh"]),
    ("row_split", &["spmm/row_split.cuh", "spmm/stage.cuh", "spmm/column_major.cuh"]),
    ("nnz_split", &["spmm/nnz_split.cuh", "spmm/stage.cuh"]),
    ("tca", &["spmm/tca.cuh"]),
    ("tiled", &["spmm/tiled.cuh", "spmm/tiled_row.cuh"]),
];

/// Candidates that hang and fault on purpose, for a device whose evaluator was told to accept them: they show that a job
/// survives both.
pub fn hostile_candidates(device: &Device) -> Vec<Candidate> {
    let accepted = device.kernels.contains_key("hostile");
    let kinds: &[&str] = if accepted { &["hang", "fault"] } else { &[] };
    kinds.iter().map(|kind| Candidate::new("hostile").with_text("kind", kind)).collect()
}

/// Whether a candidate multiplies padding by rows of B, so that an infinity there would spread.
pub fn dense_must_be_finite(candidate: &Candidate, kind: DeviceKind) -> bool {
    let padded = match candidate.family.as_str() {
        "row_panel" => candidate.int("m1") != Some(1),
        spmm::condensed_tc::FAMILY | "resident" => true,
        // The column-major one pads with a row of zeros of its own.
        "tiled" => candidate.int("n1").is_some(),
        _ => false,
    };
    candidate.is_densified() || kind == DeviceKind::Cuda && padded
}

/// Lowers candidates for one matrix; keeps what several of them share (row orders, packed panels, transforms).
pub struct Lowerer {
    inner: Inner,
}

enum Inner {
    Spmm(Box<spmm::Lowerer>),
    Sptrsv(Box<sptrsv::Lowerer>),
}

impl Lowerer {
    pub fn new(matrix: Arc<Csr>, problem: &Problem, device: &Device) -> Result<Self, Unsupported> {
        let inner = match problem {
            Problem::Spmm(spmm) => {
                Inner::Spmm(Box::new(spmm::Lowerer::new(matrix, *spmm, device.clone())))
            }
            Problem::Sptrsv(solve) => {
                Inner::Sptrsv(Box::new(sptrsv::Lowerer::new(&matrix, *solve, device.clone())?))
            }
        };
        Ok(Self { inner })
    }

    pub fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        match &mut self.inner {
            Inner::Spmm(lowerer) => lowerer.lower(candidate),
            Inner::Sptrsv(lowerer) => lowerer.lower(candidate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Layout;

    #[test]
    fn orders_and_residues_are_variants_of_one_tile() {
        let tile = |family: &str| Candidate::new(family).with("rows", 8).with("columns", 64);
        for family in [spmm::condensed_tc::FAMILY, "tiled"] {
            let of = |order: &str, residue| {
                variety(&tile(family).with_text("order", order).with("residue", residue))
            };
            assert_eq!(of("natural", 0), of("length", 2));
            assert_ne!(of("natural", 0), variety(&tile(family).with("columns", 32)));
        }
    }

    #[test]
    fn any_order_but_the_matrixs_own_is_brought_along() {
        let of =
            |order: &str| brings_nothing(&Candidate::new("row_split").with_text("order", order));
        assert!(of("natural") && brings_nothing(&Candidate::new("row_split")));
        assert!(!of("length") && !of("similarity"));
    }

    #[test]
    fn tf32_is_for_f32_and_the_host_multiplies_in_f32() {
        let spmm = |dtype| Spmm::new(8, dtype, Layout::Row);
        for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
            assert_eq!(check_spmm(&spmm(dtype)), Ok(()));
            let consenting = Spmm { tf32: true, ..spmm(dtype) };
            assert_eq!(check_spmm(&consenting).is_ok(), dtype == Dtype::F32);
            assert_eq!(check_host(&consenting).is_ok(), dtype == Dtype::F32);
        }
        let accumulating = Spmm { accumulate: true, ..spmm(Dtype::F32) };
        assert_eq!(check_spmm(&accumulating), Ok(()));
        assert!(check_host(&accumulating).is_err_and(|why| why.0.contains("accumulate")));
    }
}
