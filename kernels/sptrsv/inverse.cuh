// A triangular solve by products with an approximate inverse, which the host has computed. Approximate.
// maps:    `lanes` lanes -> a row
// tune:    power 1 to 8 (hops of the inverse's pattern) | steps 1 2 (launches) | lanes 1 to 32
// needs:   one right-hand side; the inverse in the order of the matrix; with two steps what it leaves of the identity, and a vector
// refuses: nothing
//
// x = M b, and of two steps x = (I + R) M b or M (I + R) b, where R is what M leaves of the identity: the same as x += M (b - T x)
// after x = M b, in one launch less and with fewer entries. Nothing waits, and what is computed is a fixed linear map of b, as a
// preconditioner has to be (incomplete sparse approximate inverses: Anzt, Huckle, Braeckle and Dongarra, Parallel Computing 2018).
#pragma once
#include "sptrsv/lanes.cuh"

namespace sparsetune {

// What a program sets, checked:
//   Value     float or double
//   kThreads  threads of a block
//   kLanes    lanes a row
//   kAdds     whether the vector is added to what the matrix makes of it
template <typename Settings>
struct InverseConfig : Settings {
    static_assert(Settings::kLanes >= 1 && Settings::kLanes <= 32, "the lanes of a row are of one warp");
    static_assert((Settings::kLanes & (Settings::kLanes - 1)) == 0, "and a power of two");
    static_assert(Settings::kThreads % 32 == 0 && Settings::kThreads <= 1024, "a block is of whole warps");
};

// A sparse matrix by rows, a vector, and what the matrix makes of it.
template <typename Value>
struct Product {
    const u32* row_ptr;
    const u32* cols;
    const Value* vals;
    const Value* from;
    Value* to;
    u32 rows;
};

template <typename Config, typename Value = typename Config::Value>
__device__ __forceinline__ void inverse(const Product<Value>& of) {
    constexpr u32 kLanes = Config::kLanes, kRows = Config::kThreads / kLanes;
    // Entries of a lane that are under way at once: rows are so short that most lanes have no more.
    constexpr u32 kUnroll = 4;
    const u32 row = blockIdx.x * kRows + threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    const bool works = row < of.rows;
    u32 at = 0, end = 0;
    if (works) {
        at = __ldg(of.row_ptr + row) + lane;
        end = __ldg(of.row_ptr + row + 1);
    }
    Value sum = Value(0);
    if (Config::kAdds && works && lane == 0) sum = __ldg(of.from + row);
    for (; at < end; at += kUnroll * kLanes) {
        u32 cols[kUnroll];
        Value vals[kUnroll], from[kUnroll];
#pragma unroll
        for (u32 i = 0; i < kUnroll; ++i) {
            const u32 k = at + i * kLanes;
            cols[i] = k < end ? __ldg(of.cols + k) : 0u;
            vals[i] = k < end ? __ldg(of.vals + k) : Value(0);
        }
#pragma unroll
        for (u32 i = 0; i < kUnroll; ++i) from[i] = at + i * kLanes < end ? __ldg(of.from + cols[i]) : Value(0);
#pragma unroll
        for (u32 i = 0; i < kUnroll; ++i) sum += vals[i] * from[i];
    }
    sum = sum_of_row<kLanes>(sum);
    if (works && lane == 0) of.to[row] = sum;
}

}  // namespace sparsetune
