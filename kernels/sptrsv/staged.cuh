// SpTRSV by chains whose rows were substituted in each other, with panels in shared memory a task ahead.
// maps:    warp -> tasks in rising order, neighbours on different multiprocessors; lanes -> rows of the chain times columns abreast
// tune:    rows (most of a chain) 16 32 | terms (of a task) 512 1024 2048 | unroll (loads a lane has under way) 4 8 | warps 4 8 16
// needs:   as `chains`, with panels and what chains need of b multiplied by the inverse of each chain's triangle
// refuses: nothing
//
// Between two chains of which one needs the other stand a trip to L2, a multiplication for each column, and a trip back. All that does
// not depend on the chain before is there by then: panels are copied a task ahead, which takes no registers, what b gives is summed,
// early columns are partial sums of other tasks, and the terms of the last columns of whole chains are in registers. Of chains of more
// than 8 rows one lane awaits an unknown, not one for each row. Tasks cost more that way than in `chains`, so this is for chains of
// many rows.
#pragma once
#include "sptrsv/chains.cuh"

namespace sparsetune {

// What a program sets beside what `ChainsConfig` needs, and what follows from it:
//   kTerms    values of a panel that are copied at once
template <typename Settings>
struct StagedConfig : ChainsConfig<Settings> {
    // A warp awaits so many groups of 32 columns at once.
    static constexpr int kGroups = 2;
    // Of tasks of up to so many rows each lane awaits the columns whose terms it multiplies; of others, one of each group for all lanes.
    static constexpr u32 kNarrow = 8;
    static constexpr u32 kAbreast = 32 / Settings::kRows;
    static_assert(Settings::kUnroll >= kGroups, "the groups' columns have no place else");
    static_assert(Settings::kTerms % 4 == 0 && Settings::kTerms >= 4 * Settings::kRows,
                  "pieces of four columns at least");
};

// A task's words, and what its lanes read before its turn.
template <typename Config>
struct ChainTask {
    using Value = typename Config::Value;
    u32 column, columns, value, slot;
    u32 width, solves, partial, partials;
    // Row of b and its factor, for the lane's row; slots of the first columns that the lane awaits.
    u32 of;
    Value factor;
    u32 awaited[Config::kUnroll];

    __device__ __forceinline__ void read(const Chains<Value>& a, u32 at) {
        const bool there = at < a.count;
        const uint4 none = {0, 0, 0, 0};
        const uint4 panel = there ? a.tasks[2 * at] : none;
        const uint4 more = there ? a.tasks[2 * at + 1] : none;
        column = panel.x, columns = panel.y, value = panel.z, slot = panel.w;
        width = more.x, solves = more.y, partial = more.z, partials = more.w;
    }

    __device__ __forceinline__ const Value* values(const Chains<Value>& a) const { return a.vals + 4ull * value; }

    // Columns that are copied at once, so many that each piece begins at 16 bytes; no task without rows is asked.
    __device__ __forceinline__ u32 piece() const { return Config::kTerms / width / 4 * 4; }

    // The column, counted in a piece of `count`, that a lane awaits in its `u`-th turn. Of a narrow task it is one that the lane multiplies.
    // Else a turn is a group of 32 columns, and the groups end where the piece does, so that what is known last is one group.
    __device__ __forceinline__ int column_of(u32 count, u32 u) const {
        const u32 lane = threadIdx.x % 32;
        if (width > Config::kNarrow)
            return static_cast<int>(count + lane) - static_cast<int>(32 * ((count + 31) / 32 - u));
        const u32 abreast = 32 / width;
        return lane / width < abreast ? u * abreast + lane / width : -1;
    }
    __device__ __forceinline__ u32 slot_of(const Chains<Value>& a, u32 first, u32 count, u32 u) const {
        const int at = column_of(count, u);
        return at >= 0 && at < static_cast<int>(count) ? a.cols[column + first + at] : kNoRow;
    }
    __device__ __forceinline__ void await_from(const Chains<Value>& a, u32 first, u32 count, u32 turn) {
        const u32 turns = width > Config::kNarrow ? Config::kGroups : Config::kUnroll;
#pragma unroll
        for (u32 u = 0; u < Config::kUnroll; ++u) awaited[u] = u < turns ? slot_of(a, first, count, turn + u) : kNoRow;
    }

