// Row-split SpMM in which each group of threads computes several rows in turn: a block's rows are next to each other, so that
// what they share of B is still in L1 for the next of them, what it writes of a column of C is longer, and fewer blocks are launched.
// maps:    block.x -> `turns` times the rows of row_split; group -> one row in each turn; else as row_split
// tune:    turns 2 4 | lanes 1 2 4 8 16 32 | ways 1 | vec 1 2 4 8 | cols 1 2 3 4 | unroll 2 4 8 | block 256 | fetch direct shuffle | order natural locality | b given staged
// needs:   as row_split; B as given for row-major operands, staged for column-major ones
// refuses: more rows than threads in a block that writes columns
#pragma once
#include "spmm/row_split.cuh"

namespace sparsetune {

// What a program sets, checked: besides what RowSplitConfig names
//   kTurns  rows that a group computes
template <typename Settings>
struct RowTurnsConfig : RowSplitConfig<Settings> {
    static constexpr u32 kTurns = Settings::kTurns;
    static_assert(kTurns >= 2, "one row a group is row_split");
};

// The rows of block `blockIdx.x`, which follow each other in `order`, as row_split computes them.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void row_turns(const u32* __restrict__ row_ptr,
                                          const typename Config::Column* __restrict__ cols,
                                          const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                          Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n,
                                          const Scale<Result, Config::kAccumulate>& scale) {
    constexpr u32 kTurns = Config::kTurns;
    if constexpr (Config::kOut == Output::kColumns) {
        row_split<Config, kTurns>(blockIdx.x, blockIdx.y, row_ptr, cols, vals, dense, c, order, rows, n, ~0u, scale);
    } else {
#pragma unroll 1
        for (u32 turn = 0; turn < kTurns; ++turn) {
            row_split<Config>(blockIdx.x * kTurns + turn, blockIdx.y, row_ptr, cols, vals, dense, c, order, rows, n,
                              ~0u, scale);
        }
    }
}

}  // namespace sparsetune
