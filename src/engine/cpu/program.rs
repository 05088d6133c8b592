//! A host program prepared for the loaded matrix: its requirements are checked once, so that calls only compute.

use super::dispatch::{self, RowPanel, RowSplit, SUPPORTED_M1, SUPPORTED_N1};
use super::kernel::Panel;
use super::load::Loaded;
use super::schedule::{self, Threads};
use super::simd::Isa;
use super::vendor;
use crate::domain::Layout;
use crate::domain::recipe::{ArrayData, HostProgram, Program, Recipe};
use crate::engine::EngineError;
use std::ops::Range;
use std::sync::Arc;

/// A prepared program.
pub enum Prepared {
    /// One panel after the other, so that a panel's rows stay in the cache; within a panel, runs of tiles.
    RowPanel { order: Arc<[u32]>, tasks: Vec<Range<usize>>, panels: Vec<Columns<RowPanel>> },
    /// Runs of rows; within a row one panel after the other, so that the row's entries stay in the cache.
    RowSplit { tasks: Vec<Range<usize>>, panels: Vec<Columns<RowSplit>> },
    /// sprs' multiplication, which is single-threaded.
    Vendor,
}

/// Adjacent columns of B and C, and the kernel for their number.
pub struct Columns<Kernel> {
    first: usize,
    width: usize,
    kernel: Kernel,
}

impl Prepared {
    /// Checks that the recipe can run on the loaded matrix, and distributes its rows.
    pub fn of(
        recipe: &Recipe,
        loaded: &Loaded,
        isa: Isa,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let matrix = &loaded.operands.matrix;
        match &recipe.program {
            Program::Host(HostProgram::RowPanel { m1, n1 }) => {
                supported("m1", *m1, &SUPPORTED_M1)?;
                supported("n1", *n1, &SUPPORTED_N1)?;
                let order = permutation(recipe, matrix.rows())?;
                let tasks = schedule::by_tiles(matrix.indptr(), &order, *n1 as usize, threads);
                let panels =
                    columns(loaded.n, *n1, |width| dispatch::row_panel(isa, *m1, *n1, width))?;
                Ok(Self::RowPanel { order, tasks, panels })
            }
            Program::Host(HostProgram::RowSplit { n1, rows_per_task }) => {
                supported("n1", *n1, &SUPPORTED_N1)?;
                if *rows_per_task == 0 {
                    return Err(refused("rows_per_task must be at least 1"));
                }
                let count = matrix.rows().div_ceil(*rows_per_task as usize);
                let tasks = schedule::by_nonzeros(matrix.indptr(), count);
                let panels = columns(loaded.n, *n1, |width| dispatch::row_split(isa, *n1, width))?;
                Ok(Self::RowSplit { tasks, panels })
            }
            Program::Host(_) => Err(refused(
                "the program is a triangular solve, but the loaded problem is a product",
            )),
            Program::Vendor { algorithm } if algorithm == vendor::ALGORITHM => Ok(Self::Vendor),
            Program::Vendor { algorithm } => Err(vendor::unknown(algorithm)),
            Program::Cuda(_) => Err(refused("a CUDA kernel cannot run on the host CPU")),
        }
    }

    /// Number of tasks per call, for the plan.
    pub fn jobs(&self) -> usize {
        match self {
            Self::RowPanel { tasks, panels, .. } => tasks.len() * panels.len(),
            Self::RowSplit { tasks, .. } => tasks.len(),
            Self::Vendor => 1,
        }
    }

    /// One call: computes C = A B.
    pub fn run(&self, loaded: &mut Loaded, threads: &Threads) -> Result<(), EngineError> {
        match self {
            Self::RowPanel { order, tasks, panels } => {
                loaded.pack(threads, panels.iter().map(Columns::range));
                let views = views(panels, loaded);
                threads.run(tasks.len() * panels.len(), |job| {
                    let (at, task) = (job / tasks.len(), &tasks[job % tasks.len()]);
                    // SAFETY: the kernel was selected for this host's instructions; `order` is a permutation of the
                    // rows and tasks do not overlap, so each row of a panel is written by one thread.
                    unsafe { (panels[at].kernel)(&views[at], &order[task.clone()]) }
                });
                Ok(())
            }
            Self::RowSplit { tasks, panels } => {
                loaded.pack(threads, panels.iter().map(Columns::range));
                let views = views(panels, loaded);
                threads.run(tasks.len(), |task| {
                    for (panel, view) in panels.iter().zip(&views) {
                        // SAFETY: as above; tasks are runs of rows that do not overlap.
                        unsafe { (panel.kernel)(view, tasks[task].clone()) }
                    }
                });
                Ok(())
            }
            Self::Vendor => vendor::multiply(loaded),
        }
    }
}

impl<Kernel> Columns<Kernel> {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.width
    }
}

/// The panels in the form that the kernels read. C is passed as an address, because threads write disjoint rows of it.
fn views<'a, Kernel>(panels: &[Columns<Kernel>], loaded: &'a mut Loaded) -> Vec<Panel<'a>> {
    let c = loaded.output.as_mut_slice().as_mut_ptr();
    let loaded = &*loaded;
    let matrix = &loaded.operands.matrix;
    let b = loaded.dense.as_slice().as_ptr();
    let view = |panel: &Columns<Kernel>| {
        let (b_first, ldb, c_first, ldc) = match loaded.layout {
            Layout::Row => (panel.first, loaded.n, panel.first, loaded.n),
            // Packed panels are consecutive; columns of C are `rows` apart.
            Layout::Col => (
                panel.first * matrix.cols(),
                panel.width,
                panel.first * matrix.rows(),
                matrix.rows(),
            ),
        };
        Panel {
            indptr: matrix.indptr(),
            indices: matrix.indices(),
            values: &loaded.values,
            b: b.wrapping_add(b_first),
            ldb,
            c: c.wrapping_add(c_first),
            ldc,
            layout: loaded.layout,
            width: panel.width,
        }
    };
    panels.iter().map(view).collect()
}

/// Divides columns 0..n into panels of `n1`; the last may be narrower.
fn columns<Kernel>(
    n: usize,
    n1: u32,
    kernel: impl Fn(usize) -> Option<Kernel>,
) -> Result<Vec<Columns<Kernel>>, EngineError> {
    let panel = |first: usize| {
        let width = (n - first).min(n1 as usize);
        let kernel = kernel(width).ok_or_else(|| refused("no kernel is compiled for this tile"))?;
        Ok(Columns { first, width, kernel })
    };
    (0..n).step_by(n1 as usize).map(panel).collect()
}

fn supported(name: &str, value: u32, values: &[u32]) -> Result<(), EngineError> {
    if values.contains(&value) {
        return Ok(());
    }
    Err(EngineError::Refused(format!("{name} is {value}, but the CPU kernels support {values:?}")))
}

/// The recipe's row order, verified to be a permutation, because the kernels write without bounds checks.
fn permutation(recipe: &Recipe, rows: usize) -> Result<Arc<[u32]>, EngineError> {
    let Some(ArrayData::U32(order)) = recipe.arrays.first().map(|array| &array.data) else {
        return Err(refused("row_panel needs its row order (u32) as its first array"));
    };
    let mut seen = vec![false; rows];
    let fresh =
        |&row: &u32| seen.get_mut(row as usize).is_some_and(|seen| !std::mem::replace(seen, true));
    if order.len() != rows || !order.iter().all(fresh) {
        return Err(refused("row_panel's row order is not a permutation of the rows"));
    }
    Ok(order.clone())
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
