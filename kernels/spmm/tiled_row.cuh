// Tiled SpMM (Tiled SpMM, section 3) on row-major operands: a block gathers the B rows that its rows of A touch into shared memory, stage by stage.
// maps:    block.x -> `rows` rows that share columns or are of about one length and one of `split` shares of their stages; subwarp -> a row; lane -> 16 to 64 bytes of a row of B; block.y -> n1 columns
// tune:    rows 64 128 | n1 32 64 128 | buffer 128 256 512 | split 1 2 4 8 16 | order natural length similarity radix locality
// needs:   stages of at most `buffer` distinct columns, entries in groups of four a stage and row with 16-bit places, row-major B and C, finite B
// refuses: more than 1024 threads per block; any n and any alignment are taken
#pragma once
#include "spmm/stationed.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kRows        rows of A per block
//   kN1          columns of C per block
//   kAligned     whether rows of B are whole vectors of 16 bytes
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct TiledRowConfig : Settings {
    using T = typename Settings::Value;
    static constexpr int kRowBytes = Settings::kN1 * static_cast<int>(sizeof(T));
    // The port of shared memory carries, for every lane and entry, an entry's place and value beside the bytes of B: the
    // more bytes of B a lane takes, the less that weighs. More than 16 sums per thread would leave one block per multiprocessor.
    static constexpr int kMostPieces = sizeof(T) == 2 ? 2 : 4;
    static constexpr int kFit = kRowBytes / 64 > 1 ? kRowBytes / 64 : 1;
    static constexpr int kPieces = kFit < kMostPieces ? kFit : kMostPieces;
    static constexpr int kLanes = kRowBytes / 16 / kPieces;  // threads that share a row
    static constexpr int kThreads =
        Settings::kRows * kLanes;  // a row a subwarp: none waits for its neighbour's second row
    static_assert(kLanes >= 4 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kThreads % 32 == 0 && kThreads <= 1024, "a block must be whole warps, and at most 32");
};

// A thread's part of a tile.
template <typename Config>
struct TiledRow {
    using T = typename Config::Value;
    static constexpr bool kAligned = Config::kAligned;
    static constexpr int kLanes = Config::kLanes, kThreads = Config::kThreads;
    using Row = RowSums<T, kLanes, Config::kPieces>;
    static constexpr int kSums = Config::kPieces * Row::kVec;
    // B rows of a group in registers at a time: as many warps as are resident hide a read of shared memory without more.
    static constexpr int kAtOnce = Config::kPieces == 1 ? 2 : 1;
    Row row;

    // The rows of B that a stage needs. A map entry takes as long as the copy that waits for it: as many as a thread has in
    // a stage of 64 KiB are asked for before the first copy.
    __device__ __forceinline__ static void gather(const T* __restrict__ b, const u32* __restrict__ map, u32 count,
                                                  u32 first, u32 n) {
        constexpr u32 kAhead = kAligned ? 8 : 4, kVectors = Row::kRowVectors;
        const u32 vectors = count * kVectors;
        for (u32 v = threadIdx.x; v < vectors; v += kAhead * kThreads) {
            u32 from[kAhead];
#pragma unroll
            for (u32 u = 0; u < kAhead; ++u)
                from[u] = v + u * kThreads < vectors ? __ldg(map + (v + u * kThreads) / kVectors) : 0;
#pragma unroll
            for (u32 u = 0; u < kAhead; ++u) {
                const u32 at = v + u * kThreads;
                if (at < vectors)
                    station<T, kAligned>(stationed + at, b, from[u], first + at % kVectors * Row::kVec, n);
            }
        }
    }

    // Group `at` of a row that ends before `end`; nothing beyond it.
    __device__ __forceinline__ static Entries<T> group(const u16* __restrict__ places, const T* __restrict__ vals,
                                                       u32 at, u32 end) {
        Entries<T> entries{};
        if (at < end) entries.load(places, vals, at);
        return entries;
    }

