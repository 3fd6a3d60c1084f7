// Pieces of the first-derivative kernels that live on contracted quartets.
//
// With Gamma the density block of a quartet, the energy is sum Gamma (ab|cd) = sum gamma_ef [e0|f0], gamma = Gamma carried back through both
// horizontal recurrences. Its derivative with respect to a centre has a part from the primitive integrals at fixed gamma, and a part from the
// recurrences themselves: d(ab|/dAB_i = b_i (a b-1_i|.
#pragma once
#include <algorithm>

#include "hrr_tape.h"
#include "kernels.h"
#include "primitives.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Transposed tape: in[row * in_row + column * in_column] over the functions (ab) -> out[row * out_row + column * out_column] over (e0|.
template <class Shift>
inline void apply_transposed(const HrrTape& t, const Pack* in, int in_row, int in_column, Pack* out, int out_row, int out_column, int columns,
                             const Shift* ab, Pack* rows, int chunk) {
  for (int c0 = 0; c0 < columns; c0 += chunk) {
    const int n = std::min(chunk, columns - c0);
    std::memset(static_cast<void*>(rows), 0, sizeof(Pack) * t.rows * chunk);
    for (int r = 0; r < t.outputs; ++r)
      for (int c = 0; c < n; ++c) rows[(t.first_output + r) * chunk + c] = in[r * in_row + (c0 + c) * in_column];
    for (size_t k = t.sums.size(); k-- > 0;) {
      const HrrTape::Sum& s = t.sums[k];
      for (int m = s.begin; m < s.end; ++m)
        for (int c = 0; c < n; ++c) rows[t.terms[m].source * chunk + c] += t.terms[m].weight * rows[s.out * chunk + c];
    }
    for (size_t k = t.shifts.size(); k-- > 0;) {
      const HrrTape::Shift& s = t.shifts[k];
      const Shift d = ab[s.axis];
      for (int c = 0; c < n; ++c) {
        const Pack v = rows[s.out * chunk + c];
        rows[s.up * chunk + c] += v;
        rows[s.same * chunk + c] += d * v;
      }
    }
    for (int r = 0; r < t.inputs; ++r)
      for (int c = 0; c < n; ++c) out[r * out_row + (c0 + c) * out_column] = rows[r * chunk + c];
  }
}

// out[i] += sum over columns and functions of gamma_ab d(ab|/dAB_i, with (e0| in h.
template <class Shift>
inline void explicit_terms(const HrrTape& t, bool cart, const Pack* gamma, int g_row, int g_column, const Pack* h, int h_row, int h_column,
                           int columns, const Shift* ab, Pack* out, Pack* rows) {
  const int la = t.la, lb = t.lb;
  if (lb == 0) return;
  const int na = nfunc(la, cart), nb = nfunc(lb, cart), nca = ncart(la), ncb = ncart(lb), ncl = ncart(lb - 1);
  const double *ta = spherical_matrix(la).data(), *tb = spherical_matrix(lb).data();
  if (lb == 1) {  // (a b-1_i| are the (a0| themselves
    for (int col = 0; col < columns; ++col)
      for (int i = 0; i < nca; ++i) {
        const Pack f = h[i * h_row + col * h_column];
        for (int axis = 0; axis < 3; ++axis) {
          const Pack* g = gamma + axis * g_row + col * g_column;
          Pack v = Pack{};
          if (cart || la < 2)
            v = g[3 * i * g_row];
          else
            for (int a = 0; a < na; ++a)
              if (ta[a * nca + i] != 0.0) v += ta[a * nca + i] * g[3 * a * g_row];
          out[axis] += v * f;
        }
      }
    return;
  }
  const int first = t.first_of_level[lb - 1], shifts = t.shifts_to_level[lb - 1];
  Pack* half = rows + t.rows;  // (na, ncb)
  for (int col = 0; col < columns; ++col) {
    const Pack* g = gamma + col * g_column;
    for (int r = 0; r < t.inputs; ++r) rows[r] = h[r * h_row + col * h_column];
    for (int k = 0; k < shifts; ++k) {
      const HrrTape::Shift& s = t.shifts[k];
      rows[s.out] = rows[s.up] + ab[s.axis] * rows[s.same];
    }
    for (int a = 0; a < na; ++a)
      for (int j = 0; j < ncb; ++j) {
        Pack v = Pack{};
        if (cart || lb < 2)
          v = g[(a * nb + j) * g_row];
        else
          for (int b = 0; b < nb; ++b)
            if (tb[b * ncb + j] != 0.0) v += tb[b * ncb + j] * g[(a * nb + b) * g_row];
        half[a * ncb + j] = v;
      }
    for (int i = 0; i < nca; ++i) {
      int j = 0;
      for (int x = lb; x >= 0; --x)
        for (int y = lb - x; y >= 0; --y, ++j) {
          Pack v = Pack{};
          if (cart || la < 2)
            v = half[i * ncb + j];
          else
            for (int a = 0; a < na; ++a)
              if (ta[a * nca + i] != 0.0) v += ta[a * nca + i] * half[a * ncb + j];
          const int power[3] = {x, y, lb - x - y};
          for (int axis = 0; axis < 3; ++axis) {
            if (power[axis] == 0) continue;
            const int ly = power[1] - (axis == 1), lz = power[2] - (axis == 2);
            out[axis] += (power[axis] * v) * rows[first + i * ncl + (ly + lz) * (ly + lz + 1) / 2 + lz];
          }
        }
    }
  }
}
inline size_t explicit_rows(const HrrTape& t) { return static_cast<size_t>(t.rows) + static_cast<size_t>(ncart(t.la)) * ncart(t.lb); }

