// What the two-electron kernels share: shell pairs in device memory, the queue of ket pairs that survive screening, and sums.
//
// A block (or more, by grid y) takes one bra pair and walks over the ket pairs, which are sorted by primitive count and falling Schwarz
// bound. Each warp queues the kets whose bound with the densities exceeds the threshold, so that all lanes stay at work.
#pragma once

// Quartets are computed in this precision; sums over them are in double precision. In single precision primitives lie relative to the first centre of their pair.
#ifndef SINGLE
#define SINGLE 0
#endif
#if SINGLE
typedef float real;
typedef float2 real2;
#else
typedef double real;
typedef double2 real2;
#endif
constexpr bool kSingle = SINGLE;

// Which quartets a kernel computes: all, those of one primitive in each pair, or all others.
#define CONTRACTED 1
#define UNCONTRACTED 2
#ifndef QUARTETS
#define QUARTETS 0
#endif

// Whether the operator is erfc(omega r) / r.
#ifndef SHORT
#define SHORT 0
#endif

#include "eri_class.h"
// Whether the recurrence of the ket runs on the tables of each axis (lane tier): then the Cartesian (cd| are there in place of (f0|.
#ifndef KET_AXES
#define KET_AXES 0
#endif
#if SHORT
#include "eri_short.cuh"
#define REACH_PARAMETERS , const float4 *places, const float2 *charges
#define REACH , Reach(places, charges, bra_at, omega)
#else
#define REACH_PARAMETERS
#define REACH
#endif

typedef long long int64;
typedef unsigned long long uint64;

constexpr int kFunctionsA = functions(LA), kFunctionsB = functions(LB), kFunctionsC = functions(LC), kFunctionsD = functions(LD);
constexpr int kAB = kFunctionsA * kFunctionsB, kCD = kFunctionsC * kFunctionsD;
constexpr int kE = levels(LA, LB), kF = KET_AXES ? levels(LC, 0) * levels(LD, 0) : levels(LC, LD);
constexpr int kTotal = LA + LB + LC + LD;
constexpr real kHalf = 0.5;
constexpr int kTile = 32;             // pairs whose primitives are interleaved
constexpr float kNothing = -1e30f;
constexpr float kCoulombLog = COULOMB ? 1.38629436f : 0.0f;  // a quartet meets each block of the density four times in J
constexpr double kTwoPi52 = 34.986836655249725693;  // 2 pi^(5/2)
constexpr double kFixedPoint = 70368744177664.0;    // 2^46: range 1.3e5, resolution 1.4e-14
constexpr double kIntermediate = 0.0625;            // sums of (f0| may be 16 times larger than those of (cd|

// Shell pairs of all classes; `first` functions and primitives are absolute.
struct Pairs {
  const int2* shells;
  const int4* info;  // first functions of both shells, first primitive, number of primitives
  const double* centers;
  const real* p;
  int64 capacity;
  const float* bound;

  __device__ __forceinline__ const real* x() const { return p + capacity; }
  __device__ __forceinline__ const real* y() const { return p + 2 * capacity; }
  __device__ __forceinline__ const real* z() const { return p + 3 * capacity; }
  __device__ __forceinline__ const real* weight() const { return p + 4 * capacity; }
  __device__ __forceinline__ const real* inverse() const { return p + 5 * capacity; }
};

// Screening by the largest density elements of shell blocks, all in natural logarithms.
struct Screen {
  const float* bound;
  const int2* shells;
  const float* density;
  int nshell;
  float top, threshold;
  float limit;  // single precision only: quartets above it are left to kernels of double precision
#if SHORT
  Reach reach;
#endif
};

// Sums into J and K: plain additions, or order-independent ones in fixed point.
__device__ __forceinline__ void add(double* target, double value) {
#if DETERMINISTIC
  atomicAdd(reinterpret_cast<uint64*>(target), static_cast<uint64>(__double2ll_rn(value * kFixedPoint)));
#else
  atomicAdd(target, value);
#endif
}
__device__ __forceinline__ double stored(const double* source) {
#if DETERMINISTIC
  return static_cast<double>(*reinterpret_cast<const int64*>(source)) / kFixedPoint;
#else
  return *source;
#endif
}

