//! A triangular system as the kernels read it, its schedules, and the calls that solve it.

use super::mkl::{MklSolve, Mkled};
use super::plain;
use super::program::unknown;
use super::schedule::Threads;
use super::simd::Isa;
use super::solve::{self, Kernel, MOST_SIDES, Rows, View};
use super::solve_schedule::{LevelOrder, LevelSchedule, MergedSchedule, Schedule};
use super::thread_team::ThreadTeam;
use crate::domain::catalog::vendor::{self, Library};
use crate::domain::recipe::{HostProgram, Program};
use crate::engine::EngineError;
use crate::sparse::Triangular;
use rayon::prelude::*;
use std::sync::Arc;

/// A prepared program.
#[derive(Clone)]
pub enum Scheme {
    Scheduled(Arc<Schedule>),
    /// The plain substitution, on one thread.
    Plain,
    Mkl,
}

impl Scheme {
    /// Number of threads of a call.
    pub fn threads(&self) -> usize {
        match self {
            Self::Scheduled(schedule) => schedule.threads(),
            Self::Plain | Self::Mkl => 1,
        }
    }

    /// Whether threads of its own may still look for work after a call.
    pub fn lingers(&self) -> bool {
        matches!(self, Self::Mkl)
    }
}

/// T in the kernels' element type.
pub struct SystemOperand<T: 'static> {
    /// The pattern; its values are not used after they have been converted.
    pub system: Arc<Triangular>,
    /// The columns as rows of x if the system is reversed; otherwise the system's own columns are used.
    mirrored: Option<Vec<u32>>,
    values: Vec<T>,
    pivots: Pivots<T>,
    /// Right-hand sides.
    pub sides: usize,
    kernel: Kernel<T>,
    levels: Option<Arc<LevelOrder>>,
    /// The diagonal itself, for the plain substitution.
    diagonal: Option<Vec<T>>,
    mkl: Option<MklSolve<T>>,
    threads: usize,
}

/// The diagonal as the kernels use it.
struct Pivots<T> {
    /// Reciprocals, or the diagonal itself if `divide` is set.
    values: Vec<T>,
    divide: bool,
}

impl<T: Mkled> Pivots<T> {
    fn of(diagonal: &[f64]) -> Self {
        let diagonal: Vec<T> = converted(diagonal);
        let inverse: Option<Vec<T>> = diagonal.iter().map(|pivot| pivot.reciprocal()).collect();
        let divide = inverse.is_none();
        Self { values: inverse.unwrap_or(diagonal), divide }
    }
}

impl<T: Mkled> SystemOperand<T> {
    /// Converts the values; refuses systems that no CPU kernel supports.
    pub fn of(
        system: Arc<Triangular>,
        sides: usize,
        isa: Isa,
        threads: &Threads,
    ) -> Result<Self, EngineError> {
        if !(1..=MOST_SIDES).contains(&sides) {
            return Err(EngineError::Refused(format!(
                "there are {sides} right-hand sides, but the CPU kernels support 1 to {MOST_SIDES}"
            )));
        }
        check_order(&system)?;
        if system.rows().checked_mul(sides).is_none() {
            return Err(refused("the right-hand sides do not fit in memory"));
        }
        let last = system.rows().wrapping_sub(1) as u32;
        let mirrored = || system.indices.par_iter().map(|&column| last - column).collect();
        let mirrored = system.reversed.then(|| threads.install(mirrored));
        let values = threads.install(|| converted(&system.values));
        let pivots = Pivots::of(&system.diagonal);
        let kernel = solve::kernel(isa, sides);
        Ok(Self {
            system,
            mirrored,
            values,
            pivots,
            sides,
            kernel,
            levels: None,
            diagonal: None,
            mkl: None,
            threads: threads.count(),
        })
    }

    /// Elements of b and of x: rows x sides.
    pub fn len(&self) -> usize {
        self.system.rows() * self.sides
    }

    /// New values in the type of the solve, if it takes them; in the order of [`Self::set_values`].
    pub fn taken(
        &self,
        lower: &[f64],
        diagonal: &[f64],
        threads: &Threads,
    ) -> Result<Vec<T>, EngineError> {
        let (rows, nnz) = (self.system.rows(), self.system.nnz());
        if lower.len() != nnz || diagonal.len() != rows {
            return Err(EngineError::Refused(format!(
                "there are {} new values and {} of the diagonal, but the system has {nnz} entries beside it and {rows} rows",
                lower.len(),
                diagonal.len()
            )));
        }
        let values: Vec<T> = threads.install(|| converted(lower));
        let finite = |value: T| -> bool { Into::<f64>::into(value).is_finite() };
        let in_range = |&pivot: &f64| finite(T::of(pivot)) && T::of(pivot) != T::ZERO;
        if !values.iter().all(|&value| finite(value)) || !diagonal.iter().all(in_range) {
            return Err(EngineError::Refused(format!(
                "a new value is not finite in {}, or one of the diagonal is zero",
                T::NAME
            )));
        }
        Ok(values)
    }

