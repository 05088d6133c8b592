//! The problem loaded on the CPU (a product or a triangular solve) and recipes prepared for it.

use super::load::Loaded;
use super::program;
use super::schedule::Threads;
use super::simd::Isa;
use super::solve_load::{self, Solving};
use super::solve_operand::Scheme;
use crate::domain::recipe::Recipe;
use crate::domain::{Dtype, L2Policy, Problem, Spmm};
use crate::engine::{Check, EngineError, Operands};

/// The loaded problem with its operands.
pub struct Work {
    pub l2_policy: L2Policy,
    operation: Operation,
}

enum Operation {
    ProductF32(Box<Loaded<f32>>),
    ProductF64(Box<Loaded<f64>>),
    Solve(Box<dyn Solving>),
}

/// A recipe prepared for the loaded problem.
pub enum Prepared {
    ProductF32(program::Prepared<f32>),
    ProductF64(program::Prepared<f64>),
    Solve(Scheme),
}

impl Prepared {
    /// Whether threads of its own may still look for work after a call.
    pub fn lingers(&self) -> bool {
        match self {
            Self::ProductF32(product) => product.lingers(),
            Self::ProductF64(product) => product.lingers(),
            Self::Solve(scheme) => scheme.lingers(),
        }
    }

    /// Number of tasks of a product, or of threads of a solve, for the plan.
    pub fn jobs(&self) -> usize {
        match self {
            Self::ProductF32(product) => product.jobs(),
            Self::ProductF64(product) => product.jobs(),
            Self::Solve(scheme) => scheme.threads(),
        }
    }
}

impl Work {
    pub fn of(operands: Operands, isa: Isa, threads: &Threads) -> Result<Self, EngineError> {
        let l2_policy = operands.l2_policy;
        let operation = match operands.problem {
            Problem::Spmm(problem) => product(&operands, &problem, threads)?,
            Problem::Sptrsv(_) => Operation::Solve(solve_load::load(&operands, isa, threads)?),
        };
        Ok(Self { l2_policy, operation })
    }

    pub fn prepare(
        &mut self,
        recipe: &Recipe,
        isa: Isa,
        threads: &Threads,
    ) -> Result<Prepared, EngineError> {
        Ok(match &mut self.operation {
            Operation::ProductF32(product) => {
                Prepared::ProductF32(product.prepare(recipe, isa, threads)?)
            }
            Operation::ProductF64(product) => {
                Prepared::ProductF64(product.prepare(recipe, isa, threads)?)
            }
            Operation::Solve(solve) => Prepared::Solve(solve.prepare(&recipe.program, threads)?),
        })
    }

    /// One call.
    pub fn run(&mut self, prepared: &Prepared, threads: &Threads) -> Result<(), EngineError> {
        match (&mut self.operation, prepared) {
            (Operation::ProductF32(loaded), Prepared::ProductF32(product)) => {
                loaded.run(product, threads)
            }
            (Operation::ProductF64(loaded), Prepared::ProductF64(product)) => {
                loaded.run(product, threads)
            }
            (Operation::Solve(solve), Prepared::Solve(scheme)) => solve.run(scheme),
            _ => Err(of_another()),
        }
    }

    /// Runs on a poisoned output and checks the result.
    pub fn verify(&mut self, prepared: &Prepared, threads: &Threads) -> Result<Check, EngineError> {
        match (&mut self.operation, prepared) {
            (Operation::ProductF32(loaded), Prepared::ProductF32(product)) => {
                loaded.verify(product, threads)
            }
            (Operation::ProductF64(loaded), Prepared::ProductF64(product)) => {
                loaded.verify(product, threads)
            }
            (Operation::Solve(solve), Prepared::Solve(scheme)) => solve.verify(scheme, threads),
            _ => Err(of_another()),
        }
    }

    /// The element type of the operands.
    pub fn dtype(&self) -> Dtype {
        match &self.operation {
            Operation::ProductF32(_) => Dtype::F32,
            Operation::ProductF64(_) => Dtype::F64,
            Operation::Solve(solve) => solve.dtype(),
        }
    }

    /// The names of a call's operands, in order.
    pub fn arguments(&self) -> &'static [&'static str] {
        let accumulates = match &self.operation {
            Operation::ProductF32(product) => product.accumulates(),
            Operation::ProductF64(product) => product.accumulates(),
            Operation::Solve(_) => {
                return &["row_ptr", "col_idx", "values", "diagonal", "b", "x"];
            }
        };
        if accumulates {
            &["row_ptr", "col_idx", "values", "b", "c", "alpha", "beta"]
        } else {
            &["row_ptr", "col_idx", "values", "b", "c"]
        }
    }
}

/// Loads a product in its type.
fn product(
    operands: &Operands,
    problem: &Spmm,
    threads: &Threads,
) -> Result<Operation, EngineError> {
    match problem.dtype {
        Dtype::F32 => Ok(Operation::ProductF32(Box::new(Loaded::of(operands, problem, threads)?))),
        Dtype::F64 => Ok(Operation::ProductF64(Box::new(Loaded::of(operands, problem, threads)?))),
        dtype @ (Dtype::F16 | Dtype::Bf16) => Err(EngineError::Refused(format!(
            "the CPU engine supports products in f32 and f64, not {dtype}"
        ))),
    }
}

fn of_another() -> EngineError {
    EngineError::Refused("the recipe was prepared for another problem".to_owned())
}
