//! The engine's own kernels: the comparison with the reference, the residual of a solve, the gate, the sweep, the hop, the
//! scatter into a dense matrix.

use super::compile::Compiler;
use super::context::{Context, Module};
use super::launch::LoadedKernel;
use crate::domain::Dtype;
use crate::engine::EngineError;
use std::sync::Arc;

/// One program that instantiates all of them.
pub(super) const SOURCE: &str = r#"#include "engine/verify.cuh"
#include "engine/residual.cuh"
#include "engine/timing.cuh"
#include "engine/hop.cuh"
#include "engine/densify.cuh"
using namespace sparsetune;

#define ENGINE_VERIFY(name, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(kVerifyThreads)                                   \
    name(const T* c, const double* value, const float* scale, u64 first, u64 count,                \
         const T* initial, double beta, u32 poison, Partial* partials) {                           \
        verify(c, value, scale, first, count, initial, beta, poison, partials);                    \
    }
ENGINE_VERIFY(engine_verify_f16, u16)
ENGINE_VERIFY(engine_verify_bf16, BrainBits)
ENGINE_VERIFY(engine_verify_f32, float)
ENGINE_VERIFY(engine_verify_f64, double)

#define ENGINE_DENSIFY(name, Word)                                                                 \
    extern "C" __global__ void name(const u32* row_ptr, const u32* col_idx, const Word* values,    \
                                    Word* dense, u64 rows, u64 leading) {                          \
        densify(row_ptr, col_idx, values, dense, rows, leading);                                   \
    }
ENGINE_DENSIFY(engine_densify_16, u16)
ENGINE_DENSIFY(engine_densify_32, u32)
ENGINE_DENSIFY(engine_densify_64, u64)

#define ENGINE_RESIDUAL(name, T)                                                                   \
    extern "C" __global__ void __launch_bounds__(kVerifyThreads)                                   \
    name(const u32* row_ptr, const u32* col_idx, const T* values, const T* diagonal, const T* b,   \
         const T* x, u32 rows, u32 rhs, u32 reversed, double beside, u32 poison,                   \
         Partial* partials) {                                                                      \
        const System<T> system = {row_ptr, col_idx, values,   diagonal, b, x,                      \
                                  rows,    rhs,     reversed, beside};                             \
        residual(system, poison, partials);                                                        \
    }
ENGINE_RESIDUAL(engine_residual_f32, float)
ENGINE_RESIDUAL(engine_residual_f64, double)

extern "C" __global__ void engine_hop_32(void* words, u32 trips, u32 most_polls, HopReport* report) {
    hop<u32>(words, trips, most_polls, report);
}

extern "C" __global__ void engine_hop_64(void* words, u32 trips, u32 most_polls, HopReport* report) {
    hop<u64>(words, trips, most_polls, report);
}

extern "C" __global__ void engine_gate(const u32* open, u64 most_ns) {
    gate(open, most_ns);
}

extern "C" __global__ void engine_sweep(const uint4* words, u64 count, u32* sink) {
    sweep(words, count, sink);
}
"#;

pub(super) struct OwnKernels {
    /// For each type: f16, bf16, f32, f64.
    verify: [Arc<LoadedKernel>; 4],
    /// For each width of values, 16, 32 and 64 bits.
    densify: [Arc<LoadedKernel>; 3],
    pub(super) residual_f32: Arc<LoadedKernel>,
    pub(super) residual_f64: Arc<LoadedKernel>,
    /// The hop measured with words of 32 bits and of 64 bits.
    pub(super) hops: [Arc<LoadedKernel>; 2],
    pub(super) gate: Arc<LoadedKernel>,
    pub(super) sweep: Arc<LoadedKernel>,
}

impl OwnKernels {
    pub(super) fn load(context: &Arc<Context>, compiler: &Compiler) -> Result<Self, EngineError> {
        let job = compiler.job(SOURCE, None).map_err(|e| EngineError::Compile(e.to_string()))?;
        let done = compiler.wait(&job).map_err(EngineError::Compile)?;
        let module = Arc::new(Module::load(context, &done.binary.cubin)?);
        let kernel = |entry| LoadedKernel::of(context, &module, entry).map(Arc::new);
        Ok(Self {
            verify: [
                kernel("engine_verify_f16")?,
                kernel("engine_verify_bf16")?,
                kernel("engine_verify_f32")?,
                kernel("engine_verify_f64")?,
            ],
            densify: [
                kernel("engine_densify_16")?,
                kernel("engine_densify_32")?,
                kernel("engine_densify_64")?,
            ],
            residual_f32: kernel("engine_residual_f32")?,
            residual_f64: kernel("engine_residual_f64")?,
            hops: [kernel("engine_hop_32")?, kernel("engine_hop_64")?],
            gate: kernel("engine_gate")?,
            sweep: kernel("engine_sweep")?,
        })
    }
    /// The comparison of an output of this type.
    pub(super) fn verify(&self, dtype: Dtype) -> &Arc<LoadedKernel> {
        &self.verify[match dtype {
            Dtype::F16 => 0,
            Dtype::Bf16 => 1,
            Dtype::F32 => 2,
            Dtype::F64 => 3,
        }]
    }

    /// The scatter of values of this type.
    pub(super) fn densify(&self, dtype: Dtype) -> &Arc<LoadedKernel> {
        &self.densify[match dtype {
            Dtype::F16 | Dtype::Bf16 => 0,
            Dtype::F32 => 1,
            Dtype::F64 => 2,
        }]
    }
}
