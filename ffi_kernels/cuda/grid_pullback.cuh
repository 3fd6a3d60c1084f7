// Slopes of products of steps, and what they add to the derivatives of nuclei and points.
#pragma once
#include "grid_products.cuh"

// Derivatives of N weights with respect to the distances of their candidates, added to `rate`, of the partner, taken from `push`, and
// to the distances between the two.
template <int N>
__device__ __forceinline__ void slopes(unsigned& mask, const double2* pair, double length, const double* r, const double* weight,
                                       double* rate, double& push, int* k, double* along) {
  double mu[N], slope[N], factor[N];
#pragma unroll
  for (int u = 0; u < N; u++) {
    k[u] = next_of(mask, -1);
    const int safe = k[u] < 0 ? k[0] : k[u];
    const double2 p = pair[STAGE * safe];
    mu[u] = (r[32 * safe] - length) * p.x;
    slope[u] = (1.0 - mu[u]) * (1.0 - p.y * (1.0 + mu[u]));
    factor[u] = weight[32 * safe] * p.x * (2.0 * p.y * mu[u] - 1.0);
    mu[u] *= p.x;
  }
  log_slopes<N>(slope);
#pragma unroll
  for (int u = 0; u < N; u++) {
    slope[u] *= factor[u];
    // |R_i - R_j| changes along (R_i - R_j) / |R_i - R_j|.
    along[u] = slope[u] * mu[u];
    push -= k[u] < 0 ? 0.0 : slope[u];
    slope[u] += rate[32 * (k[u] < 0 ? k[0] : k[u])];
  }
#pragma unroll
  for (int u = 0; u < N; u++) rate[32 * (k[u] < 0 ? k[0] : k[u])] = slope[u];
}

// The same in single precision, for those of four partners with small u = 1 + nu that are in the mask, and one candidate: what its rate
// gains. s(2 - u) is 1 - s(u).
__device__ __forceinline__ float single_slopes(unsigned mask, const double2* pairs, const double* lengths, double r, float weight,
                                               float* push, float* along) {
  float u[4], slope[4], total = 0.0f;
#pragma unroll
  for (int l = 0; l < 4; l++) {
    const double2 p = pairs[l];
    const float inverse = static_cast<float>(p.x), shift = static_cast<float>(p.y);
    const float v = static_cast<float>(1.0 + (r - lengths[32 * l]) * p.x), twice = 1.0f + 2.0f * shift;
    u[l] = v * (twice - shift * v);
    slope[l] = mask >> l & 1 ? -1.6875f * weight * inverse * (twice - 2.0f * shift * v) : 0.0f;
    along[l] = (v - 1.0f) * inverse;
  }
#pragma unroll
  for (int l = 0; l < 4; l++) slope[l] *= u[l] * (2.0f - u[l]);
#pragma unroll
  for (int turn = 0; turn < 2; turn++) {
#pragma unroll
    for (int l = 0; l < 4; l++) u[l] *= u[l] * (1.5f - 0.5f * u[l]);
#pragma unroll
    for (int l = 0; l < 4; l++) slope[l] *= u[l] * (2.0f - u[l]);
  }
#pragma unroll
  for (int l = 0; l < 4; l++) {
    const float rest = u[l] * u[l] * (0.75f - 0.25f * u[l]);  // 1 / (1 - rest) is this product but for rest^4
    slope[l] *= (1.0f + rest) * (1.0f + rest * rest);
    push[l] -= slope[l];
    along[l] *= slope[l];
    total += slope[l];
  }
  return total;
}

// Which candidates have partner l, from the votes of `sweep`.
__device__ __forceinline__ unsigned candidates_of(const unsigned* votes, int l) {
  unsigned mask = 0;
#pragma unroll
  for (int round = 0; round < BATCH / 4; round++) {
    // Bits 0, 8, 16 and 24 side by side.
    mask |= ((((votes[round] >> l) & 0x01010101u) * 0x01020408u) >> 24 & 15u) << (4 * round);
  }
  return mask;
}

