// The product X = A D of orbital values in shared memory with gathered columns of D, and its screening.
// Macros: P points a block, MW warps over points, KU steps of D held ahead.
#pragma once
#include "xc_common.cuh"

#define LD (P + 4)
#define PM (P / MW)
#define LX (PM + 2)

// What the product reads of each function: its place in D; of each slab of 8: its bound and its first shell. All threads call it.
__device__ __forceinline__ void describe_functions(const ShellEntry* entries, int ns, int functions, int* idx, float* slab_bound,
                                                   short* slab_shell) {
  for (int s = threadIdx.x; s < ns; s += blockDim.x) {
    const int offset = entries[s].offset, size = shell_size(entries[s].l);
    for (int m = 0; m < size; m++) {
      idx[offset + m] = entries[s].ao + m;
      if (((offset + m) & 7) == 0) {
        slab_shell[(offset + m) >> 3] = static_cast<short>(s);
        slab_bound[(offset + m) >> 3] = entries[s].bound;
      }
    }
  }
  if (threadIdx.x < ((functions + 7) & ~7) - functions) idx[functions + threadIdx.x] = 0;
}

// The number of functions k, a multiple of 8, that slab c has to meet.
__device__ __forceinline__ int prefix(const float* slab_bound, int slabs, int c, float factor, int lane) {
  const float threshold = 1.0f / (factor * slab_bound[c] + 1e-30f);
  int limit = 0;
  for (int j = 0; j < slabs; j += 32) {
    const bool live = j + lane < slabs && slab_bound[j + lane] > threshold;
    limit += 8 * __popc(__ballot_sync(0xffffffffu, live));
  }
  return limit;
}

// Adds the products with 8 functions, from A on, to acc.
template <int ARRAYS>
__device__ __forceinline__ void slab_step(double (*acc)[PM / 16][4], const double* A, int array, double b0, double b1) {
#pragma unroll
  for (int m = 0; m < ARRAYS; m++) {
#pragma unroll
    for (int i = 0; i < PM / 16; i++) {
      const double* p = A + m * array + 16 * i;
      const double a[4] = {p[0], p[8], p[4 * LD], p[4 * LD + 8]};
      mma(acc[m][i], a, b0, b1);
    }
  }
}

// acc[a] (PM x 8) = A_a^T D over functions [0, limit) for each of ARRAYS matrices A in shared memory, `array` apart.
template <int ARRAYS>
__device__ __forceinline__ void slab_product(double (*acc)[PM / 16][4], const double* A, int array, const int* idx, const double* column,
                                             int limit, int t) {
  double next[KU][2], b[KU][2];
#pragma unroll
  for (int u = 0; u < KU; u++) {
    next[u][0] = next[u][1] = 0.0;
    if (8 * u < limit) {
      next[u][0] = __ldg(column + idx[8 * u + t]);
      next[u][1] = __ldg(column + idx[8 * u + 4 + t]);
    }
  }
  for (int k0 = 0; k0 < limit; k0 += 8 * KU) {
#pragma unroll
    for (int u = 0; u < KU; u++) {
      b[u][0] = next[u][0];
      b[u][1] = next[u][1];
    }
#pragma unroll
    for (int u = 0; u < KU; u++) {
      const int k = k0 + 8 * KU + 8 * u;
      if (k < limit) {
        next[u][0] = __ldg(column + idx[k + t]);
        next[u][1] = __ldg(column + idx[k + 4 + t]);
      }
    }
#pragma unroll
    for (int u = 0; u < KU; u++) {
      if (k0 + 8 * u < limit) slab_step<ARRAYS>(acc, A + (k0 + 8 * u) * LD, array, b[u][0], b[u][1]);
    }
  }
}
