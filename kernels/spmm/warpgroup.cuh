// Products of a warpgroup's four warps on tensor cores (wgmma) and what feeds them on sm_90a: barriers in shared memory, copies
// that arrive at them, and descriptors of swizzled tiles.
// builds:  sm_90a
#pragma once
#include "spmm/element.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "this header is for sm_90a: no other architecture has these instructions"
#endif

namespace sparsetune {

// The address of shared memory as its instructions take it.
__device__ __forceinline__ u32 shared_address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void store_shared(u32 at, u16 value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
}
__device__ __forceinline__ void store_shared(u32 at, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void clear_shared(u32 at) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}
__device__ __forceinline__ u16 load_shared_half(u32 at) {
    u16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(at) : "memory");
    return value;
}
__device__ __forceinline__ void load_shared(u32 (&four)[4], u32 at) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ u32 load_shared_word(u32 at) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}

// All blocks of the cluster meet, and see what the others wrote to shared memory before.
__device__ __forceinline__ void meet_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A float in the shared memory of the cluster's block of that rank, at an address of this block's.
__device__ __forceinline__ float load_of_peer(u32 at, u32 rank) {
    float value;
    asm volatile(
        "{\n"
        ".reg .u32 there;\n"
        "mapa.shared::cluster.u32 there, %1, %2;\n"
        "ld.shared::cluster.f32 %0, [there];\n"
        "}"
        : "=f"(value)
        : "r"(at), "r"(rank)
        : "memory");
    return value;
}

// A barrier in shared memory, 8 bytes: a phase is over when so many have arrived and all bytes announced have come.
__device__ __forceinline__ void barrier_start(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_and_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@over bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Copies so many bytes, a multiple of 16 like both addresses; they are counted by the barrier.
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Copies 16 bytes, or clears them.
__device__ __forceinline__ void copy_or_clear(u32 to, const void* from, bool copy) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(copy ? 16u : 0u) : "memory");
}

// Arrives at a barrier when all copies that this thread has begun are there.
__device__ __forceinline__ void arrive_with_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Lets the tensor cores see what was written to shared memory by this thread, or by others that it has waited for. Threads with
// copies under way would wait for these here.
__device__ __forceinline__ void publish_to_tensor_cores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLater>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
}

// Keeps the compiler from moving sums to other registers between this place and those before and after it.
template <int kSums>
__device__ __forceinline__ void hold(float (&sum)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

__device__ __forceinline__ void hold(u32 (&word)[4]) {
    asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3])::"memory");
}

// Takes registers for the threads of this warpgroup from what others have given back, or gives some back: to kRegisters each.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A tile in shared memory in the swizzle of 128 bytes: the 16-byte chunk c of its line l, 128 bytes long, lies at chunk c ^ l % 8.
// Tiles start at multiples of 1,024 bytes. `leading` and `stride` in bytes, as PTX defines them for the operand's direction.
__device__ __forceinline__ u64 swizzled_tile(u32 address, u32 leading, u32 stride) {
    return static_cast<u64>(address >> 4 & 0x3fffu) | static_cast<u64>(leading >> 4) << 16 |
           static_cast<u64>(stride >> 4) << 32 | 1ull << 62;
}

// Place of a 16-byte chunk in such a tile.
__device__ __forceinline__ u32 swizzled(u32 line, u32 chunk) { return line * 128 + ((chunk ^ line % 8) << 4); }

// clang-format off
#define SPARSETUNE_NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPARSETUNE_NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63"
#define SPARSETUNE_SUMS_8(d, i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define SPARSETUNE_SUMS_32(d, i) \
    SPARSETUNE_SUMS_8(d, i), SPARSETUNE_SUMS_8(d, i + 8), SPARSETUNE_SUMS_8(d, i + 16), SPARSETUNE_SUMS_8(d, i + 24)
#define SPARSETUNE_SUMS_64(d, i) SPARSETUNE_SUMS_32(d, i), SPARSETUNE_SUMS_32(d, i + 32)

// d += a b for 64 rows and 2 kSums columns over 16 (f16, bf16): a by rows, b with neighbouring columns side by side.
#define SPARSETUNE_MULTIPLY_HALF(TYPE, PTX, SUMS, COLUMNS, A, B)                                              \
    __device__ __forceinline__ void multiply(TYPE, float (&d)[SUMS], u64 a, u64 b) {                          \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." PTX "." PTX " {" SPARSETUNE_NAMES_##SUMS \
                     "}, " A ", " B ", 1, 1, 1, 0, 1;"                                                        \
                     : SPARSETUNE_SUMS_##SUMS(d, 0)                                                           \
                     : "l"(a), "l"(b));                                                                       \
    }
SPARSETUNE_MULTIPLY_HALF(Half, "f16", 32, "64", "%32", "%33")
SPARSETUNE_MULTIPLY_HALF(Half, "f16", 64, "128", "%64", "%65")
SPARSETUNE_MULTIPLY_HALF(Brain, "bf16", 32, "64", "%32", "%33")
SPARSETUNE_MULTIPLY_HALF(Brain, "bf16", 64, "128", "%64", "%65")

// d += a b for 64 rows and 2 kSums columns over 8 (tf32): a in registers, b by columns; d = a b if d is not to be kept.
#define SPARSETUNE_MULTIPLY_TF32(SUMS, COLUMNS, A0, A1, A2, A3, B, KEEP)                                      \
    __device__ __forceinline__ void multiply(float (&d)[SUMS], const u32 (&a)[4], u64 b, bool keep) {         \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.u32 keep, " KEEP ", 0;\n"                                 \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k8.f32.tf32.tf32 {" SPARSETUNE_NAMES_##SUMS \
                     "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", keep, 1, 1;\n}"                             \
                     : SPARSETUNE_SUMS_##SUMS(d, 0)                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<u32>(keep)));      \
    }
SPARSETUNE_MULTIPLY_TF32(32, "64", "%32", "%33", "%34", "%35", "%36", "%37")
SPARSETUNE_MULTIPLY_TF32(64, "128", "%64", "%65", "%66", "%67", "%68", "%69")
// clang-format on

}  // namespace sparsetune
