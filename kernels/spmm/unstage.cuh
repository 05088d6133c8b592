// C from rows to columns: what a kernel computed row-major becomes the column-major C. Together with stage.cuh it lends
// column-major problems the walks, row orders and teams of row-major ones, for one more pass over C.
// maps:    block.x -> 64 rows of C; block.y -> up to 32 columns; shared memory turns rows into columns
// tune:    nothing: it is a step of row_split and nnz_split
// needs:   rows x n elements of scratch
// refuses: nothing
#pragma once
#include "spmm/element.cuh"

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
    for (u32 i = threadIdx.x; i < here * kColumns; i += blockDim.x) {
        const u32 at = i / kColumns, k = i % kColumns;
        if (k >= width) continue;
        // Written by the step before, so not by the read-only path.
        Vector<T, 1> one;
        one.load_written(by_rows + (first + at) * n + column + k);
        tile[k][at] = one[0];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < kRows * width; i += blockDim.x) {
        const u32 at = i % kRows, k = i / kRows;
        if (at < here)
            store_one(c + (column + k) * static_cast<u64>(rows) + first + at, tile[k][at], Scale<T, false>{});
    }
}

}  // namespace sparsetune
