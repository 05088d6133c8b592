//! Family `tiled`, lowered: its kernel text, its tables as arrays, and one launch, or two where rows leave partial sums.

use super::super::family::RowOrder;
use super::super::shared::{self, Lowered, MOST_KEPT, Shared, array};
use super::super::text::{self, element, elements, output, scale};
use super::Tiled;
use super::arrange::{arrange, scatters};
use super::pack::pack;
use super::slots::{LongRows, NO_ROW, Slot};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Dtype, Spmm};
use crate::ops::Refusal;
use crate::ops::program::{EntryPoint, Operand, number, parameter};
use crate::sparse::operand::{bf16_bits, half_bits};
use rayon::prelude::*;
use std::sync::Arc;

/// The second kernel of the text: sums the partial sums of rows that took several warps.
pub const COMBINE: &str = "spmm_combine";
/// Threads per block of it: one warp for each of its columns of C, which sums a row or several.
const COMBINE_THREADS: u32 = 256;
const WARP: u32 = 32;
/// Columns of C that one of its blocks sums.
pub const COMBINE_COLUMNS: u32 = COMBINE_THREADS / 32;

/// What the candidates of one cut share, ready for upload.
struct Packed {
    /// In the order of the kernel's arguments: stages, maps, S-ELL.
    tables: Vec<(&'static str, ArrayData)>,
    /// One key per slot; absent in natural order.
    keys: Option<Arc<[u32]>>,
    long_rows: Arc<[u32]>,
    long_ptr: Arc<[u32]>,
    panels: u32,
    bytes: u64,
}

pub fn source(tiled: &Tiled) -> String {
    let bound = Bound::default();
    let mut kernels = vec![bound.kernel(tiled)];
    if tiled.cuts() {
        kernels.push(bound.combine(tiled));
    }
    let settings = [
        ("kR", tiled.r.into()),
        ("kBuffer", tiled.buffer.into()),
        ("kSegmented", tiled.cuts().into()),
    ];
    text::program(&["spmm/tiled.cuh"], &tiled.problem, &settings, &kernels)
}

/// Operands that depend on the matrix; the default serves if only the text is needed.
#[derive(Clone, Copy, Default)]
struct Bound {
    rows: u32,
    b_rows: u32,
    /// The array of the slots' keys; none in natural order.
    keys: Option<usize>,
    /// Partial sums per column of C.
    partials: u32,
    /// The array of the rows that leave partial sums; that of their first sums follows it.
    long_rows: usize,
    /// How many they are, and how many lanes sum one of them: a power of two.
    long_count: u32,
    long_lanes: u32,
}

impl Bound {
    fn kernel(self, tiled: &Tiled) -> EntryPoint {
        let Spmm { n, dtype, .. } = tiled.problem;
        let element = element(dtype);
        let pointer = |name, at| parameter("const u32*", name, Arg::Array(at));
        let operands = vec![
            pointer("stage_ptr", 0),
            pointer("map_ptr", 1),
            pointer("map", 2),
            pointer("ell_ptr", 3),
            parameter("const u16*", "ell_index", Arg::Array(4)),
            parameter(elements(dtype), "ell_value", Arg::Array(5)),
            parameter("const u32*", "keys", self.keys.map_or(Arg::NULL, Arg::Array)),
            parameter(elements(dtype), "b", Arg::B),
            output(&tiled.problem),
            self.partials(&format!("Sum<{element}>*")),
            number("partial_count", self.partials),
            number("rows", self.rows),
            number("b_rows", self.b_rows),
            number("n", n),
            scale(&tiled.problem),
        ];
        text::kernel("tiled", "TiledConfig", operands)
    }

    fn combine(self, tiled: &Tiled) -> EntryPoint {
        let Spmm { n, accumulate, .. } = tiled.problem;
        let element = element(tiled.problem.result());
        let operands = vec![
            parameter("const u32*", "long_rows", Arg::Array(self.long_rows)),
            parameter("const u32*", "long_ptr", Arg::Array(self.long_rows + 1)),
            self.partials(&format!("const Sum<{element}>*")),
            number("partial_count", self.partials),
            output(&tiled.problem),
            number("rows", self.rows),
            number("n", n),
            number("long_count", self.long_count),
            number("lanes", self.long_lanes),
            scale(&tiled.problem),
        ];
        let function = format!("tiled_combine<{element}, {accumulate}>");
        EntryPoint { name: COMBINE, launch_bounds: None, cluster: 1, function, operands }
    }

