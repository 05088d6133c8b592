// Tiled SpMM (Tiled SpMM, section 3) on row-major operands: a block gathers the B rows that its rows of A touch into shared memory, stage by stage.
// maps:    block.x -> `rows` rows and one of `split` shares of their stages; subwarp -> consecutive rows; lane -> 16 or 32 bytes of a row of B; block.y -> n1 columns
// tune:    rows 64 128 | n1 32 64 128 | buffer 128 256 512 | split 1 2 4 8
// needs:   stages of at most `buffer` distinct columns, entries in groups of four a stage and row with 16-bit places, row-major B and C, finite B
// refuses: nothing: any n, any alignment
#pragma once
#include "spmm/stationed.cuh"

namespace sparsetune {

template <typename T, int kRows, int kN1, int kThreads>
struct TiledRowConfig {
    static constexpr int kRowBytes = kN1 * static_cast<int>(sizeof(T));
    static constexpr int kPieces = kRowBytes >= 256 ? 2 : 1;  // 32 bytes a lane halve what A's entries cost a byte of B
    static constexpr int kLanes = kRowBytes / 16 / kPieces;   // threads that share a row
    static constexpr int kEach = kRows * kLanes / kThreads;   // rows a subwarp keeps sums of
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kEach >= 1 && kEach * kThreads == kRows * kLanes, "a block's threads must share its rows evenly");
    static_assert(kEach * kPieces * kInVector<T> <= 32, "more than 32 sums a thread leave no room for loads in flight");
};

template <typename T, int kRows, int kN1, int kThreads>
struct TiledRow {
    using Config = TiledRowConfig<T, kRows, kN1, kThreads>;
    using Row = RowSums<T, Config::kLanes, Config::kPieces>;
    static constexpr int kEach = Config::kEach;
    static constexpr int kSums = Config::kPieces * Row::kVec;  // of one row
    Row row[kEach];

    // The rows of B that a stage needs; four map entries in flight before the copies that wait for them.
    template <bool kAligned>
    __device__ __forceinline__ static void gather(const T* __restrict__ b, const u32* __restrict__ map, u32 count, u32 first, u32 n) {
        constexpr u32 kStride = kThreads, kVectors = Row::kRowVectors;
        const u32 vectors = count * kVectors;
        for (u32 v = threadIdx.x; v < vectors; v += 4 * kStride) {
            u32 from[4];
#pragma unroll
            for (u32 u = 0; u < 4; ++u) from[u] = v + u * kStride < vectors ? __ldg(map + (v + u * kStride) / kVectors) : 0;
#pragma unroll
            for (u32 u = 0; u < 4; ++u) {
                const u32 at = v + u * kStride;
                if (at < vectors) station<T, kAligned>(stationed + at, b, from[u], first + at % kVectors * Row::kVec, n);
            }
        }
    }

    // One stage: B rows come in, then every subwarp walks the groups of its rows, which lie one behind the other.
    template <bool kAligned>
    __device__ __forceinline__ void stage(const T* __restrict__ b, const u32* __restrict__ map, u32 count, const u32* __restrict__ bounds,
                                          const u16* __restrict__ places, const T* __restrict__ vals, u32 first, u32 n) {
        u32 bound[kEach + 1];
#pragma unroll
        for (int r = 0; r <= kEach; ++r) bound[r] = __ldg(bounds + r);
        gather<kAligned>(b, map, count, first, n);
        u32 group = bound[0];
        const u32 end = bound[kEach];
        Entries<T> next, after;
        if (group < end) next.load(places, vals, group);
        if (group + 1 < end) after.load(places, vals, group + 1);
        stationed_by_me();
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
            for (; group < bound[r + 1]; ++group) {
                const Entries<T> now = next;
                next = after;
                if (group + 2 < end) after.load(places, vals, group + 2);
                row[r].add(now);
            }
        }
        // Nobody may overwrite what others still read.
        __syncthreads();
    }

    // Parts of a tile meet in scratch: the last to arrive adds all of them in their order, so that the sum is the same in
    // every call, and stores. True for that block, whose `row` then holds the totals.
    __device__ __forceinline__ bool combine(Sum<T>* __restrict__ partials, u32* __restrict__ arrived, u32 part, u32 split) {
        const u64 tile = static_cast<u64>(blockIdx.x / split) * gridDim.y + blockIdx.y;
        constexpr u64 kPart = static_cast<u64>(kEach) * kSums * kThreads;
        Sum<T>* of_tile = partials + tile * split * kPart + threadIdx.x;
        each([&](int i, Sum<T>& sum) { __stcg(of_tile + part * kPart + i * kThreads, sum); });
        __threadfence();
        __syncthreads();
        bool last = false;
        if (threadIdx.x == 0) {
            last = atomicAdd(arrived + tile, 1u) == split - 1;
            // For the next call, which sees it because kernels follow each other.
            if (last) arrived[tile] = 0;
        }
        if (!__syncthreads_or(last)) return false;
        __threadfence();
        each([&](int, Sum<T>& sum) { sum = Sum<T>(0); });
        for (u32 p = 0; p < split; ++p) {
            each([&](int i, Sum<T>& sum) { sum += __ldcg(of_tile + p * kPart + i * kThreads); });
        }
        return true;
    }

    template <typename Do>
    __device__ __forceinline__ void each(Do act) {
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
#pragma unroll
            for (int s = 0; s < kSums; ++s) act(r * kSums + s, row[r].piece[s / Row::kVec].lane[s % Row::kVec]);
        }
    }
};

// Row block i has the stages `block_stages[i]..block_stages[i + 1]`; stage s needs the B rows `map[stage_map[s]..]`, and the
// groups of its row r start at `bounds[s * kRows + r]`. `partials` and `arrived` are null where split is 1.
template <typename T, int kRows, int kN1, int kThreads, bool kAligned, bool kAccumulate>
__device__ __forceinline__ void tiled_row(const u32* __restrict__ block_stages, const u32* __restrict__ stage_map,
                                          const u32* __restrict__ map, const u32* __restrict__ bounds,
                                          const u16* __restrict__ places, const T* __restrict__ vals,
                                          const T* __restrict__ b, T* __restrict__ c, Sum<T>* __restrict__ partials,
                                          u32* __restrict__ arrived, u32 rows, u32 n, u32 split,
                                          const Scale<T, kAccumulate> scale) {
    using Body = TiledRow<T, kRows, kN1, kThreads>;
    constexpr int kEach = Body::kEach;
    const u32 block = blockIdx.x / split, part = blockIdx.x % split, first = blockIdx.y * kN1;
    const u32 begin = __ldg(block_stages + block);
    const u64 count = __ldg(block_stages + block + 1) - begin;
    const u32 mine = threadIdx.x / Body::Config::kLanes * kEach;  // this subwarp's first row in the block
    Body body;
    body.each([](int, Sum<T>& sum) { sum = Sum<T>(0); });
    const u32 end = begin + static_cast<u32>(count * (part + 1) / split);
    for (u32 s = begin + static_cast<u32>(count * part / split); s < end; ++s) {
        const u32 from = __ldg(stage_map + s);
        body.template stage<kAligned>(b, map + from, __ldg(stage_map + s + 1) - from,
                                      bounds + static_cast<u64>(s) * kRows + mine, places, vals, first, n);
    }
    if (split > 1 && !body.combine(partials, arrived, part, split)) return;
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
        const u64 row = static_cast<u64>(block) * kRows + mine + r;
        if (row < rows) body.row[r].template store<kAligned>(c + row * n, first, n, scale);
    }
}

}  // namespace sparsetune
