//! A host program prepared for one sparse operand: its requirements are checked once, so that calls only compute.

use super::dispatch::{
    self, Multiplied, RowPanel, RowSplit, SUPPORTED_M1, SUPPORTED_N1, SUPPORTED_ROW_N1,
};
use super::element::Element;
use super::kernel::{Factors, LINE_BYTES, Panel};
use super::mkl::{MklProduct, Mkled};
use super::operand::{Ordered, SparseOperand, Target, columns};
use super::plain;
use super::schedule::{self, Threads};
use super::simd::Isa;
use crate::domain::Layout;
use crate::domain::catalog::vendor::{self, Library};
use crate::domain::recipe::{Array, ArrayData, HostProgram, Program, Stores};
use crate::engine::EngineError;
use std::ops::Range;
use std::sync::Arc;

/// A prepared program.
pub enum Prepared<T: 'static> {
    /// One panel after the other, so that a panel's rows stay in the cache; within a panel, runs of tiles.
    RowPanel {
        order: Arc<[u32]>,
        tasks: Vec<Range<usize>>,
        panels: Panels<RowPanel<T>>,
    },
    /// Runs of rows; within a row one panel after the other, so that the row's entries stay in the cache.
    RowSplit {
        tasks: Vec<Range<usize>>,
        panels: Panels<RowSplit<T>>,
        ordered: Option<Arc<Ordered<T>>>,
    },
    /// The plain product, for these instructions.
    Plain(Isa),
    Mkl(Arc<MklProduct<T>>),
}

/// The dense operands of one call, in the problem's layout, aligned as their elements.
pub struct Call<'a, T> {
    /// cols x n.
    pub b: &'a [T],
    /// `scratch_len` elements of any value, for the call's own use.
    pub scratch: &'a mut [T],
    /// rows x n; every element is written, and none is read unless beta says so.
    pub c: &'a mut [T],
    /// Required for problems that accumulate; others compute C = A B.
    pub factors: Option<Factors<T>>,
}

/// Columns 0..n of B and C in panels of `n1`, the last of which may be narrower, and the kernels for their widths.
pub struct Panels<Kernel> {
    n1: usize,
    /// See [`Panel::ahead`].
    ahead: usize,
    stores: Stores,
    kernels: Vec<Kernel>,
}

impl<T: Multiplied + Mkled> Prepared<T> {
    /// Checks that the program can run on the operand, and distributes its rows.
    pub fn of(
        program: &Program,
        arrays: &[Array],
        operand: &SparseOperand<T>,
        isa: Isa,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let matrix = &operand.matrix;
        match program {
            Program::Host(HostProgram::RowPanel { m1, n1, stores }) => {
                supported("m1", *m1, &SUPPORTED_M1)?;
                supported("n1", *n1, &SUPPORTED_N1)?;
                let order = permutation(arrays, matrix.rows())?;
                let tasks = schedule::by_tiles(matrix.indptr(), &order, *n1 as usize, threads);
                let kernel = |width| dispatch::row_panel(isa, *m1, *n1, width);
                let panels = Panels::of(operand.n, *n1, 0, *stores, kernel)?;
                Ok(Self::RowPanel { order, tasks, panels })
            }
            Program::Host(HostProgram::RowSplit { n1, rows_per_task, ahead, stores }) => {
                supported("n1", *n1, &SUPPORTED_ROW_N1)?;
                if *rows_per_task == 0 {
                    return Err(refused("rows_per_task must be at least 1"));
                }
                let count = matrix.rows().div_ceil(*rows_per_task as usize);
                let ordered = match arrays {
                    [] => None,
                    _ => Some(operand.ordered(&permutation(arrays, matrix.rows())?)?),
                };
                let indptr = ordered.as_ref().map_or(matrix.indptr(), |ordered| &ordered.indptr);
                let tasks = schedule::by_nonzeros(indptr, count);
                let kernel = |width| dispatch::row_split(isa, *n1, width);
                let panels = Panels::of(operand.n, *n1, *ahead as usize, *stores, kernel)?;
                Ok(Self::RowSplit { tasks, panels, ordered })
            }
            Program::Host(_) => {
                Err(refused("the program is a triangular solve, but the problem is a product"))
            }
            Program::Vendor { algorithm } => {
                match vendor::routine(algorithm).map(|it| it.library) {
                    Some(Library::MklProduct) => {
                        Ok(Self::Mkl(Arc::new(MklProduct::of(operand, algorithm, threads)?)))
                    }
                    // Plans of earlier versions name `sprs`, whose product this is.
                    Some(Library::PlainProduct | Library::Sprs) => Ok(Self::Plain(isa)),
                    _ => Err(unknown(algorithm)),
                }
            }
            Program::Cuda(_) => Err(refused("a CUDA kernel cannot run on the host CPU")),
        }
    }

