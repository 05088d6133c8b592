// Measures one dependent hop between multiprocessors: a value stored by one and awaited by another, without a fence.
// maps:    the first and the last block of the grid play, one thread each; the blocks between only keep them apart
// needs:   sm_70; words set to all ones before the launch
// refuses: nothing; a player that waits in vain gives up after `most_polls`, so that no schedule can hang the device
#pragma once
#include "device.cuh"

namespace sparsetune {

// Words of 128-byte lines in turn, so that the mean is taken over several slices of the cache.
constexpr u32 kHopWords = 64;
constexpr u32 kHopLineBytes = 128;

// What the first block found. Mirrored by `Report` in hop.rs.
struct HopReport {
    u64 ns;  // from the first answer to the last; 0 where a player gave up
    u64 first_multiprocessor;
    u64 last_multiprocessor;
};

__device__ inline u32 hop_multiprocessor() {
    u32 id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

// The word of a message: every message of a round has its own line. Word: u32 or u64, here and below.
template <typename Word>
__device__ inline Word* hop_line(void* words, u32 message) {
    return reinterpret_cast<Word*>(static_cast<char*>(words) + (message % kHopWords) * kHopLineBytes);
}

// Waits until the word holds `expected`; false once all polls are spent.
template <typename Word>
__device__ inline bool hop_await(const Word* word, Word expected, u32& polls) {
    while (load_relaxed(word) != expected) {
        if (polls-- == 0) return false;
    }
    return true;
}

// `trips` round trips after one that only starts both players. `words` holds kHopWords lines.
template <typename Word>
__device__ inline void hop(void* words, u32 trips, u32 most_polls, HopReport* report) {
    const bool first = blockIdx.x == 0;
    if (threadIdx.x != 0 || (!first && blockIdx.x != gridDim.x - 1)) return;
    if (first) {
        report->first_multiprocessor = hop_multiprocessor();
    } else {
        report->last_multiprocessor = hop_multiprocessor();
    }
    u32 polls = most_polls;
    u64 start = 0;
    // Message 2k goes out, message 2k + 1 comes back; its number is its value, so no line is reset in between.
    for (u32 trip = 0; trip <= trips; ++trip) {
        const u32 out = 2 * trip, back = out + 1;
        if (first) {
            store_relaxed(hop_line<Word>(words, out), static_cast<Word>(out));
            if (!hop_await(hop_line<Word>(words, back), static_cast<Word>(back), polls)) return;
            if (trip == 0) start = global_nanoseconds();
        } else {
            if (!hop_await(hop_line<Word>(words, out), static_cast<Word>(out), polls)) return;
            store_relaxed(hop_line<Word>(words, back), static_cast<Word>(back));
        }
    }
    if (first) report->ns = global_nanoseconds() - start;
}

}  // namespace sparsetune
