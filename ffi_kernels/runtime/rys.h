// Rys quadrature over packs: roots and weights, two-dimensional tables, accumulation of [e0|f0].
// Dupuis, Rys and King, doi:10.1063/1.432807; two-dimensional recurrences after Rys, Dupuis and King, doi:10.1002/jcc.540040206.
#pragma once
#include <array>
#include <utility>

#include "primitives.h"
#include "tables.h"

namespace jaxqc {
namespace JAXQC_ISA {

// out[r] = u_r = t_r^2, out[n + r] = weight.
inline __attribute__((noinline)) void rys_roots(const RysTable& table, Pack t, Pack* out) {
  const int n = table.n;
  const Mask large = t >= splat(table.asymptotic);
  const Pack tc = large ? splat(table.asymptotic - 0.1) : t;
  const Index interval = truncate(tc * (1.0 / kRysInterval));
  const Pack x = tc * (2.0 / kRysInterval) - (2.0 * to_double(interval) + 1.0);
  const Index offset = times(interval, 2 * n * kRysTerms);
  for (int r = 0; r < 2 * n; ++r) {
    const double* c = table.polynomials + r * kRysTerms;
    Pack v = gather(c + kRysTerms - 1, offset);
#pragma GCC unroll 16
    for (int k = kRysTerms - 2; k >= 0; --k) v = v * x + gather(c + k, offset);
    out[r] = v;
  }
  if (any(large)) {
    const Pack rs = rsqrt(t + 1e-300), it = rs * rs;
    for (int r = 0; r < n; ++r) {
      out[r] = large ? table.hermite[r] * it : out[r];
      out[n + r] = large ? table.hermite[n + r] * rs : out[n + r];
    }
  }
}

// g[e * (LF + 1) + f] of one axis and root, 0 <= e <= le, 0 <= f <= LF.
template <int LF>
RCG_INLINE void rys_table_2d(Pack* g, int le, Pack c00, Pack d00, Pack b00, Pack b10, Pack b01, Pack start) {
  constexpr int S = LF + 1;
  g[0] = start;
  if (le > 0) g[S] = c00 * start;
  for (int e = 1; e < le; ++e) g[(e + 1) * S] = c00 * g[e * S] + (e * b10) * g[(e - 1) * S];
  if (LF == 0) return;
  for (int e = 0; e <= le; ++e) {
    Pack* row = g + e * S;
    const Pack eb = e * b00;
#pragma GCC unroll 16
    for (int f = 0; f < LF; ++f) {
      Pack v = d00 * row[f];
      if (f > 0) v += (f * b01) * row[f - 1];
      if (e > 0) v += eb * row[f - S];
      row[f + 1] = v;
    }
  }
}

// Tables of the three axes: g[(axis * n + r) * stride], stride = (le + 1) * (LF + 1); the weight and prefactor sit in z.
template <int LF>
__attribute__((noinline)) void rys_tables(Pack* g, int le, int n, const Pack* roots, const Quartet& s) {
  const int stride = (le + 1) * (LF + 1);
  for (int r = 0; r < n; ++r) {
    const Pack u = roots[r], up = s.rho_p * u, uq = s.rho_q * u;
    const Pack b00 = u * s.half_pq, b10 = s.half_p * (1.0 - up), b01 = s.half_q * (1.0 - uq);
    rys_table_2d<LF>(g + r * stride, le, s.pax - up * s.x, s.qcx + uq * s.x, b00, b10, b01, splat(1.0));
    rys_table_2d<LF>(g + (n + r) * stride, le, s.pay - up * s.y, s.qcy + uq * s.y, b00, b10, b01, splat(1.0));
    rys_table_2d<LF>(g + (2 * n + r) * stride, le, s.paz - up * s.z, s.qcz + uq * s.z, b00, b10, b01, roots[n + r] * s.prefactor);
  }
}
typedef void (*RysTables)(Pack*, int, int, const Pack*, const Quartet&);
constexpr int kRysSide = 2 * kMaxL + 1;
template <int... I>
constexpr std::array<RysTables, sizeof...(I)> rys_tables_list(std::integer_sequence<int, I...>) {
  return {rys_tables<I>...};
}
inline RysTables rys_tables_for(int lf) {
  static constexpr auto list = rys_tables_list(std::make_integer_sequence<int, kRysSide>());
  return list[lf];
}

// Components of the levels lc .. lf, sorted by (x, y, z) so that products of x and y tables are shared; where = their usual position.
template <int LC, int LF>
struct SortedComponents {
  static constexpr int count() {
    int n = 0;
    for (int l = LC; l <= LF; ++l) n += (l + 1) * (l + 2) / 2;
    return n;
  }
  static constexpr int N = count();
  int x[N] = {}, y[N] = {}, z[N] = {}, where[N] = {};
  constexpr SortedComponents() {
    int n = 0;
    for (int i = 0; i <= LF; ++i)
      for (int j = 0; i + j <= LF; ++j)
        for (int k = (LC > i + j ? LC - i - j : 0); i + j + k <= LF; ++k) {
          int before = 0;
          for (int l = LC; l < i + j + k; ++l) before += (l + 1) * (l + 2) / 2;
          x[n] = i;
          y[n] = j;
          z[n] = k;
          where[n++] = before + (j + k) * (j + k + 1) / 2 + k;
        }
  }
};

// h[f] (+)= sum over roots of gx[fx] gy[fy] gz[fz], for one e: gx, gy, gz point at row e of their tables.
template <int LC, int LF, int BEGIN, int... I>
RCG_INLINE void accumulate_chunk(Pack* h, const Pack* gx, const Pack* gy, const Pack* gz, int n, int stride, std::integer_sequence<int, I...>) {
  static constexpr SortedComponents<LC, LF> c{};
  Pack a[sizeof...(I)] = {h[c.where[BEGIN + I]]...};
  for (int r = 0; r < n; ++r, gx += stride, gy += stride, gz += stride) {
    ((a[I] += (gx[c.x[BEGIN + I]] * gy[c.y[BEGIN + I]]) * gz[c.z[BEGIN + I]]), ...);
  }
  ((h[c.where[BEGIN + I]] = a[I]), ...);
}
template <int LC, int LF, int BEGIN = 0>
RCG_INLINE void accumulate_chunks(Pack* h, const Pack* gx, const Pack* gy, const Pack* gz, int n, int stride) {
  constexpr int total = SortedComponents<LC, LF>::N, kChunk = JAXQC_W == 8 ? 20 : 10;
  constexpr int size = total - BEGIN < kChunk ? total - BEGIN : kChunk;
  accumulate_chunk<LC, LF, BEGIN>(h, gx, gy, gz, n, stride, std::make_integer_sequence<int, size>());
  if constexpr (BEGIN + size < total) accumulate_chunks<LC, LF, BEGIN + size>(h, gx, gy, gz, n, stride);
}
template <int LC, int LF>
__attribute__((noinline)) void accumulate(Pack* h, const Pack* gx, const Pack* gy, const Pack* gz, int n, int stride) {
  accumulate_chunks<LC, LF>(h, gx, gy, gz, n, stride);
}
// The same for any levels.
inline void accumulate_any(Pack* h, const Pack* gx, const Pack* gy, const Pack* gz, int n, int stride, int lc, int lf) {
  for (int r = 0; r < n; ++r, gx += stride, gy += stride, gz += stride) {
    Pack* o = h;
    for (int l = lc; l <= lf; ++l)
      for (int x = l; x >= 0; --x)
        for (int y = l - x; y >= 0; --y, ++o) *o += (gx[x] * gy[y]) * gz[l - x - y];
  }
}
typedef void (*Accumulate)(Pack*, const Pack*, const Pack*, const Pack*, int, int);
constexpr int kAccumulateL = 4;  // unrolled up to g; beyond, the loops of accumulate_any
template <int... I>
constexpr std::array<Accumulate, sizeof...(I)> accumulate_list(std::integer_sequence<int, I...>) {
  return {accumulate<I / (kAccumulateL + 1), I / (kAccumulateL + 1) + I % (kAccumulateL + 1)>...};
}
inline Accumulate accumulate_for(int lc, int ld) {
  static constexpr auto list = accumulate_list(std::make_integer_sequence<int, (kAccumulateL + 1) * (kAccumulateL + 1)>());
  return lc <= kAccumulateL && ld <= kAccumulateL ? list[lc * (kAccumulateL + 1) + ld] : nullptr;
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
