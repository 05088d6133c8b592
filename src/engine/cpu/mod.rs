//! The CPU engine: runs host programs on the host's threads, timed with the monotonic clock.

mod buffer;
mod check;
mod dispatch;
mod element;
mod host;
mod kernel;
mod load;
mod mkl;
mod operand;
mod plain;
mod plan;
mod program;
mod schedule;
mod simd;
mod solve;
mod solve_check;
mod solve_load;
mod solve_operand;
mod solve_schedule;
mod thread_team;
mod untuned;
mod work;

#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod solve_tests;
#[cfg(test)]
mod tests;

pub use dispatch::{SUPPORTED_M1, SUPPORTED_N1, SUPPORTED_ROW_N1};
pub use mkl::Mkl;
pub use plan::{DenseMut, DenseRef, HostPlan, NewValues, plan_threads};
pub use untuned::{default_product, default_solve};

use super::{Check, Engine, EngineError, Operands};
use crate::domain::candidate::VENDOR;
use crate::domain::clock::lead;
use crate::domain::device::LibraryFile;
use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Compiled, HostProgram, Program, Recipe};
use crate::domain::{Clock, Device, DeviceClass, Digest, L2Policy, Timing};
use buffer::Buffer;
use rayon::prelude::*;
use schedule::Threads;
use simd::Isa;
use std::path::PathBuf;
use std::time::Instant;
use work::{Prepared, Work};

/// The class of this host with as many threads as plans have; measures nothing.
pub fn device_class() -> Result<DeviceClass, EngineError> {
    plan_threads().map(host::device_class)
}

/// Warm-up rounds before paired rounds are recorded.
const PAIR_WARMUPS: u32 = 2;

/// The host CPU as a device.
pub struct CpuEngine {
    device: Device,
    isa: Isa,
    threads: Threads,
    loaded: Option<Work>,
    /// Buffer that is swept before each sample under the cold policy; allocated on first use.
    sweep: Option<Buffer>,
}

impl CpuEngine {
    /// Starts the threads, reads the properties of the host and measures its copy bandwidth and hop latency (under half
    /// a second).
    ///
    /// `libraries` are the configured places of vendors' libraries. MKL is the vendor if it is found.
    pub fn open(libraries: &[PathBuf]) -> Result<Self, EngineError> {
        let threads = Self::threads()?;
        let copy_gbps = threads.install(host::copy_bandwidth);
        let hop_ns = host::hop_ns(threads.count());
        let mut engine = Self::with(Isa::best(), threads, copy_gbps);
        engine.device.hop_ns = hop_ns;
        if let Ok(mkl) = &Mkl::open(libraries).found {
            engine.use_mkl(mkl);
        }
        Ok(engine)
    }

    /// Makes MKL the vendor of the device.
    fn use_mkl(&mut self, mkl: &Mkl) {
        let vendor = format!("MKL {}", mkl.version);
        // A closed-source library is identified by its name and version.
        self.device.kernels.insert(VENDOR.to_owned(), Digest::of(vendor.as_bytes()));
        self.device.vendor = Some(vendor);
        self.device.vendor_file = Some(LibraryFile {
            version: format!("{}, {}", mkl.version, mkl.layer.name()),
            path: mkl.library.path().display().to_string(),
        });
    }

    fn threads() -> Result<Threads, EngineError> {
        Threads::start().map_err(|error| {
            EngineError::Refused(format!("the engine's threads could not be started: {error}"))
        })
    }

    fn with(isa: Isa, threads: Threads, copy_gbps: f64) -> Self {
        let mut device = host::describe(isa, threads.count(), copy_gbps);
        let texts = [
            ("row_panel", kernel_digest()),
            ("row_split", kernel_digest()),
            ("serial", solve_digest()),
            ("levels", solve_digest()),
            ("merged", solve_digest()),
            (VENDOR, plain::digest()),
        ];
        device.kernels = texts.map(|(family, digest)| (family.to_owned(), digest)).into();
        Self { device, isa, threads, loaded: None, sweep: None }
    }

    /// The prepared recipe, and the session to run it in.
    fn ready(&mut self, recipe: &Recipe) -> Result<(Prepared, Session<'_>), EngineError> {
        let Some(loaded) = &mut self.loaded else {
            return Err(EngineError::Refused("no matrix is loaded".to_owned()));
        };
        let prepared = loaded.prepare(recipe, self.isa, &self.threads)?;
        if loaded.l2_policy == L2Policy::Cold && self.sweep.is_none() {
            let len = self.device.l2_bytes as usize / 2;
            let no_memory = || EngineError::OutOfMemory("no room to sweep the cache".to_owned());
            self.sweep = Some(Buffer::zeroed(len).ok_or_else(no_memory)?);
        }
        let sweep = self.sweep.as_mut().filter(|_| loaded.l2_policy == L2Policy::Cold);
        Ok((prepared, Session { loaded, sweep, threads: &self.threads }))
    }
}

