//! The hostile family, for tests: candidates that deliberately hang, fault or produce wrong results; kernels on a GPU,
//! plain code elsewhere.
//!
//! `hostile{kind=hang|fault|wrong|unwritten|slow}`, and `ms` for `slow`. Refused unless the process was started with
//! `--allow-hostile`. It is a separate family, so that no search space contains it by accident.

use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Arg, Compiled, CudaProgram, Program, Recipe, Step};
use crate::domain::{Candidate, Clock, Device, Layout, Problem, Timing};
use crate::engine::{Check, Engine, EngineError, Operands};
use crate::ops::Refusal;
use crate::sparse::Csr;
use std::time::{Duration, Instant};

/// The family's name.
pub const FAMILY: &str = "hostile";

/// The header with its kernels.
pub(super) const HEADER: &str = "hostile/hostile.cuh";

/// The source of the family's kernels.
pub const SOURCE: &str = "#include \"hostile/hostile.cuh\"\n";
const BLOCK: u32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hang,
    Fault,
    Wrong,
    Unwritten,
    Slow { ms: u64 },
}

fn kind_of(candidate: &Candidate) -> Result<Kind, String> {
    match candidate.text("kind") {
        Some("hang") => Ok(Kind::Hang),
        Some("fault") => Ok(Kind::Fault),
        Some("wrong") => Ok(Kind::Wrong),
        Some("unwritten") => Ok(Kind::Unwritten),
        Some("slow") => {
            let ms = candidate.int("ms").unwrap_or(20);
            Ok(Kind::Slow { ms: ms.clamp(0, 60_000) as u64 })
        }
        _ => Err(format!("{candidate} has an unknown kind")),
    }
}

/// Lowers a hostile candidate: to a kernel for a GPU, else to a program that only `OnHost` can run.
pub(super) fn lower(
    candidate: &Candidate,
    matrix: &Csr,
    problem: &Problem,
    on_gpu: bool,
) -> Result<Recipe, Refusal> {
    let kind = kind_of(candidate).map_err(Refusal)?;
    let program = match problem {
        _ if !on_gpu => Program::Vendor { algorithm: FAMILY.to_owned() },
        Problem::Spmm(spmm) => Program::Cuda(kernel(kind, matrix, spmm.n, spmm.layout)),
        Problem::Sptrsv(_) if matches!(kind, Kind::Slow { .. }) => {
            return Err(Refusal(
                "the slow kind is a product and cannot solve a triangular system".to_owned(),
            ));
        }
        // The other kinds only access C, as 32-bit words.
        Problem::Sptrsv(problem) => {
            let words = problem.rhs * (problem.dtype.bytes() as u32 / 4).max(1);
            Program::Cuda(kernel(kind, matrix, words, Layout::Row))
        }
    };
    Ok(Recipe::bare(candidate, program))
}

fn kernel(kind: Kind, matrix: &Csr, n: u32, layout: Layout) -> CudaProgram {
    let (rows, cols) = (matrix.rows() as u64, matrix.cols() as u64);
    let elements = Arg::U64(rows * u64::from(n));
    let row_blocks = (rows as u32).div_ceil(BLOCK).max(1);
    let (entry, blocks, args) = match kind {
        Kind::Hang => ("hostile_hang", 1, vec![Arg::C]),
        Kind::Fault => ("hostile_fault", 1, vec![Arg::C]),
        Kind::Wrong => ("hostile_wrong", row_blocks, vec![Arg::C, elements]),
        Kind::Unwritten => ("hostile_unwritten", 1, vec![Arg::C, elements]),
        Kind::Slow { ms } => {
            let n64 = u64::from(n);
            let [b_row, b_col, c_row, c_col] = match layout {
                Layout::Row => [n64, 1, n64, 1],
                Layout::Col => [1, cols, 1, rows],
            };
            let mut args = vec![Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::B, Arg::C];
            args.extend([Arg::U32(rows as u32), Arg::U32(n)]);
            args.extend([b_row, b_col, c_row, c_col, ms * 1_000_000].map(Arg::U64));
            ("hostile_slow", row_blocks, args)
        }
    };
    let threads = if blocks == 1 && !matches!(kind, Kind::Slow { .. }) { 1 } else { BLOCK };
    CudaProgram::of(SOURCE.to_owned(), Step::of(entry, blocks, threads, args))
}

/// An engine that also runs hostile candidates, as code of this process.
pub(super) struct OnHost {
    pub(super) engine: Box<dyn Engine>,
}

impl OnHost {
    /// The kind, if this candidate is hostile.
    fn hostile(recipe: &Recipe) -> Option<Result<Kind, EngineError>> {
        let hostile = recipe.candidate.family == FAMILY;
        hostile.then(|| kind_of(&recipe.candidate).map_err(EngineError::Refused))
    }
}

impl Engine for OnHost {
    fn device(&self) -> &Device {
        self.engine.device()
    }

