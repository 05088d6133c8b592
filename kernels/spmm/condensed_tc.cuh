// Condensed SpMM on tensor cores, row-major: panels of 8 rows, the union of their columns in steps of one MMA, operands
// swapped (C^T = B^T A^T), so that each gathered row of B serves 8 rows of A and lies in registers as it is in memory.
// maps:    warp -> 8 rows x `columns` columns of C; block.x -> `warps` panels; block.y -> column tiles; block.z -> parts of steps
// tune:    columns 32 64 128 | stages 1 2 4 | warps 2 8 | order natural length similarity locality | residue 0 2
// needs:   packed panels, f16 or bf16 (f32 sums) or f32 (as tf32 by consent, else split in two tf32 terms), row-major, finite B; with
//          several parts scratch for their sums and a zeroed counter per panel and column tile
// refuses: n not a multiple of 4 in f32, of 8 in f16 and bf16 (rows of B would not be aligned to 16 bytes); n below 8
//
// Which column of B an index m of the MMA stands for, and which column of A an index k, is free: a lane (g = lane / 4,
// t = lane % 4) loads the same 16 bytes of columns from each of its rows of B, and what it holds are its fragments.
#pragma once
#include "spmm/element.cuh"

namespace sparsetune {

// One MMA on elements of type T: m16n8k8 in tf32, m16n8k16 in f16 and bf16; m counts columns of B, n rows of A, k columns of A.
template <typename T>
struct CondensedShape {
    static constexpr int kDepth = sizeof(T) == 2 ? 16 : 8;         // columns of A per step
    static constexpr int kFetch = kDepth / 4;                      // rows of B that a lane loads per step
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));  // columns of B that a lane loads of each
    static constexpr int kMmas = kVec / 2;                         // MMAs that those columns feed
    static constexpr int kGroup = 8 * kVec;                        // columns of B that a warp loads of each
};

// What a program sets, checked, and what follows from it:
//   Value        type of the elements of A and B
//   Result       type of the elements of C: Value, or what it is summed in
//   kTerms       products that make one: 1, or 3 where each f32 is the sum of two tf32 terms
//   kColumns     columns of C per warp
//   kStages      steps in flight
//   kResidue     whether entries that are alone in their column of a panel are kept in lists
//   kFull        whether kColumns divides the columns of C, so that no column is checked
//   kAccumulate  whether C = alpha A B + beta C is computed; else C = A B
template <typename Settings>
struct CondensedTcConfig : Settings {
    using T = typename Settings::Value;
    using Shape = CondensedShape<T>;
    static constexpr int kTerms = Settings::kTerms, kColumns = Settings::kColumns, kStages = Settings::kStages;
    static constexpr int kGroups = kColumns / Shape::kGroup;
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "tensor cores take f16, bf16 and tf32");
    static_assert(kTerms == 1 || (kTerms == 3 && sizeof(T) == 4), "only f32 is split, in three products");
    static_assert(kColumns % Shape::kGroup == 0, "a tile's columns must divide into whole lines of 128 bytes");
    static_assert(kGroups * kStages * Shape::kFetch * 4 <= 64,
                  "more than 64 words of B in flight per lane leave no room");
};

// To the nearest tf32. Above 3.401e38 that is infinity: keeping such operands finite would take two instructions more for
// each, which costs a tenth to a fifth of the whole kernel.
__device__ __forceinline__ u32 to_tf32(float value) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// d += a b. Volatile, so that it stays where the whole warp is.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Of elements of T, two in a word.
template <typename T>
__device__ __forceinline__ void mma_half(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);

template <>
__device__ __forceinline__ void mma_half<Brain>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_half<Half>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A lane's share of one step of A: which rows of B it loads, and its fragment of A^T (8 bytes in both types).
template <typename T>
struct CondensedStep {
    static constexpr int kFetch = CondensedShape<T>::kFetch;
    u32 col[kFetch];
    u32 value[2];

