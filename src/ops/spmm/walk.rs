//! Shared by `row_split` and `nnz_split`, with teams and without: groups of lanes x ways threads that walk entries (`kernels/spmm/walk.cuh`), B as
//! given or staged in panels, C written by rows or by columns.

use super::family::{Beyond, RowOrder, Tile, among, count, order, order_serves, width_serves};
use super::inspect::Inspection;
use super::model::{STAGE_US, Work};
use super::text::{self, element, elements, output};
use crate::domain::candidate::{EQUAL, NEAR};
use crate::domain::recipe::Arg;
use crate::domain::{Candidate, Layout, Spmm};
use crate::ops::program::{EntryPoint, Operand, Setting, aggregate, number, parameter};
use crate::search::domain::{Domain, chosen};
use dense::STAGED_COLUMNS;
use std::sync::LazyLock;

mod dense;
mod near;
mod reading;

pub use dense::Dense;
pub use reading::{described, is_near, with_equal, with_near};

/// Static shared memory that any block may have without opting in, bytes.
pub const STATIC_SHARED: u32 = 48 << 10;

/// The parsed parameters of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    pub lanes: u32,
    pub ways: u32,
    pub vec: u32,
    pub cols: u32,
    pub unroll: u32,
    pub block: u32,
    pub fetch: Fetch,
    pub order: RowOrder,
    pub dense: Dense,
    /// Whether a word tells that all values may be equal.
    pub equal: bool,
    /// Whether columns are stored as distances from their row.
    pub near: bool,
    pub problem: Spmm,
}

/// How the entries of A come to the threads of a group, as in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    Direct,
    Shuffle,
    Ahead,
}

impl Fetch {
    fn of(candidate: &Candidate) -> Option<Self> {
        match candidate.text("fetch")? {
            "direct" => Some(Self::Direct),
            "shuffle" => Some(Self::Shuffle),
            "ahead" => Some(Self::Ahead),
            _ => None,
        }
    }

    fn enumerator(self) -> &'static str {
        match self {
            Self::Direct => "kDirect",
            Self::Shuffle => "kShuffle",
            Self::Ahead => "kAhead",
        }
    }
}

/// Operands of a walk that depend on the matrix; the default serves if only the text is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    pub rows: u32,
    pub b_rows: u32,
    /// The array that holds the order of rows; none in natural order.
    pub order: Option<usize>,
    /// The array of the word that tells whether all values are equal; none where the walk has no such word.
    pub equal: Option<usize>,
    /// The array of columns as distances from their rows; none where the walk reads their numbers.
    pub near: Option<usize>,
}

/// The domains of a walk, as the headers' `tune:` lines list them.
pub static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
    vec![
        Domain::ints("lanes", &[1, 2, 4, 8, 16, 32]),
        Domain::ints("ways", &[1, 2, 4, 8, 16, 32]),
        Domain::ints("vec", &[1, 2, 4, 8]),
        Domain::ints("cols", &[1, 2, 3, 4]),
        Domain::ints("unroll", &[2, 4, 8]),
        Domain::ints("block", &[64, 256]),
        Domain::texts("fetch", &["direct", "shuffle"]),
        Domain::texts("order", &["natural", "length", "locality"]),
        Domain::texts("b", &["given", "staged", "both"]),
    ]
});

/// The candidates of a family over these domains that make sense for a problem. Values that the problem determines are fixed
/// before the product is formed: the whole product has tens of thousands of members.
pub fn candidates(family: &str, domains: &[Domain], problem: &Spmm) -> Vec<Candidate> {
    let by_columns = by_columns(problem);
    let narrowed = |dense: Dense| {
        domains
            .iter()
            .map(|domain| match domain.name {
                "vec" => Domain::ints("vec", &[widest_vector(problem, dense.stages())]),
                "b" => Domain::texts("b", &[dense.name()]),
                "order" if by_columns && dense != Dense::Both => {
                    Domain::texts("order", &["natural"])
                }
                _ => domain.clone(),
            })
            .collect::<Vec<_>>()
    };
    let pays = |walk: Walk| walk.makes_sense() && walk.order_pays();
    let keep =
        |c: &Candidate| order_serves(c, problem) && Walk::of(c, problem, domains).is_some_and(pays);
    Dense::ALL.into_iter().flat_map(|dense| chosen(family, &narrowed(dense), keep)).collect()
}

