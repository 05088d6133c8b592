//! Family `kept_rows`, column-major: rows of A stay with their threads while what they need of B passes through shared memory
//! (`kernels/spmm/kept_rows.cuh`). Written for short rows in an order in which neighbours need neighbouring rows of B: grids,
//! meshes, bands and roads. Other kernels read A again for each group of columns, after B and C have driven it out of the caches.

#[cfg(test)]
mod tests;
pub mod windows;

use super::family::{
    Beyond, RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family,
};
use super::inspect::Inspection;
use super::model::{L2_RATIO, LAUNCH_US, MEMORY_RATIO, SECTOR, Work};
use super::shared::{Lowered, Shared, array};
use super::text::{self, elements, output, scale};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::ops::program::{EntryPoint, number, parameter};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;
use windows::{Estimate, Windows, shifts};

const NAME: &str = "kept_rows";
/// Bytes that one copy brings.
const PIECE_BYTES: u64 = 16;
/// Threads from which the columns of a block of rows are not shared among several blocks: as many as an H100 runs at a time where a
/// thread has 64 registers.
const FILLING: u32 = 1 << 17;
/// The share of all entries that may be beyond what threads keep of their rows: those are read again for each stage.
const BEYOND: f64 = 0.02;
/// Entries of a row beyond what its thread keeps. All threads of a block wait for the one that reads most.
const MOST_BEYOND: u64 = 64;
/// Shared-memory accesses of a multiprocessor in a microsecond, each of a warp.
const ACCESSES_PER_US: f64 = 1_700.0;
/// Measured time over the norm of the parts, since they overlap only partly: grids, bands, roads and meshes on an H100.
const OVERLAP: f64 = 1.08;
/// What waiting at the barriers adds to it, where a multiprocessor has one block and `AHEAD` bytes being copied.
const MEETING: f64 = 0.08;
/// The bytes being copied to a multiprocessor that `MEETING` is stated for; with half as many a barrier costs twice as much.
const AHEAD: f64 = 65_536.0;
/// Upper limit of a factor for too few blocks, or for too few bytes being copied: such calls are slow, but not in proportion.
const MOST_IDLE: f64 = 4.0;

pub struct KeptRows;

#[derive(Clone, Copy, Debug)]
struct KeptRow {
    /// Rows of a block.
    rows: u32,
    /// Rows of a thread.
    turns: u32,
    /// Entries of a row that its thread keeps.
    keep: u32,
    /// Columns of a stage.
    r: u32,
    stages: u32,
    problem: Spmm,
}

impl SpmmFamily for KeptRows {
    fn name(&self) -> &'static str {
        NAME
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/kept_rows.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("rows", &windows::ROWS),
                Domain::ints("turns", &[1, 2]),
                Domain::ints("keep", &KEEP),
                Domain::ints("r", &[4, 8]),
                Domain::ints("stages", &[2, 3]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        chosen(NAME, self.domains(), |candidate| self.kernel(candidate, problem).is_some())
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != NAME || effective_layout(problem) != Layout::Col {
            return None;
        }
        // The narrowest stage has four columns: of two, half of it would be idle.
        if problem.n < 3 || !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        let kernel = KeptRow {
            rows: int("rows")?,
            turns: int("turns")?,
            keep: int("keep")?,
            r: int("r")?,
            stages: int("stages")?,
            problem: *problem,
        };
        kernel.fits_registers().then(|| Box::new(kernel) as _)
    }
}

/// Entries that a thread may keep of a row; as in the header.
const KEEP: [u32; 4] = [4, 8, 20, 32];

