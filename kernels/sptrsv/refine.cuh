// The residual b - T x of a triangular solve, for a step of iterative refinement.
// maps:    kLanes entry lanes x kRhsLanes lanes -> a row; block -> a row of many entries
// tune:    nothing: lanes follow from the number of right-hand sides
// needs:   256 threads per block; the system in solve order, b, x and the residual rows x rhs row-major in the matrix's own order
// refuses: more right-hand sides than kRhsLanes x kColumns
#pragma once
#include "device.cuh"

namespace sparsetune {

constexpr u32 kResidualThreads = 256;

// Entries above which a row is shared by its whole block: one long row must not keep a few lanes busy while all others wait.
constexpr u32 kSharedRow = 4096;

// What a program sets, checked, and what follows from it:
//   Value      float or double
//   kLanes     entry lanes of a row
//   kRhsLanes  lanes across right-hand sides
//   kColumns   right-hand sides per lane
template <typename Settings>
struct ResidualConfig : Settings {
    static constexpr u32 kGroup = Settings::kLanes * Settings::kRhsLanes;  // lanes of a row
    static constexpr u32 kRows = kResidualThreads / kGroup;                // rows of a block
    static_assert((kGroup & (kGroup - 1)) == 0 && kGroup <= 32,
                  "the lanes of a row are of one warp, and a power of two");
    static_assert(Settings::kColumns >= 1, "each lane has a right-hand side");
};

// A system in solve order, of which columns are solve indices, and the operands in the order of the matrix.
template <typename Value>
struct Residual {
    const u32* row_ptr;
    const u32* cols;
    const Value* vals;
    const Value* diagonal;
    const Value* b;
    const Value* x;
    Value* left;  // b - T x
    u32 rows;
    u32 reversed;  // whether row s of the system is row rows - 1 - s of the matrix
    u32 rhs;

    // Where the row of a solve index begins in b, x and the residual.
    __device__ __forceinline__ u64 at(u32 s) const { return static_cast<u64>(reversed ? rows - 1 - s : s) * rhs; }
};

// Sums of the entries first, first + step, ... before end, for this lane's right-hand sides.
template <typename Config, typename Value = typename Config::Value>
__device__ __forceinline__ void add_entries(const Residual<Value>& a, u32 first, u32 end, u32 step, u32 column,
                                            Value (&sum)[Config::kColumns]) {
#pragma unroll 4
    for (u32 k = first; k < end; k += step) {
        const u64 from = a.at(__ldg(a.cols + k));
        const Value value = __ldg(a.vals + k);
#pragma unroll
        for (int c = 0; c < Config::kColumns; ++c) {
            const u32 j = column + c * Config::kRhsLanes;
            if (j < a.rhs) sum[c] += value * a.x[from + j];
        }
    }
}

template <typename Config, typename Value = typename Config::Value>
__device__ __forceinline__ void store_residual(const Residual<Value>& a, u32 row, u32 column, int c, Value sum) {
    const u32 j = column + c * Config::kRhsLanes;
    if (j >= a.rhs) return;
    const u64 at = a.at(row) + j;
    a.left[at] = (a.b[at] - sum) - __ldg(a.diagonal + row) * a.x[at];
}

template <typename Config, typename Value = typename Config::Value>
__device__ __forceinline__ void residual(const Residual<Value>& a) {
    constexpr u32 kGroup = Config::kGroup, kRhsLanes = Config::kRhsLanes, kLanes = Config::kLanes;
    __shared__ u32 shared_rows[Config::kRows];
    __shared__ u32 shared_count;
    __shared__ Value parts[kResidualThreads];
    if (threadIdx.x == 0) shared_count = 0;
    __syncthreads();
    const u32 lane = threadIdx.x % kGroup, column = lane % kRhsLanes;
    const u32 row = blockIdx.x * Config::kRows + threadIdx.x / kGroup;
    u32 begin = 0, end = 0;
    if (row < a.rows) {
        begin = __ldg(a.row_ptr + row);
        end = __ldg(a.row_ptr + row + 1);
    }
    const bool alone = end - begin <= kSharedRow;
    // Which row is first in the list is left to chance, but not how it is summed.
    if (!alone && lane == 0) shared_rows[atomicAdd(&shared_count, 1u)] = row;
    Value sum[Config::kColumns];
#pragma unroll
    for (int c = 0; c < Config::kColumns; ++c) sum[c] = Value(0);
    if (alone) add_entries<Config>(a, begin + lane / kRhsLanes, end, kLanes, column, sum);
#pragma unroll
    for (int c = 0; c < Config::kColumns; ++c) {
#pragma unroll
        for (u32 reach = kGroup / 2; reach >= kRhsLanes; reach /= 2) {
            sum[c] += __shfl_xor_sync(kAllLanes, sum[c], reach);
        }
        if (alone && row < a.rows && lane < kRhsLanes) store_residual<Config>(a, row, column, c, sum[c]);
    }
    __syncthreads();
    const u32 count = shared_count;
    for (u32 i = 0; i < count; ++i) {
        const u32 row_of_all = shared_rows[i], of_block = threadIdx.x / kRhsLanes;
        Value part[Config::kColumns];
#pragma unroll
        for (int c = 0; c < Config::kColumns; ++c) part[c] = Value(0);
        const u32 first = __ldg(a.row_ptr + row_of_all), last = __ldg(a.row_ptr + row_of_all + 1);
        // Threads that are neighbours have right-hand sides that are.
        add_entries<Config>(a, first + of_block, last, kResidualThreads / kRhsLanes, threadIdx.x % kRhsLanes, part);
#pragma unroll
        for (int c = 0; c < Config::kColumns; ++c) {
            parts[threadIdx.x] = part[c];
            __syncthreads();
            for (u32 reach = kResidualThreads / 2; reach >= kRhsLanes; reach /= 2) {
                if (threadIdx.x < reach) parts[threadIdx.x] += parts[threadIdx.x + reach];
                __syncthreads();
            }
            if (threadIdx.x < kRhsLanes) store_residual<Config>(a, row_of_all, threadIdx.x, c, parts[threadIdx.x]);
            __syncthreads();
        }
    }
}

}  // namespace sparsetune