    // Begins all that can be read before the task's turn.
    __device__ __forceinline__ void begin(const Chains<Value>& a, Value* panel) {
        const u32 lane = threadIdx.x % 32;
        of = kNoRow;
        factor = Value(0);
        if (width != 0) {
            const u32 count = min(columns, piece());
            copy_ahead(panel, values(a), (count * width * static_cast<u32>(sizeof(Value)) + 15) / 16);
            await_from(a, 0, count, 0);
            if (lane < width) {
                of = a.rows[slot + lane];
                factor = a.scale[slot + lane];
            }
        }
        end_of_lot();
    }

    // What b gives the lane's row, with the rows before it substituted.
    __device__ __forceinline__ Value of_b(const Chains<Value>& a) const {
        const u32 lane = threadIdx.x % 32;
        const Value own = of != kNoRow ? factor * a.b[of] : Value(0);
        Value known = own;
        if (solves == 0) return known;
        const Value* inner = values(a) + (static_cast<u64>(columns) * width + 3) / 4 * 4;
        for (u32 first = 0; first + 1 < width; first += Config::kUnroll) {
            Value factors[Config::kUnroll];
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u) {
                const u32 row = first + u;
                factors[u] = row < lane && lane < width ? inner[row * width + lane] : Value(0);
            }
#pragma unroll
            for (int u = 0; u < Config::kUnroll; ++u) {
                const Value term = __shfl_sync(kAllLanes, own, first + u);
                known = factors[u] != Value(0) ? known + factors[u] * term : known;
            }
        }
        return known;
    }
};

// Awaits the lane's unknown, of which a load was begun. False: the watchdog gave up.
template <typename Value>
__device__ __forceinline__ bool await_unknown(const typename Sentinel<Value>::Slot* work, u32 slot,
                                              typename Sentinel<Value>::Slot found, Value& unknown,
                                              Watchdog& watchdog) {
    using Sync = Sentinel<Value>;
    while (!Sync::unpack(found, 0, unknown)) {
        if (watchdog.gives_up()) return false;
        found = Sync::load(work + slot);
    }
    return true;
}

// What a piece of a narrow task's panel gives the lane's row. False: the watchdog gave up.
template <typename Config>
__device__ __forceinline__ bool narrow_piece(const Chains<typename Config::Value>& a,
                                             const typename Sentinel<typename Config::Value>::Slot* work,
                                             ChainTask<Config>& task, const typename Config::Value* panel, u32 from,
                                             u32 count, typename Config::Value& sum, Watchdog& watchdog) {
    using Value = typename Config::Value;
    const u32 abreast = 32 / task.width, row = threadIdx.x % 32 % task.width;
    for (u32 turn = 0; turn * abreast < count; turn += Config::kUnroll) {
        if (turn > 0) task.await_from(a, from, count, turn);
        Value term[Config::kUnroll];
        Value unknown[Config::kUnroll];
#pragma unroll
        for (u32 u = 0; u < Config::kUnroll; ++u)
            term[u] = task.awaited[u] != kNoRow ? panel[task.column_of(count, turn + u) * task.width + row] : Value(0);
        if (!await_unknowns<Config>(work, task.awaited, unknown, watchdog)) return false;
        // A zero of the panel is no term of the row: an infinity elsewhere stays elsewhere.
#pragma unroll
        for (u32 u = 0; u < Config::kUnroll; ++u) sum = term[u] != Value(0) ? sum + term[u] * unknown[u] : sum;
    }
    return true;
}

