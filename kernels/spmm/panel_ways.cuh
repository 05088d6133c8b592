// Row panels whose columns and values are copied to shared memory ahead of their use, so that a step waits for B alone. Where panels are
// too few to fill the device, several groups of threads share one: each sums its part of the columns, and the parts meet in shared memory.
// maps:    ways x n1 / vec threads -> a panel's tile; group -> one part of its columns, then every ways-th of its rows; else as row_panel
// tune:    ways 1 2 4 8 | m1 2 4 8 | n1 16 32 64 128 256 | vec 1 2 4 8 | unroll 2 4 8 | block 256 | order natural length similarity locality
// needs:   as row_panel; panels of whole fours of columns (the last one again, with zeros), so that copies are aligned
// refuses: as row_panel; groups that are not several threads of one warp; stages or sums of a block that take more than 48 KiB, and
//          stages that are no whole steps
#pragma once
#include "copies.cuh"
#include "spmm/row_panel.cuh"

namespace sparsetune {

// In addition to what RowPanelConfig takes:
//   kWays   groups of threads that share a panel
//   kBlock  threads of a block
//   kStage  columns that a group copies at a time: a stage
template <typename Settings>
struct PanelWaysConfig : RowPanelConfig<Settings> {
    static constexpr int kWays = Settings::kWays, kBlock = Settings::kBlock, kStage = Settings::kStage;
    static constexpr int kThreads = RowPanelConfig<Settings>::kThreads;
    static constexpr int kGroup = kThreads * kWays;  // threads that share a panel's tile
    // Rows of B that one step loads before it multiplies. With twice as many in flight, two steps take turns.
    static constexpr int kStep = Settings::kUnroll < 4 ? Settings::kUnroll : 4;
    static constexpr bool kInTurns = Settings::kUnroll == 2 * kStep;
    static constexpr int kStages = 3;
    static constexpr u32 kValueBytes = RowPanelConfig<Settings>::kM1 * sizeof(typename Settings::Value);
    static constexpr u32 kStageBytes = kStage * (4 + kValueBytes);
    static_assert(kBlock % kGroup == 0, "a block must hold whole tiles");
    static_assert(32 % kThreads == 0, "a warp must hold whole groups");
    static_assert(Settings::kUnroll == 2 || Settings::kUnroll == 4 || Settings::kUnroll == 8,
                  "steps are of two or four columns");
    static_assert(kStage % Settings::kUnroll == 0 && kStage % 4 == 0, "a stage must be whole steps and whole fours");
    static_assert(4 * kValueBytes % 16 == 0, "values of four columns must be whole pieces of 16 bytes");
};

// A group's part of a panel: `count` columns, whole fours, and their values, of which three stages are in shared memory.
template <typename Config>
struct PanelPart {
    using T = typename Config::Value;
    static constexpr int kM1 = Config::kM1, kVec = Config::kVec, kStep = Config::kStep, kThreads = Config::kThreads;
    static constexpr u32 kStage = Config::kStage;
    using Rows = Vector<T, kVec>[kStep];

    const u32* cols;
    const T* vals;
    u32 count;
    unsigned char* ring;
    const char* b;
    u32 stride;
    Sums<T, kVec> acc[kM1];

    __device__ __forceinline__ unsigned char* place(u32 stage) const {
        return ring + stage % Config::kStages * Config::kStageBytes;
    }

    // Copies a stage, if there is one, as a lot of its own.
    __device__ __forceinline__ void begin(u32 stage) const {
        const u32 from = stage * kStage;
        if (from < count) {
            const u32 here = min(kStage, count - from);
            copy_ahead<kThreads>(place(stage), cols + from, here / 4);
            copy_ahead<kThreads>(place(stage) + 4 * kStage, vals + static_cast<u64>(from) * kM1,
                                 here * Config::kValueBytes / 16);
        }
        end_of_lot();
    }

    // The rows of B of a step.
    __device__ __forceinline__ void load(const u32* staged, Rows& rows) const {
        u32 col[kStep];
        if constexpr (kStep == 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(staged);
            col[0] = four.x, col[1] = four.y, col[2] = four.z, col[3] = four.w;
        } else {
            const uint2 two = *reinterpret_cast<const uint2*>(staged);
            col[0] = two.x, col[1] = two.y;
        }
#pragma unroll
        for (int u = 0; u < kStep; ++u) rows[u].load(reinterpret_cast<const T*>(b + static_cast<u64>(col[u]) * stride));
    }

    __device__ __forceinline__ void multiply(const T* staged, const Rows& rows) {
#pragma unroll
        for (int u = 0; u < kStep; ++u) {
            Vector<T, kM1> values;
            values.load_shared(staged + u * kM1);
#pragma unroll
            for (int m = 0; m < kM1; ++m) acc[m].fma(values[m], rows[u]);
        }
    }

