// The steps of a partition of space and their slopes; roots and reciprocals; sums over a warp.
#pragma once

// The steps s(t) of N numbers t from 0 to 2, side by side for the latency.
template <int N, class T>
__device__ __forceinline__ void steps(T* t) {
#if SCHEME == 0
#pragma unroll
  for (int i = 0; i < 3; i++) {
    T h[N];
#pragma unroll
    for (int u = 0; u < N; u++) h[u] = i < 2 ? T(1.5) - T(0.5) * t[u] : T(0.75) - T(0.25) * t[u];
#pragma unroll
    for (int u = 0; u < N; u++) t[u] *= t[u];
#pragma unroll
    for (int u = 0; u < N; u++) t[u] *= h[u];
  }
#else
#pragma unroll
  for (int u = 0; u < N; u++) {
    const T v = T(1) + (t[u] - T(1)) * T(1.0 / 0.64), near = max(v > T(1) ? T(2) - v : v, T(0)), square = near * near;
    const T below = T(1.09375) * square * square * (T(2) + near * (T(-2.4) + near * (T(1) - near * T(1.0 / 7.0))));
    t[u] = v > T(1) ? T(1) - below : below;
  }
#endif
}

template <class T>
__device__ __forceinline__ T step(T t) {
  steps<1>(&t);
  return t;
}

__device__ __forceinline__ double reciprocal(double v) {
#ifdef EMULATED
  return 1.0 / v;
#else
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
  const double e = fma(-v, y, 1.0);
  return fma(y, fma(e, e, e), y);
#endif
}

// 1 / sqrt(v) for v that are no smaller than 1e-290.
__device__ __forceinline__ double inverse_root(double v) {
#ifdef EMULATED
  return 1.0 / sqrt(v);
#else
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
  const double e = fma(-v * y, y, 1.0);
  return fma(y * e, fma(0.375, e, 0.5), y);
#endif
}

// d log s / dt of N numbers t, in their place.
template <int N>
__device__ __forceinline__ void log_slopes(double* t) {
#if SCHEME == 0
  // With T(t) = t^2 h(t), h = (3 - t) / 2: d log T / d log t = 3 (2 - t) / (2 h), and three of these make up s.
  double above[N], below[N];
#pragma unroll
  for (int u = 0; u < N; u++) {
    above[u] = 3.375;
    // Rounding can make t negative, or 0 here and not where products were made, which fall with its eighth power and are
    // nothing where this is no longer small against t.
    below[u] = fabs(t[u]) + 1e-15;
  }
#pragma unroll
  for (int i = 0; i < 3; i++) {
    double h[N];
#pragma unroll
    for (int u = 0; u < N; u++) h[u] = 1.5 - 0.5 * t[u];
#pragma unroll
    for (int u = 0; u < N; u++) above[u] *= 2.0 - t[u];
#pragma unroll
    for (int u = 0; u < N; u++) below[u] *= h[u];
#pragma unroll
    for (int u = 0; u < N; u++) t[u] *= t[u] * h[u];
  }
#pragma unroll
  for (int u = 0; u < N; u++) t[u] = above[u] * reciprocal(below[u]);
#else
#pragma unroll
  for (int u = 0; u < N; u++) {
    const double value = step(t[u]), v = 1.0 + (t[u] - 1.0) * (1.0 / 0.64), near = fmax(v * (2.0 - v), 0.0);
    t[u] = value > 1e-290 ? (1.09375 / 0.64) * near * near * near * reciprocal(value) : 0.0;
  }
#endif
}

template <class T>
__device__ __forceinline__ T sum_of_warp(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

template <class T>
__device__ __forceinline__ T least_of_warp(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const T other = __shfl_xor_sync(0xffffffffu, v, o);
    v = other < v ? other : v;
  }
  return v;
}

// Sums of four numbers over the warp: lane l gets that of number l / 8.
template <class T>
__device__ __forceinline__ T sums_of_warp(const T* v, int lane) {
  const bool high = lane & 16, odd = lane & 8;
  T a = high ? v[2] : v[0], b = high ? v[3] : v[1];
  a += __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 16);
  b += __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 16);
  T sum = odd ? b : a;
  sum += __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
  for (int o = 4; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  return sum;
}
