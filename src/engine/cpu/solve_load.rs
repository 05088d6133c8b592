//! The loaded triangular system on the CPU: operands in the problem's data type, schedules, and the calls that solve
//! it.

use super::buffer::Buffer;
use super::schedule::Threads;
use super::simd::Isa;
use super::solve::{self, Element, Kernel, MOST_SIDES, Rows, View};
use super::solve_schedule::{LevelOrder, LevelSchedule, MergedSchedule, Schedule};
use super::thread_team::ThreadTeam;
use super::{solve_check, vendor};
use crate::domain::recipe::{HostProgram, Program};
use crate::domain::{Dtype, Problem};
use crate::engine::{Check, Dense, EngineError, Expected, Operands, Solve};
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::sync::Arc;

/// Number of cached schedules: enough for all finalists.
const KEPT: usize = 8;

/// A prepared program.
#[derive(Clone)]
pub enum Scheme {
    Scheduled(Arc<Schedule>),
    /// sprs' solve, which is single-threaded.
    Vendor,
}

impl Scheme {
    /// Number of threads of a call.
    pub fn threads(&self) -> usize {
        match self {
            Self::Scheduled(schedule) => schedule.threads(),
            Self::Vendor => 1,
        }
    }
}

/// A loaded system with either element type.
pub trait Solving: Send {
    /// Checks that the program can run, and schedules the rows.
    fn prepare(&mut self, program: &Program, threads: &Threads) -> Result<Scheme, EngineError>;

    /// One call: T x = b for all right-hand sides.
    fn run(&mut self, scheme: &Scheme) -> Result<(), EngineError>;

    /// One call on poisoned x for each of the two right-hand sides, and a check of the solutions.
    fn verify(&mut self, scheme: &Scheme, threads: &Threads) -> Result<Check, EngineError>;

    /// `f32` or `f64`.
    fn dtype(&self) -> &'static str;
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
        (Dtype::F16, ..) => {
            Err(refused("the CPU engine supports triangular solves in f32 and f64, not f16"))
        }
        (dtype, ..) => {
            Err(EngineError::Refused(format!("the right-hand sides are not in {dtype}")))
        }
    }
}

/// Operands in the form that the kernels read.
struct Loaded<T: Element> {
    system: Arc<Triangular>,
    /// The columns as rows of x if the system is reversed; otherwise the system's own columns are used.
    mirrored: Option<Vec<u32>>,
    values: Vec<T>,
    pivots: Vec<T>,
    divide: bool,
    sides: usize,
    /// The right-hand sides that are timed, and the second ones for verification.
    b: [Arc<[T]>; 2],
    x: Buffer<T>,
    kernel: Kernel<T>,
    levels: Option<Arc<LevelOrder>>,
    schedules: Vec<(HostProgram, Arc<Schedule>)>,
    vendor: Option<vendor::System<T>>,
}

impl<T: vendor::Solved> Loaded<T> {
    fn of(
        solve: &Solve,
        b: [&Arc<[T]>; 2],
        sides: usize,
        isa: Isa,
        threads: &Threads,
    ) -> Result<Self, EngineError> {
        let system = &solve.system;
        if !(1..=MOST_SIDES).contains(&sides) {
            return Err(EngineError::Refused(format!(
                "there are {sides} right-hand sides, but the CPU kernels support 1 to {MOST_SIDES}"
            )));
        }
        let length = system.rows().checked_mul(sides);
        if b.iter().any(|b| Some(b.len()) != length) {
            return Err(refused("the sizes of the right-hand sides do not match the system"));
        }
        check_order(system)?;
        let last = system.rows().wrapping_sub(1) as u32;
        let mirrored = || system.indices.par_iter().map(|&column| last - column).collect();
        let mirrored = system.reversed.then(|| threads.install(mirrored));
        let values = threads.install(|| converted(&system.values));
        let diagonal: Vec<T> = converted(&system.diagonal);
        let inverse: Option<Vec<T>> = diagonal.iter().map(|pivot| pivot.reciprocal()).collect();
        let divide = inverse.is_none();
        let no_memory = || EngineError::OutOfMemory("x does not fit the host's memory".to_owned());
        Ok(Self {
            system: system.clone(),
            mirrored,
            values,
            pivots: inverse.unwrap_or(diagonal),
            divide,
            sides,
            b: b.map(Arc::clone),
            x: Buffer::zeroed(b[0].len()).ok_or_else(no_memory)?,
            kernel: solve::kernel(isa, sides),
            levels: None,
            schedules: Vec::new(),
            vendor: None,
        })
    }

    fn schedule(
        &mut self,
        program: HostProgram,
        threads: &Threads,
    ) -> Result<Schedule, EngineError> {
        match program {
            HostProgram::SolveSerial => Ok(Schedule::Serial { rows: self.system.rows() }),
            HostProgram::SolveLevels { threads: count, narrow } => {
                let team = team(threads, count)?;
                let system = &self.system;
                let levels = self.levels.get_or_insert_with(|| Arc::new(LevelOrder::of(system)));
                let schedule = LevelSchedule::of(levels.clone(), narrow as usize, team);
                Ok(Schedule::Levels(Box::new(schedule)))
            }
            HostProgram::SolveMerged { rows: 0, .. } => {
                Err(refused("a group must have at least 1 row"))
            }
            HostProgram::SolveMerged { threads: count, rows } => {
                let team = team(threads, count)?;
                let schedule = MergedSchedule::of(&self.system, rows as usize, team);
                Ok(Schedule::Merged(Box::new(schedule)))
            }
            HostProgram::RowPanel { .. } | HostProgram::RowSplit { .. } => Err(refused(
                "the program is a product, but the loaded problem is a triangular solve",
            )),
        }
    }

