// Sweeps of a triangular solve: every row is computed at once from what its unknowns were before, again and again. Approximate.
// maps:    block -> `rows` rows in solve order; `lanes` lanes -> a row
// tune:    sweeps 1 to 32 (launches) | inner 1 2 4 (sweeps within a block, of its own rows, in each) | rows 64 256 1024 | lanes 1 to 32
// needs:   one right-hand side; two vectors of scratch memory
// refuses: nothing
//
// Jacobi's iteration on T x = b, from x = 0. After as many sweeps as there are levels it is exact; where the diagonal dominates, a few
// are near. What a sweep computes is a fixed linear map of b, as a preconditioner has to be: nothing depends on which block is first.
// Rows of a block mostly need rows close to them: `inner` sweeps among these keep them in shared memory and the entries in L1, and cost
// a barrier each, where a launch costs a round trip through L2 and the bytes of the matrix (two-stage iteration: Frommer and
// Szyld, Numerische Mathematik 1992).
#pragma once
#include "sptrsv/lanes.cuh"

namespace sparsetune {

// What a program sets, checked:
//   Value    float or double
//   kLanes   lanes a row
//   kRows    rows of a block
//   kInner   sweeps among the rows of a block
//   kFirst   whether all unknowns were 0 before, so that none is read
//   kLast    whether x is written where it belongs; else in solve order
template <typename Settings>
struct SweepsConfig : Settings {
    static_assert(Settings::kLanes >= 1 && Settings::kLanes <= 32, "the lanes of a row are of one warp");
    static_assert((Settings::kLanes & (Settings::kLanes - 1)) == 0, "and a power of two");
    static_assert(Settings::kRows * Settings::kLanes <= 1024, "a block has at most 1024 threads");
    static_assert(Settings::kInner >= 1, "each sweep computes every row");
};

// The system in solve order, of which columns increase in each row, and what a sweep reads and writes.
template <typename Value>
struct Sweep {
    const u32* row_ptr;
    const u32* cols;
    const Value* vals;
    const Value* diagonal;
    const Value* b;       // in the order of the matrix
    const Value* before;  // unknowns before this sweep, in solve order
    Value* after;
    u32 rows;
    u32 reversed;  // whether row s of the system is row rows - 1 - s of the matrix
};

template <typename Config, typename Value = typename Config::Value>
__device__ __forceinline__ void sweeps(const Sweep<Value>& of) {
    constexpr u32 kLanes = Config::kLanes, kRows = Config::kRows;
    // Of this block's rows, before and after an inner sweep.
    __shared__ Value held[Config::kInner > 1 ? 2 : 1][kRows];
    const u32 own = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    const u32 begin = blockIdx.x * kRows, row = begin + own;
    const bool works = row < of.rows;
    u32 at = 0, end = 0;
    Value right = Value(0), diagonal = Value(1);
    if (works) {
        at = __ldg(of.row_ptr + row) + lane;
        end = __ldg(of.row_ptr + row + 1);
        right = of.b[of.reversed ? of.rows - 1 - row : row];
        diagonal = __ldg(of.diagonal + row);
    }
    // What rows of other blocks contribute stays as it was.
    Value outside = Value(0);
    for (; at < end; at += kLanes) {
        const u32 col = __ldg(of.cols + at);
        if (col >= begin) break;
        if constexpr (!Config::kFirst) outside += __ldg(of.vals + at) * __ldg(of.before + col);
    }
    if (lane == 0) held[0][own] = !Config::kFirst && works ? of.before[row] : Value(0);
    __syncthreads();
    Value x = Value(0);
#pragma unroll
    for (int inner = 0; inner < Config::kInner; ++inner) {
        Value sum = outside;
        if (!Config::kFirst || inner > 0) {
#pragma unroll 2  // more at a time spill where a block has 1,024 threads
            for (u32 k = at; k < end; k += kLanes) {
                sum += __ldg(of.vals + k) * held[inner % 2][__ldg(of.cols + k) - begin];
            }
        }
        x = (right - sum_of_row<kLanes>(sum)) / diagonal;
        if (inner + 1 < Config::kInner) {
            if (lane == 0) held[(inner + 1) % 2][own] = x;
            __syncthreads();
        }
    }
    if (works && lane == 0) of.after[Config::kLast && of.reversed ? of.rows - 1 - row : row] = x;
}

}  // namespace sparsetune
