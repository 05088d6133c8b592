// SpTRSV by chains: rows of which each needs the one before it are solved by one warp, which waits for other warps once a chain.
// maps:    warp -> tasks in rising order, neighbours on different multiprocessors; lanes -> rows of the chain times columns abreast
// tune:    rows (most of a chain) 4 8 16 32 | terms (of a task) 512 1024 4096 | substitute 0 1 | unroll (columns a lane) 2 4 8 | warps 4 8 16 32
// needs:   tasks in an order in which every awaited unknown belongs to an earlier one; a resident grid; one right-hand side
// refuses: nothing
//
// What a chain needs of earlier rows is one dense panel: a column is read once for all rows of the chain, and its index is stored
// once. Factors of Cholesky and LU, and matrices of several unknowns a node, have such panels. Panels of many columns are divided:
// other warps sum the early columns to partial sums, which the chain adds. The rows of the chain then follow from each other in
// registers, a shuffle each, and every row is published as soon as it is known. Row by row it is forward substitution.
//
// Or they were substituted in each other beforehand: the panel and what the chain needs of b were multiplied by the inverse of the
// chain's triangle. What b gives is summed before anything is awaited, and all rows are known at once.
#pragma once
#include "sptrsv/staging.cuh"
#include "sptrsv/wait.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value     float or double
//   kRows     most rows of a chain
//   kUnroll   columns that a lane has under way
//   kSubstituted  whether no row of a chain needs another, but what b gives the others
template <typename Settings>
struct ChainsConfig : Settings {
    static_assert(Settings::kRows >= 4 && Settings::kRows <= 32, "a lane for each row");
    // Among the rows of a chain: the column of each row but the last.
    static constexpr u32 kInner = Settings::kRows * (Settings::kRows - 1);
};

// What a launch works on. A task is eight words: first column, columns, first value / 4, slot of its first row; rows, whether it is a
// chain or partial sums of one, first of its partial sums, and how many it has. Of substituted rows `vals` has what they have of each
// other's part of b.
template <typename Value>
struct Chains {
    const uint4* tasks;
    const u32* cols;      // slots of the unknowns that a panel's columns are
    const u32* partials;  // slots of the first row of partial sums
    const Value* vals;    // panels, column by column, each followed by what the rows of the chain have of each other
    const Value* scale;   // of b, by slot
    const u32* rows;      // of b and x, by slot; kNoRow: a partial sum
    const Value* b;
    Value* x;
    u32 count;  // tasks
};

// One lane's columns, fetched while those before are awaited.
template <typename Config>
struct PanelTerms {
    using Value = typename Config::Value;
    u32 slot[Config::kUnroll];
    Value val[Config::kUnroll];

    // Column `at` and every `abreast`-th after it, for the lane's row.
    __device__ __forceinline__ void fetch(const u32* cols, const Value* vals, u32 at, u32 abreast, u32 columns,
                                          u32 width, u32 row, bool works) {
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
            const u32 column = at + u * abreast;
            const bool has = works && column < columns;
            slot[u] = has ? cols[column] : kNoRow;
            val[u] = has ? vals[static_cast<u64>(column) * width + row] : Value(0);
        }
    }
};

// Awaits an unknown for each slot that is not kNoRow; the others become zeros. False: the watchdog gave up.
template <typename Config>
__device__ __forceinline__ bool await_unknowns(const typename Sentinel<typename Config::Value>::Slot* work,
                                               const u32 (&slot)[Config::kUnroll],
                                               typename Config::Value (&unknown)[Config::kUnroll], Watchdog& watchdog) {
    using Sync = Sentinel<typename Config::Value>;
    typename Sync::Slot found[Config::kUnroll];
#pragma unroll
    for (int u = 0; u < Config::kUnroll; ++u) found[u] = slot[u] == kNoRow ? 0 : Sync::load(work + slot[u]);
    bool there = true;
    while (true) {
        bool missing = false;
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) missing |= !Sync::unpack(found[u], 0, unknown[u]);
        if (!missing) break;
        if (watchdog.gives_up()) {
            there = false;
            break;
        }
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
            if (!Sync::unpack(found[u], 0, unknown[u])) found[u] = Sync::load(work + slot[u]);
        }
    }
    return there;
}

// Adds a chain's partial sums of the early columns to the lane's sum: those of its row at its place among those that are read abreast. False:
// the watchdog gave up.
template <typename Config>
__device__ __forceinline__ bool add_partials(const Chains<typename Config::Value>& a,
                                             const typename Sentinel<typename Config::Value>::Slot* work, u32 start,
                                             u32 count, u32 width, typename Config::Value& sum, Watchdog& watchdog) {
    using Value = typename Config::Value;
    const u32 abreast = 32 / width;
    const u32 place = threadIdx.x % 32 / width, row = threadIdx.x % 32 % width;
    bool there = true;
    for (u32 first = 0; first < count; first += abreast * Config::kUnroll) {
        u32 slot[Config::kUnroll];
        Value unknown[Config::kUnroll];
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) {
            const u32 partial = first + u * abreast + place;
            slot[u] = place < abreast && partial < count ? a.partials[start + partial] + row : kNoRow;
        }
        there = there && await_unknowns<Config>(work, slot, unknown, watchdog);
#pragma unroll
        for (int u = 0; u < Config::kUnroll; ++u) sum += unknown[u];
    }
    return there;
}

