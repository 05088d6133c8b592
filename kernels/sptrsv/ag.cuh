// AG-SpTRSV's solve template: a warp takes groups of independent row groups (nodes), a subwarp solves one node.
// maps:    warp -> its queue of groups; subwarp -> one node of a group; lanes -> the entries of a row, or one row each
// tune:    nw 1 2 4 8 16 32 | ng 1 2 4 8 16 32 | sw_rnnz 0 1 2 4 8 16 32 inf | read direct shared | sync sentinel packed
// needs:   the system in solve order (or permuted by level), one right-hand side, f32 or f64, sm_70
// spills:  24 bytes allowed because 32 warps leave 64 registers, and f64 in packed words through a buffer needs 2 more
// refuses: orders that `ops/sptrsv/progress.rs` does not prove free of deadlock
//
// AG-SpTRSV (TACO 2024), section 4.2. What differs: the value is the flag (wait.cuh); rows of one node hand their values
// on through shared memory instead of L2; every shuffle and vote names the lanes of one subwarp, which all take part.
#pragma once
#include "sptrsv/wait.cuh"

namespace sparsetune {

// Flags in the upper bits of a task's end; written by ops/sptrsv/ag/lower.rs.
constexpr u32 kPublishes = 1u << 31;     // some row of the node is read by a later waiter
constexpr u32 kCollaborates = 1u << 30;  // lanes share each row; else each lane has a row of its own
constexpr u32 kStages = 1u << 29;        // the group's entries fit the warp's buffer and are read together
constexpr u32 kRowBits = kStages - 1;

constexpr int kModeIndividual = 1;
constexpr int kModeCollaborative = 2;

// What a program sets, checked, and what follows from it:
//   Value    float or double
//   Sync     how a value is published and awaited, of wait.cuh
//   kNg      nodes that a warp solves at a time
//   kWaits   whether some node may need one of the same launch
//   kModes   which modes occur, so that the others cost no registers
//   kStages  whether some group is read through shared memory
//   kEarly   whether the division is done before the wait; later only to learn what that costs
//   kTight   whether blocks leave no more than 64 registers per thread
template <typename Settings>
struct AgConfig : Settings {
    static constexpr int kNg = Settings::kNg;
    static constexpr int kLanes = 32 / kNg;  // lanes of a subwarp
    // Entries of one lane in flight together; fewer where 64 registers per thread must hold more besides.
    static constexpr bool kCrowded = Settings::kTight && (sizeof(typename Settings::Value) == 8 || Settings::kStages);
    static constexpr int kUnroll = kLanes >= 16 || kCrowded ? 2 : 4;
    static_assert(kNg >= 1 && kNg <= 32 && (kNg & (kNg - 1)) == 0, "a warp is cut into a power of two of subwarps");
    static_assert(Settings::kModes >= 1 && Settings::kModes <= 3, "a kernel has one mode or both");
};

// What a launch is given; every pointer is to global memory.
template <typename Config>
struct AgArguments {
    using Value = typename Config::Value;
    using Slot = typename Config::Sync::Slot;
    const u32* __restrict__ row_ptr;  // rows + 1
    const u32* __restrict__ cols;     // all below their row
    const Value* __restrict__ vals;
    const Value* __restrict__ diagonal;
    const Value* __restrict__ b;        // in the matrix's row order
    Value* x;                           // in the matrix's row order
    const u32* __restrict__ rows_of;    // matrix row of a permuted row; null where rows are not permuted
    const uint2* __restrict__ tasks;    // kNg a group, groups in the order of the queues: {first row, end and flags}
    const u32* __restrict__ queue_ptr;  // warps + 1: groups of each warp
    Slot* work;                         // this call's values, in (permuted) solve order
    Slot* other;                        // the next call's
    u32 epoch;
    u32 rows;
    u32 reversed;  // row s is the matrix's row rows - 1 - s
    u32 warps;
    u32 span;   // rows of the largest node
    u32 stage;  // entries of a warp's buffer
};

template <typename Config>
struct AgSolver : AgArguments<Config> {
    using Arguments = AgArguments<Config>;
    using Value = typename Config::Value;
    using Sync = typename Config::Sync;
    using Slot = typename Sync::Slot;
    using Word = typename Bits<Value>::Word;
    static constexpr int kLanes = Config::kLanes;
    static constexpr int kUnroll = Config::kUnroll;

