// Loops over the primitives of one bra pair (uniform over the lanes) and a pack of ket pairs.
#pragma once
#include <type_traits>

#include "pairs.h"
#include "simd.h"

namespace jaxqc {
namespace JAXQC_ISA {

constexpr double kTwoPi52 = 34.986836655249725693;  // 2 pi^(5/2)

// Everything that a recurrence needs of one primitive quartet: the names are those of the HGP equations.
struct Quartet {
  double p, half_p, pax, pay, paz;
  Pack q, half_q, half_pq, qcx, qcy, qcz, x, y, z, rho_p, rho_q, t, prefactor;
  double a2;
  Pack c2;
};

struct KetCentres {
  Pack cx, cy, cz, dx, dy, dz;
};
RCG_INLINE KetCentres ket_centres(const PairList& ket, int k0) {
  return {load(&ket.ax[k0]), load(&ket.ay[k0]), load(&ket.az[k0]), load(&ket.dx[k0]), load(&ket.dy[k0]), load(&ket.dz[k0])};
}

// Operator and accuracy of an integral pack.
struct Operator {
  double omega;  // 0: 1/r, else erf(omega r)/r
  double cut;    // primitive quartets whose bound (product of PairList::size) is smaller are left out
};

// Bound of a dropped primitive quartet relative to the threshold of the build: a contracted quartet may lose some hundred of them.
constexpr double kPrimitiveShare = 1e-4;

// Calls body(quartet, first) for each primitive quartet; `first` (a std::true_type once, then std::false_type) lets it store before it adds.
// Primitives are sorted by falling size, so both loops end at the first that is too small. At least one quartet is visited.
template <class Body>
RCG_INLINE void for_primitives(const PairList& bra, int ib, const PairList& ket, int k0, int nket, const KetCentres& c, double cut, Body&& body) {
  const double gx = bra.ax[ib], gy = bra.ay[ib], gz = bra.az[ib];
  for (int k = 0; k < bra.nprim[ib]; ++k) {
    const int ip = bra.prim(ib, k);
    Quartet s;
    s.p = bra.p[ip];
    const double px = bra.x[ip], py = bra.y[ip], pz = bra.z[ip], weight = kTwoPi52 * bra.c[ip];
    s.half_p = 0.5 * bra.ip[ip];
    s.a2 = bra.a2[ip];
    s.pax = px - gx;
    s.pay = py - gy;
    s.paz = pz - gz;
    const double limit = cut / bra.size[ip];
    const double* ket_size = &ket.pack_size[ket.base[k0] / kLanes];
    if (k > 0 && ket_size[0] < limit) break;
    for (int m = 0; m < nket; ++m) {
      if (m > 0 && ket_size[m] < limit) break;
      const int iq = ket.base[k0] + m * kLanes;
      s.q = load(&ket.p[iq]);
      s.half_q = 0.5 * load(&ket.ip[iq]);
      s.c2 = load(&ket.a2[iq]);
      const Pack qx = load(&ket.x[iq]), qy = load(&ket.y[iq]), qz = load(&ket.z[iq]);
      const Pack r = rsqrt(s.p + s.q), ipq = r * r;
      s.rho_p = s.q * ipq;
      s.rho_q = s.p * ipq;
      s.half_pq = 0.5 * ipq;
      s.x = px - qx;
      s.y = py - qy;
      s.z = pz - qz;
      s.t = s.p * s.rho_p * (s.x * s.x + s.y * s.y + s.z * s.z);
      s.prefactor = weight * load(&ket.c[iq]) * r;
      s.qcx = qx - c.cx;
      s.qcy = qy - c.cy;
      s.qcz = qz - c.cz;
      if (k + m == 0)
        body(s, std::true_type());
      else
        body(s, std::false_type());
    }
  }
}

// erf(omega r)/r: T and the quadrature shrink by theta^2 = omega^2 / (omega^2 + rho).
RCG_INLINE Pack attenuation(double omega, const Quartet& s) {
  const double w2 = omega * omega;
  return w2 / (w2 + s.p * s.rho_p);
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
