// Staging of B: panels of `columns` columns, row-major inside, zeros past the last; from row-major or column-major B. It
// makes gathers whole lines where B is column-major, aligned where n is not, and keeps a panel in L2 where all of B would not fit.
// maps:    block.x -> 64 rows of B; block.y -> up to 32 columns of a panel; shared memory turns columns into rows
// tune:    nothing: it is a step of row_split, nnz_split and row_panel
// needs:   room for ceil(n / columns) x K x columns elements
// refuses: nothing
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// Threads of a block that stages, a constant so that its loops unroll.
constexpr u32 kStagingThreads = 256;

// Columns of a panel that one block copies: its shared memory stays far below the 48 KiB that need no opt-in.
template <int kPanel>
constexpr int kStagedColumns = kPanel < 32 ? kPanel : 32;

// Copies what this block stages of B. T: type of its elements; kPanel: columns of a panel; kFromColumns: whether B is
// column-major. `passing`: 1 if its columns are to leave L2 before all else, so that their copy and C stay there.
template <typename T, int kPanel, bool kFromColumns>
__device__ __forceinline__ void stage(const T* __restrict__ b, T* __restrict__ staged, u32 b_rows, u32 n, u32 passing) {
    constexpr u32 kRows = 64, kColumns = kStagedColumns<kPanel>;
    static_assert(kPanel % kColumns == 0, "a panel must divide into what a block copies");
    const u64 first = static_cast<u64>(blockIdx.x) * kRows;
    const u32 column = blockIdx.y * kColumns;
    T* to = staged + static_cast<u64>(column / kPanel) * b_rows * kPanel + first * kPanel + column % kPanel;
    const u32 here = static_cast<u32>(min(static_cast<u64>(kRows), b_rows - first));
    if constexpr (kFromColumns) {
        // An odd number of words per column: neither reading nor writing has bank conflicts.
        __shared__ T tile[kColumns][kRows + (sizeof(T) == 2 ? 2 : 1)];
        constexpr u32 kAtOnce = kStagingThreads / kRows, kSteps = (kColumns + kAtOnce - 1) / kAtOnce;
        const u32 at = threadIdx.x % kRows, k = threadIdx.x / kRows;
        const T* from = b + (column + k) * static_cast<u64>(b_rows) + first + at;
        // All loads of a thread are under way before the first is waited for.
        T value[kSteps];
        const auto read = [&](const auto& load) {
#pragma unroll
            for (u32 step = 0; step < kSteps; ++step) {
                const u32 here_k = k + step * kAtOnce;
                value[step] = T{};
                if (at < here && here_k < kColumns && column + here_k < n)
                    value[step] = load(from + static_cast<u64>(step * kAtOnce) * b_rows);
            }
        };
        if (passing != 0) {
            read([](const T* element) { return load_passing(element); });
        } else {
            read([](const T* element) { return load_element(element); });
        }
#pragma unroll
        for (u32 step = 0; step < kSteps; ++step) {
            if (k + step * kAtOnce < kColumns) tile[k + step * kAtOnce][at] = value[step];
        }
        __syncthreads();
#pragma unroll
        for (u32 i = threadIdx.x; i < kRows * kColumns; i += kStagingThreads) {
            if (i < here * kColumns)
                to[static_cast<u64>(i / kColumns) * kPanel + i % kColumns] = tile[i % kColumns][i / kColumns];
        }
    } else {
        for (u32 i = threadIdx.x; i < here * kColumns; i += kStagingThreads) {
            const u32 k = column + i % kColumns;
            T value{};
            if (k < n) value = load_element(b + (first + i / kColumns) * n + k);
            to[static_cast<u64>(i / kColumns) * kPanel + i % kColumns] = value;
        }
    }
}

}  // namespace sparsetune
