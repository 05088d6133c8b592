//! Plans for the host CPU on the caller's own buffers: what the engine measured, without the engine.

use super::buffer::Buffer;
use super::dispatch::Multiplied;
use super::kernel::Factors;
use super::mkl::Mkled;
use super::operand::SparseOperand;
use super::program::{Call, Prepared};
use super::schedule::Threads;
use super::simd::Isa;
use super::solve_operand::{Scheme, SystemOperand};
use crate::domain::problem::Diagonal;
use crate::domain::recipe::{Array, Program};
use crate::domain::{Dtype, Spmm, Sptrsv};
use crate::engine::EngineError;
use crate::sparse::{Csr, Triangular};
use std::sync::{Arc, Mutex, PoisonError};

/// A dense operand that a call reads: elements in the problem's layout with tight leading dimensions, aligned as their
/// type.
#[derive(Clone, Copy, Debug)]
pub enum DenseRef<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
}

/// A dense operand that a call writes.
#[derive(Debug)]
pub enum DenseMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}

/// New values for the pattern that a plan was prepared for.
#[derive(Clone, Copy, Debug)]
pub enum NewValues<'a> {
    /// Of a product's matrix, in the order of its entries.
    Product(&'a [f64]),
    /// Of a [`Triangular`]: its strictly lower entries and its diagonal, both in its own order.
    Solve { lower: &'a [f64], diagonal: &'a [f64] },
}

/// A program prepared for one matrix. Calls may come from several threads; those that need the plan's scratch, or
/// a team of threads, wait for one another. All plans of a process share its threads.
pub struct HostPlan {
    threads: &'static Threads,
    work: Work,
}

enum Work {
    ProductF32(Product<f32>),
    ProductF64(Product<f64>),
    SolveF32(Solve<f32>),
    SolveF64(Solve<f64>),
}

struct Product<T: 'static> {
    operand: SparseOperand<T>,
    prepared: Prepared<T>,
    /// What a call needs beside its operands; empty for most programs.
    scratch: Mutex<Buffer<T>>,
}

struct Solve<T: 'static> {
    operand: SystemOperand<T>,
    scheme: Scheme,
    diagonal: Diagonal,
}

impl HostPlan {
    /// Prepares `C = A B`, or `C = alpha A B + beta C` if the problem accumulates. `matrix` is A as the kernels read it: for a transposed product, the transpose. `arrays` are
    /// those of the recipe, in its order.
    pub fn product(
        matrix: Arc<Csr>,
        problem: &Spmm,
        program: &Program,
        arrays: &[Array],
    ) -> Result<Self, EngineError> {
        let threads = threads()?;
        let work = match problem.dtype {
            Dtype::F32 => Work::ProductF32(Product::of(matrix, problem, program, arrays, threads)?),
            Dtype::F64 => Work::ProductF64(Product::of(matrix, problem, program, arrays, threads)?),
            Dtype::F16 | Dtype::Bf16 => {
                let why = format!("products on a CPU are in f32 and f64, not {}", problem.dtype);
                return Err(EngineError::Refused(why));
            }
        };
        Ok(Self { threads, work })
    }

    /// Prepares `T x = b` for the problem's number of right-hand sides.
    pub fn solve(
        system: Arc<Triangular>,
        problem: &Sptrsv,
        program: &Program,
    ) -> Result<Self, EngineError> {
        let threads = threads()?;
        let work = match problem.dtype {
            Dtype::F32 => Work::SolveF32(Solve::of(system, problem, program, threads)?),
            Dtype::F64 => Work::SolveF64(Solve::of(system, problem, program, threads)?),
            Dtype::F16 | Dtype::Bf16 => {
                let dtype = problem.dtype;
                let why = format!("triangular solves on a CPU are in f32 and f64, not {dtype}");
                return Err(EngineError::Refused(why));
            }
        };
        Ok(Self { threads, work })
    }

    /// The type of the dense operands' elements.
    pub fn dtype(&self) -> Dtype {
        match self.work {
            Work::ProductF32(_) | Work::SolveF32(_) => Dtype::F32,
            Work::ProductF64(_) | Work::SolveF64(_) => Dtype::F64,
        }
    }

