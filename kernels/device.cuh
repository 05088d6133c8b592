// Shared by all kernels: integer types, the lanes of a warp, the clock, relaxed accesses, and the last arrival.
#pragma once

namespace sparsetune {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 kAllLanes = 0xffffffffu;

// The lanes of this thread's group, where a warp is cut into groups of kGroup neighbouring lanes, a power of two.
template <int kGroup>
__device__ __forceinline__ u32 group_lanes() {
    return kGroup == 32 ? kAllLanes : ((1u << (kGroup % 32)) - 1u) << (threadIdx.x % 32 / kGroup * kGroup);
}

// Waits until everything that the stream held before this kernel has completed and is visible, so that the launch of this
// kernel costs no time between the two. Without the launch attribute of programmatic stream serialization the wait is over at
// once. No thread may read or write device memory before this call. The next kernel is not let in early
// (`griddepcontrol.launch_dependents`): that gains nothing more where kernels wait here first, and a kernel of others that
// does not wait would read what this one has not yet written.
__device__ __forceinline__ void after_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The device's clock in nanoseconds; all multiprocessors read the same one.
__device__ __forceinline__ u64 global_nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Loads and stores that are relaxed at the scope of the device: no multiprocessor caches them, and nothing else is ordered
// with them. `at` must point to global memory.
__device__ __forceinline__ u32 load_relaxed(const u32* at) {
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
}

__device__ __forceinline__ u64 load_relaxed(const u64* at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at));
    return word;
}

__device__ __forceinline__ void store_relaxed(u32* at, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word));
}

__device__ __forceinline__ void store_relaxed(u64* at, u64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word));
}

// Orders this thread's accesses to memory before and after it for the whole device. `__threadfence` would also order all such
// fences among each other, which nothing here needs and which takes longer.
__device__ __forceinline__ void device_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Whether this thread's group of kGroup lanes is the last of `expected` groups to have stored its results in global
// memory. The whole group gets the same answer. The last group resets the counter for the next call and sees the
// results of all others.
template <int kGroup>
__device__ __forceinline__ bool last_group_to_arrive(u32* arrived, u32 expected) {
    // One lane fences for all: the group meets before, so that its fence follows the stores of all lanes, and after, so that
    // the loads of all lanes follow its fence.
    __syncwarp(group_lanes<kGroup>());
    bool last = false;
    if (threadIdx.x % kGroup == 0) {
        device_fence();
        last = atomicAdd(arrived, 1u) + 1 == expected;
        if (last) {
            // For the next call, which sees it because kernels follow each other.
            *arrived = 0;
            device_fence();
        }
    }
    last = __shfl_sync(group_lanes<kGroup>(), last, 0, kGroup);
    __syncwarp(group_lanes<kGroup>());
    return last;
}

// Like `last_group_to_arrive`, for whole blocks.
__device__ __forceinline__ bool last_block_to_arrive(u32* arrived, u32 expected) {
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
        device_fence();
        last = atomicAdd(arrived, 1u) + 1 == expected;
        if (last) {
            *arrived = 0;
            device_fence();
        }
    }
    return __syncthreads_or(last);
}

}  // namespace sparsetune
