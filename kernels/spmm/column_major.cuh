// Column-major SpMM straight from the operands: a subwarp per row splits its nonzeros, R columns in registers. For small
// matrices and few columns, where staging B would be a launch too many, and, with a thread a row and many columns, for rows of
// about equal length whose neighbours use neighbouring columns. Where there are rows enough to fill the device, a block sums
// several groups of R columns one after another, and finds its rows of A in L1 again. With `heavy`, a row of more entries than
// that waits until its block has done the others, and is then the work of the whole block: one such row takes no longer than they.
// maps:    subwarp -> row; lane -> every lanes-th entry; registers -> r outputs; block.y -> groups of r columns in turn; block -> heavy rows
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
//   kWholeSteps  whether steps that are whole have a loop of their own
//   kHeavy       most entries of a row that a subwarp computes where its block takes longer ones; 0 where it takes none
//   kBlock       threads of a block, if it takes any
//   kFull        whether kR divides the columns of C, so that no column is checked
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct ColumnMajorConfig : Settings {
    static constexpr int kLanes = Settings::kLanes, kR = Settings::kR;
    static constexpr u32 kHeavy = Settings::kHeavy;
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kR * Settings::kUnroll <= 32, "more than 32 elements in flight per thread spill");
};

// A thread's part of a row that is shared by threads which take every kApart-th entry.
template <typename Config, int kApart = Config::kLanes>
struct ColumnMajor {
    using T = typename Config::Value;
    static constexpr int kR = Config::kR, kUnroll = Config::kUnroll;
    static constexpr bool kFull = Config::kFull;
    Sum<T> acc[kR];

    // kUnroll entries, kApart from each other, of which those below `left` are real (kWhole: all are); `width` of the R columns
    // are. Bytes, so that a column of B is one addition away.
    template <bool kWhole>
    __device__ __forceinline__ void accumulate(const u32* __restrict__ cols, const T* __restrict__ vals,
                                               const char* __restrict__ b, u32 column_bytes, u32 width, u32 left) {
        u32 at[kUnroll];
        T val[kUnroll];
        T loaded[kUnroll][kR];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kApart < left) {
                at[u] = __ldg(cols + u * kApart) * static_cast<u32>(sizeof(T));
                val[u] = load_element(vals + u * kApart);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kApart < left) {
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
            if (kWhole || u * kApart < left) {
#pragma unroll
                for (int r = 0; r < kR; ++r) {
                    if (kFull || r < width) acc[r] = multiply_add(widen(val[u]), widen(loaded[u][r]), acc[r]);
                }
            }
        }
    }

    // The entries from `k` on, which is this thread's first, of a row that ends before `end`.
    template <bool kWholeSteps>
    __device__ __forceinline__ void sum(const u32* __restrict__ cols, const T* __restrict__ vals,
                                        const char* __restrict__ b, u32 column_bytes, u32 width, u32 k, u32 end) {
        constexpr u32 kStep = kUnroll * kApart;
#pragma unroll
        for (int r = 0; r < kR; ++r) acc[r] = Sum<T>(0);
        if constexpr (kWholeSteps) {
            for (; k + (kStep - kApart) < end; k += kStep) {
                accumulate<true>(cols + k, vals + k, b, column_bytes, width, kStep);
            }
        }
        for (; k < end; k += kStep) accumulate<false>(cols + k, vals + k, b, column_bytes, width, end - k);
    }

    // Sums over groups of kThreads threads of a warp, each of which has the totals afterwards.
    template <int kThreads>
    __device__ __forceinline__ void reduce() {
#pragma unroll
        for (int r = 0; r < kR; ++r) {
#pragma unroll
            for (int step = kThreads / 2; step > 0; step /= 2) {
                acc[r] += __shfl_xor_sync(group_lanes<kThreads>(), acc[r], step, kThreads);
            }
        }
    }
};

// The operands, and the columns that a block sums: from `first` to `past`, kR at a time.
template <typename Config, typename T, typename Result>
struct ColumnBlock {
    const u32* __restrict__ row_ptr;
    const u32* __restrict__ cols;
    const T* __restrict__ vals;
    const T* __restrict__ b;
    Result* __restrict__ c;
    u32 rows, b_rows, n, first, past;
    const Scale<Result, Config::kAccumulate>& scale;

    // Does `act(columns of B, which of C is the first, how many)` for each kR columns.
    template <typename Act>
    __device__ __forceinline__ void each_group(const Act& act) const {
        for (u32 at = first; at < past; at += Config::kR) {
            const u32 width = Config::kFull ? Config::kR : min(static_cast<u32>(Config::kR), n - at);
            act(reinterpret_cast<const char*>(b) + static_cast<u64>(at) * column_bytes(), at, width);
            // Lanes that share a row have one group: a second costs them more than what A takes.
            if constexpr (Config::kLanes > 1) break;
        }
    }