    fn load(&mut self, operands: Operands) -> Result<(), EngineError> {
        self.engine.load(operands)
    }

    fn prepare(&mut self, recipes: &[Recipe]) {
        let (_, tame): (Vec<_>, Vec<_>) =
            recipes.iter().cloned().partition(|recipe| recipe.candidate.family == FAMILY);
        self.engine.prepare(&tame);
    }

    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError> {
        match Self::hostile(recipe) {
            Some(kind) => kind.map(|_| Compiled::default()),
            None => self.engine.compile(recipe),
        }
    }

    fn verify(&mut self, recipe: &Recipe, give_up_us: Option<f64>) -> Result<Check, EngineError> {
        let Some(kind) = Self::hostile(recipe) else {
            return self.engine.verify(recipe, give_up_us);
        };
        let check = Check { rel_error: 0.0, unwritten: 0, worst: 0 };
        Ok(match kind? {
            Kind::Hang => hang(),
            Kind::Fault => fault(),
            Kind::Wrong => Check { rel_error: 1.0, ..check },
            Kind::Unwritten => Check { unwritten: 1, ..check },
            Kind::Slow { ms } => {
                std::thread::sleep(Duration::from_millis(ms));
                check
            }
        })
    }

    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError> {
        match Self::hostile(recipe) {
            Some(kind) => idle(kind?, effort.min_samples.max(1)),
            None => self.engine.time(recipe, effort),
        }
    }

    fn pair(
        &mut self,
        recipes: &[Recipe],
        rounds: u32,
        clock: Clock,
        give_up_us: Option<f64>,
    ) -> Result<Vec<Timing>, EngineError> {
        match recipes.iter().find(|recipe| recipe.candidate.family == FAMILY) {
            // Finals contain only verified candidates, and a hostile candidate must never win.
            Some(recipe) => {
                Err(EngineError::Refused(format!("{} cannot be a finalist", recipe.candidate)))
            }
            None => self.engine.pair(recipes, rounds, clock, give_up_us),
        }
    }

    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError> {
        match Self::hostile(recipe) {
            Some(_) => Ok(Exported::routine(FAMILY, Vec::new())),
            None => self.engine.export(recipe),
        }
    }
}

fn idle(kind: Kind, samples: u32) -> Result<Timing, EngineError> {
    let Kind::Slow { ms } = kind else {
        return Err(EngineError::Refused("only the slow kind can be timed".to_owned()));
    };
    let once = || {
        let started = Instant::now();
        std::thread::sleep(Duration::from_millis(ms));
        started.elapsed().as_secs_f64() * 1e6
    };
    Timing::of((0..samples).map(|_| once()).collect(), 0)
        .ok_or_else(|| EngineError::Refused("the requested number of samples is zero".to_owned()))
}

/// Behaves like a kernel that never ends: a busy thread that never returns.
fn hang() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn fault() -> ! {
    // An address that is never mapped. Not null, because debug builds turn a null access into a panic.
    let nowhere = std::ptr::without_provenance_mut::<u32>(64);
    // SAFETY: deliberately unsafe. The fault is intended, and this process is expected to be killed by it.
    unsafe { nowhere.write_volatile(1) };
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_lowers_to_a_kernel_that_the_header_has() {
        let header = include_str!("../../kernels/hostile/hostile.cuh");
        let matrix = Csr::new(300, 2, vec![0; 301], vec![], vec![]).unwrap();
        let problem: Problem = serde_json::from_str(r#"{"op":"spmm","n":3}"#).unwrap();
        for kind in ["hang", "fault", "wrong", "unwritten", "slow"] {
            let candidate = Candidate::new(FAMILY).with_text("kind", kind);
            let recipe = lower(&candidate, &matrix, &problem, true).unwrap();
            let Program::Cuda(program) = recipe.program else { panic!("not a kernel") };
            let start = format!("void {}(", program.steps[0].entry);
            let signature = header.split_once(&start).unwrap().1.split_once(')').unwrap().0;
            assert_eq!(signature.split(',').count(), program.steps[0].args.len(), "{kind}");
        }
        assert!(lower(&Candidate::new(FAMILY), &matrix, &problem, true).is_err());
        let solve = r#"{"op":"sptrsv","rhs":2,"dtype":"f64","triangle":"lower","diagonal":"unit"}"#;
        let solve: Problem = serde_json::from_str(solve).unwrap();
        let square = Csr::new(300, 300, vec![0; 301], vec![], vec![]).unwrap();
        let of =
            |kind| lower(&Candidate::new(FAMILY).with_text("kind", kind), &square, &solve, true);
        let Program::Cuda(program) = of("wrong").unwrap().program else { panic!("not a kernel") };
        // Two words per element.
        assert_eq!(program.steps[0].args, [Arg::C, Arg::U64(300 * 2 * 2)]);
        assert!(of("slow").unwrap_err().0.contains("cannot solve"));
    }
}
