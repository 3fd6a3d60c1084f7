// The product X = A D of orbital values in shared memory with gathered columns of D, and its screening.
// Macros: P points a block, MW warps over points, KU steps of D held ahead.
#pragma once
#include "xc_common.cuh"

#ifndef LD
#define LD (P + 4)  // from one function to the next; padded, so that lanes meet different banks
#endif
#define PM (P / MW)
#define LX (PM + 2)

// The row at hand, in shared memory; slabs are of 8 functions.
struct RowSlabs {
  ShellEntry* entries;
  int* idx;      // place of each function in D
  float* bound;  // of each slab
  short* shell;  // the first of each slab
  short* list;   // room for as many shells as a row lists
};

__device__ __forceinline__ RowSlabs row_slabs(double* after, int max_shells, int max_functions) {
  RowSlabs r;
  r.entries = reinterpret_cast<ShellEntry*>(after);
  r.idx = reinterpret_cast<int*>(r.entries + max_shells);
  r.bound = reinterpret_cast<float*>(r.idx + max_functions);
  r.shell = reinterpret_cast<short*>(r.bound + max_functions / 8);
  r.list = r.shell + max_functions / 8;
  return r;
}

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

// A product (PM x 8) as a lane holds it, to a buffer of the warp, [8][LX].
__device__ __forceinline__ void keep_product(const double (*acc)[4], double* buffer, int g, int t) {
  double* x = buffer + 2 * t * LX + g;
#pragma unroll
  for (int i = 0; i < PM / 16; i++) {
    x[16 * i] = acc[i][0];
    x[LX + 16 * i] = acc[i][1];
    x[16 * i + 8] = acc[i][2];
    x[LX + 16 * i + 8] = acc[i][3];
  }
}

// Adds the products with 8 functions, from A on, to acc; b: the two elements of each D that the lane holds. `second`: from the lane's
// first point to its second.
template <int N, int M>
__device__ __forceinline__ void slab_step(double (*acc)[PM / 16][4], const double* A, int array, const double (*b)[2], int second) {
#pragma unroll
  for (int m = 0; m < N; m++) {
#pragma unroll
    for (int i = 0; i < PM / 16; i++) {
      const double* p = A + m * array + 16 * i;
      const double a[4] = {p[0], p[second], p[4 * LD], p[4 * LD + second]};
#pragma unroll
      for (int set = 0; set < M; set++) mma(acc[m * M + set][i], a, b[set][0], b[set][1]);
    }
  }
}

// What a lane holds of 8 functions, from idx on, in a slab of each of the matrices, whose elements lie side by side.
template <int M>
__device__ __forceinline__ void load_step(double (*b)[2], const int* idx, const double* column, int t) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const double* at = column + static_cast<int64>(idx[4 * h + t]) * M;
    if (M == 2) {
      const double2 pair = load_pair(at);
      b[0][h] = pair.x;
      b[M - 1][h] = pair.y;
    } else {
      b[0][h] = __ldg(at);
    }
  }
}

// acc[a][set] (PM x 8) = A_a^T D_set over functions [0, limit), for N matrices A in shared memory, `array` apart, and M <= 2 matrices
// D, whose elements lie side by side.
template <int N, int M>
__device__ __forceinline__ void slab_product(double (*acc)[PM / 16][4], const double* A, int array, const int* idx, const double* column,
                                             int limit, int t, int second = 8) {
  static_assert(M <= 2);
  double next[KU][M][2] = {}, b[KU][M][2];
#pragma unroll
  for (int u = 0; u < KU; u++) {
    if (8 * u < limit) load_step<M>(next[u], idx + 8 * u, column, t);
  }
  for (int k0 = 0; k0 < limit; k0 += 8 * KU) {
#pragma unroll
    for (int u = 0; u < KU; u++) {
#pragma unroll
      for (int set = 0; set < M; set++) {
        b[u][set][0] = next[u][set][0];
        b[u][set][1] = next[u][set][1];
      }
    }
#pragma unroll
    for (int u = 0; u < KU; u++) {
      const int k = k0 + 8 * KU + 8 * u;
      if (k < limit) load_step<M>(next[u], idx + k, column, t);
    }
#pragma unroll
    for (int u = 0; u < KU; u++) {
      if (k0 + 8 * u < limit) slab_step<N, M>(acc, A + (k0 + 8 * u) * LD, array, b[u], second);
    }
  }
}
