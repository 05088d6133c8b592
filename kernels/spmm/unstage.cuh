// C from rows to columns: what a kernel computed row-major becomes the column-major C. Together with stage.cuh it lends
// column-major problems the walks, row orders and teams of row-major ones, for one more pass over C.
// maps:    block.x -> 64 rows of C; block.y -> up to 32 columns; shared memory turns rows into columns
// tune:    nothing: it is a step of row_split, nnz_split and row_panel
// needs:   rows x n elements of scratch
// refuses: nothing
#pragma once
#include "spmm/stage.cuh"

namespace sparsetune {

// Writes what this block turns of `rows` rows of `n` elements.
template <typename T>
__device__ __forceinline__ void unstage(const T* __restrict__ by_rows, T* __restrict__ c, u32 rows, u32 n) {
    constexpr u32 kRows = 64, kColumns = 32;
    // One element of padding per column: neither writing nor reading has bank conflicts.
    __shared__ Sum<T> tile[kColumns][kRows + 1];
    const u64 first = static_cast<u64>(blockIdx.x) * kRows;
    const u32 column = blockIdx.y * kColumns;
    const u32 here = static_cast<u32>(min(static_cast<u64>(kRows), rows - first));
    const u32 width = min(kColumns, n - column);
    constexpr u32 kAtOnce = kStagingThreads / kColumns, kSteps = kRows / kAtOnce;
    const u32 from_at = threadIdx.x / kColumns, k = threadIdx.x % kColumns;
    const T* from = by_rows + (first + from_at) * n + column + k;
    // All loads of a thread are under way before the first is waited for. The step before wrote what they read, so they do not
    // take the read-only path.
    Vector<T, 1> one[kSteps];
#pragma unroll
    for (u32 step = 0; step < kSteps; ++step) {
        if (k < width && from_at + step * kAtOnce < here)
            one[step].load_written(from + static_cast<u64>(step * kAtOnce) * n);
    }
#pragma unroll
    for (u32 step = 0; step < kSteps; ++step) {
        if (k < width && from_at + step * kAtOnce < here) tile[k][from_at + step * kAtOnce] = one[step][0];
    }
    __syncthreads();
#pragma unroll
    for (u32 i = threadIdx.x; i < kRows * kColumns; i += kStagingThreads) {
        const u32 at = i % kRows, turned = i / kRows;
        if (at < here && turned < width)
            store_one(c + (column + turned) * static_cast<u64>(rows) + first + at, tile[turned][at], Scale<T, false>{});
    }
}

}  // namespace sparsetune
