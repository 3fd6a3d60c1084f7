// Boys functions with the operators 1 / r, erf(omega r) / r and erfc(omega r) / r.
#pragma once
#include "eri_quartets.cuh"

// F_0 .. F_L of t times a prefactor.
#if SINGLE
// Rows of F_(L+k)(i/8) / k!, k < 5, and exp(-i/8), padded to 8.
template <int L>
__device__ __forceinline__ void boys(float t, float prefactor, const float* rows, const float*, float* f) {
  if (t < 48.0f) {
    const int i = static_cast<int>(t * 8.0f + 0.5f);
    const float d = static_cast<float>(i) * 0.125f - t;
    const float4 low = *reinterpret_cast<const float4*>(rows + i * 8), high = *reinterpret_cast<const float4*>(rows + i * 8 + 4);
    f[L] = fmaf(fmaf(fmaf(fmaf(high.x, d, low.w), d, low.z), d, low.y), d, low.x) * prefactor;
    if (L > 0) {
      float e = fmaf(d, 1 / 120.0f, 1 / 24.0f);
      e = fmaf(e, d, 1 / 6.0f);
      e = fmaf(e, d, 0.5f);
      e = fmaf(e, d, 1.0f);
      e = fmaf(e, d, 1.0f);
      e *= high.y * prefactor;
#pragma unroll
      for (int m = L - 1; m >= 0; --m) f[m] = fmaf(2.0f * t, f[m + 1], e) * (1.0f / (2 * m + 1));
    }
  } else {
    const float r = rsqrt(t), it = r * r;
    f[0] = prefactor * 0.886226925f * r;
#pragma unroll
    for (int m = 0; m < L; ++m) f[m + 1] = f[m] * it * (m + 0.5f);
  }
}
#else
template <int L>
__device__ __forceinline__ void boys(double t, double prefactor, const double* rows, const double* grid, double* f) {
  if (t < 48.0) {
    const int i = static_cast<int>(t * 8.0 + 0.5);
    const double d = i * 0.125 - t;
    const double2* c = reinterpret_cast<const double2*>(rows + i * 8);
    const double2 c3 = c[3];
    double v = fma(c3.y, d, c3.x);
#pragma unroll
    for (int k = 2; k >= 0; --k) {
      const double2 pair = c[k];
      v = fma(fma(v, d, pair.y), d, pair.x);
    }
    f[L] = v * prefactor;
    if (L > 0) {
      double e = fma(d, 1 / 5040.0, 1 / 720.0);
      e = fma(e, d, 1 / 120.0);
      e = fma(e, d, 1 / 24.0);
      e = fma(e, d, 1 / 6.0);
      e = fma(e, d, 0.5);
      e = fma(e, d, 1.0);
      e = fma(e, d, 1.0);
      e *= grid[i] * prefactor;
#pragma unroll
      for (int m = L - 1; m >= 0; --m) f[m] = fma(2.0 * t, f[m + 1], e) * (1.0 / (2 * m + 1));
    }
  } else {
    const double r = rsqrt(t), it = r * r;
    f[0] = prefactor * 0.88622692545275801365 * r;
#pragma unroll
    for (int m = 0; m < L; ++m) f[m + 1] = f[m] * it * (m + 0.5);
  }
}
#endif

#if SHORT
// The same of a primitive quartet, less those of erf(omega r) / r.
template <int L>
__device__ __forceinline__ void boys(const Primitives& s, real p, const real* rows, const real* grid, real omega, real* f) {
  const real square = omega * omega, shrink = square / (square + p * s.rho_p);
  real scale = sqrt(shrink), taken[L + 1];
  boys<L>(s.t, s.prefactor, rows, grid, f);
  boys<L>(s.t * shrink, s.prefactor, rows, grid, taken);
#pragma unroll
  for (int m = 0; m <= L; ++m) {
    f[m] -= scale * taken[m];
    scale *= shrink;
  }
}
#else
// The same of a primitive quartet, attenuated where omega > 0.
template <int L>
__device__ __forceinline__ void boys(const Primitives& s, real p, const real* rows, const real* grid, real omega, real* f) {
  if (omega == real(0.0)) {
    boys<L>(s.t, s.prefactor, rows, grid, f);
    return;
  }
  const real square = omega * omega, shrink = square / (square + p * s.rho_p);
  real scale = sqrt(shrink);
  boys<L>(s.t * shrink, s.prefactor, rows, grid, f);
#pragma unroll
  for (int m = 0; m <= L; ++m) {
    f[m] *= scale;
    scale *= shrink;
  }
}
#endif
