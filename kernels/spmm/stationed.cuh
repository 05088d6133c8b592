// Rows of B stationed in shared memory, and rows of A in groups of four entries that walk them: what the families
// `resident` and `tiled` (row-major) have in common.
//
// Banks: a 128-bit load is served in quarters of a warp, 8 lanes that read 128 bytes. Where a subwarp reads at least 128
// contiguous bytes of one row with each load, a quarter lies in one row and touches every bank once. Narrower rows put
// several rows into a quarter, and these meet in the same banks as chance has it.
#pragma once
#include "copies.cuh"
#include "spmm/element.cuh"

namespace sparsetune {

extern __shared__ uint4 stationed[];

// Elements in 16 bytes.
template <typename T>
constexpr int kInVector = 16 / static_cast<int>(sizeof(T));

// Four entries of a row: 16-bit places of B rows in shared memory, and values. Padding has value 0 and a place that exists.
template <typename T>
struct Entries {
    uint2 places;
    Vector<T, 4> value;

    __device__ __forceinline__ void load(const u16* __restrict__ places_of, const T* __restrict__ values, u32 group) {
        places = __ldg(reinterpret_cast<const uint2*>(places_of) + group);
        value.load(values + static_cast<u64>(group) * 4);
    }
    // Half kHalf (0 or 1) of the group that lane `lane` of each subwarp of kLanes lanes holds, for all of its lanes; the other
    // half is left undefined. The whole warp must come here together.
    template <int kLanes, int kHalf>
    __device__ __forceinline__ Entries of_lane(int lane) const {
        constexpr int kWords = Vector<T, 4>::kWords / 2;
        Entries half;
        if constexpr (kHalf == 0) {
            half.places.x = __shfl_sync(kAllLanes, places.x, lane, kLanes);
        } else {
            half.places.y = __shfl_sync(kAllLanes, places.y, lane, kLanes);
        }
#pragma unroll
        for (int w = kHalf * kWords; w < (kHalf + 1) * kWords; ++w)
            half.value.word[w] = __shfl_sync(kAllLanes, value.word[w], lane, kLanes);
        return half;
    }
    __device__ __forceinline__ u32 place(int i) const {
        const u32 word = i < 2 ? places.x : places.y;
        return i % 2 ? word >> 16 : word & 0xffffu;
    }
};

// Brings 16 bytes of row `row` of B, from column `column`, to shared memory; zeros where they lie past the n columns.
// kAligned: rows of B are whole 16-byte vectors. Else elements are read one by one, and only shared memory sees vectors.
template <typename T, bool kAligned>
__device__ __forceinline__ void station(uint4* to, const T* __restrict__ b, u32 row, u32 column, u32 n) {
    const T* from = b + static_cast<u64>(row) * n + column;
    if constexpr (kAligned) {
        copy_piece_ahead(to, b, from, column < n ? 16 : 0);
    } else {
        union {
            T element[kInVector<T>];
            uint4 vector;
        } piece;
#pragma unroll
        for (int i = 0; i < kInVector<T>; ++i) piece.element[i] = column + i < n ? load_element(from + i) : T{};
        *to = piece.vector;
    }
}

// The sums of one row of C that a lane keeps: kPieces vectors of 16 bytes of B's type T, kLanes vectors apart.
template <typename T, int kLanes, int kPieces>
struct RowSums {
    static constexpr int kVec = kInVector<T>;
    static constexpr int kRowVectors = kLanes * kPieces;
    // Pieces of 64 bytes: neighbouring subwarps take each two of them in opposite order, so that a quarter of a warp, which
    // holds two subwarps, reads both halves of the banks.
    static constexpr bool kOpposite = kPieces % 2 == 0 && kLanes == 4;
    Sums<T, kVec> piece[kPieces];

    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) piece[p].zero();
    }

    // Which vector of a row is this lane's p-th.
    __device__ __forceinline__ static u32 vector(int p) {
        const u32 turned = kOpposite ? p ^ (threadIdx.x / kLanes & 1) : p;
        return threadIdx.x % kLanes + kLanes * turned;
    }

    // Entries kBegin..kEnd of a group, the rows of B of kAtOnce of them in registers at a time.
    template <int kAtOnce = 4, int kBegin = 0, int kEnd = 4>
    __device__ __forceinline__ void add(const Entries<T>& entries) {
        static_assert((kEnd - kBegin) % kAtOnce == 0, "a group must be whole portions");
#pragma unroll
        for (int from = kBegin; from < kEnd; from += kAtOnce) {
            Vector<T, kVec> loaded[kAtOnce][kPieces];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
                for (int p = 0; p < kPieces; ++p) {
                    loaded[i][p].set(stationed[entries.place(from + i) * kRowVectors + vector(p)]);
                }
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
                for (int p = 0; p < kPieces; ++p) piece[p].fma(entries.value[from + i], loaded[i][p]);
            }
        }
    }

    // `row` is a row of C, `first` the column that this tile begins with. kAligned: as for `station`.
    template <bool kAligned, typename Result, bool kAccumulate>
    __device__ __forceinline__ void store(Result* __restrict__ row, u32 first, u32 n,
                                          const Scale<Result, kAccumulate>& scale) const {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const u32 column = first + vector(p) * kVec;
            if constexpr (kAligned) {
                if (column < n) piece[p].store(row + column, scale);
            } else {
#pragma unroll
                for (int i = 0; i < kVec; ++i) {
                    if (column + i < n) store_one(row + column + i, piece[p].lane[i], scale);
                }
            }
        }
    }
};

}  // namespace sparsetune