/// Elements of the widest vector that rows of B and C align to: 16 bytes, or fewer where n is no multiple, or smaller.
pub fn widest_vector(problem: &Spmm, staged: bool) -> u32 {
    let most = (16 / problem.dtype.bytes() as u32).min(problem.n.next_power_of_two());
    if staged || by_columns(problem) {
        return most;
    }
    let aligned = 1 << problem.n.trailing_zeros().min(4);
    most.min(aligned)
}

fn by_columns(problem: &Spmm) -> bool {
    problem.layout == Layout::Col && problem.n > 1
}

impl Walk {
    /// `None` if a parameter is missing, or has a value that is not in its family's domain.
    pub fn of(candidate: &Candidate, problem: &Spmm, domains: &[Domain]) -> Option<Self> {
        // What candidates have only if it is so.
        let said = |name| match candidate.params.contains_key(name) {
            true => (candidate.int(name) == Some(1)).then_some(true),
            false => Some(false),
        };
        if !among(candidate, domains) {
            return None;
        }
        let int = |name| count(candidate, name);
        Some(Self {
            lanes: int("lanes")?,
            ways: int("ways")?,
            vec: int("vec")?,
            cols: int("cols")?,
            unroll: int("unroll")?,
            block: int("block")?,
            fetch: Fetch::of(candidate)?,
            order: order(candidate)?,
            dense: Dense::of(candidate)?,
            equal: said(EQUAL)?,
            near: said(NEAR)?,
            problem: *problem,
        })
    }

    /// Whether the kernel takes these parameters for this problem, and no other candidate does the same.
    pub fn makes_sense(&self) -> bool {
        let n = self.problem.n;
        let element = self.problem.dtype.bytes() as u32;
        let (group, tile, vector) = (self.group(), self.columns(), self.vec * element);
        let fits = group <= 32 && self.cols * vector <= 64 && self.in_flight() <= 64;
        // A tile wider than N wastes lanes; one narrower than a line of B reads lines in parts, which pays off only if B is
        // staged.
        let whole = tile >= n && tile < 2 * n.next_power_of_two().max(self.vec);
        let line =
            tile * element >= if self.dense == Dense::Staged { 64 } else { 128 } && tile <= n;
        // Staging copies whole panels of at most `STAGED_COLUMNS` columns at a time.
        let serves = width_serves(n, tile)
            && (!self.dense.stages()
                || tile <= STAGED_COLUMNS
                || tile.is_multiple_of(STAGED_COLUMNS));
        // Lanes side by side read at least 64 bytes of a row, if it has them.
        let wide = self.cols == 1 || self.lanes * vector >= 64;
        let shuffle =
            self.fetch != Fetch::Shuffle || (self.unroll * self.ways <= group && group >= 8);
        let deep = self.unroll < 8 || self.cols == 1;
        let place = match (self.dense, by_columns(&self.problem)) {
            (Dense::Given, by_columns) => !by_columns,
            (Dense::Staged, true) => self.order == RowOrder::Natural,
            // Staging aligns rows that are not, or narrows the panel that must stay in L2.
            (Dense::Staged, false) => {
                let unaligned = !n.is_multiple_of(16 / element) && n > 4;
                unaligned || (tile * element == 64 && n > tile)
            }
            // Sums that are scaled and added to C are not rounded between.
            (Dense::Both, by_columns) => by_columns && !self.problem.accumulate,
        };
        let vector_fits = self.vec == widest_vector(&self.problem, self.dense.stages());
        let shared = self.shared_bytes(self.groups()) <= STATIC_SHARED;
        vector_fits
            && fits
            && (whole || line)
            && serves
            && wide
            && shuffle
            && deep
            && place
            && shared
    }