    /// Elements of a call's scratch: column-major B is packed into it.
    pub fn scratch_len(&self, operand: &SparseOperand<T>) -> usize {
        match self {
            Self::Plain(_) | Self::Mkl(_) => 0,
            Self::RowPanel { .. } | Self::RowSplit { .. } if operand.layout == Layout::Col => {
                operand.b_len()
            }
            Self::RowPanel { .. } | Self::RowSplit { .. } => 0,
        }
    }

    /// Number of tasks per call, for the plan.
    pub fn jobs(&self) -> usize {
        match self {
            Self::RowPanel { tasks, panels, .. } => tasks.len() * panels.kernels.len(),
            Self::RowSplit { tasks, .. } => tasks.len(),
            Self::Plain(_) | Self::Mkl(_) => 1,
        }
    }

    /// Replaces the values in what was made of them; the operand has the new ones.
    pub fn renew(&mut self, operand: &SparseOperand<T>, threads: usize) -> Result<(), EngineError> {
        match self {
            Self::Mkl(product) => {
                *product = Arc::new(MklProduct::of(operand, product.routine(), threads)?);
            }
            Self::RowSplit { ordered: Some(ordered), .. } => {
                *ordered = operand.ordered(&ordered.order.clone())?;
            }
            Self::RowSplit { ordered: None, .. } | Self::RowPanel { .. } | Self::Plain(_) => {}
        }
        Ok(())
    }

    /// Whether threads of its own may still look for work after a call.
    pub fn lingers(&self) -> bool {
        matches!(self, Self::Mkl(_))
    }

    /// One call: C = A B, or C = alpha A B + beta C.
    ///
    /// # Panics
    /// If the dense operands do not have the lengths that [`Call`] states.
    pub fn run(
        &self,
        operand: &SparseOperand<T>,
        call: Call<'_, T>,
        threads: &Threads,
    ) -> Result<(), EngineError> {
        assert!(
            call.b.len() == operand.b_len() && call.c.len() == operand.c_len(),
            "B is cols x n and C rows x n"
        );
        assert_eq!(call.scratch.len(), self.scratch_len(operand), "the scratch of this program");
        let factors = call.factors;
        match self {
            Self::RowPanel { order, tasks, panels } => {
                let dense = panels.dense(operand, call, threads);
                threads.run(tasks.len() * panels.kernels.len(), |job| {
                    let (at, task) = (job / tasks.len(), &tasks[job % tasks.len()]);
                    let view = panels.view(at, operand, None, &dense, factors);
                    // SAFETY: the kernel was selected for this host's instructions; `order` is a permutation of the
                    // rows and tasks do not overlap, so each row of a panel is written by one thread.
                    unsafe { (panels.kernels[at])(&view, &order[task.clone()]) }
                });
                Ok(())
            }
            Self::RowSplit { tasks, panels, ordered } => {
                let dense = panels.dense(operand, call, threads);
                threads.run(tasks.len(), |task| {
                    for (at, kernel) in panels.kernels.iter().enumerate() {
                        let view = panels.view(at, operand, ordered.as_deref(), &dense, factors);
                        // SAFETY: as above; tasks are runs of rows that do not overlap, nor do the rows of C that
                        // belong to them.
                        unsafe { kernel(&view, tasks[task].clone()) }
                    }
                });
                Ok(())
            }
            Self::Plain(isa) => {
                plain::multiply(operand, call, *isa, threads);
                Ok(())
            }
            Self::Mkl(product) => product.run(operand, call),
        }
    }
}

