// SpTRSV over slices: equations x = P b + M x, rewritten to few windows, a few rows per warp, the value itself the flag.
// maps:    warp -> slices in rising order; subwarp of 2^k entry lanes -> one equation; kRhsLanes lanes -> right-hand sides
// tune:    unroll 4 8 | take block spread ticket | sync sentinel packed | scope global shared | pause 0 1 | ahead 0 1
// needs:   slices in an order in which every equation follows those it needs; a resident grid, or tickets
// refuses: more right-hand sides than kRhsLanes x kColumns; shared scope where the work array does not fit
//
// An equation's terms lie side by side: step t of a slice holds one entry for each entry lane of the warp, so a step is
// one coalesced load. Terms in b come first: they wait for nothing. The terms of kUnroll steps are in flight at once and
// are added in their own order once all are there, so that results repeat bit by bit.
#pragma once
#include "sptrsv/slice.cuh"
#include "sptrsv/wait.cuh"

namespace sparsetune {

// How a warp gets its slices.
enum class Take {
    kBlock,   // assigned in advance; neighbouring slices go to warps of one block
    kSpread,  // assigned in advance; neighbouring slices go to different multiprocessors
    kTicket,  // by an atomic counter
};

// What a program sets, checked, and what follows from it:
//   Value      float or double
//   Sync       how a value is published and awaited, of wait.cuh
//   kRhsLanes  lanes across right-hand sides
//   kColumns   right-hand sides per lane
//   kUnroll    steps in flight
//   kTake      how a warp gets its slices
//   kWaits     false: all that this launch needs was written by earlier ones
//   kPause     sleep after a poll that found nothing, in units of 32 ns
//   kAdds      the solution is added to x, which an earlier launch has written
//   kAhead     the first terms of a warp's next slice are copied to shared memory while it waits for this one's
//   kKnown     steps of terms in b that are copied, beside kUnroll steps of terms in x
template <typename Settings>
struct SlicesConfig : Settings {
    static constexpr int kRhsLanes = Settings::kRhsLanes, kColumns = Settings::kColumns;
    static constexpr int kWidth = 32 / kRhsLanes;  // entry lanes of a warp
    static_assert((kRhsLanes & (kRhsLanes - 1)) == 0 && kRhsLanes <= 32,
                  "right-hand sides share a warp by powers of two");
    static_assert(kColumns >= 1 && kColumns <= 4, "more columns per lane leave no room for loads in flight");
};

// Work array in global memory, seen by all blocks.
template <typename Sync>
struct GlobalWork {
    using Slot = typename Sync::Slot;
    Slot* work;
    Slot* other;  // the next call's
    u32 epoch;
    __device__ __forceinline__ Slot load(u64 at) const { return Sync::load(work + at); }
    template <typename Value>
    __device__ __forceinline__ void store(u64 at, Value value) const {
        Sync::store(work + at, epoch, value);
        if (Sync::kResets) Sync::reset(other + at);
    }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ u32 address_in(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void store_in(u32 address, u32 word) {
    asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word));
}
__device__ __forceinline__ void store_in(u32 address, u64 word) {
    asm volatile("st.relaxed.cluster.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(word));
}
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif

// A copy of the work array in the shared memory of each block of one cluster: a value is pushed to all copies (distributed
// shared memory), and each block polls its own copy, a few tens of nanoseconds away. A single block has the only copy.
template <typename ValueType, int kCluster>
struct SharedWork {
    using Word = typename Bits<ValueType>::Word;
    using Slot = Word;
    volatile Word* words;
    __device__ __forceinline__ Slot load(u64 at) const { return words[at]; }
    template <typename Value>
    __device__ __forceinline__ void store(u64 at, Value value) const {
        const Word word = present_bits<Value>(value);
        words[at] = word;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (kCluster > 1) {
            const u32 here = static_cast<u32>(__cvta_generic_to_shared(const_cast<Word*>(words + at)));
            const u32 rank = cluster_rank();
#pragma unroll
            for (int next = 1; next < kCluster; ++next) store_in(address_in(here, (rank + next) % kCluster), word);
        }
#endif
    }
};

// Adds the terms in b from step `t` on.
template <typename Config>
__device__ __forceinline__ void add_known(int t, const Slices<typename Config::Value>& a, const SliceLane<Config>& lane,
                                          u32 column, typename Config::Value (&sum)[Config::kColumns]) {
    for (; t < lane.b_steps; t += Config::kUnroll) {
        Terms<Config> terms;
        terms.fetch(a, lane.b_at + t * Config::kWidth, lane.b_steps - t);
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
#pragma unroll
            for (int c = 0; c < Config::kColumns; ++c) {
                const u32 j = column + c * Config::kRhsLanes;
                if (terms.col[u] != kNoTerm && j < a.rhs) {
                    sum[c] += terms.val[u] * a.b[static_cast<u64>(terms.col[u]) * a.rhs + j];
                }
            }
        }
    }
}

// The first terms in b, which are asked for together with those in x.
template <typename Config>
struct Known {
    using Value = typename Config::Value;
    static constexpr int kSteps = Config::kKnown;
    Value found[kSteps][Config::kColumns];

