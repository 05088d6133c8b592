// Waiting for a value that another thread computes, without flags, fences or locks; and the watchdog that ends a wait.
//
// A value and the mark that it is available form ONE aligned access, which the device carries out whole. So nothing has
// to be ordered against anything: relaxed loads and stores at device scope suffice, and no fence is paid for on either
// side. The other way (store the value, fence, set a flag; see the flag, fence, load the value) costs two trips to L2 on
// each side of every level. The accesses are volatile to the compiler but clobber no memory: loads of the matrix may
// move across them, which is what keeps them in flight during a wait. The pointers must be to global memory.
//
// A wait is certain to end only if the thread that computes the value is running or done: see
// `ops/sptrsv/progress.rs`.
#pragma once
#include "device.cuh"

namespace sparsetune {

// A value's bits as an integer, and the bits that mean "not there yet": a NaN that no arithmetic yields.
template <typename Value>
struct Bits;

template <>
struct Bits<float> {
    using Word = u32;
    static constexpr Word kAbsent = 0xffffffffu;
    static constexpr Word kOtherNan = 0x7fffffffu;
    static __device__ __forceinline__ Word of(float value) { return __float_as_uint(value); }
    static __device__ __forceinline__ float value_of(Word word) { return __uint_as_float(word); }
};

template <>
struct Bits<double> {
    using Word = u64;
    static constexpr Word kAbsent = 0xffffffffffffffffull;
    static constexpr Word kOtherNan = 0x7fffffffffffffffull;
    static __device__ __forceinline__ Word of(double value) { return static_cast<Word>(__double_as_longlong(value)); }
    static __device__ __forceinline__ double value_of(Word word) {
        return __longlong_as_double(static_cast<long long>(word));
    }
};

// The bits to store for a computed value: those that mean "not there" become another NaN.
template <typename Value>
__device__ __forceinline__ typename Bits<Value>::Word present_bits(Value value) {
    const typename Bits<Value>::Word word = Bits<Value>::of(value);
    return word == Bits<Value>::kAbsent ? Bits<Value>::kOtherNan : word;
}

// A double and its epoch in one 128-bit word.
struct alignas(16) PackedDouble {
    u64 value;
    u64 epoch;
};

// 128-bit accesses are guaranteed to be indivisible since PTX 8.3. An older compiler has only the aligned vector
// access of 16 bytes, which the hardware carries out in one piece although no document promises it.
#if defined(__CUDACC_VER_MAJOR__) && (__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1203)
__device__ __forceinline__ PackedDouble load_relaxed(const PackedDouble* at) {
    PackedDouble word;
    asm volatile(
        "{ .reg .b128 whole;\n"
        "  ld.relaxed.gpu.global.b128 whole, [%2];\n"
        "  mov.b128 {%0, %1}, whole; }"
        : "=l"(word.value), "=l"(word.epoch)
        : "l"(at));
    return word;
}
__device__ __forceinline__ void store_relaxed(PackedDouble* at, PackedDouble word) {
    asm volatile(
        "{ .reg .b128 whole;\n"
        "  mov.b128 whole, {%1, %2};\n"
        "  st.relaxed.gpu.global.b128 [%0], whole; }" ::"l"(at),
        "l"(word.value), "l"(word.epoch));
}
#else
__device__ __forceinline__ PackedDouble load_relaxed(const PackedDouble* at) {
    PackedDouble word;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(word.value), "=l"(word.epoch) : "l"(at));
    return word;
}
__device__ __forceinline__ void store_relaxed(PackedDouble* at, PackedDouble word) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(word.value), "l"(word.epoch));
}
#endif

// Both kinds of synchronisation have the same interface:
//   Slot               an element of the work array, one per variable (and right-hand side)
//   kResets            whether a call must make the other call's slots absent again (two arrays in turn)
//   load, unpack       apart, so that several loads can be in flight before the first is looked at
//   store              publishes
//   read               the value of a slot that is known to be there (written by an earlier launch)

