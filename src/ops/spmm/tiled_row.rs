//! Family `tiled` on row-major operands: blocks gather the B rows they touch into shared memory (`kernels/spmm/tiled_row.cuh`;
//! Tiled SpMM, section 3, whose operands are column-major). Written for blocks of rows that share columns.

pub mod estimate;
pub mod groups;
mod lower;
pub mod pack;
#[cfg(test)]
mod tests;

use super::family::{
    RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family, order,
    order_serves,
};
use super::inspect::Inspection;
use super::model::{SECTOR, Work};
use super::phrases;
use super::shared::{Lowered, Shared};
use super::tiled::slots;
use super::tiled_model::Terms;
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Device, Dtype, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::search::domain::{Domain, chosen};
use estimate::{Reads, Traffic, from_memory, microseconds, padded};
use std::sync::LazyLock;

const NAME: &str = "tiled";
/// Most threads per block.
const THREADS: u32 = 1024;
/// Threads that should be resident per multiprocessor, for threads with up to 8 words of sums, with more, and with doubles:
/// 40, 64 and 80 registers each. They form several blocks, so that some compute while others gather.
const RESIDENT: [u32; 3] = [1536, 1024, 768];
const SPLITS: [i64; 5] = [1, 2, 4, 8, 16];
/// Waves of blocks that a larger split must not exceed: beyond them, partial sums and half-empty stages bring no gain.
const MOST_WAVES: f64 = 4.0;
/// Ratios of the reuse of B by rows in natural order to that by length: above the first the natural order may pay off, above
/// the second the order by length cannot.
const NATURAL_PAYS: [f64; 2] = [1.05, 1.5];
/// A stage of a block that is alone on its multiprocessor, microseconds: measured on an H100 as 4.1 ms for about 400 stages
/// of 256 rows of B.
const ALONE_US: f64 = 10.0;
/// A stage's map, then the copies it names, then its barriers, in isolation: microseconds.
const STAGE_US: f64 = 1.2;

pub struct TiledRows;

#[derive(Clone, Copy, Debug)]
struct TiledRow {
    rows: u32,
    n1: u32,
    /// Most rows of B in shared memory at a time.
    buffer: u32,
    /// Blocks that share a row block's stages.
    split: u32,
    /// Which rows share a block; within a block they are always sorted by falling length.
    order: RowOrder,
    problem: Spmm,
}

impl SpmmFamily for TiledRows {
    fn name(&self) -> &'static str {
        NAME
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/tiled_row.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("rows", &[64, 128]),
                Domain::ints("n1", &[32, 64, 128]),
                Domain::ints("buffer", &[128, 256, 512]),
                Domain::ints("split", &SPLITS),
                Domain::texts("order", &["natural", "length", "similarity", "radix", "locality"]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if effective_layout(problem) != Layout::Row {
            return Vec::new();
        }
        chosen(NAME, self.domains(), |candidate| order_serves(candidate, problem))
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != NAME || effective_layout(problem) != Layout::Row {
            return None;
        }
        if !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        Some(Box::new(TiledRow {
            rows: int("rows")?,
            n1: int("n1")?,
            buffer: int("buffer")?,
            split: int("split")?,
            order: order(candidate)?,
            problem: *problem,
        }))
    }
}

