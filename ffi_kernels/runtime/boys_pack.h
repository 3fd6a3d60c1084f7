// Boys functions F_0 .. F_L of a pack of arguments, times a prefactor.
#pragma once
#include "simd.h"
#include "tables.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Taylor rows below T = 48 with downward recursion, the asymptotic form above; both branches only where the pack needs them.
template <int L>
RCG_INLINE void boys(Pack t, Pack prefactor, const double* rows, const double* exp_rows, Pack* f) {
  const Mask large = t >= splat(kBoysAsymptotic);
  if (!all(large)) {
    const Pack tc = large ? splat(kBoysAsymptotic - 0.1) : t;
    const Index row = truncate(tc * 8.0 + 0.5);
    const Pack d = to_double(row) * 0.125 - tc;
    Pack c[8];
    load_rows(rows, row, c);
    Pack v = c[7];
#pragma GCC unroll 8
    for (int k = 6; k >= 0; --k) v = c[k] + d * v;
    f[L] = v * prefactor;
    if (L > 0) {
      Pack e = splat(1 / 5040.0);
      e = e * d + 1 / 720.0;
      e = e * d + 1 / 120.0;
      e = e * d + 1 / 24.0;
      e = e * d + 1 / 6.0;
      e = e * d + 0.5;
      e = e * d + 1.0;
      e = e * d + 1.0;
      e = e * gather(exp_rows, row) * prefactor;
      const Pack t2 = 2.0 * tc;
#pragma GCC unroll 32
      for (int m = L - 1; m >= 0; --m) f[m] = (t2 * f[m + 1] + e) * (1.0 / (2 * m + 1));
    }
    if (any(large)) {
      const Pack r = rsqrt(t + 1e-300), it = r * r;
      Pack g = prefactor * 0.88622692545275801365 * r;
      f[0] = large ? g : f[0];
#pragma GCC unroll 32
      for (int m = 0; m < L; ++m) {
        g = g * it * (m + 0.5);
        f[m + 1] = large ? g : f[m + 1];
      }
    }
  } else {
    const Pack r = rsqrt(t), it = r * r;
    f[0] = prefactor * 0.88622692545275801365 * r;
#pragma GCC unroll 32
    for (int m = 0; m < L; ++m) f[m + 1] = f[m] * it * (m + 0.5);
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
