// The walk of SpMM: a group of kLanes x kWays threads goes along a run of entries of A, output columns in registers.
// A lane has kCols vectors of kVec columns, kLanes vectors apart, so that a load of the group is contiguous; the ways take
// the entries in turn and are summed at the end, which makes the chain of dependent loads kWays times shorter.
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// How the entries of A come to the threads of a group.
enum class Fetch {
    kDirect,   // each thread reads for itself: neighbouring addresses in the group
    kShuffle,  // the group reads as many as it has threads, and hands them round by shuffles
    kAhead,  // as kDirect, and the next entries are read while the rows of B that the present ones need are on their way
};

// The values of the entries of A.
template <typename T, bool kMayBeEqual>
struct Values {
    const T* at;
};

// The same with a word that tells whether all of them are one number: then walks read the first of all and no other, which
// spares half of A in binary32. Zero is always right, so new values that nobody has compared need no other kernel.
template <typename T>
struct Values<T, true> {
    const T* at;
    const u32* equal;
};

// How the columns of the entries of A are stored: as numbers, or as signed distances from the row's own number, of 16 bits, where
// none is larger. These take half the bytes, and no load more.
template <bool kNear>
struct ColumnOf {
    using Type = u32;
};
template <>
struct ColumnOf<true> {
    using Type = u16;
};

// What a program sets of a walk, checked, and what follows from it.
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kLanes       threads side by side along the columns of C
//   kWays        threads that take the entries of a run in turn
//   kVec         columns of a vector, which one instruction loads
//   kCols        vectors that a thread has
//   kUnroll      entries of A in flight per thread
//   kFetch       how the entries of A come to the threads
//   kEqual       whether a word tells that all values of A may be equal
//   kNear        whether columns are distances from the row's own number
//   kFull        whether the columns of C fill all tiles, so that no column is checked
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct WalkShape : Settings {
    using Value = typename Settings::Value;
    using Column = typename ColumnOf<Settings::kNear>::Type;
    static constexpr int kLanes = Settings::kLanes, kWays = Settings::kWays;
    static constexpr int kVec = Settings::kVec, kCols = Settings::kCols, kUnroll = Settings::kUnroll;
    static constexpr int kGroup = kLanes * kWays;               // threads that share a run of entries
    static constexpr int kTileColumns = kLanes * kVec * kCols;  // N1: columns of C that a group computes
    static_assert(kGroup >= 1 && kGroup <= 32 && (kLanes & (kLanes - 1)) == 0 && (kWays & (kWays - 1)) == 0,
                  "a group must be a power of two of lanes within a warp");
    static_assert(kVec * kCols * sizeof(Sum<Value>) <= 128,
                  "more than 128 bytes of sums per thread leave no room for loads in flight");
    static_assert(kUnroll >= 1 && kUnroll <= 8, "more than 8 entries in flight per thread spill");
    static_assert(Settings::kFetch != Fetch::kShuffle || kUnroll * kWays <= kGroup,
                  "a shuffle hands round at most a group's entries");
};

// A thread's part of a walk. Config is or derives from a WalkShape.
template <typename Config>
struct Walk {
    using T = typename Config::Value;
    using Column = typename Config::Column;
    static constexpr int kLanes = Config::kLanes, kWays = Config::kWays, kGroup = Config::kGroup;
    static constexpr int kVec = Config::kVec, kCols = Config::kCols, kUnroll = Config::kUnroll;
    static constexpr bool kFull = Config::kFull;

    const char* __restrict__ b;  // first column of this lane in row 0 of B
    u32 stride;                  // bytes from a row of B to the next
    u32 way;                     // which of the ways this thread walks
    u32 own;                     // the number of the row, from which near columns are counted
    T one;                       // the value of all entries, where they are equal
    bool inside[kCols];          // whether each vector lies within the columns
    Sums<T, kVec> acc[kCols];

