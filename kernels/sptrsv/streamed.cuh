// SpTRSV by runs of rows in their own order, whose terms lie one after the other: for levels of tens of thousands of rows.
// maps:    warp -> runs in rising order, neighbours in one block; lanes -> terms of a run, then its rows
// tune:    entries (terms of a lane) 4 6 8 | warps 8 16 24 32
// needs:   runs in an order in which every row follows those it needs; a resident grid; terms of a run that begin at 16 bytes
// refuses: nothing
//
// There a call takes as long as the L2 needs to look up what it is asked for, whatever the bytes: each gathered unknown is a request.
// So requests are saved. Neighbouring rows stay neighbours, so that b and x are read and written by whole sectors, where rows by length
// touch one for each row. And while something is missing, a warp asks for one unknown alone, the last that it needs: when that has
// come, the others are mostly there. Lanes take terms whatever their row, so none idles beside a long row; the products of a row meet
// in shared memory and are added in their own order, so that results repeat bit by bit.
#pragma once
#include "copies.cuh"
#include "sptrsv/wait.cuh"

namespace sparsetune {

// In a column: the term is one in b, not in an unknown.
constexpr u32 kOfB = 0x80000000u;

// What a launch works on. `runs[r]` is {first slot, first term, terms, rows}; terms of a run begin at a multiple of four.
template <typename Value>
struct Streamed {
    const uint4* runs;
    const u16* ends;  // of a row: the terms of its run before the next row's
    const u32* cols;  // slot; or kOfB and a row of b
    const Value* vals;
    const int* rows;  // row of x a slot stands for; -1: a partial sum
    const Value* b;
    Value* x;
    u32 count;  // runs
};

// What a program sets, and what follows from it:
//   Value     float or double
//   kEntries  terms of a lane: a run has at most 32 times as many
template <typename Settings>
struct StreamedConfig : Settings {
    using Value = typename Settings::Value;
    using Sync = Sentinel<Value>;
    static constexpr u32 kTerms = 32 * Settings::kEntries;
    static constexpr u32 kStageBytes = kTerms * (sizeof(Value) + sizeof(u32));
    static_assert(kTerms % 4 == 0, "stages begin at 16 bytes");
};

// The terms of two runs in shared memory: those that a warp is at, and those that it copies meanwhile.
template <typename Config>
struct Stages {
    using Value = typename Config::Value;
    unsigned char* first;

    __device__ __forceinline__ Value* vals(u32 stage) const {
        return reinterpret_cast<Value*>(first + stage * Config::kStageBytes);
    }
    __device__ __forceinline__ const u32* cols(u32 stage) const {
        return reinterpret_cast<const u32*>(vals(stage) + Config::kTerms);
    }
    __device__ __forceinline__ void copy(u32 stage, const Streamed<Value>& a, const uint4& run) const {
        constexpr u32 kPiece = 16 / sizeof(Value);
        Value* to = vals(stage);
        copy_ahead(to, a.vals + run.y, (run.z + kPiece - 1) / kPiece);
        copy_ahead(to + Config::kTerms, a.cols + run.y, (run.z + 3) / 4);
    }
};

// What a lane multiplies: unknowns that may not be there yet, and entries of b.
template <typename Config>
struct Factors {
    using Value = typename Config::Value;
    using Sync = typename Config::Sync;
    using Slot = typename Sync::Slot;
    static constexpr int kEntries = Config::kEntries;
    Slot found[kEntries];

    // Asks for all of them.
    __device__ __forceinline__ Factors(const u32* cols, u32 terms, const Slot* work, const Value* b) {
        const u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < kEntries; ++u) {
            const u32 at = u * 32 + lane;
            found[u] = 0;
            if (at >= terms) continue;
            const u32 col = cols[at];
            found[u] = (col & kOfB) != 0 ? present_bits(b[col & ~kOfB]) : Sync::load(work + col);
        }
    }