// The value's own word; all ones = not there. Half the bytes of `Packed`, but somebody has to reset it.
template <typename Value>
struct Sentinel {
    using Slot = typename Bits<Value>::Word;
    static constexpr bool kResets = true;

    static __device__ __forceinline__ Slot load(const Slot* at) { return load_relaxed(at); }
    static __device__ __forceinline__ bool unpack(Slot slot, u32 /*epoch*/, Value& value) {
        value = Bits<Value>::value_of(slot);
        return slot != Bits<Value>::kAbsent;
    }
    static __device__ __forceinline__ void store(Slot* at, u32 /*epoch*/, Value value) {
        store_relaxed(at, present_bits(value));
    }
    static __device__ __forceinline__ Value read(const Slot* at) { return Bits<Value>::value_of(*at); }
    // The next call finds it absent; nobody waits for it in this one, so an ordinary store will do.
    static __device__ __forceinline__ void reset(Slot* at) { *at = Bits<Value>::kAbsent; }
};

// {value, epoch} in one word: there when the epoch is this call's. Never reset.
template <typename Value>
struct Packed;

template <>
struct Packed<float> {
    using Slot = u64;
    static constexpr bool kResets = false;

    static __device__ __forceinline__ Slot load(const Slot* at) { return load_relaxed(at); }
    static __device__ __forceinline__ bool unpack(Slot slot, u32 epoch, float& value) {
        value = __uint_as_float(static_cast<u32>(slot));
        return static_cast<u32>(slot >> 32) == epoch;
    }
    static __device__ __forceinline__ void store(Slot* at, u32 epoch, float value) {
        store_relaxed(at, static_cast<u64>(epoch) << 32 | __float_as_uint(value));
    }
    static __device__ __forceinline__ float read(const Slot* at) { return __uint_as_float(static_cast<u32>(*at)); }
    static __device__ __forceinline__ void reset(Slot*) {}
};

template <>
struct Packed<double> {
    using Slot = PackedDouble;
    static constexpr bool kResets = false;

    static __device__ __forceinline__ Slot load(const Slot* at) { return load_relaxed(at); }
    static __device__ __forceinline__ bool unpack(Slot slot, u32 epoch, double& value) {
        value = Bits<double>::value_of(slot.value);
        return slot.epoch == epoch;
    }
    static __device__ __forceinline__ void store(Slot* at, u32 epoch, double value) {
        store_relaxed(at, PackedDouble{Bits<double>::of(value), epoch});
    }
    static __device__ __forceinline__ double read(const Slot* at) { return Bits<double>::value_of(at->value); }
    static __device__ __forceinline__ void reset(Slot*) {}
};

// Ends a wait that lasts too long. A thread calls `gives_up` after each poll that found nothing; most of the time
// that is an addition. Every kLook-th time it reads the clock and the status of the call, which a thread that gives
// up sets to 1, so that all waiting threads leave soon after the first. Once expired it stays expired.
struct Watchdog {
    static constexpr u32 kLook = 64;
    static_assert((kLook & (kLook - 1)) == 0, "the misses are counted with a mask");

    u64 deadline_ns;
    u32* status;
    // The clock is first read at the first look: a kernel that never waits long never pays for it.
    u64 start = 0;
    u32 misses = 0;
    bool expired = false;

    __device__ __forceinline__ Watchdog(u64 deadline_ns_, u32* status_) : deadline_ns(deadline_ns_), status(status_) {}

    __device__ __forceinline__ bool gives_up() {
        if ((++misses & (kLook - 1)) == 0 && !expired) look();
        return expired;
    }

    // Inlined, though rarely run: a call by pointer would keep the counter in memory.
    __device__ __forceinline__ void look() {
        const u64 now = global_nanoseconds();
        if (start == 0) start = now;
        if (load_relaxed(status) != 0) {
            expired = true;
        } else if (now - start > deadline_ns) {
            store_relaxed(status, 1u);
            expired = true;
        }
    }
};

}  // namespace sparsetune