    /// Whether calls have factors alpha and beta.
    pub fn accumulates(&self) -> bool {
        match &self.work {
            Work::ProductF32(product) => product.operand.accumulate,
            Work::ProductF64(product) => product.operand.accumulate,
            Work::SolveF32(_) | Work::SolveF64(_) => false,
        }
    }

    /// Number of elements of B and of C: cols x n and rows x n; of a solve both are rows x rhs.
    pub fn lengths(&self) -> (usize, usize) {
        match &self.work {
            Work::ProductF32(product) => (product.operand.b_len(), product.operand.c_len()),
            Work::ProductF64(product) => (product.operand.b_len(), product.operand.c_len()),
            Work::SolveF32(solve) => (solve.operand.len(), solve.operand.len()),
            Work::SolveF64(solve) => (solve.operand.len(), solve.operand.len()),
        }
    }

    /// One call: `C = alpha A B + beta C` in the problem's layout, or x of `T x = b` with rows x rhs elements, row-major. The
    /// result is complete when the call returns. With beta = 0, C is not read. `alpha` and `beta` must be 1 and 0 unless the
    /// problem is a product that accumulates; they are rounded to its type.
    ///
    /// No alignment beyond the elements' is needed, but with AVX-512 row-major products took up to a sixth longer on
    /// operands that were not aligned to 64 bytes.
    ///
    /// Refused are operands of another type or length, and calls in a process that was forked after the plan was prepared,
    /// which does not have its threads.
    pub fn run(
        &self,
        b: DenseRef<'_>,
        c: DenseMut<'_>,
        alpha: f64,
        beta: f64,
    ) -> Result<(), EngineError> {
        let factors = [alpha, beta];
        if factors != [1.0, 0.0] && !self.accumulates() {
            return Err(refused(
                "the plan's problem does not accumulate: alpha and beta must be 1 and 0",
            ));
        }
        if !self.threads.are_of_this_process() {
            return Err(refused(
                "this process was forked after the plan was prepared, and does not have its threads: prepare it here",
            ));
        }
        match (&self.work, b, c) {
            (Work::ProductF32(product), DenseRef::F32(b), DenseMut::F32(c)) => {
                product.run(b, c, factors, self.threads)
            }
            (Work::ProductF64(product), DenseRef::F64(b), DenseMut::F64(c)) => {
                product.run(b, c, factors, self.threads)
            }
            (Work::SolveF32(solve), DenseRef::F32(b), DenseMut::F32(x)) => solve.run(b, x),
            (Work::SolveF64(solve), DenseRef::F64(b), DenseMut::F64(x)) => solve.run(b, x),
            _ => Err(EngineError::Refused(format!(
                "the operands must be in {}, the type of the plan",
                self.dtype()
            ))),
        }
    }

    /// Replaces the values of the matrix; its pattern, and with it the schedule, stays. On an error the plan keeps its
    /// values.
    pub fn set_values(&mut self, values: NewValues<'_>) -> Result<(), EngineError> {
        match (&mut self.work, values) {
            (Work::ProductF32(product), NewValues::Product(values)) => {
                product.set_values(values, self.threads)
            }
            (Work::ProductF64(product), NewValues::Product(values)) => {
                product.set_values(values, self.threads)
            }
            (Work::SolveF32(solve), NewValues::Solve { lower, diagonal }) => {
                solve.set_values(lower, diagonal, self.threads)
            }
            (Work::SolveF64(solve), NewValues::Solve { lower, diagonal }) => {
                solve.set_values(lower, diagonal, self.threads)
            }
            (_, NewValues::Solve { .. }) => Err(refused("the plan is a product, not a solve")),
            (_, NewValues::Product(_)) => Err(refused("the plan is a solve, not a product")),
        }
    }
}

impl HostPlan {
    /// Whether [`Self::set_values`] takes the values of a solve: to be asked before they are given to several plans.
    pub fn takes(&self, lower: &[f64], diagonal: &[f64]) -> Result<(), EngineError> {
        match &self.work {
            Work::SolveF32(solve) => solve.takes(lower, diagonal, self.threads),
            Work::SolveF64(solve) => solve.takes(lower, diagonal, self.threads),
            Work::ProductF32(_) | Work::ProductF64(_) => {
                Err(refused("the plan is a product, not a solve"))
            }
        }
    }
}