    fn call(&mut self, scheme: &Scheme, b: usize) -> Result<(), EngineError> {
        let b = self.b[b].clone();
        let schedule = match (scheme, &self.vendor) {
            (Scheme::Scheduled(schedule), _) => schedule,
            (Scheme::Vendor, Some(vendor)) => {
                return vendor.solve(&b, self.x.as_mut_slice(), self.sides);
            }
            (Scheme::Vendor, None) => return Err(refused("sprs has not been prepared")),
        };
        let view = View {
            indptr: &self.system.indptr,
            columns: self.mirrored.as_deref().unwrap_or(&self.system.indices),
            values: &self.values,
            pivots: &self.pivots,
            divide: self.divide,
            reversed: self.system.reversed,
            b: b.as_ptr(),
            x: self.x.as_mut_slice().as_mut_ptr(),
            sides: self.sides,
        };
        let kernel = self.kernel;
        // SAFETY: the kernel was selected for this host's instructions; `check_order` verified that the arrays are
        // consistent and that columns precede their rows; a schedule hands out each row once, after all rows that it
        // depends on.
        schedule.run(|rows: Rows<'_>| unsafe { kernel(&view, rows) });
        Ok(())
    }
}

impl<T: vendor::Solved> Solving for Loaded<T> {
    fn prepare(&mut self, program: &Program, threads: &Threads) -> Result<Scheme, EngineError> {
        match program {
            Program::Host(program) => {
                let kept = self.schedules.iter().find(|(known, _)| known == program);
                if let Some((_, schedule)) = kept {
                    return Ok(Scheme::Scheduled(schedule.clone()));
                }
                let schedule = Arc::new(self.schedule(*program, threads)?);
                if self.schedules.len() == KEPT {
                    self.schedules.remove(0);
                }
                self.schedules.push((*program, schedule.clone()));
                Ok(Scheme::Scheduled(schedule))
            }
            Program::Vendor { algorithm } if algorithm == vendor::ALGORITHM => {
                let (system, values) = (&self.system, &self.values);
                self.vendor.get_or_insert_with(|| vendor::System::of(system, values));
                Ok(Scheme::Vendor)
            }
            Program::Vendor { algorithm } => Err(vendor::unknown(algorithm)),
            Program::Cuda(_) => Err(refused("a CUDA kernel cannot run on the host CPU")),
        }
    }

    fn run(&mut self, scheme: &Scheme) -> Result<(), EngineError> {
        self.call(scheme, 0)
    }

    fn verify(&mut self, scheme: &Scheme, threads: &Threads) -> Result<Check, EngineError> {
        let mut checks = [Check { rel_error: 0.0, unwritten: 0, worst: 0 }; 2];
        for (which, check) in checks.iter_mut().enumerate() {
            let x = self.x.as_mut_slice();
            threads.install(|| x.par_iter_mut().with_min_len(1 << 14).for_each(|x| *x = T::POISON));
            self.call(scheme, which)?;
            let (x, b) = (self.x.as_slice(), &self.b[which]);
            *check =
                threads.install(|| solve_check::backward_error(&self.system, b, x, self.sides));
        }
        let [first, second] = checks;
        Ok(solve_check::worse(first, second))
    }

    fn dtype(&self) -> &'static str {
        T::NAME
    }
}

/// A team of `count` threads that run at the same time.
fn team(threads: &Threads, count: u32) -> Result<Arc<ThreadTeam>, EngineError> {
    let most = threads.count();
    if count < 2 || count as usize > most {
        return Err(EngineError::Refused(format!(
            "{count} threads: a parallel solve needs at least 2, and this engine has {most}"
        )));
    }
    threads.team(count as usize).map_err(|error| {
        EngineError::Refused(format!("{count} threads could not be started: {error}"))
    })
}

/// Validates the system in one pass over the entries: the kernels read without bounds checks, and a row that depends on
/// a later one would cause a deadlock.
fn check_order(system: &Triangular) -> Result<(), EngineError> {
    let (rows, nnz) = (system.rows(), system.nnz());
    let fits = system.indptr.len() == rows + 1
        && system.indptr.first() == Some(&0)
        && system.indptr.last() == Some(&nnz)
        && system.values.len() == nnz
        && rows <= u32::MAX as usize
        && system.indptr.is_sorted();
    let precedes = |s: usize| system.row(s).0.iter().all(|&column| (column as usize) < s);
    if fits && (0..rows).all(precedes) {
        return Ok(());
    }
    Err(refused("the system is not in solve order: a row depends on itself or on a later one"))
}

fn converted<T: Element>(values: &[f64]) -> Vec<T> {
    values.par_iter().with_min_len(1 << 14).map(|&value| T::of(value)).collect()
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
