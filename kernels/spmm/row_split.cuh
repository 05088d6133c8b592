// Row-split SpMM, row-major: a subwarp per row, output columns in registers, C written once.
// maps:    block.x -> rows; subwarp -> one row; lane -> `cols` vectors of `vec` columns; block.y -> column tiles
// tune:    lanes 4 8 16 32 | vec 1 2 4 | cols 1 2 4 | unroll 2 4 8 | block 128 256 | fetch direct shuffle | order natural length
// needs:   CSR with 32-bit row pointers, f32, row-major B and C
// refuses: n not a multiple of vec (rows of B would not be aligned)
#pragma once
#include "spmm/vector.cuh"

namespace sparsetune {

template <int kLanes, int kVec, int kCols, int kUnroll, bool kShuffle, bool kFull>
struct RowSplitConfig {
    static constexpr int kLanesPerRow = kLanes;      // threads that share a row of A
    static constexpr int kTileColumns = kLanes * kVec * kCols;  // N1: columns of C one subwarp computes
    static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kVec == 1 || kVec == 2 || kVec == 4, "vectors are 1, 2 or 4 floats wide");
    static_assert(kCols * kVec <= 32, "more than 32 accumulators a thread leave no room for loads in flight");
    static_assert(kUnroll <= 8, "more than 8 nonzeros in flight a thread spill");
};

// One subwarp's share of a row: kCols vectors a lane, kLanes vectors apart, so a warp's loads are contiguous.
template <int kLanes, int kVec, int kCols, int kUnroll, bool kShuffle, bool kFull>
struct RowSplit {
    using Config = RowSplitConfig<kLanes, kVec, kCols, kUnroll, kShuffle, kFull>;
    using Vec = Fragment<kVec>;

    const float* __restrict__ b;  // first column of this lane in row 0 of B
    u32 n;                        // leading dimension of B and C
    bool inside[kCols];           // whether each vector lies within the n columns
    Vec acc[kCols];

    __device__ __forceinline__ RowSplit(const float* __restrict__ b_base, u32 n_, u32 first) : b(b_base + first), n(n_) {
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
            inside[c] = kFull || first + c * kLanes * kVec < n;
            acc[c].zero();
        }
    }

    // kUnroll nonzeros: every load of B is issued before the first multiply. `count` nonzeros are real.
    template <bool kWhole>
    __device__ __forceinline__ void accumulate(const u32 (&col)[kUnroll], const float (&val)[kUnroll], u32 count) {
        Vec loaded[kUnroll][kCols];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const float* row = b + static_cast<u64>(col[u]) * n;
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
                if ((kWhole || u < count) && inside[c]) loaded[u][c].load(row + c * kLanes * kVec);
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
                if ((kWhole || u < count) && inside[c]) acc[c].fma(val[u], loaded[u][c]);
            }
        }
    }

    // Each lane reads A for itself: the same address in the subwarp, one transaction.
    __device__ __forceinline__ void walk_direct(const u32* __restrict__ cols, const float* __restrict__ vals, u32 k, u32 end) {
        u32 col[kUnroll];
        float val[kUnroll];
        for (; k + kUnroll <= end; k += kUnroll) {
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
                col[u] = __ldg(cols + k + u);
                val[u] = __ldg(vals + k + u);
            }
            accumulate<true>(col, val, kUnroll);
        }
        if (k < end) {
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
                col[u] = k + u < end ? __ldg(cols + k + u) : 0;
                val[u] = k + u < end ? __ldg(vals + k + u) : 0.0f;
            }
            accumulate<false>(col, val, end - k);
        }
    }

    // The subwarp reads kLanes nonzeros of A at once and hands them round by shuffles.
    __device__ __forceinline__ void walk_shuffled(const u32* __restrict__ cols, const float* __restrict__ vals, u32 k, u32 end) {
        const u32 lane = threadIdx.x % kLanes;
        const u32 mask = kLanes == 32 ? 0xffffffffu : ((1u << (kLanes % 32)) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);
        for (; k < end; k += kLanes) {
            const u32 here = min(static_cast<u32>(kLanes), end - k);
            const u32 my_col = lane < here ? __ldg(cols + k + lane) : 0;
            const float my_val = lane < here ? __ldg(vals + k + lane) : 0.0f;
            for (u32 first = 0; first < here; first += kUnroll) {
                u32 col[kUnroll];
                float val[kUnroll];
#pragma unroll
                for (int u = 0; u < kUnroll; ++u) {
                    col[u] = __shfl_sync(mask, my_col, first + u, kLanes);
                    val[u] = __shfl_sync(mask, my_val, first + u, kLanes);
                }
                if (first + kUnroll <= here) {
                    accumulate<true>(col, val, kUnroll);
                } else {
                    accumulate<false>(col, val, here - first);
                }
            }
        }
    }

    __device__ __forceinline__ void store(float* c_row) const {
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
            if (inside[c]) acc[c].store_streaming(c_row + c * kLanes * kVec);
        }
    }
};

// `order` is a permutation of the rows, or null for the natural order.
template <int kLanes, int kVec, int kCols, int kUnroll, bool kShuffle, bool kFull>
__device__ __forceinline__ void row_split(const u32* __restrict__ row_ptr, const u32* __restrict__ cols,
                                          const float* __restrict__ vals, const float* __restrict__ b,
                                          float* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n) {
    using Body = RowSplit<kLanes, kVec, kCols, kUnroll, kShuffle, kFull>;
    const u32 slot = blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
    if (slot >= rows) return;
    const u32 row = order == nullptr ? slot : __ldg(order + slot);
    const u32 first = blockIdx.y * Body::Config::kTileColumns + threadIdx.x % kLanes * kVec;
    Body body(b, n, first);
    const u32 begin = __ldg(row_ptr + row);
    const u32 end = __ldg(row_ptr + row + 1);
    if (kShuffle) {
        body.walk_shuffled(cols, vals, begin, end);
    } else {
        body.walk_direct(cols, vals, begin, end);
    }
    body.store(c + static_cast<u64>(row) * n + first);
}

}  // namespace sparsetune
