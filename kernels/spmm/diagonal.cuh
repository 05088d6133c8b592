// Dot products as the diagonals of tensor core products (TCA-SpMM, section 4.2): operands, sums, and their way to C.
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// One product D S + sum. D, 16 x 8: row i has 8 compressed values of B, for nonzeros block i % kEights and output i / kEights.
// S, 8 x 8: column j has the 8 nonzeros of block j % kEights. The diagonal of each half of the result (element i, i % 8) is
// then the dot product of a block; the sum of kEights of them is an output. What is off the diagonal is not looked at.
//
// In both operands lane 4 g + t holds the elements 2 t and 2 t + 1 of row (D: and g + 8) or column (S) g.
// T: type of the elements, f16 or bf16.
template <typename T>
__device__ __forceinline__ void tensor_product(float (&sum)[4], u32 dense, u32 dense_below, u32 sparse);

template <>
__device__ __forceinline__ void tensor_product<Brain>(float (&sum)[4], u32 dense, u32 dense_below, u32 sparse) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(dense), "r"(dense_below), "r"(sparse));
}

template <>
__device__ __forceinline__ void tensor_product<Half>(float (&sum)[4], u32 dense, u32 dense_below, u32 sparse) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(dense), "r"(dense_below), "r"(sparse));
}

// Two neighbouring nonzeros: a lane's element pair of S, and the rows of B that its pairs of D come from. Past the row's end
// both value and row of B count as zero, so that an infinity in B reaches only rows that have a nonzero there.
struct Nonzeros {
    u32 col[2];
    bool real[2];
    u32 values;

    template <typename T>
    __device__ __forceinline__ void load(const u32* __restrict__ cols, const T* __restrict__ vals, u32 at, u32 end) {
        u32 half[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            real[i] = at + i < end;
            col[i] = real[i] ? __ldg(cols + at + i) : 0u;
            half[i] = real[i] ? load_element(vals + at + i).bits : 0u;
        }
        values = half[0] | half[1] << 16;
    }
};

// In what follows a lane holds kWidth columns, kOctets lanes share a row of B, a product takes kEights blocks of 8 nonzeros, and
// kAligned says that rows of B are aligned for vectors of kWidth.

// Which column a lane's element e is: vectors where rows of B are aligned for them; else elements go cyclically to the kOctets lanes
// that read a row of B, so that what they load together is contiguous.
template <int kWidth, int kOctets, bool kAligned>
__device__ __forceinline__ u32 column(u32 first, u32 octet, u32 e) {
    return kAligned ? first + octet * kWidth + e : first + e * kOctets + octet;
}

// A lane's columns of one row of B, zero outside the matrix.
template <int kWidth, int kOctets, bool kAligned, typename T>
__device__ __forceinline__ Vector<T, kWidth> fetch(const T* __restrict__ row, u32 first, u32 octet, u32 n, bool real) {
    Vector<T, kWidth> held;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) held.word[i] = 0;
    if constexpr (kAligned) {
        const u32 at = column<kWidth, kOctets, true>(first, octet, 0);
        if (real && at < n) held.load(row + at);
    } else {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
            const u32 at = column<kWidth, kOctets, false>(first, octet, e);
            if (real && at < n) held.word[e / 2] |= static_cast<u32>(load_element(row + at).bits) << 16 * (e % 2);
        }
    }
    return held;
}

// The sums of kWidth / 2 products, two columns each: column 2 m is the upper half of product m, column 2 m + 1 the lower.
template <int kWidth>
struct Products {
    float sum[kWidth / 2][4];

    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int m = 0; m < kWidth / 2; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[m][i] = 0.0f;
        }
    }

    // `low` and `high` are the rows of B of the lane's two nonzeros: a byte permutation transposes them into pairs.
    template <typename T>
    __device__ __forceinline__ void multiply(const Vector<T, kWidth>& low, const Vector<T, kWidth>& high, u32 values) {
#pragma unroll
        for (int m = 0; m < kWidth / 2; ++m) {
            tensor_product<T>(sum[m], __byte_perm(low.word[m], high.word[m], 0x5410),
                              __byte_perm(low.word[m], high.word[m], 0x7632), values);
        }
    }
};