/// The parts of the engine that are needed for a call.
struct Session<'a> {
    loaded: &'a mut Work,
    sweep: Option<&'a mut Buffer>,
    threads: &'a Threads,
}

impl Session<'_> {
    fn run(&mut self, prepared: &Prepared) -> Result<(), EngineError> {
        self.loaded.run(prepared, self.threads)
    }

    /// The clock that can be read here, if this one is asked for.
    fn clock(&self, asked: Clock) -> Clock {
        asked.under(self.loaded.l2_policy)
    }

    /// The calls of one sample by this clock; for several, one call is timed alone to tell.
    fn calls(&mut self, prepared: &Prepared, clock: Clock) -> Result<u32, EngineError> {
        match clock {
            Clock::Isolated => Ok(1),
            Clock::Pipelined => Ok(clock.calls(self.sample(prepared, 1)?)),
        }
    }

    /// Times so many calls in a row, after sweeping the cache if the policy requires it; returns microseconds per call. Where
    /// there are several, one before them is not counted.
    fn sample(&mut self, prepared: &Prepared, calls: u32) -> Result<f64, EngineError> {
        if let Some(sweep) = &mut self.sweep {
            // Writing twice the size of the last-level cache evicts operands and output.
            let lines = sweep.as_mut_slice();
            let touch = |chunk: &mut [f32]| chunk.iter_mut().step_by(16).for_each(|x| *x += 1.0);
            self.threads.install(|| lines.par_chunks_mut(1 << 16).for_each(touch));
        }
        for _ in 0..lead(calls) {
            self.run(prepared)?;
        }
        let start = Instant::now();
        for _ in 0..calls {
            self.run(prepared)?;
        }
        let taken = start.elapsed();
        if prepared.lingers() {
            Mkl::rest();
        }
        Ok(taken.as_nanos() as f64 / 1e3 / f64::from(calls))
    }
}

impl Engine for CpuEngine {
    fn device(&self) -> &Device {
        &self.device
    }

    fn load(&mut self, operands: Operands) -> Result<(), EngineError> {
        // Free the old problem first, so that two matrices are never in memory at the same time.
        self.loaded = None;
        self.loaded = Some(Work::of(operands, self.isa, &self.threads)?);
        Ok(())
    }

    /// Does nothing: the kernels are compiled into this binary, and rows are scheduled when a recipe is compiled.
    fn prepare(&mut self, _recipes: &[Recipe]) {}

    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError> {
        self.ready(recipe)?;
        // Distributing the rows counts as preprocessing for this matrix, not as compiling.
        Ok(Compiled { cached: true, ..Compiled::default() })
    }

    fn verify(&mut self, recipe: &Recipe, _give_up_us: Option<f64>) -> Result<Check, EngineError> {
        let (prepared, session) = self.ready(recipe)?;
        let checked = session.loaded.verify(&prepared, session.threads);
        if prepared.lingers() {
            Mkl::rest();
        }
        checked
    }

    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError> {
        let (prepared, mut session) = self.ready(recipe)?;
        let began = Instant::now();
        let first = session.sample(&prepared, 1)?;
        let clock = session.clock(effort.clock);
        let alone = |cut| {
            let timing = summary(vec![first], Clock::Isolated)?;
            // A sample of a long call is that call alone by either clock.
            let clock = if timing.tells(clock) { clock } else { Clock::Isolated };
            Ok(timing.by(clock).cut_if(cut))
        };
        if effort.gives_up_at(first) {
            return alone(false);
        }
        // No call can be ended, so what would end too late is not begun.
        if !effort.fits(began, first * f64::from(effort.warmups.max(1))) {
            return alone(true);
        }
        for _ in 1..effort.warmups {
            session.run(&prepared)?;
        }
        let calls = session.calls(&prepared, clock)?;
        let (mut samples, mut spent_us, mut last, mut cut) = (Vec::new(), 0.0, first, false);
        let most = effort.max_samples.max(effort.min_samples).max(1) as usize;
        while samples.len() < most {
            let enough = samples.len() >= effort.min_samples.max(1) as usize;
            if enough && spent_us >= effort.budget_ms * 1e3 {
                break;
            }
            if !effort.fits(began, last * f64::from(calls + lead(calls))) {
                cut = true;
                break;
            }
            last = session.sample(&prepared, calls)?;
            spent_us += last * f64::from(calls + lead(calls));
            samples.push(last);
        }
        if samples.is_empty() {
            return alone(true);
        }
        summary(samples, clock).map(|timing| timing.cut_if(cut))
    }

