// Tiled SpMM, column-major: a panel's distinct rows of B are gathered once into shared memory, and every row of the panel
// multiplies from there, R output columns in registers (Tiled SpMM, sections 2.5 and 4.1).
// maps:    thread -> row (or segment of one), r columns; block.x -> panel of `rows` rows; block.y -> r columns
// tune:    r 4 8 16 | buffer 512 1024 2048 | rows 128 256 | segment none half auto double | order natural length similarity radix locality
// needs:   gather maps and S-ELL packed by `ops/spmm/tiled/pack.rs`; f16, f32, f64; column-major B and C
// refuses: nothing: any n, any alignment
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// Shared memory holds kPieces planes of 16-byte pieces: piece p of staged column i lies at p * kPlane + 16 i. A warp loads
// one piece of 32 staged columns at a time, eight lanes a cycle, so neighbours in a plane never share a bank; side by side
// (64 bytes per column for 16 floats) every other column would start in the same bank. kBuffer is known to the compiler so
// that planes are immediate offsets of one address. Column kBuffer is always zero: padding of S-ELL points there, so an
// infinity of B stays in its own row.
//
// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kR           columns of C per thread
//   kBuffer      rows of B per stage
//   kSegmented   whether threads have segments of rows, some of which leave partial sums
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct TiledConfig : Settings {
    static constexpr int kR = Settings::kR, kBuffer = Settings::kBuffer;
    static constexpr int kWidth = 16 / static_cast<int>(sizeof(typename Settings::Value));  // elements per piece
    static constexpr int kPieces = kR / kWidth;
    static constexpr int kPlane = (kBuffer + 1) * 16;
    static constexpr int kBatch = kR < 16 ? 16 / kR : 1;  // columns a thread gathers at a time: 16 loads in flight
    static_assert(kR % kWidth == 0, "the output columns of a thread must fill pieces of 16 bytes");
    static_assert(kBuffer % 32 == 0 && kBuffer < 65536, "a stage must be whole warps of columns that 16 bits can name");
};

constexpr u32 kNoRow = 0xffffffffu;    // a slot that pads a warp
constexpr u32 kPartial = 0x80000000u;  // the key names a partial sum, not a row

// What kAhead steps of a warp's S-ELL hold for one thread. `left` is uniform in the warp; past it nothing is touched.
template <typename T>
struct TiledEntries {
    static constexpr int kAhead = 4;
    u32 index[kAhead];
    T value[kAhead];

    __device__ __forceinline__ void load(const u16* __restrict__ indices, const T* __restrict__ values, u32 left) {
#pragma unroll
        for (int e = 0; e < kAhead; ++e) {
            if (e < left) {
                index[e] = __ldg(indices + 32 * e);
                value[e] = load_element(values + 32 * e);
            }
        }
    }
};

// A thread's part of a panel.
template <typename Config>
struct Tiled {
    using T = typename Config::Value;
    static constexpr int kR = Config::kR;
    using Entries = TiledEntries<T>;
    Sum<T> acc[kR];

    // Gathers `count` rows of B, `width` columns of each, into the planes. Neighbouring threads read neighbouring entries of
    // the map, which rise: what is consecutive in B is coalesced.
    __device__ __forceinline__ static void gather(unsigned char* tile, const u32* __restrict__ map, u32 count,
                                                  const T* __restrict__ b, u64 ldb, u32 width) {
        constexpr int kBatch = Config::kBatch;
        for (u32 base = threadIdx.x; base < count; base += kBatch * blockDim.x) {
            u32 col[kBatch];
            union Row {
                T element[kR];
                uint4 piece[Config::kPieces];
                __device__ Row() {}
            } row[kBatch];
#pragma unroll
            for (int q = 0; q < kBatch; ++q) {
                if (base + q * blockDim.x < count) col[q] = __ldg(map + base + q * blockDim.x);
            }
#pragma unroll
            for (int q = 0; q < kBatch; ++q) {
                if (base + q * blockDim.x >= count) continue;
#pragma unroll
                for (int r = 0; r < kR; ++r) {
                    row[q].element[r] = r < width ? load_element(b + r * ldb + col[q]) : T{};
                }
            }
#pragma unroll
            for (int q = 0; q < kBatch; ++q) {
                const u32 slot = base + q * blockDim.x;
                if (slot >= count) continue;
#pragma unroll
                for (int p = 0; p < Config::kPieces; ++p) {
                    *reinterpret_cast<uint4*>(tile + p * Config::kPlane + 16 * slot) = row[q].piece[p];
                }
            }
        }
    }

