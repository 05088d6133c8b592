// Elements of SpMM's operands (float, double, Half, Brain), vectors of them that move in one or two instructions, and the stores
// of C. Sums are kept in `Sum<T>`: float for types of 16 bits, else the type itself. No header of the toolkit is needed.
#pragma once
#include "device.cuh"

namespace sparsetune {

// IEEE 754 binary16 by its bits.
struct Half {
    u16 bits;
};

// bf16 by its bits, the upper half of binary32.
struct Brain {
    u16 bits;
};

template <typename T>
struct SumOf {
    using Type = T;
};
template <>
struct SumOf<Half> {
    using Type = float;
};
template <>
struct SumOf<Brain> {
    using Type = float;
};
template <typename T>
using Sum = typename SumOf<T>::Type;

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(Half value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ __forceinline__ float widen(Brain value) { return __uint_as_float(static_cast<u32>(value.bits) << 16); }

template <typename T>
__device__ __forceinline__ T narrow(Sum<T> value) {
    return value;
}
template <>
__device__ __forceinline__ Half narrow<Half>(float value) {
    Half half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
    return half;
}
// sm_80
template <>
__device__ __forceinline__ Brain narrow<Brain>(float value) {
    Brain brain;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(brain.bits) : "f"(value));
    return brain;
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// One element by `read`, which takes pointers to float, double and u16.
template <typename T, typename Read>
__device__ __forceinline__ T load_by(const T* from, const Read& read) {
    if constexpr (sizeof(T) == 2) {
        return T{read(reinterpret_cast<const u16*>(from))};
    } else {
        return read(from);
    }
}

// Read-only; may stay in L1.
template <typename T>
__device__ __forceinline__ T load_element(const T* from) {
    return load_by(from, [](auto* at) { return __ldg(at); });
}

// For what is read once: it is the first to leave the caches.
template <typename T>
__device__ __forceinline__ T load_passing(const T* from) {
    return load_by(from, [](auto* at) { return __ldcs(at); });
}

// kWidth elements as the words they are in memory: what is in flight takes no more registers than that. All indices must
// be compile-time constants. `from` must be aligned to the bytes of the vector, or to 16 where it has more.
template <typename T, int kWidth>
struct Vector {
    static constexpr int kBytes = kWidth * static_cast<int>(sizeof(T));
    static constexpr int kWords = (kBytes + 3) / 4;
    static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes % 16 == 0,
                  "a vector must be 2, 4 or 8 bytes, or whole 16-byte pieces");
    u32 word[kWords];

    // The 16 bytes of a vector that has no more, as shared memory holds them.
    __device__ __forceinline__ void set(uint4 four) {
        word[0] = four.x, word[1] = four.y, word[2] = four.z, word[3] = four.w;
    }

    // In as few pieces as its bytes allow, each by `read`.
    template <typename Read>
    __device__ __forceinline__ void load_by(const T* from, Read read) {
        if constexpr (kBytes == 2) {
            word[0] = read(reinterpret_cast<const u16*>(from));
        } else if constexpr (kBytes == 4) {
            word[0] = read(reinterpret_cast<const u32*>(from));
        } else if constexpr (kBytes == 8) {
            const uint2 two = read(reinterpret_cast<const uint2*>(from));
            word[0] = two.x, word[1] = two.y;
        } else {
#pragma unroll
            for (int i = 0; i < kBytes / 16; ++i) {
                const uint4 four = read(reinterpret_cast<const uint4*>(from) + i);
                word[4 * i] = four.x, word[4 * i + 1] = four.y, word[4 * i + 2] = four.z, word[4 * i + 3] = four.w;
            }
        }
    }

    // Read-only: may stay in L1.
    __device__ __forceinline__ void load(const T* __restrict__ from) {
        load_by(from, [](auto* at) { return __ldg(at); });
    }

    // For what the same kernel writes: the read-only path must not be used.
    __device__ __forceinline__ void load_written(const T* from) {
        load_by(from, [](auto* at) { return __ldcg(at); });
    }

    __device__ __forceinline__ void load_shared(const T* from) {
        load_by(from, [](auto* at) { return *at; });
    }

    __device__ __forceinline__ Sum<T> operator[](int i) const {
        if constexpr (sizeof(T) == 2) {
            return widen(T{static_cast<u16>(i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffffu)});
        } else if constexpr (sizeof(T) == 4) {
            return __uint_as_float(word[i]);
        } else {
            return __hiloint2double(static_cast<int>(word[2 * i + 1]), static_cast<int>(word[2 * i]));
        }
    }
};

// What becomes of a sum: C = A B, or C = alpha A B + beta C, with C of elements T. With beta = 0 C is not read, as in BLAS.
template <typename T, bool kAccumulate>
struct Scale {
    Sum<T> alpha;
    Sum<T> beta;

