//! Lowers an SpMM candidate to a recipe: kernel text, arrays, arguments and launch geometry.

use super::inspect::rows_by_length;
use super::panels::{self, Panels};
use super::shape::{RowOrder, Shape};
use super::space::is_legal;
use crate::domain::recipe::{
    Arg, Array, ArrayData, CudaProgram, HostProgram, Program, Recipe, Step,
};
use crate::domain::{Candidate, Device, DeviceKind, Spmm};
use crate::ops::Refusal;
use crate::sparse::Csr;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Columns of tiles travel in block.y.
const MAX_GRID_Y: u32 = 65_535;

/// Lowers for one matrix and keeps what candidates share: the row order, the packed panels.
pub struct Lowerer {
    matrix: Arc<Csr>,
    problem: Spmm,
    device: Device,
    /// With the milliseconds it took: every recipe that uses it answers for it.
    order: Option<(Arc<[u32]>, f64)>,
    panels: HashMap<usize, (Panels, f64)>,
}

impl Lowerer {
    pub fn new(matrix: Arc<Csr>, problem: Spmm, device: Device) -> Self {
        Self { matrix, problem, device, order: None, panels: HashMap::new() }
    }

    pub fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        let refused = || Refusal(format!("{candidate} is not a candidate of this problem"));
        let lowered = match (candidate.family.as_str(), self.device.kind) {
            ("vendor", _) => {
                let algorithm = candidate.text("algorithm").ok_or_else(refused)?.to_owned();
                Lowered { program: Program::Vendor { algorithm }, arrays: Vec::new(), ms: 0.0 }
            }
            (_, DeviceKind::Cuda) => {
                let shape = Shape::of(candidate, &self.problem).ok_or_else(refused)?;
                self.cuda(&shape)?
            }
            (_, DeviceKind::Cpu) => self.host(candidate).ok_or_else(refused)?,
        };
        let bare = Recipe::bare(candidate, lowered.program);
        Ok(Recipe { arrays: lowered.arrays, lowering_ms: lowered.ms, ..bare })
    }

    fn cuda(&mut self, shape: &Shape) -> Result<Lowered, Refusal> {
        if !is_legal(shape, &self.problem) {
            return Err(Refusal(
                "its tile cannot be launched for this problem on any device".to_owned(),
            ));
        }
        let (arrays, mut args, ms) = match *shape {
            Shape::RowSplit { order, .. } => self.csr_arguments(order),
            Shape::ColumnMajor { m1: 1, order, .. } => self.csr_arguments(order),
            Shape::RowPanel { m1, .. } | Shape::ColumnMajor { m1, .. } => {
                self.panel_arguments(m1)?
            }
        };
        let tiles = (self.matrix.rows() as u32).div_ceil(shape.rows_a_tile());
        args.extend(self.dimensions(shape, tiles));
        let column_tiles = self.problem.n.div_ceil(shape.columns_a_tile());
        if column_tiles > MAX_GRID_Y {
            return Err(Refusal(format!(
                "{column_tiles} column tiles exceed the grid's {MAX_GRID_Y}"
            )));
        }
        let step = Step {
            grid: [tiles.div_ceil(shape.tiles_a_block()), column_tiles, 1],
            block: match *shape {
                Shape::RowPanel { n1, vec, tiles, .. } => [n1 / vec, tiles, 1],
                _ => [shape.threads(), 1, 1],
            },
            ..Step::of(ENTRY, 1, 1, args)
        };
        let program = Program::Cuda(CudaProgram::of(cuda_source(shape), step));
        Ok(Lowered { program, arrays, ms })
    }

    /// Arguments up to the dimensions for kernels that walk the CSR itself.
    fn csr_arguments(&mut self, order: RowOrder) -> (Vec<Array>, Vec<Arg>, f64) {
        let mut args = vec![Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::B, Arg::C];
        if order == RowOrder::Natural {
            args.push(Arg::U64(0));
            return (Vec::new(), args, 0.0);
        }
        args.push(Arg::Array(0));
        let (order, ms) = self.order();
        (vec![Array { name: "rows_by_length".to_owned(), data: ArrayData::U32(order) }], args, ms)
    }

    /// Arguments up to the dimensions for kernels that walk packed panels.
    fn panel_arguments(&mut self, m1: u32) -> Result<(Vec<Array>, Vec<Arg>, f64), Refusal> {
        let (order, order_ms) = self.order();
        let (panels, pack_ms) = self.panels(m1 as usize)?;
        let array = |name: &str, data| Array { name: format!("{name}_{m1}"), data };
        let arrays = vec![
            array("panel_ptr", ArrayData::U32(panels.ptr.clone())),
            array("panel_cols", ArrayData::U32(panels.cols.clone())),
            array("panel_values", ArrayData::F32(panels.values.clone())),
            Array { name: "rows_by_length".to_owned(), data: ArrayData::U32(order) },
        ];
        let args = vec![Arg::Array(0), Arg::Array(1), Arg::Array(2), Arg::B, Arg::C, Arg::Array(3)];
        Ok((arrays, args, order_ms + pack_ms))
    }

    /// `rows, n`, with the tiles where a kernel asks for them, and the rows of B where it is column-major.
    fn dimensions(&self, shape: &Shape, tiles: u32) -> Vec<Arg> {
        let rows = Arg::U32(self.matrix.rows() as u32);
        let n = Arg::U32(self.problem.n);
        match shape {
            Shape::RowSplit { .. } => vec![rows, n],
            Shape::RowPanel { .. } => vec![rows, Arg::U32(tiles), n],
            Shape::ColumnMajor { .. } => {
                vec![rows, Arg::U32(tiles), Arg::U32(self.matrix.cols() as u32), n]
            }
        }
    }

    fn host(&mut self, candidate: &Candidate) -> Option<Lowered> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let n1 = int("n1")?;
        match candidate.family.as_str() {
            "row_panel" => {
                let (order, ms) = self.order();
                let data = ArrayData::U32(order);
                let arrays = vec![Array { name: "rows_by_length".to_owned(), data }];
                let program = Program::Host(HostProgram::RowPanel { m1: int("m1")?, n1 });
                Some(Lowered { program, arrays, ms })
            }
            "row_split" => {
                let rows_per_task = int("rows_per_task")?;
                let program = Program::Host(HostProgram::RowSplit { n1, rows_per_task });
                Some(Lowered { program, arrays: Vec::new(), ms: 0.0 })
            }
            _ => None,
        }
    }

    fn order(&mut self) -> (Arc<[u32]>, f64) {
        let matrix = &self.matrix;
        self.order
            .get_or_insert_with(|| {
                let start = Instant::now();
                let order = rows_by_length(matrix).into();
                (order, start.elapsed().as_secs_f64() * 1e3)
            })
            .clone()
    }

    fn panels(&mut self, m1: usize) -> Result<(Panels, f64), Refusal> {
        if let Some(known) = self.panels.get(&m1) {
            return Ok(known.clone());
        }
        let (order, _) = self.order();
        let start = Instant::now();
        let packed = panels::pack(&self.matrix, &order, m1).ok_or_else(|| {
            Refusal(format!("panels of {m1} rows take more than {} GiB", panels::MAX_BYTES >> 30))
        })?;
        // Other heights can be packed again; together they may take many times the matrix.
        if self.panels.values().map(|(panels, _)| panels.bytes()).sum::<u64>() > panels::MAX_BYTES {
            self.panels.clear();
        }
        let entry = (packed, start.elapsed().as_secs_f64() * 1e3);
        self.panels.insert(m1, entry.clone());
        Ok(entry)
    }
}

