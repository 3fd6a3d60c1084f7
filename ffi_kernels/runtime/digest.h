// Contraction of an integral pack with densities: J and K of one bra pair with a pack of kets.
//
// J_ab += (ab|cd) D_cd, J_cd += (ab|cd) D_ab; K_ac += (ab|cd) D_bd, K_ad += .. D_bc, K_bc += .. D_ad, K_bd += .. D_ac;
// the drivers add the transposes.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace jaxqc {
namespace JAXQC_ISA {

typedef double __attribute__((may_alias)) Scalar;

struct DigestDims {
  int na, nb, nc, nd;
};

// Dimensions fixed at compile time where the template arguments are positive. `work` holds 4 (na + nb) (nc + nd) packs where they are not.
template <int TA, int TB, int TC, int TD>
RCG_INLINE void digest_exchange(const DigestDims& m, const Pack* v, const double* density, double* k, int nao, int i, int j, const int* ks,
                                const int* ls, Pack factor, Pack* work) {
  const int NA = TA ? TA : m.na, NB = TB ? TB : m.nb, NC = TC ? TC : m.nc, ND = TD ? TD : m.nd;
  constexpr bool fixed = TA > 0;
  Pack local[fixed ? 2 * (TA + TB) * (TC + TD) : 1];
  Pack* w = fixed ? local : work;
  Pack *dac = w, *dad = dac + NA * NC, *dbc = dad + NA * ND, *dbd = dbc + NB * NC;
  Pack *kac = dbd + NB * ND, *kad = kac + NA * NC, *kbc = kad + NA * ND, *kbd = kbc + NB * NC;
  // Blocks D_ac, D_ad, D_bc, D_bd, weighted by the coincidence factors.
  auto rows = [&](int n, int first, Pack* to_c, Pack* to_d) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int x = 0; x < n; ++x) {
      const double* r = density + static_cast<int64_t>(first + x) * nao;
      if constexpr (fixed) {
        gather_rows<TC ? TC : 1>(r, ks, to_c + x * TC);
        gather_rows<TD ? TD : 1>(r, ls, to_d + x * TD);
      } else {
        gather_rows(NC, r, ks, to_c + x * NC);
        gather_rows(ND, r, ls, to_d + x * ND);
      }
    }
    for (int x = 0; x < n * NC; ++x) to_c[x] *= factor;
    for (int x = 0; x < n * ND; ++x) to_d[x] *= factor;
  };
  rows(NA, i, dac, dad);
  rows(NB, j, dbc, dbd);
  for (int x = 0; x < (NA + NB) * (NC + ND); ++x) kac[x] = Pack{};
#pragma GCC unroll 4
  for (int a = 0; a < NA; ++a)
#pragma GCC unroll 4
    for (int b = 0; b < NB; ++b) {
      const Pack* x = v + (a * NB + b) * NC * ND;
      if constexpr (TD > 0) {
        // Rows of c and d partial sums stay in registers.
        Pack sad[TD], sbd[TD], gbd[TD], gad[TD];
#pragma GCC unroll 16
        for (int d = 0; d < TD; ++d) {
          sad[d] = kad[a * ND + d];
          sbd[d] = kbd[b * ND + d];
          gbd[d] = dbd[b * ND + d];
          gad[d] = dad[a * ND + d];
        }
#pragma GCC unroll 4
        for (int c = 0; c < NC; ++c) {
          Pack sac = kac[a * NC + c], sbc = kbc[b * NC + c];
          const Pack gbc = dbc[b * NC + c], gac = dac[a * NC + c];
#pragma GCC unroll 16
          for (int d = 0; d < TD; ++d) {
            const Pack e = x[c * TD + d];
            sac += e * gbd[d];
            sbc += e * gad[d];
            sad[d] += e * gbc;
            sbd[d] += e * gac;
          }
          kac[a * NC + c] = sac;
          kbc[b * NC + c] = sbc;
        }
#pragma GCC unroll 16
        for (int d = 0; d < TD; ++d) {
          kad[a * ND + d] = sad[d];
          kbd[b * ND + d] = sbd[d];
        }
      } else {
        for (int c = 0; c < NC; ++c)
          for (int d = 0; d < ND; ++d) {
            const Pack e = x[c * ND + d];
            kac[a * NC + c] += e * dbd[b * ND + d];
            kbc[b * NC + c] += e * dad[a * ND + d];
            kad[a * ND + d] += e * dbc[b * NC + c];
            kbd[b * ND + d] += e * dac[a * NC + c];
          }
      }
    }
  // Lane by lane into the rows of K: neighbouring lanes may share addresses.
  auto flush = [&](int n, int first, const Pack* from_c, const Pack* from_d) __attribute__((always_inline)) {
    for (int l = 0; l < W; ++l) {
      double* r = k + static_cast<int64_t>(first) * nao;
      double *rc = r + ks[l], *rd = r + ls[l];
#pragma GCC unroll 8
      for (int x = 0; x < n; ++x, rc += nao, rd += nao) {
#pragma GCC unroll 8
        for (int c = 0; c < NC; ++c) rc[c] += reinterpret_cast<const Scalar*>(from_c + x * NC + c)[l];
#pragma GCC unroll 8
        for (int d = 0; d < ND; ++d) rd[d] += reinterpret_cast<const Scalar*>(from_d + x * ND + d)[l];
      }
    }
  };
  flush(NA, i, kac, kad);
  flush(NB, j, kbc, kbd);
}

// jab: running sums of the bra pair; dab: twice its density; jcd, dcd: component-major arrays of the ket class.
RCG_INLINE void digest_coulomb(int nab, int ncd, const Pack* v, const double* dab, Pack* jab, const double* dcd, double* jcd, int64_t n, int k0,
                               Pack factor) {
  // Four ket components at a time: their sums stay in registers, those of the bra are read and written once for the four.
  int c = 0;
  for (; c + 4 <= ncd; c += 4) {
    Pack d[4], s[4];
#pragma GCC unroll 4
    for (int x = 0; x < 4; ++x) {
      d[x] = factor * load(dcd + (c + x) * n + k0);
      s[x] = Pack{};
    }
    for (int a = 0; a < nab; ++a) {
      const Pack* e = v + a * ncd + c;
      Pack j = jab[a];
#pragma GCC unroll 4
      for (int x = 0; x < 4; ++x) {
        j += e[x] * d[x];
        s[x] += e[x] * dab[a];
      }
      jab[a] = j;
    }
#pragma GCC unroll 4
    for (int x = 0; x < 4; ++x) {
      double* o = jcd + (c + x) * n + k0;
      store(o, load(o) + factor * s[x]);
    }
  }
  for (; c < ncd; ++c) {
    const Pack d = factor * load(dcd + c * n + k0);
    Pack s = Pack{};
    for (int a = 0; a < nab; ++a) {
      const Pack e = v[a * ncd + c];
      jab[a] += e * d;
      s += e * dab[a];
    }
    double* o = jcd + c * n + k0;
    store(o, load(o) + factor * s);
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