impl Family for KeptRows {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(NAME, Distinction::Alone)];
        FamilyDescriptor {
            title: "Kept rows",
            summary: "Threads keep rows of A in registers, and what they need of each column of B passes through shared memory.",
            source: None,
            parameters: parameters(
                self.domains(),
                &[
                    ("rows", "rows of a block"),
                    ("turns", "rows that a thread computes one after another"),
                    ("keep", "entries of a row that a thread keeps"),
                    ("r", "columns of B and C that a stage has"),
                    (
                        "stages",
                        "stages of B in shared memory at a time, of which one is multiplied while the others are copied",
                    ),
                ],
            ),
            ..gpu_family("spmm.kept_rows", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &["rows"],
            tiled_by: &["rows", "turns", "r"],
            headers: &["spmm/kept_rows.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        2
    }
}

impl KeptRow {
    fn threads(&self) -> u32 {
        self.rows / self.turns
    }

    fn element(&self) -> u32 {
        self.problem.dtype.bytes() as u32
    }

    fn in_piece(&self) -> u32 {
        PIECE_BYTES as u32 / self.element()
    }

    /// Registers of a thread with which NVRTC spills nothing or a few bytes (the header says how many): places and values of what it
    /// keeps, and what the copies and sums need beside them, which is more where elements are not of 4 bytes.
    fn registers(&self) -> u32 {
        let (base, words) = match self.element() {
            8 => (40, 3),
            4 => (32, 2),
            _ => (48, 2),
        };
        let many = if self.keep > 20 { 8 } else { 0 };
        base + many + self.turns * self.keep * words
    }

    /// Whether a block of so many threads has that many registers, and no thread keeps more than the compiler places well: two rows of
    /// few entries beside four sums, or one row of many in two stages. Other forms spill up to 200 bytes, and were no faster.
    fn fits_registers(&self) -> bool {
        let threads = self.threads();
        (128..=1024).contains(&threads)
            && self.registers().next_multiple_of(8) * threads <= 65_536
            && (self.turns == 1 || (self.keep <= 8 && self.r == 4 && self.element() <= 4))
            && (self.keep < 20 || self.stages == 2)
            && (self.element() > 2 || self.keep <= 20)
    }

    /// Blocks that a multiprocessor holds at a time by their registers; more than a thousand threads hide no more.
    fn resident(&self) -> u32 {
        let (registers, threads) = (self.registers().next_multiple_of(8), self.threads());
        (65_536 / (registers * threads)).clamp(1, (1024 / threads).max(1))
    }

    /// Stages of all columns.
    fn all_stages(&self) -> u32 {
        self.problem.n.div_ceil(self.r)
    }

    /// How many stages a block sums: all, or where rows are too few to fill the device a part, but no fewer than two, of which one
    /// is on its way while the other is summed.
    fn stages_of_block(&self, rows: u64) -> u32 {
        let threads = rows.div_ceil(self.rows.into()) * u64::from(self.threads());
        let parts = u64::from(FILLING).checked_div(threads).unwrap_or(1).max(1);
        let parts = parts.min(u64::from(self.all_stages() / 2).max(1)) as u32;
        self.all_stages().div_ceil(parts)
    }

    fn parts(&self, rows: u64) -> u32 {
        self.all_stages().div_ceil(self.stages_of_block(rows))
    }

    /// The shared memory of a block whose window has so many pieces.
    fn window_bytes(&self, pieces: u64) -> u64 {
        u64::from(self.stages * self.r) * pieces * PIECE_BYTES + 4 * pieces
    }

    fn estimate(&self, seen: &Inspection) -> Option<Seen> {
        let Estimate { mean, most, mean_shifted, most_shifted } =
            seen.windows.get(self.rows, self.in_piece())?;
        Some(match shifts(seen.cols, self.in_piece()) {
            true => Seen { mean: mean_shifted, most: most_shifted },
            false => Seen { mean, most },
        })
    }

    fn kernel(&self, bound: Bound) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let operands = vec![
            parameter("const u32*", "row_ptr", Arg::RowPtr),
            parameter("const u16*", "places", Arg::Array(2)),
            parameter(elements(dtype), "vals", Arg::Values),
            parameter("const u32*", "piece_ptr", Arg::Array(0)),
            parameter("const u32*", "pieces", Arg::Array(1)),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            number("rows", bound.rows),
            number("b_rows", bound.b_rows),
            number("n", n),
            number("window", bound.window),
            number("stages", self.stages_of_block(bound.rows.into())),
            scale(&self.problem),
        ];
        // Left to itself, the compiler takes up to twice the registers that it needs, and half as many blocks are resident.
        let launch_bounds = Some(format!("{}, {}", self.threads(), self.resident()));
        EntryPoint { launch_bounds, ..text::kernel("kept_rows", "KeptRowsConfig", operands) }
    }
}

