// TCA-SpMM (section 4), row-major f16 and bf16: dot products of plain CSR reshaped into 16 x 8 x 8 tensor core products, sums in f32.
// maps:    warp -> a row's share of the columns, by a table; lane -> 2 nonzeros x `columns` / 8 columns; class of a row -> 8, 16, 32 or 64 nonzeros a product
// tune:    warps 4 8 | columns 32 64 128 | thresholds paper double eightfold | feed registers shared
// needs:   CSR columns and values, f16 or bf16, row-major B and C, a table of warps that gives every row all its columns once; sm_80
// refuses: 128 columns where n is no multiple of 16; feed shared with other than 8 warps and 64 columns
#pragma once
#include "copies.cuh"
#include "spmm/diagonal.cuh"

namespace sparsetune {

// Bytes that the memory moves at least.
constexpr int kSector = 32;

// Bytes of C that one warp of a group has of the 64 columns that the group computes together.
template <int kEights, typename Result>
constexpr int kPieceBytes = 64 / kEights * static_cast<int>(sizeof(Result));

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B, f16 or bf16
//   Result       type of the elements of C, Value or f32
//   kWidth       columns that a lane holds
//   kShared      whether rows of B pass through shared memory; else lanes load them for themselves
//   kAligned     whether rows of B are aligned for vectors of kWidth
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct TcaConfig : Settings {
    static constexpr int kWidth = Settings::kWidth;
    static constexpr bool kShared = Settings::kShared;
    // 16-byte vectors of the shared buffer: two stages of 64 per warp.
    static constexpr int kVectors = kShared ? 2 * 64 * 8 : 1;
    // Sums of two turns of the one group of 8 warps that a block has; other groups write whole sectors without.
    static constexpr int kCollected = kShared && kPieceBytes<8, typename Settings::Result> < kSector ? 2 * 64 : 1;
    static_assert(
        kWidth == 4 || kWidth == 8 || kWidth == 16,
        "a lane holds 4, 8 or 16 columns: two for every product, and more sums would leave no registers for loads");
    static_assert(!kShared || kWidth == 8, "the shared buffer is laid out for 64 columns in vectors of 16 bytes");
};

// What a warp does: columns `part`, `part + parts`, ... (in units of what it computes in a step) of one row.
struct WarpTask {
    u32 row;         // ~0: nothing, the block was not filled
    u32 begin, end;  // the row's nonzeros
    u32 eights_log;  // class of the row: log2 of the blocks of 8 nonzeros in a product
    u32 part, parts;

    __device__ __forceinline__ explicit WarpTask(const u32* __restrict__ table, u64 slot) {
        const uint4 words = __ldg(reinterpret_cast<const uint4*>(table) + slot);
        row = words.x, begin = words.y, end = words.z;
        eights_log = words.w & 3u, part = words.w >> 2 & 0x7fffu, parts = (words.w >> 17) + 1;
    }
};

// A, B and C.
template <typename T, typename Result, bool kAccumulate>
struct TcaOperands {
    const u32* __restrict__ cols;
    const T* __restrict__ vals;
    const T* __restrict__ b;
    Result* c;
    u32 n;
    Scale<Result, kAccumulate> scale;
};

// Feed from registers: a lane loads the two rows of B that its pairs of D come from, and nothing passes through shared memory.
// The lanes of one block of nonzeros that differ in the octet read next to each other: 128 bytes of a row where kEights is 1,
// 16 where it is 8, whose neighbours the next warp or the next step reads from L1. Warps of a row need not synchronise.
template <int kEights, int kWidth, bool kAligned, typename T, typename Result, bool kAccumulate>
__device__ __forceinline__ void walk_registers(const WarpTask& task, const TcaOperands<T, Result, kAccumulate>& of) {
    constexpr u32 kStep = 8 * kEights;
    constexpr int kOctets = 8 / kEights;
    const u32 lane = threadIdx.x % 32, g = lane / 4;
    const u32 mine = g % kEights * 8 + lane % 4 * 2, octet = g / kEights, n = of.n;
    Result* c_row = of.c + static_cast<u64>(task.row) * n;
    Nonzeros head;
    head.load(of.cols, of.vals, task.begin + mine, task.end);
    for (u32 first = task.part * (kOctets * kWidth); first < n; first += task.parts * (kOctets * kWidth)) {
        Products<kWidth> products;
        products.zero();
        Nonzeros now = head;
        for (u32 k = task.begin; k < task.end; k += kStep) {
            Vector<T, kWidth> row[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                row[i] = fetch<kWidth, kOctets, kAligned>(of.b + static_cast<u64>(now.col[i]) * n, first, octet, n,
                                                          now.real[i]);
            }
            // In flight beside the rows of B, so that the next step does not wait for its indices.
            Nonzeros next;
            next.load(of.cols, of.vals, k + kStep + mine, task.end);
            products.multiply(row[0], row[1], now.values);
            now = next;
        }
        finish<kEights, kOctets, kAligned>(products, c_row, first, octet, n, of.scale);
    }
}

// Shared feed: where a row's 16-byte vectors lie in the buffer of 8 x kEights nonzeros by 8 octets. A quarter of a warp writes 8
// octets of one nonzero, and reads 8 nonzeros two apart of one octet (4 of two octets where kEights is 1); turning the octets by
// the nonzero puts both on all banks once, which padding would not do for every class.
template <int kEights>
__device__ __forceinline__ u32 buffer_place(u32 nonzero, u32 octet) {
    const u32 turn = kEights == 1 ? nonzero & ~1u : nonzero / 2 % 8;
    return nonzero * 8 + (octet ^ turn);
}

// A step of the shared feed: nonzeros from k on, columns from `first` on.
struct Stop {
    u32 k, first;

