//! A GPU candidate's parameters as typed shapes: what constraints, model and lowering all read.

use crate::domain::{Candidate, Layout, Spmm};

/// One column is stored alike in both layouts; the kernels that split a row's entries over lanes suit it better.
pub fn effective_layout(problem: &Spmm) -> Layout {
    if problem.n == 1 { Layout::Col } else { problem.layout }
}

/// Order in which rows are handed to subwarps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    Natural,
    /// Longest first, equal lengths in natural order.
    Length,
}

/// A GPU candidate, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    RowSplit {
        lanes: u32,
        vec: u32,
        cols: u32,
        unroll: u32,
        block: u32,
        shuffle: bool,
        order: RowOrder,
        full: bool,
    },
    RowPanel {
        m1: u32,
        n1: u32,
        vec: u32,
        unroll: u32,
        tiles: u32,
    },
    /// Both families on column-major operands; row-split has `m1 == 1`.
    ColumnMajor {
        m1: u32,
        lanes: u32,
        r: u32,
        unroll: u32,
        block: u32,
        order: RowOrder,
        full: bool,
    },
}

impl Shape {
    /// `None` when a parameter is missing, unknown or not of its type.
    pub fn of(candidate: &Candidate, problem: &Spmm) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let order = || match candidate.text("order") {
            Some("natural") => Some(RowOrder::Natural),
            Some("length") => Some(RowOrder::Length),
            _ => None,
        };
        let shape = match (candidate.family.as_str(), effective_layout(problem)) {
            ("row_split", Layout::Row) => {
                let (lanes, vec, cols) = (int("lanes")?, int("vec")?, int("cols")?);
                let shuffle = match candidate.text("fetch")? {
                    "direct" => false,
                    "shuffle" => true,
                    _ => return None,
                };
                let full = problem.n.is_multiple_of(lanes * vec * cols);
                Self::RowSplit {
                    lanes,
                    vec,
                    cols,
                    unroll: int("unroll")?,
                    block: int("block")?,
                    shuffle,
                    order: order()?,
                    full,
                }
            }
            ("row_panel", Layout::Row) => Self::RowPanel {
                m1: int("m1")?,
                n1: int("n1")?,
                vec: int("vec")?,
                unroll: int("unroll")?,
                tiles: int("tiles")?,
            },
            (family @ ("row_split" | "row_panel"), Layout::Col) => {
                let panel = family == "row_panel";
                let r = int("r")?;
                Self::ColumnMajor {
                    m1: if panel { int("m1")? } else { 1 },
                    lanes: int("lanes")?,
                    r,
                    unroll: int("unroll")?,
                    block: int("block")?,
                    order: if panel { RowOrder::Length } else { order()? },
                    full: problem.n.is_multiple_of(r),
                }
            }
            _ => return None,
        };
        Some(shape)
    }

    /// Rows of one tile (M1): what one subwarp or one panel computes.
    pub fn rows_a_tile(&self) -> u32 {
        match self {
            Self::RowSplit { .. } => 1,
            Self::RowPanel { m1, .. } | Self::ColumnMajor { m1, .. } => *m1,
        }
    }

    /// Tiles of rows a block works on.
    pub fn tiles_a_block(&self) -> u32 {
        match self {
            Self::RowSplit { lanes, block, .. } | Self::ColumnMajor { lanes, block, .. } => {
                block / lanes
            }
            Self::RowPanel { tiles, .. } => *tiles,
        }
    }

    /// Columns of one tile (N1).
    pub fn columns_a_tile(&self) -> u32 {
        match self {
            Self::RowSplit { lanes, vec, cols, .. } => lanes * vec * cols,
            Self::RowPanel { n1, .. } => *n1,
            Self::ColumnMajor { r, .. } => *r,
        }
    }

    /// Threads a block.
    pub fn threads(&self) -> u32 {
        match self {
            Self::RowSplit { block, .. } | Self::ColumnMajor { block, .. } => *block,
            Self::RowPanel { n1, vec, tiles, .. } => n1 / vec * tiles,
        }
    }

    /// Threads that share a tile of rows, for one tile of columns.
    pub fn threads_a_tile(&self) -> u32 {
        match self {
            Self::RowSplit { lanes, .. } | Self::ColumnMajor { lanes, .. } => *lanes,
            Self::RowPanel { n1, vec, .. } => n1 / vec,
        }
    }

    pub fn order(&self) -> RowOrder {
        match self {
            Self::RowSplit { order, .. } | Self::ColumnMajor { order, .. } => *order,
            Self::RowPanel { .. } => RowOrder::Length,
        }
    }

    /// Entries of A in flight a thread.
    pub fn unroll(&self) -> u32 {
        match self {
            Self::RowSplit { unroll, .. }
            | Self::RowPanel { unroll, .. }
            | Self::ColumnMajor { unroll, .. } => *unroll,
        }
    }

    /// Floats of B that one entry of A makes a thread load.
    pub fn floats_an_entry(&self) -> u32 {
        match self {
            Self::RowSplit { vec, cols, .. } => vec * cols,
            Self::RowPanel { vec, .. } => *vec,
            Self::ColumnMajor { r, .. } => *r,
        }
    }

    /// Whether a tile's threads are whole warps, or a warp is shared by whole tiles: what the kernels assert.
    pub fn fills_warps(&self) -> bool {
        let whole = self.threads().is_multiple_of(32);
        whole
            && (self.threads_a_tile().is_multiple_of(32) || !matches!(self, Self::RowPanel { .. }))
    }

    /// Whether every row of B starts at a multiple of the vector.
    pub fn is_aligned(&self, problem: &Spmm) -> bool {
        match self {
            Self::RowSplit { vec, .. } | Self::RowPanel { vec, .. } => {
                problem.n.is_multiple_of(*vec)
            }
            Self::ColumnMajor { .. } => true,
        }
    }

    /// Registers a thread, by counting variables (LO-SpMM, section 3.2): accumulators, what is in flight, and about 28
    /// for addresses and loop state. Compared with the compiler's own figures the estimate is within a fifth.
    pub fn registers(&self) -> u32 {
        let floats = self.floats_an_entry();
        let m1 = self.rows_a_tile();
        let in_flight = match self {
            Self::RowSplit { .. } => floats + 2,
            Self::RowPanel { .. } | Self::ColumnMajor { .. } => floats + m1 + 1,
        };
        m1 * floats + self.unroll() * in_flight + 28
    }
}
