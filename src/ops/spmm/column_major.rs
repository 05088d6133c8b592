//! Family `row_split` on column-major operands as they are (`kernels/spmm/column_major.cuh`).

use super::family::{
    Beyond, RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family,
    is_local, is_ordered, order, order_serves,
};
use super::inspect::Inspection;
use super::model::{SECTOR, Work};
use super::phrases;
use super::row_split::row_order;
use super::row_teams::{BETWEEN, MEETING_US};
use super::shared::{Lowered, Shared};
use super::text::{self, elements, output, scale};
use super::walk::Bound;
use crate::domain::catalog::family::{
    Distinction, FamilyDescriptor, Parameter, StoredForm, Values,
};
use crate::domain::recipe::{Arg, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Layout, Param, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::ops::program::{EntryPoint, number, parameter};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

const FAMILY: &str = "row_split";

pub struct ColumnMajors;

#[derive(Clone, Copy, Debug)]
struct ColumnMajor {
    lanes: u32,
    r: u32,
    unroll: u32,
    block: u32,
    /// Most entries of a row that lanes share, where the block takes longer ones.
    heavy: Option<u32>,
    order: RowOrder,
    problem: Spmm,
}

impl SpmmFamily for ColumnMajors {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/column_major.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("lanes", &[1, 4, 8, 16, 32]),
                Domain::ints("r", &[1, 2, 4, 8, 16, 32]),
                Domain::ints("unroll", &[1, 2, 4]),
                Domain::ints("block", &[64, 256, 512, MOST_THREADS]),
                Domain::texts("order", &["natural", "length", "locality"]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        match effective_layout(problem) {
            Layout::Row => Vec::new(),
            Layout::Col => {
                let mut all =
                    chosen(FAMILY, self.domains(), |c| order_serves(c, problem) && differs(c));
                let heavy: Vec<_> = all.iter().flat_map(with_heavy).collect();
                all.extend(heavy);
                all
            }
        }
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if effective_layout(problem) != Layout::Col || candidate.family != FAMILY {
            return None;
        }
        if !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        let heavy = match candidate.params.contains_key(HEAVY) {
            true => Some(int(HEAVY).filter(|&limit| may_take_heavy(candidate, limit))?),
            false => None,
        };
        Some(Box::new(ColumnMajor {
            lanes: int("lanes")?,
            r: int("r")?,
            unroll: int("unroll")?,
            block: int("block")?,
            heavy,
            order: order(candidate)?,
            problem: *problem,
        }))
    }
}

/// The parameter that only candidates have whose blocks take long rows.
const HEAVY: &str = "heavy";

/// Most entries of a row that lanes share there.
const HEAVY_LIMITS: [u32; 2] = [32, 128];

/// Threads of the largest block that takes long rows: larger ones are for rows of about equal length.
const HEAVY_THREADS: i64 = 256;

/// Whether blocks of this kind may take rows of more entries than `limit`: few lanes for all others, a thread alone none of 128 entries,
/// and few columns of C. In a prototype on an H100 (27 matrices of up to 150,000 entries, N = 32 and 128) the fastest kernels that took
/// long rows were such: 2.9 us for 5.5 where one row has 632 entries and all others are short.
fn may_take_heavy(candidate: &Candidate, limit: u32) -> bool {
    let int = |name| candidate.int(name).unwrap_or_default();
    let limits = if int("lanes") == 1 { &HEAVY_LIMITS[..1] } else { &HEAVY_LIMITS };
    limits.contains(&limit)
        && int("lanes") <= 8
        && int("r") <= SHARED_COLUMNS
        && int("block") <= HEAVY_THREADS
        && order(candidate) == Some(RowOrder::Natural)
}

/// A candidate with each limit on rows that it may have.
fn with_heavy(candidate: &Candidate) -> Vec<Candidate> {
    let limits = HEAVY_LIMITS.into_iter().filter(|&limit| may_take_heavy(candidate, limit));
    limits.map(|limit| candidate.clone().with(HEAVY, i64::from(limit))).collect()
}

/// Threads of the largest block in which a thread that reads its row alone has a loop for whole steps: with one for all, as larger
/// blocks have, 2,000 rows of 14 entries took 6.6 us for 5.5, and 1,800 of 4 entries 2.9 for 2.7 (H100, N = 128).
const WHOLE_STEPS_THREADS: u32 = 256;

/// More entries than all threads of a block pass in one step of a row: a place that far beyond the last entry still fits 32 bits.
const LONGEST_STEP: usize = 1024;

/// Most columns that several lanes sum together: each of them takes a round of shuffles.
const SHARED_COLUMNS: i64 = 8;
/// Most elements of B in flight per thread, as the kernel's configuration demands.
const IN_FLIGHT: i64 = 32;

/// Threads from which blocks sum several groups of columns in turn instead of becoming more: two rounds of all that an H100 runs
/// at a time where a thread has 64 registers.
const FILLING: u64 = 1 << 18;

/// Largest block. What rows far from each other gather at random from a column of B stays in L1 for all rows of a block.
const MOST_THREADS: i64 = 1024;

/// Whether a candidate is worth listing. Rows by locality go in large blocks alone, whose rows share L1. Many columns are for
/// a thread that reads its row alone: consecutive rows then read consecutive elements of a column of B, and A is read less often.
fn differs(candidate: &Candidate) -> bool {
    let int = |name| candidate.int(name).unwrap_or_default();
    let (r, unroll, block) = (int("r"), int("unroll"), int("block"));
    let many = r > SHARED_COLUMNS;
    // The largest blocks have 64 registers a thread.
    let in_flight = if block == MOST_THREADS { IN_FLIGHT / 2 } else { IN_FLIGHT };
    (!is_local(candidate) || block >= 256)
        && r * unroll <= in_flight
        && (!many || (int("lanes") == 1 && block >= 256))
        && (block <= 256 || (int("lanes") == 1 && r >= SHARED_COLUMNS))
        && (unroll > 1 || many)
}

impl Family for ColumnMajors {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Has("r"))];
        FamilyDescriptor {
            title: "Row split, column-major",
            summary: "A group of threads shares the entries of each row and reads column-major B and C in place.",
            source: None,
            parameters: described(self.domains()),
            ..gpu_family("spmm.column_major", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["lanes", "r"], headers: &["spmm/column_major.cuh"] }
    }

    fn complexity(&self, candidate: &Candidate) -> u32 {
        1 + u32::from(is_ordered(candidate))
    }
}

