// Row panels whose columns are divided among several groups of threads, for matrices of too few panels to fill the device: each group
// sums its part of the columns, and the parts meet in shared memory.
// maps:    ways x n1 / vec threads -> a panel's tile; group -> one part of its columns, then every ways-th of its rows; else as row_panel
// tune:    ways 2 4 8 | m1 2 4 8 | n1 16 32 48 64 96 128 192 256 | vec 1 2 4 8 | unroll 2 4 | block 192 256 | order natural length similarity locality
// needs:   as row_panel
// refuses: as row_panel; sums of a block that take more than 48 KiB
#pragma once
#include "spmm/row_panel.cuh"

namespace sparsetune {

// In addition to what RowPanelConfig takes:
//   kWays   groups of threads that share a panel
//   kBlock  threads of a block
template <typename Settings>
struct PanelWaysConfig : RowPanelConfig<Settings> {
    static constexpr int kWays = Settings::kWays, kBlock = Settings::kBlock;
    static constexpr int kGroup = RowPanelConfig<Settings>::kThreads * kWays;  // threads that share a panel's tile
    static_assert(kWays > 1, "one group alone is what row_panel has");
    static_assert(kBlock % kGroup == 0, "a block must hold whole tiles");
};

template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void panel_ways(const u32* __restrict__ panel_ptr, const u32* __restrict__ panel_cols,
                                           const T* __restrict__ panel_vals, const T* __restrict__ b,
                                           Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 tiles,
                                           u32 n, const Scale<Result, Config::kAccumulate>& scale) {
    constexpr int kM1 = Config::kM1, kN1 = Config::kN1, kVec = Config::kVec, kUnroll = Config::kUnroll;
    constexpr u32 kThreads = Config::kThreads, kWays = Config::kWays, kGroup = Config::kGroup;
    using Part = Sums<T, kVec>;
    // Neighbouring threads have neighbouring columns: the sums of a row of a part lie side by side.
    __shared__ alignas(16) Part parts[Config::kBlock / kThreads][kM1][kThreads];

    const u32 lane = threadIdx.x % kThreads, group = threadIdx.x / kThreads, way = group % kWays;
    const u32 tile = blockIdx.x * (Config::kBlock / kGroup) + threadIdx.x / kGroup;
    const u32 first = blockIdx.y * kN1 + lane * kVec;
    const bool works = tile < tiles && first < n;

    RowPanel<Config> body;
#pragma unroll
    for (int m = 0; m < kM1; ++m) body.acc[m].zero();
    if (works) {
        u32 k = __ldg(panel_ptr + tile);
        u32 left = __ldg(panel_ptr + tile + 1) - k;
        // Parts are whole steps, so that only the last can have a tail.
        const u32 part = (left + kWays * kUnroll - 1) / (kWays * kUnroll) * kUnroll;
        const u32 before = min(way * part, left);
        k += before, left = min(part, left - before);
        const char* const b_first = reinterpret_cast<const char*>(b + first);
        const u32 stride = n * sizeof(T);
        panel_cols += k, panel_vals += static_cast<u64>(k) * kM1;
#pragma unroll 1
        for (; left >= kUnroll; left -= kUnroll, panel_cols += kUnroll, panel_vals += kUnroll * kM1) {
            body.template accumulate<true>(panel_cols, panel_vals, b_first, stride, kUnroll);
        }
        if (left > 0) body.template accumulate<false>(panel_cols, panel_vals, b_first, stride, left);
    }
#pragma unroll
    for (int m = 0; m < kM1; ++m) parts[group][m][lane] = body.acc[m];
    __syncthreads();
    if (!works) return;
    for (u32 m = way; m < kM1; m += kWays) {
        const u32 slot = tile * kM1 + m;
        if (slot >= rows) return;
        // Parts in the order of their columns, so that every call adds alike.
        Part sum = parts[group - way][m][lane];
#pragma unroll
        for (u32 other = 1; other < kWays; ++other) {
            const Part& more = parts[group - way + other][m][lane];
#pragma unroll
            for (int i = 0; i < kVec; ++i) sum.lane[i] += more.lane[i];
        }
        sum.store(c + static_cast<u64>(__ldg(order + slot)) * n + first, scale);
    }
}

}  // namespace sparsetune