    __device__ __forceinline__ void load(const u32* __restrict__ cols, const u32* __restrict__ values, u32 step) {
        const u32 lane = threadIdx.x % 32;
        const u32* from = cols + static_cast<u64>(step) * CondensedShape<T>::kDepth + lane % 4 * kFetch;
        if constexpr (kFetch == 2) {
            const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
            col[0] = two.x, col[1] = two.y;
        } else {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
            col[0] = four.x, col[1] = four.y, col[2] = four.z, col[3] = four.w;
        }
        const uint2 pair = __ldg(reinterpret_cast<const uint2*>(values) + static_cast<u64>(step) * 32 + lane);
        value[0] = pair.x, value[1] = pair.y;
    }
};

// What a lane has loaded of B for one step and one group of columns, fed to the group's MMAs. kTerms: as in CondensedTcConfig.
template <typename T, int kTerms>
struct CondensedFragment;

// T of 16 bits.
template <typename T>
struct CondensedFragment<T, 1> {
    Vector<T, 8> row[4];

    // MMA j takes the pair of columns of word j: the low halves are m = g, the high ones m = g + 8.
    __device__ __forceinline__ void multiply(float (&acc)[4][4], const u32 (&value)[2]) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 a[4] = {__byte_perm(row[0].word[j], row[1].word[j], 0x5410),
                              __byte_perm(row[0].word[j], row[1].word[j], 0x7632),
                              __byte_perm(row[2].word[j], row[3].word[j], 0x5410),
                              __byte_perm(row[2].word[j], row[3].word[j], 0x7632)};
            mma_half<T>(acc[j], a, value);
        }
    }
};

template <>
struct CondensedFragment<float, 1> {
    Vector<float, 4> row[2];

    // MMA j takes columns 2j (m = g) and 2j + 1 (m = g + 8).
    __device__ __forceinline__ void multiply(float (&acc)[2][4], const u32 (&value)[2]) const {
        const u32 b[2] = {to_tf32(__uint_as_float(value[0])), to_tf32(__uint_as_float(value[1]))};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const u32 a[4] = {to_tf32(row[0][2 * j]), to_tf32(row[0][2 * j + 1]), to_tf32(row[1][2 * j]),
                              to_tf32(row[1][2 * j + 1])};
            mma_tf32(acc[j], a, b);
        }
    }
};

// kCount floats, each as the sum of two tf32 terms, exact to its last bit or the one before.
template <int kCount>
struct SplitTerms {
    u32 high[kCount];
    u32 low[kCount];

    __device__ __forceinline__ void set(int i, float value) {
        high[i] = to_tf32(value);
        low[i] = to_tf32(value - __uint_as_float(high[i]));
    }
};

template <>
struct CondensedFragment<float, 3> {
    Vector<float, 4> row[2];

    // Tensor cores truncate as they add, so a long sum would drift: they only add up one step, smallest products first, and
    // its sum is added in plain f32 (Ootomo and Yokota, 2022). The product of both low terms is below the last bit.
    __device__ __forceinline__ void multiply(float (&acc)[2][4], const u32 (&value)[2]) const {
        SplitTerms<2> b;
        b.set(0, __uint_as_float(value[0]));
        b.set(1, __uint_as_float(value[1]));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            SplitTerms<4> a;
            a.set(0, row[0][2 * j]);
            a.set(1, row[0][2 * j + 1]);
            a.set(2, row[1][2 * j]);
            a.set(3, row[1][2 * j + 1]);
            float step[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            mma_tf32(step, a.low, b.high);
            mma_tf32(step, a.high, b.low);
            mma_tf32(step, a.high, b.high);
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[j][i] += step[i];
        }
    }
};

// A lane's part of a panel's tile.
template <typename Config>
struct CondensedTile {
    using T = typename Config::Value;
    using Shape = CondensedShape<T>;
    static constexpr int kGroups = Config::kGroups, kStages = Config::kStages;
    static constexpr bool kFull = Config::kFull;
    static constexpr int kVec = Shape::kVec;
    using Step = CondensedStep<T>;

    const T* __restrict__ b;  // this lane's first column in row 0 of B
    u32 n;                    // leading dimension of B and C
    bool inside[kGroups];     // whether this lane's columns of each group lie within the n columns
    float acc[kGroups][Shape::kMmas][4];