    // Entries of one lane that are in flight together, and what became of them.
    struct Batch {
        u32 col[kUnroll];
        Value val[kUnroll];
        Value got[kUnroll];
        u32 outer;  // a bit for each that waits for another node
        u32 inner;  // a bit for each that waits for a row of this node
    };
    // What a row needs besides its entries, fetched ahead of it.
    struct Head {
        u32 end;
        Value b;
        Value diagonal;
    };

    Watchdog watchdog;
    volatile Word* local;  // values of this node's rows, absent until solved
    u32* stage_cols;
    Value* stage_vals;
    u32 lane;   // within the subwarp
    u32 mask;   // lanes of the subwarp
    u32 first;  // the node's first row
    u32 shift;  // from an entry's index to its place in the buffer
    bool staged;
    bool publishes;

    __device__ __forceinline__ AgSolver(const Arguments& arguments, u64 deadline_ns, u32* status)
        : Arguments(arguments), watchdog(deadline_ns, status) {
        extern __shared__ __align__(16) unsigned char shared[];
        const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, subwarp = threadIdx.x / kLanes;
        lane = threadIdx.x % kLanes;
        mask = group_lanes<kLanes>();
        const u32 stage = this->stage;
        Word* locals = reinterpret_cast<Word*>(shared);
        local = locals + subwarp * this->span;
        Value* vals = reinterpret_cast<Value*>(locals + warps * Config::kNg * this->span);
        stage_vals = vals + warp * stage;
        stage_cols = reinterpret_cast<u32*>(vals + warps * stage) + warp * stage;
        shift = 0;
        staged = false;
    }

    __device__ __forceinline__ u32 matrix_row(u32 row) const {
        if (this->rows_of != nullptr) return __ldg(this->rows_of + row);
        return this->reversed ? this->rows - 1 - row : row;
    }
    __device__ __forceinline__ u32 col_at(u32 at) const {
        return Config::kStages && staged ? stage_cols[at + shift] : __ldg(this->cols + at);
    }
    __device__ __forceinline__ Value val_at(u32 at) const {
        return Config::kStages && staged ? stage_vals[at + shift] : __ldg(this->vals + at);
    }
    __device__ __forceinline__ Head head_of(u32 row) const {
        return Head{__ldg(this->row_ptr + row + 1), __ldg(this->b + matrix_row(row)), __ldg(this->diagonal + row)};
    }
    // The division is done before the wait: afterwards a multiplication is left (section 4.2.2, early division). Not in
    // `head_of`, where the warp would stand still until the diagonal has come; and pinned, or the compiler may move it
    // to where its result is used.
    static __device__ __forceinline__ Value inverse_of(float diagonal) {
        float inverse = 1.0f / diagonal;
        asm volatile("" : "+f"(inverse));
        return inverse;
    }
    static __device__ __forceinline__ Value inverse_of(double diagonal) {
        double inverse = 1.0 / diagonal;
        asm volatile("" : "+d"(inverse));
        return inverse;
    }

    // By what a row's value is multiplied or divided at its end.
    static __device__ __forceinline__ Value divisor_of(Value diagonal) {
        return Config::kEarly ? inverse_of(diagonal) : diagonal;
    }
    static __device__ __forceinline__ Value divided(Value value, Value divisor) {
        return Config::kEarly ? value * divisor : value / divisor;
    }

    // Loads entries at, at + stride, ... below end; those beyond it count as 0 times 0.
    __device__ __forceinline__ void fetch(Batch& batch, u32 at, u32 end, u32 stride) const {
        batch.outer = batch.inner = 0;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const bool inside = at + u * stride < end;
            // Beyond the end the first entry's address is polled again: the same line, and a valid one.
            const u32 from = inside ? at + u * stride : at;
            batch.col[u] = col_at(from);
            batch.val[u] = inside ? val_at(from) : Value(0);
            batch.got[u] = Value(0);
            const u32 bit = inside ? 1u << u : 0;
            if (batch.col[u] >= first) {
                batch.inner |= bit;
            } else {
                batch.outer |= bit;
            }
        }
    }

