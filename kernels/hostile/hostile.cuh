// Hostile: kernels that misbehave on purpose, to prove that only their own trial pays for it.
// maps:    slow: thread -> row; wrong: thread -> element; the others: one thread
// tune:    kind hang fault wrong unwritten slow
// needs:   sm_70; slow: CSR, f32; wrong, unwritten: any C, as 32-bit words
// refuses: everything, unless the evaluator was started with --allow-hostile
#pragma once

namespace hostile {

__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ inline unsigned long long thread_index() {
    return static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

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
extern "C" __global__ void hostile_wrong(float* c, unsigned long long elements) {
    for (unsigned long long i = hostile::thread_index(); i < elements;
         i += static_cast<unsigned long long>(gridDim.x) * blockDim.x) {
        c[i] = 1e30f;
    }
}

// Leaves the result as it found it.
extern "C" __global__ void hostile_unwritten(float* c, unsigned long long elements) {
    if (elements == 0) {
        c[0] = 0.0f;
    }
}

// A right product, one thread a row, each thread first idling for a while. Strides are in elements.
extern "C" __global__ void hostile_slow(const unsigned* row_ptr, const unsigned* col_idx, const float* values,
                                        const float* b, float* c, unsigned rows, unsigned n, unsigned long long b_row,
                                        unsigned long long b_col, unsigned long long c_row, unsigned long long c_col,
                                        unsigned long long idle_ns) {
    const unsigned long long start = hostile::nanoseconds();
    while (hostile::nanoseconds() - start < idle_ns) {
    }
    const unsigned long long row = hostile::thread_index();
    if (row >= rows) {
        return;
    }
    for (unsigned j = 0; j < n; ++j) {
        float sum = 0.0f;
        for (unsigned i = row_ptr[row]; i < row_ptr[row + 1]; ++i) {
            sum += values[i] * b[col_idx[i] * b_row + j * b_col];
        }
        c[row * c_row + j * c_col] = sum;
    }
}