    fn pair(
        &mut self,
        recipes: &[Recipe],
        rounds: u32,
        clock: Clock,
        _give_up_us: Option<f64>,
    ) -> Result<Vec<Timing>, EngineError> {
        let mut prepared = Vec::with_capacity(recipes.len());
        for recipe in recipes {
            let (ready, mut session) = self.ready(recipe)?;
            for _ in 0..PAIR_WARMUPS {
                session.run(&ready)?;
            }
            let calls = session.calls(&ready, session.clock(clock))?;
            prepared.push((ready, calls, Vec::with_capacity(rounds as usize)));
        }
        let Some(recipe) = recipes.first() else { return Ok(Vec::new()) };
        let (_, mut session) = self.ready(recipe)?;
        for _ in 0..rounds.max(1) {
            for (ready, calls, samples) in &mut prepared {
                samples.push(session.sample(ready, *calls)?);
            }
        }
        let clock = session.clock(clock);
        prepared.into_iter().map(|(.., samples)| summary(samples, clock)).collect()
    }

    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError> {
        let (isa, vendor) = (self.isa, self.device.kernels.get(VENDOR).copied());
        let (prepared, session) = self.ready(recipe)?;
        let dtype = session.loaded.dtype();
        let solve_isa = format!("{dtype}, {}", solve::instructions(isa));
        let isa = format!("{dtype}, {}", isa.name());
        let (name, digest) = match &recipe.program {
            Program::Host(HostProgram::RowPanel { m1, n1, stores }) => {
                let stores = stores.name();
                (format!("row_panel<m1={m1}, n1={n1}, {stores}, {isa}>"), kernel_digest())
            }
            Program::Host(HostProgram::RowSplit { n1, ahead, stores, .. }) => {
                let stores = stores.name();
                (format!("row_split<n1={n1}, ahead={ahead}, {stores}, {isa}>"), kernel_digest())
            }
            Program::Host(HostProgram::SolveSerial) => {
                (format!("solve_serial<{solve_isa}>"), solve_digest())
            }
            Program::Host(HostProgram::SolveLevels { threads, narrow }) => {
                let shape = format!("threads={threads}, narrow={narrow}, {solve_isa}");
                (format!("solve_levels<{shape}>"), solve_digest())
            }
            Program::Host(HostProgram::SolveMerged { threads, rows }) => {
                let shape = format!("threads={threads}, rows={rows}, {solve_isa}");
                (format!("solve_merged<{shape}>"), solve_digest())
            }
            Program::Vendor { algorithm } => {
                (algorithm.clone(), vendor.unwrap_or_else(plain::digest))
            }
            Program::Cuda(_) => {
                return Err(EngineError::Refused(
                    "a CUDA kernel cannot run on the host CPU".to_owned(),
                ));
            }
        };
        let mut arguments: Vec<String> =
            session.loaded.arguments().iter().map(|&name| name.to_owned()).collect();
        arguments.extend(recipe.arrays.iter().map(|array| array.name.clone()));
        let mut exported = Exported::routine(&format!("cpu::{name}"), arguments);
        exported.steps[0].grid[0] = prepared.jobs() as u32;
        Ok(Exported { kernel_digest: Some(digest), ..exported })
    }
}

/// The digest of the sources of a program's kernel.
pub fn program_digest(program: &HostProgram) -> Digest {
    match program {
        HostProgram::RowPanel { .. } | HostProgram::RowSplit { .. } => kernel_digest(),
        HostProgram::SolveSerial
        | HostProgram::SolveLevels { .. }
        | HostProgram::SolveMerged { .. } => solve_digest(),
    }
}

/// The name of this host's processor, as [`Device::name`](crate::domain::Device) states it.
pub fn host_name() -> String {
    host::processor_name()
}

/// The digest of all source files that determine the results and the speed of the SpMM kernels.
pub fn kernel_digest() -> Digest {
    let texts = [
        include_str!("kernel.rs"),
        include_str!("element.rs"),
        include_str!("simd.rs"),
        include_str!("dispatch.rs"),
        include_str!("program.rs"),
        include_str!("schedule.rs"),
        include_str!("operand.rs"),
    ];
    Digest::of(texts.join("\0").as_bytes())
}

/// The same for the triangular solves.
pub fn solve_digest() -> Digest {
    let texts = [
        include_str!("solve.rs"),
        include_str!("element.rs"),
        include_str!("solve_schedule.rs"),
        include_str!("solve_operand.rs"),
        include_str!("thread_team.rs"),
        include_str!("schedule.rs"),
    ];
    Digest::of(texts.join("\0").as_bytes())
}

fn summary(samples: Vec<f64>, clock: Clock) -> Result<Timing, EngineError> {
    Timing::of(samples, 0)
        .map(|timing| timing.by(clock))
        .ok_or_else(|| EngineError::Refused("the requested number of samples is zero".to_owned()))
}
