// Judges the solution of a triangular system by its componentwise backward error (Higham, Accuracy and Stability, 7.1), an
// approximate one by the largest residual beside the largest element of b.
// maps:    block -> 8 rows in turn; warp -> short row, block -> long row; lane -> (entry, right-hand side)
// needs:   256 threads per block; the system in solve order, b and x rows x rhs row-major in the matrix's own order
// refuses: nothing
#pragma once
#include "engine/verify.cuh"

namespace sparsetune {

constexpr int kResidualWarps = 8;
static_assert(kResidualWarps * 32 == kVerifyThreads, "both judges reduce over blocks of one size.");

// Entries above which a row is shared by all warps of its block: one long row must not keep one warp busy for seconds.
constexpr u32 kLongRow = 2048;

// The balance of one (row, right-hand side): T x - b as an unevaluated sum hi + lo, and |T||x| + |b|. The pair carries
// about 106 bits, so that the check's own rounding does not count beside that of a float64 solution. `Balance` is the
// sum-and-product scheme Dot2 (Ogita, Rump and Oishi, SIAM J. Sci. Comput. 26, 2005).
struct Balance {
    double hi, lo, scale;

    __device__ void add(double term, double rest) {
        const double sum = hi + term;
        const double back = sum - hi;
        lo += (hi - (sum - back)) + (term - back) + rest;
        hi = sum;
    }

    __device__ void add_product(double a, double x) {
        // Rounded separately: fused with the sum that follows, it would not be the number that `fma` completes.
        const double product = __dmul_rn(a, x);
        add(product, fma(a, x, -product));
        scale += fabs(product);
    }

    __device__ void add_balance(const Balance& other) {
        add(other.hi, other.lo);
        scale += other.scale;
    }
};

// A triangular system with elements of type T, in solve order.
template <typename T>
struct System {
    const u32* row_ptr;
    const u32* col_idx;
    const T* values;
    const T* diagonal;
    const T* b;
    const T* x;
    u32 rows, rhs, reversed;
    double beside;  // what residuals are judged beside: the largest element of b; 0: the terms of their equations

    // Where the row of a solve index begins in b and x.
    __device__ u64 at_row(u32 s) const { return static_cast<u64>(reversed ? rows - 1 - s : s) * rhs; }
};

// The sum of the entries first, first + step, ... of row s against right-hand side j.
template <typename T>
__device__ inline Balance entries_of(const System<T>& t, u32 s, u32 j, u32 first, u32 step) {
    Balance mine = {0.0, 0.0, 0.0};
    const u64 end = t.row_ptr[s + 1];
#pragma unroll 4
    for (u64 k = static_cast<u64>(t.row_ptr[s]) + first; k < end; k += step) {
        mine.add_product(static_cast<double>(t.values[k]), static_cast<double>(t.x[t.at_row(t.col_idx[k]) + j]));
    }
    return mine;
}

// The finished judgement of one element, once all its entries are in.
template <typename T>
__device__ inline Partial judge(const System<T>& t, u32 s, u32 j, Balance sum, u32 poison) {
    // Keeps an element whose scale is 0 exact: anything but 0 there is a huge error.
    constexpr double kTiny = sizeof(T) == 8 ? 2.2250738585072014e-308 : 1.1754943508222875e-38;  // DBL_MIN, FLT_MIN
    const u64 at = t.at_row(s) + j;
    const T x = t.x[at];
    const double b = static_cast<double>(t.b[at]);
    sum.add_product(static_cast<double>(t.diagonal[s]), static_cast<double>(x));
    sum.add(-b, 0.0);
    sum.scale += fabs(b);
    const double weight = (static_cast<double>(t.row_ptr[s + 1] - t.row_ptr[s]) + 8.0) / 8.0;
    const double residual = fabs(sum.hi + sum.lo);
    double error = t.beside > 0.0 ? residual / t.beside : residual / (sum.scale + kTiny) / weight;
    const double infinity = __longlong_as_double(0x7ff0000000000000ll);
    // Written so that NaN takes this branch, and so that a scale beyond the range excuses nothing.
    if (!(error >= 0.0) || !(sum.scale < infinity)) error = infinity;
    return {error, at, static_cast<u64>(is_poisoned(x, poison))};
}

// All rows and right-hand sides; one Partial per block.
template <typename T>
__device__ inline void residual(const System<T>& t, u32 poison, Partial* partials) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Adjacent lanes take neighbouring right-hand sides, adjacent in memory; the rest of the warp takes other entries.
    u32 width = 1;
    while (width < t.rhs && width < 32) width *= 2;
    const u32 column = lane % width, lane_entry = lane / width, entries = 32 / width;
    Partial worst = {0.0, ~0ull, 0};
    __shared__ Balance shares[kVerifyThreads];

    const u64 step = static_cast<u64>(gridDim.x) * kResidualWarps;
    for (u64 first = static_cast<u64>(blockIdx.x) * kResidualWarps; first < t.rows; first += step) {
        for (u32 i = 0; i < kResidualWarps && first + i < t.rows; ++i) {
            const u32 s = static_cast<u32>(first) + i;
            const bool is_long = t.row_ptr[s + 1] - t.row_ptr[s] > kLongRow;
            if (!is_long && i != warp) continue;
            const u32 part = is_long ? warp * entries + lane_entry : lane_entry;
            const u32 parts = is_long ? kResidualWarps * entries : entries;
            for (u32 base = 0; base < t.rhs; base += width) {
                const u32 j = base + column;
                Balance sum = {0.0, 0.0, 0.0};
                if (j < t.rhs) sum = entries_of(t, s, j, part, parts);
                for (u32 offset = width; offset < 32; offset *= 2) {
                    sum.add_balance({__shfl_down_sync(kAllLanes, sum.hi, offset),
                                     __shfl_down_sync(kAllLanes, sum.lo, offset),
                                     __shfl_down_sync(kAllLanes, sum.scale, offset)});
                }
                if (is_long) {
                    // `is_long`, `s` and `base` are the same for the whole block.
                    shares[threadIdx.x] = sum;
                    __syncthreads();
                    if (warp == 0) {
                        for (u32 w = 1; w < kResidualWarps; ++w) sum.add_balance(shares[w * 32 + lane]);
                    }
                    __syncthreads();
                    if (warp != 0) continue;
                }
                if (lane < width && j < t.rhs) worst = worse(worst, judge(t, s, j, sum, poison));
            }
        }
    }
    reduce(worst, partials);
}

}  // namespace sparsetune
