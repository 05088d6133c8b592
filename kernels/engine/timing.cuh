// What the timer needs on the device: a gate that holds the stream while the host queues, and a sweep of the L2 cache.
// maps:    gate: one thread; sweep: grid-stride over 16-byte words
// needs:   Gate: a word of mapped host memory
// refuses: nothing
#pragma once

namespace engine {

// Returns when the host opens the gate, or after `most_ns`: a host that dies or stalls must not hang the device.
__device__ inline void Gate(const volatile unsigned* open, unsigned long long most_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (*open == 0 && now - start < most_ns);
}

// Reads the whole buffer, so that nothing else is left in the cache. Reading leaves clean lines: the timed call that
// follows pays for no write-back, as it would after a fill.
__device__ inline void Sweep(const uint4* words, unsigned long long count, unsigned* sink) {
    unsigned folded = 0;
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const uint4 word = words[i];
        folded ^= word.x ^ word.y ^ word.z ^ word.w;
    }
    // The buffer is all zeros, which the compiler does not know: the loads stay, the store never happens.
    if (folded != 0) *sink = folded;
}

}  // namespace engine
