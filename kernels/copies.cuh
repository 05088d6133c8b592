// Copies to shared memory that go on while their threads compute.
#pragma once
#include "device.cuh"

namespace sparsetune {

// Begins to copy 16 bytes to shared memory. Both addresses must be multiples of 16.
__device__ __forceinline__ void copy_piece_ahead(void* to, const void* from) {
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}

// Begins to copy the first `bytes` bytes of 16 to shared memory; the others become zero. Both addresses must be multiples of 16.
// Where nothing is copied `from` may lie anywhere: `b` is an address that exists.
__device__ __forceinline__ void copy_piece_ahead(void* to, const void* b, const void* from, u32 bytes) {
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(bytes ? from : b), "r"(bytes)
                 : "memory");
}

// Begins to copy `count` pieces of 16 bytes, both addresses multiples of 16, by the lanes of a group of kGroup neighbouring threads.
template <int kGroup = 32>
__device__ __forceinline__ void copy_ahead(void* to, const void* from, u32 count) {
    char* place = static_cast<char*>(to);
    const char* bytes = static_cast<const char*>(from);
    for (u32 i = threadIdx.x % kGroup; i < count; i += kGroup) copy_piece_ahead(place + 16 * i, bytes + 16ull * i);
}

// Ends a lot (a commit group of PTX): what this thread has begun to copy since the lot before.
__device__ __forceinline__ void end_of_lot() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All lots of this thread have arrived but the latest. Threads that read what others have copied must meet after it.
__device__ __forceinline__ void copied_but_latest_lot() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// All that this thread has begun to copy has arrived.
__device__ __forceinline__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace sparsetune