/// The parameters of the domains, and [`HEAVY`].
fn described(domains: &[Domain]) -> Vec<Parameter> {
    let own = [
        ("lanes", "threads that share the entries of a row"),
        phrases::R,
        phrases::UNROLL,
        phrases::BLOCK,
        phrases::ORDER,
    ];
    let mut all = parameters(domains, &own);
    all.push(Parameter {
        name: HEAVY,
        values: Values::Among(HEAVY_LIMITS.map(|it| Param::Int(i64::from(it))).to_vec()),
        meaning: "most entries of a row that these threads compute, where longer rows are the work of their whole block",
    });
    all
}

impl ColumnMajor {
    fn kernel(&self, bound: Bound) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let operands = vec![
            parameter("const u32*", "row_ptr", Arg::RowPtr),
            parameter("const u32*", "cols", Arg::ColIdx),
            parameter(elements(dtype), "vals", Arg::Values),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            parameter("const u32*", "order", bound.order.map_or(Arg::NULL, Arg::Array)),
            number("rows", bound.rows),
            number("b_rows", bound.b_rows),
            number("n", n),
            number("groups", self.in_turn(bound.rows.into())),
            scale(&self.problem),
        ];
        let launch_bounds = (self.block > 256).then(|| self.block.to_string());
        EntryPoint { launch_bounds, ..text::kernel("column_major", "ColumnMajorConfig", operands) }
    }

    /// Where long rows wait, and where the warps of a block leave their sums.
    fn shared_bytes(&self) -> u32 {
        let sum = self.problem.dtype.bytes().max(4) as u32;
        match self.heavy {
            Some(_) => 4 * (self.block / self.lanes + 1) + self.block / 32 * self.r * sum,
            None => 0,
        }
    }

    /// Groups of columns.
    const fn groups(&self) -> u32 {
        self.problem.n.div_ceil(self.r)
    }

    /// How many of them a block sums, one after another: one where lanes share a row.
    fn in_turn(&self, rows: u64) -> u32 {
        if self.lanes > 1 {
            return 1;
        }
        let most = rows * u64::from(self.groups()) / FILLING;
        u32::try_from(most).unwrap_or(u32::MAX).clamp(1, self.groups())
    }
}

