// Low classes: the generated straight-line recurrence over packs, one contracted quartet a lane.
#pragma once
#include "boys_pack.h"
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

  __attribute__((noinline)) static void block(const PairList& bra, int ib, const PairList& ket, int k0, int nket, double omega, Pack* v) {
    const double *rows = boys_rows(L), *exp_rows = exp_grid();
    const KetCentres c = ket_centres(ket, k0);
    Pack h[NE * NF];
    for (int x = 0; x < NE * NF; ++x) h[x] = Pack{};
    for_primitives(bra, ib, ket, k0, nket, c, [&](const Quartet& s) __attribute__((always_inline)) {
      Pack f[L + 1];
      quartet_boys<L>(s, omega, rows, exp_rows, f);
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
      block(bra, ib, ket, k0, nprim, r.omega, v);
      return v;
    });
  }
  static size_t scratch(int nset) { return static_cast<size_t>(NA) * NB * (NC * ND + 2 * nset); }
};

struct LineEntry {
  int la, lb, lc, ld;
  void (*block)(const PairList&, int, const PairList&, int, int, double, Pack*);
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
    template <int S>                                                                                                                       \
    RCG_INLINE void bra(const Pack* in, Pack* out, double x, double y, double z) {                                                         \
      hrr_sph_##A##B<S, S, double, Pack>(in, out, x, y, z);                                                                                \
    }                                                                                                                                      \
    RCG_INLINE void ket(const Pack* in, Pack* out, Pack x, Pack y, Pack z) { hrr_sph_##C_##D<1, 1, Pack, Pack>(in, out, x, y, z); }         \
  };

}  // namespace JAXQC_ISA
}  // namespace jaxqc