    // `b_tile` is the tile's first column in row 0; `width` columns of the tile are real.
    __device__ __forceinline__ Walk(const T* b_tile, u32 elements, u32 width) : stride(elements * sizeof(T)) {
        const u32 first = first_column();
        b = reinterpret_cast<const char*>(b_tile + first);
        way = threadIdx.x % kGroup / kLanes;
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
            inside[c] = kFull || first + c * kLanes * kVec < width;
            acc[c].zero();
        }
    }

    // This lane's first column within the tile.
    static __device__ __forceinline__ u32 first_column() { return threadIdx.x % kLanes * kVec; }

    // Adds the entries `k` to `end` of A, which are of row `row`.
    __device__ __forceinline__ void run(const Column* __restrict__ cols, const Values<T, Config::kEqual>& vals, u32 row,
                                        u32 k, u32 end) {
        own = row;
        if constexpr (Config::kEqual) {
            if (__ldg(vals.equal) != 0) {
                one = load_element(vals.at);
                entries<true>(cols, vals.at, k, end);
                return;
            }
        }
        entries<false>(cols, vals.at, k, end);
    }

    // Sums over the ways; every way has the totals afterwards.
    __device__ __forceinline__ void combine() {
#pragma unroll
        for (int step = kLanes; step < kGroup; step *= 2) {
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
#pragma unroll
                for (int i = 0; i < kVec; ++i) {
                    acc[c].lane[i] += __shfl_xor_sync(group_lanes<kGroup>(), acc[c].lane[i], step);
                }
            }
        }
    }

    // `c_tile` is the tile's first column in the row of C.
    template <typename Result, bool kAccumulate>
    __device__ __forceinline__ void store(Result* c_tile, const Scale<Result, kAccumulate>& scale) const {
        if (kWays > 1 && way != 0) return;
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
            if (inside[c]) acc[c].store(c_tile + first_column() + c * kLanes * kVec, scale);
        }
    }