impl<T: Multiplied + Mkled> Product<T> {
    fn of(
        matrix: Arc<Csr>,
        problem: &Spmm,
        program: &Program,
        arrays: &[Array],
        threads: &Threads,
    ) -> Result<Self, EngineError> {
        let operand = SparseOperand::of(matrix, problem, threads)?;
        let prepared = Prepared::of(program, arrays, &operand, Isa::best(), threads.count())?;
        let scratch = Buffer::zeroed(prepared.scratch_len(&operand)).ok_or_else(|| {
            EngineError::OutOfMemory("there is no memory for the scratch of calls".to_owned())
        })?;
        Ok(Self { operand, prepared, scratch: Mutex::new(scratch) })
    }

    fn set_values(&mut self, values: &[f64], threads: &Threads) -> Result<(), EngineError> {
        let before = self.operand.set_values(values, threads)?;
        let renewed = self.prepared.renew(&self.operand, threads.count());
        if renewed.is_err() {
            self.operand.restore_values(before);
        }
        renewed
    }

    fn run(
        &self,
        b: &[T],
        c: &mut [T],
        [alpha, beta]: [f64; 2],
        threads: &Threads,
    ) -> Result<(), EngineError> {
        let operand = &self.operand;
        right_length("B", b.len(), operand.b_len())?;
        right_length("C", c.len(), operand.c_len())?;
        let factors = Factors { alpha: T::of(alpha), beta: T::of(beta) };
        let factors = operand.accumulate.then_some(factors);
        if self.prepared.scratch_len(operand) == 0 {
            let call = Call { b, scratch: &mut [], c, factors };
            return self.prepared.run(operand, call, threads);
        }
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let call = Call { b, scratch: scratch.as_mut_slice(), c, factors };
        self.prepared.run(operand, call, threads)
    }
}

impl<T: Mkled> Solve<T> {
    fn of(
        system: Arc<Triangular>,
        problem: &Sptrsv,
        program: &Program,
        threads: &Threads,
    ) -> Result<Self, EngineError> {
        let sides = problem.rhs as usize;
        let mut operand = SystemOperand::of(system, sides, Isa::best(), threads)?;
        let scheme = operand.prepare(program, threads)?;
        Ok(Self { operand, scheme, diagonal: problem.diagonal })
    }

    fn run(&self, b: &[T], x: &mut [T]) -> Result<(), EngineError> {
        right_length("b", b.len(), self.operand.len())?;
        right_length("x", x.len(), self.operand.len())?;
        self.operand.run(&self.scheme, b, x)
    }

    fn set_values(
        &mut self,
        lower: &[f64],
        diagonal: &[f64],
        threads: &Threads,
    ) -> Result<(), EngineError> {
        self.unit_stays(diagonal)?;
        self.operand.set_values(lower, diagonal, threads)
    }

    fn takes(&self, lower: &[f64], diagonal: &[f64], threads: &Threads) -> Result<(), EngineError> {
        self.unit_stays(diagonal)?;
        self.operand.taken(lower, diagonal, threads).map(drop)
    }

    fn unit_stays(&self, diagonal: &[f64]) -> Result<(), EngineError> {
        match self.diagonal == Diagonal::Unit && diagonal.iter().any(|&pivot| pivot != 1.0) {
            true => Err(refused("the plan is for a unit diagonal: its new values must be 1")),
            false => Ok(()),
        }
    }
}

/// Number of threads that plans run on: as many as this process may use at the same time.
pub fn plan_threads() -> Result<usize, EngineError> {
    threads().map(Threads::count)
}

fn threads() -> Result<&'static Threads, EngineError> {
    Threads::shared().map_err(|error| {
        EngineError::Refused(format!("the threads for plans could not be started: {error}"))
    })
}

fn right_length(name: &str, length: usize, expected: usize) -> Result<(), EngineError> {
    if length == expected {
        return Ok(());
    }
    Err(EngineError::Refused(format!("{name} has {length} elements, but the plan has {expected}")))
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
