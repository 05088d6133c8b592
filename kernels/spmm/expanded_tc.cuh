// SpMM that loads sparse and computes dense, row-major: panels of 128 rows whose distinct columns are gathered into tiles; tiles
// of A cross the memory bus as entries, are expanded in shared memory and multiplied by warpgroup products.
// maps:    block -> 128 rows x `columns` columns of C and a share of the panel's tiles; block.x -> panels, and within each shares,
//          which form a cluster; block.y -> column tiles; two warpgroups expand tiles and fetch B, by turns, two multiply
// tune:    columns 64 128 | split 1 2 4 8
// needs:   packed tiles, f16 or bf16 (f32 sums) or f32 (as tf32 by consent, else split in two tf32 terms, below 3.4e38), row-major,
//          finite B, compute capability 9.0
// refuses: n not a multiple of 4 in f32, of 8 in f16 and bf16 (rows of B would not be aligned to 16 bytes)
#pragma once
#include "spmm/condensed_tc.cuh"
#include "spmm/warpgroup.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value, Result, kAccumulate   as in CondensedTcConfig
//   kTerms      products that make one: 1, or 3 where each f32 is the sum of two tf32 terms
//   kColumns    columns of C per block
//   kSplit      blocks that share the tiles of a panel
template <typename Settings>
struct ExpandedTcConfig : Settings {
    using T = typename Settings::Value;
    static constexpr int kTerms = Settings::kTerms, kColumns = Settings::kColumns, kSplit = Settings::kSplit;
    static constexpr bool kHalf = sizeof(T) == 2;
    static constexpr int kRows = 128;                                 // of a panel
    static constexpr int kDepth = 128 / static_cast<int>(sizeof(T));  // columns of A per tile: lines of 128 bytes
    static constexpr int kParts = kTerms == 3 ? 2 : 1;                // parts that an element of A is kept in
    static constexpr int kPartBytes = kRows * 128;                    // of a tile of A
    static constexpr int kABytes = kPartBytes * kParts;
    static constexpr int kPitch = kColumns + 8;  // words between rows of B in f32
    static constexpr int kBBytes = kHalf ? kDepth * kColumns * 2 : kDepth * kPitch * 4;
    // Warpgroups that expand tiles: tile i is of the i-th by turns. One alone takes twice as long as the products of f32.
    static constexpr u32 kExpanders = 2;
    static constexpr u32 kThreads = 128 * (kExpanders + 2);
    // f32 computes the transpose: a warpgroup has 64 columns of C, and of narrow tiles half of the rows.
    static constexpr int kSums = kHalf ? kColumns / 2 : kColumns == 128 ? 64 : 32;
    // Sums of a tile beside those of all: more registers than all threads may have.
    static constexpr bool kUnequal = kTerms == 3 && kSums == 64;
    static_assert(kHalf || sizeof(T) == 4, "tensor cores take f16, bf16 and tf32");
    static_assert(kColumns == 64 || kColumns == 128, "no product has that shape");
    static_assert(kTerms == 1 || (kTerms == 3 && !kHalf), "only f32 is split, in three products");
};

// The packed tiles (ops/spmm/expanded_tc/pack.rs). Panel i has the tiles panel_ptr[i] .. panel_ptr[i + 1], and tile t the
// entries 8 entry_ptr[t] .. 8 entry_ptr[t + 1]. Its record of places starts at 8 (entry_ptr[t] + kRecord t): how many eights of
// entries the first one, two, three and four quarters of its rows have, padding, columns of A as words, and each entry's place in
// the tile. What fills up the last eight of a quarter repeats an entry.
struct ExpandedTiles {
    const u32* __restrict__ panel_ptr;
    const u32* __restrict__ entry_ptr;
    const u16* __restrict__ places;
    const void* __restrict__ values;
    u32 rows;
};

// Tiles that a block holds: so many of A and B, so many tiles' entries for each group that expands, and how many bytes these take.
struct ExpandedRing {
    u32 tiles;
    u32 entries;
    u32 places_bytes;
    u32 entry_bytes;
};

// A place in a ring that is walked round and round: the slot, and the parity of the round.
struct RingPlace {
    u32 slot, round;

    __device__ __forceinline__ void advance(u32 slots, u32 step = 1) {
        slot += step;
        if (slot >= slots) slot -= slots, round ^= 1;
    }
};

