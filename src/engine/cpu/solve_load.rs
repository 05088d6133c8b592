//! The loaded triangular system on the CPU: the system in the problem's data type, both right-hand sides, and schedules.

use super::buffer::Buffer;
use super::mkl::Mkled;
use super::schedule::Threads;
use super::simd::Isa;
use super::solve_operand::{Scheme, SystemOperand};
use super::{check, solve_check};
use crate::domain::recipe::Program;
use crate::domain::{Dtype, Problem};
use crate::engine::{Check, Dense, EngineError, Expected, Operands, Solve};
use rayon::prelude::*;
use std::sync::Arc;

/// Number of cached schedules: enough for all finalists.
const KEPT: usize = 8;

/// A loaded system with either element type.
pub trait Solving: Send {
    /// Checks that the program can run, and schedules the rows.
    fn prepare(&mut self, program: &Program, threads: &Threads) -> Result<Scheme, EngineError>;

    /// One call: T x = b for all right-hand sides.
    fn run(&mut self, scheme: &Scheme) -> Result<(), EngineError>;

    /// One call on poisoned x for each of the two right-hand sides, and a check of the solutions.
    fn verify(&mut self, scheme: &Scheme, threads: &Threads) -> Result<Check, EngineError>;

    /// The type of the elements.
    fn dtype(&self) -> Dtype;
}

/// Converts and allocates; refuses systems that no CPU kernel supports.
pub fn load(
    operands: &Operands,
    isa: Isa,
    threads: &Threads,
) -> Result<Box<dyn Solving>, EngineError> {
    let (Problem::Sptrsv(problem), Expected::Solution(solve)) =
        (operands.problem, &operands.expected)
    else {
        return Err(refused("the expected result of a triangular solve is missing"));
    };
    let sides = problem.rhs as usize;
    match (problem.dtype, &operands.b, &solve.second) {
        (Dtype::F32, Dense::F32(b), Dense::F32(second)) => {
            Ok(Box::new(Loaded::of(solve, [b, second], sides, isa, threads)?))
        }
        (Dtype::F64, Dense::F64(b), Dense::F64(second)) => {
            Ok(Box::new(Loaded::of(solve, [b, second], sides, isa, threads)?))
        }
        (dtype @ (Dtype::F16 | Dtype::Bf16), ..) => Err(EngineError::Refused(format!(
            "the CPU engine supports triangular solves in f32 and f64, not {dtype}"
        ))),
        (dtype, ..) => {
            Err(EngineError::Refused(format!("the right-hand sides are not in {dtype}")))
        }
    }
}

/// Operands in the form that the kernels read.
struct Loaded<T: 'static> {
    operand: SystemOperand<T>,
    /// The right-hand sides that are timed, and the second ones for verification.
    b: [Arc<[T]>; 2],
    x: Buffer<T>,
    schemes: Vec<(Program, Scheme)>,
}

impl<T: Mkled> Loaded<T> {
    fn of(
        solve: &Solve,
        b: [&Arc<[T]>; 2],
        sides: usize,
        isa: Isa,
        threads: &Threads,
    ) -> Result<Self, EngineError> {
        let operand = SystemOperand::of(solve.system.clone(), sides, isa, threads)?;
        if b.iter().any(|b| b.len() != operand.len()) {
            return Err(refused("the sizes of the right-hand sides do not match the system"));
        }
        let no_memory = || EngineError::OutOfMemory("x does not fit the host's memory".to_owned());
        let x = Buffer::zeroed(b[0].len()).ok_or_else(no_memory)?;
        Ok(Self { operand, b: b.map(Arc::clone), x, schemes: Vec::new() })
    }
}

impl<T: Mkled> Solving for Loaded<T> {
    fn prepare(&mut self, program: &Program, threads: &Threads) -> Result<Scheme, EngineError> {
        if let Some((_, scheme)) = self.schemes.iter().find(|(known, _)| known == program) {
            return Ok(scheme.clone());
        }
        let scheme = self.operand.prepare(program, threads)?;
        if self.schemes.len() == KEPT {
            self.schemes.remove(0);
        }
        self.schemes.push((program.clone(), scheme.clone()));
        Ok(scheme)
    }

    fn run(&mut self, scheme: &Scheme) -> Result<(), EngineError> {
        self.operand.run(scheme, &self.b[0], self.x.as_mut_slice())
    }

    fn verify(&mut self, scheme: &Scheme, threads: &Threads) -> Result<Check, EngineError> {
        let sides = self.operand.sides;
        let mut checks = [Check { rel_error: 0.0, unwritten: 0, worst: 0 }; 2];
        for (b, check) in self.b.iter().zip(&mut checks) {
            let x = self.x.as_mut_slice();
            threads.install(|| x.par_iter_mut().with_min_len(1 << 14).for_each(|x| *x = T::POISON));
            self.operand.run(scheme, b, self.x.as_mut_slice())?;
            let (x, system) = (self.x.as_slice(), &self.operand.system);
            *check = threads.install(|| solve_check::backward_error(system, b, x, sides));
        }
        let [first, second] = checks;
        Ok(check::worse(first, second))
    }

    fn dtype(&self) -> Dtype {
        T::DTYPE
    }
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
