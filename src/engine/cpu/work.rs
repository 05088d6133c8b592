//! The problem loaded on the CPU (a product or a triangular solve) and recipes prepared for it.

use super::check;
use super::load::Loaded;
use super::program;
use super::schedule::Threads;
use super::simd::Isa;
use super::solve_load::{self, Solving};
use super::solve_operand::Scheme;
use crate::domain::recipe::Recipe;
use crate::domain::{L2Policy, Problem};
use crate::engine::{Check, EngineError, Operands};

/// The loaded problem with its operands.
pub struct Work {
    pub l2_policy: L2Policy,
    operation: Operation,
}

enum Operation {
    Product(Box<Loaded>),
    Solve(Box<dyn Solving>),
}

/// A recipe prepared for the loaded problem.
pub enum Prepared {
    Product(program::Prepared),
    Solve(Scheme),
}

impl Prepared {
    /// Number of tasks of a product, or of threads of a solve, for the plan.
    pub fn jobs(&self) -> usize {
        match self {
            Self::Product(product) => product.jobs(),
            Self::Solve(scheme) => scheme.threads(),
        }
    }
}

impl Work {
    pub fn of(operands: Operands, isa: Isa, threads: &Threads) -> Result<Self, EngineError> {
        let l2_policy = operands.l2_policy;
        let operation = match operands.problem {
            Problem::Spmm(_) => Operation::Product(Box::new(Loaded::of(operands, threads)?)),
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
        match &mut self.operation {
            Operation::Product(loaded) => {
                let prepared = program::Prepared::of(
                    &recipe.program,
                    &recipe.arrays,
                    &loaded.sparse,
                    isa,
                    threads.count(),
                )?;
                Ok(Prepared::Product(prepared))
            }
            Operation::Solve(solve) => {
                Ok(Prepared::Solve(solve.prepare(&recipe.program, threads)?))
            }
        }
    }

    /// One call.
    pub fn run(&mut self, prepared: &Prepared, threads: &Threads) -> Result<(), EngineError> {
        match (&mut self.operation, prepared) {
            (Operation::Product(loaded), Prepared::Product(product)) => {
                loaded.run(product, threads)
            }
            (Operation::Solve(solve), Prepared::Solve(scheme)) => solve.run(scheme),
            _ => Err(of_another()),
        }
    }

    /// Runs on a poisoned output and checks the result.
    pub fn verify(&mut self, prepared: &Prepared, threads: &Threads) -> Result<Check, EngineError> {
        match (&mut self.operation, prepared) {
            (Operation::Product(loaded), Prepared::Product(product)) => {
                let output = loaded.output.as_mut_slice();
                threads.install(|| check::poison(output));
                loaded.run(product, threads)?;
                let (output, reference) = (loaded.output.as_slice(), &loaded.reference);
                Ok(threads.install(|| check::compare(output, reference)))
            }
            (Operation::Solve(solve), Prepared::Solve(scheme)) => solve.verify(scheme, threads),
            _ => Err(of_another()),
        }
    }

    /// The element type of the operands.
    pub fn dtype(&self) -> &'static str {
        match &self.operation {
            Operation::Product(_) => "f32",
            Operation::Solve(solve) => solve.dtype(),
        }
    }
}

fn of_another() -> EngineError {
    EngineError::Refused("the recipe was prepared for another problem".to_owned())
}
