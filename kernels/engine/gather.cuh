// Gathers a matrix's values into an array of a plan: how new values of the same pattern get to where a kernel reads them.
// maps:    grid-stride over the elements of the array
// needs:   values as words of their size; places of `map` that are below the number of values, or kKept
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

}  // namespace sparsetune