    // One stage: B rows come in, then every subwarp walks the groups of its row. Each lane fetches a group of its own, so
    // that a batch of kLanes groups is one coalesced read and few registers, and hands it to the others by shuffles. Those
    // pass the port of shared memory as broadcast loads would, 4 bytes per lane and word: with four lanes and f32 6 cycles for
    // 32 entries, whose B takes 32. The first batch comes while B comes in. The next one is asked for when one is used up: a
    // batch of a warp takes 4 x 38 cycles of the port, so that the port is busy for longer than a read of device memory with
    // the batches of six other warps. A second batch in registers would cost a resident block.
    __device__ __forceinline__ void stage(const T* __restrict__ b, const u32* __restrict__ map, u32 count,
                                          const u32* __restrict__ bounds, const u16* __restrict__ places,
                                          const T* __restrict__ vals, u32 first, u32 n) {
        u32 at = __ldg(bounds);
        const u32 end = __ldg(bounds + 1);
        gather(b, map, count, first, n);
        int left = static_cast<int>(end - at);
        at += threadIdx.x % kLanes;
        Entries<T> now = group(places, vals, at, end);
        // Shuffles need the whole warp, whose rows are of about one length.
        int most = __reduce_max_sync(kAllLanes, left);
        copied();
        __syncthreads();
        for (; most > 0; most -= kLanes, left -= kLanes) {
#pragma unroll 4
            for (int i = 0; i < kLanes; ++i) {
                if (i >= most) break;
                // By halves, which take half the registers. A quarter of a warp that reads nothing takes no cycle of the port.
                const Entries<T> low = now.template of_lane<kLanes, 0>(i);
                if (i < left) row.template add<kAtOnce, 0, 2>(low);
                const Entries<T> high = now.template of_lane<kLanes, 1>(i);
                if (i < left) row.template add<kAtOnce, 2, 4>(high);
            }
            at += kLanes;
            now = group(places, vals, at, end);
        }
        // No thread may overwrite what others still read.
        __syncthreads();
    }

    // Parts of a tile are combined in scratch: the last to arrive adds all of them in order, so that the sum is the same in
    // every call, and stores. True for that block, whose `row` then holds the totals.
    __device__ __forceinline__ bool combine(Sum<T>* __restrict__ partials, u32* __restrict__ arrived, u32 part,
                                            u32 split) {
        const u64 tile = static_cast<u64>(blockIdx.x / split) * gridDim.y + blockIdx.y;
        constexpr u64 kPart = static_cast<u64>(kSums) * kThreads;
        Sum<T>* of_tile = partials + tile * split * kPart + threadIdx.x;
        each([&](int i, Sum<T>& sum) { __stcg(of_tile + part * kPart + i * kThreads, sum); });
        if (!last_block_to_arrive(arrived + tile, split)) return false;
        row.zero();
        for (u32 p = 0; p < split; ++p) {
            each([&](int i, Sum<T>& sum) { sum += __ldcg(of_tile + p * kPart + i * kThreads); });
        }
        return true;
    }

    // Does `act(i, sum)` for each of this thread's sums.
    template <typename Act>
    __device__ __forceinline__ void each(Act act) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) act(s, row.piece[s / Row::kVec].lane[s % Row::kVec]);
    }
};

// Row block i owns the rows `order[i * kRows..]` and has the stages `block_stages[i]..block_stages[i + 1]`; stage s needs the
// B rows `map[stage_map[s]..]`, and the groups of its row r start at `bounds[s * kRows + r]`. `partials` and `arrived` are
// null where split is 1.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void tiled_row(const u32* __restrict__ order, const u32* __restrict__ block_stages,
                                          const u32* __restrict__ stage_map, const u32* __restrict__ map,
                                          const u32* __restrict__ bounds, const u16* __restrict__ places,
                                          const T* __restrict__ vals, const T* __restrict__ b, Result* __restrict__ c,
                                          Sum<T>* __restrict__ partials, u32* __restrict__ arrived, u32 rows, u32 n,
                                          u32 split, const Scale<Result, Config::kAccumulate> scale) {
    using Body = TiledRow<Config>;
    constexpr int kRows = Config::kRows;
    const u32 block = blockIdx.x / split, part = blockIdx.x % split, first = blockIdx.y * Config::kN1;
    const u32 mine = threadIdx.x / Body::kLanes;  // this subwarp's row in the block
    const u32 begin = __ldg(block_stages + block);
    const u64 count = __ldg(block_stages + block + 1) - begin;
    Body body;
    body.row.zero();
    const u32 end = begin + static_cast<u32>(count * (part + 1) / split);
    for (u32 s = begin + static_cast<u32>(count * part / split); s < end; ++s) {
        const u32 from = __ldg(stage_map + s);
        body.stage(b, map + from, __ldg(stage_map + s + 1) - from, bounds + static_cast<u64>(s) * kRows + mine, places,
                   vals, first, n);
    }
    if (split > 1 && !body.combine(partials, arrived, part, split)) return;
    const u64 at = static_cast<u64>(block) * kRows + mine;
    if (at < rows)
        body.row.template store<Config::kAligned>(c + static_cast<u64>(__ldg(order + at)) * n, first, n, scale);
}

}  // namespace sparsetune
