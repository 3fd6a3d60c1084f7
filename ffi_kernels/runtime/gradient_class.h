// The first-derivative loop over one range of bra pairs and all kets of a class.
#pragma once
#include "gradient_parts.h"
#include "jk_class.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Largest Gamma that a quartet of each lane can have.
RCG_INLINE Pack gamma_bound(const GradientRequest& r, const PairList& bra, int ib, const PairList& ket, int k0) {
  const size_t n = r.nshell;
  const Index k = load_index(&ket.ish[k0]), l = load_index(&ket.jsh[k0]);
  const size_t i = bra.ish[ib], j = bra.jsh[ib];
  Pack bound = Pack{};
  if (r.coulomb) {
    Pack d, w;
    for (int x = 0; x < W; ++x) {
      const size_t at = static_cast<size_t>(ket.ish[k0 + x]) * n + ket.jsh[k0 + x];
      d[x] = r.bound_d[at];
      w[x] = r.bound_w[at];
    }
    bound = 4.0 * (r.bound_w[i * n + j] * d + r.bound_d[i * n + j] * w);
  }
  if (r.exchange) {
    const double *di = &r.bound_d[i * n], *dj = &r.bound_d[j * n], *wi = &r.bound_w[i * n], *wj = &r.bound_w[j * n];
    bound += 2.0 * (gather(wi, k) * gather(dj, l) + gather(di, k) * gather(wj, l) + gather(wi, l) * gather(dj, k) + gather(di, l) * gather(wj, k));
  }
  return bound;
}

// `derivative(ib, k0, nprim, gamma, sums)` fills the sums of a pack, including the terms of the horizontal recurrences.
template <int TA, int TB, int TC, int TD, class Derivative>
RCG_INLINE void gradient_loop(const GradientRequest& r, const std::vector<PairClass>& classes, const JKTask& task, double* out, Pack* gamma,
                              Pack* rows, Derivative&& derivative) {
  const PairList &bra = classes[task.bra].list, &ket = classes[task.ket].list;
  const GammaWork work{bra.na, bra.nb, ket.na, ket.nb, rows};
  const double most = (r.coulomb ? 8.0 : 0.0) + (r.exchange ? 8.0 : 0.0);
  const size_t nbuckets = ket.buckets.size() - 1;
  for (int ib = task.begin; ib < task.end; ++ib) {
    if (bra.q[ib] < 0) continue;
    const double reach = bra.q[ib] * most * r.density_max * r.weight_max;
    Pack sa[3] = {Pack{}, Pack{}, Pack{}}, sb[3] = {Pack{}, Pack{}, Pack{}};
    for (size_t b = 0; b < nbuckets; ++b) {
      if (task.same && ket.buckets[b] > ib) break;
      for (int k0 = ket.buckets[b]; k0 < ket.buckets[b + 1]; k0 += W) {
        if ((task.same && k0 > ib) || reach * ket.q[k0] <= r.threshold) break;
        const LaneFactors lanes = lane_factors(bra, ib, ket, k0, task.same, gamma_bound(r, bra, ib, ket, k0), r.threshold);
        if (!lanes.live) continue;
        form_gamma<TA, TB, TC, TD>(r, work, bra.i0[ib], bra.j0[ib], &ket.i0[k0], &ket.j0[k0], lanes.factor, gamma);
        CentreSums s;
        CentreSums::clear(s);
        derivative(ib, k0, lanes.nprim, gamma, s);
        for (int x = 0; x < 3; ++x) {
          sa[x] += s.a[x];
          sb[x] += s.b[x];
          const Pack d = -(s.a[x] + s.b[x] + s.c[x]);
          for (int l = 0; l < W; ++l) {
            if (lanes.factor[l] == 0.0) continue;
            out[3 * ket.ish[k0 + l] + x] += s.c[x][l];
            out[3 * ket.jsh[k0 + l] + x] += d[l];
          }
        }
      }
    }
    for (int x = 0; x < 3; ++x) {
      out[3 * bra.ish[ib] + x] += sum(sa[x]);
      out[3 * bra.jsh[ib] + x] += sum(sb[x]);
    }
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
