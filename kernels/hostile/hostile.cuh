// Hostile: kernels that misbehave on purpose, to prove that only their own trial pays for it.
// maps:    slow: thread -> row; wrong: thread -> element; the others: one thread
// tune:    kind hang fault wrong unwritten slow
// needs:   sm_70; slow: CSR, f32; wrong, unwritten: any C, as 32-bit words
// refuses: everything, unless the evaluator was started with --allow-hostile
#pragma once
#include "device.cuh"

using namespace sparsetune;

namespace hostile {

__device__ inline u64 thread_index() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }

}  // namespace hostile

// Never ends. The volatile read keeps the loop: without it the compiler may take the loop for finite.
extern "C" __global__ void hostile_hang(float* c) {
    const volatile float* seen = c;
    while (true) {
        (void)*seen;
    }
}

// Stores where nothing is mapped.
extern "C" __global__ void hostile_fault(float* c) {
    *reinterpret_cast<volatile float*>(0x40ull) = 1.0f;
    c[0] = 1.0f;
}

// Writes every element, none of them right.
extern "C" __global__ void hostile_wrong(float* c, u64 elements) {
    for (u64 i = hostile::thread_index(); i < elements; i += static_cast<u64>(gridDim.x) * blockDim.x) {
        c[i] = 1e30f;
    }
}

// Leaves the result unchanged.
extern "C" __global__ void hostile_unwritten(float* c, u64 elements) {
    if (elements == 0) {
        c[0] = 0.0f;
    }
}

// A right product, one thread per row, each thread first idling for a while. Strides are in elements.
extern "C" __global__ void hostile_slow(const u32* row_ptr, const u32* col_idx, const float* values, const float* b,
                                        float* c, u32 rows, u32 n, u64 b_row, u64 b_col, u64 c_row, u64 c_col,
                                        u64 idle_ns) {
    const u64 start = global_nanoseconds();
    while (global_nanoseconds() - start < idle_ns) {
    }
    const u64 row = hostile::thread_index();
    if (row >= rows) {
        return;
    }
    for (u32 j = 0; j < n; ++j) {
        float sum = 0.0f;
        for (u32 i = row_ptr[row]; i < row_ptr[row + 1]; ++i) {
            sum += values[i] * b[col_idx[i] * b_row + j * b_col];
        }
        c[row * c_row + j * c_col] = sum;
    }
}