impl SpmmKernel for ColumnMajor {
    fn tile(&self) -> Tile {
        let words = self.problem.dtype.bytes().div_ceil(4) as u32;
        Tile {
            rows: 1,
            columns: self.r,
            threads: self.block,
            most_threads: MOST_THREADS as u32,
            threads_per_tile: self.lanes,
            tiles_per_block: self.block / self.lanes,
            order: self.order,
            unroll: self.unroll,
            elements_an_entry: self.r,
            registers: (self.r + self.unroll * (self.r + 1)) * words + self.unroll + 28,
            shared_bytes: self.shared_bytes(),
            vector: 1,
            balanced: false,
            // As if each group had blocks of its own, which is what the models were trained on; taken in turn they are fewer.
            grid_y: self.groups(),
            // A thread has no columns beyond a narrower tile's.
            repeats: Beyond::most(self.r, 2 * self.problem.n - 1),
        }
    }

    /// Without rows so long it would do what the others do, and almost what a lower limit does where few entries are in rows between.
    fn applies(&self, seen: &Inspection, _: &Device) -> bool {
        self.heavy.is_none_or(|heavy| {
            let lower = HEAVY_LIMITS.into_iter().rev().find(|&it| it < heavy);
            seen.longest_row > u64::from(heavy)
                && lower.is_none_or(|lower| seen.share_within(lower, heavy) >= BETWEEN)
        })
    }

