// Tiled SpMM (Tiled SpMM, section 3) with lanes side by side along rows of B: a block gathers the B rows that its rows of A touch into shared memory, stage by stage.
// From column-major operands the rows of B are put together on the way to shared memory, and those of C are taken apart there.
// maps:    block.x -> `rows` rows that share columns or are of about one length and one of `split` shares of their stages; subwarp -> a row; lane -> 16 to 64 bytes of a row of B; block.y -> n1 columns
// tune:    rows 64 128 | n1 32 64 128 | buffer 128 256 512 | split 1 2 4 8 16 | order natural length similarity radix locality
// needs:   stages of at most `buffer` distinct columns, entries in groups of four a stage and row with 16-bit places, finite B
// refuses: more than 1024 threads per block, and less than 128 bytes of a row of column-major operands; any n and any alignment are taken
#pragma once
#include "spmm/stationed.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kRows        rows of A per block
//   kN1          columns of C per block
//   kColumns     whether B and C are column-major
//   kAligned     whether rows of row-major B are whole vectors of 16 bytes
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
    static_assert(!Settings::kColumns || kRowBytes >= 128,
                  "two vectors, four apart, are gathered by a quarter of a warp");
};

// In place of a row of B: there is none.
constexpr u32 kNowhere = 0xffffffffu;

// A thread's part of a tile.
template <typename Config>
struct TiledRow {
    using T = typename Config::Value;
    static constexpr bool kAligned = Config::kAligned;
    static constexpr int kLanes = Config::kLanes, kThreads = Config::kThreads;
    using Row = RowSums<T, kLanes, Config::kPieces, Config::kColumns>;
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

    // The same from column-major B, of `b_rows` rows. Eight lanes that write at a time have the same two vectors, four apart, of four
    // rows: each in a bank of its own, as the rows are turned. They read from each column what is consecutive in the map.
    __device__ __forceinline__ static void gather_columns(const T* __restrict__ b, const u32* __restrict__ map,
                                                          u32 count, u32 first, u32 n, u32 b_rows) {
        constexpr u32 kVec = Row::kVec, kPairs = Row::kRowVectors / 2;
        // Vectors under way in a thread.
        constexpr u32 kAhead = kVec < 8 ? 2 : 1, kWarps = kThreads / 32;
        const u32 lane = threadIdx.x % 32, steps = (count + 15) / 16 * kPairs;
        const u32 row_of_step = lane / 8 * 4 + lane % 4, later = lane / 4 % 2 * 4;
        for (u32 step = threadIdx.x / 32; step < steps; step += kAhead * kWarps) {
            union {
                T element[kVec];
                uint4 vector;
            } piece[kAhead];
            u32 from[kAhead];
            const auto slot = [&](u32 u) { return (step + u * kWarps) / kPairs * 16 + row_of_step; };
            const auto vector = [&](u32 u) {
                const u32 pair = (step + u * kWarps) % kPairs;
                return pair / 4 * 8 + pair % 4 + later;
            };
#pragma unroll
            for (u32 u = 0; u < kAhead; ++u) from[u] = slot(u) < count ? __ldg(map + slot(u)) : kNowhere;
#pragma unroll
            for (u32 u = 0; u < kAhead; ++u) {
                const u32 column = first + vector(u) * kVec;
                const T* at = b + static_cast<u64>(column) * b_rows + from[u];
#pragma unroll
                for (u32 i = 0; i < kVec; ++i) {
                    const bool real = from[u] != kNowhere && column + i < n;
                    piece[u].element[i] = real ? load_element(at) : T{};
                    at += b_rows;
                }
            }
#pragma unroll
            for (u32 u = 0; u < kAhead; ++u) {
                if (from[u] != kNowhere) stationed[Row::at(slot(u), vector(u))] = piece[u].vector;
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
                                          const T* __restrict__ vals, u32 first, u32 n, u32 b_rows) {
        u32 at = __ldg(bounds);
        const u32 end = __ldg(bounds + 1);
        if constexpr (Config::kColumns) {
            gather_columns(b, map, count, first, n, b_rows);
        } else {
            gather(b, map, count, first, n);
        }
        int left = static_cast<int>(end - at);
        at += threadIdx.x % kLanes;
        Entries<T> now = group(places, vals, at, end);
        // Shuffles need the whole warp, whose rows are of about one length.
        int most = __reduce_max_sync(kAllLanes, left);
        stationed_by_me();
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

    // Writes the block's rows to column-major C, of `rows` rows, through shared memory. `rank` is this subwarp's row in the order of
    // `numbers`, which are those of the `here` rows in rising order, so that neighbouring rows are written together.
    template <typename Result, bool kAccumulate>
    __device__ __forceinline__ void store_columns(Result* __restrict__ c, const u32* __restrict__ numbers, u32 rank,
                                                  u32 here, u32 rows, u32 first, u32 n,
                                                  const Scale<Result, kAccumulate>& scale) {
        constexpr u32 kRows = Config::kRows, kPitch = kRows + 1;
        Sum<T>* tile = reinterpret_cast<Sum<T>*>(stationed);
        each([&](int i, Sum<T>& sum) {
            tile[(Row::vector(i / Row::kVec) * Row::kVec + i % Row::kVec) * kPitch + rank] = sum;
        });
        __syncthreads();
        const u32 at = threadIdx.x % kRows;
        if (at >= here) return;
        const u32 row = __ldg(numbers + at);
#pragma unroll 4
        for (u32 column = threadIdx.x / kRows; column < Config::kN1; column += kLanes) {
            if (first + column < n)
                store_one(c + static_cast<u64>(first + column) * rows + row, tile[column * kPitch + at], scale);
        }
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
// null where split is 1. From column-major operands `order` has the rows of a block by number, and row r is the `ranks[r]`-th of
// them; else `ranks` is null.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void tiled_row(const u32* __restrict__ order, const u32* __restrict__ block_stages,
                                          const u32* __restrict__ stage_map, const u32* __restrict__ map,
                                          const u32* __restrict__ bounds, const u16* __restrict__ places,
                                          const T* __restrict__ vals, const T* __restrict__ b, Result* __restrict__ c,
                                          Sum<T>* __restrict__ partials, u32* __restrict__ arrived,
                                          const u16* __restrict__ ranks, u32 rows, u32 b_rows, u32 n, u32 split,
                                          const Scale<Result, Config::kAccumulate> scale) {
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
                   vals, first, n, b_rows);
    }
    if (split > 1 && !body.combine(partials, arrived, part, split)) return;
    const u64 first_row = static_cast<u64>(block) * kRows, at = first_row + mine;
    if constexpr (Config::kColumns) {
        const u32 here = static_cast<u32>(min(static_cast<u64>(kRows), rows - first_row));
        const u32 rank = mine < here ? __ldg(ranks + at) : mine;
        body.store_columns(c, order + first_row, rank, here, rows, first, n, scale);
    } else if (at < rows) {
        body.row.template store<Config::kAligned>(c + static_cast<u64>(__ldg(order + at)) * n, first, n, scale);
    }
}

}  // namespace sparsetune