    // Takes what other nodes have published. All loads go out before the first is looked at.
    __device__ __forceinline__ void poll_outer(Batch& batch) {
        Slot slot[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) slot[u] = Sync::load(this->work + batch.col[u]);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            Value value;
            if ((batch.outer >> u & 1) && Sync::unpack(slot[u], this->epoch, value)) {
                batch.got[u] = value;
                batch.outer &= ~(1u << u);
            }
        }
    }

    // Every value was written by an earlier launch: nothing to wait for (elimination of synchronisation).
    __device__ __forceinline__ void read_outer(Batch& batch) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (batch.outer >> u & 1) {
                // Unpermuted rows find it in x itself, so that rows which nobody waits for publish nothing.
                batch.got[u] = this->rows_of != nullptr ? Sync::read(this->work + batch.col[u])
                                                        : this->x[matrix_row(batch.col[u])];
            }
        }
        batch.outer = 0;
    }

    __device__ __forceinline__ void poll_inner(Batch& batch) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (batch.inner >> u & 1) {
                const Word word = local[batch.col[u] - first];
                if (word != Bits<Value>::kAbsent) {
                    batch.got[u] = Bits<Value>::value_of(word);
                    batch.inner &= ~(1u << u);
                }
            }
        }
    }

    // In entry order, whatever order the values came in: the same bits in every call.
    static __device__ __forceinline__ void accumulate(const Batch& batch, Value& sum) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum += batch.val[u] * batch.got[u];
    }

    // Publishes first: others wait for that, but not for the rest.
    __device__ __forceinline__ void finish(u32 row, Value value) {
        if (publishes) Sync::store(this->work + row, this->epoch, value);
        if (this->span > 1) local[row - first] = present_bits(value);
        this->x[matrix_row(row)] = value;
        if (publishes && Sync::kResets) Sync::reset(this->other + row);
    }

    // All lanes of the subwarp share each row, one row after the other.
    __device__ __forceinline__ void collaborate(u32 end) {
        u32 begin = __ldg(this->row_ptr + first);
        Head ahead = head_of(first);
        for (u32 row = first; row < end; ++row) {
            const Head head = ahead;
            if (row + 1 < end) ahead = head_of(row + 1);
            const Value divisor = divisor_of(head.diagonal);
            Value sum = 0;
            bool lost = false;
            for (u32 at = begin + lane; at < head.end; at += kLanes * kUnroll) {
                Batch batch;
                fetch(batch, at, head.end, kLanes);
                // Rows of this node before this one are solved, and the barrier below has shown them.
                poll_inner(batch);
                if (!Config::kWaits) read_outer(batch);
                while (batch.outer != 0) {
                    poll_outer(batch);
                    if (batch.outer != 0 && watchdog.gives_up()) {
                        lost = true;
                        break;
                    }
                }
                accumulate(batch, sum);
            }
            begin = head.end;
            // A partial sum must not be published: a reader would take it for the value.
            if (Config::kWaits && __any_sync(mask, lost)) return;
#pragma unroll
            for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(mask, sum, offset);
            if (lane == 0) finish(row, divided(head.b - sum, divisor));
            __syncwarp(mask);
        }
    }

    // One row per lane. Rows of one node may need one another, so no lane may spin on its own: in each round every lane
    // takes what there is, those that are ready publish, and all meet at the vote. The lowest row not yet solved needs
    // only solved rows and other nodes, so each round brings the node on once those are there.
    __device__ __forceinline__ void individually(u32 end) {
        if (this->span > 1) {
            for (u32 i = lane; i < end - first; i += kLanes) local[i] = Bits<Value>::kAbsent;
            __syncwarp(mask);
        }
        for (u32 chunk = first; chunk < end; chunk += kLanes) {
            const u32 row = chunk + lane;
            bool solved = row >= end;
            u32 at = 0;
            Head head{0, Value(0), Value(1)};
            if (!solved) {
                at = __ldg(this->row_ptr + row);
                head = head_of(row);
            }
            const Value divisor = divisor_of(head.diagonal);
            Value sum = 0;
            Batch batch;
            batch.outer = batch.inner = 0;
            bool fetched = false;
            do {
                bool ready = false;
                if (!solved) {
                    if (!fetched && at < head.end) {
                        fetch(batch, at, head.end, 1);
                        at += kUnroll;
                        fetched = true;
                    }
                    if (batch.outer != 0) {
                        if (Config::kWaits) {
                            poll_outer(batch);
                        } else {
                            read_outer(batch);
                        }
                    }
                    if (batch.inner != 0) poll_inner(batch);
                    if ((batch.outer | batch.inner) == 0) {
                        if (fetched) accumulate(batch, sum);
                        fetched = false;
                        ready = at >= head.end;
                    } else if (Config::kWaits && watchdog.gives_up()) {
                        // Rows that wait for this one in the same node end by their own watchdogs.
                        solved = true;
                    }
                }
                // All have read before any writes, and all that is written is seen in the next round.
                __syncwarp(mask);
                if (ready) {
                    finish(row, divided(head.b - sum, divisor));
                    solved = true;
                }
                __syncwarp(mask);
            } while (__any_sync(mask, !solved));
        }
    }

    // Reads the entries of all the group's nodes with all lanes of the warp (section 4.2.2, collaborative read).
    __device__ __forceinline__ void read_group(u32 from_row, u32 end_row) {
        const u32 begin = __ldg(this->row_ptr + from_row);
        const u32 end = __ldg(this->row_ptr + end_row);
        u32 place = 0;
        for (int node = 0; node < Config::kNg; ++node) {
            const u32 from = __shfl_sync(kAllLanes, begin, node * kLanes);
            const u32 count = __shfl_sync(kAllLanes, end, node * kLanes) - from;
            if (threadIdx.x % 32 / kLanes == node) shift = place - from;
            for (u32 i = threadIdx.x % 32; i < count; i += 32) {
                stage_cols[place + i] = __ldg(this->cols + from + i);
                stage_vals[place + i] = __ldg(this->vals + from + i);
            }
            place += count;
        }
        __syncwarp();
    }

    __device__ __forceinline__ void run() {
        const u32 warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
        if (warp >= this->warps) return;
        const u32 subwarp = threadIdx.x % 32 / kLanes;
        u32 group = __ldg(this->queue_ptr + warp);
        const u32 end = __ldg(this->queue_ptr + warp + 1);
        if (group >= end) return;
        uint2 ahead = __ldg(this->tasks + static_cast<u64>(group) * Config::kNg + subwarp);
        for (; group < end; ++group) {
            const uint2 task = ahead;
            if (group + 1 < end) ahead = __ldg(this->tasks + static_cast<u64>(group + 1) * Config::kNg + subwarp);
            first = task.x;
            const u32 last = task.y & kRowBits;
            publishes = (task.y & kPublishes) != 0;
            // The flag is the same for all tasks of a group.
            staged = Config::kStages && (task.y & kStages) != 0;
            if (staged) read_group(first, last);
            if (first < last) {
                if ((Config::kModes & kModeCollaborative) && (task.y & kCollaborates)) {
                    collaborate(last);
                } else if (Config::kModes & kModeIndividual) {
                    individually(last);
                }
            }
            // All lanes meet before the buffers are used again; if one gave up, the whole warp ends.
            if (Config::kWaits) {
                if (__any_sync(kAllLanes, watchdog.expired)) return;
            }
            __syncwarp();
        }
    }
};

// Solves all tasks of a launch.
template <typename Config>
__device__ __forceinline__ void ag(const AgArguments<Config>& arguments, u64 deadline_ns, u32* status) {
    AgSolver<Config>(arguments, deadline_ns, status).run();
}

}  // namespace sparsetune
