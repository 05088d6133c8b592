//! Family `tiled`, lowered: its kernel text, its tables as arrays, and one launch, or two where rows leave partial sums.

use super::super::family::ENTRY;
use super::super::shared::{self, Lowered, MOST_KEPT, Shared, array};
use super::super::walk::{element, scale, scale_arguments};
use super::Tiled;
use super::pack::pack;
use super::slots::{self, LongRows};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Dtype, Spmm};
use crate::ops::Refusal;
use crate::sparse::operand::half_bits;
use rayon::prelude::*;
use std::sync::Arc;

/// The second kernel of the text: sums the partial sums of rows that took several warps.
pub const COMBINE: &str = "spmm_combine";
/// Threads a block of it: a warp each for as many columns of C.
const COMBINE_THREADS: u32 = 256;
/// Columns of C that a block of it sums.
pub const COMBINE_COLUMNS: u32 = COMBINE_THREADS / 32;

/// What the candidates of one cut share, ready for upload.
struct Packed {
    /// In the order of the kernel's arguments: stages, maps, S-ELL.
    tables: Vec<(&'static str, ArrayData)>,
    /// A key a slot; absent in natural order.
    keys: Option<Arc<[u32]>>,
    long_rows: Arc<[u32]>,
    long_ptr: Arc<[u32]>,
    panels: u32,
    bytes: u64,
}

pub fn source(tiled: &Tiled) -> String {
    let Spmm { dtype, accumulate, .. } = tiled.problem;
    let element = element(dtype);
    let (scalars, scale) = scale(&tiled.problem);
    let Tiled { r, buffer, segmented, .. } = tiled;
    let main = format!(
        "extern \"C\" __global__ void {ENTRY}(const u32* stage_ptr, const u32* map_ptr, const u32* map, const u32* ell_ptr, \
         const u16* ell_index, const {element}* ell_value, const u32* keys, const {element}* b, {element}* c, \
         Sum<{element}>* partials, u32 partial_count, u32 rows, u32 b_rows, u32 n{scalars}) {{\n    \
         tiled<{element}, {r}, {buffer}, {segmented}, {accumulate}>(stage_ptr, map_ptr, map, ell_ptr, ell_index, ell_value, \
         keys, b, c, partials, partial_count, rows, b_rows, n, {scale});\n}}\n"
    );
    let combine = format!(
        "extern \"C\" __global__ void {COMBINE}(const u32* long_rows, const u32* long_ptr, const Sum<{element}>* partials, \
         u32 partial_count, {element}* c, u32 rows, u32 n{scalars}) {{\n    \
         tiled_combine<{element}, {accumulate}>(long_rows, long_ptr, partials, partial_count, c, rows, n, {scale});\n}}\n"
    );
    let combine = if *segmented { combine } else { String::new() };
    format!("#include \"spmm/tiled.cuh\"\nusing namespace sparsetune;\n{main}{combine}")
}

pub fn lower(tiled: &Tiled, shared: &mut Shared) -> Result<Lowered, Refusal> {
    let segment = segment(tiled, shared)?;
    let (order, order_ms) = shared.ordered(tiled.order);
    let Tiled { rows: panel, buffer, .. } = *tiled;
    let cut = segment.map_or("whole".to_owned(), |segment| segment.to_string());
    let name = format!("tiled_{}_{panel}_{buffer}_{cut}", tiled.order.name());
    let (packed, pack_ms) = shared.once(
        &name,
        |packed: &Packed| packed.bytes,
        |shared| packed(tiled, shared, order.as_deref(), segment),
    )?;
    let mut lowered = steps(tiled, shared, &packed, &name)?;
    lowered.ms = order_ms + pack_ms;
    lowered.update_ms = Some(pack_ms);
    Ok(lowered)
}

/// Where the chart cuts rows; a candidate with segments that cuts none would repeat the one without.
fn segment(tiled: &Tiled, shared: &Shared) -> Result<Option<u32>, Refusal> {
    let matrix = &shared.matrix;
    let rows = matrix.rows();
    let mean = matrix.nnz() as f64 / rows.max(1) as f64;
    let square = |row: usize| (matrix.row_nnz(row) as f64 - mean).powi(2);
    let sigma = ((0..rows).map(square).sum::<f64>() / rows.max(1) as f64).sqrt();
    let segment = tiled.segment(rows as u64, mean, sigma, &shared.device);
    if tiled.segmented && segment.is_none() {
        return Err(Refusal(format!(
            "its rows need no segments: there are blocks enough, and their lengths vary by {:.2} of their mean",
            sigma / mean
        )));
    }
    Ok(segment)
}

fn packed(
    tiled: &Tiled,
    shared: &Shared,
    order: Option<&[u32]>,
    segment: Option<u32>,
) -> Result<Packed, Refusal> {
    let (matrix, dtype) = (&shared.matrix, tiled.problem.dtype);
    let row = |slot: u32| order.map_or(slot, |order| order[slot as usize]);
    let rows = (0..matrix.rows() as u32).map(row);
    let rows = rows.map(|row| (row, matrix.row_nnz(row as usize) as u32));
    let panel = tiled.rows as usize;
    let (slots, long) = match segment {
        Some(segment) => slots::cut(rows, segment, panel),
        None => (slots::whole(rows), LongRows::default()),
    };
    let most = (dtype.bytes(), MOST_KEPT);
    let tiles = pack(matrix, &slots, panel, tiled.buffer as usize, most).ok_or_else(|| {
        Refusal(format!("its padded tiles take more than {} GiB", MOST_KEPT >> 30))
    })?;
    let keyed = order.is_some() || segment.is_some();
    let keys: Option<Arc<[u32]>> = keyed.then(|| slots.iter().map(|slot| slot.key).collect());
    let panels = u32::try_from(slots.len().div_ceil(panel))
        .map_err(|_| Refusal("its segments are more than a grid has blocks".to_owned()))?;
    let bytes = tiles.bytes(dtype.bytes()) + keys.as_ref().map_or(0, |keys| 4 * keys.len() as u64);
    let tables = vec![
        ("stages", ArrayData::U32(tiles.stage_ptr.into())),
        ("map_ptr", ArrayData::U32(tiles.map_ptr.into())),
        ("map", ArrayData::U32(tiles.map.into())),
        ("ell_ptr", ArrayData::U32(tiles.ell_ptr.into())),
        ("ell_index", ArrayData::U16(tiles.ell_index.into())),
        ("ell_value", typed(tiles.ell_value, dtype)),
    ];
    let (long_rows, long_ptr) = (long.rows.into(), long.ptr.into());
    Ok(Packed { tables, keys, long_rows, long_ptr, panels, bytes })
}

/// Values as the device has them.
fn typed(values: Vec<f64>, dtype: Dtype) -> ArrayData {
    let values = values.into_par_iter();
    match dtype {
        Dtype::F16 => ArrayData::F16(values.map(half_bits).collect::<Vec<_>>().into()),
        Dtype::F32 => ArrayData::F32(values.map(|v| v as f32).collect::<Vec<_>>().into()),
        Dtype::F64 => ArrayData::F64(values.collect::<Vec<_>>().into()),
    }
}

fn steps(tiled: &Tiled, shared: &Shared, packed: &Packed, name: &str) -> Result<Lowered, Refusal> {
    let Spmm { n, dtype, .. } = tiled.problem;
    let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
    let scalars = scale_arguments(&tiled.problem);
    let named = |part: &str, data| array(format!("{name}_{part}"), data);
    let mut arrays: Vec<_> =
        packed.tables.iter().map(|(part, data)| named(part, data.clone())).collect();
    let mut args: Vec<Arg> = (0..arrays.len()).map(Arg::Array).collect();
    args.push(match &packed.keys {
        Some(keys) => {
            arrays.push(named("keys", ArrayData::U32(keys.clone())));
            Arg::Array(arrays.len() - 1)
        }
        None => Arg::U64(0),
    });
    let partials = packed.long_ptr.last().copied().unwrap_or(0);
    let mut scratch = Vec::new();
    if partials > 0 {
        let bytes = u64::from(partials) * u64::from(n) * dtype.bytes().max(4);
        scratch.push(shared::scratch("its partial sums", bytes, &shared.device)?);
    }
    let sums = if partials > 0 { Arg::Scratch(0) } else { Arg::U64(0) };
    args.extend([Arg::B, Arg::C, sums]);
    args.extend([partials, rows, b_rows, n].map(Arg::U32));
    args.extend(&scalars);
    let mut steps = vec![Step {
        grid: [packed.panels, n.div_ceil(tiled.r), 1],
        shared_bytes: tiled.shared_bytes(),
        ..Step::of(ENTRY, 1, tiled.rows, args)
    }];
    if partials > 0 {
        arrays.push(named("long_rows", ArrayData::U32(packed.long_rows.clone())));
        arrays.push(named("long_ptr", ArrayData::U32(packed.long_ptr.clone())));
        let at = arrays.len();
        let mut args = vec![
            Arg::Array(at - 2),
            Arg::Array(at - 1),
            Arg::Scratch(0),
            Arg::U32(partials),
            Arg::C,
        ];
        args.extend([rows, n].map(Arg::U32));
        args.extend(&scalars);
        steps.push(Step {
            grid: [packed.long_rows.len() as u32, n.div_ceil(COMBINE_COLUMNS), 1],
            ..Step::of(COMBINE, 1, COMBINE_THREADS, args)
        });
    }
    let program =
        CudaProgram { steps, ..CudaProgram::of(source(tiled), Step::of(ENTRY, 1, 1, Vec::new())) };
    Ok(Lowered { arrays, scratch, ..Lowered::bare(Program::Cuda(program)) })
}
