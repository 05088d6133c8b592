//! Family `resident`, row-major: a panel of B stays in shared memory while rows of A stream by (`kernels/spmm/resident.cuh`).
//! Written for B with few rows, as in pruned networks: entries that other families gather from L2 one by one come from shared
//! memory here, at about four times the rate.

pub mod cuts;

use super::family::{
    RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family,
};
use super::inspect::Inspection;
use super::model::Work;
use super::phrases;
use super::shared::{Lowered, Shared, array};
use super::text::{self, elements, output, scale};
use super::tiled_row::estimate::{Reads, Traffic, from_memory, microseconds, padded};
use super::tiled_row::groups::{self, Rows};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::ops::program::{EntryPoint, number, parameter};
use crate::search::domain::{Domain, chosen};
use std::sync::{Arc, LazyLock};

const NAME: &str = "resident";
/// Time before a thread's first row, microseconds: the panel's copies and a barrier, besides the time that the bytes take.
const START_US: f64 = 1.5;

pub struct Residents;

#[derive(Clone, Copy, Debug)]
struct Resident {
    n1: u32,
    /// Elements of a row of B that a lane takes: 16 or 32 bytes.
    vec: u32,
    block: u32,
    unroll: u32,
    problem: Spmm,
}

impl SpmmFamily for Residents {
    fn name(&self) -> &'static str {
        NAME
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/resident.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("n1", &[8, 16, 32, 64, 128]),
                Domain::ints("vec", &[2, 4, 8, 16]),
                Domain::ints("block", &[512, 1024]),
                Domain::ints("unroll", &[4, 8]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        chosen(NAME, self.domains(), |candidate| self.kernel(candidate, problem).is_some())
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != NAME || effective_layout(problem) != Layout::Row {
            return None;
        }
        if !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        let kernel = Resident {
            n1: int("n1")?,
            vec: int("vec")?,
            block: int("block")?,
            unroll: int("unroll")?,
            problem: *problem,
        };
        let whole = matches!(kernel.vec * kernel.element(), 16 | 32);
        (whole && kernel.n1 >= kernel.vec && kernel.lanes() <= 32).then(|| Box::new(kernel) as _)
    }
}