// Gamma of a pack: 4 (P_ab D_cd + P_cd D_ab) for J and 2 (P_ac D_bd + P_ad D_bc + P_bc D_ad + P_bd D_ac) for K, summed over the sets.
struct GammaWork {
  int na, nb, nc, nd;
  Pack* rows;  // 4 (na + nb) (nc + nd)
};
template <int TA, int TB, int TC, int TD>
RCG_INLINE void form_gamma(const GradientRequest& r, const GammaWork& m, int i, int j, const int* ks, const int* ls, Pack factor, Pack* gamma) {
  const int NA = TA ? TA : m.na, NB = TB ? TB : m.nb, NC = TC ? TC : m.nc, ND = TD ? TD : m.nd;
  std::memset(static_cast<void*>(gamma), 0, sizeof(Pack) * NA * NB * NC * ND);
  const int64_t nao = r.nao;
  for (int s = 0; s < r.nset; ++s) {
    const double *d = r.density[s], *pj = r.weight_j[s], *pk = r.weight_k[s];
    if (r.coulomb && pj != nullptr) {
      Pack *dcd = m.rows, *pcd = dcd + NC * ND;
      for (int c = 0; c < NC; ++c)
        for (int x = 0; x < ND; ++x) {
          Pack u, v;
          for (int l = 0; l < W; ++l) {
            const int64_t at = static_cast<int64_t>(ks[l] + c) * nao + ls[l] + x;
            u[l] = d[at];
            v[l] = pj[at];
          }
          dcd[c * ND + x] = 4.0 * factor * u;
          pcd[c * ND + x] = 4.0 * factor * v;
        }
      for (int a = 0; a < NA; ++a)
        for (int b = 0; b < NB; ++b) {
          const double dab = d[(i + a) * nao + j + b], pab = pj[(i + a) * nao + j + b];
          Pack* g = gamma + (a * NB + b) * NC * ND;
          for (int c = 0; c < NC * ND; ++c) g[c] += pab * dcd[c] + dab * pcd[c];
        }
    }
    if (r.exchange && pk != nullptr) {
      Pack *dac = m.rows, *dad = dac + NA * NC, *dbc = dad + NA * ND, *dbd = dbc + NB * NC;
      Pack *pac = dbd + NB * ND, *pad = pac + NA * NC, *pbc = pad + NA * ND, *pbd = pbc + NB * NC;
      const Pack twice = 2.0 * factor;
      auto rows = [&](int n, int first, const double* from, Pack* to_c, Pack* to_d) __attribute__((always_inline)) {
        for (int x = 0; x < n; ++x) {
          const double* u = from + (first + x) * nao;
          if constexpr (TA > 0) {
            gather_rows<TC ? TC : 1>(u, ks, to_c + x * TC);
            gather_rows<TD ? TD : 1>(u, ls, to_d + x * TD);
          } else {
            gather_rows(NC, u, ks, to_c + x * NC);
            gather_rows(ND, u, ls, to_d + x * ND);
          }
        }
      };
      rows(NA, i, d, dac, dad);
      rows(NB, j, d, dbc, dbd);
      rows(NA, i, pk, pac, pad);
      rows(NB, j, pk, pbc, pbd);
      for (int x = 0; x < (NA + NB) * (NC + ND); ++x) dac[x] *= twice;
      for (int a = 0; a < NA; ++a)
        for (int b = 0; b < NB; ++b) {
          Pack* g = gamma + (a * NB + b) * NC * ND;
          for (int c = 0; c < NC; ++c) {
            const Pack uac = dac[a * NC + c], vac = pac[a * NC + c], ubc = dbc[b * NC + c], vbc = pbc[b * NC + c];
            for (int x = 0; x < ND; ++x)
              g[c * ND + x] += vac * dbd[b * ND + x] + uac * pbd[b * ND + x] + vbc * dad[a * ND + x] + ubc * pad[a * ND + x];
          }
        }
    }
  }
}

// Sums over primitives, turned into derivatives with respect to A, B and C (D follows from translation).
struct CentreSums {
  Pack a[3], b[3], c[3];
  static inline __attribute__((always_inline)) void clear(CentreSums& s) {
    for (int i = 0; i < 3; ++i) s.a[i] = s.b[i] = s.c[i] = Pack{};
  }
  // out: sum gamma [e|f], gamma [e+1_i|f], gamma e_i [e-1_i|f], gamma f_i [e|f-1_i] of one primitive quartet.
  static inline __attribute__((always_inline)) void add(CentreSums& s, const Quartet& q, const Pack* out, const double* ab, const Pack* cd) {
    const double b2 = 2.0 * q.p - q.a2;
    const Pack d2 = 2.0 * q.q - q.c2;
    for (int i = 0; i < 3; ++i) {
      const Pack up = out[1 + i];
      s.a[i] += q.a2 * up - out[4 + i];
      s.b[i] += b2 * (up + ab[i] * out[0]);
      // 2q [e|f+1_i] from translational invariance of the primitive quartet
      const Pack ket = -(2.0 * q.p * up + (b2 * ab[i]) * out[0] - out[4 + i] + d2 * cd[i] * out[0] - out[7 + i]) * q.half_q;
      s.c[i] += q.c2 * ket - out[7 + i];
    }
  }
};

}  // namespace JAXQC_ISA
}  // namespace jaxqc
