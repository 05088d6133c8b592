// Row-panel SpMM (LO-SpMM, section 3.1), row-major: a tile of M1 rows by N1 columns, each B row loaded once for all M1 rows.
// maps:    thread -> m1 outputs of each of `vec` columns; threadIdx.y and block.x -> tiles of rows; block.y -> column tiles
// tune:    m1 1 2 4 8 16 32 | n1 32 64 128 256 | vec 1 2 4 | unroll 1 2 4 | tiles 1 2 4 8
// needs:   packed panels (the union of each tile's columns, m1 values a column), f32, row-major B and C, finite B
// refuses: n not a multiple of vec (rows of B would not be aligned)
#pragma once
#include "spmm/vector.cuh"

namespace sparsetune {

template <int kM1, int kN1, int kVec, int kUnroll>
struct RowPanelConfig {
    static constexpr int kThreads = kN1 / kVec;  // threads along the columns of a tile
    static_assert(kN1 % kVec == 0, "a tile's columns must divide into vectors");
    static_assert(kThreads % 32 == 0, "a tile's threads must fill warps, so that a tile's values are uniform in a warp");
    static_assert(kM1 * kVec <= 128, "more than 128 accumulators a thread leave no room for loads in flight");
};

// kM1 packed values, uniform in a warp; 16 bytes at a time where they align.
template <int kM1>
struct PanelValues {
    static constexpr int kWidth = kM1 % 4 == 0 ? 4 : kM1;
    Fragment<kWidth> part[kM1 / kWidth];

    __device__ __forceinline__ void load(const float* __restrict__ from) {
#pragma unroll
        for (int i = 0; i < kM1 / kWidth; ++i) part[i].load(from + i * kWidth);
    }
    __device__ __forceinline__ float operator[](int m) const { return part[m / kWidth].lane[m % kWidth]; }
};

template <int kM1, int kVec, int kUnroll>
struct RowPanel {
    Fragment<kVec> acc[kM1];

    // kUnroll columns of the panel: all loads before the first multiply. Past `count` nothing is touched.
    template <bool kWhole>
    __device__ __forceinline__ void accumulate(const u32* __restrict__ cols, const float* __restrict__ packed,
                                               const float* __restrict__ b, u32 n, u32 count) {
        Fragment<kVec> loaded[kUnroll];
        PanelValues<kM1> values[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u < count) {
                loaded[u].load(b + static_cast<u64>(__ldg(cols + u)) * n);
                values[u].load(packed + u * kM1);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u < count) {
#pragma unroll
                for (int m = 0; m < kM1; ++m) acc[m].fma(values[u][m], loaded[u]);
            }
        }
    }
};

// `panel_ptr[tile]` is where tile's columns start in `panel_cols`; its values start at kM1 times that in `panel_vals`.
// `order` is the permutation of rows that the tiles were cut from.
template <int kM1, int kN1, int kVec, int kUnroll>
__device__ __forceinline__ void row_panel(const u32* __restrict__ panel_ptr, const u32* __restrict__ panel_cols,
                                          const float* __restrict__ panel_vals, const float* __restrict__ b,
                                          float* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 tiles, u32 n) {
    using Config = RowPanelConfig<kM1, kN1, kVec, kUnroll>;
    static_assert(Config::kThreads > 0, "a tile has threads");
    const u32 tile = blockIdx.x * blockDim.y + threadIdx.y;
    const u32 first = blockIdx.y * kN1 + threadIdx.x * kVec;
    if (tile >= tiles || first >= n) return;

    RowPanel<kM1, kVec, kUnroll> body;
#pragma unroll
    for (int m = 0; m < kM1; ++m) body.acc[m].zero();

    u32 k = __ldg(panel_ptr + tile);
    const u32 end = __ldg(panel_ptr + tile + 1);
    for (; k + kUnroll <= end; k += kUnroll) {
        body.template accumulate<true>(panel_cols + k, panel_vals + static_cast<u64>(k) * kM1, b + first, n, kUnroll);
    }
    if (k < end) {
        body.template accumulate<false>(panel_cols + k, panel_vals + static_cast<u64>(k) * kM1, b + first, n, end - k);
    }
#pragma unroll
    for (int m = 0; m < kM1; ++m) {
        const u32 slot = tile * kM1 + m;
        if (slot < rows) body.acc[m].store_streaming(c + static_cast<u64>(__ldg(order + slot)) * n + first);
    }
}

}  // namespace sparsetune
