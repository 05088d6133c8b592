//! A plan that calls the vendor's routine, since it was the fastest.

use super::super::baseline::{Csr, Factors, Routine, Work};
use super::super::context::{Buffer, Context};
use super::super::gemm::Gemm;
use super::super::launch::refused;
use super::super::spmm::may_overtake;
use super::super::spsv::Spsv;
use super::arrays::Arrays;
use super::bind::Call;
use super::code::Opened;
use super::values::{Bits, words};
use crate::domain::bundle::{Manifest, VendorForward};
use crate::domain::element::Element;
use crate::domain::{Dtype, Layout, Problem};
use crate::engine::EngineError;
use cudarc::driver::sys::CUstream;
use std::sync::Arc;

/// The arrays of the sparse operand.
pub(super) const OPERAND: [&str; 3] = ["row_ptr", "col_idx", "values"];

/// The routine and what it is set up on.
pub(super) struct VendorCall {
    shape: Shape,
    forward: VendorForward,
    problem: Problem,
    accumulate: bool,
    /// Absent as long as values are missing.
    routine: Option<Routine>,
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
    n: usize,
    dtype: Dtype,
    /// Type of C.
    result: Dtype,
    layout: Layout,
}

impl VendorCall {
    /// Checks the operand. The routine is set up by [`Self::set_up`].
    pub(super) fn new(
        manifest: &Manifest,
        forward: &VendorForward,
        arrays: &Arrays,
    ) -> Result<Self, EngineError> {
        let (b, c) = (&manifest.call.b, &manifest.call.c);
        let size = |size: u64| {
            usize::try_from(size).map_err(|_| refused(format!("a dimension of {size}")))
        };
        let (dtype, result) = (dtype(b.element)?, dtype(c.element)?);
        let (rows, cols, n) = (size(c.rows)?, size(b.rows)?, size(b.cols)?);
        let shape = Shape { rows, cols, n, dtype, result, layout: b.layout };
        let [row_ptr, col_idx, values] = OPERAND;
        for (name, element) in
            [(row_ptr, Element::U32), (col_idx, Element::U32), (values, b.element)]
        {
            arrays.check_element(name, element)?;
        }
        let nnz = arrays.length(col_idx)?;
        check_csr(
            shape,
            &indices(arrays, row_ptr)?,
            &indices(arrays, col_idx)?,
            [nnz, arrays.length(values)?],
        )?;
        Ok(Self {
            shape,
            forward: forward.clone(),
            problem: manifest.problem,
            accumulate: manifest.call.accumulate,
            routine: None,
        })
    }

    /// Sets the routine up, with its analysis; all work is complete on return. Does nothing while values are missing.
    pub(super) fn set_up(
        &mut self,
        context: &Arc<Context>,
        library: &Opened,
        arrays: &Arrays,
    ) -> Result<(), EngineError> {
        if arrays.missing().is_some() {
            return Ok(());
        }
        let Shape { rows, cols, n, dtype, result, layout } = self.shape;
        let csr = self.csr(arrays)?;
        // Preparation may read the dense operands, which only a call has.
        let zeros = |rows: usize, dtype: Dtype| {
            let bytes = (rows * n * dtype.bytes() as usize).next_multiple_of(4);
            let buffer = Buffer::new(context, bytes)?;
            context.fill(buffer.pointer, 0, bytes / 4).map(|()| buffer)
        };
        let (b, c) = (zeros(cols, dtype)?, zeros(rows, result)?);
        let work = Work { csr, n, layout, b: b.pointer, c: c.pointer, result };
        let algorithm = &self.forward.algorithm;
        let routine = match (library, &self.problem) {
            (Opened::Sparse(handle), Problem::Spmm(_)) => {
                let factors = [1.0, f64::from(u8::from(self.accumulate))];
                handle.set_stream(context.stream)?;
                Routine::product(context, handle, &work, factors, algorithm)
            }
            (Opened::Sparse(handle), Problem::Sptrsv(problem)) => {
                handle.set_stream(context.stream)?;
                Spsv::new(context, handle, &work, problem, algorithm).map(Routine::Solve)
            }
            (Opened::Dense(handle), Problem::Spmm(_)) => {
                let scatter = |dense: &Buffer, leading| densify(&csr, dense, leading);
                Gemm::new(context, handle, &work, algorithm, scatter).map(Routine::Dense)
            }
            _ => Err(refused(format!("`{algorithm}` does not solve `{}`", self.problem))),
        };
        let mut routine = routine.map_err(|error| self.lacking(error))?;
        // Whether this version's calls wait for each other was not tried.
        if let Routine::Product(spmm) = &mut routine
            && may_overtake(algorithm)
        {
            spmm.separate(context)?;
        }
        self.routine = Some(routine);
        Ok(())
    }

