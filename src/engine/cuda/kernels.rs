//! Programs that are loaded on the device: each cubin once, with those of its kernels that were looked up so far.

use super::compile::{Compiler, Done};
use super::context::{Context, Module};
use super::launch::{LoadedKernel, refused};
use crate::domain::Digest;
use crate::domain::recipe::CudaProgram;
use crate::engine::EngineError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Number of loaded modules above which all are unloaded. Modules take device memory, and a later load seldom needs them.
const MOST_MODULES: usize = 512;

#[derive(Default)]
pub(super) struct LoadedPrograms {
    modules: HashMap<Digest, Code>,
}

struct Code {
    module: Arc<Module>,
    done: Done,
    kernels: HashMap<String, Arc<LoadedKernel>>,
}

/// The kernels of a program's steps, in order.
pub(super) struct ProgramKernels {
    /// Of the program's text and how it was compiled.
    pub(super) digest: Digest,
    pub(super) done: Done,
    pub(super) kernels: Vec<Arc<LoadedKernel>>,
}

impl LoadedPrograms {
    /// The kernels of a program, compiled and loaded if necessary.
    pub(super) fn of(
        &mut self,
        context: &Arc<Context>,
        compiler: &Compiler,
        program: &CudaProgram,
    ) -> Result<ProgramKernels, EngineError> {
        if program.steps.is_empty() {
            return Err(refused("a program without a single step".to_owned()));
        }
        let job = compiler
            .job(&program.source, program.max_registers)
            .map_err(|error| EngineError::Compile(error.to_string()))?;
        let code = match self.modules.entry(job.digest) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => {
                let done = compiler.wait(&job).map_err(EngineError::Compile)?;
                let module = Arc::new(Module::load(context, &done.binary.cubin)?);
                place.insert(Code { module, done, kernels: HashMap::new() })
            }
        };
        let mut kernels = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            if let Some(kernel) = code.kernels.get(&step.entry) {
                kernels.push(kernel.clone());
                continue;
            }
            let kernel = Arc::new(LoadedKernel::of(context, &code.module, &step.entry)?);
            code.kernels.insert(step.entry.clone(), kernel.clone());
            kernels.push(kernel);
        }
        Ok(ProgramKernels { digest: job.digest, done: code.done.clone(), kernels })
    }

    /// Unloads all modules if there are too many.
    pub(super) fn trim(&mut self) {
        if self.modules.len() > MOST_MODULES {
            self.modules.clear();
        }
    }
}
