//! The CUDA engine: recipes compiled by NVRTC, run, verified and timed on one NVIDIA GPU, beside cuSPARSE.

mod baseline;
mod batches;
mod bsr;
pub mod cache;
pub mod compile;
mod context;
mod cublas;
mod cusparse;
mod device;
mod driver;
mod export;
mod gemm;
mod graph;
mod hop;
mod kernels;
mod launch;
mod limits;
mod nvml;
pub mod nvrtc;
mod open;
mod operands;
mod overtaking;
mod own;
mod plan;
pub mod probe;
mod residual;
mod scratch;
pub mod source;
mod spmm;
mod spmv;
mod spsv;
mod steps;
mod timer;
mod update;
mod vendors;
mod verify;

pub use export::launch_steps;
pub use open::Options;
pub use plan::{CudaLink, CudaPlan, Replacement};
pub use probe::{DeviceReport, Probe, devices, probe};

use self::baseline::{Factors, Routine};
use self::compile::Compiler;
use self::context::Context;
use self::kernels::{LoadedPrograms, ProgramKernels};
use self::launch::refused;
use self::operands::{Loaded, Room};
use self::own::OwnKernels;
use self::scratch::{Memory, Owner, Scratches};
use self::steps::{CallSettings, Deadline, Steps};
use self::timer::{Call, Timer};
use self::vendors::Vendors;
use super::{Check, Engine, EngineError, Operands};
use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Compiled, CudaProgram, Program, Recipe};
use crate::domain::{Clock, Device, Dtype, Resources, Timing};
use std::sync::Arc;
use std::time::Instant;

/// The engine on one device.
pub struct CudaEngine {
    device: Device,
    loaded: Option<Loaded>,
    kernels: LoadedPrograms,
    scratches: Scratches,
    timer: Timer,
    own: OwnKernels,
    vendors: Vendors,
    compiler: Compiler,
    reference_bytes: Option<u64>,
    context: Arc<Context>,
}

/// Names and texts of the engine's own programs, for tests that compile every kernel.
pub fn kernel_texts() -> Vec<(String, String)> {
    let updates = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64];
    let updates = updates.map(|dtype| (format!("update {dtype}"), update::source(dtype)));
    std::iter::once(("engine".to_owned(), own::SOURCE.to_owned())).chain(updates).collect()
}

impl CudaEngine {
    /// The bytes of the output after the last call, for tests that compare calls bit by bit.
    pub fn output(&self) -> Result<Vec<u32>, EngineError> {
        self.context.bind()?;
        let loaded = self.loaded()?;
        let mut words = vec![0u32; loaded.words()];
        loaded.c.read(0, &mut words)?;
        Ok(words)
    }

    fn loaded(&self) -> Result<&Loaded, EngineError> {
        self.loaded.as_ref().ok_or_else(nothing_loaded)
    }

    /// A call as it is timed.
    fn usual(&self, deadline: Deadline) -> Result<CallSettings, EngineError> {
        Ok(CallSettings { deadline, factors: self.loaded()?.factors() })
    }

    /// Calls of the recipes on the loaded operands, with everything they need on the device at the same time.
    fn calls(
        &mut self,
        recipes: &[Recipe],
        settings: CallSettings,
    ) -> Result<Vec<(Call, Compiled)>, EngineError> {
        self.loaded()?;
        // First what can fail without memory, then workspaces and scratch (which evict arrays), then arrays, then pointers.
        let mut ready = Vec::with_capacity(recipes.len());
        for recipe in recipes {
            ready.push(match &recipe.program {
                Program::Cuda(program) => self.ready(recipe, program)?,
                Program::Vendor { algorithm } => {
                    let loaded = self.loaded.as_mut().ok_or_else(nothing_loaded)?;
                    let (context, own) = (&self.context, &self.own);
                    let (routine, compiled) =
                        self.vendors.routine(context, own, loaded, algorithm)?;
                    Ready::Vendor(routine, compiled)
                }
                Program::Host(_) => return Err(host_program()),
            });
        }
        let mut memories = self.memories(&ready)?.into_iter();
        let context = &self.context;
        let loaded = self.loaded.as_mut().ok_or_else(nothing_loaded)?;
        loaded.upload_arrays(context, recipes)?;
        let calls = ready.into_iter().map(|ready| match ready {
            Ready::Kernels(owner, own, compiled) => {
                let memory = memories.next().ok_or_else(nothing_loaded)?;
                let steps = Steps::of(context, &owner, &own.kernels, memory, loaded, settings)?;
                Ok((Call::Steps(steps), compiled))
            }
            Ready::Vendor(routine, compiled) => {
                let factors = Factors::of(settings.factors, loaded.dtype);
                Ok((Call::Vendor(routine, factors), compiled))
            }
        });
        let calls = calls.collect::<Result<_, EngineError>>()?;
        // So that the caller's clock includes filling scratch and uploading graphs.
        context.synchronize()?;
        Ok(calls)
    }

    fn call(
        &mut self,
        recipe: &Recipe,
        settings: CallSettings,
    ) -> Result<(Call, Compiled), EngineError> {
        // One recipe gives one call.
        self.calls(std::slice::from_ref(recipe), settings)?.pop().ok_or_else(nothing_loaded)
    }

