// Structure B: a group of lanes a quartet, one bra pair a block. Rys tables of each axis in shared memory; lane f accumulates (e0|f0) for all e
// and carries the bra to (ab|f0) in registers; after one exchange through shared memory, lane ab carries the ket to (ab|cd) and digests it.
// J of the ket is collected as (f0| and transformed once at the end. Rys quadrature: doi:10.1063/1.432807.
#include "eri_quartets.cuh"

constexpr int kRoots = kTotal / 2 + 1;
constexpr int kLE = LA + LB, kLF = LC + LD;
constexpr int kGroup = kF <= 32 ? 32 : (kF + 31) / 32 * 32;  // lanes of a group
constexpr int kTogether = TOGETHER;                          // quartets of a group at a time
constexpr int kGroups = BLOCK / kGroup;
static_assert(kF <= 32 || kGroups == 1, "groups of several warps have a block of their own");

// Tables g[(axis * kRoots + root) * kRootStride + f * kRow + e]; twice an odd number of doubles a root avoids bank conflicts.
constexpr int kRow = kLE + 1 + (kLE + 1) % 2;
constexpr int kRootStride = (kLF + 1) * kRow + ((kLF + 1) * kRow / 2 % 2 == 0 ? 2 : 0);
constexpr int kTables = 3 * kRoots * kRootStride;

// Rows of the exchange: one for each ab of a slice of CHUNK functions a; what a lane has read it overwrites by its parts of K.
constexpr int kParts = 2 * (kFunctionsC + kFunctionsD);
constexpr int kRowAB = (kF > SETS * kParts ? kF : SETS * kParts) | 1;
constexpr int kSliceAB = CHUNK * kFunctionsB;
constexpr int kSlices = (kFunctionsA + CHUNK - 1) / CHUNK;
constexpr int kExchange = kSliceAB * kRowAB;
constexpr int kArea = ((kTables > kExchange ? kTables : kExchange) + 1) / 2 * 2 + 2;
constexpr int kQuartetDoubles = kArea + 2 * kRoots;

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

struct Group {
  double* areas;    // of the first quartet of the group
  double* area;     // of this lane's quartet
  double* roots;
  int lane, sub, f;  // sub: which quartet; f: which ket component
  bool active;
};

// h[e] += (e0|f0) of the group's quartets.
__device__ __forceinline__ void accumulate_primitives(const Group& group, const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const double* table,
                                                      double asymptotic, double omega, double* h) {
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
#pragma unroll 1
    for (int r = 0; r < kRoots; ++r, gx += kRootStride, gy += kRootStride, gz += kRootStride) {
      double x[kRow], y[kRow], z[kRow];
#pragma unroll
      for (int e = 0; e < kRow; e += 2) {
        *reinterpret_cast<double2*>(x + e) = *reinterpret_cast<const double2*>(gx + e);
        *reinterpret_cast<double2*>(y + e) = *reinterpret_cast<const double2*>(gy + e);
        *reinterpret_cast<double2*>(z + e) = *reinterpret_cast<const double2*>(gz + e);
      }
      products(x, y, z, h);
    }
  }
  group_sync();
}

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

#if SCHWARZ
extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_bound(const int2* shells, const int4* info, const double* centers, const double* prims, int64 capacity, const double* table,
              double asymptotic, double omega, int first, int count, float* bound) {
  extern __shared__ double shared[];
  const Group group = make_group(shared);
  const Pairs pairs = {shells, info, centers, prims, capacity, nullptr};
  const int begin = (blockIdx.x * kGroups + threadIdx.x / kGroup) * kTogether;
  if (begin >= count) return;  // whole groups
  const int at = first + min(begin + group.sub, count - 1);
  const int4 pair = info[at];
  const double* a = centers + 6 * int64{at};
  double h[kE];
#pragma unroll
  for (int e = 0; e < kE; ++e) h[e] = 0.0;
  accumulate_primitives(group, pairs, at, pair, at, pair, table, asymptotic, omega, h);
  double v[kAB];
  HRR_BRA<1, 1, double, double>(h, v, a[3], a[4], a[5]);
  double* largest = shared + kGroups * kTogether * kQuartetDoubles + (threadIdx.x / kGroup) * kTogether * kAB;
#pragma unroll 1
  for (int slice = 0; slice < kSlices; ++slice) {
    group_sync();
    if (group.active) {
#pragma unroll
      for (int n = 0; n < kSliceAB; ++n)
        if (slice * kSliceAB + n < kAB) group.area[n * kRowAB + group.f] = v[slice * kSliceAB + n];
    }
    group_sync();
    for (int w = group.lane; w < kTogether * kSliceAB; w += kGroup) {
      const int sub = w / kSliceAB, n = w - sub * kSliceAB, ab = slice * kSliceAB + n;
      if (ab >= kAB) continue;
      const double* c = centers + 6 * int64{first + min(begin + sub, count - 1)};
      double cd[kCD];
      HRR_KET<1, 1, double, double>(group.areas + sub * kArea + n * kRowAB, cd, c[3], c[4], c[5]);
      double diagonal = 0.0;
#pragma unroll
      for (int m = 0; m < kCD; ++m)
        if (m == ab) diagonal = fabs(cd[m]);
      largest[sub * kAB + ab] = diagonal;
    }
  }
  group_sync();
  for (int sub = group.lane; sub < kTogether && begin + sub < count; sub += kGroup) {
    double most = 0.0;
    for (int n = 0; n < kAB; ++n) most = fmax(most, largest[sub * kAB + n]);
    bound[first + begin + sub] = most > 0.0 && info[first + begin + sub].w > 0 ? static_cast<float>(0.5 * log(most)) : kNothing;
  }
}
#else

