// Loops over the primitives of one bra pair (uniform over the lanes) and a pack of ket pairs.
#pragma once
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

template <class Body>
RCG_INLINE void for_primitives(const PairList& bra, int ib, const PairList& ket, int k0, int nket, const KetCentres& c, Body&& body) {
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
    for (int m = 0; m < nket; ++m) {
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
      body(s);
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