// Adds up what a lane and its partner have of kCount columns; each keeps half of them, the partner whose bit is set the upper
// half. Of a single column both get the sum.
template <int kCount, int kWidth>
__device__ __forceinline__ void fold(float (&held)[kWidth], u32 partner, bool upper, u32& offset) {
    if constexpr (kCount == 1) {
        held[0] += __shfl_xor_sync(kAllLanes, held[0], partner);
    } else {
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) {
            const float given = upper ? held[i] : held[i + kCount / 2];
            const float kept = upper ? held[i + kCount / 2] : held[i];
            held[i] = kept + __shfl_xor_sync(kAllLanes, given, partner);
        }
        offset += upper ? kCount / 2 : 0;
    }
}

// The diagonal sums of a lane's products: kLeft of its columns, from element `offset` on. Diagonal element (g, g) lies in lane
// 4 g + g / 2: only those eight lanes hold something. From g to g ^ 1, g ^ 2 and g ^ 4 is lane ^ 4, ^ 9 and ^ 18, so the
// eight exchange among themselves.
template <int kEights, int kWidth>
struct Outputs {
    static constexpr int kLeft = kWidth > kEights ? kWidth / kEights : 1;
    float held[kWidth];
    u32 offset = 0;
    bool mine;  // whether this lane is the one that has them

    __device__ __forceinline__ explicit Outputs(const Products<kWidth>& products) {
        const u32 lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
        for (int e = 0; e < kWidth; ++e)
            held[e] = g & 1u ? products.sum[e / 2][e % 2 * 2 + 1] : products.sum[e / 2][e % 2 * 2];
        if constexpr (kEights >= 2) fold<kWidth>(held, 4, g & 1u, offset);
        if constexpr (kEights >= 4) fold<kWidth / 2>(held, 9, g & 2u, offset);
        if constexpr (kEights == 8) fold<kWidth / 4>(held, 18, g & 4u, offset);
        const bool repeated = kWidth < kEights && (g & 4u);
        mine = lane % 4 == g / 2 && !repeated;
    }
};

// The outputs, to their columns of C.
template <int kEights, int kOctets, bool kAligned, int kWidth, typename Result, bool kAccumulate>
__device__ __forceinline__ void finish(const Products<kWidth>& products, Result* c_row, u32 first, u32 octet, u32 n,
                                       const Scale<Result, kAccumulate>& scale) {
    constexpr int kLeft = Outputs<kEights, kWidth>::kLeft;
    const Outputs<kEights, kWidth> outputs(products);
    if (!outputs.mine) return;
    if constexpr (kAligned) {
        const u32 at = column<kWidth, kOctets, true>(first, octet, outputs.offset);
        Sums<Result, kLeft> out;
#pragma unroll
        for (int i = 0; i < kLeft; ++i) out.lane[i] = outputs.held[i];
        if (at < n) out.store(c_row + at, scale);
    } else {
#pragma unroll
        for (int i = 0; i < kLeft; ++i) {
            const u32 at = column<kWidth, kOctets, false>(first, octet, outputs.offset + i);
            if (at < n) store_one(c_row + at, outputs.held[i], scale);
        }
    }
}

// The outputs, to their places among the columns that a group of warps computes together.
template <int kEights, int kOctets, bool kAligned, int kWidth>
__device__ __forceinline__ void collect(const Products<kWidth>& products, float* columns, u32 octet) {
    constexpr int kLeft = Outputs<kEights, kWidth>::kLeft;
    const Outputs<kEights, kWidth> outputs(products);
    if (!outputs.mine) return;
#pragma unroll
    for (int i = 0; i < kLeft; ++i)
        columns[column<kWidth, kOctets, kAligned>(0, octet, outputs.offset + i)] = outputs.held[i];
}

}  // namespace sparsetune
