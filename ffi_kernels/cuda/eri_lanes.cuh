// Structure B: groups of lanes, and Rys tables of each axis in shared memory. Rys quadrature: doi:10.1063/1.432807.
#pragma once
#include "eri_quartets.cuh"

constexpr int kRoots = (kTotal + DERIVATIVE) / 2 + 1;
constexpr int kLE = LA + LB + DERIVATIVE, kLF = LC + LD;
constexpr int kGroup = kF <= 32 ? 32 : (kF + 31) / 32 * 32;  // lanes of a group
constexpr int kTogether = TOGETHER;                          // quartets of a group at a time
constexpr int kGroups = BLOCK / kGroup;
static_assert(kF <= 32 || kGroups == 1, "groups of several warps have a block of their own");

// Tables g[(axis * kRoots + root) * kRootStride + f * kRow + e]; twice an odd number of doubles a root avoids bank conflicts.
constexpr int kRow = kLE + 1 + (kLE + 1) % 2;
constexpr int kRootStride = (kLF + 1) * kRow + ((kLF + 1) * kRow / 2 % 2 == 0 ? 2 : 0);
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

// kRow entries of a table.
__device__ __forceinline__ void load_row(double* to, const double* from) {
#pragma unroll
  for (int e = 0; e < kRow; e += 2) *reinterpret_cast<double2*>(to + e) = *reinterpret_cast<const double2*>(from + e);
}

// What a lane works on; kArea doubles of shared memory belong to each quartet, and after all areas come roots and weights.
struct Group {
  double* areas;    // of the first quartet of the group
  double* area;     // of this lane's quartet
  double* roots;
  int lane, sub, f;  // sub: which quartet; f: which ket component
  bool active;
};

template <int kArea>
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
