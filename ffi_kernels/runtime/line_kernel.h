// Low classes: the generated straight-line recurrence over packs, one contracted quartet a lane.
#pragma once
#include "boys_pack.h"
#include "gradient_class.h"
#include "jk_class.h"
#include "primitives.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Boys functions of one primitive quartet, attenuated where omega > 0.
template <int L>
RCG_INLINE void quartet_boys(const Quartet& s, double omega, const double* rows, const double* exp_rows, Pack* f) {
  if (omega == 0.0) {
    boys<L>(s.t, s.prefactor, rows, exp_rows, f);
  } else {
    const Pack theta2 = attenuation(omega, s);
    Pack scale = theta2 * rsqrt(theta2);
    boys<L>(s.t * theta2, s.prefactor, rows, exp_rows, f);
#pragma GCC unroll 32
    for (int m = 0; m <= L; ++m) {
      f[m] *= scale;
      scale *= theta2;
    }
  }
}

// C: the generated functions of a class (vrr, bra, ket) and its angular momenta.
template <class C>
struct LineClass {
  static constexpr int L = C::LA + C::LB + C::LC + C::LD;
  static constexpr int NE = nlevels(C::LA, C::LB), NF = nlevels(C::LC, C::LD);
  static constexpr int NA = 2 * C::LA + 1, NB = 2 * C::LB + 1, NC = 2 * C::LC + 1, ND = 2 * C::LD + 1;

  __attribute__((noinline)) static void block(const PairList& bra, int ib, const PairList& ket, int k0, int nket, const Operator& op, Pack* v) {
    const double *rows = boys_rows(L), *exp_rows = exp_grid();
    const KetCentres c = ket_centres(ket, k0);
    Pack h[NE * NF];
    for_primitives(bra, ib, ket, k0, nket, c, op.cut, [&](const Quartet& s, auto first) __attribute__((always_inline)) {
      Pack f[L + 1];
      quartet_boys<L>(s, op.omega, rows, exp_rows, f);
      if constexpr (decltype(first)::value)
        C::vrr_first(h, f, s);
      else
        C::vrr(h, f, s);
    });
    Pack g[NA * NB * NF];
    for (int f = 0; f < NF; ++f) C::template bra<NF>(h + f, g + f, bra.dx[ib], bra.dy[ib], bra.dz[ib]);
    for (int a = 0; a < NA * NB; ++a) C::ket(g + a * NF, v + a * NC * ND, c.dx, c.dy, c.dz);
  }

  static void jk(const JKRequest& r, const std::vector<PairClass>& classes, const JKTask& task, JKSlot& slot, Pack* scratch) {
    constexpr int NAB = NA * NB, NV = NAB * NC * ND;
    const PairList &bra = classes[task.bra].list, &ket = classes[task.ket].list;
    Pack *v = scratch, *jab = v + NV;
    double* dab2 = reinterpret_cast<double*>(jab + r.nset * NAB);
    jk_loop<NA, NB, NC, ND>(r, classes, task, slot, jab, dab2, nullptr, [&](int ib, int k0, int nprim) {
      block(bra, ib, ket, k0, nprim, {r.omega, kPrimitiveShare * r.threshold}, v);
      return v;
    });
  }
  static size_t scratch(int nset) { return static_cast<size_t>(NA) * NB * (NC * ND + 2 * nset); }
};

// First derivatives; G: the generated functions of a class with vrr_grad and the transposed recurrences.
template <class G>
struct LineGradient {
  typedef LineClass<G> C;
  static constexpr int NE = C::NE, NF = C::NF, NAB = C::NA * C::NB, NCD = C::NC * C::ND;

  __attribute__((noinline)) static void derivative(const PairList& bra, int ib, const PairList& ket, int k0, int nprim, const Operator& op,
                                                   const Pack* gamma, CentreSums& sums, Pack* work) {
    const double *rows = boys_rows(C::L + 1), *exp_rows = exp_grid();
    const KetCentres c = ket_centres(ket, k0);
    const double ab[3] = {bra.dx[ib], bra.dy[ib], bra.dz[ib]};
    const Pack cd[3] = {c.dx, c.dy, c.dz};
    Pack gamma_f[NAB * NF], gamma_ef[NE * NF], h[NE * NF];
    for (int a = 0; a < NAB; ++a) G::ket_t(gamma + a * NCD, gamma_f + a * NF, c.dx, c.dy, c.dz);
    for (int f = 0; f < NF; ++f) G::template bra_t<NF>(gamma_f + f, gamma_ef + f, ab[0], ab[1], ab[2]);
    for (int x = 0; x < NE * NF; ++x) h[x] = Pack{};
    for_primitives(bra, ib, ket, k0, nprim, c, op.cut, [&](const Quartet& s, auto) __attribute__((always_inline)) {
      Pack f[C::L + 2], out[10];
      for (Pack& v : out) v = Pack{};
      quartet_boys<C::L + 1>(s, op.omega, rows, exp_rows, f);
      G::vrr_grad(gamma_ef, h, out, f, s);
      CentreSums::add(sums, s, out, ab, cd);
    });
    if constexpr (G::LB > 0) {
      Pack extra[3] = {Pack{}, Pack{}, Pack{}};
      explicit_terms(hrr_tape(G::LA, G::LB, false), false, gamma_f, NF, 1, h, NF, 1, NF, ab, extra, work);
      for (int i = 0; i < 3; ++i) {
        sums.a[i] += extra[i];
        sums.b[i] -= extra[i];
      }
    }
    if constexpr (G::LD > 0) {
      Pack extra[3] = {Pack{}, Pack{}, Pack{}}, gamma_e[NE * NCD];
      for (int x = 0; x < NCD; ++x) G::template bra_t<NCD>(gamma + x, gamma_e + x, ab[0], ab[1], ab[2]);
      explicit_terms(hrr_tape(G::LC, G::LD, false), false, gamma_e, 1, NCD, h, 1, NF, NE, cd, extra, work);
      for (int i = 0; i < 3; ++i) sums.c[i] += extra[i];
    }
  }

