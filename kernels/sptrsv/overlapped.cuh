// SpTRSV over windows of levels: a warp solves a group of rows through all levels of its window, and computes again what it needs of
// rows that belong to other groups, where waiting for them would cost a hop a level. Row by row it is forward substitution.
// maps:    warp -> groups in rising order, neighbours on different multiprocessors; kLanes lanes -> one row of a pass
// tune:    levels (passes of a group) 1 2 4 8 16 | lanes 1 2 4 8 | unroll (terms a lane) 2 4 8 | awaited (unknowns a lane) 2 4
// needs:   groups in an order in which every awaited unknown belongs to an earlier one; a resident grid; one right-hand side
// refuses: nothing
//
// First the unknowns of earlier windows arrive, each awaited by one lane, while the group's terms are copied to shared memory. Then
// each pass is a few loads from shared memory and one store to it. A row has its terms in one order, whichever group sums them, so a
// row that is computed again has the very bits of its owner's, and every group sees one x. Only owners publish, before the next pass;
// x itself is stored at the end, because scattered stores would hold up the loads behind them.
#pragma once
#include "sptrsv/staging.cuh"
#include "sptrsv/wait.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value     float or double
//   kPasses   most passes of a group: levels of a window
//   kLanes    lanes across the terms of a row
//   kUnroll   terms of a lane
//   kAwaited  unknowns that a lane awaits
template <typename Settings>
struct OverlappedConfig : Settings {
    static constexpr int kRows = 32 / Settings::kLanes;  // of a pass
    static constexpr int kTerms = 32 * Settings::kUnroll;
    static constexpr int kFirstAwaited = 4;  // slot 0 is a zero, for padding; the others keep what follows aligned
    static constexpr int kFirstRow = kFirstAwaited + 32 * Settings::kAwaited;
    static_assert(Settings::kLanes == 1 || Settings::kLanes == 2 || Settings::kLanes == 4 || Settings::kLanes == 8,
                  "rows share a warp by powers of two");
};

// What a launch works on. A group is {first awaited, awaited, first pass, passes}; a pass {slot of its first row, rows that it owns}:
// owned rows come first. Lanes and steps of a pass are laid out as they are read; `cols` are places in the group's shared memory.
template <typename Value>
struct Overlapped {
    const uint4* groups;
    const uint2* passes;
    const u32* awaited;  // slots
    const u16* cols;
    const Value* vals;
    const Value* scale;  // of b, for each row of a pass
    const u32* rows;     // of b and x; kNoRow: a partial sum, or no row
    const Value* b;
    Value* x;
    u32 count;  // groups
};

// A warp's shared memory. The host computes its size: see `Scheme::warp_bytes`.
template <typename Config>
struct alignas(16) GroupMemory {
    using Value = typename Config::Value;
    Value unknowns[Config::kFirstRow + Config::kPasses * Config::kRows];
    Value known[Config::kPasses * Config::kRows];
    Value vals[Config::kPasses * Config::kTerms];
    u16 cols[Config::kPasses * Config::kTerms];
    u32 rows[Config::kPasses * Config::kRows];
    uint2 passes[Config::kPasses];
};

// One lane's share of a pass, fetched while the pass before is computed.
template <typename Config>
struct PassTerms {
    using Value = typename Config::Value;
    u32 col[Config::kUnroll];
    Value val[Config::kUnroll];
    Value known;
    uint2 pass;

    __device__ __forceinline__ void fetch(const GroupMemory<Config>& memory, u32 pass_at) {
        const u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
            col[u] = memory.cols[(pass_at * Config::kUnroll + u) * 32 + lane];
            val[u] = memory.vals[(pass_at * Config::kUnroll + u) * 32 + lane];
        }
        // The first lane of a row begins with its term in b.
        known = lane % Config::kLanes == 0 ? memory.known[pass_at * Config::kRows + lane / Config::kLanes] : Value(0);
        pass = memory.passes[pass_at];
    }
};