    __device__ __forceinline__ Known(const Terms<Config, kSteps>& terms, const Slices<Value>& a, u32 column) {
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
#pragma unroll
            for (int c = 0; c < Config::kColumns; ++c) {
                const u32 j = column + c * Config::kRhsLanes;
                found[u][c] = Value(0);
                if (terms.col[u] != kNoTerm && j < a.rhs) {
                    found[u][c] = a.b[static_cast<u64>(terms.col[u]) * a.rhs + j];
                }
            }
        }
    }

    __device__ __forceinline__ void add(const Terms<Config, kSteps>& terms, Value (&sum)[Config::kColumns]) const {
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
#pragma unroll
            for (int c = 0; c < Config::kColumns; ++c) sum[c] += terms.val[u] * found[u][c];
        }
    }
};

// A slot that reads as 0 and is there: what a padding entry finds.
template <typename Sync>
struct ZeroSlot {
    static __device__ __forceinline__ typename Sync::Slot of(u32) { return 0; }
};
template <>
struct ZeroSlot<Packed<float>> {
    static __device__ __forceinline__ u64 of(u32 epoch) { return static_cast<u64>(epoch) << 32; }
};
template <>
struct ZeroSlot<Packed<double>> {
    static __device__ __forceinline__ PackedDouble of(u32 epoch) { return PackedDouble{0, epoch}; }
};

// kUnroll terms in x, which may not be there yet. A slot is its own mark of what is missing: nothing else is kept for it, so
// that registers are left for more warps.
template <typename Config>
struct Unknown {
    using Value = typename Config::Value;
    using Sync = typename Config::Sync;
    typename Sync::Slot found[Config::kUnroll][Config::kColumns];

    // Asks for all of them.
    template <typename Work>
    __device__ __forceinline__ Unknown(const Terms<Config>& terms, u32 column, u32 rhs, const Work& work, u32 epoch) {
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
#pragma unroll
            for (int c = 0; c < Config::kColumns; ++c) {
                const u32 j = column + c * Config::kRhsLanes;
                found[u][c] = ZeroSlot<Sync>::of(epoch);
                if (terms.col[u] != kNoTerm && j < rhs) {
                    found[u][c] = work.load(static_cast<u64>(terms.col[u]) * rhs + j);
                }
            }
        }
    }

    // Adds them, waiting for those that are not there. False: the watchdog ended the wait.
    template <typename Work>
    __device__ __forceinline__ bool add(const Terms<Config>& terms, u32 column, u32 rhs, const Work& work, u32 epoch,
                                        Watchdog& watchdog, Value (&sum)[Config::kColumns]) {
        Value value;
        while (Config::kWaits) {
            bool missing = false;
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u) {
#pragma unroll
                for (int c = 0; c < Config::kColumns; ++c) missing |= !Sync::unpack(found[u][c], epoch, value);
            }
            if (!missing) break;
            if (watchdog.gives_up()) return false;
            if (Config::kPause > 0) __nanosleep(Config::kPause * 32);
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u) {
#pragma unroll
                for (int c = 0; c < Config::kColumns; ++c) {
                    const u32 j = column + c * Config::kRhsLanes;
                    // What is available is not examined again.
                    if (!Sync::unpack(found[u][c], epoch, value)) {
                        found[u][c] = work.load(static_cast<u64>(terms.col[u]) * rhs + j);
                    }
                }
            }
        }
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
#pragma unroll
            for (int c = 0; c < Config::kColumns; ++c) {
                Sync::unpack(found[u][c], epoch, value);
                sum[c] += terms.val[u] * value;
            }
        }
        return true;
    }
};

