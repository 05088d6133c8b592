// Judges the solution of a triangular system by its componentwise backward error (Higham, Accuracy and Stability, 7.1).
// maps:    block -> 8 rows in turn; warp -> short row, block -> long row; lane -> (entry, right-hand side)
// needs:   256 threads a block; the system in solve order, b and x rows x rhs row-major in the matrix's own order
// refuses: nothing
#pragma once

#include "engine/verify.cuh"

namespace engine {

constexpr int kResidualWarps = 8;
static_assert(kResidualWarps * 32 == kVerifyThreads, "both judges reduce over blocks of one size.");

// Entries above which a row is shared by all warps of its block: one long row must not keep one warp busy for seconds.
constexpr unsigned kLongRow = 2048;

// What one (row, right-hand side) amounts to: T x - b as an unevaluated sum hi + lo, and |T||x| + |b|. The pair carries
// about 106 bits, so that the check's own rounding does not count beside that of a float64 solution. `residual` is the
// sum-and-product scheme Dot2 (Ogita, Rump and Oishi, SIAM J. Sci. Comput. 26, 2005).
struct Balance {
    double hi, lo, scale;

    __device__ void Add(double term, double rest) {
        const double sum = hi + term;
        const double back = sum - hi;
        lo += (hi - (sum - back)) + (term - back) + rest;
        hi = sum;
    }

    __device__ void AddProduct(double a, double x) {
        // Rounded by itself: fused with the sum that follows, it would not be the number that `fma` completes.
        const double product = __dmul_rn(a, x);
        Add(product, fma(a, x, -product));
        scale += fabs(product);
    }

    __device__ void AddBalance(const Balance& other) {
        Add(other.hi, other.lo);
        scale += other.scale;
    }
};

template <typename T>
struct System {
    const unsigned* row_ptr;
    const unsigned* col_idx;
    const T* values;
    const T* diagonal;
    const T* b;
    const T* x;
    unsigned rows, rhs, reversed;

    // Where the row of a solve index begins in b and x.
    __device__ unsigned long long At(unsigned s) const {
        return (unsigned long long)(reversed ? rows - 1 - s : s) * rhs;
    }
};

// Entries first, first + step, ... of row s against right-hand side j.
template <typename T>
__device__ inline Balance Entries(const System<T>& t, unsigned s, unsigned j, unsigned first, unsigned step) {
    Balance mine = {0.0, 0.0, 0.0};
    const unsigned long long end = t.row_ptr[s + 1];
#pragma unroll 4
    for (unsigned long long k = (unsigned long long)t.row_ptr[s] + first; k < end; k += step) {
        mine.AddProduct((double)t.values[k], (double)t.x[t.At(t.col_idx[k]) + j]);
    }
    return mine;
}

// The finished judgement of one element, once all its entries are in.
template <typename T>
__device__ inline Partial Judge(const System<T>& t, unsigned s, unsigned j, Balance sum, unsigned poison) {
    // Keeps an element whose scale is 0 exact: anything but 0 there is a huge error.
    constexpr double kTiny = sizeof(T) == 8 ? 2.2250738585072014e-308 : 1.1754943508222875e-38;  // DBL_MIN, FLT_MIN
    const unsigned long long at = t.At(s) + j;
    const T x = t.x[at];
    const double b = (double)t.b[at];
    sum.AddProduct((double)t.diagonal[s], (double)x);
    sum.Add(-b, 0.0);
    sum.scale += fabs(b);
    const double weight = ((double)(t.row_ptr[s + 1] - t.row_ptr[s]) + 8.0) / 8.0;
    double error = fabs(sum.hi + sum.lo) / (sum.scale + kTiny) / weight;
    const double infinity = __longlong_as_double(0x7ff0000000000000ll);
    // Written so that NaN ends here, and so that a scale beyond the range excuses nothing.
    if (!(error >= 0.0) || !(sum.scale < infinity)) error = infinity;
    return {error, at, (unsigned long long)Poisoned(x, poison)};
}

// All rows and right-hand sides; one Partial a block.
template <typename T>
__device__ inline void Residual(const System<T>& t, unsigned poison, Partial* partials) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Lanes side by side take neighbouring right-hand sides, which lie side by side; the rest of the warp other entries.
    unsigned width = 1;
    while (width < t.rhs && width < 32) width *= 2;
    const unsigned column = lane % width, lane_entry = lane / width, entries = 32 / width;
    Partial worst = {0.0, ~0ull, 0};
    __shared__ Balance shares[kVerifyThreads];

    const unsigned long long step = (unsigned long long)gridDim.x * kResidualWarps;
    for (unsigned long long first = (unsigned long long)blockIdx.x * kResidualWarps; first < t.rows; first += step) {
        for (unsigned i = 0; i < kResidualWarps && first + i < t.rows; ++i) {
            const unsigned s = (unsigned)first + i;
            const bool is_long = t.row_ptr[s + 1] - t.row_ptr[s] > kLongRow;
            if (!is_long && i != warp) continue;
            const unsigned part = is_long ? warp * entries + lane_entry : lane_entry;
            const unsigned parts = is_long ? kResidualWarps * entries : entries;
            for (unsigned base = 0; base < t.rhs; base += width) {
                const unsigned j = base + column;
                Balance sum = {0.0, 0.0, 0.0};
                if (j < t.rhs) sum = Entries(t, s, j, part, parts);
                for (unsigned offset = width; offset < 32; offset *= 2) {
                    sum.AddBalance({__shfl_down_sync(~0u, sum.hi, offset), __shfl_down_sync(~0u, sum.lo, offset),
                                    __shfl_down_sync(~0u, sum.scale, offset)});
                }
                if (is_long) {
                    // `is_long`, `s` and `base` are the same for the whole block.
                    shares[threadIdx.x] = sum;
                    __syncthreads();
                    if (warp == 0) {
                        for (unsigned w = 1; w < kResidualWarps; ++w) sum.AddBalance(shares[w * 32 + lane]);
                    }
                    __syncthreads();
                    if (warp != 0) continue;
                }
                if (lane < width && j < t.rhs) worst = Worse(worst, Judge(t, s, j, sum, poison));
            }
        }
    }
    Reduce(worst, partials);
}

}  // namespace engine
