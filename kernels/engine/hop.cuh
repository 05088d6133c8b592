// Measures one dependent hop between multiprocessors: a value stored by one and awaited by another, without a fence.
// maps:    the first and the last block of the grid play, one thread each; the blocks between only keep them apart
// needs:   sm_70; words set to all ones before the launch
// refuses: nothing; a player that waits in vain gives up after `most_polls`, so that no schedule can hang the device
#pragma once

namespace engine {

// Words of 128-byte lines in turn, so that the mean is taken over several slices of the cache.
constexpr unsigned kHopWords = 64;
constexpr unsigned kHopLineBytes = 128;

// What the first block found. Mirrored by `Report` in hop.rs.
struct HopReport {
    unsigned long long ns;  // from the first answer to the last; 0 where a player gave up
    unsigned long long first_multiprocessor;
    unsigned long long last_multiprocessor;
};

__device__ inline unsigned long long HopClock() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ inline unsigned HopMultiprocessor() {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

// Relaxed at the device's scope: neither cached by a multiprocessor nor ordered with anything else.
__device__ inline unsigned HopLoad(const unsigned* word) {
    unsigned value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word));
    return value;
}
__device__ inline unsigned long long HopLoad(const unsigned long long* word) {
    unsigned long long value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word));
    return value;
}
__device__ inline void HopStore(unsigned* word, unsigned value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value));
}
__device__ inline void HopStore(unsigned long long* word, unsigned long long value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value));
}

// The word of a message: every message of a round has its own line.
template <typename Word>
__device__ inline Word* HopLine(void* words, unsigned message) {
    return (Word*)((char*)words + (message % kHopWords) * kHopLineBytes);
}

// Waits until the word holds `expected`; false once all polls are spent.
template <typename Word>
__device__ inline bool HopAwait(const Word* word, Word expected, unsigned& polls) {
    while (HopLoad(word) != expected) {
        if (polls-- == 0) return false;
    }
    return true;
}

// `trips` round trips after one that only starts both players. `words` holds kHopWords lines.
template <typename Word>
__device__ inline void Hop(void* words, unsigned trips, unsigned most_polls, HopReport* report) {
    const bool first = blockIdx.x == 0;
    if (threadIdx.x != 0 || (!first && blockIdx.x != gridDim.x - 1)) return;
    if (first) {
        report->first_multiprocessor = HopMultiprocessor();
    } else {
        report->last_multiprocessor = HopMultiprocessor();
    }
    unsigned polls = most_polls;
    unsigned long long start = 0;
    // Message 2k goes out, message 2k + 1 comes back; its number is its value, so no line is reset in between.
    for (unsigned trip = 0; trip <= trips; ++trip) {
        const unsigned out = 2 * trip, back = out + 1;
        if (first) {
            HopStore(HopLine<Word>(words, out), (Word)out);
            if (!HopAwait(HopLine<Word>(words, back), (Word)back, polls)) return;
            if (trip == 0) start = HopClock();
        } else {
            if (!HopAwait(HopLine<Word>(words, out), (Word)out, polls)) return;
            HopStore(HopLine<Word>(words, back), (Word)back);
        }
    }
    if (first) report->ns = HopClock() - start;
}

}  // namespace engine
