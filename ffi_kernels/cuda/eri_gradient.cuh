// What the kernels of the gradient share: screening by products of two densities, blocks of those, and sums over centres.
//
// With Gamma the density block of a quartet, its energy is sum Gamma (ab|cd) = sum gamma_ef [e0|f0], gamma = Gamma carried back through both
// horizontal recurrences. The derivative with respect to a centre has a part from the primitive integrals at fixed gamma, and a part from the
// recurrences themselves: d(ab|/dAB_i = b_i (a b-1_i|.
#pragma once
#include "eri_quartets.cuh"


// Largest elements of a block of shells of the densities, and of their weights.
struct __align__(8) Limit {
  float d, w;
};

// Kets of one bra pair as in KetQueue; what is wanted has a largest Gamma (ab|cd) above the threshold.
struct GradientQueue {
  int* slots;  // 64 a warp
  int group = 0, at = -1, count = 0;

  template <int NEED>
  __device__ __forceinline__ void fill(const float* bound, const int2* shells, const Limit* limits, int nshell, float top, float threshold,
                                       const int* groups, int ngroup, int last, int start, int stride, float bra_bound, int2 bra) {
    const int lane = threadIdx.x & 31;
    const Limit *row_i = limits + int64{bra.x} * nshell, *row_j = limits + int64{bra.y} * nshell;
    while (count < NEED && group < ngroup) {
      if (at < 0) at = groups[group] + start;
      const int end = min(groups[group + 1], last);
      const int ket = at + lane;
      const bool inside = ket < end;
      const float pair = inside ? bra_bound + bound[ket] : kNothing;
      if (at >= end || !__any_sync(0xffffffffu, pair + top > threshold)) {
        ++group;
        at = -1;
        continue;
      }
      bool wanted = false;
      if (inside) {
        const int2 k = shells[ket];
        float gamma = 0.0f;
#if COULOMB
        const Limit ij = row_i[bra.y], kl = limits[int64{k.x} * nshell + k.y];
        gamma += 4.0f * (ij.w * kl.d + ij.d * kl.w);
#endif
#if EXCHANGE
        const Limit ik = row_i[k.x], il = row_i[k.y], jk = row_j[k.x], jl = row_j[k.y];
        gamma += 2.0f * (ik.w * jl.d + ik.d * jl.w + il.w * jk.d + il.d * jk.w);
#endif
        wanted = gamma > expf(threshold - pair);
      }
      const unsigned chosen = __ballot_sync(0xffffffffu, wanted);
      if (wanted) slots[count + __popc(chosen & ((1u << lane) - 1))] = ket;
      count += __popc(chosen);
      at += stride;
      __syncwarp();
    }
  }
};

struct Densities {
  const double *d, *weight_j, *weight_k;
  int nset, nao;
};

// Adds to gamma[ab * kCD + cd], for ROWS functions ab from `first` on, 4 (P_ab D_cd + P_cd D_ab) for J and
// 2 (P_ac D_bd + P_ad D_bc + P_bc D_ad + P_bd D_ac) for K, summed over the sets.
template <int ROWS>
__device__ __forceinline__ void add_gamma(const Densities& m, int4 bra, int4 ket, int first, double factor, double* gamma) {
  constexpr int C = kFunctionsC, D = kFunctionsD;
  for (int s = 0; s < m.nset; ++s) {
    const int64 square = int64{s} * m.nao * m.nao;
    const double* d = m.d + square;
#if COULOMB
    {
      const double *w = m.weight_j + square, f = 4.0 * factor;
      double of_d[kCD], of_w[kCD];
#pragma unroll
      for (int n = 0; n < kCD; ++n) {
        const int64 at = int64{ket.x + n / D} * m.nao + ket.y + n % D;
        of_d[n] = f * d[at];
        of_w[n] = f * w[at];
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const int ab = first + r;
        const int64 at = int64{bra.x + ab / kFunctionsB} * m.nao + bra.y + ab % kFunctionsB;
        const double dab = d[at], wab = w[at];
#pragma unroll
        for (int n = 0; n < kCD; ++n) gamma[r * kCD + n] += wab * of_d[n] + dab * of_w[n];
      }
    }
#endif
#if EXCHANGE
    const double *w = m.weight_k + square, f = 2.0 * factor;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int ab = first + r;
      const int64 i = int64{bra.x + ab / kFunctionsB} * m.nao, j = int64{bra.y + ab % kFunctionsB} * m.nao;
      double djl[D], wjl[D], dil[D], wil[D];
#pragma unroll
      for (int x = 0; x < D; ++x) {
        djl[x] = f * d[j + ket.y + x];
        wjl[x] = f * w[j + ket.y + x];
        dil[x] = f * d[i + ket.y + x];
        wil[x] = f * w[i + ket.y + x];
      }
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const double dik = d[i + ket.x + c], wik = w[i + ket.x + c], djk = d[j + ket.x + c], wjk = w[j + ket.x + c];
#pragma unroll
        for (int x = 0; x < D; ++x) gamma[r * kCD + c * D + x] += wik * djl[x] + dik * wjl[x] + wjk * dil[x] + djk * wil[x];
      }
    }
#endif
  }
}

// Derivatives with respect to A, B and C; D follows from translation.
struct CentreSums {
  double a[3], b[3], c[3];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 3; ++i) a[i] = b[i] = c[i] = 0.0;
  }

  // out: sum gamma [e|f], gamma [e+1_i|f], gamma e_i [e-1_i|f], gamma f_i [e|f-1_i] of one primitive quartet.
  __device__ __forceinline__ void add(const Pairs& pairs, int ip, int iq, const double* out, const double* ab, const double* cd) {
    const double *twice = pairs.p + 6 * pairs.capacity, a2 = twice[ip], c2 = twice[iq], p2 = 2.0 * pairs.p[ip], b2 = p2 - a2;
    const double d2 = 2.0 * pairs.p[iq] - c2, share = 0.5 * c2 * pairs.inverse()[iq];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const double up = out[1 + i], down = out[4 + i], below = out[7 + i];
      a[i] += a2 * up - down;
      b[i] += b2 * (up + ab[i] * out[0]);
      // 2q [e|f+1_i] from translational invariance of the primitive quartet
      c[i] -= share * (p2 * up - down - below + (b2 * ab[i] + d2 * cd[i]) * out[0]) + below;
    }
  }
};

// Adds to the gradient; its copies, summed up later, keep blocks out of each other's way.
__device__ __forceinline__ double* copy_of(double* out, int nshell) {
  return out + int64{(blockIdx.x + blockIdx.y) % COPIES} * 3 * nshell;
}

// Derivatives of the bra pair, for each thread in shared memory: there for all kets, they would cost registers.
struct BraSums {
  double* own;

  __device__ __forceinline__ explicit BraSums(double* of_block) : own(of_block + threadIdx.x) {
#pragma unroll
    for (int i = 0; i < 6; ++i) own[i * BLOCK] = 0.0;
  }
  __device__ __forceinline__ void add_of(const CentreSums& s) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      own[i * BLOCK] += s.a[i];
      own[(3 + i) * BLOCK] += s.b[i];
    }
  }
  __device__ __forceinline__ void finish(double* out, int2 bra) const {
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      double sum = own[i * BLOCK];
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
      if ((threadIdx.x & 31) == 0 && sum != 0.0) add(out + 3 * (i < 3 ? bra.x : bra.y) + i % 3, sum);
    }
  }
};
