// Packs of doubles, one shell quartet a lane. Compiled once per instruction set (JAXQC_ISA names the namespace, JAXQC_W the lanes).
// Only what the kernels need beyond the compiler's vector arithmetic: broadcast, unaligned access, gather, reciprocal square root.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define RCG_INLINE static inline __attribute__((always_inline))

namespace jaxqc {
namespace JAXQC_ISA {

constexpr int W = JAXQC_W;
typedef double Pack __attribute__((vector_size(8 * JAXQC_W)));
typedef double PackUnaligned __attribute__((vector_size(8 * JAXQC_W), aligned(8), may_alias));
typedef long long Mask __attribute__((vector_size(8 * JAXQC_W)));

RCG_INLINE Pack splat(double a) { return a - Pack{}; }
RCG_INLINE Pack load(const double* p) { return *reinterpret_cast<const PackUnaligned*>(p); }
RCG_INLINE void store(double* p, Pack v) { *reinterpret_cast<PackUnaligned*>(p) = v; }
RCG_INLINE Pack max(Pack a, Pack b) { return a > b ? a : b; }
RCG_INLINE double sum(Pack v) {
  double s = 0.0;
  for (int l = 0; l < W; ++l) s += v[l];
  return s;
}

#if JAXQC_W == 8 && defined(__AVX512F__)
typedef __m256i Index;
RCG_INLINE Index truncate(Pack x) { return _mm512_cvttpd_epi32((__m512d)x); }
RCG_INLINE Pack to_double(Index i) { return (Pack)_mm512_cvtepi32_pd(i); }
RCG_INLINE Index times(Index a, int k) { return _mm256_mullo_epi32(a, _mm256_set1_epi32(k)); }
RCG_INLINE Index load_index(const int* p) { return _mm256_loadu_si256((const __m256i*)p); }
RCG_INLINE void store_index(int* p, Index i) { _mm256_storeu_si256((__m256i*)p, i); }
RCG_INLINE Pack gather(const double* base, Index i) { return (Pack)_mm512_i32gather_pd(i, base, 8); }
RCG_INLINE bool any(Mask m) { return _mm512_movepi64_mask((__m512i)m) != 0; }
// 14-bit estimate and two Newton steps: full precision for normal arguments, without division.
RCG_INLINE Pack rsqrt(Pack x) {
  Pack r = (Pack)_mm512_rsqrt14_pd((__m512d)x);
  const Pack h = 0.5 * x;
  r = r * (1.5 - h * r * r);
  return r * (1.5 - h * r * r);
}
#elif JAXQC_W == 4 && defined(__AVX2__)
typedef __m128i Index;
RCG_INLINE Index truncate(Pack x) { return _mm256_cvttpd_epi32((__m256d)x); }
RCG_INLINE Pack to_double(Index i) { return (Pack)_mm256_cvtepi32_pd(i); }
RCG_INLINE Index times(Index a, int k) { return _mm_mullo_epi32(a, _mm_set1_epi32(k)); }
RCG_INLINE Index load_index(const int* p) { return _mm_loadu_si128((const __m128i*)p); }
RCG_INLINE void store_index(int* p, Index i) { _mm_storeu_si128((__m128i*)p, i); }
RCG_INLINE Pack gather(const double* base, Index i) { return (Pack)_mm256_i32gather_pd(base, i, 8); }
RCG_INLINE bool any(Mask m) { return _mm256_movemask_pd((__m256d)m) != 0; }
RCG_INLINE Pack rsqrt(Pack x) { return 1.0 / (Pack)_mm256_sqrt_pd((__m256d)x); }
#else
struct Index {
  int v[JAXQC_W];
};
RCG_INLINE Index truncate(Pack x) {
  Index r;
  for (int l = 0; l < W; ++l) r.v[l] = static_cast<int>(x[l]);
  return r;
}
RCG_INLINE Pack to_double(Index i) {
  Pack r;
  for (int l = 0; l < W; ++l) r[l] = i.v[l];
  return r;
}
RCG_INLINE Index times(Index a, int k) {
  for (int l = 0; l < W; ++l) a.v[l] *= k;
  return a;
}
RCG_INLINE Index load_index(const int* p) {
  Index r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
RCG_INLINE void store_index(int* p, Index i) { std::memcpy(p, i.v, sizeof(i.v)); }
RCG_INLINE Pack gather(const double* base, Index i) {
  Pack r;
  for (int l = 0; l < W; ++l) r[l] = base[i.v[l]];
  return r;
}
RCG_INLINE bool any(Mask m) {
  long long s = 0;
  for (int l = 0; l < W; ++l) s |= m[l];
  return s != 0;
}
RCG_INLINE Pack rsqrt(Pack x) {
  Pack r;
  for (int l = 0; l < W; ++l) r[l] = 1.0 / std::sqrt(x[l]);
  return r;
}
#endif
RCG_INLINE bool all(Mask m) { return !any(~m); }

// o[k] = lane-wise element k of the 8-double table rows that start at base + 8 * row[lane].
RCG_INLINE void load_rows(const double* base, Index row, Pack* o) {
  int t[W];
  store_index(t, row);
#if JAXQC_W == 8 && defined(__AVX512F__)
  __m512d r[8], u[8];
  for (int l = 0; l < 8; ++l) r[l] = _mm512_loadu_pd(base + 8 * t[l]);
  for (int l = 0; l < 4; ++l) {
    u[2 * l] = _mm512_unpacklo_pd(r[2 * l], r[2 * l + 1]);
    u[2 * l + 1] = _mm512_unpackhi_pd(r[2 * l], r[2 * l + 1]);
  }
  for (int h = 0; h < 2; ++h) {
    const __m512d a = _mm512_shuffle_f64x2(u[h], u[2 + h], 0x88), b = _mm512_shuffle_f64x2(u[h], u[2 + h], 0xdd);
    const __m512d c = _mm512_shuffle_f64x2(u[4 + h], u[6 + h], 0x88), d = _mm512_shuffle_f64x2(u[4 + h], u[6 + h], 0xdd);
    o[h] = (Pack)_mm512_shuffle_f64x2(a, c, 0x88);
    o[4 + h] = (Pack)_mm512_shuffle_f64x2(a, c, 0xdd);
    o[2 + h] = (Pack)_mm512_shuffle_f64x2(b, d, 0x88);
    o[6 + h] = (Pack)_mm512_shuffle_f64x2(b, d, 0xdd);
  }
#elif JAXQC_W == 4 && defined(__AVX2__)
  for (int h = 0; h < 2; ++h) {
    __m256d r[4];
    for (int l = 0; l < 4; ++l) r[l] = _mm256_loadu_pd(base + 8 * t[l] + 4 * h);
    const __m256d u0 = _mm256_unpacklo_pd(r[0], r[1]), u1 = _mm256_unpackhi_pd(r[0], r[1]);
    const __m256d u2 = _mm256_unpacklo_pd(r[2], r[3]), u3 = _mm256_unpackhi_pd(r[2], r[3]);
    o[4 * h] = (Pack)_mm256_permute2f128_pd(u0, u2, 0x20);
    o[4 * h + 1] = (Pack)_mm256_permute2f128_pd(u1, u3, 0x20);
    o[4 * h + 2] = (Pack)_mm256_permute2f128_pd(u0, u2, 0x31);
    o[4 * h + 3] = (Pack)_mm256_permute2f128_pd(u1, u3, 0x31);
  }
#else
  for (int k = 0; k < 8; ++k)
    for (int l = 0; l < W; ++l) o[k][l] = base[8 * t[l] + k];
#endif
}

// o[k][lane] = base[i[lane] + k] for k < N: whole-row loads and a transpose, cheaper than N gathers. Reads up to 8 doubles from each address.
template <int N>
RCG_INLINE void gather_rows(const double* base, const int* i, Pack* o) {
#if JAXQC_W == 8 && defined(__AVX512F__)
  if constexpr (N >= 2 && N <= 4) {
    __m512d z[4], u[4];
    for (int l = 0; l < 4; ++l)
      z[l] = _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(base + i[l])), _mm256_loadu_pd(base + i[l + 4]), 1);
    u[0] = _mm512_unpacklo_pd(z[0], z[1]);
    u[1] = _mm512_unpackhi_pd(z[0], z[1]);
    u[2] = _mm512_unpacklo_pd(z[2], z[3]);
    u[3] = _mm512_unpackhi_pd(z[2], z[3]);
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    o[0] = (Pack)_mm512_permutex2var_pd(u[0], low, u[2]);
    o[1] = (Pack)_mm512_permutex2var_pd(u[1], low, u[3]);
    if (N > 2) o[2] = (Pack)_mm512_permutex2var_pd(u[0], high, u[2]);
    if (N > 3) o[3] = (Pack)_mm512_permutex2var_pd(u[1], high, u[3]);
    return;
  }
  if constexpr (N >= 5 && N <= 8) {
    __m512d r[8], u[8];
    for (int l = 0; l < 8; ++l) r[l] = _mm512_loadu_pd(base + i[l]);
    for (int l = 0; l < 4; ++l) {
      u[2 * l] = _mm512_unpacklo_pd(r[2 * l], r[2 * l + 1]);
      u[2 * l + 1] = _mm512_unpackhi_pd(r[2 * l], r[2 * l + 1]);
    }
    for (int h = 0; h < 2; ++h) {
      const __m512d a = _mm512_shuffle_f64x2(u[h], u[2 + h], 0x88), b = _mm512_shuffle_f64x2(u[h], u[2 + h], 0xdd);
      const __m512d c = _mm512_shuffle_f64x2(u[4 + h], u[6 + h], 0x88), d = _mm512_shuffle_f64x2(u[4 + h], u[6 + h], 0xdd);
      o[h] = (Pack)_mm512_shuffle_f64x2(a, c, 0x88);
      if (N > 4 + h) o[4 + h] = (Pack)_mm512_shuffle_f64x2(a, c, 0xdd);
      o[2 + h] = (Pack)_mm512_shuffle_f64x2(b, d, 0x88);
      if (N > 6 + h) o[6 + h] = (Pack)_mm512_shuffle_f64x2(b, d, 0xdd);
    }
    return;
  }
#elif JAXQC_W == 4 && defined(__AVX2__)
  if constexpr (N >= 2 && N <= 8) {
    for (int h = 0; 4 * h < N; ++h) {
      __m256d r[4];
      for (int l = 0; l < 4; ++l) r[l] = _mm256_loadu_pd(base + i[l] + 4 * h);
      const __m256d u0 = _mm256_unpacklo_pd(r[0], r[1]), u1 = _mm256_unpackhi_pd(r[0], r[1]);
      const __m256d u2 = _mm256_unpacklo_pd(r[2], r[3]), u3 = _mm256_unpackhi_pd(r[2], r[3]);
      o[4 * h] = (Pack)_mm256_permute2f128_pd(u0, u2, 0x20);
      if (N > 4 * h + 1) o[4 * h + 1] = (Pack)_mm256_permute2f128_pd(u1, u3, 0x20);
      if (N > 4 * h + 2) o[4 * h + 2] = (Pack)_mm256_permute2f128_pd(u0, u2, 0x31);
      if (N > 4 * h + 3) o[4 * h + 3] = (Pack)_mm256_permute2f128_pd(u1, u3, 0x31);
    }
    return;
  }
#endif
  for (int k = 0; k < N; ++k)
    for (int l = 0; l < W; ++l) o[k][l] = base[i[l] + k];
}
// The same for a number of rows known at run time only.
RCG_INLINE void gather_rows(int n, const double* base, const int* i, Pack* o) {
  for (int k = 0; k < n; ++k)
    for (int l = 0; l < W; ++l) o[k][l] = base[i[l] + k];
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