    /// Replaces the values; they are those of the strictly lower entries and of the diagonal, in the system's order.
    /// Schedules stay valid.
    pub fn set_values(
        &mut self,
        lower: &[f64],
        diagonal: &[f64],
        threads: &Threads,
    ) -> Result<(), EngineError> {
        let values = self.taken(lower, diagonal, threads)?;
        if let Some(mkl) = &mut self.mkl {
            let which = (mkl.routine(), self.sides);
            *mkl = MklSolve::of(&self.system, &values, diagonal, which, self.threads)?;
        }
        if let Some(old) = &mut self.diagonal {
            *old = converted(diagonal);
        }
        self.pivots = Pivots::of(diagonal);
        self.values = values;
        Ok(())
    }

    /// Checks that the program can run, and schedules the rows.
    pub fn prepare(&mut self, program: &Program, threads: &Threads) -> Result<Scheme, EngineError> {
        match program {
            Program::Host(program) => {
                Ok(Scheme::Scheduled(Arc::new(self.schedule(*program, threads)?)))
            }
            Program::Vendor { algorithm } => {
                match vendor::routine(algorithm).map(|it| it.library) {
                    Some(Library::MklSolve) => {
                        let (system, which) = (&self.system, (algorithm.as_str(), self.sides));
                        let (values, diagonal) = (&self.values, &system.diagonal);
                        self.mkl =
                            Some(MklSolve::of(system, values, diagonal, which, self.threads)?);
                        Ok(Scheme::Mkl)
                    }
                    // Plans of earlier versions name `sprs`, whose substitution this is.
                    Some(Library::PlainSolve | Library::Sprs) => {
                        self.diagonal.get_or_insert_with(|| converted(&self.system.diagonal));
                        Ok(Scheme::Plain)
                    }
                    _ => Err(unknown(algorithm)),
                }
            }
            Program::Cuda(_) => Err(refused("a CUDA kernel cannot run on the host CPU")),
        }
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
            HostProgram::RowPanel { .. } | HostProgram::RowSplit { .. } => {
                Err(refused("the program is a product, but the problem is a triangular solve"))
            }
        }
    }

    /// One call: T x = b for all right-hand sides, rows x sides, row-major, in the matrix's row order. Every element of x
    /// is written.
    ///
    /// # Panics
    /// If b or x has another length.
    pub fn run(&self, scheme: &Scheme, b: &[T], x: &mut [T]) -> Result<(), EngineError> {
        assert!(b.len() == self.len() && x.len() == self.len(), "b and x are rows x sides");
        let schedule = match (scheme, &self.mkl, &self.diagonal) {
            (Scheme::Scheduled(schedule), ..) => schedule,
            (Scheme::Mkl, Some(mkl), _) => return mkl.run(b, x),
            (Scheme::Plain, _, Some(diagonal)) => {
                plain::solve(&self.system, (&self.values, diagonal), b, x, self.sides);
                return Ok(());
            }
            (Scheme::Mkl | Scheme::Plain, ..) => {
                return Err(refused("the baseline has not been prepared"));
            }
        };
        let view = View {
            indptr: &self.system.indptr,
            columns: self.mirrored.as_deref().unwrap_or(&self.system.indices),
            values: &self.values,
            pivots: &self.pivots.values,
            divide: self.pivots.divide,
            reversed: self.system.reversed,
            b: b.as_ptr(),
            x: x.as_mut_ptr(),
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

/// A team of `count` threads that run at the same time.
fn team(threads: &Threads, count: u32) -> Result<Arc<ThreadTeam>, EngineError> {
    let most = threads.count();
    if count < 2 || count as usize > most {
        return Err(EngineError::Refused(format!(
            "{count} threads: a parallel solve needs at least 2, and there are {most}"
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

fn converted<T: Mkled>(values: &[f64]) -> Vec<T> {
    values.par_iter().with_min_len(1 << 14).map(|&value| T::of(value)).collect()
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