/// What is known of the windows of a candidate's blocks, pieces.
struct Seen {
    mean: f64,
    most: u32,
}

/// Operands that depend on the matrix; the default serves if only the text is needed.
#[derive(Clone, Copy, Default)]
struct Bound {
    rows: u32,
    b_rows: u32,
    /// Pieces of the largest window.
    window: u32,
}

impl SpmmKernel for KeptRow {
    fn tile(&self) -> Tile {
        Tile {
            rows: 1,
            columns: self.r,
            threads: self.threads(),
            most_threads: 1024,
            threads_per_tile: 1,
            tiles_per_block: self.rows,
            order: RowOrder::Natural,
            unroll: self.keep,
            elements_an_entry: self.r,
            registers: self.registers(),
            shared_bytes: 0,
            vector: 1,
            balanced: false,
            grid_y: self.all_stages(),
            // A stage has no columns beyond a narrower one's.
            repeats: Beyond::most(self.r, 2 * self.problem.n - 1),
        }
    }

    /// Asynchronous copies.
    fn runs_on(&self, device: &Device) -> bool {
        device.compute_major().unwrap_or(0) >= 8
    }

    fn blocks(&self, seen: &Inspection, _: &Spmm) -> u64 {
        seen.rows.div_ceil(self.rows.into()) * u64::from(self.parts(seen.rows))
    }

    /// Rows that a thread keeps, or nearly, in no more registers than they need.
    fn applies(&self, seen: &Inspection, _: &Device) -> bool {
        let keeps = |keep: u32| seen.share_within(keep, u32::MAX) <= BEYOND;
        let least = KEEP.into_iter().find(|&keep| keeps(keep));
        least == Some(self.keep)
            && seen.longest_row <= u64::from(self.keep) + MOST_BEYOND
            && self.estimate(seen).is_some()
    }