struct Lowered {
    program: Program,
    arrays: Vec<Array>,
    ms: f64,
}

const ENTRY: &str = "spmm";

/// The text a compiler sees: one header and one instance of it. The matrix is data, so one text serves all matrices.
pub fn cuda_source(shape: &Shape) -> String {
    let (header, parameters, call) = match *shape {
        Shape::RowSplit { lanes, vec, cols, unroll, shuffle, full, .. } => (
            "row_split",
            "const u32* row_ptr, const u32* cols, const float* vals, const float* b, float* c, const u32* order, u32 rows, u32 n",
            format!(
                "row_split<{lanes}, {vec}, {cols}, {unroll}, {shuffle}, {full}>(row_ptr, cols, vals, b, c, order, rows, n)"
            ),
        ),
        Shape::RowPanel { m1, n1, vec, unroll, .. } => (
            "row_panel",
            "const u32* ptr, const u32* cols, const float* vals, const float* b, float* c, const u32* order, u32 rows, u32 tiles, u32 n",
            format!(
                "row_panel<{m1}, {n1}, {vec}, {unroll}>(ptr, cols, vals, b, c, order, rows, tiles, n)"
            ),
        ),
        Shape::ColumnMajor { m1, lanes, r, unroll, full, .. } => (
            "column_major",
            "const u32* ptr, const u32* cols, const float* vals, const float* b, float* c, const u32* order, u32 rows, u32 tiles, u32 b_rows, u32 n",
            format!(
                "column_major<{m1}, {lanes}, {r}, {unroll}, {full}>(ptr, cols, vals, b, c, order, rows, tiles, b_rows, n)"
            ),
        ),
    };
    format!(
        "#include \"spmm/{header}.cuh\"\nusing namespace sparsetune;\nextern \"C\" __global__ void {ENTRY}({parameters}) {{\n    {call};\n}}\n"
    )
}
