// Gradient, structure B: a group of lanes a quartet, one bra pair a block. Lane ab forms a row of the density block and carries it back over the
// ket; after one exchange through shared memory, lane f carries it back over the bra and holds gamma of its column during the loops over
// primitives, which add up products of Rys tables in shared memory. Rys quadrature: doi:10.1063/1.432807.
#include "eri_gradient.cuh"

constexpr int kRoots = (kTotal + 1) / 2 + 1;
constexpr int kLE = LA + LB + 1, kLF = LC + LD;
constexpr int kGroup = kF <= 32 ? 32 : (kF + 31) / 32 * 32;  // lanes of a group
constexpr int kTogether = kF <= 32 ? 32 / kF : 1;            // quartets of a group at a time
constexpr int kGroups = BLOCK / kGroup;
static_assert(kF <= 32 || kGroups == 1, "groups of several warps have a block of their own");

// Tables g[(axis * kRoots + root) * kRootStride + f * kRow + e]; twice an odd number of doubles a root avoids bank conflicts.
constexpr int kRow = kLE + 1 + (kLE + 1) % 2;
constexpr int kRootStride = (kLF + 1) * kRow + ((kLF + 1) * kRow / 2 % 2 == 0 ? 2 : 0);
constexpr int kTables = 3 * kRoots * kRootStride;

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

__device__ const unsigned char component_x[kF] = {COMPONENTS_X}, component_y[kF] = {COMPONENTS_Y}, component_z[kF] = {COMPONENTS_Z};

__device__ __forceinline__ void group_sync() {
  if (kF <= 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Root `r` (below kRoots) or weight (from there on) of the quadrature for t.
__device__ __forceinline__ double quadrature(double t, int r, const double* table, double asymptotic) {
  if (t < asymptotic) {
    const int interval = static_cast<int>(t * 0.4);
    const double x = t * 0.8 - (2 * interval + 1);
    const double2* c = reinterpret_cast<const double2*>(table + (int64{interval} * 2 * kRoots + r) * 14);
    double v = fma(c[6].y, x, c[6].x);
#pragma unroll
    for (int k = 5; k >= 0; --k) {
      const double2 pair = c[k];
      v = fma(fma(v, x, pair.y), x, pair.x);
    }
    return v;
  }
  const double hermite = table[static_cast<int64>(asymptotic * 0.4 + 0.5) * 2 * kRoots * 14 + r];
  return r < kRoots ? hermite / t : hermite * rsqrt(t);
}

// Table of one axis and root: g(e, f) from the two-dimensional recurrence.
__device__ __forceinline__ void table_2d(double* g, double c00, double d00, double b00, double b10, double b01, double start) {
  double before[kLE + 1], now[kLE + 1], next[kLE + 1];
  now[0] = start;
#pragma unroll
  for (int e = 0; e < kLE; ++e) now[e + 1] = c00 * now[e] + (e > 0 ? e * b10 * now[e > 0 ? e - 1 : 0] : 0.0);
#pragma unroll
  for (int e = 0; e <= kLE; ++e) g[e] = now[e];
#pragma unroll
  for (int f = 0; f < kLF; ++f) {
#pragma unroll
    for (int e = 0; e <= kLE; ++e) {
      double v = d00 * now[e];
      if (f > 0) v += f * b01 * before[e];
      if (e > 0) v += e * b00 * now[e > 0 ? e - 1 : 0];
      next[e] = v;
    }
#pragma unroll
    for (int e = 0; e <= kLE; ++e) {
      before[e] = now[e];
      now[e] = next[e];
      g[(f + 1) * kRow + e] = next[e];
    }
  }
}

struct Group {
  double* areas;    // of the first quartet of the group
  double* area;     // of this lane's quartet
  double* roots;
  int lane, sub, f;  // sub: which quartet; f: which ket component
  bool active;
};

__device__ __forceinline__ Group make_group(double* shared) {
  const int group = threadIdx.x / kGroup, lane = threadIdx.x % kGroup, sub = lane / kF;
  Group g;
  g.lane = lane;
  g.active = sub < kTogether;
  g.sub = g.active ? sub : kTogether - 1;
  g.f = lane % kF;
  g.areas = shared + group * kTogether * kArea;
  g.area = g.areas + g.sub * kArea;
  g.roots = shared + kGroups * kTogether * kArea + (group * kTogether + g.sub) * 2 * kRoots;
  return g;
}

__device__ __forceinline__ void load_row(double* to, const double* from) {
#pragma unroll
  for (int e = 0; e < kRow; e += 2) *reinterpret_cast<double2*>(to + e) = *reinterpret_cast<const double2*>(from + e);
}

// The loops over primitives of the group's quartets: sums += derivatives with gamma[e], h[e] += (e0|f0).
template <bool SUMS, bool VALUES>
__device__ __forceinline__ void primitives(const Group& group, const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const double* table,
                                           double asymptotic, double omega, const double* gamma, double* h, CentreSums& sums) {
  const double *a = pairs.centers + 6 * int64{bra_at}, *c = pairs.centers + 6 * int64{ket_at};
  const int fx = component_x[group.f], fy = component_y[group.f], fz = component_z[group.f];
  const int count = bra.w * ket.w;
  int most = count;
  if (kTogether > 1) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, o));
  }
  for (int n = 0; n < most; ++n) {
    const int at = n < count ? n : 0, i = at / ket.w;
    const int ip = bra.z + i * kTile, iq = ket.z + (at - i * ket.w) * kTile;
    const double p = pairs.p[ip], px = pairs.x()[ip], py = pairs.y()[ip], pz = pairs.z()[ip];
    const PrimitivePair q(pairs, iq);
    const Primitives s(p, px, py, pz, n < count ? pairs.weight()[ip] : 0.0, q);
    double shrink = 1.0;
    if (omega != 0.0) shrink = omega * omega / (omega * omega + p * s.rho_p);
    group_sync();
    for (int r = group.active ? group.f : 2 * kRoots; r < 2 * kRoots; r += kF) {
      const double v = quadrature(s.t * shrink, r, table, asymptotic);
      group.roots[r] = omega == 0.0 ? v : r < kRoots ? v * shrink : v * sqrt(shrink);
    }
    group_sync();
    for (int w = group.active ? group.f : 3 * kRoots; w < 3 * kRoots; w += kF) {
      const int axis = w / kRoots, r = w - axis * kRoots;
      const double u = group.roots[r], pq = axis == 0 ? s.x : axis == 1 ? s.y : s.z, centre = axis == 0 ? px : axis == 1 ? py : pz;
      const double up = s.rho_p * u, uq = s.rho_q * u;
      table_2d(group.area + w * kRootStride, centre - a[axis] - up * pq, (axis == 0 ? q.x : axis == 1 ? q.y : q.z) - c[axis] + uq * pq, 0.5 * u * s.inverse_pq,
               0.5 * pairs.inverse()[ip] * (1.0 - up), 0.5 * pairs.inverse()[iq] * (1.0 - uq), axis == 2 ? group.roots[kRoots + r] * s.prefactor : 1.0);
    }
    group_sync();
    const double *gx = group.area + fx * kRow, *gy = group.area + kRoots * kRootStride + fy * kRow, *gz = group.area + 2 * kRoots * kRootStride + fz * kRow;
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
  }
  group_sync();
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
  const Group group = make_group(shared);
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
