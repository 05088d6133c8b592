// Nnz-split SpMM: rows of more than `chunk` entries are cut into segments of about equal length, each the work of one group;
// all other rows go as in row_split, in the same launch.
// maps:    the first `segment_blocks` blocks of x -> segments; the others -> rows; block.y -> column tiles
// tune:    chunk 64 256 512 | lanes 1 2 4 8 16 32 | ways 1 2 4 8 16 32 | vec 1 2 4 8 | cols 1 2 4 | unroll 2 4 | block 256 | fetch direct shuffle | order natural length | b given staged
// needs:   as row_split; scratch for the segments' sums and a zeroed counter a long row and column tile
// refuses: nothing
#pragma once
#include "spmm/row_split.cuh"

namespace sparsetune {

// The long rows. Segment s is `bounds[2 s]..bounds[2 s + 1]` of the entries, belongs to long row `owner[s]` and leaves its
// sums in place `place[s]`. The long row is row `row[owner]` and has the places `first[owner]..first[owner + 1]`. Segments come
// by their first column, so that those that run at a time gather the same part of B.
template <typename T>
struct Segments {
    const u32* bounds;
    const u32* owner;
    const u32* place;
    const u32* row;
    const u32* first;
    u32 count;
    Sum<T>* partial;  // count x n
    u32* arrived;     // long_rows x column tiles, 0 between calls
};

template <typename T, int kLanes, int kWays, int kVec, int kCols, int kUnroll, int kBlock, bool kShuffle>
struct NnzSplitConfig {
    using Rows = RowSplitConfig<T, kLanes, kWays, kVec, kCols, kUnroll, kBlock, kShuffle>;
    static constexpr u32 kGroups = Rows::kRows;  // segments a block computes at a time
    static_assert(kGroups > 0, "a block must hold a group at least");
};

// One segment. The last of a row's segments to arrive adds all of them, always in the same order, so the result does not
// depend on who that is; it also resets the counter for the next call.
template <typename T, int kLanes, int kWays, int kVec, int kCols, int kUnroll, int kBlock, bool kShuffle, bool kFull, int kOut, bool kAccumulate>
__device__ __forceinline__ void segment(u32 block, u32 tile, const u32* __restrict__ cols, const T* __restrict__ vals,
                                        const Dense<T>& dense, T* __restrict__ c, u32 rows, u32 n,
                                        const Segments<T>& segments, const Scale<T, kAccumulate>& scale) {
    using Part = RowSplit<T, kLanes, kWays, kVec, kCols, kUnroll, kShuffle, kFull, kOut, kAccumulate>;
    using Body = typename Part::Body;
    const u32 at = block * (kBlock / Body::kGroup) + threadIdx.x / Body::kGroup;
    if (at >= segments.count) return;
    const u32 first = tile * Part::kTile, width = n - first;
    const u32 owner = __ldg(segments.owner + at);
    const u32 begin = __ldg(segments.first + owner), end = __ldg(segments.first + owner + 1);
    Body body(dense.tile(tile), dense.stride, width);
    body.run(cols, vals, __ldg(segments.bounds + 2 * at), __ldg(segments.bounds + 2 * at + 1));
    body.combine();

    Sum<T>* mine = segments.partial + static_cast<u64>(__ldg(segments.place + at)) * n + first;
    if (body.way == 0) {
#pragma unroll
        for (int k = 0; k < kCols; ++k) {
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                const u32 column = Body::first_column() + k * kLanes * kVec + i;
                if (kFull || column < width) __stcg(mine + column, body.acc[k].lane[i]);
            }
        }
    }
    __threadfence();
    __syncwarp(Body::mask());
    u32 before = 0;
    if (threadIdx.x % Body::kGroup == 0) before = atomicAdd(segments.arrived + owner * gridDim.y + tile, 1u);
    before = __shfl_sync(Body::mask(), before, 0, Body::kGroup);
    if (before + 1 != end - begin) return;
    __threadfence();
    if (threadIdx.x % Body::kGroup == 0) segments.arrived[owner * gridDim.y + tile] = 0;

    const Sum<T>* all = segments.partial + first;
    Body total(dense.tile(tile), dense.stride, width);
#pragma unroll 4
    for (u32 s = begin + body.way; s < end; s += kWays) {
#pragma unroll
        for (int k = 0; k < kCols; ++k) {
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                const u32 column = Body::first_column() + k * kLanes * kVec + i;
                if (kFull || column < width) total.acc[k].lane[i] += __ldcg(all + static_cast<u64>(s) * n + column);
            }
        }
    }
    total.combine();
    const u32 row = __ldg(segments.row + owner);
    if constexpr (kOut == kColumns) {
        if (body.way != 0) return;
#pragma unroll
        for (int k = 0; k < kCols; ++k) {
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                const u32 column = Body::first_column() + k * kLanes * kVec + i;
                Sums<T, 1> one;
                one.lane[0] = total.acc[k].lane[i];
                if (kFull || column < width) one.store(c + static_cast<u64>(first + column) * rows + row, scale);
            }
        }
    } else {
        Part::store(total, c + static_cast<u64>(row) * n + first, width, scale);
    }
}

template <typename T, int kLanes, int kWays, int kVec, int kCols, int kUnroll, int kBlock, bool kShuffle, bool kFull, int kOut, bool kAccumulate>
__device__ __forceinline__ void nnz_split(const u32* __restrict__ row_ptr, const u32* __restrict__ cols, const T* __restrict__ vals,
                                          const Dense<T>& dense, T* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n,
                                          u32 chunk, const Segments<T>& segments, const Scale<T, kAccumulate>& scale) {
    constexpr u32 kGroups = NnzSplitConfig<T, kLanes, kWays, kVec, kCols, kUnroll, kBlock, kShuffle>::kGroups;
    const u32 segment_blocks = (segments.count + kGroups - 1) / kGroups;
    if (blockIdx.x < segment_blocks) {
        segment<T, kLanes, kWays, kVec, kCols, kUnroll, kBlock, kShuffle, kFull, kOut, kAccumulate>(
            blockIdx.x, blockIdx.y, cols, vals, dense, c, rows, n, segments, scale);
    } else {
        row_split<T, kLanes, kWays, kVec, kCols, kUnroll, kBlock, kShuffle, kFull, kOut, kAccumulate>(
            blockIdx.x - segment_blocks, blockIdx.y, row_ptr, cols, vals, dense, c, order, rows, n, chunk, scale);
    }
}

}  // namespace sparsetune