    /// The program's kernels, compiled and loaded, and the device resources that they need.
    fn ready<'a>(
        &mut self,
        recipe: &'a Recipe,
        program: &'a CudaProgram,
    ) -> Result<Ready<'a>, EngineError> {
        let started = Instant::now();
        let own = self.kernels.of(&self.context, &self.compiler, program)?;
        let compile_ms = started.elapsed().as_secs_f64() * 1e3;
        let mut most: Option<Resources> = None;
        for (kernel, step) in own.kernels.iter().zip(&program.steps) {
            let resources = kernel.resources(&self.context, step)?;
            most = Some(most.map_or(resources, |most| most.combined(resources)));
        }
        let compiled = Compiled {
            resources: most,
            cached: own.done.cached,
            compile_ms,
            ..Compiled::default()
        };
        let owner = Owner { recipe, program, digest: own.digest };
        Ok(Ready::Kernels(owner, own, compiled))
    }

    /// The memory of each program, in order.
    fn memories(&mut self, ready: &[Ready<'_>]) -> Result<Vec<Arc<Memory>>, EngineError> {
        let owners: Vec<&Owner<'_>> = ready
            .iter()
            .filter_map(|ready| match ready {
                Ready::Kernels(owner, ..) => Some(owner),
                Ready::Vendor(..) => None,
            })
            .collect();
        match self.scratches.take(&self.context, &owners) {
            Err(EngineError::OutOfMemory(_)) => {
                self.loaded.as_mut().ok_or_else(nothing_loaded)?.drop_arrays();
                self.scratches.take(&self.context, &owners)
            }
            result => result,
        }
    }
}

impl Engine for CudaEngine {
    fn device(&self) -> &Device {
        &self.device
    }

    fn load(&mut self, operands: Operands) -> Result<(), EngineError> {
        self.context.bind()?;
        self.compiler.clear_queue();
        // Before the upload, so that old and new operands need not fit together.
        self.vendors.clear();
        self.loaded = None;
        self.scratches.clear();
        self.kernels.trim();
        let room =
            Room { reference_bytes: self.reference_bytes, vendor: self.vendors.has_sparse() };
        self.loaded = Some(Loaded::upload(&self.context, operands, &room)?);
        Ok(())
    }

    fn prepare(&mut self, recipes: &[Recipe]) {
        let jobs = recipes.iter().filter_map(|recipe| match &recipe.program {
            // A text that cannot be assembled is reported by `compile`.
            Program::Cuda(program) => {
                self.compiler.job(&program.source, program.max_registers).ok()
            }
            Program::Host(_) | Program::Vendor { .. } => None,
        });
        self.compiler.prepare(jobs.collect());
    }

    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError> {
        self.context.bind()?;
        let (started, before) = (Instant::now(), self.loaded()?.uploading_ms());
        let (_, mut compiled) = self.call(recipe, self.usual(Deadline::verifying(None))?)?;
        if let Program::Cuda(_) = recipe.program {
            let took = started.elapsed().as_secs_f64() * 1e3 - compiled.compile_ms;
            let loaded = self.loaded()?;
            // The upload time of this call is replaced by that of all its arrays, whichever recipe uploaded them.
            let beside = took - (loaded.uploading_ms() - before);
            compiled.prepare_ms = Some(beside.max(0.0) + loaded.arrays_ms(recipe));
        }
        Ok(compiled)
    }

    fn verify(&mut self, recipe: &Recipe, give_up_us: Option<f64>) -> Result<Check, EngineError> {
        self.context.bind()?;
        let usual = self.usual(Deadline::verifying(give_up_us))?;
        let (call, _) = self.call(recipe, usual)?;
        let bare = match self.loaded()?.bare_factors() {
            Some(factors) => Some(self.call(recipe, CallSettings { factors, ..usual })?.0),
            None => None,
        };
        // As on the very first call: a result must not depend on what an earlier call left behind.
        call.refill()?;
        let calls =
            verify::Calls { call: &call, bare: bare.as_ref(), approximate: recipe.approximate };
        verify::verify(&self.context, &self.own, self.loaded()?, &calls)
    }

    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError> {
        self.context.bind()?;
        let (call, _) = self.call(recipe, self.usual(Deadline::timing(effort.give_up_us))?)?;
        let policy = self.loaded()?.l2_policy;
        self.timer.time(&call, effort, policy)
    }

    fn pair(
        &mut self,
        recipes: &[Recipe],
        rounds: u32,
        clock: Clock,
        give_up_us: Option<f64>,
    ) -> Result<Vec<Timing>, EngineError> {
        self.context.bind()?;
        let calls = self.calls(recipes, self.usual(Deadline::timing(give_up_us))?)?;
        let calls: Vec<Call> = calls.into_iter().map(|(call, _)| call).collect();
        let policy = self.loaded()?.l2_policy;
        self.timer.pair(&calls, rounds, clock, policy)
    }

    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError> {
        self.context.bind()?;
        let program = match &recipe.program {
            Program::Cuda(program) => program,
            Program::Vendor { algorithm } => {
                let routine = Exported::routine(Routine::name(algorithm), vec![algorithm.clone()]);
                return Ok(Exported { update_ms: self.vendors.update_ms(algorithm), ..routine });
            }
            Program::Host(_) => return Err(host_program()),
        };
        let own = self.kernels.of(&self.context, &self.compiler, program)?;
        export::export(recipe, program, &own.done, &self.compiler, self.loaded()?.dtype)
    }
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        // Dropping the fields frees device memory, perhaps on another thread than that of the last call. A lost context
        // refuses this call and the frees alike; its memory is released with the process.
        if let Err(error) = self.context.bind() {
            tracing::debug!(%error, "the context was lost before the engine closed");
        }
    }
}

/// A recipe whose code is on the device.
enum Ready<'a> {
    Kernels(Owner<'a>, ProgramKernels, Compiled),
    Vendor(Arc<Routine>, Compiled),
}

fn nothing_loaded() -> EngineError {
    refused("nothing is loaded".to_owned())
}

fn host_program() -> EngineError {
    refused("a host program does not run on a CUDA device".to_owned())
}
