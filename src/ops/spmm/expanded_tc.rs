//! Family `expanded_tc`, row-major: load sparse, compute dense (`kernels/spmm/expanded_tc.cuh`). A matrix with some 3 to 50 % of its
//! entries crosses the memory bus as entries, is expanded in shared memory, and multiplied as if it were dense by warpgroup
//! products (Flash-LLM, VLDB 2024, has the idea; the gathered columns, both types and the split along K are ours).

mod descriptor;
pub mod pack;

use super::condensed_tc::pack::Operand;
use super::family::{RowOrder, SpmmFamily, SpmmKernel, Tile, among, count};
use super::inspect::Inspection;
use super::model::{self, LAUNCH_US, Work};
use super::shared::{Lowered, MOST_KEPT, Shared, array};
use super::text::{self, elements, output, scale};
use super::tiled_model::sample::Cut;
use crate::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Dtype, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::program::{EntryPoint, aggregate, number, parameter};
use crate::search::domain::{Domain, chosen};
use half::{bf16, f16};
use pack::{Expanded, ROWS};
use std::sync::{Arc, LazyLock};

pub const FAMILY: &str = "expanded_tc";

/// The only devices that have warpgroup products.
const CAPABILITY: &str = "9.0";
/// Narrowest B for which a product's 64 columns are worthwhile.
const LEAST_COLUMNS: u32 = 24;
/// Least share of entries in the tiles for which the family is tried: below it even the tensor cores of f16 lose.
const LEAST_FILL: f64 = 0.02;
/// Warpgroups that expand tiles, and threads of a block.
const EXPANDERS: u32 = 2;
const THREADS: u32 = 128 * (EXPANDERS + 2);
/// Tiles in the ring: products of one, the next, and one that is being expanded; more hide more.
const TILES: std::ops::RangeInclusive<u32> = 3..=6;
/// Tiles' entries that each group has room for, where there is enough of it.
const ENTRIES: u32 = 4;
/// Alignment of the tiles, and room for the barriers.
const FRAME_BYTES: u32 = 1024 + 16 * (6 + EXPANDERS * ENTRIES);
/// Microseconds before a block's first product and after its last, and of adding up the shares of a cluster.
const FILLING_US: f64 = 2.0;
const MEETING_US: f64 = 2.5;

pub struct ExpandedTcs;

#[derive(Clone, Copy, Debug)]
struct ExpandedTc {
    columns: u32,
    split: u32,
    problem: Spmm,
}

/// A block's ring of tiles, as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    tiles: u32,
    entries: u32,
    places_bytes: u32,
    entry_bytes: u32,
    bytes: u32,
}

impl SpmmFamily for ExpandedTcs {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/expanded_tc.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![Domain::ints("columns", &[64, 128]), Domain::ints("split", &[1, 2, 4, 8])]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        chosen(FAMILY, self.domains(), |candidate| self.kernel(candidate, problem).is_some())
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != FAMILY || !takes(problem) || !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        let kernel =
            ExpandedTc { columns: int("columns")?, split: int("split")?, problem: *problem };
        // Two narrow tiles would expand everything twice.
        (kernel.columns == 128 || problem.n <= 64).then(|| Box::new(kernel) as _)
    }
}

fn takes(problem: &Spmm) -> bool {
    problem.layout == Layout::Row && problem.dtype != Dtype::F64 && problem.n >= LEAST_COLUMNS
}

impl ExpandedTc {
    fn half(&self) -> bool {
        self.problem.dtype.is_half()
    }

    fn element(&self) -> u32 {
        self.problem.dtype.bytes() as u32
    }

    /// Columns of A in a tile.
    fn depth(&self) -> u32 {
        pack::depth(self.element() as usize) as u32
    }

    /// Number of products that compute one: f32 operands are split unless the client accepts tf32.
    fn terms(&self) -> u32 {
        if self.half() || self.problem.tf32 { 1 } else { 3 }
    }

    fn column_tiles(&self) -> u32 {
        self.problem.n.div_ceil(self.columns)
    }

    /// Bytes of a tile of A and of B in shared memory.
    fn tile_bytes(&self) -> u32 {
        let a = ROWS as u32 * 128 * if self.terms() == 3 { 2 } else { 1 };
        let pitch = if self.half() { self.columns } else { self.columns + 8 };
        a + self.depth() * pitch * self.element()
    }

