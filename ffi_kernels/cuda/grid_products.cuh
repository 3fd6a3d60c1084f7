// Products of steps of candidates, over partners that matter.
#pragma once
#include "grid_patch.cuh"

// Partners whose u is less than SINGLE times that of those left out, and than SINGLE_MOST, are differentiated in single precision, which
// is off by 1e-6 of SMALL_SLOPE times SINGLE^7 at most.
#define SINGLE 8.0f
#define SINGLE_MOST 0.5f

// Calls visit(first partner, votes, votes for single precision, which of the partners any candidate has) for 8 partners at a time, with
// their pairs in `stage` and their distances in `lengths`: of the nearest partners, of all others, or of all. Bit 8 (k % 4) + l of votes
// k / 4 says whether candidate k has partner l: pairs with u = 1 + nu below `cut` all over the ball, of candidate k in lane k, are left
// out. For products, bit l of votes k / 4 says instead whether any of these four candidates has partner l; what is staged for other pairs
// makes the step 1.
enum Partners { NEAREST, DISTANT, ALL };
__device__ __forceinline__ unsigned folded(unsigned votes) {
  votes |= votes >> 16;
  return (votes | votes >> 8) & 255u;
}
template <class Visit>
__device__ __forceinline__ void sweep(const Patch& w, unsigned live, float cut, Partners which, const Visit& visit) {
  const int lane = w.lane, count = which == NEAREST ? w.nears : w.natm;
  double2* stage = w.stage();
  const float* off = w.off();
  const int* atoms = w.atoms();
  const auto partner = [&](int index) { return which == NEAREST ? w.near()[index] : which == ALL || w.off()[index] > 0.0f ? index : -1; };
  double2 loaded[BATCH / 4];
  int j = -1;
  const auto load = [&](int index) {
    j = index < count ? partner(index) : -1;
#pragma unroll
    for (int round = 0; round < BATCH / 4; round++) {
      const int k = 4 * round + (lane >> 3);
      loaded[round] = {0.0, -1.0};
      if ((live >> k) & 1 && j >= 0) loaded[round] = __ldg(w.pairs + static_cast<long long>(atoms[k]) * w.natm + j);
    }
  };
  load(lane & 7);
#pragma unroll 1
  for (int base = 0; base < count; base += STAGE) {
    unsigned votes[BATCH / 4], single[BATCH / 4], met_by = 0;  // met_by: partners that any candidate has
    const float off_j = fabsf(off[j < 0 ? 0 : j]);
    __syncwarp();  // pairs of the last round have been read
#pragma unroll
    for (int round = 0; round < BATCH / 4; round++) {
      const int k = 4 * round + (lane >> 3);
      bool met = loaded[round].x > 0.0, roughly = false;
      if (which != NEAREST) {
        const float limit = __shfl_sync(0xffffffffu, cut, k);
        const float inverse = static_cast<float>(loaded[round].x), shift = static_cast<float>(loaded[round].y);
        const float u = largest_of(met ? fabsf(off[atoms[k]]) : 1.0f, off_j, inverse, w.radius) * (1.0f + 2.0f * fmaxf(shift, 0.0f));
        // Derivatives have another factor of 1 / |R_i - R_j|.
        const float least = which == ALL && !SCHEME ? limit * power(inverse, -1.0f / 7.0f) : limit;
        met = met && !(inverse < 1.0f && u < least);
        roughly = which == ALL && met && u < fminf(SINGLE * least, SINGLE_MOST);
      }
      if (which != ALL && !met && loaded[round].x > 0.0) loaded[round] = {0.0, -1.0};
      stage[STAGE * k + (lane & 7)] = loaded[round];
      votes[round] = __ballot_sync(0xffffffffu, loaded[round].x > 0.0 ? met : loaded[round].y != -1.0);
      met_by |= votes[round];
      if (which == ALL) {
        single[round] = SCHEME ? 0u : __ballot_sync(0xffffffffu, roughly);
        votes[round] &= ~single[round];
      } else {
        votes[round] = folded(votes[round]);
      }
    }
    __syncwarp();
    met_by = folded(met_by);
    double* lengths = w.lengths();
#pragma unroll 1
    for (int l = 0; l < STAGE; l += 4) {
      if (!((met_by >> l) & 15)) continue;
#pragma unroll
      for (int u = l; u < l + 4; u++) lengths[32 * u] = length_of(arm_of(w, __shfl_sync(0xffffffffu, max(j, 0), u)));
    }
    load(base + STAGE + (lane & 7));  // ahead
    visit(base, votes, single, met_by);
  }
}

// The votes for candidate k and its neighbours.
__device__ __forceinline__ unsigned votes_of(const unsigned* votes, int k) {
  return k & 8 ? k & 4 ? votes[3] : votes[2] : k & 4 ? votes[1] : votes[0];
}

// The first bit of the mask, which loses it; `other` where there is none.
__device__ __forceinline__ int next_of(unsigned& mask, int other) {
  const int k = mask ? __ffs(static_cast<int>(mask)) - 1 : other;
  mask &= mask - 1;
  return k;
}

// Multiplies N products, of candidates that follow each other at distances r, with their steps for 4 / N partners.
template <int N>
__device__ __forceinline__ void times_steps(const double2* pairs, const double* lengths, const double* r, double* product) {
  double t[4];
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const int k = u % N, l = u / N;
    const double2 p = pairs[STAGE * k + l];
    const double mu = (r[k] - lengths[32 * l]) * p.x;
    t[u] = (1.0 - mu) * (1.0 - p.y * (1.0 + mu));
  }
  steps<4>(t);
#pragma unroll
  for (int u = 0; u < 4; u++) product[u % N] *= t[u];
}

// The same for those of 8 partners that are in the mask; r, product: columns.
template <int N>
__device__ __forceinline__ void times_all(unsigned mask, const double2* pairs, const double* lengths, const double* r, double* product) {
  double at[N], value[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    at[k] = r[32 * k];
    value[k] = product[32 * k];
  }
#pragma unroll 1
  for (int l = 0; l < STAGE; l += 4 / N) {
    if (mask >> l & (N == 4 ? 1u : 3u)) times_steps<N>(pairs + l, lengths + 32 * l, at, value);
  }
#pragma unroll
  for (int k = 0; k < N; k++) product[32 * k] = value[k];
}

// Products of the candidates in `live`, which follow each other, over the nearest partners, with their distances; or, of any, over the
// others.
__device__ __noinline__ void multiply(Patch w, unsigned live, float cut, Partners which) {
  double *r = w.column(0), *product = w.column(1);
  if (which == NEAREST) {
    const int first = __ffs(static_cast<int>(live)) - 1, end = first + __popc(live);
#pragma unroll 4
    for (int k = first; k < end; k++) {
      r[32 * k] = length_of(arm_of(w, w.atoms()[k]));
      product[32 * k] = 1.0;
    }
  }
  const auto visit = [&](int, const unsigned* votes, const unsigned*, unsigned) {
#pragma unroll 1
    for (int k = 0; live >> k; k += 4) {
      const unsigned mask = votes_of(votes, k);
      if (!mask) continue;
      if (live >> k & 12) {
        times_all<4>(mask, w.stage() + STAGE * k, w.lengths(), r + 32 * k, product + 32 * k);
      } else {
        times_all<2>(mask, w.stage() + STAGE * k, w.lengths(), r + 32 * k, product + 32 * k);
      }
    }
  };
  sweep(w, live, cut, which, visit);
}
