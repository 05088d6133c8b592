// What kernels whose warps work on data in shared memory have in common.
#pragma once
#include "copies.cuh"

namespace sparsetune {

// In place of a row of b and x, or of a slot: there is none.
constexpr u32 kNoRow = 0xffffffffu;

}  // namespace sparsetune