/// The addresses of B (packed, if it was column-major) and of C, which threads write disjoint rows of.
struct Dense<T> {
    b: Target<T>,
    c: Target<T>,
}

impl<Kernel> Panels<Kernel> {
    fn of(
        n: usize,
        n1: u32,
        ahead: usize,
        stores: Stores,
        kernel: impl Fn(usize) -> Option<Kernel>,
    ) -> Result<Self, EngineError> {
        let n1 = n1 as usize;
        let of_panel = |at: usize| {
            kernel(columns(n, n1, at).len())
                .ok_or_else(|| refused("no kernel is compiled for this tile"))
        };
        let kernels = (0..n.div_ceil(n1)).map(of_panel).collect::<Result<_, _>>()?;
        Ok(Self { n1, ahead, stores, kernels })
    }

    /// Packs B if it is column-major.
    fn dense<T: Element>(
        &self,
        operand: &SparseOperand<T>,
        call: Call<'_, T>,
        threads: &Threads,
    ) -> Dense<T> {
        let b = match operand.layout {
            Layout::Row => call.b.as_ptr(),
            Layout::Col => {
                operand.pack(call.b, call.scratch, self.n1, threads);
                call.scratch.as_ptr()
            }
        };
        Dense { b: Target(b.cast_mut()), c: Target(call.c.as_mut_ptr()) }
    }

    /// Panel `at` in the form that the kernels read, with A as it is or in another order.
    fn view<'a, T: Element>(
        &self,
        at: usize,
        operand: &'a SparseOperand<T>,
        ordered: Option<&'a Ordered<T>>,
        dense: &Dense<T>,
        factors: Option<Factors<T>>,
    ) -> Panel<'a, T> {
        let matrix = &operand.matrix;
        let columns = columns(operand.n, self.n1, at);
        let (b_first, ldb, c_first, ldc) = match operand.layout {
            Layout::Row => (columns.start, operand.n, columns.start, operand.n),
            // Packed panels are consecutive; columns of C are `rows` apart.
            Layout::Col => (
                columns.start * matrix.cols(),
                columns.len(),
                columns.start * matrix.rows(),
                matrix.rows(),
            ),
        };
        let (indptr, indices, values) = match ordered {
            None => (matrix.indptr(), matrix.indices(), &operand.values[..]),
            Some(of) => (&of.indptr[..], &of.indices[..], &of.values[..]),
        };
        let c = dense.c.at(c_first);
        let whole_lines = operand.layout == Layout::Row
            && c.addr().is_multiple_of(LINE_BYTES)
            && [ldc, columns.len()].iter().all(|n| (n * size_of::<T>()).is_multiple_of(LINE_BYTES));
        Panel {
            indptr,
            indices,
            values,
            b: dense.b.at(b_first),
            ldb,
            c,
            ldc,
            layout: operand.layout,
            width: columns.len(),
            rows: ordered.map(|of| &*of.order),
            ahead: self.ahead,
            streamed: self.stores == Stores::Streamed && whole_lines,
            factors,
        }
    }
}

/// The error for a routine that is not the host's, or not of this operation.
pub fn unknown(algorithm: &str) -> EngineError {
    EngineError::Refused(format!("`{algorithm}` is no routine of the host for this operation"))
}

fn supported(name: &str, value: u32, values: &[u32]) -> Result<(), EngineError> {
    if values.contains(&value) {
        return Ok(());
    }
    Err(EngineError::Refused(format!("{name} is {value}, but the CPU kernels support {values:?}")))
}

/// The program's row order, verified to be a permutation, because the kernels write without bounds checks.
fn permutation(arrays: &[Array], rows: usize) -> Result<Arc<[u32]>, EngineError> {
    let Some(ArrayData::U32(order)) = arrays.first().map(|array| &array.data) else {
        return Err(refused("the program's first array must be its row order (u32)"));
    };
    let mut seen = vec![false; rows];
    let fresh =
        |&row: &u32| seen.get_mut(row as usize).is_some_and(|seen| !std::mem::replace(seen, true));
    if order.len() != rows || !order.iter().all(fresh) {
        return Err(refused("the program's row order is not a permutation of the rows"));
    }
    Ok(order.clone())
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
