//! The interface of a GPU family of SpMM kernels to the constraints, the model and the lowering: its candidates, tile and
//! traffic.
//!
//! A family is one file: it lists its candidates, and parses one into an [`SpmmKernel`] that the others read.

use super::inspect::Inspection;
use super::model::{self, Work};
use super::shared::{Lowered, Shared};
use super::tiled_model::Terms;
use super::{
    column_major, condensed_tc, expanded_tc, kept_rows, nnz_split, panel_columns, panel_ways,
    resident, row_panel, row_split, row_teams, row_turns, tca, tiled, tiled_row,
};
use crate::domain::catalog::family::{FamilyDescriptor, Flags, KernelId, Provider, StoredForm};
use crate::domain::{Candidate, Device, DeviceKind, Intensity, Layout, Op, Spmm};
use crate::ops::Refusal;
use crate::ops::family::Family;
use crate::search::domain::Domain;

/// All of our own families, in the order in which they are enumerated.
pub static FAMILIES: &[&dyn SpmmFamily] = &[
    &row_panel::RowPanels,
    &panel_ways::PanelWays,
    &panel_columns::PanelColumns,
    &row_split::RowSplits,
    &row_turns::RowTurns,
    &nnz_split::NnzSplits,
    &row_teams::RowTeams,
    &column_major::ColumnMajors,
    &kept_rows::KeptRows,
    &tca::TensorDots,
    &condensed_tc::CondensedTcs,
    &expanded_tc::ExpandedTcs,
    &tiled::TiledColumns,
    &tiled_row::TiledRows,
    &resident::Residents,
];

/// The GPU kernels of a family, or those for one layout: names may repeat, candidates may not.
pub trait SpmmFamily: Family {
    /// The family name of its candidates.
    fn name(&self) -> &'static str;

    /// Text of the header under `kernels/` whose `tune:` line lists `domains`.
    fn header(&self) -> &'static str;

    /// The parameters, as the header's `tune:` line lists them.
    fn domains(&self) -> &'static [Domain];

    /// Every candidate for the problem, before any constraint; empty if the family has no kernel for it.
    fn candidates(&self, problem: &Spmm) -> Vec<Candidate>;

    /// The parsed candidate; `None` if it is not of this family, or a parameter is missing, unknown or of the wrong type.
    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>>;
}

/// One candidate of a GPU family, parsed for one problem.
pub trait SpmmKernel: Send + Sync {
    fn tile(&self) -> Tile;

    /// What a call moves and computes on a matrix, for the model.
    fn work(&self, seen: &Inspection) -> Work;

    /// Predicted microseconds of one call.
    fn predict_us(&self, seen: &Inspection, problem: &Spmm, device: &Device) -> f64 {
        model::predict_us(&self.tile(), &self.work(seen), seen, problem, device)
    }

    /// Blocks that a call launches.
    fn blocks(&self, seen: &Inspection, problem: &Spmm) -> u64 {
        blocks(&self.tile(), seen, problem)
    }

    /// Whether the device has the kernel's instructions.
    fn runs_on(&self, _device: &Device) -> bool {
        true
    }

    /// Whether the family does something specific on a matrix: if not, another family's candidate does the same.
    fn applies(&self, _seen: &Inspection, _device: &Device) -> bool {
        true
    }

    /// How many times the columns that panels share in the better of the other orders they share in this one, if it is an
    /// order that costs sorting by content. A kernel with a model of its own may compare what that predicts.
    fn order_gain(&self, seen: &Inspection, _device: &Device) -> Option<f64> {
        match self.tile().order {
            RowOrder::Similarity => Some(seen.similarity_gain()),
            RowOrder::Locality => Some(seen.locality_gain()),
            RowOrder::Natural | RowOrder::Length | RowOrder::Radix => None,
        }
    }

    /// LO-SpMM's COV_row: how unequal its tiles are on a matrix, as far as that tells its candidates apart.
    fn imbalance(&self, seen: &Inspection) -> f64 {
        let tile = self.tile();
        if tile.balanced { 0.0 } else { seen.imbalance(tile.rows, tile.order) }
    }

    /// The terms of Tiled SpMM's model, for kernels that gather as it assumes.
    fn tiled_terms(&self, _seen: &Inspection, _device: &Device) -> Option<Terms> {
        None
    }

    /// The terms of Tiled SpMM's model, where it describes the kernel; `us` is the predicted time.
    fn intensity(&self, _seen: &Inspection, _device: &Device, _us: f64) -> Option<Intensity> {
        None
    }

    /// Ratio of stored values, padding included, to entries.
    fn fill(&self, _seen: &Inspection) -> f64 {
        1.0
    }

    /// Shared memory per block on a matrix, bytes: a panel of B is as high as the matrix is wide.
    fn shared_bytes(&self, _seen: &Inspection) -> u64 {
        self.tile().shared_bytes.into()
    }

    /// The text that the compiler sees: one header and one instance of it. The matrix is data, so one text serves all
    /// matrices.
    fn source(&self) -> String;

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal>;
}