private:
    static __device__ __forceinline__ void nothing() {}

    __device__ __forceinline__ u32 column(const Column* at) const {
        if constexpr (Config::kNear) {
            return own + static_cast<u32>(static_cast<int>(static_cast<short>(__ldg(at))));
        } else {
            return __ldg(at);
        }
    }

    // kOne: all values are `one`.
    template <bool kOne>
    __device__ __forceinline__ void entries(const Column* __restrict__ cols, const T* __restrict__ vals, u32 k,
                                            u32 end) {
        if constexpr (Config::kFetch == Fetch::kShuffle) {
            shuffled<kOne>(cols, vals, k, end);
        } else if constexpr (Config::kFetch == Fetch::kAhead) {
            ahead<kOne>(cols, vals, k, end);
        } else {
            direct<kOne>(cols, vals, k, end);
        }
    }

    template <bool kOne>
    __device__ __forceinline__ T value(const T* at) const {
        if constexpr (kOne) return one;
        return load_element(at);
    }

    // kUnroll entries: every load of B is issued before the first multiply, and `meanwhile` is called between. Entry u is real
    // where u * kWays < `left`; kWhole says that all are. V is the type of the entries' values: T, or Sum<T> once they were
    // handed round.
    template <bool kWhole, typename V, typename Meanwhile>
    __device__ __forceinline__ void accumulate(const u32 (&col)[kUnroll], const V (&val)[kUnroll], u32 left,
                                               const Meanwhile& meanwhile) {
        Vector<T, kVec> loaded[kUnroll][kCols];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            // By bytes: one instruction an address.
            const T* row = reinterpret_cast<const T*>(b + static_cast<u64>(col[u]) * stride);
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
                if ((kWhole || u * kWays < left) && inside[c]) loaded[u][c].load(row + c * kLanes * kVec);
            }
        }
        meanwhile();
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            const Sum<T> by = widen(val[u]);
#pragma unroll
            for (int c = 0; c < kCols; ++c) {
                if ((kWhole || u * kWays < left) && inside[c]) acc[c].fma(by, loaded[u][c]);
            }
        }
    }

    // Each lane reads A for itself: neighbouring addresses in the group, one transaction.
    template <bool kOne>
    __device__ __forceinline__ void direct(const Column* __restrict__ cols, const T* __restrict__ vals, u32 k,
                                           u32 end) {
        u32 col[kUnroll];
        T val[kUnroll];
        constexpr u32 kStep = kUnroll * kWays;
        k += way;
        u32 left = end > k ? end - k : 0;
        // Pointers that move: the addresses of a step are one register and constants.
#pragma unroll 1
        for (cols += k, vals += k; left > kStep - kWays; cols += kStep, vals += kStep) {
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
                col[u] = column(cols + u * kWays);
                val[u] = value<kOne>(vals + u * kWays);
            }
            accumulate<true>(col, val, kStep, nothing);
            left = left > kStep ? left - kStep : 0;
        }
        if (left > 0) {
            read<kOne>(cols, vals, left, col, val);
            accumulate<false>(col, val, left, nothing);
        }
    }

    // As `direct`, one step ahead: the loads of A and those of B do not wait for each other.
    template <bool kOne>
    __device__ __forceinline__ void ahead(const Column* __restrict__ cols, const T* __restrict__ vals, u32 k, u32 end) {
        constexpr u32 kStep = kUnroll * kWays;
        k += way;
        u32 left = end > k ? end - k : 0;
        cols += k, vals += k;
        u32 col[kUnroll];
        T val[kUnroll];
        read<kOne>(cols, vals, left, col, val);
#pragma unroll 1
        while (left > kStep - kWays) {
            u32 next_col[kUnroll];
            T next_val[kUnroll];
            left = left > kStep ? left - kStep : 0;
            cols += kStep, vals += kStep;
            accumulate<true>(col, val, kStep, [&] { read<kOne>(cols, vals, left, next_col, next_val); });
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
                col[u] = next_col[u];
                val[u] = next_val[u];
            }
        }
        if (left > 0) accumulate<false>(col, val, left, nothing);
    }

    // The entries of a step of which `left` are real.
    template <bool kOne>
    __device__ __forceinline__ void read(const Column* __restrict__ cols, const T* __restrict__ vals, u32 left,
                                         u32 (&col)[kUnroll], T (&val)[kUnroll]) const {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            if (u * kWays < left) {
                col[u] = column(cols + u * kWays);
                val[u] = value<kOne>(vals + u * kWays);
            }
        }
    }

    // The group reads kGroup entries of A at once and hands them round by shuffles.
    template <bool kOne>
    __device__ __forceinline__ void shuffled(const Column* __restrict__ cols, const T* __restrict__ vals, u32 k,
                                             u32 end) {
        const u32 lane = threadIdx.x % kGroup;
        for (; k < end; k += kGroup) {
            const u32 here = min(static_cast<u32>(kGroup), end - k);
            const u32 my_col = lane < here ? column(cols + k + lane) : 0;
            const Sum<T> my_val = !kOne && lane < here ? widen(load_element(vals + k + lane)) : Sum<T>(0);
#pragma unroll 1
            for (u32 first = 0; first < here; first += kUnroll * kWays) {
                u32 col[kUnroll];
                Sum<T> val[kUnroll];
#pragma unroll
                for (int u = 0; u < kUnroll; ++u) {
                    col[u] = __shfl_sync(group_lanes<kGroup>(), my_col, first + u * kWays + way, kGroup);
                    if constexpr (kOne) {
                        val[u] = widen(one);
                    } else {
                        val[u] = __shfl_sync(group_lanes<kGroup>(), my_val, first + u * kWays + way, kGroup);
                    }
                }
                const u32 left = here - first > way ? here - first - way : 0;
                if (first + kUnroll * kWays <= here) {
                    accumulate<true>(col, val, left, nothing);
                } else {
                    accumulate<false>(col, val, left, nothing);
                }
            }
        }
    }
};

}  // namespace sparsetune