    __device__ __forceinline__ void accumulate(const Entries& entries, const unsigned char* tile, u32 left) {
#pragma unroll
        for (int e = 0; e < Entries::kAhead; ++e) {
            if (e >= left) continue;
            const unsigned char* column = tile + 16 * entries.index[e];
            const Sum<T> value = widen(entries.value[e]);
#pragma unroll
            for (int p = 0; p < Config::kPieces; ++p) {
                Vector<T, Config::kWidth> piece;
                piece.set(*reinterpret_cast<const uint4*>(column + p * Config::kPlane));
#pragma unroll
                for (int i = 0; i < Config::kWidth; ++i) {
                    acc[p * Config::kWidth + i] = multiply_add(value, piece[i], acc[p * Config::kWidth + i]);
                }
            }
        }
    }

    // Sums of neighbouring lanes with the same key, in the first of them; a fixed tree, so the same bits every time.
    __device__ __forceinline__ void sum_runs(u32 key, u32 lane) {
        const u32 next = __shfl_down_sync(kAllLanes, key, 1);
        if (!__any_sync(kAllLanes, lane < 31 && next == key && key != kNoRow)) return;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_down_sync(kAllLanes, key, step);
            const bool same = lane + step < 32 && other == key;
#pragma unroll
            for (int r = 0; r < kR; ++r) {
                const Sum<T> from = __shfl_down_sync(kAllLanes, acc[r], step);
                if (same) acc[r] += from;
            }
        }
    }
};