    __device__ __forceinline__ u32 column_bytes() const { return b_rows * static_cast<u32>(sizeof(T)); }

    __device__ __forceinline__ void store(Sum<T> sum, u32 row, u32 column) const {
        store_one(c + column * static_cast<u64>(rows) + row, sum, scale);
    }

    // A row of the entries `begin` to `end`, by the subwarp of this thread.
    __device__ __forceinline__ void light(u32 row, u32 begin, u32 end) const {
        constexpr int kLanes = Config::kLanes, kR = Config::kR;
        const u32 lane = threadIdx.x % kLanes;
        each_group([&](const char* columns, u32 at, u32 width) {
            ColumnMajor<Config> body;
            // A thread of a large block mostly reads a short row: one loop for all of it is the faster.
            constexpr bool kWholeSteps = kLanes > 1 || Config::kWholeSteps;
            body.template sum<kWholeSteps>(cols, vals, columns, column_bytes(), width, begin + lane, end);
            body.template reduce<kLanes>();
#pragma unroll
            for (int r = 0; r < kR; ++r) {
                if (r % kLanes == lane && (Config::kFull || r < width)) store(body.acc[r], row, at + r);
            }
        });
    }

    // A row by all threads of the block. Each warp leaves its sums in `sums`, and they are always added in the same order.
    __device__ __forceinline__ void heavy(u32 row, Sum<T>* sums) const {
        constexpr int kR = Config::kR, kBlock = Config::kBlock, kWarps = kBlock / 32;
        const u32 begin = __ldg(row_ptr + row), end = __ldg(row_ptr + row + 1);
        each_group([&](const char* columns, u32 at, u32 width) {
            ColumnMajor<Config, kBlock> body;
            body.template sum<false>(cols, vals, columns, column_bytes(), width, begin + threadIdx.x, end);
            body.template reduce<32>();
            if (threadIdx.x % 32 == 0) {
#pragma unroll
                for (int r = 0; r < kR; ++r) sums[threadIdx.x / 32 * kR + r] = body.acc[r];
            }
            __syncthreads();
            if (threadIdx.x < width) {
                Sum<T> sum = sums[threadIdx.x];
#pragma unroll
                for (int warp = 1; warp < kWarps; ++warp) sum += sums[warp * kR + threadIdx.x];
                store(sum, row, at + threadIdx.x);
            }
            __syncthreads();
        });
    }
};

// `order` permutes the rows, null for natural; a block sums `groups` groups of kR columns in turn, one where lanes share a row.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void column_major(const u32* __restrict__ row_ptr, const u32* __restrict__ cols,
                                             const T* __restrict__ vals, const T* __restrict__ b,
                                             Result* __restrict__ c, const u32* __restrict__ order, u32 rows,
                                             u32 b_rows, u32 n, u32 groups,
                                             const Scale<Result, Config::kAccumulate>& scale) {
    constexpr int kLanes = Config::kLanes, kR = Config::kR;
    constexpr bool kTakesHeavy = Config::kHeavy > 0;
    const ColumnBlock<Config, T, Result> all{
        row_ptr, cols, vals, b, c, rows, b_rows, n, blockIdx.y * groups * kR, min(n, (blockIdx.y + 1) * groups * kR),
        scale};
    const u32 slot = blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
    const auto row_of_slot = [&] { return order == nullptr ? slot : __ldg(order + slot); };
    if constexpr (!kTakesHeavy) {
        if (slot >= rows) return;
        const u32 row = row_of_slot();
        all.light(row, __ldg(row_ptr + row), __ldg(row_ptr + row + 1));
    } else {
        __shared__ u32 waiting, heavy[Config::kBlock / kLanes];
        __shared__ Sum<T> sums[Config::kBlock / 32 * kR];
        if (threadIdx.x == 0) waiting = 0;
        __syncthreads();
        if (slot < rows) {
            const u32 row = row_of_slot();
            const u32 begin = __ldg(row_ptr + row), end = __ldg(row_ptr + row + 1);
            if (end - begin <= Config::kHeavy) {
                all.light(row, begin, end);
            } else if (threadIdx.x % kLanes == 0) {
                heavy[atomicAdd(&waiting, 1u)] = row;
            }
        }
        __syncthreads();
        const u32 count = waiting;
        for (u32 i = 0; i < count; ++i) all.heavy(heavy[i], sums);
    }
}

}  // namespace sparsetune
