// Nnz-split SpMM with teams: a row of more than `heavy` entries is the work of a team of whole warps, which meet in shared memory;
// rows above `chunk` entries are cut for several teams; all other rows go as in row_split, in the same launch. Where C is written
// by columns a group may compute `turns` of these one after another, so that what a block writes of a column is longer.
// maps:    `segment_blocks` blocks of x, the first or spread evenly -> segments, a team each; the others -> rows; block.y -> column tiles
// tune:    team 1 2 8 | heavy 32 64 128 | chunk 256 1024 4096 | lanes 1 2 4 8 16 32 | ways 1 2 4 8 | vec 1 2 4 8 | cols 1 2 3 4 | unroll 2 4 8 | block 256 | fetch direct ahead | order natural length | b given staged both
// needs:   as nnz_split
// refuses: rows in turn where C is not written by columns, and more of them than threads in a block
#pragma once
#include "spmm/nnz_split.cuh"

namespace sparsetune {

// What a program sets, checked: besides what RowSplitConfig names
//   kTeam   warps of a team
//   kTurns  rows that a group computes one after another
template <typename Settings>
struct RowTeamsConfig : RowSplitConfig<Settings> {
    static constexpr int kTeam = Settings::kTeam;
    static constexpr int kWarps = RowSplitConfig<Settings>::kBlock / 32;
    static constexpr u32 kTurns = Settings::kTurns;
    static_assert(kTurns == 1 || (kTurns > 1 && Settings::kOut == Output::kColumns),
                  "rows in turn are for kernels that write columns");
    static_assert(kTeam >= 1 && kWarps % kTeam == 0, "a block must hold whole teams");
};

// A team's walk: as that of other rows, but each warp is one group.
template <typename Config>
struct TeamSettings : Config {
    static constexpr int kWays = 32 / Config::kLanes;
};

// Waits for the kThreads threads of team `team` of kTeams. Each team has a barrier with a number that the compiler knows: for
// one in a register it reserves all 16 of a block, and then only 4 blocks fit a multiprocessor of compute capability 9.0.
template <int kThreads, u32 kTeams, u32 kId = 0>
__device__ __forceinline__ void team_barrier(u32 team) {
    if constexpr (kId + 1 < kTeams) {
        if (team != kId) {
            team_barrier<kThreads, kTeams, kId + 1>(team);
            return;
        }
    }
    // Barrier 0 is that of the whole block.
    asm volatile("bar.sync %0, %1;" ::"n"(kId + 1), "n"(kThreads) : "memory");
}

// What the warps of a team do with their sums.
template <typename Config>
struct Member : Segment<Config> {
    using Body = typename Segment<Config>::Body;
    using T = typename Config::Value;

    // Leaves the sums of a warp in shared memory, a tile.
    static __device__ __forceinline__ void leave_in(const Body& body, Sum<T>* at) {
        if (body.way != 0) return;
#pragma unroll
        for (int k = 0; k < Config::kCols; ++k) {
#pragma unroll
            for (int i = 0; i < Config::kVec; ++i) {
                at[Body::first_column() + k * Config::kLanes * Config::kVec + i] = body.acc[k].lane[i];
            }
        }
    }

    // The ways of one warp add what `count` warps left from `at` on.
    static __device__ __forceinline__ void add_from(Body& body, const Sum<T>* at, u32 count) {
#pragma unroll
        for (int k = 0; k < Config::kCols; ++k) body.acc[k].zero();
#pragma unroll 2
        for (u32 warp = body.way; warp < count; warp += Config::kWays) {
            const Sum<T>* left = at + warp * Config::kTileColumns + Body::first_column();
#pragma unroll
            for (int k = 0; k < Config::kCols; ++k) {
#pragma unroll
                for (int i = 0; i < Config::kVec; ++i) {
                    body.acc[k].lane[i] += left[k * Config::kLanes * Config::kVec + i];
                }
            }
        }
        body.combine();
    }
};

// The segment of one team. Each warp sums a part; the first adds them, always in the same order.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void team_segment(u32 block, u32 tile, const typename Config::Column* __restrict__ cols,
                                             const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                             Result* __restrict__ c, u32 rows, u32 n, const Segments<T>& all,
                                             const Scale<Result, Config::kAccumulate>& scale) {
    using Own = Member<RowSplitConfig<TeamSettings<Config>>>;
    using Body = typename Own::Body;
    constexpr u32 kTeam = Config::kTeam, kTile = Own::Part::kTile;
    const u32 warp = threadIdx.x / 32, team = warp / kTeam, member = warp % kTeam;
    const u32 at = block * (Config::kWarps / kTeam) + team;
    if (at >= all.count) return;
    const u32 begin = __ldg(all.bounds + 2 * at), length = __ldg(all.bounds + 2 * at + 1) - begin;
    // Read before the walk, whose end they would lengthen.
    const u32 owner = __ldg(all.owner + at), place = __ldg(all.place + at);
    const u32 width = n - tile * kTile;
    Body body(dense.tile(tile), dense.stride, width);
    u32 row = 0;
    if constexpr (Config::kNear) row = row_of(all, owner, place);
    body.run(cols, vals, row, begin + length * member / kTeam, begin + length * (member + 1) / kTeam);
    body.combine();
    if constexpr (kTeam > 1) {
        __shared__ alignas(16) Sum<T> sums[Config::kWarps * kTile];
        Own::leave_in(body, sums + warp * kTile);
        team_barrier<32 * kTeam, Config::kWarps / kTeam>(team);
        if (member != 0) return;
        Own::add_from(body, sums + warp * kTile, kTeam);
    }
    finish<RowSplitConfig<TeamSettings<Config>>>(body, owner, place, tile, c, rows, n, all, scale);
}

// The segments of long rows, and the other rows as `row_split` computes them. `heavy_first` is the number of long rows if
// `order` begins with them, else 0.
template <typename Config, typename T = typename Config::Value, typename Result = typename Config::Result>
__device__ __forceinline__ void row_teams(const u32* __restrict__ row_ptr,
                                          const typename Config::Column* __restrict__ cols,
                                          const Values<T, Config::kEqual>& vals, const Dense<T>& dense,
                                          Result* __restrict__ c, const u32* __restrict__ order, u32 rows, u32 n,
                                          u32 heavy, u32 heavy_first, const Segments<T>& segments,
                                          const Scale<Result, Config::kAccumulate>& scale) {
    constexpr u32 kTeams = Config::kWarps / Config::kTeam;
    const Turn turn((segments.count + kTeams - 1) / kTeams, order != nullptr);
    if (turn.segments) {
        team_segment<Config>(turn.block, blockIdx.y, cols, vals, dense, c, rows, n, segments, scale);
    } else {
        const u32* others = order == nullptr ? order : order + heavy_first;
        row_split<Config, Config::kTurns>(turn.block, blockIdx.y, row_ptr, cols, vals, dense, c, others,
                                          rows - heavy_first, n, heavy, scale);
    }
}

}  // namespace sparsetune
