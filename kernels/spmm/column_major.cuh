// Column-major SpMM straight from the operands: a subwarp per row splits its nonzeros, R columns in registers. For small
// matrices and few columns, where staging B would be a launch too many, and, with a thread a row and many columns, for rows of
// about equal length whose neighbours use neighbouring columns. Where there are rows enough to fill the device, a block sums
// several groups of R columns one after another, and finds its rows of A in L1 again.
// maps:    subwarp -> row; lane -> every lanes-th entry; registers -> r outputs; block.y -> groups of r columns in turn
// tune:    lanes 1 4 8 16 32 | r 1 2 4 8 16 32 | unroll 1 2 4 | block 64 256 512 1024 | order natural length locality
// needs:   CSR with 32-bit row pointers, column-major B and C, columns of B of less than 4 GiB
// refuses: nothing: any n, any alignment
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// What a program sets, checked:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kLanes       threads of a subwarp, which share a row
//   kR           columns of C that a subwarp computes
//   kUnroll      entries of A in flight per thread
//   kFull        whether kR divides the columns of C, so that no column is checked
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct ColumnMajorConfig : Settings {
    static constexpr int kLanes = Settings::kLanes, kR = Settings::kR;
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kR * Settings::kUnroll <= 32, "more than 32 elements in flight per thread spill");
};

// A thread's part of a row.
template <typename Config>
struct ColumnMajor {
    using T = typename Config::Value;
    static constexpr int kLanes = Config::kLanes, kR = Config::kR, kUnroll = Config::kUnroll;
    static constexpr bool kFull = Config::kFull;
    Sum<T> acc[kR];

    // kUnroll entries, kLanes apart, of which those below `left` are real (kWhole: all are); `width` of the R columns are. Bytes, so
    // that a column of B is one addition away.
    template <bool kWhole>
    __device__ __forceinline__ void accumulate(const u32* __restrict__ cols, const T* __restrict__ vals,
                                               const char* __restrict__ b, u32 column_bytes, u32 width, u32 left) {
        u32 at[kUnroll];
        T val[kUnroll];
        T loaded[kUnroll][kR];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kLanes < left) {
                at[u] = __ldg(cols + u * kLanes) * static_cast<u32>(sizeof(T));
                val[u] = load_element(vals + u * kLanes);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kLanes < left) {
#pragma unroll
                for (int r = 0; r < kR; ++r) {
                    if (kFull || r < width) {
                        const char* column = b + static_cast<u64>(r) * column_bytes;
                        loaded[u][r] = load_element(reinterpret_cast<const T*>(column + at[u]));
                    }
                }
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kLanes < left) {
#pragma unroll
                for (int r = 0; r < kR; ++r) {
                    if (kFull || r < width) acc[r] = multiply_add(widen(val[u]), widen(loaded[u][r]), acc[r]);
                }
            }
        }
    }

    // Sums over the subwarp; every lane holds the totals afterwards.
    __device__ __forceinline__ void reduce() {
#pragma unroll
        for (int r = 0; r < kR; ++r) {
#pragma unroll
            for (int step = kLanes / 2; step > 0; step /= 2) {
                acc[r] += __shfl_xor_sync(group_lanes<kLanes>(), acc[r], step, kLanes);
            }
        }
    }
};

// `order` permutes the rows, null for natural; a block sums `groups` groups of kR columns in turn, one where lanes share a row.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void column_major(const u32* __restrict__ row_ptr, const u32* __restrict__ cols,
                                             const T* __restrict__ vals, const T* __restrict__ b,
                                             Result* __restrict__ c, const u32* __restrict__ order, u32 rows,
                                             u32 b_rows, u32 n, u32 groups,
                                             const Scale<Result, Config::kAccumulate>& scale) {
    constexpr int kLanes = Config::kLanes, kR = Config::kR, kUnroll = Config::kUnroll;
    constexpr bool kFull = Config::kFull;
    const u32 slot = blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
    if (slot >= rows) return;
    const u32 row = order == nullptr ? slot : __ldg(order + slot);
    const u32 lane = threadIdx.x % kLanes;
    const u32 begin = __ldg(row_ptr + row) + lane, end = __ldg(row_ptr + row + 1);
    const u32 column_bytes = b_rows * static_cast<u32>(sizeof(T));
    const u32 past = min(n, (blockIdx.y + 1) * groups * kR);

    for (u32 first = blockIdx.y * groups * kR; first < past; first += kR) {
        const u32 width = kFull ? kR : min(static_cast<u32>(kR), n - first);
        const char* b_first = reinterpret_cast<const char*>(b) + static_cast<u64>(first) * column_bytes;
        ColumnMajor<Config> body;
#pragma unroll
        for (int r = 0; r < kR; ++r) body.acc[r] = Sum<T>(0);
        constexpr u32 kStep = kUnroll * kLanes;
        u32 k = begin;
        if constexpr (kLanes > 1) {
            for (; k + (kStep - kLanes) < end; k += kStep) {
                body.template accumulate<true>(cols + k, vals + k, b_first, column_bytes, width, kStep);
            }
        }
        // A thread that reads its row alone mostly reads a short one: one loop for all of it is the faster.
        for (; k < end; k += kStep) {
            body.template accumulate<false>(cols + k, vals + k, b_first, column_bytes, width, end - k);
        }
        body.reduce();
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            if (r % kLanes == lane && (kFull || r < width)) {
                store_one(c + (first + r) * static_cast<u64>(rows) + row, body.acc[r], scale);
            }
        }
        // Lanes that share a row have one group: a second costs them more than what A takes.
        if constexpr (kLanes > 1) break;
    }
}

}  // namespace sparsetune
