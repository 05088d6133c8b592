//! Family `tiled`, row-major, lowered: its kernel text, its tables as arrays, and one launch.

use super::super::family::SpmmKernel;
use super::super::shared::{self, Lowered, MOST_KEPT, Shared, array};
use super::super::text::{self, element, elements, output, scale};
use super::TiledRow;
use super::pack::{Packed, Shape, blockwise, pack};
use crate::domain::recipe::{Arg, CudaProgram, Program, Scratch, Step};
use crate::domain::{Device, Spmm};
use crate::ops::Refusal;
use crate::ops::program::{EntryPoint, number, parameter};

pub fn source(tiled: &TiledRow) -> String {
    let settings = [
        ("kRows", tiled.rows.into()),
        ("kN1", tiled.n1.into()),
        ("kAligned", tiled.aligned().into()),
    ];
    text::program(&["spmm/tiled_row.cuh"], &tiled.problem, &settings, &[tiled.kernel(0)])
}

pub fn lower(tiled: &TiledRow, shared: &mut Shared) -> Result<Lowered, Refusal> {
    let TiledRow { rows, buffer, split, .. } = *tiled;
    let (ordered, ms_of_order) = shared.ordered(tiled.order);
    let name = format!("tiled_row_{rows}_{buffer}_{}", tiled.order.name());
    let (packed, ms) = shared.once(&name, Packed::bytes, |shared| {
        let order = match ordered {
            // Blocks of rows by length fall by themselves.
            Some(order) if tiled.by_length() => order,
            Some(order) => blockwise(&shared.matrix, &order, rows as usize),
            None => {
                let natural: Vec<u32> = (0..shared.matrix.rows() as u32).collect();
                blockwise(&shared.matrix, &natural, rows as usize)
            }
        };
        let shape = Shape { rows: rows as usize, buffer: buffer as usize };
        pack(&shared.matrix, order, shape, tiled.problem.dtype).ok_or_else(|| {
            Refusal(format!("tiles of {rows} rows take more than {} GiB", MOST_KEPT >> 30))
        })
    })?;
    if split > 1 && split > packed.most_stages {
        let why = format!(
            "no row block has more than {} stages, which {split} blocks cannot share",
            packed.most_stages
        );
        return Err(Refusal(why));
    }
    let named = |(part, data): (_, &_)| array(format!("{name}_{part}"), Clone::clone(data));
    let arrays = packed.arrays().map(named).to_vec();
    let height = shared.matrix.rows() as u32;
    let (row_blocks, tiles) = (height.div_ceil(rows), tiled.column_tiles());
    let scratch = tiled.scratch(u64::from(row_blocks) * u64::from(tiles), &shared.device)?;
    let step = Step {
        grid: [row_blocks * split, tiles, 1],
        shared_bytes: SpmmKernel::tile(tiled).shared_bytes,
        ..tiled.kernel(height).step(1, tiled.threads())
    };
    let program = Program::Cuda(CudaProgram::of(source(tiled), step));
    let update_ms = Some(ms);
    Ok(Lowered { arrays, scratch, ms: ms_of_order + ms, update_ms, ..Lowered::bare(program) })
}

impl TiledRow {
    fn kernel(&self, height: u32) -> EntryPoint {
        let Self { split, problem: Spmm { n, dtype, .. }, .. } = *self;
        let (element, threads) = (element(dtype), self.threads());
        let pointer = |name, at| parameter("const u32*", name, Arg::Array(at));
        let scratch = |at| if split > 1 { Arg::Scratch(at) } else { Arg::NULL };
        let operands = vec![
            pointer("order", 0),
            pointer("block_stages", 1),
            pointer("stage_map", 2),
            pointer("map", 3),
            pointer("bounds", 4),
            parameter("const u16*", "places", Arg::Array(5)),
            parameter(elements(dtype), "vals", Arg::Array(6)),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            parameter(format!("Sum<{element}>*"), "partials", scratch(0)),
            parameter("u32*", "arrived", scratch(1)),
            number("rows", height),
            number("n", n),
            number("split", split),
            scale(&self.problem),
        ];
        // Without bounds the compiler might use more registers than such blocks can have.
        let least_blocks = (self.resident_threads() / threads).max(1);
        let launch_bounds = Some(format!("{threads}, {least_blocks}"));
        EntryPoint { launch_bounds, ..text::kernel("tiled_row", "TiledRowConfig", operands) }
    }

    /// Partial sums of every part of every tile of C, and how many parts of each have arrived.
    fn scratch(&self, tiles: u64, device: &Device) -> Result<Vec<Scratch>, Refusal> {
        if self.split == 1 {
            return Ok(Vec::new());
        }
        let a_tile = u64::from(self.rows * self.n1 * self.sum_bytes());
        let partials = tiles * u64::from(self.split) * a_tile;
        let partials = shared::scratch("partial sums", partials, device)?;
        // Far smaller than the scratch memory that was just granted.
        Ok(vec![partials, Scratch { bytes: 4 * tiles, fill: 0 }])
    }
}