impl Family for TiledRows {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(NAME, Distinction::Has("n1"))];
        FamilyDescriptor {
            title: "Tiled SpMM, row-major",
            summary: "Panels of rows gather the rows of row-major B that they need into shared memory, stage by stage.",
            source: Some("Tiled SpMM, section 3, for row-major operands"),
            parameters: parameters(
                self.domains(),
                &[
                    ("rows", "rows of a panel"),
                    phrases::N1,
                    ("buffer", "rows of B that are gathered in shared memory at a time"),
                    ("split", "blocks that share the stages of a panel"),
                    phrases::ORDER,
                ],
            ),
            ..gpu_family("spmm.tiled_row", STORED, true)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        true
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &["rows", "buffer", "order"],
            tiled_by: &["n1", "rows", "buffer"],
            headers: &["spmm/tiled_row.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

impl TiledRow {
    fn element(&self) -> u32 {
        self.problem.dtype.bytes() as u32
    }

    fn row_bytes(&self) -> u32 {
        self.n1 * self.element()
    }

    /// Whether rows of B and C are whole vectors of 16 bytes.
    fn aligned(&self) -> bool {
        (u64::from(self.problem.n) * u64::from(self.element())).is_multiple_of(16)
    }

    /// Vectors of 16 bytes of a row that a lane takes: as the kernel's config has it.
    fn pieces(&self) -> u32 {
        let most = if self.problem.dtype.is_half() { 2 } else { 4 };
        (self.row_bytes() / 64).clamp(1, most)
    }

    /// Threads that share a row.
    fn lanes(&self) -> u32 {
        self.row_bytes() / 16 / self.pieces()
    }

    fn threads(&self) -> u32 {
        self.rows * self.lanes()
    }

    /// Threads that a multiprocessor should hold; the kernel's registers are bounded accordingly.
    fn resident_threads(&self) -> u32 {
        match self.n1 / self.lanes() {
            _ if self.problem.dtype == Dtype::F64 => RESIDENT[2],
            // Element by element, the bounds of the columns take registers, too.
            0..=8 if self.aligned() => RESIDENT[0],
            _ => RESIDENT[1],
        }
    }

    /// Registers that the bound on threads leaves each of them, in multiples of eight, but no fewer than its sums and loads
    /// need.
    fn registers(&self) -> u32 {
        let blocks = (self.resident_threads() / self.threads()).max(1);
        let left = 65_536 / (blocks * self.threads()).max(1) / 8 * 8;
        left.clamp(65_536 / self.resident_threads() / 8 * 8, 255)
    }

    fn by_length(&self) -> bool {
        self.order == RowOrder::Length
    }

    /// Blocks that a multiprocessor holds at a time.
    fn beside(&self, device: &Device) -> f64 {
        let a_block = u64::from(self.tile().shared_bytes + 1024);
        let by_threads = u64::from(self.resident_threads() / self.threads());
        (device.shared_bytes_per_multiprocessor / a_block).min(by_threads).max(1) as f64
    }

    fn blocks(&self, seen: &Inspection) -> f64 {
        let row_blocks = seen.rows.div_ceil(u64::from(self.rows));
        row_blocks as f64 * f64::from(self.column_tiles()) * f64::from(self.split)
    }

    /// Whether there are about as many blocks as run at a time: more if more are possible and multiprocessors would idle, but
    /// not so many that they queue.
    fn split_suits(&self, seen: &Inspection, device: &Device) -> bool {
        let wave = f64::from(device.multiprocessors.max(1)) * self.beside(device);
        let waves = self.blocks(seen) / wave;
        let larger = i64::from(self.split) < SPLITS[SPLITS.len() - 1]
            && 2.0 * f64::from(self.split) <= self.stages(seen).1;
        !(waves < 1.0 && larger) && (self.split == 1 || waves <= MOST_WAVES)
    }

    /// Rows by length make blocks of equal work, but may lose what neighbouring rows share.
    fn order_suits(&self, seen: &Inspection) -> bool {
        let near = |order| seen.locality_in(order).near;
        let [natural, by_length] = [RowOrder::Natural, RowOrder::Length].map(near);
        let gain = natural / by_length.max(1.0);
        match self.order {
            RowOrder::Natural => gain > NATURAL_PAYS[0],
            RowOrder::Length => gain < NATURAL_PAYS[1],
            // Their gain has a rule of its own.
            RowOrder::Similarity | RowOrder::Radix | RowOrder::Locality => true,
        }
    }

    fn column_tiles(&self) -> u32 {
        self.problem.n.div_ceil(self.n1)
    }

    /// Bytes per element of a partial sum: halves are summed in f32.
    fn sum_bytes(&self) -> u32 {
        self.element().max(4)
    }

    /// Ratio of entries to distinct columns in a row block, from windows of 64 and of 8192 rows.
    fn reuse(&self, seen: &Inspection) -> f64 {
        let locality = seen.locality_in(self.order);
        let towards = f64::from(self.rows / 64).log2() / 7.0;
        locality.near.powf(1.0 - towards) * locality.far.powf(towards)
    }

    /// Distinct columns of a row block, and the number of its stages.
    fn stages(&self, seen: &Inspection) -> (f64, f64) {
        let entries = seen.mean_row * f64::from(self.rows);
        let distinct = (entries / self.reuse(seen)).min(seen.touched_cols as f64).max(1.0);
        (distinct, (distinct / f64::from(self.buffer)).ceil())
    }

    /// Cost of waiting within a stage: subwarps that share a quarter of a warp wait for each other, and every warp for the
    /// longest row of the block. Entries are assumed to fall on stages at random; other blocks use the slots of waiting ones.
    fn stage_imbalance(&self, seen: &Inspection, stages: f64, beside: f64) -> f64 {
        let mean = (seen.mean_row / stages).max(0.1);
        let spread = mean.sqrt() / mean;
        // The mean of the larger of two normal deviates.
        let pair = if self.lanes() < 8 { 1.0 + 0.56 * spread } else { 1.0 };
        let longest = 1.0 + (2.0 * f64::from(self.rows).ln()).sqrt() * spread;
        let lockstep = seen.groups(self.rows, self.by_length()).lockstep;
        pair * (longest / pair * lockstep).max(1.0).powf(1.0 / (1.0 + beside))
    }

    /// Idle slots: multiprocessors with one block less than others, then half a block at the end of the last wave.
    fn idle(&self, blocks: f64, beside: f64, device: &Device) -> f64 {
        let each = (blocks / f64::from(device.multiprocessors.max(1))).max(1e-3);
        if each <= beside { each.ceil() / each } else { 1.0 + 0.5 / each }
    }

    /// The block with the longest rows, alone: its stages follow each other, whatever the others do.
    fn heaviest_us(&self, seen: &Inspection) -> f64 {
        let heaviest = seen.groups(self.rows, self.by_length()).heaviest as f64;
        let distinct = heaviest.min(seen.touched_cols as f64);
        let stages = (distinct / f64::from(self.buffer) / f64::from(self.split)).ceil();
        if stages > 1.0 { stages * ALONE_US } else { 0.0 }
    }

    fn traffic(&self, seen: &Inspection, device: &Device) -> Traffic {
        let (distinct, stages) = self.stages(seen);
        let (tiles, split) = (f64::from(self.column_tiles()), f64::from(self.split));
        let element = f64::from(self.element());
        let row_blocks = (seen.rows as f64 / f64::from(self.rows)).ceil();
        let entries = padded(seen, stages);
        let a_bytes = entries * (2.0 + element)
            + row_blocks * (distinct + stages * f64::from(self.rows)) * 4.0;
        let gathered = row_blocks * distinct * f64::from(self.row_bytes()) * tiles;
        let width = f64::from(self.problem.n);
        let c_bytes = seen.rows as f64 * width * element;
        let again =
            seen.nnz as f64 / seen.locality_in(self.order).far / seen.touched_cols.max(1) as f64;
        let partials = if self.split > 1 { 2.0 * split } else { 0.0 };
        let partials = partials * seen.rows as f64 * width * f64::from(self.sum_bytes());
        let beside = self.beside(device);
        let blocks = self.blocks(seen);
        let wave = f64::from(device.multiprocessors.max(1)) * beside;
        let waves = (blocks / wave).ceil().max(1.0);
        let steps = (stages / split).ceil();
        Traffic {
            memory: from_memory(a_bytes, tiles, device)
                + from_memory(seen.touched_cols as f64 * width * element, again, device)
                + c_bytes,
            l2: gathered + a_bytes * tiles + c_bytes + partials,
            entries: entries * tiles,
            stationed: gathered,
            imbalance: self.stage_imbalance(seen, stages, beside)
                * self.idle(blocks, beside, device),
            still_us: (waves * steps * STAGE_US / beside).max(self.heaviest_us(seen))
                + if self.split > 1 { 1.0 } else { 0.0 },
            longest_walk: (seen.longest_row as f64 / split.min(stages))
                .max(waves * seen.mean_row / split),
        }
    }
}

impl SpmmKernel for TiledRow {
    fn tile(&self) -> Tile {
        Tile {
            rows: 1,
            columns: self.n1,
            threads: self.threads(),
            most_threads: THREADS,
            threads_per_tile: self.lanes(),
            // A split multiplies the number of blocks by the number of parts.
            tiles_per_block: (self.rows / self.split).max(1),
            order: self.order,
            unroll: 4,
            elements_an_entry: self.n1 / self.lanes(),
            registers: self.registers(),
            shared_bytes: self.buffer * self.row_bytes(),
            vector: 1,
            balanced: false,
            grid_y: 1,
            repeats: None,
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let entries = padded(seen, self.stages(seen).1);
        Work {
            entries,
            a_bytes: entries * f64::from(2 + self.element()),
            locality: seen.locality_in(self.order),
            reuse: self.reuse(seen),
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn predict_us(&self, seen: &Inspection, _problem: &Spmm, device: &Device) -> f64 {
        let (lanes, row_bytes) = (self.lanes(), self.row_bytes());
        let reads = Reads { lanes, row_bytes, dtype: self.problem.dtype };
        microseconds(&self.traffic(seen, device), &reads, device)
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        padded(seen, self.stages(seen).1) / (seen.nnz as f64).max(1.0)
    }

    /// Rows of C are stored whole: in the matrix's own order they cost nothing more, and the estimated reuse decides.
    fn order_gain(&self, seen: &Inspection, _: &Device) -> Option<f64> {
        let near = |order| seen.locality_in(order).near;
        let others = near(RowOrder::Natural).max(near(RowOrder::Length));
        match self.order {
            RowOrder::Natural | RowOrder::Length => None,
            RowOrder::Locality => Some(seen.locality_gain()),
            order if seen.tiled(order).looked() == 0 => Some(0.0),
            order => Some(near(order) / others),
        }
    }

    /// As the model has them where a row of B is read whole: A is read once for `n1` columns, and a gather is of whole sectors.
    fn tiled_terms(&self, seen: &Inspection, device: &Device) -> Option<Terms> {
        let (distinct, stages) = self.stages(seen);
        let (rho, rows) = (self.reuse(seen).max(1.0), f64::from(self.rows));
        let width = f64::from(self.problem.n.min(self.n1) * self.element());
        let c = (width / SECTOR).ceil() * SECTOR / width;
        let l = (seen.nnz as f64 / rho / seen.touched_cols.max(1) as f64).max(1.0);
        let element = f64::from(self.element());
        Some(Terms {
            mu: seen.mean_row,
            mu_segment: seen.mean_row,
            r: f64::from(self.n1),
            rho,
            z: self.fill(seen),
            // The map of the panel and the bounds of its stages, by row.
            delta: 4.0 * (distinct / rows + stages),
            element,
            c,
            l,
            gamma: c / l,
            u: slots::utilization(self.blocks(seen) as u64, device.multiprocessors),
            segmented: false,
            stages_per_panel: stages,
            panels: (seen.rows as f64 / rows).ceil(),
            longest_walk: seen.longest_row as f64,
            stored: element,
            again: 0.0,
        })
    }

    fn applies(&self, seen: &Inspection, device: &Device) -> bool {
        self.order_suits(seen) && self.split_suits(seen, device)
    }

    fn source(&self) -> String {
        lower::source(self)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        lower::lower(self, shared)
    }
}
