// Row-split SpMM in which each group of threads computes several rows in turn: a block's rows are next to each other, so that
// what they share of B is still in L1 for the next of them, and fewer blocks are launched.
// maps:    block.x -> `turns` times the rows of row_split; group -> a row in each turn; else as row_split
// tune:    turns 2 4 | lanes 1 2 4 8 16 32 | ways 1 | vec 1 2 4 8 | cols 1 2 3 4 | unroll 2 4 8 | block 256 | fetch direct shuffle | order natural locality | b given
// needs:   as row_split, with row-major B and C
// refuses: nothing
#pragma once
#include "spmm/row_split.cuh"

namespace sparsetune {

// The rows of block `blockIdx.x`, which follow each other in `order`, as row_split computes them.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void row_turns(const u32* __restrict__ row_ptr,
                                          const typename Config::Column* __restrict__ cols,
                                          const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                          Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n,
                                          u32 turns, const Scale<Result, Config::kAccumulate>& scale) {
    static_assert(Config::kOut != Output::kColumns,
                  "columns pass through shared memory, which the next turn would overwrite");
    for (u32 turn = 0; turn < turns; ++turn) {
        row_split<Config>(blockIdx.x * turns + turn, blockIdx.y, row_ptr, cols, vals, dense, c, order, rows, n, ~0u,
                          scale);
    }
}

}  // namespace sparsetune
