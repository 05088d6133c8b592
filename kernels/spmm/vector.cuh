// Vectors of 1, 2 or 4 floats that move in one instruction, and the loads and stores of SpMM's operands.
#pragma once

namespace sparsetune {

using u32 = unsigned int;
using u64 = unsigned long long;

template <int kWidth>
struct FloatVec;

template <>
struct FloatVec<1> {
    using Packed = float;
};
template <>
struct FloatVec<2> {
    using Packed = float2;
};
template <>
struct FloatVec<4> {
    using Packed = float4;
};

// kWidth floats in registers; `lane[i]` must only be indexed by compile-time constants.
template <int kWidth>
struct Fragment {
    float lane[kWidth];

    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) lane[i] = 0.0f;
    }

    // A read-only load that may stay in L1: operands A and B.
    __device__ __forceinline__ void load(const float* __restrict__ from) {
        using Packed = typename FloatVec<kWidth>::Packed;
        const Packed packed = __ldg(reinterpret_cast<const Packed*>(from));
        const float* parts = reinterpret_cast<const float*>(&packed);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) lane[i] = parts[i];
    }

    // C is written once and not read again: evict it first, so that B stays in L2.
    __device__ __forceinline__ void store_streaming(float* to) const {
        using Packed = typename FloatVec<kWidth>::Packed;
        Packed packed;
        float* parts = reinterpret_cast<float*>(&packed);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) parts[i] = lane[i];
        __stcs(reinterpret_cast<Packed*>(to), packed);
    }

    __device__ __forceinline__ void fma(float scale, const Fragment& by) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) lane[i] = fmaf(scale, by.lane[i], lane[i]);
    }
};

}  // namespace sparsetune
