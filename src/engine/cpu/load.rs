//! The loaded product on the CPU: the sparse operand, cache-aligned dense buffers, and the reference.

use super::buffer::Buffer;
use super::check::{self, worse};
use super::dispatch::Multiplied;
use super::kernel::Factors;
use super::mkl::{MklProduct, Mkled};
use super::operand::SparseOperand;
use super::program::{Call, Prepared};
use super::schedule::Threads;
use super::simd::Isa;
use crate::domain::recipe::{Program, Recipe};
use crate::domain::{Layout, Spmm};
use crate::engine::{ALPHA, BETA, Check, EngineError, Expected, Operands};
use crate::sparse::oracle::Product;
use rayon::prelude::*;
use std::sync::Arc;

/// Elements copied per parallel task.
const COPY: usize = 1 << 18;

/// Operands in the form that the kernels read.
pub struct Loaded<T: 'static> {
    sparse: SparseOperand<T>,
    /// B as it was given.
    given_b: Arc<[T]>,
    /// The initial C of a problem that accumulates.
    c0: Option<Arc<[T]>>,
    reference: Arc<Product>,
    /// B in row-major layout; of column-major B no copy is needed.
    b: Buffer<T>,
    /// As long as the prepared programs need.
    scratch: Buffer<T>,
    /// C.
    output: Buffer<T>,
    /// MKL's products that were prepared, since it inspects the matrix for each.
    mkl: Vec<Arc<MklProduct<T>>>,
}

impl<T: Multiplied + Mkled> Loaded<T> {
    /// Converts and allocates; refuses operands that do not fit the problem.
    pub fn of(operands: &Operands, problem: &Spmm, threads: &Threads) -> Result<Self, EngineError> {
        let sparse = SparseOperand::of(operands.matrix.clone(), problem, threads)?;
        let Expected::Product(reference) = &operands.expected else {
            return Err(refused("the expected result of a product is missing"));
        };
        let other_type =
            || EngineError::Refused(format!("the dense operands are not in {}", T::NAME));
        let given_b = T::of_dense(&operands.b).ok_or_else(other_type)?;
        let c0 = operands.c0.as_ref().filter(|_| problem.accumulate);
        let c0 = c0.map(|c0| T::of_dense(c0).ok_or_else(other_type)).transpose()?;
        let (b_len, c_len) = (sparse.b_len(), sparse.c_len());
        let c0_fits = c0.as_ref().map_or(!problem.accumulate, |c0| c0.len() == c_len);
        if given_b.len() != b_len || reference.value.len() != c_len || !c0_fits {
            return Err(refused(
                "the sizes of the dense operands and the reference do not match the matrix and n",
            ));
        }
        let copied = if sparse.layout == Layout::Row { b_len } else { 0 };
        let mut b = buffer(copied)?;
        let pieces = b.as_mut_slice().par_chunks_mut(COPY).zip(given_b.par_chunks(COPY));
        threads.install(|| pieces.for_each(|(to, from)| to.copy_from_slice(from)));
        let (scratch, output) = (buffer(0)?, buffer(c_len)?);
        let reference = reference.clone();
        Ok(Self { sparse, given_b, c0, reference, b, scratch, output, mkl: Vec::new() })
    }

    pub fn prepare(
        &mut self,
        recipe: &Recipe,
        isa: Isa,
        threads: &Threads,
    ) -> Result<Prepared<T>, EngineError> {
        let Recipe { program, arrays, .. } = recipe;
        if let Program::Vendor { algorithm } = program
            && let Some(known) = self.mkl.iter().find(|known| known.routine() == algorithm)
        {
            return Ok(Prepared::Mkl(known.clone()));
        }
        let prepared = Prepared::of(program, arrays, &self.sparse, isa, threads.count())?;
        let scratch = prepared.scratch_len(&self.sparse);
        if let Prepared::Mkl(product) = &prepared {
            self.mkl.push(product.clone());
        }
        if self.scratch.as_slice().len() < scratch {
            self.scratch = buffer(scratch)?;
        }
        Ok(prepared)
    }

    /// Whether calls have factors alpha and beta.
    pub fn accumulates(&self) -> bool {
        self.sparse.accumulate
    }

    /// One call, with the engine's factors if the problem accumulates.
    pub fn run(&mut self, prepared: &Prepared<T>, threads: &Threads) -> Result<(), EngineError> {
        self.run_with(prepared, BETA, threads)
    }

    fn run_with(
        &mut self,
        prepared: &Prepared<T>,
        beta: f64,
        threads: &Threads,
    ) -> Result<(), EngineError> {
        let b = match self.sparse.layout {
            Layout::Row => self.b.as_slice(),
            Layout::Col => &self.given_b,
        };
        let scratch = &mut self.scratch.as_mut_slice()[..prepared.scratch_len(&self.sparse)];
        let factors = Factors { alpha: T::of(ALPHA), beta: T::of(beta) };
        let factors = self.sparse.accumulate.then_some(factors);
        let call = Call { b, scratch, c: self.output.as_mut_slice(), factors };
        prepared.run(&self.sparse, call, threads)
    }

    /// One call on a poisoned output, and a check of the result; if the problem accumulates, one on the initial C, and one
    /// with a beta of 0, which must not read C, on a poisoned one.
    pub fn verify(
        &mut self,
        prepared: &Prepared<T>,
        threads: &Threads,
    ) -> Result<Check, EngineError> {
        let Some(c0) = self.c0.clone() else {
            return self.run_poisoned(prepared, None, threads);
        };
        self.output.as_mut_slice().copy_from_slice(&c0);
        self.run(prepared, threads)?;
        let (output, reference) = (self.output.as_slice(), &self.reference);
        let added = threads.install(|| check::compare(output, reference, None));
        Ok(worse(added, self.run_poisoned(prepared, Some(&c0), threads)?))
    }

    /// One call on a poisoned output with a beta of 0, if it has one; `without` is the C that the reference contains then.
    fn run_poisoned(
        &mut self,
        prepared: &Prepared<T>,
        without: Option<&[T]>,
        threads: &Threads,
    ) -> Result<Check, EngineError> {
        let output = self.output.as_mut_slice();
        threads.install(|| check::poison(output));
        self.run_with(prepared, 0.0, threads)?;
        let (output, reference) = (self.output.as_slice(), &self.reference);
        let without = without.map(|initial| (initial, BETA));
        Ok(threads.install(|| check::compare(output, reference, without)))
    }
}

fn buffer<T: bytemuck::Pod>(len: usize) -> Result<Buffer<T>, EngineError> {
    Buffer::zeroed(len).ok_or_else(|| {
        EngineError::OutOfMemory("B and C do not fit into the host's memory".to_owned())
    })
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
