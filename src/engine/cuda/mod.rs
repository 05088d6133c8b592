//! The CUDA engine: recipes compiled by NVRTC, run, verified and timed on one NVIDIA GPU, beside cuSPARSE.

mod baseline;
pub mod cache;
pub mod compile;
mod context;
mod cusparse;
mod device;
mod driver;
mod hop;
mod launch;
pub mod libraries;
mod nvml;
pub mod nvrtc;
mod open;
mod operands;
mod own;
mod places;
pub mod probe;
mod residual;
pub mod source;
mod spmm;
mod spsv;
mod symbols;
mod timer;
mod verify;

pub use open::Options;
pub use probe::{DeviceReport, Probe, devices, probe};

use self::baseline::Routine;
use self::compile::Compiler;
use self::context::Context;
use self::cusparse::Handle;
use self::launch::{Kernel, Launch, refused};
use self::operands::{Loaded, Room};
use self::own::OwnKernels;
use self::timer::{Call, Timer};
use super::{Check, Engine, EngineError, Operands};
use crate::domain::plan::LaunchStep;
use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Arg, Compiled, CudaProgram, Program, Recipe, Step};
use crate::domain::{Device, Digest, Timing};
use base64::Engine as _;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Modules kept before a new load unloads them all. They take device memory, and a later load seldom needs them.
const MOST_KERNELS: usize = 512;

/// The engine on one device.
pub struct CudaEngine {
    device: Device,
    loaded: Option<Loaded>,
    /// Vendor algorithms set up on the loaded operands.
    routines: HashMap<String, Arc<Routine>>,
    kernels: HashMap<(Digest, String), Arc<Kernel>>,
    timer: Timer,
    own: OwnKernels,
    cusparse: Vendor,
    compiler: Compiler,
    reference_bytes: Option<u64>,
    context: Arc<Context>,
}

/// cuSPARSE's handle, or why there is none.
type Vendor = Result<Arc<Handle>, String>;

/// Names and texts of the engine's own programs, for tests that compile every kernel.
pub fn kernel_texts() -> Vec<(String, String)> {
    vec![("engine".to_owned(), own::SOURCE.to_owned())]
}

impl CudaEngine {
    fn loaded(&self) -> Result<&Loaded, EngineError> {
        self.loaded.as_ref().ok_or_else(nothing_loaded)
    }

    /// The program's kernel, compiled and loaded if it is not yet.
    fn kernel(&mut self, program: &CudaProgram) -> Result<Arc<Kernel>, EngineError> {
        let job = self
            .compiler
            .job(&program.source, program.max_registers)
            .map_err(|error| EngineError::Compile(error.to_string()))?;
        let key = (job.digest, program.steps[0].entry.clone());
        if let Some(kernel) = self.kernels.get(&key) {
            return Ok(kernel.clone());
        }
        let done = self.compiler.wait(&job).map_err(EngineError::Compile)?;
        let kernel = Arc::new(Kernel::load(&self.context, done, &program.steps[0].entry)?);
        self.kernels.insert(key, kernel.clone());
        Ok(kernel)
    }

    /// Calls of the recipes on the loaded operands, with everything they need on the device at the same time.
    fn calls(&mut self, recipes: &[Recipe]) -> Result<Vec<(Call, Compiled)>, EngineError> {
        self.loaded()?;
        // What can fail without memory first, then workspaces (which push out arrays), then arrays, then pointers.
        let mut ready = Vec::with_capacity(recipes.len());
        for recipe in recipes {
            ready.push(match &recipe.program {
                Program::Cuda(program) => {
                    let started = Instant::now();
                    let kernel = self.kernel(program)?;
                    let compile_ms = started.elapsed().as_secs_f64() * 1e3;
                    let resources = kernel.resources(&self.context, &program.steps[0])?;
                    let cached = kernel.done.cached;
                    let compiled = Compiled { resources: Some(resources), cached, compile_ms };
                    Ready::Kernel(program, kernel, compiled)
                }
                Program::Vendor { algorithm } => Ready::Vendor(self.routine(algorithm)?),
                Program::Host(_) => return Err(host_program()),
            });
        }
        let context = &self.context;
        let loaded = self.loaded.as_mut().ok_or_else(nothing_loaded)?;
        loaded.upload_arrays(context, recipes)?;
        let calls = recipes.iter().zip(ready).map(|(recipe, ready)| match ready {
            Ready::Kernel(program, kernel, compiled) => {
                let launch = Launch::of(
                    context,
                    &kernel,
                    &program.steps[0],
                    program.zero_output,
                    recipe,
                    loaded,
                )?;
                Ok((Call::Kernel(launch), compiled))
            }
            Ready::Vendor(routine) => Ok((Call::Vendor(routine), Compiled::default())),
        });
        calls.collect()
    }

    fn call(&mut self, recipe: &Recipe) -> Result<(Call, Compiled), EngineError> {
        // One recipe in, one call out.
        self.calls(std::slice::from_ref(recipe))?.pop().ok_or_else(nothing_loaded)
    }

    fn routine(&mut self, algorithm: &str) -> Result<Arc<Routine>, EngineError> {
        if let Some(routine) = self.routines.get(algorithm) {
            return Ok(routine.clone());
        }
        let handle = self.cusparse.as_ref().map_err(|reason| refused(reason.clone()))?;
        let loaded = self.loaded.as_mut().ok_or_else(nothing_loaded)?;
        let routine = match Routine::new(&self.context, handle, loaded, algorithm) {
            Err(EngineError::OutOfMemory(_)) => {
                loaded.drop_arrays();
                Routine::new(&self.context, handle, loaded, algorithm)
            }
            result => result,
        };
        let routine = Arc::new(routine?);
        self.routines.insert(algorithm.to_owned(), routine.clone());
        Ok(routine)
    }
}