    /// By locality rows that share columns meet in large blocks, which share L1; small blocks and shuffled indices serve short
    /// and unequal rows, as they do in the other orders. The space would be half as large again with them.
    fn order_pays(&self) -> bool {
        self.order != RowOrder::Locality || (self.block == 256 && self.fetch != Fetch::Shuffle)
    }

    fn group(&self) -> u32 {
        self.lanes * self.ways
    }

    /// 32-bit words of B in flight per thread.
    fn in_flight(&self) -> u32 {
        self.unroll * self.cols * (self.vec * self.problem.dtype.bytes() as u32).div_ceil(4)
    }

    /// N1.
    pub fn columns(&self) -> u32 {
        self.lanes * self.vec * self.cols
    }

    /// Groups per block.
    pub fn groups(&self) -> u32 {
        self.block / self.group()
    }

    pub fn column_tiles(&self) -> u32 {
        self.problem.n.div_ceil(self.columns())
    }

    /// Bytes of a sum, and of what is kept of one between segments.
    pub fn sum_bytes(&self) -> u64 {
        self.problem.dtype.bytes().max(4)
    }

    /// Whether the walk itself writes columns.
    pub fn writes_columns(&self) -> bool {
        by_columns(&self.problem) && self.dense != Dense::Both
    }

    /// The tile of sums that columns are written from, of a block of `rows` rows.
    pub fn shared_bytes(&self, rows: u32) -> u32 {
        if !self.writes_columns() {
            return 0;
        }
        self.columns() * (rows + 1) * self.sum_bytes() as u32
    }

    pub fn tile(&self) -> Tile {
        let elements = self.vec * self.cols;
        let words = self.sum_bytes() as u32 / 4;
        Tile {
            rows: 1,
            columns: self.columns(),
            threads: self.block,
            most_threads: 256,
            threads_per_tile: self.group(),
            tiles_per_block: self.groups().max(1),
            order: self.order,
            unroll: self.unroll,
            elements_an_entry: elements,
            registers: elements * words + self.in_flight() + 2 * self.unroll + 14,
            shared_bytes: self.shared_bytes(self.groups()),
            vector: 1,
            balanced: false,
            grid_y: self.column_tiles().max(self.staged_tiles()),
            // Such a walk is never listed: the kernel does not take it, or the problem determines another value.
            repeats: (!self.makes_sense()).then_some(Beyond::ANOTHER),
        }
    }

    /// What the walk of all rows moves and computes.
    pub fn work(&self, seen: &Inspection) -> Work {
        let ways = f64::from(self.ways);
        let by_length = self.order == RowOrder::Length;
        let fetch = match self.fetch {
            Fetch::Shuffle => 2.0 + 4.0 / f64::from(self.group()),
            Fetch::Direct | Fetch::Ahead => 3.0,
        };
        let wide = if self.problem.dtype.is_half() { 2.0 } else { 1.0 };
        let element = self.problem.dtype.bytes() as f64;
        // Read, and written in panels of whole tiles.
        let columns = f64::from(self.problem.n) + f64::from(self.column_tiles() * self.columns());
        let b = if self.dense.stages() { seen.cols as f64 * columns * element } else { 0.0 };
        let c_elements = seen.rows as f64 * f64::from(self.problem.n);
        let (c, turning_us) = match self.dense {
            Dense::Both => (2.0 * c_elements * self.problem.result().bytes() as f64, STAGE_US),
            Dense::Given | Dense::Staged => (0.0, 0.0),
        };
        let plain = Work::row_major(&self.tile(), seen, &self.problem);
        let combined = f64::from(self.ways.ilog2() * self.cols * self.vec);
        Work {
            instructions: (fetch + f64::from(self.cols) * (2.0 + wide * f64::from(self.vec)))
                / ways,
            mean_walk: seen.mean_row / ways,
            longest_walk: seen.longest_row as f64 / ways,
            lockstep: seen.groups(32 / self.group(), by_length).lockstep,
            framed: combined,
            // Of equal values a line or two a run are in the caches; near columns take half the bytes.
            a_bytes: plain.a_bytes
                - if self.equal { seen.nnz as f64 * element } else { 0.0 }
                - if self.near { seen.nnz as f64 * 2.0 } else { 0.0 },
            staged_bytes: b + c,
            after_us: turning_us,
            ..plain
        }
    }

