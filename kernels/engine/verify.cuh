// Compares an output with its float64 reference, element by element.
// maps:    grid-stride over elements; one Partial per block, reduced on the host, so the result does not vary
// needs:   256 threads per block, a power of two
// refuses: nothing
#pragma once
#include "device.cuh"

namespace sparsetune {

constexpr int kVerifyThreads = 256;
static_assert((kVerifyThreads & (kVerifyThreads - 1)) == 0,
              "the tree reduction halves the block until one thread is left.");

// What one block found. Mirrored by `Partial` in verify.rs.
struct Partial {
    double error;   // the largest
    u64 worst;      // its index, the smallest where several are equal
    u64 unwritten;  // elements that still hold the poison
};

__device__ inline Partial worse(const Partial& a, const Partial& b) {
    const bool take_b = b.error > a.error || (b.error == a.error && b.worst < a.worst);
    Partial result = take_b ? b : a;
    result.unwritten = a.unwritten + b.unwritten;
    return result;
}

// Stores the worst of a block's findings in its place of `partials`; all threads of the block take part.
__device__ inline void reduce(const Partial& mine, Partial* partials) {
    __shared__ Partial shared[kVerifyThreads];
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int half = kVerifyThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            shared[threadIdx.x] = worse(shared[threadIdx.x], shared[threadIdx.x + half]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) partials[blockIdx.x] = shared[0];
}

// bf16 by its bits, the upper half of binary32.
struct BrainBits {
    u16 bits;
};

// An element of C in float64, and whether it still holds the poison, a pattern of 16 bits that is repeated. binary16 comes
// as its bits.
__device__ inline double wide(float x) { return x; }
__device__ inline double wide(double x) { return x; }
__device__ inline double wide(u16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
}
__device__ inline double wide(BrainBits x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }

__device__ inline bool is_poisoned(BrainBits x, u32 poison) { return x.bits == (poison & 0xffffu); }
__device__ inline bool is_poisoned(u16 x, u32 poison) { return x == (poison & 0xffffu); }
__device__ inline bool is_poisoned(float x, u32 poison) { return __float_as_uint(x) == poison; }
__device__ inline bool is_poisoned(double x, u32 poison) {
    return static_cast<u64>(__double_as_longlong(x)) == (static_cast<u64>(poison) << 32 | poison);
}

// Elements first .. first + count of `c` against value[0 .. count], scale[0 .. count]. With `initial`, a C as long as `c`,
// the call had a beta of 0, while beta * initial is part of the values and taken off them again. T: float, double, u16 for
// the bits of binary16, or BrainBits.
template <typename T>
__device__ inline void verify(const T* c, const double* value, const float* scale, u64 first, u64 count,
                              const T* initial, double beta, u32 poison, Partial* partials) {
    // Keeps an element whose scale is 0 (an empty row) exact: anything but 0 there is a huge error.
    constexpr double kTiny = 1.1754943508222875e-38;  // FLT_MIN, as on the host
    Partial mine = {0.0, ~0ull, 0};
    const u64 stride = static_cast<u64>(gridDim.x) * kVerifyThreads;
    for (u64 i = static_cast<u64>(blockIdx.x) * kVerifyThreads + threadIdx.x; i < count; i += stride) {
        const T got = c[first + i];
        const double expected = initial ? value[i] - beta * wide(initial[first + i]) : value[i];
        double error = fabs(wide(got) - expected) / (static_cast<double>(scale[i]) + kTiny);
        // Not `isnan`: a comparison with NaN is false, which also catches infinity minus infinity.
        if (!(error >= 0.0)) error = __longlong_as_double(0x7ff0000000000000ll);
        const u64 unwritten = is_poisoned(got, poison);
        mine = worse(mine, {error, first + i, unwritten});
    }
    reduce(mine, partials);
}

}  // namespace sparsetune
