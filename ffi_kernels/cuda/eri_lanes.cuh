// Structure B: groups of lanes, and Rys tables of each axis in shared memory. Rys quadrature: doi:10.1063/1.432807.
#pragma once
#include "eri_quartets.cuh"

constexpr int kRoots = (kTotal + DERIVATIVE) / 2 + 1;
constexpr int kOperators = SHORT ? 2 : 1;  // erfc(omega r) / r is 1 / r less erf(omega r) / r
constexpr int kLE = LA + LB + DERIVATIVE, kLF = LC + LD;
constexpr int kGroup = kF <= 32 ? 32 : (kF + 31) / 32 * 32;  // lanes of a group
constexpr int kTogether = TOGETHER;                          // quartets of a group at a time
constexpr int kGroups = BLOCK / kGroup;
static_assert(kF <= 32 || kGroups == 1, "groups of several warps have a block of their own");

// Tables g[(axis * kRoots + root) * kRootStride + f * kRow + e], or with c * (LD + 1) + d in place of f; twice an odd number of doubles a root avoids bank conflicts.
constexpr int kRow = kLE + 1 + (kLE + 1) % 2;
constexpr int kRows = KET_AXES ? (LC + 1) * (LD + 1) : kLF + 1;
constexpr int kRootStride = kRows * kRow + (kRows * kRow / 2 % 2 == 0 ? 2 : 0);
constexpr int kTables = 3 * kRoots * kRootStride;

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
    const double2 c6 = c[6];
    double v = fma(c6.y, x, c6.x);
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
__device__ __forceinline__ void table_2d(real* g, real c00, real d00, real b00, real b10, real b01, real start) {
  real before[kLE + 1], now[kLE + 1], next[kLE + 1];
  now[0] = start;
#pragma unroll
  for (int e = 0; e < kLE; ++e) now[e + 1] = c00 * now[e] + (e > 0 ? e * b10 * now[e > 0 ? e - 1 : 0] : real(0.0));
#pragma unroll
  for (int e = 0; e <= kLE; ++e) g[e] = now[e];
#pragma unroll
  for (int f = 0; f < kLF; ++f) {
#pragma unroll
    for (int e = 0; e <= kLE; ++e) {
      real v = d00 * now[e];
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

// Column e of a table carried from (f, 0) to (c, d).
__device__ __forceinline__ void carry_ket(real* g, real cd) {
  real level[kLF + 1];
#pragma unroll
  for (int f = 0; f <= kLF; ++f) level[f] = g[f * kRow];
#pragma unroll
  for (int d = 0; d <= LD; ++d) {
#pragma unroll
    for (int c = 0; c <= LC; ++c) g[(c * (LD + 1) + d) * kRow] = level[c];
#pragma unroll
    for (int f = 0; f < kLF - d; ++f) level[f] = level[f + 1] + cd * level[f];
  }
}

// kRow entries of a table.
__device__ __forceinline__ void load_row(real* to, const real* from) {
#pragma unroll
  for (int e = 0; e < kRow; e += 2) *reinterpret_cast<real2*>(to + e) = *reinterpret_cast<const real2*>(from + e);
}

// What a lane works on; kArea numbers of shared memory belong to each quartet, and after all areas come roots and weights.
struct Group {
  real* areas;      // of the first quartet of the group
  real* area;       // of this lane's quartet
  real* roots;
  int lane, sub, f;  // sub: which quartet; f: which ket component
  bool active;
};

template <int kArea>
__device__ __forceinline__ Group make_group(real* shared) {
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

// The loops over primitives of the group's quartets: once their tables are there, body(ip, iq, gx, gy, gz) with the numbers of the
// primitives and the rows of the lane's ket component in the tables of the first root.
template <class Body>
__device__ __forceinline__ void for_tables(const Group& group, const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const double* table,
                                           double asymptotic, real omega, Body&& body) {
  const double *a = pairs.centers + 6 * int64{bra_at}, *c = pairs.centers + 6 * int64{ket_at};
  const int fx = component_x[group.f], fy = component_y[group.f], fz = component_z[group.f];
  const int count = bra.w * ket.w;
  int most = count;
  if (kTogether > 1) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, o));
  }
  for (int step = 0; step < kOperators * most; ++step) {
    const int n = step / kOperators, at = n < count ? n : 0, i = at / ket.w;
    const bool attenuated = SHORT ? step % kOperators == 1 : omega != real(0.0);
    const int ip = bra.z + i * kTile, iq = ket.z + (at - i * ket.w) * kTile;
    const real p = pairs.p[ip], px = pairs.x()[ip], py = pairs.y()[ip], pz = pairs.z()[ip];
    const PrimitivePair q(pairs, iq);
    real weight = n < count ? pairs.weight()[ip] : real(0.0);
    if (SHORT && attenuated) weight = -weight;
    const Primitives s(p, seen(px, a[0], c[0]), seen(py, a[1], c[1]), seen(pz, a[2], c[2]), weight, q);
    real shrink = 1.0;
    if (attenuated) shrink = omega * omega / (omega * omega + p * s.rho_p);
    group_sync();
    for (int r = group.active ? group.f : 2 * kRoots; r < 2 * kRoots; r += kF) {
      const real v = quadrature(s.t * shrink, r, table, asymptotic);
      group.roots[r] = omega == real(0.0) ? v : r < kRoots ? v * shrink : v * sqrt(shrink);
    }
    group_sync();
    for (int w = group.active ? group.f : 3 * kRoots; w < 3 * kRoots; w += kF) {
      const int axis = w / kRoots, r = w - axis * kRoots;
      const real u = group.roots[r], pq = axis == 0 ? s.x : axis == 1 ? s.y : s.z, centre = axis == 0 ? px : axis == 1 ? py : pz;
      const real up = s.rho_p * u, uq = s.rho_q * u;
      table_2d(group.area + w * kRootStride, relative(centre, a[axis]) - up * pq, relative(axis == 0 ? q.x : axis == 1 ? q.y : q.z, c[axis]) + uq * pq,
               kHalf * u * s.inverse_pq, kHalf * pairs.inverse()[ip] * (real(1.0) - up), kHalf * pairs.inverse()[iq] * (real(1.0) - uq),
               axis == 2 ? group.roots[kRoots + r] * s.prefactor : real(1.0));
    }
    group_sync();
#if KET_AXES
    for (int w = group.active ? group.f : 3 * kRoots * (kLE + 1); w < 3 * kRoots * (kLE + 1); w += kF) {
      const int which = w / (kLE + 1), e = w - which * (kLE + 1);
      carry_ket(group.area + which * kRootStride + e, c[3 + which / kRoots]);
    }
    group_sync();
#endif
    const real *gx = group.area + fx * kRow, *gy = group.area + kRoots * kRootStride + fy * kRow;
    const real* gz = group.area + 2 * kRoots * kRootStride + fz * kRow;
    body(ip, iq, gx, gy, gz);
  }
  group_sync();
}