// The block's shared memory, by addresses.
template <typename Config>
struct ExpandedMemory {
    u32 a, b, entries, barriers;
    ExpandedRing ring;

    __device__ __forceinline__ ExpandedMemory(const void* start, const ExpandedRing& ring) : ring(ring) {
        a = (shared_address(start) + 1023u) & ~1023u;
        b = a + ring.tiles * Config::kABytes;
        entries = b + ring.tiles * Config::kBBytes;
        barriers = entries + Config::kExpanders * ring.entries * ring.entry_bytes;
    }

    __device__ __forceinline__ u32 tile_ready(u32 slot) const { return barriers + slot * 16; }
    __device__ __forceinline__ u32 tile_free(u32 slot) const { return barriers + slot * 16 + 8; }
    __device__ __forceinline__ u32 entries_ready(u32 slot) const { return barriers + (ring.tiles + slot) * 16; }
    __device__ __forceinline__ u32 entries_free(u32 slot) const { return barriers + (ring.tiles + slot) * 16 + 8; }

    __device__ __forceinline__ void start() const {
        for (u32 s = 0; s < ring.tiles; ++s) barrier_start(tile_ready(s), 128 + 4), barrier_start(tile_free(s), 8);
        for (u32 s = 0; s < Config::kExpanders * ring.entries; ++s)
            barrier_start(entries_ready(s), 1), barrier_start(entries_free(s), 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

// The first warp of a group that expands asks for the entries of its tiles, far ahead of their use.
template <typename Config>
struct ExpandedFetcher {
    static constexpr u32 kRecord = 1 + Config::kDepth / 4;  // groups of eight halfwords before the places
    static constexpr u32 kAtOnce = 32 / Config::kExpanders * Config::kExpanders - Config::kExpanders;
    const ExpandedTiles& tiles;
    const ExpandedMemory<Config>& memory;
    u32 first, count, slots, base = 0, now, later;
    RingPlace place{0, 0};

    // Offsets of 32 tiles, one a lane.
    __device__ __forceinline__ u32 offsets(u32 from) const {
        const u32 tile = from + threadIdx.x % 32;
        return __ldg(tiles.entry_ptr + first + (tile < count ? tile : count));
    }

    __device__ __forceinline__ ExpandedFetcher(const ExpandedTiles& tiles, const ExpandedMemory<Config>& memory,
                                               u32 first, u32 count, u32 slots)
        : tiles(tiles),
          memory(memory),
          first(first),
          count(count),
          slots(slots),
          now(offsets(0)),
          later(offsets(kAtOnce)) {}

    // For the group's tiles in turn.
    __device__ __forceinline__ void fetch(u32 tile, bool again) {
        if (tile >= base + kAtOnce) base += kAtOnce, now = later, later = offsets(base + kAtOnce);
        const u32 from = __shfl_sync(kAllLanes, now, tile - base), to = __shfl_sync(kAllLanes, now, tile - base + 1);
        if (threadIdx.x % 32 == 0) {
            const u32 slot = slots + place.slot;
            if (again) barrier_wait(memory.entries_free(slot), place.round ^ 1);
            const u32 groups = to - from, ready = memory.entries_ready(slot);
            const u32 at = memory.entries + slot * memory.ring.entry_bytes;
            const u32 places = (kRecord + groups) * 16, values = groups * 8 * sizeof(typename Config::T);
            barrier_arrive_and_expect(ready, places + values);
            copy_bulk(at, tiles.places + 8 * (static_cast<u64>(from) + static_cast<u64>(kRecord) * (first + tile)),
                      places, ready);
            copy_bulk(at + memory.ring.places_bytes,
                      static_cast<const typename Config::T*>(tiles.values) + 8 * static_cast<u64>(from), values, ready);
        }
        __syncwarp();
        place.advance(memory.ring.entries);
    }
};

// The first warpgroups: fetch rows of B and expand tiles of A, each warp a quarter of the rows.
template <typename Config>
__device__ __forceinline__ void expand(const ExpandedTiles& tiles, const ExpandedMemory<Config>& memory, u32 first,
                                       u32 count, const typename Config::T* __restrict__ b, u32 n, u32 column,
                                       u32 group) {
    using T = typename Config::T;
    constexpr int kDepth = Config::kDepth, kColumns = Config::kColumns, kVec = 16 / static_cast<int>(sizeof(T));
    constexpr int kChunks = kColumns / kVec;    // of 16 bytes in a row of B
    constexpr int kRowsAtOnce = 128 / kChunks;  // rows of B that all four warps fetch at once
    const u32 thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const ExpandedRing& ring = memory.ring;
    const u32 slots = group * ring.entries, ahead = Config::kExpanders * ring.entries;
    ExpandedFetcher<Config> fetcher(tiles, memory, first, count, slots);
    if (warp == 0) {
        for (u32 i = group; i < ahead && i < count; i += Config::kExpanders) fetcher.fetch(i, false);
    }
    const u32 chunk = thread % kChunks, row = thread / kChunks;
    const bool inside = column + chunk * kVec < n;
    const T* from = b + (inside ? column + chunk * kVec : 0);
    const u64 stride = n;
    RingPlace tile{group, 0}, entries{0, 0};
    for (u32 i = group; i < count; i += Config::kExpanders) {
        const u32 at = memory.a + tile.slot * Config::kABytes, to = memory.b + tile.slot * Config::kBBytes;
        const u32 record = memory.entries + (slots + entries.slot) * ring.entry_bytes;
        if (i >= ring.tiles) barrier_wait(memory.tile_free(tile.slot), tile.round ^ 1);
        barrier_wait(memory.entries_ready(slots + entries.slot), entries.round);
        u32 of[kDepth / kRowsAtOnce];
#pragma unroll
        for (int k = 0; k < kDepth / kRowsAtOnce; ++k)
            of[k] = load_shared_word(record + 16 + (k * kRowsAtOnce + row) * 4);
#pragma unroll
        for (int k = 0; k < kDepth / kRowsAtOnce; ++k) {
            const u32 line = k * kRowsAtOnce + row;
            const bool copy = inside && of[k] != 0xffffffffu;
            const u32 place = Config::kHalf ? chunk / 8 * (kDepth * 128) + swizzled(line, chunk % 8)
                                            : line * Config::kPitch * 4 + chunk * 16;
            copy_or_clear(to + place, from + (copy ? of[k] : 0) * stride, copy);
        }
        arrive_with_copies(memory.tile_ready(tile.slot));
        const u32 own = at + warp * 4096;
#pragma unroll
        for (int part = 0; part < Config::kParts; ++part) {
#pragma unroll
            for (int j = 0; j < 8; ++j) clear_shared(own + part * Config::kPartBytes + j * 512 + lane * 16);
        }
        __syncwarp();
        const u32 begin = warp == 0 ? 0 : load_shared_half(record + (warp - 1) * 2),
                  end = load_shared_half(record + warp * 2);
        const u32 places = record + 16 + kDepth * 4, values = record + ring.places_bytes;
        for (u32 eight = begin + lane; eight < end; eight += 32) {
            u32 where[4], value[sizeof(T) * 2];
            load_shared(where, places + eight * 16);
#pragma unroll
            for (int i = 0; i < static_cast<int>(sizeof(T)) * 2; i += 4) {
                load_shared(reinterpret_cast<u32(&)[4]>(value[i]), values + eight * 8 * sizeof(T) + i * 4);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const u32 to = at + (where[i / 2] >> i % 2 * 16 & 0xffffu) * static_cast<u32>(sizeof(T));
                if constexpr (Config::kHalf) {
                    store_shared(to, static_cast<u16>(value[i / 2] >> i % 2 * 16));
                } else {
                    const float whole = __uint_as_float(value[i]);
                    const u32 high = to_tf32(whole);
                    store_shared(to, high);
                    if constexpr (Config::kTerms == 3) {
                        store_shared(to + Config::kPartBytes, __float_as_uint(whole - __uint_as_float(high)));
                    }
                }
            }
        }
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(memory.entries_free(slots + entries.slot));
            barrier_arrive(memory.tile_ready(tile.slot));
        }
        tile.advance(ring.tiles, Config::kExpanders), entries.advance(ring.entries);
        // Into the slot of the group's tile before this one: by now the other warps have read that too.
        if (warp == 0 && i >= Config::kExpanders && i - Config::kExpanders + ahead < count)
            fetcher.fetch(i - Config::kExpanders + ahead, true);
    }
}

// The last two warpgroups: f16 and bf16, 64 rows each.
template <typename Config>
__device__ __forceinline__ void multiply_half(const ExpandedMemory<Config>& memory, u32 count, u32 group,
                                              float (&sum)[Config::kSums]) {
    RingPlace tile{0, 0};
    for (u32 i = 0; i < count; ++i) {
        barrier_wait(memory.tile_ready(tile.slot), tile.round);
        publish_to_tensor_cores();
        const u64 a = swizzled_tile(memory.a + tile.slot * Config::kABytes + group * 8192, 16, 1024);
        const u64 b = swizzled_tile(memory.b + tile.slot * Config::kBBytes, Config::kDepth * 128, 1024);
        hold(sum);
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(typename Config::T{}, sum, a + k * 2, b + k * 128);
        products_close();
        // Meanwhile the other group's products keep the tensor cores busy.
        products_wait<0>();
        hold(sum);
        if (threadIdx.x % 32 == 0) barrier_arrive(memory.tile_free(tile.slot));
        tile.advance(memory.ring.tiles);
    }
}

// The last two warpgroups: f32, C^T = B^T A^T, so that B passes through registers, where it is split.
template <typename Config>
__device__ __forceinline__ void multiply_float(const ExpandedMemory<Config>& memory, u32 count, u32 group,
                                               float (&sum)[Config::kSums]) {
    const u32 lane = threadIdx.x % 32;
    const u32 m = (Config::kColumns == 128 ? group * 64 : 0) + threadIdx.x % 128 / 32 * 16 + lane / 4;
    const u32 rows = Config::kColumns == 128 ? 0 : group * 8192;
    const u32 at = memory.b + (lane % 4 * Config::kPitch + m) * 4;
    RingPlace tile{0, 0};
    u32 raw[16];
    const auto load = [&](u32 slot) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int k = i / 4, q = i % 4;
            raw[i] = load_shared_word(at + slot * Config::kBBytes +
                                      ((k * 8 + (q >> 1) * 4) * Config::kPitch + (q & 1) * 8) * 4);
        }
    };
    // Of one term the next tile of B comes into registers while the tensor cores work; of three these have no room for it.
    constexpr bool kAhead = Config::kTerms == 1;
    if (kAhead && count > 0) {
        barrier_wait(memory.tile_ready(0), 0);
        load(0);
    }
    // Tensor cores cut off what they do not keep of a sum, always towards 0, so a long one would drift: that of one tile is added to
    // the others on plain cores, and small products come before large ones.
    float part[Config::kTerms == 3 ? Config::kSums : 4];
#pragma unroll
    for (float& value : part) value = 0.0f;
    for (u32 i = 0; i < count; ++i) {
        if constexpr (!kAhead) {
            barrier_wait(memory.tile_ready(tile.slot), tile.round);
            load(tile.slot);
        }
        u32 high[4][4], low[4][4];
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const float value = __uint_as_float(raw[j]);
            high[j / 4][j % 4] = to_tf32(value);
            low[j / 4][j % 4] = __float_as_uint(value - __uint_as_float(high[j / 4][j % 4]));
        }
        const u32 a = memory.a + tile.slot * Config::kABytes + rows;
        const u64 large = swizzled_tile(a, 16, 1024), small = swizzled_tile(a + Config::kPartBytes, 16, 1024);
        publish_to_tensor_cores();
#pragma unroll
        for (int k = 0; k < 4; ++k) hold(high[k]), hold(low[k]);
        if constexpr (Config::kTerms == 3) {
            hold(part);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                multiply(part, low[k], large + k * 2, k > 0);
                multiply(part, high[k], small + k * 2, true);
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) multiply(part, high[k], large + k * 2, true);
        } else {
            hold(sum);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; ++k) multiply(sum, high[k], large + k * 2, true);
        }
        products_close();
        const u32 slot = tile.slot;
        tile.advance(memory.ring.tiles);
        if (kAhead && i + 1 < count) {
            barrier_wait(memory.tile_ready(tile.slot), tile.round);
            load(tile.slot);
        }
        products_wait<0>();
        if constexpr (Config::kTerms == 3) {
            hold(part);
        } else {
            hold(sum);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(memory.tile_free(slot));
        if constexpr (Config::kTerms == 3) {
#pragma unroll
            for (int j = 0; j < static_cast<int>(Config::kSums); ++j) sum[j] += part[j];
        }
    }
}

