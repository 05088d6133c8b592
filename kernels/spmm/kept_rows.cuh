// SpMM on column-major operands in which rows of A stay with their threads: a block keeps its rows in registers, and what they
// need of B passes through shared memory, some columns at a time and copied ahead. A block reads A once, however many columns it sums.
// For short rows whose neighbours need neighbouring rows of B. What a block needs of a column is its window: pieces of 16 bytes.
// maps:    block.x -> rows; thread -> turns rows, blockDim.x apart; registers -> keep entries of each, and 4 or 8 sums; block.y -> stages of r columns
// tune:    rows 128 256 512 1024 | turns 1 2 | keep 4 8 20 32 | r 4 8 | stages 2 3
// needs:   CSR with 32-bit row pointers; for each entry its place in the window, and for each block the pieces of the window; B
//          aligned to 16 bytes
// refuses: windows that shared memory does not hold; any n and any number of rows are taken
// spills:  96 bytes allowed because a few kept values in L1 cost less than half as many resident blocks do
#pragma once
#include "copies.cuh"
#include "spmm/element.cuh"

namespace sparsetune {

// The stages, then the block's own list of pieces.
extern __shared__ uint4 kept_window[];

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kRows        rows of a block
//   kTurns       rows of a thread, which it computes one after another
//   kKeep        entries of a row that its thread keeps; the others are read again for each stage
//   kR           columns of a stage, of which a thread copies kAtOnce and sums kSums at a time
//   kStages      stages in shared memory: the one that is summed and those that are on their way
//   kFull        whether kR divides the columns of C, so that no column is checked
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct KeptRowsConfig : Settings {
    static constexpr int kRows = Settings::kRows, kTurns = Settings::kTurns, kStages = Settings::kStages;
    static constexpr u32 kThreads = kRows / kTurns;
    // More columns at a time take more registers, and what a thread keeps of A would spill.
    static constexpr int kAtOnce = 4;  // that are copied
    static constexpr int kSums = kTurns == 1 && Settings::kR % 8 == 0 ? 8 : 4;
    static_assert(kRows % (32 * kTurns) == 0 && kThreads <= 1024,
                  "a block must hold whole warps and at most 1024 threads");
    static_assert(Settings::kR % kAtOnce == 0, "a stage must be whole groups of columns");
    static_assert(kStages == 2 || kStages == 3, "waits are written for one lot and for two lots on their way");
};

// A row of a thread.
template <typename Config>
struct KeptRow {
    using T = typename Config::Value;
    static constexpr int kKeep = Config::kKeep, kSums = Config::kSums;

    u32 begin, length;  // its entries; none where there is no such row
    u32 place[kKeep];   // bytes from the beginning of a column's window
    T value[kKeep];

    __device__ __forceinline__ void load(const u32* __restrict__ row_ptr, const u16* __restrict__ places,
                                         const T* __restrict__ vals, u32 row, u32 rows) {
        begin = row < rows ? __ldg(row_ptr + row) : 0;
        length = row < rows ? __ldg(row_ptr + row + 1) - begin : 0;
#pragma unroll
        for (int k = 0; k < kKeep; ++k) {
            if (k < length) {
                place[k] = bytes(places, k);
                value[k] = load_element(vals + begin + k);
            }
        }
    }

    // Adds the products with kSums columns, whose windows begin `window` bytes into shared memory.
    __device__ __forceinline__ void add(const u32 (&window)[kSums], const u16* __restrict__ places,
                                        const T* __restrict__ vals, Sum<T> (&sums)[kSums]) const {
#pragma unroll
        for (int k = 0; k < kKeep; ++k) {
            if (k < length) add_entry(window, place[k], value[k], sums);
        }
        for (u32 k = kKeep; k < length; ++k) add_entry(window, bytes(places, k), load_element(vals + begin + k), sums);
    }

private:
    __device__ __forceinline__ u32 bytes(const u16* __restrict__ places, u32 k) const {
        return __ldg(places + begin + k) * static_cast<u32>(sizeof(T));
    }

    static __device__ __forceinline__ void add_entry(const u32 (&window)[kSums], u32 at, T by, Sum<T> (&sums)[kSums]) {
        const char* shared = reinterpret_cast<const char*>(kept_window);
#pragma unroll
        for (int u = 0; u < kSums; ++u) {
            sums[u] = multiply_add(widen(by), widen(*reinterpret_cast<const T*>(shared + (window[u] + at))), sums[u]);
        }
    }
};

// A column-major B by its pieces, counted from its first element on: where a column has no whole number of them, one begins up to
// 15 bytes before the column does.
template <typename Config>
struct Pieces {
    using T = typename Config::Value;
    static constexpr int kAtOnce = Config::kAtOnce;

    const char* b;
    u64 step;   // bytes from a column to the next
    u64 bytes;  // of B

    __device__ __forceinline__ Pieces(const T* from, u32 rows, u32 n)
        : b(reinterpret_cast<const char*>(from)), step(rows * u64{sizeof(T)}), bytes(step * n) {}

    // Bytes of the piece with which a column begins that lie before it.
    __device__ __forceinline__ u32 before(u32 column) const { return column * static_cast<u32>(step) % 16; }

