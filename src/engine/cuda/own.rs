//! The engine's own kernels: the comparison with the reference, the gate and the sweep.

use super::compile::Compiler;
use super::context::Context;
use super::launch::Kernel;
use crate::engine::EngineError;
use std::sync::Arc;

/// One program that instantiates them all.
pub(super) const SOURCE: &str = r#"#include "engine/verify.cuh"
#include "engine/timing.cuh"

extern "C" __global__ void __launch_bounds__(engine::kVerifyThreads)
engine_verify(const float* c, const double* value, const float* scale, unsigned long long first,
              unsigned long long count, unsigned poison, engine::Partial* partials) {
  engine::Verify(c, value, scale, first, count, poison, partials);
}

extern "C" __global__ void engine_gate(const unsigned* open, unsigned long long most_ns) {
  engine::Gate(open, most_ns);
}

extern "C" __global__ void engine_sweep(const uint4* words, unsigned long long count, unsigned* sink) {
  engine::Sweep(words, count, sink);
}
"#;

pub(super) struct OwnKernels {
    pub(super) verify: Arc<Kernel>,
    pub(super) gate: Arc<Kernel>,
    pub(super) sweep: Arc<Kernel>,
}

impl OwnKernels {
    pub(super) fn load(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, EngineError> {
        let job = compiler.job(SOURCE, None).map_err(|e| EngineError::Compile(e.to_string()))?;
        let done = compiler.wait(&job).map_err(EngineError::Compile)?;
        let kernel = |entry| Kernel::load(context, done.clone(), entry).map(Arc::new);
        Ok(Self {
            verify: kernel("engine_verify")?,
            gate: kernel("engine_gate")?,
            sweep: kernel("engine_sweep")?,
        })
    }
}