// Weight of a quartet in sums over unique ones.
__device__ __forceinline__ double multiplicity(int4 bra, int4 ket, bool same) {
  double w = bra.x == bra.y ? 0.5 : 1.0;
  if (ket.x == ket.y) w *= 0.5;
  return same && bra.x == ket.x && bra.y == ket.y ? 0.5 * w : w;
}

// Restricts the kets of a bra to those of the quartets that this kernel computes; false: there are none. Kets of one primitive are
// the last group.
__device__ __forceinline__ bool kets_of(int4 bra, const int*& groups, int& ngroup) {
  if (QUARTETS == CONTRACTED && bra.w == 1) --ngroup;
  if (QUARTETS == UNCONTRACTED) groups += ngroup - 1, ngroup = 1;
  return QUARTETS != UNCONTRACTED || bra.w == 1;
}

// Kets of one bra pair, 32 candidates at a time and `stride` apart; NEED are wanted at once.
struct KetQueue {
  int* slots;  // 64 a warp
  int group = 0, at = -1, count = 0;

  template <int NEED>
  __device__ __forceinline__ void fill(const Screen& s, const int* groups, int ngroup, int last, int start, int stride, float bra_bound, int2 bra) {
    const int lane = threadIdx.x & 31;
    const float *row_i = s.density + int64{bra.x} * s.nshell, *row_j = s.density + int64{bra.y} * s.nshell;
    while (count < NEED && group < ngroup) {
      if (at < 0) at = groups[group] + start;
      const int end = min(groups[group + 1], last);
      const int ket = at + lane;
      const bool inside = ket < end;
      const float pair = inside ? bra_bound + s.bound[ket] : kNothing;
      if (at >= end || !__any_sync(0xffffffffu, pair + s.top > s.threshold)) {
        ++group;
        at = -1;
        continue;
      }
      bool wanted = false;
      if (inside) {
        const int2 k = s.shells[ket];
        float d = kNothing;
#if COULOMB
        d = fmaxf(row_i[bra.y], s.density[int64{k.x} * s.nshell + k.y]) + kCoulombLog;
#endif
#if EXCHANGE
        d = fmaxf(d, fmaxf(fmaxf(row_i[k.x], row_i[k.y]), fmaxf(row_j[k.x], row_j[k.y])));
#endif
        wanted = pair + d > s.threshold;
        if (kSingle) wanted = wanted && !(pair + d > s.limit);
#if SHORT
        wanted = wanted && s.reach.bound(ket) + d > s.threshold;
#endif
      }
      const unsigned chosen = __ballot_sync(0xffffffffu, wanted);
      if (wanted) slots[count + __popc(chosen & ((1u << lane) - 1))] = ket;
      count += __popc(chosen);
      at += stride;
      __syncwarp();
    }
  }
};

// Places of primitives relative to their own first centre, and those of the bra as seen from where places of the ket count.
__device__ __forceinline__ real relative(real place, double centre) { return kSingle ? place : static_cast<real>(place - centre); }
__device__ __forceinline__ real seen(real place, double a, double c) { return kSingle ? place + static_cast<real>(a - c) : place; }

// A product of two primitives.
struct PrimitivePair {
  real p, x, y, z, weight;

  __device__ __forceinline__ PrimitivePair(const Pairs& pairs, int at)
      : p(pairs.p[at]), x(pairs.x()[at]), y(pairs.y()[at]), z(pairs.z()[at]), weight(static_cast<real>(kTwoPi52) * pairs.weight()[at]) {}
};

// One primitive quartet up to the Boys function or the quadrature.
struct Primitives {
  real x, y, z, rho_p, rho_q, inverse_pq, t, prefactor;

  __device__ __forceinline__ Primitives(real p, real px, real py, real pz, real weight, const PrimitivePair& ket) {
    const real pq = p + ket.p, r = rsqrt(pq);
    inverse_pq = r * r;
    rho_p = ket.p * inverse_pq;
    rho_q = p * inverse_pq;
    x = px - ket.x;
    y = py - ket.y;
    z = pz - ket.z;
    t = p * rho_p * (x * x + y * y + z * z);
    prefactor = weight * ket.weight * r;
  }
};