// Panel blockIdx.x has the stages `stage_ptr[x] .. stage_ptr[x + 1]`. Stage s gathers the rows `map[map_ptr[s] ..
// map_ptr[s + 1]]` of B; warp w of the block then walks the steps `ell_ptr[s * warps + w] .. [+ 1]`, 32 entries each.
// `keys[slot]` is the row of a thread: null for the natural order. Segments of one row that are neighbours within a warp have
// one key; rows whose segments stand in several places leave partial sums (`partials`, partial_count per column) to
// `tiled_combine`.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void tiled(const u32* __restrict__ stage_ptr, const u32* __restrict__ map_ptr,
                                      const u32* __restrict__ map, const u32* __restrict__ ell_ptr,
                                      const u16* __restrict__ ell_index, const T* __restrict__ ell_value,
                                      const u32* __restrict__ keys, const T* __restrict__ b, Result* c,
                                      Sum<T>* __restrict__ partials, u32 partial_count, u32 rows, u32 b_rows, u32 n,
                                      Scale<Result, Config::kAccumulate> scale) {
    constexpr int kR = Config::kR, kBuffer = Config::kBuffer;
    using Entries = TiledEntries<T>;
    extern __shared__ uint4 tile_memory[];
    unsigned char* tile = reinterpret_cast<unsigned char*>(tile_memory);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 first = blockIdx.y * kR;
    const u32 width = min(static_cast<u32>(kR), n - first);
    const T* b_first = b + static_cast<u64>(first) * b_rows;

    Tiled<Config> body;
#pragma unroll
    for (int r = 0; r < kR; ++r) body.acc[r] = Sum<T>(0);
    if (threadIdx.x < Config::kPieces) {
        *reinterpret_cast<uint4*>(tile + threadIdx.x * Config::kPlane + 16 * kBuffer) = make_uint4(0, 0, 0, 0);
    }
    const u32 end = __ldg(stage_ptr + blockIdx.x + 1);
    for (u32 stage = __ldg(stage_ptr + blockIdx.x); stage < end; ++stage) {
        const u32 map_at = __ldg(map_ptr + stage);
        const u64 at = __ldg(ell_ptr + static_cast<u64>(stage) * warps + warp);
        u32 left = __ldg(ell_ptr + static_cast<u64>(stage) * warps + warp + 1) - static_cast<u32>(at);
        const u16* indices = ell_index + at * 32 + lane;
        const T* values = ell_value + at * 32 + lane;
        Tiled<Config>::gather(tile, map + map_at, __ldg(map_ptr + stage + 1) - map_at, b_first, b_rows, width);
        // A's first entries are on their way while the block waits.
        Entries now;
        now.load(indices, values, left);
        __syncthreads();
        while (left > 0) {
            const u32 after = left > Entries::kAhead ? left - Entries::kAhead : 0;
            indices += 32 * Entries::kAhead;
            values += 32 * Entries::kAhead;
            Entries next;
            next.load(indices, values, after);
            body.accumulate(now, tile, left);
            now = next;
            left = after;
        }
        __syncthreads();
    }

    const u32 slot = blockIdx.x * blockDim.x + threadIdx.x;
    if constexpr (Config::kSegmented) {
        // Slots are padded to whole panels.
        const u32 key = __ldg(keys + slot);
        body.sum_runs(key, lane);
        const u32 before = __shfl_up_sync(kAllLanes, key, 1);
        if (key == kNoRow || (lane > 0 && before == key)) return;
        if (key & kPartial) {
#pragma unroll
            for (int r = 0; r < kR; ++r) {
                if (r < width) partials[static_cast<u64>(first + r) * partial_count + (key & ~kPartial)] = body.acc[r];
            }
            return;
        }
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            if (r < width) store_one(c + static_cast<u64>(first + r) * rows + key, body.acc[r], scale);
        }
    } else {
        if (slot >= rows) return;
        const u32 row = keys == nullptr ? slot : __ldg(keys + slot);
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            if (r < width) store_one(c + static_cast<u64>(first + r) * rows + row, body.acc[r], scale);
        }
    }
}

// The rows that left partial sums, `lanes` threads (a power of two, at most a warp) for each row and column: row
// `long_rows[i]` sums `long_ptr[i] .. long_ptr[i + 1]`. Result and kAccumulate are as in TiledConfig.
template <typename Result, bool kAccumulate>
__device__ __forceinline__ void tiled_combine(const u32* __restrict__ long_rows, const u32* __restrict__ long_ptr,
                                              const Sum<Result>* __restrict__ partials, u32 partial_count, Result* c,
                                              u32 rows, u32 n, u32 long_count, u32 lanes,
                                              Scale<Result, kAccumulate> scale) {
    const u32 lane = threadIdx.x % lanes;
    const u32 which = blockIdx.x * (32 / lanes) + threadIdx.x % 32 / lanes;
    const u32 column = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (column >= n) return;
    const Sum<Result>* from = partials + static_cast<u64>(column) * partial_count;
    // Shuffles need the whole warp, also where its last rows are none.
    const bool mine = which < long_count;
    const u32 begin = mine ? __ldg(long_ptr + which) : 0, end = mine ? __ldg(long_ptr + which + 1) : 0;
    Sum<Result> sum = Sum<Result>(0);
#pragma unroll 4
    for (u32 at = begin + lane; at < end; at += lanes) sum += from[at];
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        const Sum<Result> other = __shfl_xor_sync(kAllLanes, sum, step);
        if (step < lanes) sum += other;
    }
    if (mine && lane == 0) store_one(c + static_cast<u64>(column) * rows + __ldg(long_rows + which), sum, scale);
}

}  // namespace sparsetune
