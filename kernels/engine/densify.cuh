// Scatters a CSR matrix into a dense one that was zeroed: what the vendor's dense product takes.
// maps:    warp -> rows, grid-stride; lane -> entries
// needs:   whole warps; values as words of their size; a leading dimension of at least the columns
// refuses: nothing
#pragma once

namespace engine {

template <typename Word>
__device__ inline void Densify(const unsigned* row_ptr, const unsigned* col_idx, const Word* values, Word* dense,
                               unsigned long long rows, unsigned long long leading) {
    const unsigned warps_a_block = blockDim.x / 32, lane = threadIdx.x % 32;
    const unsigned long long stride = (unsigned long long)gridDim.x * warps_a_block;
    for (unsigned long long row = (unsigned long long)blockIdx.x * warps_a_block + threadIdx.x / 32; row < rows;
         row += stride) {
        const unsigned long long end = row_ptr[row + 1];
        // 64 bits: the last step must not wrap round.
        for (unsigned long long k = row_ptr[row] + (unsigned long long)lane; k < end; k += 32) {
            dense[row * leading + col_idx[k]] = values[k];
        }
    }
}

}  // namespace engine