    /// Gathers of single elements: one sector each, shared with nearby entries of the same row or of the next rows.
    fn work(&self, seen: &Inspection) -> Work {
        let (r, lanes) = (f64::from(self.r), f64::from(self.lanes));
        let bytes = self.problem.dtype.bytes() as f64;
        let by_length = self.order == RowOrder::Length;
        let shared = if by_length { 1.0 } else { 2.0 };
        let element =
            (SECTOR / (1.0 + shared * SECTOR / bytes / seen.mean_gap)).clamp(bytes, SECTOR);
        let mean = seen.mean_row.max(0.01);
        // Lanes past a row's end idle, and a thread that reads its row alone pulls whole sectors of A through L1.
        let idle = (mean / lanes).ceil() * lanes / mean;
        let longest = seen.longest_row as f64;
        let groups = seen.groups(32 / self.lanes, by_length);
        let (longest_walk, lockstep, after_us) = match self.heavy {
            Some(heavy) => {
                let by_block = longest / f64::from(self.block);
                ((f64::from(heavy) / lanes).max(by_block), groups.lockstep.min(2.0), MEETING_US)
            }
            None => (longest / lanes, groups.lockstep, 0.0),
        };
        let stride = if self.lanes >= 4 { 1.0 } else { 1.3 };
        Work {
            entries: seen.nnz as f64,
            // A block's later groups of columns find A in L1.
            a_bytes: (seen.nnz as f64 * (4.0 + bytes) * stride + seen.rows as f64 * 4.0)
                / f64::from(self.in_turn(seen.rows)),
            fetched: element * r,
            width: bytes * r,
            instructions: (5.0 + r * 3.0) * idle.min(8.0) / lanes,
            mean_walk: (mean / lanes).max(1.0),
            longest_walk: longest_walk.ceil(),
            lockstep,
            after_us,
            locality: seen.locality_in(self.order),
            reuse: 1.0,
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn source(&self) -> String {
        let mut settings = vec![
            ("kLanes", self.lanes.into()),
            ("kR", self.r.into()),
            ("kUnroll", self.unroll.into()),
            ("kWholeSteps", (self.block <= WHOLE_STEPS_THREADS).into()),
            ("kHeavy", self.heavy.unwrap_or(0).into()),
            ("kFull", self.problem.n.is_multiple_of(self.r).into()),
        ];
        settings.extend(self.heavy.map(|_| ("kBlock", self.block.into())));
        let kernel = self.kernel(Bound::default());
        text::program(&["spmm/column_major.cuh"], &self.problem, &settings, &[kernel])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        if shared.matrix.nnz() > u32::MAX as usize - LONGEST_STEP {
            return Err(Refusal("the matrix has too many entries for 32-bit places".to_owned()));
        }
        if (shared.matrix.cols() * self.problem.dtype.bytes() as usize) >> 32 > 0 {
            return Err(Refusal("a column of B has 4 GiB or more".to_owned()));
        }
        let (arrays, order, ms) = row_order(shared, self.order);
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let tile = self.tile();
        let step = Step {
            grid: [
                rows.div_ceil(tile.tiles_per_block),
                self.groups().div_ceil(self.in_turn(rows.into())),
                1,
            ],
            ..self.kernel(Bound { rows, b_rows, order, ..Bound::default() }).step(1, tile.threads)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        Ok(Lowered { arrays, ms, ..Lowered::bare(program) })
    }
}

#[cfg(test)]
mod tests {
    use super::HEAVY;
    use crate::domain::{Candidate, DeviceKind, Dtype, Layout, Problem, Spmm};
    use crate::ops::{space, tests::device};
    use crate::sparse::Csr;

    /// Rows of these lengths, over and over, with columns from 0 on.
    fn of_lengths(lengths: &[usize], rows: usize) -> Csr {
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for length in lengths.iter().cycle().take(rows) {
            indices.extend(0..*length as u32);
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        Csr::new(rows, 4000, indptr, indices, values).unwrap()
    }

    /// What is left of `row_split` on column-major operands.
    fn left(matrix: &Csr) -> Vec<Candidate> {
        let problem = Problem::Spmm(Spmm::new(32, Dtype::F32, Layout::Col));
        let all = space(matrix, &problem, &device(DeviceKind::Cuda)).unwrap().scored;
        all.into_iter().map(|it| it.0).filter(|it| it.family == "row_split").collect()
    }

    #[test]
    fn blocks_that_take_long_rows_stand_beside_the_others() {
        let limits = |matrix: &Csr| {
            let left = left(matrix);
            assert!(left.iter().any(|it| it.params.contains_key("turns")));
            assert!(left.iter().any(|it| it.params.contains_key("r") && it.int(HEAVY).is_none()));
            [32, 128].map(|limit| left.iter().any(|it| it.int(HEAVY) == Some(limit)))
        };
        let lengths: Vec<usize> = (1..=40).collect();
        assert_eq!(limits(&of_lengths(&lengths, 4000)), [true, false]);
        assert_eq!(limits(&of_lengths(&[6], 4000)), [false, false]);
        // One long row, with nothing between the limits, and with some rows there.
        assert_eq!(limits(&of_lengths(&[&[600], &[5; 999][..]].concat(), 4000)), [true, false]);
        assert_eq!(limits(&of_lengths(&[&[600, 90, 90], &[5; 97][..]].concat(), 4000)), [true; 2]);
    }
}
