// Gathers a matrix's values into an array of a plan: how new values of the same pattern get to where a kernel reads them.
// maps:    grid-stride over the elements of the array
// needs:   values as words of their size, for quotients as numbers; places of `map` that are below the number of values, or kKept,
//          of quotients also kOne; places of `divisors` that are below the number of values, or kKept
// refuses: nothing
#pragma once
#include "device.cuh"

namespace sparsetune {

// An element that holds no value of the matrix, such as padding: it stays as it is.
constexpr u32 kKept = 0xffffffffu;

// Word is an unsigned integer as wide as a value.
template <typename Word>
__device__ inline void gather(const Word* values, const u32* map, Word* packed, u64 count) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const u32 place = map[i];
        if (place != kKept) packed[i] = values[place];
    }
}

// The numerator of a quotient that is 1 and no value of the matrix.
constexpr u32 kOne = 0xfffffffeu;

// Coefficients of the equations x = b / d - sum (a / d) x: an element is minus a value over another, 1 over a value, or minus a
// value where `divisors` has kKept. Rounded once, as the host rounds them: quotients of binary32 in binary64 are rounded as if
// they had been exact.
template <typename Value>
__device__ inline void gather_quotients(const Value* values, const u32* map, const u32* divisors, Value* packed,
                                        u64 count) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const u32 place = map[i];
        if (place == kKept) continue;
        const u32 divisor = divisors[i];
        const double numerator = place == kOne ? 1.0 : -static_cast<double>(values[place]);
        const double quotient = divisor == kKept ? numerator : numerator / static_cast<double>(values[divisor]);
        packed[i] = static_cast<Value>(quotient);
    }
}

}  // namespace sparsetune
