// Resident SpMM, row-major: N1 columns of all of B stay in shared memory while persistent blocks stream rows of A past them.
// maps:    block.x -> a contiguous range of rows, about equal in entries; subwarp -> a contiguous part of it; lane -> vec columns; block.y -> column tiles
// tune:    n1 8 16 32 64 128 | vec 2 4 8 16 | block 512 1024 | unroll 4 8
// needs:   rows of A in groups of four entries with 16-bit columns, row-major B and C, finite B, cols x n1 elements of shared memory
// refuses: vec that is not 16 or 32 bytes; any n and any alignment are taken
#pragma once
#include "spmm/stationed.cuh"

namespace sparsetune {

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kN1          columns of B that a block keeps
//   kVec         columns of C per lane
//   kUnroll      entries of A in flight per lane
//   kAligned     whether rows of B are whole vectors of 16 bytes
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct ResidentConfig : Settings {
    static constexpr int kN1 = Settings::kN1, kVec = Settings::kVec, kUnroll = Settings::kUnroll;
    static constexpr int kBytes = kVec * static_cast<int>(sizeof(typename Settings::Value));
    static constexpr int kPieces = kBytes / 16;  // vectors of 16 bytes per lane
    static constexpr int kLanes = kN1 / kVec;    // threads that share a row
    static constexpr int kAhead = kUnroll / 4;   // groups of entries in flight
    static_assert(kBytes == 16 || kBytes == 32, "a lane must take 16 or 32 bytes of a row of B");
    static_assert(kN1 % kVec == 0 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                  "a subwarp must be a power of two of lanes within a warp");
    static_assert(kUnroll % 4 == 0, "entries come in groups of four");
};

// `group_ptr[row]` is where a row's groups start; `cuts[s]..cuts[s + 1]` are the rows of subwarp s, counted over all of block.x.
// The order of a row's sum is that of its entries, whoever takes it: results do not depend on the device.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void resident(const u32* __restrict__ group_ptr, const u16* __restrict__ cols,
                                         const T* __restrict__ vals, const T* __restrict__ b, Result* __restrict__ c,
                                         const u32* __restrict__ cuts, u32 b_rows, u32 n,
                                         const Scale<Result, Config::kAccumulate> scale) {
    constexpr bool kAligned = Config::kAligned;
    using Row = RowSums<T, Config::kLanes, Config::kPieces>;
    const u32 first = blockIdx.y * Config::kN1;
    for (u32 v = threadIdx.x; v < b_rows * Row::kRowVectors; v += blockDim.x) {
        station<T, kAligned>(stationed + v, b, v / Row::kRowVectors, first + v % Row::kRowVectors * Row::kVec, n);
    }

    // While those copies are under way: where this subwarp's rows lie, and its first entries.
    const u32 slot = blockIdx.x * (blockDim.x / Config::kLanes) + threadIdx.x / Config::kLanes;
    u32 row = __ldg(cuts + slot);
    const u32 last = __ldg(cuts + slot + 1);
    const bool idle = row >= last;
    u32 group = idle ? 0 : __ldg(group_ptr + row);
    const u32 end = idle ? 0 : __ldg(group_ptr + last);
    u32 row_end = idle ? 0 : __ldg(group_ptr + row + 1);
    u32 next_end = idle ? 0 : __ldg(group_ptr + min(row + 2, last));
    Entries<T> ahead[Config::kAhead];
#pragma unroll
    for (int a = 0; a < Config::kAhead; ++a) {
        if (group + a < end) ahead[a].load(cols, vals, group + a);
    }
    copied();
    __syncthreads();
    if (idle) return;

    // One loop over the groups of all rows, so that subwarps of a warp do not wait for each other at every row's end.
    Row sums;
    sums.zero();
    while (true) {
#pragma unroll
        for (int a = 0; a < Config::kAhead; ++a) {
            while (group == row_end) {
                sums.template store<kAligned>(c + static_cast<u64>(row) * n, first, n, scale);
                if (++row == last) return;
                sums.zero();
                row_end = next_end;
                next_end = __ldg(group_ptr + min(row + 2, last));
            }
            const Entries<T> now = ahead[a];
            if (group + Config::kAhead < end) ahead[a].load(cols, vals, group + Config::kAhead);
            sums.add(now);
            ++group;
        }
    }
}

}  // namespace sparsetune
