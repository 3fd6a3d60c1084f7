// Structure B: a group of lanes a quartet, one bra pair a block. Rys tables of each axis in shared memory; lane f accumulates (e0|f0) for all e
// and carries the bra to (ab|f0) in registers; after one exchange through shared memory, lane ab carries the ket to (ab|cd) and digests it.
// J of the ket is collected as (f0| and transformed once at the end.
#include "eri_lanes.cuh"

// Rows of the exchange: one for each ab of a slice of CHUNK functions a; what a lane has read it overwrites by its parts of K.
constexpr int kParts = 2 * (kFunctionsC + kFunctionsD);
constexpr int kRowAB = (kF > SETS * kParts ? kF : SETS * kParts) | 1;
constexpr int kSliceAB = CHUNK * kFunctionsB;
constexpr int kSlices = (kFunctionsA + CHUNK - 1) / CHUNK;
constexpr int kExchange = kSliceAB * kRowAB;
constexpr int kArea = ((kTables > kExchange ? kTables : kExchange) + 1) / 2 * 2 + 2;
constexpr int kQuartetNumbers = kArea + 2 * kRoots;

// Where sums in double precision begin, after what belongs to the quartets.
__device__ __forceinline__ double* sums_in(double* shared) {
  return reinterpret_cast<double*>(reinterpret_cast<real*>(shared) + kGroups * kTogether * kQuartetNumbers);
}

// h[e] += (e0|f0) of the group's quartets.
__device__ __forceinline__ void accumulate_primitives(const Group& group, const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const double* table,
                                                      double asymptotic, real omega, real* h) {
  for_tables(group, pairs, bra_at, bra, ket_at, ket, table, asymptotic, omega, [&](int, int, const real* gx, const real* gy, const real* gz) {
#pragma unroll 1
    for (int r = 0; r < kRoots; ++r, gx += kRootStride, gy += kRootStride, gz += kRootStride) {
      real x[kRow], y[kRow], z[kRow];
      load_row(x, gx);
      load_row(y, gy);
      load_row(z, gz);
      products(x, y, z, h);
    }
  });
}

#if SCHWARZ
extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_bound(const int2* shells, const int4* info, const double* centers, const real* prims, int64 capacity, const double* table,
              double asymptotic, double omega, int first, int count, float* bound) {
  extern __shared__ double shared[];
  const Group group = make_group<kArea>(reinterpret_cast<real*>(shared));
  const Pairs pairs = {shells, info, centers, prims, capacity, nullptr};
  const int begin = (blockIdx.x * kGroups + threadIdx.x / kGroup) * kTogether;
  if (begin >= count) return;  // whole groups
  const int at = first + min(begin + group.sub, count - 1);
  const int4 pair = info[at];
  const double* a = centers + 6 * int64{at};
  real h[kE];
#pragma unroll
  for (int e = 0; e < kE; ++e) h[e] = 0.0;
  accumulate_primitives(group, pairs, at, pair, at, pair, table, asymptotic, omega, h);
  real v[kAB];
  HRR_BRA<1, 1, real, real>(h, v, a[3], a[4], a[5]);
  double* largest = sums_in(shared) + (threadIdx.x / kGroup) * kTogether * kAB;
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
      real cd[kCD];
      HRR_KET<1, 1, real, real>(group.areas + sub * kArea + n * kRowAB, cd, c[3], c[4], c[5]);
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
__device__ __forceinline__ void exchange_parts(const real* v, const real* d, int nao, int i, int j, int k, int l, real weight, real* out) {
  constexpr int C = kFunctionsC, D = kFunctionsD;
  real over_d[D], over_c[C];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const real* density = d + int64{row == 0 ? j : i} * nao;
    real* part = out + row * (C + D);
#pragma unroll
    for (int m = 0; m < D; ++m) over_d[m] = weight * density[l + m];
#pragma unroll
    for (int m = 0; m < C; ++m) over_c[m] = weight * density[k + m];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      real sum = 0.0;
#pragma unroll
      for (int m = 0; m < D; ++m) sum += v[c * D + m] * over_d[m];
      part[c] = sum;
    }
#pragma unroll
    for (int m = 0; m < D; ++m) {
      real sum = 0.0;
#pragma unroll
      for (int c = 0; c < C; ++c) sum += v[c * D + m] * over_c[c];
      part[C + m] = sum;
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_lanes(const int2* shells, const int4* info, const double* centers, const real* prims, int64 capacity, const float* bound,
              const int* bra_groups, const int* ket_groups, int ngroup, const real* density, const float* density_bound, const float* top,
              double* j, double* k, const double* table, double asymptotic, double omega, double threshold, int nao, int nshell,
              int bra_first, int bra_step, const int* part, int same, double* j_ket, int ket_first, int ket_count, double limit REACH_PARAMETERS) {
  extern __shared__ double shared[];
  __shared__ int slots[BLOCK / 32][64];
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup]) return;
  const Group group = make_group<kArea>(reinterpret_cast<real*>(shared));
  const int which = threadIdx.x / kGroup;
  const Pairs pairs = {shells, info, centers, prims, capacity, bound};
  const Screen screen = {bound, shells, density_bound, nshell, top[0] + kCoulombLog, static_cast<float>(threshold), static_cast<float>(limit) REACH};
  const int4 bra = info[bra_at];
  if (!kets_of(bra, ket_groups, ngroup)) return;
  const int2 bra_shells = shells[bra_at];
  const double* a = centers + 6 * int64{bra_at};
  const int64 square = int64{nao} * nao;
#if COULOMB
  double* j_bra = sums_in(shared) + which * SETS * kAB * kTogether;
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
    real h[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) h[e] = 0.0;
    accumulate_primitives(group, pairs, bra_at, bra, ket_at, ket, table, asymptotic, omega, h);
    real v[kAB];
    HRR_BRA<1, 1, real, real>(h, v, a[3], a[4], a[5]);
#if COULOMB
    if (group.active && live) {
      const real weight = 2.0 * multiplicity(bra, ket, same);
#pragma unroll
      for (int s = 0; s < SETS; ++s) {
        const real* d = density + s * square + int64{bra.x} * nao + bra.y;
        real sum = 0.0;
#pragma unroll
        for (int n = 0; n < kAB; ++n) sum += v[n] * d[int64{n / kFunctionsB} * nao + n % kFunctionsB];
        add(j_ket + (int64{s} * ket_count + ket_at - ket_first) * kF + group.f, kIntermediate * weight * sum);
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
        const real weight = multiplicity(bra, other, same);
        real* row = group.areas + sub * kArea + n * kRowAB;
        real cd[kCD];
        HRR_KET<1, 1, real, real>(row, cd, c[3], c[4], c[5]);
#pragma unroll
        for (int s = 0; s < SETS; ++s) {
          const real* d = density + s * square;
#if COULOMB
          real sum = 0.0;
#pragma unroll
          for (int m = 0; m < kCD; ++m) sum += cd[m] * d[int64{other.x + m / kFunctionsD} * nao + other.y + m % kFunctionsD];
          j_bra[(s * kTogether + sub) * kAB + ab] += real(2.0) * weight * sum;
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
        const real* parts = group.areas + sub * kArea + s * kParts + x;
        const int4 other = info[kets[sub]];
        const bool of_i = row < CHUNK;
        if (of_i && row >= rows_a) continue;
        real sum = 0.0;
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