    /// The largest ring that fits a block, where the fullest tile has `most` eights of entries.
    fn ring(&self, most: u32, device: &Device) -> Option<Ring> {
        let room = u32::try_from(device.shared_bytes_per_block).ok()?.checked_sub(FRAME_BYTES)?;
        let places_bytes = (1 + self.depth() / 4 + most) * 16;
        let entry_bytes = places_bytes + most * 8 * self.element();
        let of = |tiles: u32, least: u32| {
            let left = room.checked_sub(tiles * self.tile_bytes())?;
            let entries = (left / (EXPANDERS * entry_bytes)).min(ENTRIES);
            let bytes = FRAME_BYTES + tiles * self.tile_bytes() + EXPANDERS * entries * entry_bytes;
            (entries >= least).then_some(Ring { tiles, entries, places_bytes, entry_bytes, bytes })
        };
        // The slot of a tile is filled again when the next one has been expanded: with three, while a third is; with two, only then.
        TILES.rev().find_map(|tiles| of(tiles, 3)).or_else(|| of(*TILES.start(), 2))
    }

    /// Distinct columns of a mean panel.
    fn panel_columns(&self, seen: &Inspection) -> f64 {
        let cut = Cut { rows: ROWS as u32, buffer: u32::from(u16::MAX), segment: None };
        let reuse = seen.tiled(RowOrder::Natural).footprint(cut).reuse();
        seen.nnz as f64 / self.panels(seen) as f64 / reuse
    }

    fn panels(&self, seen: &Inspection) -> u64 {
        seen.rows.div_ceil(ROWS as u64).max(1)
    }

    /// Tiles of all panels, approximately.
    fn tiles(&self, seen: &Inspection) -> f64 {
        let depth = f64::from(self.depth());
        let columns = self.panel_columns(seen);
        // A panel with fewer columns than a tile has one.
        let tiles = if columns < depth { 1.0 } else { columns / depth + 0.5 };
        self.panels(seen) as f64 * tiles
    }

    /// Tiles of the panel with the most entries, if it has as many times the columns of a mean one as it has the entries.
    fn longest_panel(&self, seen: &Inspection) -> f64 {
        let panels = self.panels(seen) as f64;
        let heaviest = seen.groups(ROWS as u32, false).heaviest as f64;
        let times = heaviest / (seen.nnz as f64 / panels).max(1.0);
        let most = (seen.cols as f64 / f64::from(self.depth())).ceil();
        (self.tiles(seen) / panels * times).min(most)
    }

    /// Share of entries in the tiles.
    fn density(&self, seen: &Inspection) -> f64 {
        let elements = self.tiles(seen) * f64::from(self.depth()) * ROWS as f64;
        (seen.nnz as f64 / elements).min(1.0)
    }

    /// Microseconds of one tile in a block, measured on an H100 at 5, 10 and 30 %: what the tensor cores take, or shared memory.
    fn tile_us(&self, density: f64) -> f64 {
        let (empty, full) = match (self.terms(), self.columns) {
            (3, 128) => (0.97, 0.8),
            (3, _) => (0.62, 0.8),
            _ if self.half() => (0.55, 0.55),
            _ => (0.59, 0.8),
        };
        empty + full * density
    }

    /// Blocks that run at a time: one on each multiprocessor, but the multiprocessors that share a crossbar do not divide into
    /// whole clusters (measured: 30 clusters of 4 and 14 of 8 on 132 multiprocessors).
    fn at_a_time(&self, device: &Device) -> f64 {
        let clusters = f64::from(device.multiprocessors) / f64::from(self.split);
        let whole = match self.split {
            1 => 1.0,
            2 => 0.97,
            4 => 0.91,
            _ => 0.85,
        };
        (clusters * whole).floor().max(1.0) * f64::from(self.split)
    }
}

