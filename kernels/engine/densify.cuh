// Scatters a CSR matrix into a dense one that was zeroed: what the vendor's dense product takes.
// maps:    warp -> rows, grid-stride; lane -> entries
// needs:   whole warps; values as words of their size; a leading dimension of at least the columns
// refuses: nothing
#pragma once
#include "device.cuh"

namespace sparsetune {

// Word is an unsigned integer as wide as a value.
template <typename Word>
__device__ inline void densify(const u32* row_ptr, const u32* col_idx, const Word* values, Word* dense, u64 rows,
                               u64 leading) {
    const u32 warps_a_block = blockDim.x / 32, lane = threadIdx.x % 32;
    const u64 stride = static_cast<u64>(gridDim.x) * warps_a_block;
    for (u64 row = static_cast<u64>(blockIdx.x) * warps_a_block + threadIdx.x / 32; row < rows; row += stride) {
        const u64 end = row_ptr[row + 1];
        // 64 bits: the last step must not wrap round.
        for (u64 k = row_ptr[row] + static_cast<u64>(lane); k < end; k += 32) {
            dense[row * leading + col_idx[k]] = values[k];
        }
    }
}

}  // namespace sparsetune