// Adds up what the lanes of each row have; the sums are those of the first place.
template <typename Value>
__device__ __forceinline__ Value over_places(Value sum, u32 width) {
    const u32 abreast = 32 / width, place = threadIdx.x % 32 / width;
#pragma unroll
    for (u32 reach = 16; reach > 0; reach /= 2) {
        if (reach < abreast) {
            const Value of_others = __shfl_down_sync(kAllLanes, sum, reach * width);
            if (place + reach < abreast) sum += of_others;
        }
    }
    return sum;
}

template <typename Config>
__device__ __forceinline__ void chains(const Chains<typename Config::Value>& a,
                                       typename Sentinel<typename Config::Value>::Slot* work,
                                       typename Sentinel<typename Config::Value>::Slot* other, u64 deadline_ns,
                                       u32* status) {
    using Value = typename Config::Value;
    using Sync = Sentinel<Value>;
    // kInner values and as many more as make 16 bytes of the last piece.
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    Value* inner = reinterpret_cast<Value*>(shared_bytes) + threadIdx.x / 32 * Config::kInner;
    const u32 lane = threadIdx.x % 32;
    const u32 warps = gridDim.x * (blockDim.x / 32);
    Watchdog watchdog(deadline_ns, status);
    for (u32 at = threadIdx.x / 32 * gridDim.x + blockIdx.x; at < a.count; at += warps) {
        const uint4 panel = a.tasks[2 * at];
        const uint4 more = a.tasks[2 * at + 1];
        const u32 width = more.x, columns = panel.y;
        const bool solves = more.y != 0;
        const Value* vals = a.vals + 4ull * panel.z;
        if (solves) {
            const u64 after = (static_cast<u64>(columns) * width + 3) / 4 * 4;
            copy_ahead(inner, vals + after, (width * (width - 1) * sizeof(Value) + 15) / 16);
        }
        const u32 abreast = 32 / width;
        const u32 place = lane / width, row = lane % width;
        const bool works = place < abreast;
        // What b gives, for the first columns' lanes; it is added last, and unless rows are substituted nothing waits for it before.
        u32 of = kNoRow;
        Value known = Value(0);
        if (lane < width) {
            of = a.rows[panel.w + lane];
            if (of != kNoRow) known = a.scale[panel.w + lane] * a.b[of];
        }
        PanelTerms<Config> mine;
        mine.fetch(a.cols + panel.x, vals, place, abreast, columns, width, row, works);
        if (Config::kSubstituted && solves && width > 1) {
            copied();
            __syncwarp();
            const Value own = known;
#pragma unroll 4
            for (u32 other_row = 0; other_row + 1 < width; ++other_row) {
                const Value value = __shfl_sync(kAllLanes, own, other_row);
                const bool needs = lane > other_row && lane < width;
                const Value factor = needs ? inner[other_row * width + lane] : Value(0);
                if (factor != Value(0)) known += factor * value;
            }
        }
        Value sum = Value(0);
        bool there = add_partials<Config>(a, work, more.z, more.w, width, sum, watchdog);
        for (u32 first = 0; first < columns; first += abreast * Config::kUnroll) {
            Value unknown[Config::kUnroll];
            PanelTerms<Config> next;
            next.fetch(a.cols + panel.x, vals, first + Config::kUnroll * abreast + place, abreast, columns, width, row,
                       works);
            there = there && await_unknowns<Config>(work, mine.slot, unknown, watchdog);
            __syncwarp();
            // A zero of the panel is no term of the row: an infinity elsewhere stays elsewhere.
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u)
                sum = mine.val[u] != Value(0) ? sum + mine.val[u] * unknown[u] : sum;
            mine = next;
        }
        // If one lane gives up, its whole warp ends: nothing is published that was not computed.
        if (!__all_sync(kAllLanes, there)) return;
        sum = over_places(sum, width);
        sum += known;
        if (!Config::kSubstituted && solves && width > 1) {
            copied();
            __syncwarp();
            Value factor = lane < width ? inner[lane] : Value(0);
            for (u32 before = 0; before + 1 < width; ++before) {
                const Value value = __shfl_sync(kAllLanes, sum, before);
                if (lane == before) Sync::store(work + panel.w + lane, 0, sum);
                const bool further = before + 2 < width && lane < width;
                const Value next_factor = further ? inner[(before + 1) * width + lane] : Value(0);
                if (lane > before && factor != Value(0)) sum += factor * value;
                factor = next_factor;
            }
            if (lane + 1 == width) Sync::store(work + panel.w + lane, 0, sum);
        } else if (lane < width) {
            Sync::store(work + panel.w + lane, 0, sum);
        }
        if (lane < width) {
            if (of != kNoRow) a.x[of] = sum;
            Sync::reset(other + panel.w + lane);
        }
        // The next chain's values take the place of these.
        __syncwarp();
    }
}

}  // namespace sparsetune
