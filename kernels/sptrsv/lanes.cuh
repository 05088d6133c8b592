// Lanes of a warp that share a row.
#pragma once
#include "device.cuh"

namespace sparsetune {

// The sum over the lanes of a row, in all of them.
template <int kLanes, typename Value>
__device__ __forceinline__ Value sum_of_row(Value value) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
}

}  // namespace sparsetune
