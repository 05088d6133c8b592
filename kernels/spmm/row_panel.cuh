// Row-panel SpMM (LO-SpMM, section 3.1), row-major: a tile of M1 rows by N1 columns, each B row loaded once for all M1 rows.
// maps:    thread -> m1 outputs of each of `vec` columns; n1 / vec threads -> a tile; block.x -> tiles of rows; block.y -> column tiles
// tune:    m1 1 2 4 8 16 32 | n1 16 32 48 64 96 128 192 256 | vec 1 2 4 8 | unroll 1 2 4 | block 64 96 192 256 | order natural length similarity locality
// needs:   packed panels (the union of each tile's columns, m1 values per column), row-major B and C, finite B
// refuses: n not a multiple of vec (rows of B would not be aligned)
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kM1, kN1     rows and columns of a tile of C
//   kVec         columns of a thread, which one instruction loads
//   kUnroll      columns of a panel in flight per thread
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct RowPanelConfig : Settings {
    static constexpr int kM1 = Settings::kM1, kN1 = Settings::kN1, kVec = Settings::kVec;
    static constexpr int kThreads = kN1 / kVec;  // threads along the columns of a tile
    static_assert(kN1 % kVec == 0, "a tile's columns must divide into vectors");
    static_assert(256 % kThreads == 0 || 192 % kThreads == 0, "a block of 256 or of 192 threads must hold whole tiles");
    static_assert(kM1 * kVec * sizeof(Sum<typename Settings::Value>) <= 512,
                  "more than 512 bytes of sums per thread leave no room for loads in flight");
};

// A thread's part of a tile.
template <typename Config>
struct RowPanel {
    using T = typename Config::Value;
    static constexpr int kM1 = Config::kM1, kVec = Config::kVec, kUnroll = Config::kUnroll;
    Sums<T, kVec> acc[kM1];

    // kUnroll columns of the panel: all loads before the first multiply. Past `count` nothing is touched; kWhole
    // says that `count` is kUnroll. Rows of B are `stride` bytes apart: by bytes an address is one instruction.
    template <bool kWhole>
    __device__ __forceinline__ void accumulate(const u32* __restrict__ cols, const T* __restrict__ packed,
                                               const char* __restrict__ b, u32 stride, u32 count) {
        Vector<T, kVec> loaded[kUnroll];
        Vector<T, kM1> values[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u < count) {
                loaded[u].load(reinterpret_cast<const T*>(b + static_cast<u64>(__ldg(cols + u)) * stride));
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
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void row_panel(const u32* __restrict__ panel_ptr, const u32* __restrict__ panel_cols,
                                          const T* __restrict__ panel_vals, const T* __restrict__ b,
                                          Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 tiles,
                                          u32 n, const Scale<Result, Config::kAccumulate>& scale) {
    constexpr int kM1 = Config::kM1, kN1 = Config::kN1, kVec = Config::kVec, kUnroll = Config::kUnroll;
    constexpr u32 kThreads = Config::kThreads;
    const u32 tile = blockIdx.x * (blockDim.x / kThreads) + threadIdx.x / kThreads;
    const u32 first = blockIdx.y * kN1 + threadIdx.x % kThreads * kVec;
    if (tile >= tiles || first >= n) return;

    RowPanel<Config> body;
#pragma unroll
    for (int m = 0; m < kM1; ++m) body.acc[m].zero();

    const u32 k = __ldg(panel_ptr + tile);
    u32 left = __ldg(panel_ptr + tile + 1) - k;
    const char* const b_first = reinterpret_cast<const char*>(b + first);
    const u32 stride = n * sizeof(T);
    // Pointers that move: the addresses of a step are one register and constants.
    panel_cols += k, panel_vals += static_cast<u64>(k) * kM1;
#pragma unroll 1
    for (; left >= kUnroll; left -= kUnroll, panel_cols += kUnroll, panel_vals += kUnroll * kM1) {
        body.template accumulate<true>(panel_cols, panel_vals, b_first, stride, kUnroll);
    }
    if (left > 0) body.template accumulate<false>(panel_cols, panel_vals, b_first, stride, left);
#pragma unroll
    for (int m = 0; m < kM1; ++m) {
        const u32 slot = tile * kM1 + m;
        if (slot < rows) body.acc[m].store(c + static_cast<u64>(__ldg(order + slot)) * n + first, scale);
    }
}

}  // namespace sparsetune