// The same of a task with more rows: a lane awaits one column of each group for all rows, and `unknowns` of the warp hands it to them.
template <typename Config>
__device__ __forceinline__ bool wide_piece(const Chains<typename Config::Value>& a,
                                           const typename Sentinel<typename Config::Value>::Slot* work,
                                           ChainTask<Config>& task, const typename Config::Value* panel,
                                           typename Config::Value* unknowns, u32 from, u32 count,
                                           typename Config::Value& sum, Watchdog& watchdog) {
    using Value = typename Config::Value;
    using Sync = Sentinel<Value>;
    const u32 lane = threadIdx.x % 32, width = task.width, abreast = 32 / width;
    const u32 place = lane / width, row = lane % width;
    const u32 groups = (count + 31) / 32;
    bool there = true;
    for (u32 group = 0; group < groups; group += Config::kGroups) {
        if (group > 0) task.await_from(a, from, count, group);
        typename Sync::Slot found[Config::kGroups];
#pragma unroll
        for (u32 g = 0; g < Config::kGroups; ++g) {
            found[g] = task.awaited[g] == kNoRow ? 0 : Sync::load(work + task.awaited[g]);
        }
#pragma unroll
        for (u32 g = 0; g < Config::kGroups; ++g) {
            if (group + g >= groups) break;
            const u32 end = count - 32 * (groups - group - g - 1), begin = end > 32 ? end - 32 : 0;
            // Most of what others wait for are whole groups of whole chains: their terms are in registers before the unknowns come.
            const bool whole = width == Config::kRows && end >= 32;
            Value term[Config::kRows];
            if (whole) {
#pragma unroll
                for (u32 i = 0; i < Config::kRows; ++i)
                    term[i] = panel[(begin + i * Config::kAbreast) * Config::kRows + lane];
            }
            Value unknown = Value(0);
            there = there && await_unknown<Value>(work, task.awaited[g], found[g], unknown, watchdog);
            unknowns[lane] = unknown;
            __syncwarp();
            // A zero of the panel is no term of the row: an infinity elsewhere stays elsewhere.
            const bool tame = __all_sync(kAllLanes, unknown - unknown == Value(0));
            if (whole && tame) {
                Value part[4] = {sum, Value(0), Value(0), Value(0)};
#pragma unroll
                for (u32 i = 0; i < Config::kRows; ++i) part[i % 4] += term[i] * unknowns[i * Config::kAbreast + place];
                sum = (part[0] + part[1]) + (part[2] + part[3]);
            } else {
                const u32 unused = 32 - (end - begin);
#pragma unroll 4
                for (u32 at = begin + place; at < end; at += abreast) {
                    const Value factor = place < abreast ? panel[at * width + row] : Value(0);
                    sum = factor != Value(0) ? sum + factor * unknowns[at - begin + unused] : sum;
                }
            }
            __syncwarp();
        }
    }
    return there;
}

template <typename Config>
__device__ __forceinline__ void staged_chains(const Chains<typename Config::Value>& a,
                                              typename Sentinel<typename Config::Value>::Slot* work,
                                              typename Sentinel<typename Config::Value>::Slot* other, u64 deadline_ns,
                                              u32* status) {
    using Value = typename Config::Value;
    using Sync = Sentinel<Value>;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    // Two panels a warp, of the task and of the next, and a group of unknowns.
    Value* panel = reinterpret_cast<Value*>(shared_bytes) + threadIdx.x / 32 * (2 * Config::kTerms + 32);
    Value* coming = panel + Config::kTerms;
    Value* const unknowns = coming + Config::kTerms;
    const u32 lane = threadIdx.x % 32;
    const u32 warps = gridDim.x * (blockDim.x / 32);
    Watchdog watchdog(deadline_ns, status);
    u32 at = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    ChainTask<Config> mine, next;
    mine.read(a, at);
    next.read(a, at + warps);
    mine.begin(a, panel);
    for (; at < a.count; at += warps) {
        ChainTask<Config> later;
        later.read(a, at + 2 * warps);
        next.begin(a, coming);
        const u32 width = mine.width, columns = mine.columns;
        const Value known = mine.of_b(a);
        Value sum = Value(0);
        bool there = add_partials<Config>(a, work, mine.partial, mine.partials, width, sum, watchdog);
        for (u32 from = 0; from < columns; from += mine.piece()) {
            const u32 count = min(columns - from, mine.piece());
            if (from > 0) {
                __syncwarp();
                copy_ahead(panel, mine.values(a) + from * width,
                           (count * width * static_cast<u32>(sizeof(Value)) + 15) / 16);
                mine.await_from(a, from, count, 0);
                copied();
            }
            // All but the next task's panel.
            copied_but_latest_lot();
            __syncwarp();
            // The whole warp has to go on, so that no lane is missing where others shuffle.
            there = (width > Config::kNarrow
                         ? wide_piece<Config>(a, work, mine, panel, unknowns, from, count, sum, watchdog)
                         : narrow_piece<Config>(a, work, mine, panel, from, count, sum, watchdog)) &&
                    there;
            __syncwarp();
        }
        // If one lane gives up, its whole warp ends: nothing is published that was not computed.
        if (!__all_sync(kAllLanes, there)) return;
        sum = over_places(sum, width);
        sum += known;
        if (lane < width) {
            Sync::store(work + mine.slot + lane, 0, sum);
            if (mine.of != kNoRow) a.x[mine.of] = sum;
            Sync::reset(other + mine.slot + lane);
        }
        mine = next;
        next = later;
        Value* const done = panel;
        panel = coming;
        coming = done;
        // Its values take the place of these.
        __syncwarp();
    }
}

}  // namespace sparsetune
