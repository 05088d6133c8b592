// Nnz-split SpMM: rows of more than `chunk` entries are cut into segments of about equal length, each the work of one group;
// all other rows go as in row_split, in the same launch. Where C is written by columns a group may compute `turns` of these one
// after another, so that what a block writes of a column is longer.
// maps:    `segment_blocks` blocks of x, the first or spread evenly -> segments; the others -> rows; block.y -> column tiles
// tune:    chunk 64 256 512 | lanes 1 2 4 8 16 32 | ways 1 2 4 8 16 32 | vec 1 2 4 8 | cols 1 2 3 4 | unroll 2 4 | block 256 | fetch direct shuffle | order natural length locality | b given staged both
// needs:   as row_split; scratch for the segments' sums and a zeroed counter per long row and column tile
// refuses: rows in turn where C is not written by columns, and more of them than threads in a block
#pragma once
#include "spmm/row_split.cuh"

namespace sparsetune {

// Sums that one group adds: a row with more segments adds them in bundles of this many, and then adds the bundles.
constexpr u32 kBundle = 64;

// The long rows. Segment s is `bounds[2 s]..bounds[2 s + 1]` of the entries. It is the whole row `owner[s]` if `place[s]` is
// kWholeRow; else it belongs to cut row `owner[s]` and leaves its sums in place `place[s]`. The cut row is row `row[owner]`, has
// the places `first[owner]..first[owner + 1]` and its bundles from `bundle[owner]` on. Segments of cut rows come by their
// first column, so that those that run at a time gather the same part of B.
template <typename T>
struct Segments {
    const u32* bounds;
    const u32* owner;
    const u32* place;
    const u32* row;
    const u32* first;
    const u32* bundle;
    u32 count;
    u32 bundles;
    Sum<T>* partial;  // places x columns of all tiles
    u32* arrived;     // (bundles + cut rows) x column tiles, 0 between calls
};

// A row that is one segment: `owner` is the row itself.
constexpr u32 kWholeRow = ~0u;

// The number of the row that a segment belongs to.
template <typename T>
__device__ __forceinline__ u32 row_of(const Segments<T>& all, u32 owner, u32 place) {
    return place == kWholeRow ? owner : __ldg(all.row + owner);
}

// What a program sets, checked: besides what RowSplitConfig names
//   kTurns  rows that a group computes one after another
template <typename Settings>
struct NnzSplitConfig : RowSplitConfig<Settings> {
    static constexpr u32 kTurns = Settings::kTurns;
    static_assert(kTurns == 1 || (kTurns > 1 && Settings::kOut == Output::kColumns),
                  "rows in turn are for kernels that write columns");
    static constexpr u32 kGroups = RowSplitConfig<Settings>::kRows;  // segments a block computes at a time
    static_assert(kGroups > 0, "a block must hold a group at least");
};

// What a group does with the sums of its segment.
template <typename Config>
struct Segment {
    using Part = RowSplit<Config>;
    using Body = typename Part::Body;
    using T = typename Config::Value;
    using Result = typename Config::Result;

    // Does `act(sum, column)` for each of this thread's columns.
    template <typename Act>
    static __device__ __forceinline__ void each(Body& body, u32 width, const Act& act) {
#pragma unroll
        for (int k = 0; k < Config::kCols; ++k) {
#pragma unroll
            for (int i = 0; i < Config::kVec; ++i) {
                const u32 column = Body::first_column() + k * Config::kLanes * Config::kVec + i;
                if (Config::kFull || column < width) act(body.acc[k].lane[i], column);
            }
        }
    }

    // Each column of a tile has room among the partial sums, real or not, so that they are written and read by whole vectors.
    static __device__ __forceinline__ Sum<T>* place_of(const Segments<T>& all, u32 place, u32 tile) {
        return all.partial + (static_cast<u64>(place) * gridDim.y + tile) * Config::kTileColumns + Body::first_column();
    }

    // Leaves this thread's sums at `at`.
    static __device__ __forceinline__ void leave(const Body& body, Sum<T>* at) {
        if (body.way != 0) return;
#pragma unroll
        for (int k = 0; k < Config::kCols; ++k) body.acc[k].leave(at + k * Config::kLanes * Config::kVec);
    }

    // The ways add what lies `step` elements apart from `at` on, `count` of them, always in the same order.
    static __device__ __forceinline__ void gather(Body& body, const Sum<T>* at, u64 step, u32 count) {
#pragma unroll
        for (int k = 0; k < Config::kCols; ++k) body.acc[k].zero();
        // Few in flight: or these few rows would cost all others registers.
#pragma unroll 2
        for (u32 i = body.way; i < count; i += Config::kWays) {
#pragma unroll
            for (int k = 0; k < Config::kCols; ++k) {
                Vector<Sum<T>, Config::kVec> left;
                left.load_written(at + i * step + k * Config::kLanes * Config::kVec);
#pragma unroll
                for (int j = 0; j < Config::kVec; ++j) body.acc[k].lane[j] += left[j];
            }
        }
        body.combine();
    }

