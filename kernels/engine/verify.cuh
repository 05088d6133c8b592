// Compares an output with its float64 reference, element by element.
// maps:    grid-stride over elements; one Partial a block, reduced on the host, so the result does not vary
// needs:   256 threads a block, a power of two
// refuses: nothing
#pragma once

namespace engine {

constexpr int kVerifyThreads = 256;
static_assert((kVerifyThreads & (kVerifyThreads - 1)) == 0,
              "the tree reduction halves the block until one thread is left.");

// What one block found. Mirrored by `Partial` in verify.rs.
struct Partial {
  double error;                   // the largest
  unsigned long long worst;       // its index, the smallest where several are equal
  unsigned long long unwritten;   // elements that still hold the poison
};

__device__ inline Partial Worse(const Partial& a, const Partial& b) {
  const bool take_b = b.error > a.error || (b.error == a.error && b.worst < a.worst);
  Partial result = take_b ? b : a;
  result.unwritten = a.unwritten + b.unwritten;
  return result;
}

// Leaves the worst of a block's findings in its place of `partials`; all threads of the block take part.
__device__ inline void Reduce(const Partial& mine, Partial* partials) {
  __shared__ Partial shared[kVerifyThreads];
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kVerifyThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] = Worse(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) partials[blockIdx.x] = shared[0];
}

// Elements first .. first + count of `c` against value[0 .. count], scale[0 .. count].
__device__ inline void Verify(const float* c, const double* value, const float* scale,
                              unsigned long long first, unsigned long long count,
                              unsigned poison, Partial* partials) {
  // Keeps an element whose scale is 0 (an empty row) exact: anything but 0 there is a huge error.
  constexpr double kTiny = 1.1754943508222875e-38;  // FLT_MIN, as on the host
  Partial mine = {0.0, ~0ull, 0};
  const unsigned long long stride = (unsigned long long)gridDim.x * kVerifyThreads;
  for (unsigned long long i = (unsigned long long)blockIdx.x * kVerifyThreads + threadIdx.x;
       i < count; i += stride) {
    const float got = c[first + i];
    double error = fabs((double)got - value[i]) / ((double)scale[i] + kTiny);
    // Not `isnan`: a comparison with NaN is false, which also catches infinity minus infinity.
    if (!(error >= 0.0)) error = __longlong_as_double(0x7ff0000000000000ll);
    const unsigned long long unwritten = __float_as_uint(got) == poison;
    mine = Worse(mine, {error, first + i, unwritten});
  }
  Reduce(mine, partials);
}

}  // namespace engine