    /// A refusal with the versions: another version of the library may lack what the plan was measured with.
    fn lacking(&self, error: EngineError) -> EngineError {
        let VendorForward { library, version, function, .. } = &self.forward;
        match error {
            EngineError::Refused(reason) => refused(format!(
                "The installed {library} does not run this plan, which was measured with {function} of \
                 {version}: {reason}."
            )),
            other => other,
        }
    }

    /// Queues one call.
    pub(super) fn run(&mut self, call: &Call) -> Result<(), EngineError> {
        let dtype = self.shape.dtype;
        let Some(routine) = &mut self.routine else {
            return Err(refused("The routine has not been set up.".to_owned()));
        };
        routine.aim(call.stream as CUstream, call.b, call.c)?;
        routine.enqueue(&Factors::of([call.alpha, call.beta], dtype))
    }

    /// Whether new values need more than to be in their array.
    pub(super) fn prepares_values(&self) -> bool {
        !self.reads_values()
    }

    /// Whether the routine reads the array of values at each call.
    fn reads_values(&self) -> bool {
        match &self.routine {
            Some(Routine::Product(spmm)) => spmm.blocks().is_none(),
            Some(Routine::Vector(_)) => true,
            Some(Routine::Dense(_) | Routine::Solve(_)) | None => false,
        }
    }

    /// Takes in new values, which were put into their array in the order of `stream`; waits for them where the routine keeps
    /// a form of its own.
    pub(super) fn update(
        &mut self,
        context: &Arc<Context>,
        library: &Opened,
        arrays: &Arrays,
        stream: CUstream,
    ) -> Result<(), EngineError> {
        if self.reads_values() {
            return Ok(());
        }
        if let (Some(Routine::Solve(solve)), Opened::Sparse(handle)) = (&self.routine, library) {
            handle.set_stream(stream)?;
            if solve.update(arrays.buffer("values")?.pointer)? {
                return Ok(());
            }
        }
        context.synchronize_all()?;
        // Into the same memory, which graphs may have captured.
        match &self.routine {
            Some(Routine::Dense(gemm)) => {
                let csr = self.csr(arrays)?;
                gemm.scatter_again(|dense, leading| densify(&csr, dense, leading))?;
                context.synchronize()
            }
            Some(Routine::Product(spmm)) => {
                if let Some(blocks) = spmm.blocks() {
                    blocks.take(&self.csr(arrays)?)?;
                }
                context.synchronize()
            }
            _ => self.set_up(context, library, arrays),
        }
    }

    /// The sparse operand on the device.
    fn csr<'a>(&self, arrays: &'a Arrays) -> Result<Csr<'a>, EngineError> {
        let [row_ptr, col_idx, values] = OPERAND;
        let buffers = [arrays.buffer(row_ptr)?, arrays.buffer(col_idx)?, arrays.buffer(values)?];
        let Shape { rows, cols, dtype, .. } = self.shape;
        Ok(Csr { rows, cols, nnz: arrays.length(col_idx)?, arrays: buffers, dtype })
    }
}

/// The type of a dense operand.
fn dtype(element: Element) -> Result<Dtype, EngineError> {
    match element {
        Element::F16 => Ok(Dtype::F16),
        Element::Bf16 => Ok(Dtype::Bf16),
        Element::F32 => Ok(Dtype::F32),
        Element::F64 => Ok(Dtype::F64),
        other => Err(refused(format!("a dense operand of the type {}", other.name()))),
    }
}