// Derivatives with respect to nuclei, added to `centers`, and to the lane's point, added to `at_point`, of the candidates in `live`, which
// have their weights where products were; `cut` as of `sweep`.
__device__ __forceinline__ void pull_back(const Patch& w, unsigned live, float cut, double* at_point, double* centers) {
  const int lane = w.lane;
  double *r = w.column(0), *weight = w.column(1), *rate = w.column(2), *drawn = w.drawn();
  const int* atoms = w.atoms();
  for (int k = lane; k < 3 * BATCH; k += 32) drawn[k] = 0.0;
  const int component = min(lane & 7, 2);
  const auto visit = [&](int first_partner, const unsigned* votes, const unsigned* single, unsigned some) {
#pragma unroll 1
    for (int half = 0; half < STAGE; half += 4) {
      const unsigned met = some >> half & 15;
      if (!met) continue;
      double* pushes = w.lengths() + 32 * half;  // take the places of the distances
      // In single precision a candidate has all partners at once, and what is drawn to these lies as below.
      float pushed[4] = {};
      double drawn_4 = 0.0;
      const double place_4 = __ldg(w.coords + 3 * min(first_partner + half + (lane >> 3), w.natm - 1) + component);
#pragma unroll 1
      for (unsigned rest = live; rest;) {
        const int k = next_of(rest, 0);
        const unsigned mask = votes_of(single, k) >> (8 * (k & 3) + half) & 15u;
        if (!mask) continue;
        float along[4];
        const double2* pairs = w.stage() + STAGE * k + half;
        rate[32 * k] += single_slopes(mask, pairs, pushes, r[32 * k], static_cast<float>(weight[32 * k]), pushed, along);
        const double v = sums_of_warp(along, lane) * (__ldg(w.coords + 3 * atoms[k] + component) - place_4);
        drawn_4 += v;
        float all = static_cast<float>(v);
        all += __shfl_xor_sync(0xffffffffu, all, 8);
        all += __shfl_xor_sync(0xffffffffu, all, 16);
        if (lane < 3) drawn[3 * k + component] -= all;
      }
      __syncwarp();
      const bool twofold = ((votes[0] | votes[1] | votes[2] | votes[3]) >> half) & 0x0f0f0f0fu;  // any in double precision
#pragma unroll 1
      for (int l = 0; l < 4 && twofold; l++) {
        const double2* pair = w.stage() + half + l;
        const double length = pushes[32 * l];
        unsigned mask = candidates_of(votes, half + l);
        const double place = __ldg(w.coords + 3 * min(first_partner + half + l, w.natm - 1) + component);
        double push = 0.0, drawn_j = 0.0;
#pragma unroll 1
        while (mask) {
          int k[4] = {-1, -1, -1, -1};
          double along[4] = {};
          if (__popc(mask) > 2) {
            slopes<4>(mask, pair, length, r, weight, rate, push, k, along);
          } else {
            slopes<2>(mask, pair, length, r, weight, rate, push, k, along);
          }
          const double sum = sums_of_warp(along, lane);
          const int whose = lane & 16 ? (lane & 8 ? k[3] : k[2]) : lane & 8 ? k[1] : k[0];
          if (whose >= 0 && (lane & 7) < 3) {
            const double v = sum * (__ldg(w.coords + 3 * atoms[whose] + component) - place);
            drawn[3 * whose + component] -= v;
            drawn_j += v;
          }
          __syncwarp();  // other lanes may add to `drawn` next
        }
        pushes[32 * l] = push;
        if ((lane & 7) < 3) w.drawn_partners()[3 * (4 * l + (lane >> 3)) + component] = drawn_j;
      }
      __syncwarp();
      // Lanes 8 l ... 8 l + 2 are for partner l.
      double pull[3][4];
#pragma unroll
      for (int l = 0; l < 4; l++) {
        const Arm arm = arm_of(w, min(first_partner + half + l, w.natm - 1));
        const double h = (twofold ? pushes[32 * l] + pushed[l] : pushed[l]) * inverse_length_of(arm);
        pull[0][l] = h * arm.x;
        pull[1][l] = h * arm.y;
        pull[2][l] = h * arm.z;
      }
      double sum[3];
#pragma unroll
      for (int i = 0; i < 3; i++) {
#pragma unroll
        for (int l = 0; l < 4; l++) at_point[i] += pull[i][l];
        sum[i] = sums_of_warp(pull[i], lane);
      }
      if ((lane & 7) < 3 && met >> (lane >> 3) & 1) {
        double v = drawn_4 - (component == 0 ? sum[0] : component == 1 ? sum[1] : sum[2]);
#pragma unroll
        for (int part = 0; part < 4 && twofold; part++) v += w.drawn_partners()[3 * (4 * (lane >> 3) + part) + component];
        atomicAdd(centers + 3 * (first_partner + half + (lane >> 3)) + component, v);
      }
      __syncwarp();
    }
  };
  if (live) sweep(w, live, cut, ALL, visit);
  __syncwarp();
#pragma unroll 1
  for (unsigned some = live; some; some &= some - 1) {
    const int k = __ffs(static_cast<int>(some)) - 1;
    const Arm arm = arm_of(w, atoms[k]);
    const double h = r[32 * k] > 0.0 ? rate[32 * k] * reciprocal(r[32 * k]) : 0.0, pull[4] = {h * arm.x, h * arm.y, h * arm.z, 0.0};
#pragma unroll
    for (int i = 0; i < 3; i++) at_point[i] += pull[i];
    const double sum = __shfl_sync(0xffffffffu, sums_of_warp(pull, lane), 8 * lane);  // lanes 0 to 2
    if (lane < 3) atomicAdd(centers + 3 * atoms[k] + lane, drawn[3 * k + lane] - sum);
  }
}
