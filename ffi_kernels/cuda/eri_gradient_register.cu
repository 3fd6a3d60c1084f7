// Gradient, structure A: one thread a quartet, one bra pair a block. The generated recurrence with its derivative targets runs inside the
// loops over primitives, contracted with the density block in registers.
#include "eri_boys.cuh"
#include "eri_gradient.cuh"

// Derivatives of one contracted quartet with the density block gamma[ab * kCD + cd].
__device__ __forceinline__ void quartet(const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const double* rows, const double* grid,
                                        double omega, const double* gamma, CentreSums& sums) {
  const double *a = pairs.centers + 6 * int64{bra_at}, *c = pairs.centers + 6 * int64{ket_at};
  double half[kAB * kF], g[kE * kF], h[kE * kF];
#pragma unroll
  for (int n = 0; n < kAB; ++n) HRR_T_KET<1, 1, double, double>(gamma + n * kCD, half + n * kF, c[3], c[4], c[5]);
#pragma unroll
  for (int f = 0; f < kF; ++f) HRR_T_BRA<kF, kF, double, double>(half + f, g + f, a[3], a[4], a[5]);
#pragma unroll
  for (int n = 0; n < kE * kF; ++n) h[n] = 0.0;
  // The ket, which differs from lane to lane, is loaded in the outer loop; loads of the bra are the same for all lanes.
  for (int k = 0, iq = ket.z; k < ket.w; ++k, iq += kTile) {
    const PrimitivePair q(pairs, iq);
    for (int i = 0, ip = bra.z; i < bra.w; ++i, ip += kTile) {
      const double p = pairs.p[ip], px = pairs.x()[ip], py = pairs.y()[ip], pz = pairs.z()[ip];
      const Primitives s(p, px, py, pz, pairs.weight()[ip], q);
      double f[kTotal + 2];
      boys<kTotal + 1>(s, p, rows, grid, omega, f);
      double out[10] = {};
      vrr_gradient<double, double>(g, h, out, f, px - a[0], py - a[1], pz - a[2], q.x - c[0], q.y - c[1], q.z - c[2],
                                   -s.rho_p * s.x, -s.rho_p * s.y, -s.rho_p * s.z, s.rho_q * s.x, s.rho_q * s.y, s.rho_q * s.z,
                                   0.5 * pairs.inverse()[ip], 0.5 * pairs.inverse()[iq], 0.5 * s.inverse_pq, s.rho_p, s.rho_q);
      sums.add(pairs, ip, iq, out, a + 3, c + 3);
    }
  }
#if LB > 0
  {
    double d[3] = {};
#pragma unroll
    for (int f = 0; f < kF; ++f) EXPLICIT_BRA<kF, kF, double, double>(h + f, half + f, d, a[3], a[4], a[5]);
#pragma unroll
    for (int x = 0; x < 3; ++x) {
      sums.a[x] += d[x];
      sums.b[x] -= d[x];
    }
  }
#endif
#if LD > 0
  double v[kAB * kF];
#pragma unroll
  for (int f = 0; f < kF; ++f) HRR_BRA<kF, kF, double, double>(h + f, v + f, a[3], a[4], a[5]);
#pragma unroll
  for (int n = 0; n < kAB; ++n) EXPLICIT_KET<1, 1, double, double>(v + n * kF, gamma + n * kCD, sums.c, c[3], c[4], c[5]);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_gradient_register(const int2* shells, const int4* info, const double* centers, const double* prims, int64 capacity, const float* bound,
                          const int* bra_groups, const int* ket_groups, int ngroup, const double* density, const double* weight_j,
                          const double* weight_k, int nset, const Limit* limits, const float* top, double* out, const double* rows,
                          const double* grid, double omega, double threshold, int nao, int nshell, int bra_first, int bra_step, const int* part,
                          int same) {
  __shared__ int slots[BLOCK / 32][64];
  __shared__ double of_bra[6 * BLOCK];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup] || !(bound[bra_at] + top[1] > static_cast<float>(threshold))) return;
  const Pairs pairs = {shells, info, centers, prims, capacity, bound};
  const Densities densities = {density, weight_j, weight_k, nset, nao};
  const int4 bra = info[bra_at];
  const int2 bra_shells = shells[bra_at];
  double* target = copy_of(out, nshell);
  BraSums bra_sums(of_bra);
  GradientQueue queue{slots[warp]};
  while (true) {
    queue.fill<32>(bound, shells, limits, nshell, top[0], static_cast<float>(threshold), ket_groups, ngroup, same ? bra_at + 1 : 0x7fffffff,
                   (blockIdx.y * (BLOCK / 32) + warp) * 32, BLOCK * gridDim.y, bound[bra_at], bra_shells);
    if (queue.count == 0) break;
    const int taken = min(queue.count, 32);
    queue.count -= taken;
    const bool live = lane < taken;
    const int ket_at = queue.slots[queue.count + (live ? lane : 0)];
    __syncwarp();
    if (live) {
      const int4 ket = info[ket_at];
      double gamma[kAB * kCD] = {};
      add_gamma<kAB>(densities, bra, ket, 0, multiplicity(bra, ket, same), gamma);
      CentreSums sums;
      sums.clear();
      quartet(pairs, bra_at, bra, ket_at, ket, rows, grid, omega, gamma, sums);
      bra_sums.add_of(sums);
      const int2 k = shells[ket_at];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        add(target + 3 * k.x + i, sums.c[i]);
        add(target + 3 * k.y + i, -(sums.a[i] + sums.b[i] + sums.c[i]));
      }
    }
    __syncwarp();
  }
  bra_sums.finish(target, bra_shells);
}