    static __device__ __forceinline__ void store(Body& body, Result* c, u32 rows, u32 n, u32 row, u32 first, u32 width,
                                                 const Scale<Result, Config::kAccumulate>& scale) {
        if constexpr (Config::kOut == Output::kColumns) {
            if (body.way != 0) return;
            each(body, width, [&](Sum<T>& sum, u32 column) {
                store_one(c + static_cast<u64>(first + column) * rows + row, sum, scale);
            });
        } else {
            Part::store(body, c + static_cast<u64>(row) * n + first, width, scale);
        }
    }
};

// A group's segment is summed. The last of a bundle's segments to arrive adds them all, and the last of a row's bundles adds
// those: always in the same order, so that the result does not depend on who arrives when.
template <typename Config, typename Body, typename T, typename Result>
__device__ __forceinline__ void finish(Body& body, u32 owner, u32 place, u32 tile, Result* __restrict__ c, u32 rows,
                                       u32 n, const Segments<T>& all, const Scale<Result, Config::kAccumulate>& scale) {
    using Own = Segment<Config>;
    const u32 first = tile * Own::Part::kTile, width = n - first;
    if (place == kWholeRow) {
        Own::store(body, c, rows, n, owner, first, width, scale);
        return;
    }
    const u32 begin = __ldg(all.first + owner), end = __ldg(all.first + owner + 1);
    const u32 bundle = (place - begin) / kBundle, bundles = (end - begin + kBundle - 1) / kBundle;
    const u32 from = begin + bundle * kBundle, until = min(from + kBundle, end);
    constexpr u64 kAcross = Config::kTileColumns;
    Own::leave(body, Own::place_of(all, place, tile));
    u32* arrived = all.arrived + static_cast<u64>(__ldg(all.bundle + owner) + bundle) * gridDim.y + tile;
    if (!last_group_to_arrive<Config::kGroup>(arrived, until - from)) return;
    Own::gather(body, Own::place_of(all, from, tile), kAcross * gridDim.y, until - from);
    if (bundles > 1) {
        // The bundle's sum takes the place of its first segment, which nobody reads any more.
        Own::leave(body, Own::place_of(all, from, tile));
        u32* arrived_bundles = all.arrived + static_cast<u64>(all.bundles + owner) * gridDim.y + tile;
        if (!last_group_to_arrive<Config::kGroup>(arrived_bundles, bundles)) return;
        Own::gather(body, Own::place_of(all, begin, tile), kAcross * gridDim.y * kBundle, bundles);
    }
    Own::store(body, c, rows, n, __ldg(all.row + owner), first, width, scale);
}

// The segment of one group.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void segment(u32 block, u32 tile, const typename Config::Column* __restrict__ cols,
                                        const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                        Result* __restrict__ c, u32 rows, u32 n, const Segments<T>& all,
                                        const Scale<Result, Config::kAccumulate>& scale) {
    using Own = Segment<Config>;
    using Body = typename Own::Body;
    constexpr int kGroup = Config::kGroup;
    const u32 at = block * (Config::kBlock / kGroup) + threadIdx.x / kGroup;
    if (at >= all.count) return;
    Body body(dense.tile(tile), dense.stride, n - tile * Own::Part::kTile);
    u32 row = 0;
    if constexpr (Config::kNear) row = row_of(all, __ldg(all.owner + at), __ldg(all.place + at));
    body.run(cols, vals, row, __ldg(all.bounds + 2 * at), __ldg(all.bounds + 2 * at + 1));
    body.combine();
    finish<Config>(body, __ldg(all.owner + at), __ldg(all.place + at), tile, c, rows, n, all, scale);
}

// Whether a block computes segments or rows, and which of its kind it is. Rows in natural order and segments by their columns
// go along B together, so that what both gather comes from L2 the second time: segment blocks are spread evenly. Rows by
// length are anywhere; there the segments begin.
struct Turn {
    u32 block;
    bool segments;

    __device__ __forceinline__ Turn(u32 segment_blocks, bool ordered) {
        u32 before = min(blockIdx.x, segment_blocks);
        segments = blockIdx.x < segment_blocks;
        if (!ordered) {
            before = static_cast<u32>(static_cast<u64>(blockIdx.x) * segment_blocks / gridDim.x);
            segments = static_cast<u32>((static_cast<u64>(blockIdx.x) + 1) * segment_blocks / gridDim.x) > before;
        }
        block = segments ? before : blockIdx.x - before;
    }
};

// The segments of long rows, and the other rows as `row_split` computes them.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void nnz_split(const u32* __restrict__ row_ptr,
                                          const typename Config::Column* __restrict__ cols,
                                          const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                          Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n,
                                          u32 chunk, const Segments<T>& segments,
                                          const Scale<Result, Config::kAccumulate>& scale) {
    constexpr u32 kGroups = Config::kGroups;
    const u32 segment_blocks = (segments.count + kGroups - 1) / kGroups;
    const Turn turn(segment_blocks, order != nullptr);
    if (turn.segments) {
        segment<Config>(turn.block, blockIdx.y, cols, vals, dense, c, rows, n, segments, scale);
    } else {
        row_split<Config, Config::kTurns>(turn.block, blockIdx.y, row_ptr, cols, vals, dense, c, order, rows, n, chunk,
                                          scale);
    }
}

}  // namespace sparsetune