    __device__ __forceinline__ CondensedTile(const T* __restrict__ b_base, u32 n_, u32 first)
        : b(b_base + first), n(n_) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            inside[group] = kFull || first + group * Shape::kGroup < n;
#pragma unroll
            for (int i = 0; i < Shape::kMmas * 4; ++i) acc[group][i / 4][i % 4] = 0.0f;
        }
    }

    __device__ __forceinline__ void load(Vector<T, kVec>& to, u32 col, int group) const {
        if (inside[group]) {
            to.load(b + static_cast<u64>(col) * n + group * Shape::kGroup);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) to.word[i] = 0;
        }
    }

    // `count` steps are there: all their loads of B are issued, then `ahead` asks for the next steps of A, then they are
    // multiplied. `count` is the same in the whole warp; kWhole says that it is kStages.
    template <bool kWhole, typename Ahead>
    __device__ __forceinline__ void multiply(const Step (&step)[kStages], u32 count, const Ahead& ahead) {
        CondensedFragment<T, Config::kTerms> loaded[kStages][kGroups];
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            if (kWhole || s < count) {
#pragma unroll
                for (int i = 0; i < Shape::kFetch * kGroups; ++i) {
                    load(loaded[s][i % kGroups].row[i / kGroups], step[s].col[i / kGroups], i % kGroups);
                }
            }
        }
        u32 value[kStages][2];
#pragma unroll
        for (int s = 0; s < kStages; ++s) value[s][0] = step[s].value[0], value[s][1] = step[s].value[1];
        ahead();
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            if (kWhole || s < count) {
#pragma unroll
                for (int group = 0; group < kGroups; ++group) loaded[s][group].multiply(acc[group], value[s]);
            }
        }
    }

    __device__ __forceinline__ void walk(const u32* __restrict__ cols, const u32* __restrict__ values, u32 k, u32 end) {
        Step step[kStages];
        const auto fetch = [&] {
#pragma unroll
            for (int s = 0; s < kStages; ++s) {
                if (k + s < end) step[s].load(cols, values, k + s);
            }
        };
        fetch();
        while (k + kStages <= end) {
            k += kStages;
            multiply<true>(step, kStages, fetch);
        }
        if (k < end) multiply<false>(step, end - k, [] {});
    }

    // Entries that are alone in their column of the panel: those of rows 2t and 2t + 1 for the lanes of t, on plain cores.
    // The top bit of the column says which of the two rows.
    __device__ __forceinline__ void add_residue(const uint2* __restrict__ entries, u32 k, u32 end) {
        constexpr int kBatch = kGroups >= 4 ? 1 : 4 / kGroups;
        uint2 next[kBatch];
        const auto fetch = [&](u32 from) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) next[i] = from + i < end ? __ldg(entries + from + i) : make_uint2(0, 0);
        };
        fetch(k);
        for (; k < end; k += kBatch) {
            uint2 entry[kBatch];
            Vector<T, kVec> row[kBatch][kGroups];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) entry[i] = next[i];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    if (k + i < end) load(row[i][group], entry[i].x & 0x7fffffffu, group);
                }
            }
            fetch(k + kBatch);
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (k + i < end) {
                    const bool odd = entry[i].x >> 31;
                    const float value = __uint_as_float(entry[i].y);
                    const float scale[2] = {odd ? 0.0f : value, odd ? value : 0.0f};
#pragma unroll
                    for (int at = 0; at < kGroups * kVec * 2; ++at) {
                        const int v = at / 2 % kVec, group = at / 2 / kVec;
                        float& sum = acc[group][v / 2][v % 2 * 2 + at % 2];
                        sum = fmaf(scale[at % 2], row[i][group][v], sum);
                    }
                }
            }
        }
    }

    // Leaves the sums among those of the other parts, or takes their place: one after the other as they come in the
    // registers, a warp side by side.
    __device__ __forceinline__ void leave(float4* __restrict__ at) const {
#pragma unroll
        for (int i = 0; i < kGroups * Shape::kMmas; ++i) {
            const float (&sum)[4] = acc[i / Shape::kMmas][i % Shape::kMmas];
            __stcg(at + i * 32 + threadIdx.x % 32, make_float4(sum[0], sum[1], sum[2], sum[3]));
        }
    }

    // Sums of all parts, which lie `step` vectors apart: always in the same order, whoever arrives last.
    __device__ __forceinline__ void gather(const float4* at, u64 step, u32 parts) {
#pragma unroll
        for (int i = 0; i < kGroups * Shape::kMmas; ++i) {
            float (&sum)[4] = acc[i / Shape::kMmas][i % Shape::kMmas];
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
            for (u32 part = 0; part < parts; ++part) {
                const float4 one = __ldcg(at + part * step + i * 32 + threadIdx.x % 32);
                total.x += one.x, total.y += one.y, total.z += one.z, total.w += one.w;
            }
            sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
        }
    }

    // This lane's columns of row 2t (odd = 0) or 2t + 1 (odd = 1) of the panel.
    __device__ __forceinline__ Sums<T, kVec> sums(int group, int odd) const {
        Sums<T, kVec> out;
#pragma unroll
        for (int v = 0; v < kVec; ++v) out.lane[v] = acc[group][v / 2][v % 2 * 2 + odd];
        return out;
    }
};