impl SpmmKernel for ExpandedTc {
    fn tile(&self) -> Tile {
        Tile {
            rows: ROWS as u32,
            columns: self.columns,
            threads: THREADS,
            most_threads: THREADS,
            threads_per_tile: THREADS,
            tiles_per_block: 1,
            order: RowOrder::Natural,
            unroll: 1,
            elements_an_entry: self.columns / 32,
            // What a block of so many threads may have.
            registers: 65_536 / THREADS,
            shared_bytes: TILES.start() * self.tile_bytes(),
            vector: 16 / self.element(),
            balanced: true,
            grid_y: self.column_tiles(),
            repeats: None,
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let rows_of_b = self.tiles(seen) * f64::from(self.depth());
        let (nnz, element) = (seen.nnz as f64, f64::from(self.element()));
        let panels = self.panels(seen) as f64;
        let walked = rows_of_b / panels / f64::from(self.split);
        let longest = self.longest_panel(seen) * f64::from(self.depth() / self.split);
        Work {
            entries: rows_of_b,
            a_bytes: nnz * (2.0 + element) + rows_of_b * 4.25,
            walks: panels * f64::from(self.split),
            mean_walk: walked,
            longest_walk: longest.max(walked),
            reuse: nnz / rows_of_b.max(1.0),
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    /// Waves of blocks, each with its share of a panel's tiles, or the longest panel, or the bytes that the whole call moves.
    fn predict_us(&self, seen: &Inspection, problem: &Spmm, device: &Device) -> f64 {
        let panels = self.panels(seen) as f64;
        let blocks = panels * f64::from(self.split * self.column_tiles());
        let waves = (blocks / self.at_a_time(device)).ceil();
        let tiles = (self.tiles(seen) / panels / f64::from(self.split)).max(1.0);
        let meeting = if self.split > 1 { MEETING_US } else { 0.0 };
        let tile_us = self.tile_us(self.density(seen));
        let block_us = FILLING_US + tiles * tile_us + meeting;
        let longest_us = self.longest_panel(seen) / f64::from(self.split) * tile_us;
        let moved = Work { instructions: 0.0, longest_walk: 0.0, ..self.work(seen) };
        let moving = model::Parts::of(&self.tile(), &moved, seen, problem, device).memory;
        LAUNCH_US + (waves * block_us).max(longest_us).max(moving)
    }

    /// Waves are part of the prediction.
    fn blocks(&self, _seen: &Inspection, _problem: &Spmm) -> u64 {
        u64::MAX
    }

    fn runs_on(&self, device: &Device) -> bool {
        device.compute_capability == CAPABILITY
    }

    fn applies(&self, seen: &Inspection, _device: &Device) -> bool {
        self.density(seen) >= LEAST_FILL
    }

    fn source(&self) -> String {
        let settings = [
            ("kTerms", self.terms().into()),
            ("kColumns", self.columns.into()),
            ("kSplit", self.split.into()),
        ];
        let kernel = self.kernel(&Bound::default());
        text::program(&["spmm/expanded_tc.cuh"], &self.problem, &settings, &[kernel])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let capability = &shared.device.compute_capability;
        if capability != CAPABILITY {
            return Err(Refusal(format!(
                "warpgroup products need a device of compute capability {CAPABILITY}, and this one has {capability}"
            )));
        }
        if shared.matrix.rows() == 0 {
            return Err(Refusal("a matrix without rows has no tiles".to_owned()));
        }
        let (arrays, most, ms) = match self.problem.dtype {
            Dtype::F16 => self.packed::<f16>(shared, ArrayData::F16)?,
            Dtype::Bf16 => self.packed::<bf16>(shared, ArrayData::Bf16)?,
            _ => self.packed::<f32>(shared, ArrayData::F32)?,
        };
        let ring = self.ring(most, &shared.device).ok_or_else(|| {
            Refusal(format!(
                "a tile of A with {} entries leaves no room for three tiles in the {} bytes of shared memory of a block",
                8 * most,
                shared.device.shared_bytes_per_block
            ))
        })?;
        let rows = shared.matrix.rows() as u32;
        let panels = rows.div_ceil(ROWS as u32).max(1);
        let step = Step {
            grid: [panels * self.split, self.column_tiles(), 1],
            shared_bytes: ring.bytes,
            ..self.kernel(&Bound { rows, ring: Some(ring) }).step(1, THREADS)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        Ok(Lowered { arrays, ms, update_ms: Some(ms), ..Lowered::bare(program) })
    }
}

/// Numbers that depend on the matrix; the default serves if only the text is needed.
#[derive(Default)]
struct Bound {
    rows: u32,
    ring: Option<Ring>,
}

impl ExpandedTc {
    fn kernel(&self, bound: &Bound) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let values = format!("const {}*", text::element(dtype));
        let tiles = vec![
            parameter("const u32*", "panel_ptr", Arg::Array(0)),
            parameter("const u32*", "entry_ptr", Arg::Array(1)),
            parameter("const u16*", "places", Arg::Array(2)),
            parameter(values, "values", Arg::Array(3)),
            number("rows", bound.rows),
        ];
        let of = |name, value: fn(&Ring) -> u32| number(name, bound.ring.as_ref().map_or(0, value));
        let ring = vec![
            of("ring_tiles", |ring| ring.tiles),
            of("ring_entries", |ring| ring.entries),
            of("places_bytes", |ring| ring.places_bytes),
            of("entry_bytes", |ring| ring.entry_bytes),
        ];
        let operands = vec![
            aggregate("ExpandedTiles", tiles),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            number("n", n),
            aggregate("ExpandedRing", ring),
            scale(&self.problem),
        ];
        EntryPoint {
            launch_bounds: Some(format!("{THREADS}, 1")),
            cluster: self.split,
            ..text::kernel("expanded_tc", "ExpandedTcConfig", operands)
        }
    }

    /// The packed arrays in the kernel's order, and the eights of the fullest tile.
    fn packed<V: Operand>(
        &self,
        shared: &mut Shared,
        values: impl Fn(Arc<[V::Stored]>) -> ArrayData,
    ) -> Result<(Vec<Array>, u32, f64), Refusal> {
        let (packed, ms) = shared.once(FAMILY, Expanded::<V::Stored>::bytes, |shared| {
            pack::pack::<V>(&shared.matrix).ok_or_else(|| {
                Refusal(format!("expanded tiles take more than {} GiB", MOST_KEPT >> 30))
            })
        })?;
        let arrays = vec![
            array("expanded_panels", ArrayData::U32(packed.panel_ptr.clone())),
            array("expanded_entries", ArrayData::U32(packed.entry_ptr.clone())),
            array("expanded_places", ArrayData::U16(packed.places.clone())),
            array("expanded_values", values(packed.values.clone())),
        ];
        Ok((arrays, packed.most, ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::Csr;
    use crate::sparse::generate::Spec;

    fn matrix(spec: &str) -> Csr {
        Spec::parse(spec).expect("a generator").generate().expect("a matrix")
    }

    fn device(capability: &str) -> Device {
        Device {
            compute_capability: capability.to_owned(),
            multiprocessors: 132,
            copy_gbps: 2900.0,
            l2_bytes: 50 << 20,
            shared_bytes_per_block: 232_448,
            ..Device::NONE
        }
    }

    fn kernels(problem: &Spmm) -> Vec<(u32, Box<dyn SpmmKernel>)> {
        let split = |candidate: &Candidate| count(candidate, "split").expect("a split");
        let parsed = |candidate: Candidate| {
            Some((split(&candidate), ExpandedTcs.kernel(&candidate, problem)?))
        };
        ExpandedTcs.candidates(problem).into_iter().filter_map(parsed).collect()
    }

    /// Back to back on an H100 80GB HBM3, by the split.
    #[test]
    fn the_model_comes_to_what_was_measured() {
        let seen = Inspection::of(&matrix("uniform:rows=2048,cols=2048,nnz=838861,seed=1"));
        for (dtype, measured) in
            [(Dtype::F16, [28.3, 18.9, 33.8, 42.5]), (Dtype::F32, [76.6, 43.0, 70.1, 75.1])]
        {
            let problem = Spmm::new(512, dtype, Layout::Row);
            let kernels = kernels(&problem);
            assert_eq!(kernels.len(), measured.len());
            for ((split, kernel), us) in kernels.iter().zip(measured) {
                let predicted = kernel.predict_us(&seen, &problem, &device("9.0"));
                assert!((predicted / us - 1.0).abs() < 0.15, "{split}: {predicted} for {us}");
            }
        }
    }

    #[test]
    fn it_is_for_nearly_dense_matrices_on_devices_that_have_the_products() {
        let problem = Spmm::new(128, Dtype::F32, Layout::Row);
        let (_, kernel) = kernels(&problem).swap_remove(0);
        let dense = Inspection::of(&matrix("uniform:rows=500,cols=700,nnz=35000,seed=1"));
        let sparse = Inspection::of(&matrix("uniform:rows=5000,cols=70000,nnz=35000,seed=1"));
        assert!(kernel.applies(&dense, &device("9.0")) && !kernel.applies(&sparse, &device("9.0")));
        let runs = ["8.0", "9.0", "10.0"].map(|capability| kernel.runs_on(&device(capability)));
        assert_eq!(runs, [false, true, false]);
    }

    #[test]
    fn what_fits_no_block_is_refused_with_a_sentence() {
        let problem = Spmm::new(128, Dtype::F32, Layout::Row);
        let (_, kernel) = kernels(&problem).swap_remove(0);
        let full = Arc::new(matrix("blocks:rows=256,cols=256,block=256,density=1,seed=1"));
        let lowered = |capability: &str| {
            let mut shared = Shared::new(full.clone(), problem, device(capability));
            kernel.lower(&mut shared).map(|lowered| lowered.arrays.len())
        };
        let Err(Refusal(sentence)) = lowered("9.0") else { panic!("a tile of 4096 entries fits") };
        assert!(sentence.starts_with("a tile of A with 4096 entries leaves no room"), "{sentence}");
        let Err(Refusal(sentence)) = lowered("8.0") else { panic!("sm_80 has the products") };
        assert!(sentence.contains("compute capability 9.0"), "{sentence}");
    }
}
