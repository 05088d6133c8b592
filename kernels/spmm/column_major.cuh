// Column-major SpMM for both families: a subwarp per row (or panel of M1 rows) splits its nonzeros, R columns in registers.
// maps:    subwarp -> m1 rows; lane -> every lanes-th entry; registers -> m1 x r outputs; block.y -> r columns
// tune:    m1 1 2 4 | lanes 1 2 4 8 16 32 | r 1 2 4 8 | unroll 1 2 4 | block 128 256 | order natural length
// needs:   CSR (m1 = 1) or packed panels, 32-bit row pointers, f32, column-major B and C; finite B where m1 > 1
// refuses: nothing: any n, any alignment
#pragma once
#include "spmm/vector.cuh"

namespace sparsetune {

template <int kM1, int kLanes, int kR, int kUnroll>
struct ColumnMajorConfig {
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kM1 * kR <= 32, "more than 32 accumulators a thread leave no room for loads in flight");
};

template <int kM1, int kLanes, int kR, int kUnroll, bool kFull>
struct ColumnMajor {
    float acc[kM1][kR];

    // kUnroll entries, kLanes apart; `width` of the R columns are real.
    template <bool kWhole>
    __device__ __forceinline__ void accumulate(const u32* __restrict__ cols, const float* __restrict__ vals,
                                               const float* __restrict__ b, u64 ldb, u32 width, u32 left) {
        u32 col[kUnroll];
        float val[kUnroll][kM1];
        float loaded[kUnroll][kR];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kLanes < left) {
                col[u] = __ldg(cols + u * kLanes);
#pragma unroll
                for (int m = 0; m < kM1; ++m) val[u][m] = __ldg(vals + u * kLanes * kM1 + m);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kLanes < left) {
#pragma unroll
                for (int r = 0; r < kR; ++r) {
                    if (kFull || r < width) loaded[u][r] = __ldg(b + r * ldb + col[u]);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (kWhole || u * kLanes < left) {
#pragma unroll
                for (int r = 0; r < kR; ++r) {
                    if (kFull || r < width) {
#pragma unroll
                        for (int m = 0; m < kM1; ++m) acc[m][r] = fmaf(val[u][m], loaded[u][r], acc[m][r]);
                    }
                }
            }
        }
    }

    // Sums over the subwarp; every lane holds the totals afterwards.
    __device__ __forceinline__ void reduce() {
        const u32 mask = kLanes == 32 ? 0xffffffffu : ((1u << (kLanes % 32)) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
        for (int m = 0; m < kM1; ++m) {
#pragma unroll
            for (int r = 0; r < kR; ++r) {
#pragma unroll
                for (int step = kLanes / 2; step > 0; step /= 2) {
                    acc[m][r] += __shfl_xor_sync(mask, acc[m][r], step, kLanes);
                }
            }
        }
    }
};

// Where a subwarp's entries start: panels were packed in order, single rows are looked up through it.
template <int kM1>
__device__ __forceinline__ u32 tile_row(const u32* __restrict__ order, u32 tile) {
    return kM1 == 1 && order != nullptr ? __ldg(order + tile) : tile;
}

// `ptr`, `cols`, `vals` are the CSR for kM1 = 1, else packed panels; `order` permutes rows, null for natural (kM1 = 1 only).
template <int kM1, int kLanes, int kR, int kUnroll, bool kFull>
__device__ __forceinline__ void column_major(const u32* __restrict__ ptr, const u32* __restrict__ cols,
                                             const float* __restrict__ vals, const float* __restrict__ b,
                                             float* __restrict__ c, const u32* __restrict__ order, u32 rows,
                                             u32 tiles, u32 b_rows, u32 n) {
    static_assert(sizeof(ColumnMajorConfig<kM1, kLanes, kR, kUnroll>) > 0, "the configuration is checked");
    const u32 tile = blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
    if (tile >= tiles) return;
    const u32 lane = threadIdx.x % kLanes;
    const u32 first = blockIdx.y * kR;
    const u32 width = kFull ? kR : min(static_cast<u32>(kR), n - first);
    const float* b_first = b + static_cast<u64>(first) * b_rows;

    ColumnMajor<kM1, kLanes, kR, kUnroll, kFull> body;
#pragma unroll
    for (int m = 0; m < kM1; ++m) {
#pragma unroll
        for (int r = 0; r < kR; ++r) body.acc[m][r] = 0.0f;
    }
    const u32 end = __ldg(ptr + tile_row<kM1>(order, tile) + 1);
    u32 k = __ldg(ptr + tile_row<kM1>(order, tile)) + lane;
    constexpr u32 kStep = kUnroll * kLanes;
    for (; k + (kStep - kLanes) < end; k += kStep) {
        body.template accumulate<true>(cols + k, vals + static_cast<u64>(k) * kM1, b_first, b_rows, width, kStep);
    }
    if (k < end) {
        body.template accumulate<false>(cols + k, vals + static_cast<u64>(k) * kM1, b_first, b_rows, width, end - k);
    }
    body.reduce();
#pragma unroll
    for (int m = 0; m < kM1; ++m) {
        const u32 slot = tile * kM1 + m;
        if (slot >= rows) continue;
        const u64 row = order == nullptr ? slot : __ldg(order + slot);
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            if (r % kLanes == lane && (kFull || r < width)) __stcs(c + (first + r) * static_cast<u64>(rows) + row, body.acc[m][r]);
        }
    }
}

}  // namespace sparsetune