    // All nonzeros, then the next 64 columns; a row without nonzeros still makes one step for them.
    __device__ __forceinline__ Stop next(const WarpTask& task, u32 step, u32 stride) const {
        return k + step < task.end ? Stop{k + step, first} : Stop{task.begin, first + stride};
    }
};

// Feed through shared memory (algorithms 3 and 4): the kEights warps of a group gather 64 columns of 8 x kEights rows of B, all
// 128 bytes of a row by neighbouring lanes, while they multiply what they gathered before. 2 KiB per warp for the two stages;
// A's nonzeros, which the paper keeps in shared memory too, are already in the lanes that need them. C's sums pass through it
// (the paper's output buffer) where a warp has less than a sector of them: they are written in the step after, when the group
// has met in any case, 128 bytes by one warp at once.
template <int kEights, bool kAligned, typename T, typename Result, bool kAccumulate>
struct SharedWalk {
    static constexpr int kWidth = 8;
    static constexpr u32 kVectors = 64 * kEights;  // of a stage
    static constexpr bool kCollects = kPieceBytes<kEights, Result> < kSector;

    uint4* buffer;     // two stages of the group
    float* collected;  // the sums of two turns, if it collects
    u32 member;        // warp within the group
    u32 barrier;

    // Lane j holds the nonzeros 2 j and 2 j + 1 of the step (where kEights is less than 8, the first 4 kEights lanes do).
    __device__ __forceinline__ void gather(u32 stage, const Stop& stop, const Nonzeros& held, const WarpTask& task,
                                           const TcaOperands<T, Result, kAccumulate>& of) const {
        const u32 thread = member * 32 + threadIdx.x % 32, octet = thread % 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 nonzero = thread / 8 + i * 4 * kEights;
            const u32 even = __shfl_sync(kAllLanes, held.col[0], nonzero / 2);
            const u32 odd = __shfl_sync(kAllLanes, held.col[1], nonzero / 2);
            const T* row = of.b + static_cast<u64>(nonzero % 2 ? odd : even) * of.n;
            const bool real = stop.k + nonzero < task.end;
            uint4* to = buffer + stage * kVectors + buffer_place<kEights>(nonzero, octet);
            if constexpr (kAligned) {
                const u32 at = column<kWidth, 8, true>(stop.first, octet, 0);
                const bool inside = real && at < of.n;
                asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(
                                 static_cast<u32>(__cvta_generic_to_shared(to))),
                             "l"(inside ? row + at : of.b), "r"(inside ? 16 : 0)
                             : "memory");
            } else {
                const auto held_row = fetch<kWidth, 8, false>(row, stop.first, octet, of.n, real);
                *to = make_uint4(held_row.word[0], held_row.word[1], held_row.word[2], held_row.word[3]);
            }
        }
    }

    // What was gathered is there for the whole group, and what was multiplied may be written over.
    __device__ __forceinline__ void meet() const {
        copied();
        if constexpr (kEights == 1) {
            __syncwarp();
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(32 * kEights) : "memory");
        }
    }

    __device__ __forceinline__ Vector<T, kWidth> read(u32 stage, u32 nonzero, u32 octet) const {
        Vector<T, kWidth> vector;
        vector.set(buffer[stage * kVectors + buffer_place<kEights>(nonzero, octet)]);
        return vector;
    }

    // What the group has collected of 64 columns, to C: by one warp, since it is 128 bytes.
    __device__ __forceinline__ void write(const float* sums, Result* c_row, u32 first,
                                          const TcaOperands<T, Result, kAccumulate>& of) const {
        if (member != 0) return;
        const u32 lane = threadIdx.x % 32;
        if constexpr (kAligned) {
            Sums<Result, 2> pair;
            pair.lane[0] = sums[2 * lane], pair.lane[1] = sums[2 * lane + 1];
            if (first + 2 * lane < of.n) pair.store(c_row + first + 2 * lane, of.scale);
        } else {
#pragma unroll
            for (u32 at = lane; at < 64; at += 32) {
                if (first + at < of.n) store_one(c_row + first + at, sums[at], of.scale);
            }
        }
    }

    __device__ __forceinline__ void run(const WarpTask& task, const TcaOperands<T, Result, kAccumulate>& of) const {
        constexpr u32 kStep = 8 * kEights;
        const u32 g = threadIdx.x % 32 / 4, stride = task.parts / kEights * 64;
        const u32 mine = g % kEights * 8 + threadIdx.x % 4 * 2, octet = member * (8 / kEights) + g / kEights;
        Result* c_row = of.c + static_cast<u64>(task.row) * of.n;
        Stop here{task.begin, task.part / kEights * 64};
        Stop then = here.next(task, kStep, stride);
        Nonzeros now, next;
        now.load(of.cols, of.vals, here.k + mine, task.end);
        next.load(of.cols, of.vals, then.k + mine, task.end);
        Products<kWidth> products;
        products.zero();
        gather(0, here, now, task, of);
        // The columns that were collected last, and which of the two places has them; the other is free to be filled.
        u32 waiting = ~0u, place = 0;
        for (u32 stage = 0; here.first < of.n; stage ^= 1) {
            const Stop later = then.next(task, kStep, stride);
            Nonzeros last;
            last.load(of.cols, of.vals, later.k + mine, task.end);
            meet();
            if (then.first < of.n) gather(stage ^ 1, then, next, task, of);
            if constexpr (kCollects) {
                if (waiting != ~0u) write(collected + place * 64, c_row, waiting, of);
                waiting = ~0u;
            }
            products.multiply(read(stage, mine, octet), read(stage, mine + 1, octet), now.values);
            if (then.first != here.first) {
                if constexpr (kCollects) {
                    place ^= 1;
                    collect<kEights, 8, kAligned>(products, collected + place * 64, octet);
                    waiting = here.first;
                } else {
                    finish<kEights, 8, kAligned>(products, c_row, here.first, octet, of.n, of.scale);
                }
                products.zero();
            }
            here = then, then = later, now = next, next = last;
        }
        if constexpr (kCollects) {
            if (waiting == ~0u) return;
            meet();
            write(collected + place * 64, c_row, waiting, of);
        }
    }
};