// All slices of one warp, `warp` of `warps`. `ahead` is used where terms are copied ahead.
template <typename Config, typename Work>
__device__ __forceinline__ void solve_slices(const Slices<typename Config::Value>& a, const Work& work, u32 epoch,
                                             u32 warp, u32 warps, u32* ticket, const Ahead<Config>& ahead,
                                             Watchdog& watchdog) {
    using Value = typename Config::Value;
    const int lane_id = threadIdx.x % 32;
    const u32 column = lane_id % Config::kRhsLanes;
    const int entry_lane = lane_id / Config::kRhsLanes;
    const auto take = [&](u32 last) -> u32 {
        if (Config::kTake != Take::kTicket) return last + warps;
        u32 mine = 0;
        if (lane_id == 0) mine = a.first + atomicAdd(ticket, 1u);
        return __shfl_sync(kAllLanes, mine, 0);
    };
    u32 next = Config::kTake == Take::kTicket ? take(0) : a.first + warp;
    if (next >= a.end) return;
    uint4 next_meta = a.meta[next];
    if (Config::kAhead) ahead.copy(a, SliceLane<Config>(next_meta, entry_lane));
    while (true) {
        const SliceLane<Config> lane(next_meta, entry_lane);
        // The next slice is known before this one is done: its description is on its way during the wait.
        next = take(next);
        if (next < a.end) next_meta = a.meta[next];

        const int row = lane.leads ? a.rows[lane.slot] : -1;
        // What is added to is on its way while other unknowns are awaited.
        Value before[Config::kColumns];
#pragma unroll
        for (int c = 0; c < Config::kColumns; ++c) {
            const u32 j = column + c * Config::kRhsLanes;
            before[c] = Value(0);
            if (Config::kAdds && row >= 0 && j < a.rhs) before[c] = a.x[static_cast<u64>(row) * a.rhs + j];
        }
        Value sum[Config::kColumns];
#pragma unroll
        for (int c = 0; c < Config::kColumns; ++c) sum[c] = Value(0);
        Terms<Config> terms;
        bool there = true;
        if (Config::kAhead) {
            // All that the first steps need is asked for at once, and then the next slice's terms.
            Terms<Config, Config::kKnown> known_terms;
            ahead.arrive();
            ahead.read(lane, known_terms, terms);
            Unknown<Config> unknown(terms, column, a.rhs, work, epoch);
            const Known<Config> known(known_terms, a, column);
            if (next < a.end) ahead.copy(a, SliceLane<Config>(next_meta, entry_lane));
            known.add(known_terms, sum);
            add_known<Config>(Config::kKnown, a, lane, column, sum);
            there = unknown.add(terms, column, a.rhs, work, epoch, watchdog, sum);
        } else {
            terms.fetch(a, lane.x_at, lane.x_steps);
            add_known<Config>(0, a, lane, column, sum);
        }
        for (int t = Config::kAhead ? Config::kUnroll : 0; t < lane.x_steps && there; t += Config::kUnroll) {
            if (t > 0) terms.fetch(a, lane.x_at + t * Config::kWidth, lane.x_steps - t);
            Unknown<Config> unknown(terms, column, a.rhs, work, epoch);
            there = unknown.add(terms, column, a.rhs, work, epoch, watchdog, sum);
        }
        // If one lane gives up, its whole warp ends: no partial sum is published.
        if (!__all_sync(kAllLanes, there)) {
            if (Config::kAhead) ahead.arrive();
            return;
        }
#pragma unroll
        for (int c = 0; c < Config::kColumns; ++c) {
            for (int reach = (Config::kRhsLanes << lane.log_lanes) >> 1; reach >= Config::kRhsLanes; reach >>= 1) {
                sum[c] += __shfl_xor_sync(kAllLanes, sum[c], reach);
            }
            const u32 j = column + c * Config::kRhsLanes;
            if (lane.leads && j < a.rhs) {
                work.template store<Value>(static_cast<u64>(lane.slot) * a.rhs + j, sum[c]);
                if (row >= 0) {
                    a.x[static_cast<u64>(row) * a.rhs + j] = Config::kAdds ? before[c] + sum[c] : sum[c];
                }
            }
        }
        if (next >= a.end) return;
    }
}

// The whole grid works; the work array is in global memory.
template <typename Config>
__device__ __forceinline__ void slices_global(const Slices<typename Config::Value>& a,
                                              typename Config::Sync::Slot* work, typename Config::Sync::Slot* other,
                                              u32 epoch, u32* ticket, u32* other_ticket, u64 deadline_ns, u32* status) {
    const u32 of_block = threadIdx.x / 32, a_block = blockDim.x / 32;
    const u32 warp =
        Config::kTake == Take::kSpread ? of_block * gridDim.x + blockIdx.x : blockIdx.x * a_block + of_block;
    if (Config::kTake == Take::kTicket && blockIdx.x == 0 && threadIdx.x == 0) *other_ticket = 0;
    Watchdog watchdog(deadline_ns, status);
    const GlobalWork<typename Config::Sync> array{work, other, epoch};
    extern __shared__ __align__(16) unsigned char copies[];
    const Ahead<Config> ahead(copies, of_block, threadIdx.x % 32);
    solve_slices<Config>(a, array, epoch, warp, gridDim.x * a_block, ticket, ahead, watchdog);
}

// One cluster of kCluster blocks works; each has a copy of the work array in its shared memory.
template <typename Config, int kCluster>
__device__ __forceinline__ void slices_shared(const Slices<typename Config::Value>& a, u32 slots, u64 deadline_ns,
                                              u32* status) {
    using Value = typename Config::Value;
    using Word = typename Bits<Value>::Word;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Word* words = reinterpret_cast<Word*>(shared_bytes);
    for (u32 i = threadIdx.x; i < slots * a.rhs; i += blockDim.x) words[i] = Bits<Value>::kAbsent;
    __syncthreads();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    // No block may push into a copy that is still being reset.
    if (kCluster > 1) cluster_barrier();
#endif
    const u32 warp = (threadIdx.x / 32) * kCluster + blockIdx.x;
    Watchdog watchdog(deadline_ns, status);
    const SharedWork<Value, kCluster> array{words};
    const Ahead<Config> none(nullptr, 0, 0);
    solve_slices<Config>(a, array, 0, warp, kCluster * (blockDim.x / 32), nullptr, none, watchdog);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    // A block's memory must outlive the others' pushes.
    __syncwarp();
    if (kCluster > 1) cluster_barrier();
#endif
}

}  // namespace sparsetune