    __device__ __forceinline__ void add_stage(u32 stage) {
        const u32* const staged_cols = reinterpret_cast<const u32*>(place(stage));
        const T* const staged_vals = reinterpret_cast<const T*>(place(stage) + 4 * kStage);
        const u32 here = min(kStage, count - stage * kStage);
        if constexpr (Config::kInTurns) {
            if (here == kStage) {
                Rows even, odd;
                load(staged_cols, even);
#pragma unroll
                for (u32 i = 0; i < kStage; i += 2 * kStep) {
                    load(staged_cols + i + kStep, odd);
                    multiply(staged_vals + i * kM1, even);
                    if (i + 2 * kStep < kStage) load(staged_cols + i + 2 * kStep, even);
                    multiply(staged_vals + (i + kStep) * kM1, odd);
                }
                return;
            }
        }
#pragma unroll 1
        for (u32 i = 0; i < here; i += kStep) {
            Rows rows;
            load(staged_cols + i, rows);
            multiply(staged_vals + i * kM1, rows);
        }
    }

    __device__ __forceinline__ void add_all() {
        const u32 stages = (count + kStage - 1) / kStage;
        begin(0);
        begin(1);
#pragma unroll 1
        for (u32 stage = 0; stage < stages; ++stage) {
            copied_but_latest_lot();
            // All lanes see this stage, and are through with the one that the next copies replace.
            __syncwarp(group_lanes<kThreads>());
            begin(stage + 2);
            add_stage(stage);
        }
    }
};

template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void panel_ways(const u32* __restrict__ panel_ptr, const u32* __restrict__ panel_cols,
                                           const T* __restrict__ panel_vals, const T* __restrict__ b,
                                           Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 tiles,
                                           u32 n, const Scale<Result, Config::kAccumulate>& scale) {
    constexpr int kM1 = Config::kM1, kVec = Config::kVec;
    constexpr u32 kThreads = Config::kThreads, kWays = Config::kWays, kGroup = Config::kGroup;
    using Sum = Sums<T, kVec>;
    extern __shared__ __align__(16) unsigned char shared_bytes[];

    const u32 lane = threadIdx.x % kThreads, group = threadIdx.x / kThreads, way = group % kWays;
    const u32 tile = blockIdx.x * (Config::kBlock / kGroup) + threadIdx.x / kGroup;
    const u32 first = blockIdx.y * Config::kN1 + lane * kVec;

    PanelPart<Config> part;
    u32 from = 0, count = 0;
    if (tile < tiles) {
        from = __ldg(panel_ptr + tile);
        count = __ldg(panel_ptr + tile + 1) - from;
        // Parts are whole fours, as panels are.
        const u32 most = (count / 4 + kWays - 1) / kWays * 4, before = min(way * most, count);
        from += before, count = min(most, count - before);
    }
    part.cols = panel_cols + from, part.vals = panel_vals + static_cast<u64>(from) * kM1, part.count = count;
    part.ring = shared_bytes + group * (Config::kStages * Config::kStageBytes);
    // Lanes beyond the last column copy for the others; what they sum is not stored.
    part.b = reinterpret_cast<const char*>(b + min(first, n - kVec)), part.stride = n * sizeof(T);
#pragma unroll
    for (int m = 0; m < kM1; ++m) part.acc[m].zero();
    part.add_all();

    const bool stores = tile < tiles && first < n;
    if constexpr (kWays == 1) {
        if (!stores) return;
#pragma unroll
        for (int m = 0; m < kM1; ++m) {
            const u32 slot = tile * kM1 + m;
            if (slot < rows) part.acc[m].store(c + static_cast<u64>(__ldg(order + slot)) * n + first, scale);
        }
    } else {
        // Neighbouring threads have neighbouring columns: the sums of a row of a part lie side by side. They take the stages' place.
        auto* const sums = reinterpret_cast<Sum(*)[kM1][kThreads]>(shared_bytes);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < kM1; ++m) sums[group][m][lane] = part.acc[m];
        __syncthreads();
        if (!stores) return;
        for (u32 m = way; m < kM1; m += kWays) {
            const u32 slot = tile * kM1 + m;
            if (slot >= rows) return;
            // Parts in the order of their columns, so that every call adds alike.
            Sum sum = sums[group - way][m][lane];
#pragma unroll
            for (u32 other = 1; other < kWays; ++other) {
                const Sum& more = sums[group - way + other][m][lane];
#pragma unroll
                for (int i = 0; i < kVec; ++i) sum.lane[i] += more.lane[i];
            }
            sum.store(c + static_cast<u64>(__ldg(order + slot)) * n + first, scale);
        }
    }
}

}  // namespace sparsetune
