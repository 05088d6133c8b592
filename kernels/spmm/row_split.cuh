// Row-split SpMM: a group of threads per row, output columns in registers, C written once. B row-major, or staged in panels.
// maps:    block.x -> rows; group -> one row; lane -> `cols` vectors of `vec` columns; way -> every ways-th entry; block.y -> column tiles
// tune:    lanes 1 2 4 8 16 32 | ways 1 2 4 8 16 32 | vec 1 2 4 8 | cols 1 2 4 | unroll 2 4 8 | block 64 256 | fetch direct shuffle | order natural length | b given staged
// needs:   CSR with 32-bit row pointers; row-major B and C, or B staged by stage.cuh in panels as wide as a tile
// refuses: nothing: where n is not a multiple of vec, B is staged and C written by elements
#pragma once
#include "spmm/walk.cuh"

namespace sparsetune {

// How C is written: rows by vectors, rows by elements (where they are not aligned), columns through shared memory.
constexpr int kRowVectors = 0;
constexpr int kRowElements = 1;
constexpr int kColumns = 2;

// Where B's tile begins and how far its rows lie apart; a staged panel is a tile of its own.
template <typename T>
struct Dense {
    const T* b;
    u64 tile_step;
    u32 stride;
    __device__ __forceinline__ const T* tile(u32 at) const { return b + at * tile_step; }
};

template <typename T, int kLanes, int kWays, int kVec, int kCols, int kUnroll, int kBlock, bool kShuffle>
struct RowSplitConfig {
    static constexpr u32 kRows = kBlock / (kLanes * kWays);  // rows a block computes at a time
    static_assert(kBlock % 32 == 0 && kBlock >= kLanes * kWays, "a block must hold whole warps, and a group at least");
    static_assert(sizeof(WalkShape<T, kLanes, kWays, kVec, kCols, kUnroll, kShuffle>) > 0, "the walk's shape is checked");
};

// The rows' part. `order` is a permutation of the rows, or null for the natural order (which kColumns needs). Rows with
// more than `longest` entries are left to others.
template <typename T, int kLanes, int kWays, int kVec, int kCols, int kUnroll, bool kShuffle, bool kFull, int kOut, bool kAccumulate>
struct RowSplit {
    using Body = Walk<T, kLanes, kWays, kVec, kCols, kUnroll, kShuffle, kFull>;
    static constexpr u32 kTile = Body::Shape::kTileColumns;
    using Out = Scale<T, kAccumulate>;

    static __device__ __forceinline__ void store(const Body& body, T* c_row, u32 width, const Out& scale) {
        if constexpr (kOut == kRowVectors) {
            body.store(c_row, scale);
        } else {
            if (kWays > 1 && body.way != 0) return;
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
#pragma unroll
                for (int i = 0; i < kVec; ++i) {
                    const u32 column = Body::first_column() + c * kLanes * kVec + i;
                    Sums<T, 1> one;
                    one.lane[0] = body.acc[c].lane[i];
                    if (column < width) one.store(c_row + column, scale);
                }
            }
        }
    }

    // Into shared memory, column by column, one element of padding a column.
    template <int kRows>
    static __device__ __forceinline__ void put(const Body& body, Sum<T>* tile, u32 at) {
        if (kWays > 1 && body.way != 0) return;
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                tile[(Body::first_column() + c * kLanes * kVec + i) * (kRows + 1) + at] = body.acc[c].lane[i];
            }
        }
    }
};

template <typename T, int kLanes, int kWays, int kVec, int kCols, int kUnroll, int kBlock, bool kShuffle, bool kFull, int kOut, bool kAccumulate>
__device__ __forceinline__ void row_split(u32 row_block, u32 tile, const u32* __restrict__ row_ptr, const u32* __restrict__ cols,
                                          const T* __restrict__ vals, const Dense<T>& dense, T* __restrict__ c,
                                          const u32* __restrict__ order, u32 rows, u32 n, u32 longest,
                                          const Scale<T, kAccumulate>& scale) {
    using Part = RowSplit<T, kLanes, kWays, kVec, kCols, kUnroll, kShuffle, kFull, kOut, kAccumulate>;
    using Body = typename Part::Body;
    constexpr u32 kRows = RowSplitConfig<T, kLanes, kWays, kVec, kCols, kUnroll, kBlock, kShuffle>::kRows;
    const u32 at = threadIdx.x / Body::kGroup;
    const u32 slot = row_block * kRows + at;
    const u32 first = tile * Part::kTile;
    const u32 width = n - first;
    if constexpr (kOut != kColumns) {
        if (slot >= rows) return;
        const u32 row = order == nullptr ? slot : __ldg(order + slot);
        const u32 begin = __ldg(row_ptr + row), end = __ldg(row_ptr + row + 1);
        if (end - begin > longest) return;
        Body body(dense.tile(tile), dense.stride, width);
        body.run(cols, vals, begin, end);
        body.combine();
        Part::store(body, c + static_cast<u64>(row) * n + first, width, scale);
    } else {
        __shared__ Sum<T> sums[Part::kTile * (kRows + 1)];
        if (slot < rows) {
            const u32 begin = __ldg(row_ptr + slot), end = __ldg(row_ptr + slot + 1);
            if (end - begin <= longest) {
                Body body(dense.tile(tile), dense.stride, width);
                body.run(cols, vals, begin, end);
                body.combine();
                Part::template put<kRows>(body, sums, at);
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < kRows * Part::kTile; i += kBlock) {
            const u32 column = i / kRows, row = row_block * kRows + i % kRows;
            if (column >= width || row >= rows) continue;
            if (longest != ~0u && __ldg(row_ptr + row + 1) - __ldg(row_ptr + row) > longest) continue;
            Sums<T, 1> one;
            one.lane[0] = sums[column * (kRows + 1) + i % kRows];
            one.store(c + static_cast<u64>(first + column) * rows + row, scale);
        }
    }
}

}  // namespace sparsetune