/// LO-SpMM's Eq. 1: tiles of rows times tiles of columns, where a block may hold several tiles of rows.
pub fn blocks(tile: &Tile, seen: &Inspection, problem: &Spmm) -> u64 {
    let rows_per_block = u64::from(tile.rows) * u64::from(tile.tiles_per_block.max(1));
    seen.rows.div_ceil(rows_per_block) * u64::from(problem.n.div_ceil(tile.columns))
}

/// Whether tiles of some columns serve a product of `n`: powers of two always; three times a power of two, where they pad less
/// than the next wider power of two and no more than the next narrower one.
pub fn width_serves(n: u32, columns: u32) -> bool {
    let padded = |columns: u32| n.div_ceil(columns) * columns;
    let (narrower, wider) = (columns / 3 * 2, columns / 3 * 4);
    let here = padded(columns);
    !columns.is_multiple_of(3) || (here < padded(wider) && here <= padded(narrower))
}

/// Most blocks along y and z that every device allows (compute capability 3.0 and later).
pub const MOST_GRID_Y: u32 = 65_535;

/// Order in which rows are handed to subwarps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOrder {
    Natural,
    /// Longest first, equal lengths in natural order.
    Length,
    /// Rows that share columns are placed next to each other.
    Similarity,
    /// By columns, as binary numbers (Tiled SpMM, section 4.2).
    Radix,
    /// Rows that share columns, directly or through others, come close together: `sparse::locality`.
    Locality,
}

/// Columns of C from which an order by locality is tried: less of B stays in the caches in any order.
const LOCALITY_COLUMNS: u32 = 32;

/// Whether a candidate takes the rows by locality.
pub fn is_local(candidate: &Candidate) -> bool {
    order(candidate) == Some(RowOrder::Locality)
}

/// Whether the order of a candidate can serve a product of this width.
pub fn order_serves(candidate: &Candidate, problem: &Spmm) -> bool {
    !is_local(candidate) || problem.n >= LOCALITY_COLUMNS
}

/// The geometry of a kernel, as LO-SpMM's constraints see it: tiles of `rows` (M1) by `columns` (N1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of A that one tile computes (M1).
    pub rows: u32,
    /// Columns of C that one tile computes (N1).
    pub columns: u32,
    /// Threads per block.
    pub threads: u32,
    /// Most threads per block that this family allows.
    pub most_threads: u32,
    /// Threads that share a tile.
    pub threads_per_tile: u32,
    /// Tiles of rows that a block works on at a time.
    pub tiles_per_block: u32,
    pub order: RowOrder,
    /// Entries of A in flight per thread.
    pub unroll: u32,
    /// Elements of B that a thread loads per entry of A.
    pub elements_an_entry: u32,
    /// Registers per thread, by counting variables (LO-SpMM, section 3.2).
    pub registers: u32,
    /// Shared memory per block, static and dynamic, bytes.
    pub shared_bytes: u32,
    /// N must be a multiple of this, so that vectors of B and C are aligned.
    pub vector: u32,
    /// Work is distributed by entries, not by rows, so rows of different length cause no imbalance.
    pub balanced: bool,
    /// Blocks along y that a call launches.
    pub grid_y: u32,
    /// Why it repeats another candidate of the space, if it does.
    pub repeats: Option<Beyond>,
}

/// A parameter beyond what makes a difference: another candidate does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beyond {
    pub value: u32,
    pub limit: u32,
}

impl Beyond {
    /// No parameter is too large: there is one other candidate that does the same, where there should be none.
    pub const ANOTHER: Self = Self { value: 1, limit: 0 };

    /// `None` if the value is at most `limit`.
    pub fn most(value: u32, limit: u32) -> Option<Self> {
        (value > limit).then_some(Self { value, limit })
    }
}

/// Parses the candidate, whichever family it belongs to.
pub fn kernel(candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
    let of_name = |family: &&&dyn SpmmFamily| family.name() == candidate.family;
    FAMILIES.iter().filter(of_name).find_map(|family| family.kernel(candidate, problem))
}

/// The descriptor of a GPU kernel, without its texts and parameters.
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

/// Whether a candidate uses an order of the rows other than the matrix's own.
pub fn is_ordered(candidate: &Candidate) -> bool {
    candidate.text("order").is_some_and(|order| order != RowOrder::Natural.name())
}

/// A single column is stored alike in both layouts; the kernels that split a row's entries over lanes suit it better.
pub fn effective_layout(problem: &Spmm) -> Layout {
    if problem.n == 1 { Layout::Col } else { problem.layout }
}

/// An integer parameter that counts something.
pub fn count(candidate: &Candidate, name: &str) -> Option<u32> {
    candidate.int(name).and_then(|value| u32::try_from(value).ok())
}

/// Whether every parameter has one of the values in its domain: no kernel was written for other values.
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
        "radix" => Some(RowOrder::Radix),
        "locality" => Some(RowOrder::Locality),
        _ => None,
    }
}