    // Begins to copy the same piece of kAtOnce columns, `room` pieces apart in shared memory.
    __device__ __forceinline__ void copy(uint4* to, u32 room, u32 column, u32 piece) const {
        const char* from = b + 16ull * piece;
        u64 at = column * step;
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u, at += step, to += room) copy_piece_ahead(to, from + (at & ~15ull));
    }

    // The same of the last columns, of which `real` are: what would lie behind the end of B becomes zero.
    __device__ __forceinline__ void copy_last(uint4* to, u32 room, u32 column, u32 piece, u32 real) const {
#pragma unroll 1
        for (u32 u = 0; u < real; ++u, to += room) {
            const u64 at = (((column + u) * step) & ~15ull) + 16ull * piece;
            if (at + 16 <= bytes) {
                copy_piece_ahead(to, b + at);
                continue;
            }
            // By elements: an asynchronous copy of fewer bytes reads no more than these either, but a memory checker says that it does.
            T* elements = reinterpret_cast<T*>(to);
            for (u32 i = 0; i < 16 / sizeof(T); ++i) {
                const u64 k = at + i * sizeof(T);
                elements[i] = k < bytes ? *reinterpret_cast<const T*>(b + k) : T{};
            }
        }
    }

    // Whether all pieces of windows of the columns before `end` lie within B.
    __device__ __forceinline__ bool within(u32 end) const { return end * step + 32 <= bytes; }
};

// `piece_ptr[block]` is where the list of a block's pieces begins in `pieces`, and `places` are those of the entries in the order of
// A. A column's window has room for `window` pieces; a block sums `stages` stages.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void kept_rows(const u32* __restrict__ row_ptr, const u16* __restrict__ places,
                                          const T* __restrict__ vals, const u32* __restrict__ piece_ptr,
                                          const u32* __restrict__ pieces, const T* __restrict__ b,
                                          Result* __restrict__ c, u32 rows, u32 b_rows, u32 n, u32 window, u32 stages,
                                          const Scale<Result, Config::kAccumulate>& scale) {
    constexpr int kTurns = Config::kTurns, kR = Config::kR, kStages = Config::kStages;
    constexpr int kAtOnce = Config::kAtOnce, kSums = Config::kSums;
    constexpr u32 kThreads = Config::kThreads;
    constexpr bool kFull = Config::kFull;
    u32* own = reinterpret_cast<u32*>(kept_window + kStages * kR * window);
    const u32 listed = __ldg(piece_ptr + blockIdx.x), count = __ldg(piece_ptr + blockIdx.x + 1) - listed;
    for (u32 i = threadIdx.x; i < count; i += kThreads) own[i] = __ldg(pieces + listed + i);
    const u32 first_row = blockIdx.x * Config::kRows + threadIdx.x;
    KeptRow<Config> kept[kTurns];
#pragma unroll
    for (int t = 0; t < kTurns; ++t) kept[t].load(row_ptr, places, vals, first_row + t * kThreads, rows);
    __syncthreads();

    const Pieces<Config> of_b(b, b_rows, n);
    const u32 first = blockIdx.y * stages * kR, end = min(n, first + stages * kR);
    const auto copy = [&](u32 stage) {
        const u32 column = first + stage * kR;
        uint4* to = kept_window + stage % kStages * kR * window;
        if (column < end && of_b.within(column + kR)) {
#pragma unroll 1
            for (u32 group = 0; group < kR; group += kAtOnce) {
#pragma unroll 1
                for (u32 i = threadIdx.x; i < count; i += kThreads)
                    of_b.copy(to + group * window + i, window, column + group, own[i]);
            }
        } else if (column < end) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < count; i += kThreads)
                of_b.copy_last(to + i, window, column, own[i], min(static_cast<u32>(kR), n - column));
        }
        end_of_lot();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);
#pragma unroll 1
    for (u32 stage = 0; first + stage * kR < end; ++stage) {
        if constexpr (kStages == 2) {
            copied();
        } else {
            copied_but_latest_lot();
        }
        // All have copied their pieces of this stage, and nobody reads the one before any more, which is overwritten next.
        __syncthreads();
        copy(stage + kStages - 1);
        const u32 column = first + stage * kR;
        const u32 ring = stage % kStages * kR;
#pragma unroll
        for (int group = 0; group < kR; group += kSums) {
            u32 windows[kSums];
#pragma unroll
            for (int u = 0; u < kSums; ++u)
                windows[u] = (ring + group + u) * window * 16 + of_b.before(column + group + u);
#pragma unroll
            for (int t = 0; t < kTurns; ++t) {
                Sum<T> sums[kSums];
#pragma unroll
                for (int u = 0; u < kSums; ++u) sums[u] = Sum<T>(0);
                kept[t].add(windows, places, vals, sums);
                const u32 row = first_row + t * kThreads;
                if (row < rows) {
                    Result* to = c + static_cast<u64>(column + group) * rows + row;
#pragma unroll
                    for (int u = 0; u < kSums; ++u, to += rows) {
                        if (kFull || column + group + u < n) store_one(to, sums[u], scale);
                    }
                }
            }
        }
    }
}

}  // namespace sparsetune