impl Family for Residents {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(NAME, Distinction::Alone)];
        FamilyDescriptor {
            title: "Resident B",
            summary: "A tile of B stays in shared memory while all rows of A pass by.",
            source: None,
            parameters: parameters(
                self.domains(),
                &[phrases::N1, phrases::VEC, phrases::BLOCK, phrases::UNROLL],
            ),
            ..gpu_family("spmm.resident", STORED, true)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        true
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["n1", "vec"], headers: &["spmm/resident.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

impl Resident {
    fn kernel(&self, b_rows: u32) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let operands = vec![
            parameter("const u32*", "group_ptr", Arg::Array(0)),
            parameter("const u16*", "cols", Arg::Array(1)),
            parameter(elements(dtype), "vals", Arg::Array(2)),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            parameter("const u32*", "cuts", Arg::Array(3)),
            number("b_rows", b_rows),
            number("n", n),
            scale(&self.problem),
        ];
        // One block per multiprocessor: without the 1 the compiler aims at two blocks, and spills to reach that.
        let launch_bounds = Some(format!("{}, 1", self.block));
        EntryPoint { launch_bounds, ..text::kernel("resident", "ResidentConfig", operands) }
    }

    fn element(&self) -> u32 {
        self.problem.dtype.bytes() as u32
    }

    fn lanes(&self) -> u32 {
        self.n1 / self.vec
    }

    fn column_tiles(&self) -> u32 {
        self.problem.n.div_ceil(self.n1)
    }

    fn panel_bytes(&self, cols: u64) -> u64 {
        cols * u64::from(self.n1 * self.element())
    }

    /// Blocks along the rows: one per multiprocessor, shared among the column tiles. A second block would load the panel once
    /// more and add no more warps than a larger block has.
    fn blocks(&self, device: &Device) -> u32 {
        (device.multiprocessors / self.column_tiles()).max(1)
    }

    fn subwarps(&self) -> u32 {
        self.block / self.lanes()
    }

    fn traffic(&self, seen: &Inspection, device: &Device) -> Traffic {
        let tiles = f64::from(self.column_tiles());
        let element = f64::from(self.element());
        let blocks = f64::from(self.blocks(device));
        let entries = padded(seen, 1.0);
        let a_bytes = entries * (2.0 + element) + 4.0 * seen.rows as f64;
        let panels = self.panel_bytes(seen.cols) as f64 * tiles * blocks;
        let c_bytes = seen.rows as f64 * f64::from(self.problem.n) * element;
        let b_bytes = seen.cols as f64 * f64::from(self.problem.n) * element;
        let subwarps = f64::from(self.subwarps()) * blocks;
        let rows = seen.rows as f64 / subwarps;
        let multiprocessors = f64::from(device.multiprocessors.max(1));
        let waves = (tiles * blocks / multiprocessors).ceil();
        let groups = seen.groups(1, false);
        Traffic {
            memory: from_memory(a_bytes, tiles, device) + b_bytes + c_bytes,
            l2: a_bytes * tiles + c_bytes,
            entries: entries * tiles,
            stationed: panels,
            // Multiprocessors without a block, and rows that do not divide evenly among a warp's subwarps.
            imbalance: waves * multiprocessors / (tiles * blocks)
                * (1.0 + groups.cov.min(1.0) / (1.0 + rows).sqrt()),
            still_us: waves * START_US + panels / (device.copy_gbps.max(1.0) * 2.0e3),
            longest_walk: waves * (seen.longest_row as f64).max(rows.ceil() * seen.mean_row),
        }
    }
}

impl SpmmKernel for Resident {
    fn tile(&self) -> Tile {
        let sums = self.vec * self.element().div_ceil(4).max(1);
        Tile {
            rows: 1,
            columns: self.n1,
            threads: self.block,
            most_threads: 1024,
            threads_per_tile: self.lanes(),
            // Rows are distributed evenly over all blocks: many subwarps per block leave no multiprocessor without work.
            tiles_per_block: 1,
            order: RowOrder::Natural,
            unroll: self.unroll,
            elements_an_entry: self.vec,
            // The compiler knows the block size, and delays loads rather than exceed the registers that such a block may
            // have.
            registers: (sums * 2 + self.unroll * (2 + self.element()) / 4 + 32)
                .min(65_536 / self.block),
            shared_bytes: 0,
            vector: 1,
            balanced: true,
            grid_y: self.column_tiles(),
            repeats: None,
        }
    }

    /// One block per multiprocessor, whatever the number of rows: rows are distributed over these blocks.
    fn blocks(&self, _seen: &Inspection, _problem: &Spmm) -> u64 {
        u64::MAX
    }

    fn work(&self, seen: &Inspection) -> Work {
        Work {
            entries: padded(seen, 1.0),
            a_bytes: padded(seen, 1.0) * f64::from(2 + self.element()),
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn predict_us(&self, seen: &Inspection, _problem: &Spmm, device: &Device) -> f64 {
        let reads = Reads {
            lanes: self.lanes(),
            row_bytes: self.n1 * self.element(),
            dtype: self.problem.dtype,
        };
        microseconds(&self.traffic(seen, device), &reads, device)
    }

    fn shared_bytes(&self, seen: &Inspection) -> u64 {
        self.panel_bytes(seen.cols)
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        padded(seen, 1.0) / (seen.nnz as f64).max(1.0)
    }

    fn source(&self) -> String {
        let settings = [
            ("kN1", self.n1.into()),
            ("kVec", self.vec.into()),
            ("kUnroll", self.unroll.into()),
            ("kAligned", (self.problem.n * self.element()).is_multiple_of(16).into()),
        ];
        text::program(&["spmm/resident.cuh"], &self.problem, &settings, &[self.kernel(0)])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let cols = shared.matrix.cols() as u64;
        let (needed, most) = (self.panel_bytes(cols), shared.device.shared_bytes_per_block);
        if needed > most {
            let why = format!(
                "{cols} rows of B, {} columns wide, take {needed} bytes of shared memory; a block has {most}",
                self.n1
            );
            return Err(Refusal(why));
        }
        let (rows, pack_ms) = shared.once("resident_rows", Rows::bytes, |shared| {
            groups::pack(&shared.matrix, self.problem.dtype).ok_or_else(|| {
                Refusal("the matrix's groups of entries do not fit 32-bit offsets".to_owned())
            })
        })?;
        let (blocks, subwarps) = (self.blocks(&shared.device), self.subwarps());
        let cuts = format!("resident_cuts_{blocks}_{subwarps}");
        let (dealt, cut_ms) = shared.once(
            &cuts,
            |cuts: &Arc<[u32]>| 4 * cuts.len() as u64,
            |_| {
                let ArrayData::U32(ptr) = &rows.ptr else {
                    return Err(Refusal("row offsets are 32-bit integers".to_owned()));
                };
                Ok(cuts::cut(ptr, blocks as usize, subwarps as usize).into())
            },
        )?;
        let arrays = vec![
            array("resident_ptr", rows.ptr.clone()),
            array("resident_cols", rows.cols.clone()),
            array("resident_values", rows.values.clone()),
            array(cuts, ArrayData::U32((*dealt).clone())),
        ];
        let step = Step {
            grid: [blocks, self.column_tiles(), 1],
            shared_bytes: needed as u32,
            ..self.kernel(cols as u32).step(1, self.block)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        let update_ms = Some(pack_ms);
        Ok(Lowered { arrays, ms: pack_ms + cut_ms, update_ms, ..Lowered::bare(program) })
    }
}
