// Device code of the timer: a gate that holds the stream while the host queues, and a sweep of the L2 cache.
// maps:    gate: one thread; sweep: grid-stride over 16-byte words
// needs:   gate: a word of mapped host memory
// refuses: nothing
#pragma once
#include "device.cuh"

namespace sparsetune {

// Returns when the host opens the gate, or after `most_ns`: a host that dies or stalls must not hang the device.
__device__ inline void gate(const volatile u32* open, u64 most_ns) {
    const u64 start = global_nanoseconds();
    u64 now;
    do {
        now = global_nanoseconds();
    } while (*open == 0 && now - start < most_ns);
}

// Reads the whole buffer, so that nothing else is left in the cache. Reading leaves clean lines: the timed call that
// follows pays for no write-back, as it would after a fill.
__device__ inline void sweep(const uint4* words, u64 count, u32* sink) {
    u32 folded = 0;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const uint4 word = words[i];
        folded ^= word.x ^ word.y ^ word.z ^ word.w;
    }
    // The buffer is all zeros, which the compiler does not know: the loads stay, the store never happens.
    if (folded != 0) *sink = folded;
}

}  // namespace sparsetune
