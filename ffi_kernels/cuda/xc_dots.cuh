// Products of a slab of X = D phi with orbital values and their derivatives, added to the densities of a lane's points.
#pragma once
#include "xc_common.cuh"

// Xs: NSET slabs of 8 functions, [8][LDX], of a warp; points of a lane are q * 32 + lane. Adds rho (and half its gradient).
template <int NP, int NSET, int COMP, int LDX>
__device__ __forceinline__ void slab_dots(const ShellEntry* entries, int ns, int s, int slab, const Primitive* prims, const double* Xs,
                                          const double* X, const double* Y, const double* Z, int lane, double (*sum)[COMP][NP]) {
  for (; s < ns; s++) {
    const ShellEntry e = entries[s];
    const int o = static_cast<int>(e.offset) - slab;
    if (o >= 8) break;
    double x[NP], y[NP], z[NP], r2[NP], R[NP], R1[NP];
#pragma unroll
    for (int q = 0; q < NP; q++) {
      x[q] = X[q] - e.x;
      y[q] = Y[q] - e.y;
      z[q] = Z[q] - e.z;
      r2[q] = x[q] * x[q] + y[q] * y[q] + z[q] * z[q];
    }
    radial<NP, (COMP > 1)>(prims + e.prim, e.nprim, r2, R, R1, nullptr);
#pragma unroll
    for (int q = 0; q < NP; q++) {
#pragma unroll
      for (int set = 0; set < NSET; set++) {
        const double* at = Xs + set * 8 * LDX + o * LDX + q * 32 + lane;
        const auto v = [&](int m) { return static_cast<unsigned>(o + m) < 8u ? at[m * LDX] : 0.0; };
        double S[4];
        if (COMP > 1) {
          angular_dot(e.l, x[q], y[q], z[q], v, S);
          const double T = R1[q] * S[0];
          sum[set][0][q] = fma(R[q], S[0], sum[set][0][q]);
          sum[set][1 % COMP][q] += fma(T, x[q], R[q] * S[1]);
          sum[set][2 % COMP][q] += fma(T, y[q], R[q] * S[2]);
          sum[set][3 % COMP][q] += fma(T, z[q], R[q] * S[3]);
        } else {
          angular_sum(e.l, x[q], y[q], z[q], v, S);
          sum[set][0][q] = fma(R[q], S[0], sum[set][0][q]);
        }
      }
    }
  }
}