fn indices(arrays: &Arrays, name: &str) -> Result<Vec<u32>, EngineError> {
    let length = arrays.length(name)?;
    Ok(words(&Bits::read(arrays.buffer(name)?, Element::U32, length)?.bytes()))
}

/// Refuses a matrix that the library would read beyond.
fn check_csr(
    shape: Shape,
    row_ptr: &[u32],
    col_idx: &[u32],
    [nnz, values]: [usize; 2],
) -> Result<(), EngineError> {
    let whole = row_ptr.len() == shape.rows + 1
        && row_ptr.first() == Some(&0)
        && row_ptr.last().is_some_and(|&last| last as usize == nnz)
        && row_ptr.windows(2).all(|pair| pair[0] <= pair[1])
        && col_idx.iter().all(|&col| (col as usize) < shape.cols)
        && values == nnz;
    match whole {
        true => Ok(()),
        false => Err(refused(format!(
            "The arrays row_ptr, col_idx and values are no matrix of {} x {}.",
            shape.rows, shape.cols
        ))),
    }
}

/// Writes a CSR matrix on the device to a dense one whose rows begin `leading` elements apart. By way of the host: a kernel
/// for it would have to be compiled.
fn densify(csr: &Csr<'_>, dense: &Buffer, leading: usize) -> Result<(), EngineError> {
    let [row_ptr, col_idx, values] = csr.arrays;
    let element = Element::from(csr.dtype);
    let read = |buffer, element, count| Ok(Bits::read(buffer, element, count)?.bytes());
    let row_ptr = words(&read(row_ptr, Element::U32, csr.rows + 1)?);
    let col_idx = words(&read(col_idx, Element::U32, csr.nnz)?);
    let values = read(values, element, csr.nnz)?;
    let bytes = element.bytes() as usize;
    dense.write(&scattered(&row_ptr, &col_idx, &values, [leading, bytes]))
}

fn scattered(
    row_ptr: &[u32],
    col_idx: &[u32],
    values: &[u8],
    [leading, bytes]: [usize; 2],
) -> Vec<u8> {
    let rows = row_ptr.len().saturating_sub(1);
    let mut dense = vec![0; rows * leading * bytes];
    for (row, range) in row_ptr.windows(2).enumerate() {
        for at in range[0] as usize..range[1] as usize {
            let to = (row * leading + col_idx[at] as usize) * bytes;
            dense[to..to + bytes].copy_from_slice(&values[at * bytes..(at + 1) * bytes]);
        }
    }
    dense
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        rows: 3,
        cols: 2,
        n: 1,
        dtype: Dtype::F16,
        result: Dtype::F16,
        layout: Layout::Row,
    };

    #[test]
    fn only_a_whole_matrix_reaches_the_library() {
        let check = |row_ptr: &[u32], col_idx: &[u32], values| {
            check_csr(SHAPE, row_ptr, col_idx, [col_idx.len(), values])
        };
        assert!(check(&[0, 1, 1, 3], &[1, 0, 1], 3).is_ok());
        assert!(check(&[0, 1, 3], &[1, 0, 1], 3).is_err());
        assert!(check(&[0, 1, 1, 4], &[1, 0, 1], 3).is_err());
        assert!(check(&[0, 2, 1, 3], &[1, 0, 1], 3).is_err());
        assert!(check(&[0, 1, 1, 3], &[1, 2, 1], 3).is_err());
        assert!(check(&[0, 1, 1, 3], &[1, 0, 1], 2).is_err());
        assert!(check(&[], &[], 0).is_err());
    }

    #[test]
    fn a_dense_copy_has_every_value_in_its_place() {
        let dense = scattered(&[0, 1, 1, 3], &[1, 0, 1], &[1, 2, 3, 4, 5, 6], [4, 2]);
        let row = |at: usize| dense[8 * at..8 * (at + 1)].to_vec();
        assert_eq!(row(0), [0, 0, 1, 2, 0, 0, 0, 0]);
        assert_eq!(row(1), [0; 8]);
        assert_eq!(row(2), [3, 4, 5, 6, 0, 0, 0, 0]);
        assert_eq!(dense.len(), 24);
    }
}