    fn partials(self, ctype: &str) -> Operand {
        let sums = if self.partials > 0 { Arg::Scratch(0) } else { Arg::NULL };
        parameter(ctype, "partials", sums)
    }
}

pub fn lower(tiled: &Tiled, shared: &mut Shared) -> Result<Lowered, Refusal> {
    let segment = segment(tiled, shared)?;
    let (arranged, order_ms) = arranged(tiled, shared, segment)?;
    let Tiled { rows: panel, buffer, .. } = *tiled;
    let cut = segment.map_or("whole".to_owned(), |segment| segment.to_string());
    let name = format!("tiled_{}_{panel}_{buffer}_{cut}", tiled.order.name());
    let (packed, pack_ms) = shared.once(
        &name,
        |packed: &Packed| packed.bytes,
        |shared| packed(tiled, shared, &arranged),
    )?;
    let mut lowered = steps(tiled, shared, &packed, &name)?;
    lowered.ms = order_ms + pack_ms;
    lowered.update_ms = Some(pack_ms);
    Ok(lowered)
}

/// Where the chart cuts rows; a candidate with segments that cuts no row would repeat the one without.
fn segment(tiled: &Tiled, shared: &Shared) -> Result<Option<u32>, Refusal> {
    let matrix = &shared.matrix;
    let rows = matrix.rows();
    let mean = matrix.nnz() as f64 / rows.max(1) as f64;
    let square = |row: usize| (matrix.row_nnz(row) as f64 - mean).powi(2);
    let sigma = ((0..rows).map(square).sum::<f64>() / rows.max(1) as f64).sqrt();
    let segment = tiled.segment(rows as u64, mean, sigma, &shared.device);
    if tiled.cuts() && segment.is_none() {
        return Err(Refusal(format!(
            "its rows need no segments: there are enough blocks, and their lengths vary by {:.2} of their mean",
            sigma / mean
        )));
    }
    Ok(segment)
}

/// Rows or segments in the order in which threads take them.
struct Arranged {
    slots: Vec<Slot>,
    long: LongRows,
    /// Slot i is not row i.
    keyed: bool,
}

/// The slots, with the milliseconds that ordering took.
fn arranged(
    tiled: &Tiled,
    shared: &mut Shared,
    segment: Option<u32>,
) -> Result<(Arc<Arranged>, f64), Refusal> {
    // Segments get an order of their own.
    let of_rows =
        if segment.is_some() && scatters(tiled.order) { RowOrder::Natural } else { tiled.order };
    let (rows, rows_ms) = shared.ordered(of_rows);
    let cut = segment.map_or("whole".to_owned(), |segment| segment.to_string());
    let (arranged, ms) = shared.once(
        &format!("tiled_slots_{}_{cut}", tiled.order.name()),
        |arranged: &Arranged| {
            (size_of::<Slot>() * arranged.slots.len() + 8 * arranged.long.rows.len()) as u64
        },
        |shared| {
            let matrix = &shared.matrix;
            let keyed = rows.is_some() || segment.is_some();
            let rows = rows.map_or_else(|| (0..matrix.rows() as u32).collect(), |it| it.to_vec());
            let cols = |row: u32| matrix.row(row as usize).0;
            let (slots, long) = arrange(rows, &cols, tiled.order, segment);
            Ok::<_, Refusal>(Arranged { slots, long, keyed })
        },
    )?;
    Ok((arranged, rows_ms + ms))
}

fn packed(tiled: &Tiled, shared: &Shared, arranged: &Arranged) -> Result<Packed, Refusal> {
    let (matrix, dtype) = (&shared.matrix, tiled.problem.dtype);
    let Arranged { slots, long, keyed } = arranged;
    let panel = tiled.rows as usize;
    let most = (dtype.bytes(), MOST_KEPT);
    let tiles = pack(matrix, slots, panel, tiled.buffer as usize, most).ok_or_else(|| {
        Refusal(format!("its padded tiles take more than {} GiB", MOST_KEPT >> 30))
    })?;
    let panels = u32::try_from(slots.len().div_ceil(panel))
        .map_err(|_| Refusal("it has more segments than a grid has blocks".to_owned()))?;
    let keys: Option<Arc<[u32]>> = keyed.then(|| {
        let empty = panels as usize * panel - slots.len();
        let keys = slots.iter().map(|slot| slot.key);
        keys.chain(std::iter::repeat_n(NO_ROW, empty)).collect()
    });
    let bytes = tiles.bytes(dtype.bytes()) + keys.as_ref().map_or(0, |keys| 4 * keys.len() as u64);
    let tables = vec![
        ("stages", ArrayData::U32(tiles.stage_ptr.into())),
        ("map_ptr", ArrayData::U32(tiles.map_ptr.into())),
        ("map", ArrayData::U32(tiles.map.into())),
        ("ell_ptr", ArrayData::U32(tiles.ell_ptr.into())),
        ("ell_index", ArrayData::U16(tiles.ell_index.into())),
        ("ell_value", typed(tiles.ell_value, dtype)),
    ];
    let (long_rows, long_ptr) = (long.rows[..].into(), long.ptr[..].into());
    Ok(Packed { tables, keys, long_rows, long_ptr, panels, bytes })
}

/// Values as the device has them.
fn typed(values: Vec<f64>, dtype: Dtype) -> ArrayData {
    let values = values.into_par_iter();
    match dtype {
        Dtype::F16 => ArrayData::F16(values.map(half_bits).collect::<Vec<_>>().into()),
        Dtype::Bf16 => ArrayData::Bf16(values.map(bf16_bits).collect::<Vec<_>>().into()),
        Dtype::F32 => ArrayData::F32(values.map(|v| v as f32).collect::<Vec<_>>().into()),
        Dtype::F64 => ArrayData::F64(values.collect::<Vec<_>>().into()),
    }
}

fn steps(tiled: &Tiled, shared: &Shared, packed: &Packed, name: &str) -> Result<Lowered, Refusal> {
    let Spmm { n, dtype, .. } = tiled.problem;
    let named = |part: &str, data| array(format!("{name}_{part}"), data);
    let mut arrays: Vec<_> =
        packed.tables.iter().map(|(part, data)| named(part, data.clone())).collect();
    let partials = packed.long_ptr.last().copied().unwrap_or(0);
    let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
    let mut bound = Bound { rows, b_rows, partials, ..Bound::default() };
    if let Some(keys) = &packed.keys {
        bound.keys = Some(arrays.len());
        arrays.push(named("keys", ArrayData::U32(keys.clone())));
    }
    let mut scratch = Vec::new();
    if partials > 0 {
        bound.long_rows = arrays.len();
        arrays.push(named("long_rows", ArrayData::U32(packed.long_rows.clone())));
        arrays.push(named("long_ptr", ArrayData::U32(packed.long_ptr.clone())));
        bound.long_count = packed.long_rows.len() as u32;
        bound.long_lanes = partials.div_ceil(bound.long_count).next_power_of_two().min(WARP);
        let bytes = u64::from(partials) * u64::from(n) * dtype.bytes().max(4);
        scratch.push(shared::scratch("its partial sums", bytes, &shared.device)?);
    }
    let mut steps = vec![Step {
        grid: [packed.panels, n.div_ceil(tiled.r), 1],
        shared_bytes: tiled.shared_bytes(),
        ..bound.kernel(tiled).step(1, tiled.rows)
    }];
    if partials > 0 {
        steps.push(Step {
            grid: [
                bound.long_count.div_ceil(WARP / bound.long_lanes),
                n.div_ceil(COMBINE_COLUMNS),
                1,
            ],
            ..bound.combine(tiled).step(1, COMBINE_THREADS)
        });
    }
    let program = CudaProgram::of_steps(source(tiled), steps);
    Ok(Lowered { arrays, scratch, ..Lowered::bare(Program::Cuda(program)) })
}