impl Engine for CudaEngine {
    fn device(&self) -> &Device {
        &self.device
    }

    fn load(&mut self, operands: Operands) -> Result<(), EngineError> {
        self.context.bind()?;
        self.compiler.clear_queue();
        // Before the upload, so that old and new need not fit together.
        self.routines.clear();
        self.loaded = None;
        if self.kernels.len() > MOST_KERNELS {
            self.kernels.clear();
        }
        let room = Room { reference_bytes: self.reference_bytes, vendor: self.cusparse.is_ok() };
        self.loaded = Some(Loaded::upload(&self.context, operands, &room)?);
        Ok(())
    }

    fn prepare(&mut self, recipes: &[Recipe]) {
        let jobs = recipes.iter().filter_map(|recipe| match &recipe.program {
            // A text that cannot be assembled says so at `compile`.
            Program::Cuda(program) => {
                self.compiler.job(&program.source, program.max_registers).ok()
            }
            Program::Host(_) | Program::Vendor { .. } => None,
        });
        self.compiler.prepare(jobs.collect());
    }

    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError> {
        self.context.bind()?;
        self.call(recipe).map(|(_, compiled)| compiled)
    }

    fn verify(&mut self, recipe: &Recipe, _give_up_us: Option<f64>) -> Result<Check, EngineError> {
        self.context.bind()?;
        let (call, _) = self.call(recipe)?;
        verify::verify(&self.context, &self.own, self.loaded()?, &call)
    }

    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError> {
        self.context.bind()?;
        let (call, _) = self.call(recipe)?;
        let policy = self.loaded()?.l2_policy;
        self.timer.time(&call, effort, policy)
    }

    fn pair(&mut self, recipes: &[Recipe], rounds: u32) -> Result<Vec<Timing>, EngineError> {
        self.context.bind()?;
        let calls: Vec<Call> = self.calls(recipes)?.into_iter().map(|(call, _)| call).collect();
        let policy = self.loaded()?.l2_policy;
        self.timer.pair(&calls, rounds, policy)
    }

    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError> {
        self.context.bind()?;
        let program = match &recipe.program {
            Program::Cuda(program) => program,
            Program::Vendor { algorithm } => {
                return Ok(Exported::routine(Routine::name(algorithm), vec![algorithm.clone()]));
            }
            Program::Host(_) => return Err(host_program()),
        };
        let kernel = self.kernel(program)?;
        let unassembled = |error: source::SourceError| EngineError::Compile(error.to_string());
        let cubin = &kernel.done.binary.cubin;
        Ok(Exported {
            steps: program.steps.iter().map(|step| launch_step(step, recipe)).collect(),
            scratch: recipe.scratch.clone(),
            update_ms: recipe.update_ms,
            source: Some(source::inlined(&program.source).map_err(unassembled)?),
            cubin: Some(base64::engine::general_purpose::STANDARD.encode(cubin)),
            kernel_digest: Some(source::closure_digest(&program.source).map_err(unassembled)?),
            ..Exported::default()
        })
    }
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        // The fields free device memory, perhaps on another thread than the last call. A lost context refuses this and
        // the frees alike; its memory goes with the process.
        if let Err(error) = self.context.bind() {
            tracing::debug!(%error, "the context was lost before the engine closed");
        }
    }
}

/// A recipe whose code is on the device.
enum Ready<'a> {
    Kernel(&'a CudaProgram, Arc<Kernel>, Compiled),
    Vendor(Arc<Routine>),
}

fn nothing_loaded() -> EngineError {
    refused("nothing is loaded".to_owned())
}

fn host_program() -> EngineError {
    refused("a host program does not run on a CUDA device".to_owned())
}

/// A launch as a plan keeps it.
fn launch_step(step: &Step, recipe: &Recipe) -> LaunchStep {
    LaunchStep {
        entry: step.entry.clone(),
        grid: step.grid,
        block: step.block,
        cluster: step.cluster,
        shared_bytes: step.shared_bytes,
        arguments: step.args.iter().map(|arg| argument_name(arg, recipe)).collect(),
    }
}

/// How a plan names an argument: the operand, `array:NAME`, or the constant itself.
fn argument_name(arg: &Arg, recipe: &Recipe) -> String {
    match *arg {
        Arg::RowPtr => "row_ptr".to_owned(),
        Arg::ColIdx => "col_idx".to_owned(),
        Arg::Values => "values".to_owned(),
        Arg::B => "b".to_owned(),
        Arg::C => "c".to_owned(),
        Arg::Array(index) => {
            format!("array:{}", recipe.arrays.get(index).map_or("?", |array| &array.name))
        }
        Arg::Diagonal => "diagonal".to_owned(),
        Arg::Scratch(index) => format!("scratch:{index}"),
        Arg::Turn { even, odd } => format!("turn:{even},{odd}"),
        Arg::Epoch => "epoch".to_owned(),
        Arg::DeadlineNs => "deadline_ns".to_owned(),
        Arg::Status => "status".to_owned(),
        Arg::U32(value) => format!("u32:{value}"),
        Arg::U64(value) => format!("u64:{value}"),
        Arg::F32(value) => format!("f32:{value}"),
    }
}