    /// What a program sets in the kernel's configuration.
    fn settings(&self) -> [(&'static str, Setting); 11] {
        let n = self.problem.n;
        let output = match () {
            () if self.writes_columns() => "kColumns",
            () if n.is_multiple_of(self.vec) => "kRowVectors",
            () => "kRowElements",
        };
        [
            ("kLanes", self.lanes.into()),
            ("kWays", self.ways.into()),
            ("kVec", self.vec.into()),
            ("kCols", self.cols.into()),
            ("kUnroll", self.unroll.into()),
            ("kBlock", self.block.into()),
            ("kFetch", Setting::Enumerator("Fetch", self.fetch.enumerator())),
            ("kEqual", self.equal.into()),
            ("kNear", self.near.into()),
            ("kFull", n.is_multiple_of(self.columns()).into()),
            ("kOut", Setting::Enumerator("Output", output)),
        ]
    }

    /// The operands up to the dimensions.
    pub fn operands(&self, bound: Bound) -> Vec<Operand> {
        let Spmm { n, dtype, .. } = self.problem;
        let tile = u64::from(self.columns());
        let (b, step, stride) = if self.dense.stages() {
            (Arg::Scratch(0), tile * u64::from(bound.b_rows), self.columns())
        } else {
            (Arg::B, tile, n)
        };
        let dense = vec![
            parameter(elements(dtype), "b", b),
            parameter("u64", "tile_step", Arg::U64(step)),
            number("stride", stride),
        ];
        let mut values = vec![parameter(elements(dtype), "vals", Arg::Values)];
        if self.equal {
            let word = bound.equal.map_or(Arg::NULL, Arg::Array);
            values.push(parameter("const u32*", "equal", word));
        }
        let cols = match self.near {
            false => parameter("const u32*", "cols", Arg::ColIdx),
            true => parameter("const u16*", "cols", bound.near.map_or(Arg::NULL, Arg::Array)),
        };
        vec![
            parameter("const u32*", "row_ptr", Arg::RowPtr),
            cols,
            aggregate(format!("Values<{}, {}>", element(dtype), self.equal), values),
            aggregate(format!("Dense<{}>", element(dtype)), dense),
            self.output(),
            parameter("const u32*", "order", bound.order.map_or(Arg::NULL, Arg::Array)),
            number("rows", bound.rows),
            number("n", n),
        ]
    }

    /// The text of a family's program: its kernel, and the one that stages B where B is staged.
    pub fn source(&self, header: &str, kernel: EntryPoint) -> String {
        self.source_with(header, kernel, &[])
    }

    /// The same with settings that the family adds.
    pub fn source_with(
        &self,
        header: &str,
        kernel: EntryPoint,
        own: &[(&'static str, Setting)],
    ) -> String {
        let headers = [header, "spmm/stage.cuh", "spmm/unstage.cuh"];
        let kernels = [kernel, self.staging(0, false), self.turning(0)];
        let several = match self.dense {
            Dense::Given => 1,
            Dense::Staged => 2,
            Dense::Both => 3,
        };
        let settings = [&self.settings()[..], own].concat();
        text::program(&headers[..several], &self.problem, &settings, &kernels[..several])
    }

    /// The dense output, or the memory where C is kept by rows.
    fn output(&self) -> Operand {
        match self.dense {
            Dense::Given | Dense::Staged => output(&self.problem),
            Dense::Both => {
                parameter(format!("{}*", element(self.problem.result())), "c", Arg::Scratch(1))
            }
        }
    }
}