// Stores four neighbouring sums of a thread, which wgmma leaves in two rows and two columns.
template <typename Config>
struct ExpandedStore {
    using Result = typename Config::Result;
    const ExpandedTiles& tiles;
    Result* __restrict__ c;
    const Scale<Result, Config::kAccumulate>& scale;
    u32 n, panel, column, group;

    __device__ __forceinline__ Result* at(u32 row, u32 column) const { return c + static_cast<u64>(row) * n + column; }

    __device__ __forceinline__ void operator()(u32 four, const float (&sum)[4]) const {
        const u32 lane = threadIdx.x % 32;
        const u32 m = threadIdx.x % 128 / 32 * 16 + lane / 4, pair = four * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if constexpr (Config::kHalf) {
                const u32 row = panel * Config::kRows + group * 64 + m + i * 8;
                if (row < tiles.rows && column + pair < n) {
                    Sums<typename Config::T, 2> out;
                    out.lane[0] = sum[2 * i], out.lane[1] = sum[2 * i + 1];
                    out.store(at(row, column + pair), scale);
                }
            } else {
                const u32 row = panel * Config::kRows + (Config::kColumns == 128 ? 0 : group * 64) + pair + i;
                const u32 first = column + (Config::kColumns == 128 ? group * 64 : 0) + m;
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    if (row < tiles.rows && first + j * 8 < n) {
                        Sums<float, 1> out;
                        out.lane[0] = sum[i + 2 * j];
                        out.store(at(row, first + j * 8), scale);
                    }
                }
            }
        }
    }
};