    fn work(&self, seen: &Inspection) -> Work {
        let bytes = self.problem.dtype.bytes() as f64;
        let pieces = self.estimate(seen).map_or(0.0, |seen| seen.mean);
        let blocks = seen.rows.div_ceil(self.rows.into()) as f64;
        let fetched = pieces * blocks * PIECE_BYTES as f64 * f64::from(self.r);
        Work {
            // A block reads A once for all of its columns.
            a_bytes: (seen.nnz as f64 * (2.0 + bytes) + seen.rows as f64 * 4.0)
                / f64::from(self.all_stages()),
            fetched: fetched / (seen.nnz as f64).max(1.0),
            width: bytes * f64::from(self.r),
            instructions: 1.0 + 2.0 * f64::from(self.r),
            lockstep: seen.groups(32, false).lockstep,
            reuse: seen.locality_in(RowOrder::Natural).near,
            in_turn: f64::from(self.turns),
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    /// What passes memory, L2 and the port of shared memory, which overlap but not fully.
    fn predict_us(&self, seen: &Inspection, _: &Spmm, device: &Device) -> f64 {
        let Some(window) = self.estimate(seen) else { return f64::INFINITY };
        let (n, element) = (f64::from(self.problem.n), f64::from(self.element()));
        let copy = device.copy_gbps.max(1.0) * 1e3;
        let (rows, nnz) = (seen.rows as f64, seen.nnz as f64);
        let blocks = seen.rows.div_ceil(self.rows.into()) as f64;
        let b_bytes = seen.touched_cols as f64 * n * element;
        let c_bytes = rows * n * self.problem.result().bytes() as f64;
        let a_bytes = nnz * (2.0 + element) + rows * 4.0;
        // A piece fetches the sector that it lies in, which has room for two of them.
        let sectors = seen.windows.get(self.rows, 2 * self.in_piece());
        let sectors = sectors.map_or(window.mean, |sectors| sectors.mean);
        let parts = f64::from(self.parts(seen.rows));
        let memory = (a_bytes + b_bytes + c_bytes) / (copy * MEMORY_RATIO);
        let l2 = (sectors * SECTOR * blocks * n + c_bytes + a_bytes * parts) / (copy * L2_RATIO);
        let rounds = seen.groups(32, false).lockstep * seen.windows.conflicts;
        // Elements of 8 bytes are read by halves of a warp.
        let halves = (element / 4.0).max(1.0);
        let accesses = nnz * rounds * halves * n / 32.0 + window.mean * blocks * n / 8.0;
        let multiprocessors = f64::from(device.multiprocessors.max(1));
        let port = accesses / (multiprocessors * ACCESSES_PER_US);
        let together = [memory, l2, port].iter().map(|us| us.powi(3)).sum::<f64>().cbrt();
        let shared = self.window_bytes(window.most.into()) + 1024;
        let resident = (device.shared_bytes_per_multiprocessor / shared)
            .clamp(1, self.resident().into()) as f64;
        // Blocks meet after each stage: where a multiprocessor has another, that one goes on, and so do copies of later stages.
        let stage = f64::from(self.r * PIECE_BYTES as u32) * window.mean.max(1.0);
        let ahead = f64::from(self.stages - 1) * stage * resident;
        let meeting = 1.0 + MEETING * (AHEAD / ahead).min(MOST_IDLE) / resident.sqrt();
        // Where blocks are too few to fill all multiprocessors, or fill them for part of a round.
        let rounds = blocks * parts / (resident * multiprocessors);
        let idle = (rounds.ceil() / rounds.max(1e-9)).min(MOST_IDLE).sqrt();
        LAUNCH_US + together * OVERLAP * meeting * idle
    }

    fn shared_bytes(&self, seen: &Inspection) -> u64 {
        // Windows that nobody has looked at fit no shared memory.
        self.estimate(seen).map_or(u64::MAX, |seen| self.window_bytes(seen.most.into()))
    }

    fn source(&self) -> String {
        let settings = [
            ("kRows", self.rows.into()),
            ("kTurns", self.turns.into()),
            ("kKeep", self.keep.into()),
            ("kR", self.r.into()),
            ("kStages", self.stages.into()),
            ("kFull", self.problem.n.is_multiple_of(self.r).into()),
        ];
        let kernel = self.kernel(Bound::default());
        text::program(&["spmm/kept_rows.cuh"], &self.problem, &settings, &[kernel])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let (rows, in_piece) = (self.rows, self.in_piece());
        let name = format!("kept_rows_{rows}_{in_piece}");
        // A refusal is kept, too.
        let (made, ms) = shared.once(
            &name,
            |windows: &Option<Windows>| windows.as_ref().map_or(0, Windows::bytes),
            |shared| Ok::<_, Refusal>(Windows::of(&shared.matrix, rows, in_piece)),
        )?;
        let Some(windows) = made.as_ref() else {
            return Err(Refusal(format!(
                "blocks of {rows} rows use more of a column of B than 16-bit positions can address"
            )));
        };
        let needed = self.window_bytes(windows.most.into());
        let most = shared.device.shared_bytes_per_block;
        if needed > most {
            return Err(Refusal(format!(
                "{} stages of {} columns, {} pieces of 16 bytes a column, take {needed} bytes of shared memory; a block has {most}",
                self.stages, self.r, windows.most
            )));
        }
        let bound = Bound {
            rows: shared.matrix.rows() as u32,
            b_rows: shared.matrix.cols() as u32,
            window: windows.most,
        };
        let step = Step {
            grid: [bound.rows.div_ceil(rows), self.parts(bound.rows.into()), 1],
            shared_bytes: needed as u32,
            ..self.kernel(bound).step(1, self.threads())
        };
        let arrays = vec![
            array(format!("{name}_ptr"), ArrayData::U32(windows.ptr.clone())),
            array(format!("{name}_pieces"), ArrayData::U32(windows.pieces.clone())),
            array(format!("{name}_places"), ArrayData::U16(windows.places.clone())),
        ];
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        Ok(Lowered { arrays, ms, ..Lowered::bare(program) })
    }
}
