// What kernels whose warps copy their tasks to shared memory have in common: the copies, and the row that is none.
#pragma once
#include "copies.cuh"

namespace sparsetune {

// In place of a row of b and x, or of a slot: there is none.
constexpr u32 kNoRow = 0xffffffffu;

}  // namespace sparsetune