template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void expanded_tc(const ExpandedTiles& tiles, const T* __restrict__ b, Result* __restrict__ c,
                                            u32 n, const ExpandedRing& ring,
                                            const Scale<Result, Config::kAccumulate>& scale) {
    extern __shared__ __align__(1024) unsigned char expanded_memory[];
    const ExpandedMemory<Config> memory(expanded_memory, ring);
    constexpr u32 kSplit = Config::kSplit, kSums = Config::kSums;
    const u32 panel = blockIdx.x / kSplit, rank = blockIdx.x % kSplit, column = blockIdx.y * Config::kColumns;
    const u32 begin = __ldg(tiles.panel_ptr + panel), all = __ldg(tiles.panel_ptr + panel + 1) - begin;
    const u32 first = begin + static_cast<u32>(static_cast<u64>(all) * rank / kSplit);
    const u32 count = begin + static_cast<u32>(static_cast<u64>(all) * (rank + 1) / kSplit) - first;
    if (threadIdx.x == 0) memory.start();
    __syncthreads();
    // The same in all lanes, for the compiler too.
    const u32 group = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
    const bool multiplies = group >= Config::kExpanders;
    float sum[kSums];
#pragma unroll
    for (int i = 0; i < static_cast<int>(kSums); ++i) sum[i] = 0.0f;
    if (!multiplies) {
        if constexpr (Config::kUnequal) give_registers<80>();
        expand<Config>(tiles, memory, first, count, b, n, column, group);
    } else if constexpr (Config::kHalf) {
        multiply_half<Config>(memory, count, group - Config::kExpanders, sum);
    } else {
        if constexpr (Config::kUnequal) take_registers<176>();
        multiply_float<Config>(memory, count, group - Config::kExpanders, sum);
    }
    const ExpandedStore<Config> store{tiles, c, scale, n, panel, column, group - Config::kExpanders};
    // Sums pass through shared memory, where those of a cluster meet: each block adds up and stores a share, in the same order always.
    __syncthreads();
    const u32 at = memory.a + (threadIdx.x - 128 * Config::kExpanders) * 4;
    if (multiplies) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(kSums); ++i) store_shared(at + i * 1024, __float_as_uint(sum[i]));
    }
    if constexpr (kSplit > 1) meet_in_cluster();
    if (multiplies) {
        constexpr u32 kShare = kSums / 4 / kSplit;
        for (u32 four = rank * kShare; four < (rank + 1) * kShare; ++four) {
            float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (u32 peer = 0; peer < kSplit; ++peer) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const u32 there = at + (4 * four + i) * 1024;
                    total[i] += kSplit > 1 ? load_of_peer(there, peer) : __uint_as_float(load_shared_word(there));
                }
            }
            store(four, total);
        }
    }
    if constexpr (kSplit > 1) meet_in_cluster();
}

}  // namespace sparsetune