    // Waits until all are there. False: the watchdog ended the wait of a lane.
    __device__ __forceinline__ bool arrive(const u32* cols, const Slot* work, Watchdog& watchdog) {
        const u32 lane = threadIdx.x % 32;
        while (true) {
            // One more than the last slot that the warp lacks.
            int last = 0;
#pragma unroll
            for (int u = 0; u < kEntries; ++u) {
                if (missing(u)) last = max(last, static_cast<int>(cols[u * 32 + lane]) + 1);
            }
            last = __reduce_max_sync(kAllLanes, last);
            if (last == 0) return true;
            // All lanes ask for the same, which is one request.
            bool expired = false;
            while (Sync::load(work + (last - 1)) == Bits<Value>::kAbsent && !expired) expired = watchdog.gives_up();
            if (__any_sync(kAllLanes, expired)) return false;
#pragma unroll
            for (int u = 0; u < kEntries; ++u) {
                if (missing(u)) found[u] = Sync::load(work + cols[u * 32 + lane]);
            }
        }
    }

    // Multiplies them, once they are there, into the values of their terms.
    __device__ __forceinline__ void multiply(Value* vals, u32 terms) const {
#pragma unroll
        for (int u = 0; u < kEntries; ++u) {
            const u32 at = u * 32 + threadIdx.x % 32;
            if (at < terms) vals[at] *= Bits<Value>::value_of(found[u]);
        }
    }

private:
    __device__ __forceinline__ bool missing(int u) const { return found[u] == Bits<Value>::kAbsent; }
};

// The row of a lane in a run: where its terms end, and which row of x it is.
struct RunRow {
    u32 end = 0;
    int row = -1;

    template <typename Value>
    __device__ __forceinline__ void read(const Streamed<Value>& a, const uint4& run) {
        const u32 lane = threadIdx.x % 32;
        end = lane < run.w ? a.ends[run.x + lane] : 0;
        row = lane < run.w ? a.rows[run.x + lane] : -1;
    }
};

template <typename Config>
__device__ __forceinline__ void streamed(const Streamed<typename Config::Value>& a, typename Config::Sync::Slot* work,
                                         typename Config::Sync::Slot* other, u64 deadline_ns, u32* status) {
    using Value = typename Config::Value;
    using Sync = typename Config::Sync;
    extern __shared__ __align__(16) unsigned char shared[];
    const u32 lane = threadIdx.x % 32, of_block = threadIdx.x / 32, a_block = blockDim.x / 32;
    const u32 warps = gridDim.x * a_block;
    u32 at = blockIdx.x * a_block + of_block;
    if (at >= a.count) return;
    Watchdog watchdog(deadline_ns, status);
    const Stages<Config> stages{shared + of_block * 2 * Config::kStageBytes};
    uint4 run = a.runs[at], next = {0, 0, 0, 0};
    stages.copy(0, a, run);
    RunRow own;
    own.read(a, run);
    at += warps;
    if (at < a.count) next = a.runs[at];
    for (u32 stage = 0;; stage ^= 1) {
        // The run after the next is described by the time that its terms are copied.
        uint4 later = {0, 0, 0, 0};
        if (at + warps < a.count) later = a.runs[at + warps];
        copied();
        __syncwarp();
        Value* vals = stages.vals(stage);
        const u32* cols = stages.cols(stage);
        Factors<Config> factors(cols, run.z, work, a.b);
        if (at < a.count) stages.copy(stage ^ 1, a, next);
        RunRow follower;
        follower.read(a, next);
        if (!factors.arrive(cols, work, watchdog)) {
            copied();
            return;
        }
        factors.multiply(vals, run.z);
        __syncwarp();
        const u32 before = __shfl_up_sync(kAllLanes, own.end, 1);
        if (lane < run.w) {
            Value sum = 0;
#pragma unroll 4
            for (u32 i = lane == 0 ? 0 : before; i < own.end; ++i) sum += vals[i];
            Sync::store(work + run.x + lane, 0, sum);
            Sync::reset(other + run.x + lane);
            if (own.row >= 0) a.x[own.row] = sum;
        }
        if (at >= a.count) return;
        // The stage that was read is the next to be copied to.
        __syncwarp();
        at += warps;
        run = next, next = later, own = follower;
    }
}

}  // namespace sparsetune
