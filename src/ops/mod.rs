//! What is known of each operation: its space, its constraints, its models and its lowering.

pub mod spmm;
pub mod sptrsv;

use crate::domain::recipe::Recipe;
use crate::domain::{Candidate, Device, DeviceKind, Dtype, Matrix, Problem, Spmm, Sptrsv};
use crate::search::Pruned;
use crate::sparse::Csr;
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
    if spmm.dtype != Dtype::F32 {
        return Err(Unsupported(format!("spmm in {} cannot be tuned yet; f32 can", spmm.dtype)));
    }
    if spmm.n == 0 || spmm.n > MAX_COLUMNS {
        return Err(Unsupported(format!("n is {}, it must be in 1..={MAX_COLUMNS}", spmm.n)));
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
}

/// Enumerates, prunes and predicts.
pub fn space(matrix: &Csr, problem: &Problem, device: &Device) -> Result<Space, Unsupported> {
    match problem {
        Problem::Spmm(spmm) => Ok(spmm::space(matrix, spmm, device)),
        Problem::Sptrsv(solve) => sptrsv::space(matrix, solve, device),
    }
}

/// Names what of a candidate's lowering other candidates share: those of one name follow each other in a search, so that
/// the shared part is made once.
pub fn preparation(candidate: &Candidate) -> String {
    let shared: &[&str] = match candidate.family.as_str() {
        sptrsv::slices::scheme::FAMILY => &["window_ns", "terms", "lanes"],
        sptrsv::ag::FAMILY => &["merge", "reorder"],
        "tiled" => &["rows", "buffer"],
        _ => &[],
    };
    let values = shared.iter().filter_map(|name| candidate.params.get(*name));
    values.fold(candidate.family.clone(), |name, value| format!("{name} {value:?}"))
}

/// What a user would rather deploy when speed does not decide: the vendor's routine, then what brings no arrays, then what
/// brings few. An AG-SpTRSV scheme brings a schedule for its warps beside its groups.
pub fn complexity(candidate: &Candidate) -> u32 {
    let ordered = u32::from(candidate.text("order") == Some("length"));
    match candidate.family.as_str() {
        "vendor" => 0,
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
    ("slices", &["sptrsv/slices.cuh"]),
    ("resident", &["spmm/resident.cuh"]),
    ("row_panel", &["spmm/row_panel.cuh", "spmm/column_major.cuh"]),
    ("row_split", &["spmm/row_split.cuh", "spmm/column_major.cuh"]),
    ("tiled", &["spmm/tiled_row.cuh"]),
];

/// Candidates that hang and fault on purpose, for a device whose evaluator was told to accept them: they show that a job
/// survives both.
pub fn provocations(device: &Device) -> Vec<Candidate> {
    let accepted = device.kernels.contains_key("hostile");
    let kinds: &[&str] = if accepted { &["hang", "fault"] } else { &[] };
    kinds.iter().map(|kind| Candidate::new("hostile").with_text("kind", kind)).collect()
}

/// Whether a candidate multiplies padding by rows of B, so that an infinity there would spread.
pub fn dense_must_be_finite(candidate: &Candidate, kind: DeviceKind) -> bool {
    let padded = match candidate.family.as_str() {
        "row_panel" => candidate.int("m1") != Some(1),
        "resident" | "tiled" => true,
        _ => false,
    };
    kind == DeviceKind::Cuda && padded
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