template <typename Config>
__device__ __forceinline__ void overlapped(const Overlapped<typename Config::Value>& a,
                                           typename Sentinel<typename Config::Value>::Slot* work,
                                           typename Sentinel<typename Config::Value>::Slot* other, u64 deadline_ns,
                                           u32* status) {
    using Value = typename Config::Value;
    using Sync = Sentinel<Value>;
    using Memory = GroupMemory<Config>;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Memory& memory = reinterpret_cast<Memory*>(shared_bytes)[threadIdx.x / 32];
    const u32 lane = threadIdx.x % 32;
    const u32 row = lane / Config::kLanes;
    const bool leads = lane % Config::kLanes == 0;
    const u32 warps = gridDim.x * (blockDim.x / 32);
    Watchdog watchdog(deadline_ns, status);
    if (lane == 0) memory.unknowns[0] = Value(0);
    for (u32 at = threadIdx.x / 32 * gridDim.x + blockIdx.x; at < a.count; at += warps) {
        const uint4 group = a.groups[at];
        const u32 passes = group.w;
        u32 slot[Config::kAwaited];
        typename Sync::Slot found[Config::kAwaited];
#pragma unroll
        for (int u = 0; u < Config::kAwaited; ++u) {
            slot[u] = lane + 32 * u < group.y ? a.awaited[group.x + lane + 32 * u] : kNoRow;
        }
        const u64 terms = static_cast<u64>(group.z) * Config::kTerms;
        copy_ahead(memory.vals, a.vals + terms, passes * (Config::kTerms * sizeof(Value) / 16));
        copy_ahead(memory.cols, a.cols + terms, passes * (Config::kTerms * sizeof(u16) / 16));
#pragma unroll
        for (int u = 0; u < Config::kAwaited; ++u) {
            found[u] = slot[u] == kNoRow ? 0 : Sync::load(work + slot[u]);
        }
        for (u32 i = lane; i < passes; i += 32) memory.passes[i] = a.passes[group.z + i];
        for (u32 i = lane; i < passes * Config::kRows; i += 32) {
            const u64 from = static_cast<u64>(group.z) * Config::kRows + i;
            const u32 of = a.rows[from];
            memory.rows[i] = of;
            memory.known[i] = of == kNoRow ? Value(0) : a.scale[from] * a.b[of];
        }
        copied();
        __syncwarp();
        PassTerms<Config> mine;
        mine.fetch(memory, 0);
        Value value;
        bool there = true;
        while (true) {
            bool missing = false;
#pragma unroll
            for (int u = 0; u < Config::kAwaited; ++u) missing |= !Sync::unpack(found[u], 0, value);
            if (!missing) break;
            if (watchdog.gives_up()) {
                there = false;
                break;
            }
#pragma unroll
            for (int u = 0; u < Config::kAwaited; ++u) {
                if (!Sync::unpack(found[u], 0, value)) found[u] = Sync::load(work + slot[u]);
            }
        }
        // If one lane gives up, its whole warp ends: nothing is published that was not computed.
        if (!__all_sync(kAllLanes, there)) return;
#pragma unroll
        for (int u = 0; u < Config::kAwaited; ++u) {
            Sync::unpack(found[u], 0, value);
            memory.unknowns[Config::kFirstAwaited + lane + 32 * u] = value;
        }
        __syncwarp();
        for (u32 pass = 0; pass < passes; ++pass) {
            Value term[Config::kUnroll];
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u) term[u] = memory.unknowns[mine.col[u]];
            PassTerms<Config> next;
            const bool more = pass + 1 < passes;
            if (more) next.fetch(memory, pass + 1);
            Value sum = mine.known;
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u) sum += mine.val[u] * term[u];
#pragma unroll
            for (int reach = Config::kLanes / 2; reach > 0; reach /= 2) {
                sum += __shfl_xor_sync(kAllLanes, sum, reach);
            }
            if (leads) memory.unknowns[Config::kFirstRow + pass * Config::kRows + row] = sum;
            if (leads && row < mine.pass.y) Sync::store(work + mine.pass.x + row, 0, sum);
            __syncwarp();
            if (more) mine = next;
        }
        for (u32 pass = 0; pass < passes; ++pass) {
            const uint2 owned = memory.passes[pass];
            if (lane < owned.y) {
                const u32 place = pass * Config::kRows + lane;
                const u32 of = memory.rows[place];
                if (of != kNoRow) a.x[of] = memory.unknowns[Config::kFirstRow + place];
                Sync::reset(other + owned.x + lane);
            }
        }
        // The next group's terms take the place of these.
        __syncwarp();
    }
}

}  // namespace sparsetune
