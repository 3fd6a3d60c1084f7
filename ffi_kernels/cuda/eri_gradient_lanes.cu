// Gradient, structure B: a group of lanes a quartet, one bra pair a block. Lane ab forms a row of the density block and carries it back over the
// ket; after one exchange through shared memory, lane f carries it back over the bra and holds gamma of its column during the loops over
// primitives, which add up products of Rys tables in shared memory.
#include "eri_gradient.cuh"
#include "eri_lanes.cuh"

// Rows of the exchange: one for each ab of a slice of CHUNK functions a. They stay next to the tables if there is but one slice.
constexpr int kRowAB = kF | 1;
constexpr int kSliceAB = CHUNK * kFunctionsB;
constexpr int kSlices = (kFunctionsA + CHUNK - 1) / CHUNK;
constexpr bool kKeep = kSlices == 1;
constexpr int kExchange = kSliceAB * kRowAB;
constexpr int kRowsAt = kKeep ? kTables : 0;
constexpr int kArea = ((kKeep ? kTables + kExchange : kTables > kExchange ? kTables : kExchange) + 1) / 2 * 2 + 2;
constexpr bool kExplicit = LB > 0 || LD > 0;
constexpr bool kOnce = kE <= ONCE;  // (e0|f0) and the derivatives in one pass; else registers hold one of them at a time

// The loops over primitives of the group's quartets: sums += derivatives with gamma[e], h[e] += (e0|f0).
template <bool SUMS, bool VALUES>
__device__ __forceinline__ void primitives(const Group& group, const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const double* table,
                                           double asymptotic, double omega, const double* gamma, double* h, CentreSums& sums) {
  const double *a = pairs.centers + 6 * int64{bra_at}, *c = pairs.centers + 6 * int64{ket_at};
  const int fx = component_x[group.f], fy = component_y[group.f], fz = component_z[group.f];
  for_tables(group, pairs, bra_at, bra, ket_at, ket, table, asymptotic, omega, [&](int ip, int iq, const double* gx, const double* gy, const double* gz) {
    double out[10] = {};
#pragma unroll 1
    for (int r = 0; r < kRoots; ++r, gx += kRootStride, gy += kRootStride, gz += kRootStride) {
      double x[kRow], y[kRow], z[kRow];
      load_row(x, gx);
      load_row(y, gy);
      load_row(z, gz);
      if (VALUES) products(x, y, z, h);
      if (SUMS) {
        double xf[kRow], yf[kRow], zf[kRow];
        load_row(xf, gx - (fx > 0 ? kRow : 0));
        load_row(yf, gy - (fy > 0 ? kRow : 0));
        load_row(zf, gz - (fz > 0 ? kRow : 0));
        gradient_sums(x, y, z, xf, yf, zf, gamma, out);
      }
    }
    if (SUMS) {
      out[7] *= fx;
      out[8] *= fy;
      out[9] *= fz;
      sums.add(pairs, ip, iq, out, a + 3, c + 3);
    }
  });
}

// Sum over the lanes of a quartet, valid in its first lane; over those of a warp where a quartet has several.
__device__ __forceinline__ double over_lanes(const Group& group, double v) {
  if (kF > 32) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  } else {
#pragma unroll
    for (int o = 1; o < kF; o *= 2) {
      const double other = __shfl_sync(0xffffffffu, v, (group.lane + o) & 31);
      if (group.f + o < kF) v += other;
    }
  }
  return v;
}

extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_gradient_lanes(const int2* shells, const int4* info, const double* centers, const double* prims, int64 capacity, const float* bound,
                       const int* bra_groups, const int* ket_groups, int ngroup, const double* density, const double* weight_j,
                       const double* weight_k, int nset, const Limit* limits, const float* top, double* out, const double* table,
                       double asymptotic, double omega, double threshold, int nao, int nshell, int bra_first, int bra_step, const int* part,
                       int same) {
  extern __shared__ double shared[];
  __shared__ int slots[BLOCK / 32][64];
  __shared__ double of_bra[6 * BLOCK];
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup] || !(bound[bra_at] + top[1] > static_cast<float>(threshold))) return;
  const Group group = make_group<kArea>(shared);
  const int which = threadIdx.x / kGroup;
  const Pairs pairs = {shells, info, centers, prims, capacity, bound};
  const Densities densities = {density, weight_j, weight_k, nset, nao};
  const int4 bra = info[bra_at];
  const int2 bra_shells = shells[bra_at];
  const double* a = centers + 6 * int64{bra_at};
  double* target = copy_of(out, nshell);
  BraSums bra_sums(of_bra);
  GradientQueue queue{slots[threadIdx.x / 32]};
  while (true) {
    queue.fill<kTogether>(bound, shells, limits, nshell, top[0], static_cast<float>(threshold), ket_groups, ngroup, same ? bra_at + 1 : 0x7fffffff,
                          (blockIdx.y * kGroups + which) * 32, kGroups * 32 * gridDim.y, bound[bra_at], bra_shells);
    if (queue.count == 0) break;
    const int taken = min(queue.count, kTogether);
    queue.count -= taken;
    const int* kets = queue.slots + queue.count;
    const bool live = group.sub < taken;
    const int ket_at = kets[live ? group.sub : 0];
    const int4 ket = info[ket_at];

    // Rows Gamma_ab of a slice: each(sub, ab, row in shared memory, ket, Gamma)
    auto for_rows = [&](int slice, auto&& each) {
#pragma unroll 1
      for (int w = group.lane; w < kTogether * kSliceAB; w += kGroup) {
        const int sub = w / kSliceAB, n = w - sub * kSliceAB, ab = slice * kSliceAB + n;
        if (kSlices > 1 && ab >= kAB) continue;
        const int other_at = kets[sub < taken ? sub : 0];
        const int4 other = info[other_at];
        double gamma[kCD] = {};
        if (sub < taken) add_gamma<1>(densities, bra, other, ab, multiplicity(bra, other, same), gamma);
        each(group.areas + sub * kArea + kRowsAt + n * kRowAB, gamma, centers + 6 * int64{other_at});
      }
    };
    double* column = group.area + kRowsAt + group.f;
    double v[kAB], h[kE];
    CentreSums sums;
    sums.clear();
    {
#pragma unroll 1
      for (int slice = 0; slice < kSlices; ++slice) {
        if (slice > 0) group_sync();
        for_rows(slice, [](double* row, const double* gamma, const double* c) { HRR_T_KET<1, 1, double, double>(gamma, row, c[3], c[4], c[5]); });
        group_sync();
#pragma unroll
        for (int n = 0; n < kSliceAB; ++n)
          if (kSlices == 1 || slice * kSliceAB + n < kAB) v[slice * kSliceAB + n] = column[n * kRowAB];
      }
      double gamma[kE];
      HRR_T_BRA<1, 1, double, double>(v, gamma, a[3], a[4], a[5]);
#pragma unroll
      for (int e = 0; e < kE; ++e) h[e] = 0.0;
      primitives<true, kExplicit && kOnce>(group, pairs, bra_at, bra, ket_at, ket, table, asymptotic, omega, gamma, h, sums);
    }
    if (kExplicit && !kOnce) primitives<false, true>(group, pairs, bra_at, bra, ket_at, ket, table, asymptotic, omega, nullptr, h, sums);
#if LB > 0
    {
      if (kKeep) {
#pragma unroll
        for (int n = 0; n < kAB; ++n) v[n] = column[n * kRowAB];
      }
      double d[3] = {};
      EXPLICIT_BRA<1, 1, double, double>(h, v, d, a[3], a[4], a[5]);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        sums.a[i] += d[i];
        sums.b[i] -= d[i];
      }
    }
#endif
#if LD > 0
    HRR_BRA<1, 1, double, double>(h, v, a[3], a[4], a[5]);
#pragma unroll 1
    for (int slice = 0; slice < kSlices; ++slice) {
      group_sync();
      if (group.active) {
#pragma unroll
        for (int n = 0; n < kSliceAB; ++n)
          if (kSlices == 1 || slice * kSliceAB + n < kAB) column[n * kRowAB] = v[slice * kSliceAB + n];
      }
      group_sync();
      for_rows(slice, [](double* row, const double* gamma, const double* c) {
        double d[3] = {};
        EXPLICIT_KET<1, 1, double, double>(row, gamma, d, c[3], c[4], c[5]);
        for (int i = 0; i < 3; ++i) row[i] = d[i];
      });
      group_sync();
      for (int n = group.f; n < kSliceAB; n += kF)
        if (kSlices == 1 || slice * kSliceAB + n < kAB)
          for (int i = 0; i < 3; ++i) sums.c[i] += group.area[kRowsAt + n * kRowAB + i];
    }
#endif
    const bool counts = group.active && live;
    const bool leads = kF > 32 ? (threadIdx.x & 31) == 0 : counts && group.f == 0;
    if (counts) bra_sums.add_of(sums);
    const int2 k = shells[ket_at];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const double c = over_lanes(group, counts ? sums.c[i] : 0.0);
      const double d = over_lanes(group, counts ? -(sums.a[i] + sums.b[i] + sums.c[i]) : 0.0);
      if (leads) {
        add(target + 3 * k.x + i, c);
        add(target + 3 * k.y + i, d);
      }
    }
    group_sync();
  }
  bra_sums.finish(target, bra_shells);
}