  static void gradient(const GradientRequest& r, const std::vector<PairClass>& classes, const JKTask& task, double* out, Pack* scratch) {
    const PairList &bra = classes[task.bra].list, &ket = classes[task.ket].list;
    Pack *gamma = scratch, *rows = gamma + NAB * NCD, *work = rows + kRows;
    gradient_loop<C::NA, C::NB, C::NC, C::ND>(r, classes, task, out, gamma, rows, [&](int ib, int k0, int nprim, const Pack* block, CentreSums& sums) {
      derivative(bra, ib, ket, k0, nprim, {r.omega, kPrimitiveShare * r.threshold}, block, sums, work);
    });
  }
  static constexpr int kRows = 4 * (C::NA + C::NB) * (C::NC + C::ND) + 2 * NCD;
  static size_t scratch() {
    return NAB * NCD + kRows + std::max(explicit_rows(hrr_tape(G::LA, G::LB, false)), explicit_rows(hrr_tape(G::LC, G::LD, false)));
  }
};

struct LineGradientEntry {
  int la, lb, lc, ld;
  void (*gradient)(const GradientRequest&, const std::vector<PairClass>&, const JKTask&, double*, Pack*);
  size_t (*scratch)();
};

struct LineEntry {
  int la, lb, lc, ld;
  void (*block)(const PairList&, int, const PairList&, int, int, const Operator&, Pack*);
  void (*jk)(const JKRequest&, const std::vector<PairClass>&, const JKTask&, JKSlot&, Pack*);
  size_t (*scratch)(int nset);
};

// The generated functions of a class as members, for the macro lists that the generator writes.
#define JAXQC_LINE_CLASS(A, B, C_, D)                                                                                                      \
  struct Generated##A##B##C_##D {                                                                                                          \
    static constexpr int LA = A, LB = B, LC = C_, LD = D;                                                                                  \
    RCG_INLINE void vrr(Pack* h, const Pack* f, const Quartet& s) {                                                                        \
      vrr_##A##B##C_##D<double, Pack>(h, f, s.pax, s.pay, s.paz, s.qcx, s.qcy, s.qcz, -s.rho_p * s.x, -s.rho_p * s.y, -s.rho_p * s.z,      \
                                      s.rho_q * s.x, s.rho_q * s.y, s.rho_q * s.z, s.half_p, s.half_q, s.half_pq, s.rho_p, s.rho_q);       \
    }                                                                                                                                      \
    RCG_INLINE void vrr_first(Pack* h, const Pack* f, const Quartet& s) {                                                                  \
      vrr_first_##A##B##C_##D<double, Pack>(h, f, s.pax, s.pay, s.paz, s.qcx, s.qcy, s.qcz, -s.rho_p * s.x, -s.rho_p * s.y,                \
                                            -s.rho_p * s.z, s.rho_q * s.x, s.rho_q * s.y, s.rho_q * s.z, s.half_p, s.half_q, s.half_pq,    \
                                            s.rho_p, s.rho_q);                                                                             \
    }                                                                                                                                      \
    template <int S>                                                                                                                       \
    RCG_INLINE void bra(const Pack* in, Pack* out, double x, double y, double z) {                                                         \
      hrr_sph_##A##B<S, S, double, Pack>(in, out, x, y, z);                                                                                \
    }                                                                                                                                      \
    RCG_INLINE void ket(const Pack* in, Pack* out, Pack x, Pack y, Pack z) { hrr_sph_##C_##D<1, 1, Pack, Pack>(in, out, x, y, z); }         \
  };
#define JAXQC_LINE_GRADIENT_CLASS(A, B, C_, D)                                                                                             \
  struct GeneratedGradient##A##B##C_##D : Generated##A##B##C_##D {                                                                         \
    RCG_INLINE void vrr_grad(const Pack* gamma, Pack* h, Pack* out, const Pack* f, const Quartet& s) {                                     \
      vrr_grad_##A##B##C_##D<double, Pack>(gamma, h, out, f, s.pax, s.pay, s.paz, s.qcx, s.qcy, s.qcz, -s.rho_p * s.x, -s.rho_p * s.y,     \
                                           -s.rho_p * s.z, s.rho_q * s.x, s.rho_q * s.y, s.rho_q * s.z, s.half_p, s.half_q, s.half_pq,     \
                                           s.rho_p, s.rho_q);                                                                              \
    }                                                                                                                                      \
    template <int S>                                                                                                                       \
    RCG_INLINE void bra_t(const Pack* in, Pack* out, double x, double y, double z) {                                                       \
      hrr_t_sph_##A##B<S, S, double, Pack>(in, out, x, y, z);                                                                              \
    }                                                                                                                                      \
    RCG_INLINE void ket_t(const Pack* in, Pack* out, Pack x, Pack y, Pack z) { hrr_t_sph_##C_##D<1, 1, Pack, Pack>(in, out, x, y, z); }     \
  };

}  // namespace JAXQC_ISA
}  // namespace jaxqc
