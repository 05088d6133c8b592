// Row-split SpMM: a group of threads per row, output columns in registers, C written once. B row-major, or staged in panels.
// maps:    block.x -> rows; group -> one row; lane -> `cols` vectors of `vec` columns; way -> every ways-th entry; block.y -> column tiles
// tune:    lanes 1 2 4 8 16 32 | ways 1 2 4 8 16 32 | vec 1 2 4 8 | cols 1 2 3 4 | unroll 2 4 8 | block 64 256 | fetch direct shuffle | order natural length locality | b given staged both
// needs:   CSR with 32-bit row pointers; row-major B and C, or B staged by stage.cuh in panels as wide as a tile
// refuses: nothing: where n is not a multiple of vec, B is staged and C written by elements
#pragma once
#include "spmm/walk.cuh"

namespace sparsetune {

// How C is written.
enum class Output {
    kRowVectors,   // rows by vectors
    kRowElements,  // rows by elements, where they are not aligned
    kColumns,      // columns, through shared memory
};

// Where B's tile begins, and the distance between its rows; a staged panel is a separate tile.
template <typename T>
struct Dense {
    const T* b;
    u64 tile_step;
    u32 stride;
    __device__ __forceinline__ const T* tile(u32 at) const { return b + at * tile_step; }
};

// What a program sets, checked, and what follows from it: besides what WalkShape names
//   kBlock  threads of a block
//   kOut    how C is written
template <typename Settings>
struct RowSplitConfig : WalkShape<Settings> {
    using Shape = WalkShape<Settings>;
    static constexpr int kBlock = Settings::kBlock;
    static constexpr u32 kRows = kBlock / Shape::kGroup;  // rows a block computes at a time
    static_assert(kBlock % 32 == 0 && kBlock >= Shape::kGroup, "a block must hold whole warps, and a group at least");
};

// How the group of a row writes its sums.
template <typename Config>
struct RowSplit {
    using Body = Walk<Config>;
    using T = typename Config::Value;
    using Result = typename Config::Result;
    static constexpr u32 kTile = Config::kTileColumns;

    static __device__ __forceinline__ void store(const Body& body, Result* c_row, u32 width,
                                                 const Scale<Result, Config::kAccumulate>& scale) {
        if constexpr (Config::kOut == Output::kRowVectors) {
            body.store(c_row, scale);
        } else {
            if (Config::kWays > 1 && body.way != 0) return;
#pragma unroll
            for (int c = 0; c < Config::kCols; ++c) {
#pragma unroll
                for (int i = 0; i < Config::kVec; ++i) {
                    const u32 column = Body::first_column() + c * Config::kLanes * Config::kVec + i;
                    if (column < width) store_one(c_row + column, body.acc[c].lane[i], scale);
                }
            }
        }
    }

    // Into shared memory, column by column; a column has `step` elements, one of padding among them.
    static __device__ __forceinline__ void put(const Body& body, Sum<T>* tile, u32 step, u32 at) {
        if (Config::kWays > 1 && body.way != 0) return;
#pragma unroll
        for (int c = 0; c < Config::kCols; ++c) {
#pragma unroll
            for (int i = 0; i < Config::kVec; ++i) {
                const u32 column = Body::first_column() + c * Config::kLanes * Config::kVec + i;
                tile[column * step + at] = body.acc[c].lane[i];
            }
        }
    }
};

// The rows of block `row_block` in the columns of tile `tile`. `order` is a permutation of the rows, or null for the natural
// order (which Output::kColumns needs). Rows with more than `longest` entries are left to other blocks. Where columns are written,
// each group computes kTurns rows, one after another, so that what a block writes of a column is longer.
template <typename Config, u32 kTurns = 1, typename T = typename Config::Value,
          typename Result = typename Config::Result>
__device__ __forceinline__ void row_split(u32 row_block, u32 tile, const u32* __restrict__ row_ptr,
                                          const typename Config::Column* __restrict__ cols,
                                          const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                          Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n,
                                          u32 longest, const Scale<Result, Config::kAccumulate>& scale) {
    using Part = RowSplit<Config>;
    using Body = typename Part::Body;
    constexpr u32 kRows = Config::kRows;
    const u32 at = threadIdx.x / Body::kGroup;
    const u32 first = tile * Part::kTile;
    const u32 width = n - first;
    if constexpr (Config::kOut != Output::kColumns) {
        const u32 slot = row_block * kRows + at;
        if (slot >= rows) return;
        const u32 row = order == nullptr ? slot : __ldg(order + slot);
        const u32 begin = __ldg(row_ptr + row), end = __ldg(row_ptr + row + 1);
        if (end - begin > longest) return;
        Body body(dense.tile(tile), dense.stride, width);
        body.run(cols, vals, row, begin, end);
        body.combine();
        Part::store(body, c + static_cast<u64>(row) * n + first, width, scale);
    } else {
        constexpr u32 kBlockRows = kRows * kTurns, kStep = kBlockRows + 1;
        static_assert(kBlockRows <= Config::kBlock, "a block must have a thread for each row that it writes");
        __shared__ Sum<T> sums[Part::kTile * kStep];
        const u32 first_row = row_block * kBlockRows;
#pragma unroll 1
        for (u32 here = at; here < kBlockRows; here += kRows) {
            const u32 row = first_row + here;
            if (row >= rows) break;
            const u32 begin = __ldg(row_ptr + row), end = __ldg(row_ptr + row + 1);
            if (end - begin > longest) continue;
            Body body(dense.tile(tile), dense.stride, width);
            body.run(cols, vals, row, begin, end);
            body.combine();
            Part::put(body, sums, kStep, here);
        }
        __syncthreads();
        // A thread writes one row, some columns apart: whether the row is this block's is asked once.
        const u32 mine = threadIdx.x % kBlockRows, row = first_row + mine;
        if (row >= rows) return;
        if (longest != ~0u && __ldg(row_ptr + row + 1) - __ldg(row_ptr + row) > longest) return;
        constexpr u32 kAtOnce = Config::kBlock / kBlockRows, kSteps = (Part::kTile + kAtOnce - 1) / kAtOnce;
        Result* to = c + static_cast<u64>(first) * rows + row;
#pragma unroll 8
        for (u32 step = 0; step < kSteps; ++step) {
            const u32 column = threadIdx.x / kBlockRows + step * kAtOnce;
            const bool real = (Part::kTile % kAtOnce == 0 || column < Part::kTile) && (Config::kFull || column < width);
            if (real) store_one(to + static_cast<u64>(column) * rows, sums[column * kStep + mine], scale);
        }
    }
}

}  // namespace sparsetune