// Partial sums of K of one row ab: over d with the density at (j, l), over c at (j, k), and the same for i.
__device__ __forceinline__ void exchange_parts(const double* v, const double* d, int nao, int i, int j, int k, int l, double weight, double* out) {
  constexpr int C = kFunctionsC, D = kFunctionsD;
  double over_d[D], over_c[C];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const double* density = d + int64{row == 0 ? j : i} * nao;
    double* part = out + row * (C + D);
#pragma unroll
    for (int m = 0; m < D; ++m) over_d[m] = weight * density[l + m];
#pragma unroll
    for (int m = 0; m < C; ++m) over_c[m] = weight * density[k + m];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      double sum = 0.0;
#pragma unroll
      for (int m = 0; m < D; ++m) sum += v[c * D + m] * over_d[m];
      part[c] = sum;
    }
#pragma unroll
    for (int m = 0; m < D; ++m) {
      double sum = 0.0;
#pragma unroll
      for (int c = 0; c < C; ++c) sum += v[c * D + m] * over_c[c];
      part[C + m] = sum;
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_lanes(const int2* shells, const int4* info, const double* centers, const double* prims, int64 capacity, const float* bound,
              const int* bra_groups, const int* ket_groups, int ngroup, const double* density, const float* density_bound, const float* top,
              double* j, double* k, const double* table, double asymptotic, double omega, double threshold, int nao, int nshell,
              int bra_first, int bra_step, const int* part, int same, double* j_ket, int ket_first, int ket_count) {
  extern __shared__ double shared[];
  __shared__ int slots[BLOCK / 32][64];
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup]) return;
  const Group group = make_group(shared);
  const int which = threadIdx.x / kGroup;
  const Pairs pairs = {shells, info, centers, prims, capacity, bound};
  const Screen screen = {bound, shells, density_bound, nshell, top[0] + kCoulombLog, static_cast<float>(threshold)};
  const int4 bra = info[bra_at];
  const int2 bra_shells = shells[bra_at];
  const double* a = centers + 6 * int64{bra_at};
  const int64 square = int64{nao} * nao;
#if COULOMB
  double* j_bra = shared + kGroups * kTogether * kQuartetDoubles + which * SETS * kAB * kTogether;
  for (int w = group.lane; w < SETS * kAB * kTogether; w += kGroup) j_bra[w] = 0.0;
