// Staging of B: panels of `columns` columns, row-major inside, zeros past the last; from row-major or column-major B. It
// makes gathers whole lines where B is column-major, aligned where n is not, and keeps a panel in L2 where all of B would not fit.
// maps:    block.x -> 64 rows of B; block.y -> panel; shared memory turns columns into rows
// tune:    none: a step of row_split and nnz_split
// needs:   room for ceil(n / columns) x K x columns elements
// refuses: nothing
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

template <typename T, int kPanel, bool kFromColumns>
__device__ __forceinline__ void stage(const T* __restrict__ b, T* __restrict__ staged, u32 b_rows, u32 n) {
    constexpr u32 kRows = 64;
    const u64 first = static_cast<u64>(blockIdx.x) * kRows;
    const u32 column = blockIdx.y * kPanel;
    T* to = staged + static_cast<u64>(blockIdx.y) * b_rows * kPanel + first * kPanel;
    const u32 here = static_cast<u32>(min(static_cast<u64>(kRows), b_rows - first));
    if constexpr (kFromColumns) {
        __shared__ T tile[kPanel][kRows + 4 / sizeof(T) + 1];
        for (u32 i = threadIdx.x; i < kRows * kPanel; i += blockDim.x) {
            const u32 at = i % kRows, k = i / kRows;
            T value{};
            if (at < here && column + k < n) value = load_element(b + (column + k) * static_cast<u64>(b_rows) + first + at);
            tile[k][at] = value;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < here * kPanel; i += blockDim.x) to[i] = tile[i % kPanel][i / kPanel];
    } else {
        for (u32 i = threadIdx.x; i < here * kPanel; i += blockDim.x) {
            T value{};
            if (column + i % kPanel < n) value = load_element(b + (first + i / kPanel) * n + column + i % kPanel);
            to[i] = value;
        }
    }
}

}  // namespace sparsetune
