// What a warp knows of its points and of the atoms around them, and bounds for all its points.
#pragma once
#include "grid_steps.cuh"

#define NEAR 16           // partners that bound a product,
#define BATCH 16          // candidates that a warp holds at once
#define STAGE 8           // partners whose pairs it holds

// A warp: its lane's point, and where in shared memory it keeps what.
struct Patch {
  const double* coords;
  const double2* pairs;
  double X, Y, Z;
  float radius;  // of the ball around the points
  int base, natm, nears, lane;

  static constexpr int COLUMNS = REVERSE ? 3 : 2;
  static __device__ __forceinline__ int size(int natm) {
    return (COLUMNS * 32 + 2 * STAGE + 3 * REVERSE) * BATCH + 32 * STAGE + 48 * REVERSE + BATCH / 2 + NEAR + (3 * natm + 3) / 4;
  }
  __device__ __forceinline__ double* memory() const {
    extern __shared__ double shared[];
    return shared + base;
  }
  // [candidate][STAGE] 1 / |R_i - R_j| and shift of pairs
  __device__ __forceinline__ double2* stage() const { return reinterpret_cast<double2*>(memory()); }
  // [candidate][lane] distances; products, and then what they weigh; derivatives with respect to the distances
  __device__ __forceinline__ double* column(int which) const { return memory() + (2 * STAGE + 32 * which) * BATCH + lane; }
  // [candidate][3] sums for the nuclei
  __device__ __forceinline__ double* drawn() const { return memory() + (2 * STAGE + 32 * COLUMNS) * BATCH; }
  // [STAGE][lane] distances of the partners
  __device__ __forceinline__ double* lengths() const { return drawn() + 3 * REVERSE * BATCH + lane; }
  // [4 partners][4 parts][3] sums for the partners
  __device__ __forceinline__ double* drawn_partners() const { return lengths() - lane + 32 * STAGE; }
  // [candidate] atoms
  __device__ __forceinline__ int* atoms() const { return reinterpret_cast<int*>(drawn_partners() + 48 * REVERSE); }
  // [NEAR] the nearest atoms, and how far they are at most
  __device__ __forceinline__ int* near() const { return atoms() + BATCH; }
  __device__ __forceinline__ float* reach() const { return reinterpret_cast<float*>(near() + NEAR); }
  // [natm] distances from the centre, positive, of the nearest atoms negative, odd bits of atoms that own a point; all candidates
  __device__ __forceinline__ float* off() const { return reach() + NEAR; }
  __device__ __forceinline__ short* list() const { return reinterpret_cast<short*>(off() + natm); }
};
constexpr float NONE = 3e38f;

// The vector from atom j to the point of the lane.
struct Arm {
  double x, y, z;
};
__device__ __forceinline__ Arm arm_of(const Patch& w, int j) {
  return {w.X - __ldg(w.coords + 3 * j), w.Y - __ldg(w.coords + 3 * j + 1), w.Z - __ldg(w.coords + 3 * j + 2)};
}
__device__ __forceinline__ double square_of(const Arm& arm) { return arm.x * arm.x + arm.y * arm.y + arm.z * arm.z; }
// 1e145 where there is no length.
__device__ __forceinline__ double inverse_length_of(const Arm& arm) { return inverse_root(square_of(arm) + 1e-290); }
__device__ __forceinline__ double length_of(const Arm& arm) { return square_of(arm) * inverse_length_of(arm); }

__device__ __forceinline__ float power(float v, float exponent) { return exp2f(exponent * log2f(v)); }

// The step of an atom for a partner whose pair with it is given, from the bound mu.
__device__ __forceinline__ float bound_of(const double2& pair, float mu) {
  return step(fminf(fmaxf((1.0f - mu) * (1.0f + static_cast<float>(pair.y) * (1.0f + mu)), 0.0f), 2.0f));
}

// A bound of 1 + mu_ij over the ball, from the distances of its centre. |grad (r_i - r_j)| is at most 2, and at most
// sqrt(2 (1 + mu) |R_i - R_j|^2 / (r_i r_j)), so that sqrt(1 + mu) changes by at most 1 / sqrt(2 r_i r_j) along a path.
__device__ __forceinline__ float largest_of(float ri, float rj, float inverse, float radius) {
  const float centre = 1.0f + (ri - rj + 1e-3f) * inverse, u = centre + 2.0f * radius * inverse;
  const float least = fmaxf(2.0f * fmaxf(ri - radius, 0.0f) * fmaxf(rj - radius, 0.0f), 1e-12f);
  const float safe = fmaxf(centre, 1e-12f), root = safe * rsqrtf(safe) + radius * rsqrtf(least);
  return fminf(u, 1.0001f * root * root);
}
