//! What a GPU family of SpMM kernels is to the constraints, the model and the lowering: its candidates, tile and traffic.
//!
//! A family is one file: it lists its candidates, and parses one into an [`SpmmKernel`] that the others read.

use super::inspect::Inspection;
use super::model::{self, Work};
use super::shared::{Lowered, Shared};
use super::{
    column_major, condensed_tc, nnz_split, resident, row_panel, row_split, tca, tiled, tiled_row,
};
use crate::domain::catalog::family::{FamilyDescriptor, Flags, KernelId, Provider, StoredForm};
use crate::domain::{Candidate, Device, DeviceKind, Layout, Op, Spmm};
use crate::ops::Refusal;
use crate::ops::family::Family;
use crate::search::domain::Domain;

/// All families of our own, in the order they are enumerated.
pub static FAMILIES: &[&dyn SpmmFamily] = &[
    &row_panel::RowPanels,
    &row_split::RowSplits,
    &nnz_split::NnzSplits,
    &column_major::ColumnMajors,
    &tca::TensorDots,
    &condensed_tc::CondensedTcs,
    &tiled::TiledColumns,
    &tiled_row::TiledRows,
    &resident::Residents,
];

/// A family's GPU kernels, or those for one layout: names may repeat, candidates may not.
pub trait SpmmFamily: Family {
    /// The family name of its candidates.
    fn name(&self) -> &'static str;

    /// Text of the header under `kernels/` whose `tune:` line lists `domains`.
    fn header(&self) -> &'static str;

    /// The parameters, as the header's `tune:` line lists them.
    fn domains(&self) -> &'static [Domain];

    /// Every candidate for the problem, before any constraint; none where the family has no kernel for it.
    fn candidates(&self, problem: &Spmm) -> Vec<Candidate>;

    /// The candidate, parsed; `None` where it is not of this family, or a parameter is missing, unknown or not of its type.
    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>>;
}

/// One candidate of a GPU family, parsed for one problem.
pub trait SpmmKernel: Send + Sync {
    fn tile(&self) -> Tile;

    /// What a call moves and does on a matrix, for the model.
    fn work(&self, seen: &Inspection) -> Work;

    /// Predicted microseconds of one call.
    fn predict_us(&self, seen: &Inspection, problem: &Spmm, device: &Device) -> f64 {
        model::predict_us(&self.tile(), &self.work(seen), seen, problem, device)
    }

    /// Blocks that a call launches.
    fn blocks(&self, seen: &Inspection, problem: &Spmm) -> u64 {
        let tile = self.tile();
        let rows_per_block = u64::from(tile.rows) * u64::from(tile.tiles_per_block.max(1));
        seen.rows.div_ceil(rows_per_block) * u64::from(problem.n.div_ceil(tile.columns))
    }

    /// Whether the family has something of its own to do on a matrix: where not, another family's candidate does the same.
    fn applies(&self, _seen: &Inspection, _device: &Device) -> bool {
        true
    }

    /// Stored values, padding included, over entries.
    fn fill(&self, _seen: &Inspection) -> f64 {
        1.0
    }

    /// Shared memory a block takes on a matrix, bytes: a panel of B is as high as the matrix is wide.
    fn shared_bytes(&self, _seen: &Inspection) -> u64 {
        self.tile().shared_bytes.into()
    }

    /// The text a compiler sees: one header and one instance of it. The matrix is data, so one text serves all matrices.
    fn source(&self) -> String;

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal>;
}

/// Most blocks along y and z that any device takes (compute capability 3.0 and later).
pub const MOST_GRID_Y: u32 = 65_535;

/// Order in which rows are handed to subwarps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOrder {
    Natural,
    /// Longest first, equal lengths in natural order.
    Length,
    /// Rows that share columns next to each other.
    Similarity,
}

/// The geometry of a kernel, as LO-SpMM's constraints see it: tiles of `rows` (M1) by `columns` (N1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of A that one tile computes (M1).
    pub rows: u32,
    /// Columns of C that one tile computes (N1).
    pub columns: u32,
    /// Threads a block.
    pub threads: u32,
    /// Most threads that a block of this family may have.
    pub most_threads: u32,
    /// Threads that share a tile.
    pub threads_per_tile: u32,
    /// Tiles of rows a block works on at a time.
    pub tiles_per_block: u32,
    pub order: RowOrder,
    /// Entries of A in flight a thread.
    pub unroll: u32,
    /// Elements of B that one entry of A makes a thread load.
    pub elements_an_entry: u32,
    /// Registers a thread, by counting variables (LO-SpMM, section 3.2).
    pub registers: u32,
    /// Shared memory a block, static and dynamic, bytes.
    pub shared_bytes: u32,
    /// What N must be a multiple of, so that vectors of B and C are aligned.
    pub vector: u32,
    /// Whether warps hold whole tiles, or tiles whole warps: what the kernels assert.
    pub whole_warps: bool,
    /// Work is dealt by entries, not by rows: rows of different length do not unbalance it.
    pub balanced: bool,
    /// Repeats another candidate of the space.
    pub pointless: bool,
}

/// The candidate as a kernel, whichever family it is of.
pub fn kernel(candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
    let of_name = |family: &&&dyn SpmmFamily| family.name() == candidate.family;
    FAMILIES.iter().filter(of_name).find_map(|family| family.kernel(candidate, problem))
}

/// The descriptor of a GPU kernel, but for its words and parameters.
pub fn gpu_family(
    id: &'static str,
    stored: &'static [StoredForm],
    may_need_finite_dense: bool,
) -> FamilyDescriptor {
    FamilyDescriptor {
        id: KernelId(id),
        op: Op::Spmm,
        device: DeviceKind::Cuda,
        provider: Provider::Own,
        title: "",
        summary: "",
        source: None,
        stored,
        parameters: Vec::new(),
        flags: Flags { may_need_finite_dense, ..Flags::default() },
    }
}

/// Whether a candidate brings an order of the rows other than the matrix's own.
pub fn is_ordered(candidate: &Candidate) -> bool {
    candidate.text("order").is_some_and(|order| order != RowOrder::Natural.name())
}

/// One column is stored alike in both layouts; the kernels that split a row's entries over lanes suit it better.
pub fn effective_layout(problem: &Spmm) -> Layout {
    if problem.n == 1 { Layout::Col } else { problem.layout }
}

/// An integer parameter that counts something.
pub fn count(candidate: &Candidate, name: &str) -> Option<u32> {
    candidate.int(name).and_then(|value| u32::try_from(value).ok())
}

/// Whether every parameter has one of the values that its domain lists: what no kernel was written for is no candidate.
pub fn among(candidate: &Candidate, domains: &[Domain]) -> bool {
    let has = |domain: &Domain| {
        candidate.params.get(domain.name).is_some_and(|value| domain.values.contains(value))
    };
    domains.iter().all(has)
}

/// The parameter `order`.
pub fn order(candidate: &Candidate) -> Option<RowOrder> {
    match candidate.text("order")? {
        "natural" => Some(RowOrder::Natural),
        "length" => Some(RowOrder::Length),
        "similarity" => Some(RowOrder::Similarity),
        _ => None,
    }
}