template <typename Config>
using TcaOperandsOf = TcaOperands<typename Config::Value, typename Config::Result, Config::kAccumulate>;

// A warp's task, of a row whose class has kEights blocks of 8 nonzeros in a product.
template <int kEights, typename Config>
__device__ __forceinline__ void run_task(const WarpTask& task, const TcaOperandsOf<Config>& of, uint4* buffer,
                                         float* collected) {
    if constexpr (Config::kShared) {
        // A group's warps follow each other in the block, so its first warp names its barrier; 0 stays __syncthreads'.
        const u32 member = task.part % kEights, first = threadIdx.x / 32 - member;
        using Walk =
            SharedWalk<kEights, Config::kAligned, typename Config::Value, typename Config::Result, Config::kAccumulate>;
        Walk{buffer + first * 128, collected, member, first + 1}.run(task, of);
    } else {
        walk_registers<kEights, Config::kWidth, Config::kAligned>(task, of);
    }
}

// One block of the table: each warp has its task. The shared feed needs blocks of 8 warps.
template <typename Config>
__device__ __forceinline__ void tca(const u32* __restrict__ table, const TcaOperandsOf<Config>& of) {
    __shared__ uint4 buffer[Config::kVectors];
    __shared__ float collected[Config::kCollected];
    const WarpTask task(table, static_cast<u64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32);
    if (task.row == ~0u) return;
    switch (task.eights_log) {
        case 0:
            return run_task<1, Config>(task, of, buffer, collected);
        case 1:
            return run_task<2, Config>(task, of, buffer, collected);
        case 2:
            return run_task<4, Config>(task, of, buffer, collected);
        default:
            return run_task<8, Config>(task, of, buffer, collected);
    }
}

}  // namespace sparsetune
