// What kernels whose warps work on data in shared memory have in common.
#pragma once
#include "device.cuh"

namespace sparsetune {

// In place of a row of b and x, or of a slot: there is none.
constexpr u32 kNoRow = 0xffffffffu;

// Copies `count` pieces of 16 bytes to shared memory, which have arrived after `copied`.
__device__ __forceinline__ void copy_ahead(void* to, const void* from, u32 count) {
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
    const char* bytes = static_cast<const char*>(from);
    for (u32 i = threadIdx.x % 32; i < count; i += 32) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place + 16 * i), "l"(bytes + 16ull * i)
                     : "memory");
    }
}
__device__ __forceinline__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace sparsetune
