// What one lane of a warp reads of a slice: its place in it, its terms, and copies of the next slice's in shared memory.
//
// Entries of a slice are side by side: see `slices.cuh`, whose settings `Config` has.
#pragma once
#include "copies.cuh"

namespace sparsetune {

constexpr u32 kNoTerm = 0xffffffffu;  // column of a padding entry

// What a launch works on. `meta[s]` is {first slot, first step, b steps | x steps << 16, log2 lanes | rows << 8}.
template <typename Value>
struct Slices {
    const uint4* meta;
    const u32* cols;  // b terms: row of b; x terms: slot
    const Value* vals;
    const int* rows;  // row of x a slot stands for; -1: a partial sum
    const Value* b;
    Value* x;
    u32 first, end;  // slices of this launch
    u32 rhs;
};

// One lane's place in its warp's slice.
template <typename Config>
struct SliceLane {
    int log_lanes, b_steps, x_steps;
    u32 slot;    // of this lane's equation
    bool leads;  // publishes: the first entry lane of an equation that exists
    u32 b_at;    // this lane's first entry in b; entries of a system are counted with 32 bits
    u32 x_at;    // and in x

    __device__ __forceinline__ SliceLane(uint4 meta, int entry_lane) {
        log_lanes = meta.w & 0xff;
        b_steps = meta.z & 0xffff;
        x_steps = meta.z >> 16;
        const u32 row = static_cast<u32>(entry_lane) >> log_lanes;
        slot = meta.x + row;
        leads = (entry_lane & ((1 << log_lanes) - 1)) == 0 && row < (meta.w >> 8);
        b_at = meta.y * Config::kWidth + entry_lane;
        x_at = b_at + b_steps * Config::kWidth;
    }
};

// kSteps entries of one lane, loaded together.
template <typename Config, int kSteps = Config::kUnroll>
struct Terms {
    using Value = typename Config::Value;
    u32 col[kSteps];
    Value val[kSteps];

    __device__ __forceinline__ void fetch(const Slices<Value>& a, u32 at, int left) {
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
            const bool inside = u < left;
            col[u] = inside ? a.cols[at + u * Config::kWidth] : kNoTerm;
            val[u] = inside ? a.vals[at + u * Config::kWidth] : Value(0);
        }
    }
};

// Copies of the first terms of a warp's next slice, in shared memory: those in b, then those in x. A lane copies what it reads
// itself, so no other thread is waited for.
template <typename Config>
struct Ahead {
    using Value = typename Config::Value;
    static constexpr int kSteps = Config::kKnown + Config::kUnroll;
    static constexpr u32 kBytes = kSteps * 32 * (sizeof(Value) + sizeof(u32));  // of a warp

    Value* vals;  // of this lane, steps 32 apart
    u32* cols;

    __device__ __forceinline__ Ahead(unsigned char* shared, u32 warp, u32 lane) {
        Value* first = reinterpret_cast<Value*>(shared + warp * kBytes);
        vals = first + lane;
        cols = reinterpret_cast<u32*>(first + kSteps * 32) + lane;
    }

    __device__ __forceinline__ void copy(const Slices<Value>& a, const SliceLane<Config>& lane) const {
        copy<0, Config::kKnown>(a, lane.b_at, lane.b_steps);
        copy<Config::kKnown, Config::kUnroll>(a, lane.x_at, lane.x_steps);
    }

    // The copies are there.
    __device__ __forceinline__ void arrive() const { copied(); }

    __device__ __forceinline__ void read(const SliceLane<Config>& lane, Terms<Config, Config::kKnown>& known,
                                         Terms<Config>& unknown) const {
        read<0>(known, lane.b_steps);
        read<Config::kKnown>(unknown, lane.x_steps);
    }

private:
    template <int kFrom, int kCount>
    __device__ __forceinline__ void copy(const Slices<Value>& a, u32 at, int left) const {
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
            if (u >= left) continue;
            copy_async(cols + (kFrom + u) * 32, a.cols + at + u * Config::kWidth);
            copy_async(vals + (kFrom + u) * 32, a.vals + at + u * Config::kWidth);
        }
    }

    template <int kFrom, int kCount>
    __device__ __forceinline__ void read(Terms<Config, kCount>& terms, int left) const {
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
            const bool inside = u < left;
            terms.col[u] = inside ? cols[(kFrom + u) * 32] : kNoTerm;
            terms.val[u] = inside ? vals[(kFrom + u) * 32] : Value(0);
        }
    }

    template <typename T>
    static __device__ __forceinline__ void copy_async(T* to, const T* from) {
        const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(sizeof(T)) : "memory");
    }
};

}  // namespace sparsetune