    __device__ __forceinline__ bool reads() const { return kAccumulate && beta != Sum<T>(0); }
};

// kWidth sums of products of T in registers; indices must be compile-time constants.
template <typename T, int kWidth>
struct Sums {
    Sum<T> lane[kWidth];

    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) lane[i] = Sum<T>(0);
    }

    __device__ __forceinline__ void fma(Sum<T> scale, const Vector<T, kWidth>& by) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) lane[i] = multiply_add(scale, by[i], lane[i]);
    }

    // Leaves the sums for others of the same call, who read them from L2.
    __device__ __forceinline__ void leave(Sum<T>* to) const {
        constexpr int kBytes = Vector<Sum<T>, kWidth>::kBytes;
        union {
            Sum<T> element[kWidth];
            u32 word[kBytes / 4];
        } out;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) out.element[i] = lane[i];
        if constexpr (kBytes == 4) {
            __stcg(reinterpret_cast<u32*>(to), out.word[0]);
        } else if constexpr (kBytes == 8) {
            __stcg(reinterpret_cast<uint2*>(to), make_uint2(out.word[0], out.word[1]));
        } else {
#pragma unroll
            for (int i = 0; i < kBytes / 16; ++i) {
                const u32* w = out.word + 4 * i;
                __stcg(reinterpret_cast<uint4*>(to) + i, make_uint4(w[0], w[1], w[2], w[3]));
            }
        }
    }

    // C is written once and not read again: evict it first, so that B stays in L2. Result: type of its elements, in which T
    // is summed or which is T itself.
    template <typename Result, bool kAccumulate>
    __device__ __forceinline__ void store(Result* to, const Scale<Result, kAccumulate>& scale) const {
        constexpr int kBytes = Vector<Result, kWidth>::kBytes;
        union {
            Result element[kWidth];
            u32 word[(kBytes + 3) / 4];
        } out;
        if constexpr (kAccumulate) {
            Sum<T> sum[kWidth];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sum[i] = scale.alpha * lane[i];
            if (scale.reads()) {
                Vector<Result, kWidth> before;
                before.load_written(to);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) sum[i] = multiply_add(scale.beta, before[i], sum[i]);
            }
#pragma unroll
            for (int i = 0; i < kWidth; ++i) out.element[i] = narrow<Result>(sum[i]);
        } else {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) out.element[i] = narrow<Result>(lane[i]);
        }
        if constexpr (kBytes == 2) {
            __stcs(reinterpret_cast<u16*>(to), static_cast<u16>(out.word[0]));
        } else if constexpr (kBytes == 4) {
            __stcs(reinterpret_cast<u32*>(to), out.word[0]);
        } else if constexpr (kBytes == 8) {
            __stcs(reinterpret_cast<uint2*>(to), make_uint2(out.word[0], out.word[1]));
        } else {
#pragma unroll
            for (int i = 0; i < kBytes / 16; ++i) {
                const u32* w = out.word + 4 * i;
                __stcs(reinterpret_cast<uint4*>(to) + i, make_uint4(w[0], w[1], w[2], w[3]));
            }
        }
    }
};

// One element of C.
template <typename Result, bool kAccumulate>
__device__ __forceinline__ void store_one(Result* to, Sum<Result> sum, const Scale<Result, kAccumulate>& scale) {
    Sums<Result, 1> one;
    one.lane[0] = sum;
    one.store(to, scale);
}

}  // namespace sparsetune