// The packed panels (ops/spmm/condensed_tc/pack.rs). Panel i has the steps step_ptr[i] .. step_ptr[i + 1].
struct CondensedPanels {
    const u32* __restrict__ step_ptr;
    const u32* __restrict__ cols;         // 8 or 16 per step
    const u32* __restrict__ values;       // 64 words per step
    const u32* __restrict__ residue_ptr;  // four lists per panel, one for each pair of its rows
    const u32* __restrict__ residue;      // two words per entry: column and parity, value
    const u32* __restrict__ order;        // the permutation of rows that panels were cut from; null: as they come
    u32 rows;
};

// Where panels are cut in parts, each leaves its sums of 8 rows by `columns` here: part after part, panel after panel, column
// tile after column tile.
struct CondensedParts {
    float4* partial;  // parts x panels x column tiles x 2 columns
    u32* arrived;     // panels x column tiles, 0 between calls
};

// With several blocks along z each takes a part of every panel's steps, and the last of a panel adds them up.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void condensed_tc(const CondensedPanels& a, const T* __restrict__ b, Result* __restrict__ c,
                                             u32 n, const CondensedParts& cut,
                                             const Scale<Result, Config::kAccumulate>& scale) {
    using Tile = CondensedTile<Config>;
    constexpr int kColumns = Config::kColumns;
    const u32 lane = threadIdx.x % 32;
    const u32 panel = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const u32 panels = a.rows / 8 + (a.rows % 8 != 0);
    if (panel >= panels) return;
    const u32 first = blockIdx.y * kColumns + lane / 4 * Tile::kVec;
    Tile tile(b, n, first);

    const u32 begin = __ldg(a.step_ptr + panel), steps = __ldg(a.step_ptr + panel + 1) - begin;
    const u32 part = blockIdx.z, parts = gridDim.z;
    tile.walk(a.cols, a.values, begin + static_cast<u32>(static_cast<u64>(steps) * part / parts),
              begin + static_cast<u32>(static_cast<u64>(steps) * (part + 1) / parts));
    if constexpr (Config::kResidue) {
        const u32 list = panel * 4 + lane % 4;
        const u32 from = __ldg(a.residue_ptr + list), left = __ldg(a.residue_ptr + list + 1) - from;
        tile.add_residue(reinterpret_cast<const uint2*>(a.residue),
                         from + static_cast<u32>(static_cast<u64>(left) * part / parts),
                         from + static_cast<u32>(static_cast<u64>(left) * (part + 1) / parts));
    }
    if (parts > 1) {
        const u64 place = static_cast<u64>(panel) * gridDim.y + blockIdx.y;
        const u64 step = static_cast<u64>(panels) * gridDim.y * (2 * kColumns);
        float4* at = cut.partial + place * (2 * kColumns);
        tile.leave(at + part * step);
        if (!last_group_to_arrive<32>(cut.arrived + place, parts)) return;
        tile.gather(at, step, parts);
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
        const u32 slot = panel * 8 + lane % 4 * 2 + odd;
        if (slot >= a.rows) continue;
        Result* to = c + static_cast<u64>(a.order ? __ldg(a.order + slot) : slot) * n + first;
#pragma unroll
        for (int group = 0; group < Tile::kGroups; ++group) {
            if (tile.inside[group]) tile.sums(group, odd).store(to + group * Tile::Shape::kGroup, scale);
        }
    }
}

}  // namespace sparsetune