#endif
  KetQueue queue{slots[threadIdx.x / 32]};
  while (true) {
    queue.fill<kTogether>(screen, ket_groups, ngroup, same ? bra_at + 1 : 0x7fffffff, (blockIdx.y * kGroups + which) * 32,
                          kGroups * 32 * gridDim.y, bound[bra_at], bra_shells);
    if (queue.count == 0) break;
    const int taken = min(queue.count, kTogether);
    queue.count -= taken;
    const int* kets = queue.slots + queue.count;
    const bool live = group.sub < taken;
    const int ket_at = kets[live ? group.sub : 0];
    const int4 ket = info[ket_at];
    double h[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) h[e] = 0.0;
    accumulate_primitives(group, pairs, bra_at, bra, ket_at, ket, table, asymptotic, omega, h);
    double v[kAB];
    HRR_BRA<1, 1, double, double>(h, v, a[3], a[4], a[5]);
#if COULOMB
    if (group.active && live) {
      const double weight = 2.0 * multiplicity(bra, ket, same);
#pragma unroll
      for (int s = 0; s < SETS; ++s) {
        const double* d = density + s * square + int64{bra.x} * nao + bra.y;
        double sum = 0.0;
#pragma unroll
        for (int n = 0; n < kAB; ++n) sum += v[n] * d[int64{n / kFunctionsB} * nao + n % kFunctionsB];
        add(j_ket + (int64{s} * ket_count + ket_at - ket_first) * kF + group.f, weight * sum);
      }
    }
#endif
#pragma unroll 1
    for (int slice = 0; slice < kSlices; ++slice) {
      if (slice > 0) group_sync();
      if (group.active) {
#pragma unroll
        for (int n = 0; n < kSliceAB; ++n)
          if (kSlices == 1 || slice * kSliceAB + n < kAB) group.area[n * kRowAB + group.f] = v[slice * kSliceAB + n];
      }
      group_sync();
#pragma unroll 1
      for (int w = group.lane; w < kTogether * kSliceAB; w += kGroup) {
        const int sub = w / kSliceAB, n = w - sub * kSliceAB, ab = slice * kSliceAB + n;
        if (sub >= taken || (kSlices > 1 && ab >= kAB)) continue;
        const int4 other = info[kets[sub]];
        const double* c = centers + 6 * int64{kets[sub]};
        const double weight = multiplicity(bra, other, same);
        double* row = group.areas + sub * kArea + n * kRowAB;
        double cd[kCD];
        HRR_KET<1, 1, double, double>(row, cd, c[3], c[4], c[5]);
#pragma unroll
        for (int s = 0; s < SETS; ++s) {
          const double* d = density + s * square;
#if COULOMB
          double sum = 0.0;
#pragma unroll
          for (int m = 0; m < kCD; ++m) sum += cd[m] * d[int64{other.x + m / kFunctionsD} * nao + other.y + m % kFunctionsD];
          j_bra[(s * kTogether + sub) * kAB + ab] += 2.0 * weight * sum;
#endif
#if EXCHANGE
          exchange_parts(cd, d, nao, bra.x + ab / kFunctionsB, bra.y + ab % kFunctionsB, other.x, other.y, weight, row + s * kParts);
#endif
        }
      }
#if EXCHANGE
      group_sync();
      // rows of i: (a, c or d) summed over b; rows of j: (b, c or d) summed over the a of this slice
      constexpr int kHalf = kFunctionsC + kFunctionsD, kItems = (CHUNK + kFunctionsB) * kHalf;
      for (int w = group.lane; w < SETS * taken * kItems; w += kGroup) {
        const int s = w / (taken * kItems), sub = w / kItems - s * taken, item = w % kItems, row = item / kHalf, x = item % kHalf;
        const int a0 = slice * CHUNK, rows_a = min(CHUNK, kFunctionsA - a0);
        const double* parts = group.areas + sub * kArea + s * kParts + x;
        const int4 other = info[kets[sub]];
        const bool of_i = row < CHUNK;
        if (of_i && row >= rows_a) continue;
        double sum = 0.0;
        if (of_i) {
#pragma unroll
          for (int b = 0; b < kFunctionsB; ++b) sum += parts[(row * kFunctionsB + b) * kRowAB];
        } else {
          for (int n = 0; n < rows_a; ++n) sum += parts[(n * kFunctionsB + row - CHUNK) * kRowAB + kHalf];
        }
        const int first = of_i ? bra.x : bra.y, size = of_i ? kFunctionsA : kFunctionsB, at = of_i ? a0 + row : row - CHUNK;
        const bool of_k = x < kFunctionsC;
        const int64 place = of_k ? int64{other.x} * size + at * kFunctionsC + x : int64{other.y} * size + at * kFunctionsD + x - kFunctionsC;
        add(k + s * square + int64{first} * nao + place, sum);
      }
#endif
    }
    group_sync();
  }
#if COULOMB
  group_sync();
  for (int w = group.lane; w < SETS * kAB; w += kGroup) {
    const int s = w / kAB, n = w - s * kAB;
    double sum = 0.0;
    for (int sub = 0; sub < kTogether; ++sub) sum += j_bra[(s * kTogether + sub) * kAB + n];
    if (sum != 0.0) add(j + s * square + int64{bra.x} * nao + bra.y * kFunctionsA + n, sum);
  }
#endif
}
#endif
