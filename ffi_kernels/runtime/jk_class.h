// The J/K loop over one range of bra pairs and all kets of a class: screening, integral block, digestion.
#pragma once
#include <algorithm>

#include "digest.h"
#include "kernels.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Weights of the lanes of a pack: 0 where screened or not the canonical quartet, 1/2 for each coincidence of shells or pairs.
struct LaneFactors {
  Pack factor;
  int nprim;
  bool live;
};

// Largest density elements that meet an integral of the bra with each ket of the pack: 4 |D_ab| and 4 |D_cd| in J, |D_ac| ... in K.
struct DensityBounds {
  Pack coulomb, exchange;
};
// `row`: the largest in the rows of the bra's shells; the blocks themselves are looked up only where that is not enough to leave K out.
RCG_INLINE DensityBounds density_bounds(const JKRequest& r, const PairClass& ket, int k0, double qab, double dab, double row, const double* row_i,
                                        const double* row_j) {
  DensityBounds b{Pack{}, Pack{}};
  if (r.coulomb) b.coulomb = max(splat(dab), load(&ket.density_max[k0]));
  if (r.exchange && any(qab * row * load(&ket.list.q[k0]) > splat(r.threshold))) {
    const Index k = load_index(&ket.list.ish[k0]), l = load_index(&ket.list.jsh[k0]);
    b.exchange = max(max(gather(row_i, k), gather(row_i, l)), max(gather(row_j, k), gather(row_j, l)));
  }
  return b;
}

RCG_INLINE LaneFactors lane_factors(const PairList& bra, int ib, const PairList& ket, int k0, bool same, Pack bound, double threshold) {
  const Pack q = bra.q[ib] * load(&ket.q[k0]);
  const Mask keep = q * bound > splat(threshold);
  LaneFactors out{Pack{}, 0, false};
  if (!any(keep)) return out;
  out.live = true;
  out.nprim = ket.most[k0];
  out.factor = keep ? bra.weight[ib] * load(&ket.weight[k0]) : Pack{};
  if (same && k0 + W > ib)  // the pack that holds the bra itself
    for (int l = 0; l < W; ++l) {
      if (k0 + l > ib) out.factor[l] = 0.0;
      if (k0 + l == ib) out.factor[l] *= 0.5;
    }
  return out;
}

// `block(ib, k0, nprim)` returns the pack of integrals; TA..TD as in digest_exchange, all zero for run-time dimensions.
template <int TA, int TB, int TC, int TD, class Block>
RCG_INLINE void jk_loop(const JKRequest& r, const std::vector<PairClass>& classes, const JKTask& task, JKSlot& slot, Pack* jab, double* dab2,
                        Pack* digest_work, Block&& block) {
  const PairClass &bc = classes[task.bra], &kc = classes[task.ket];
  const PairList &bra = bc.list, &ket = kc.list;
  const DigestDims dims{bra.na, bra.nb, ket.na, ket.nb};
  const int nab = bra.na * bra.nb, ncd = ket.na * ket.nb;
  const size_t nbuckets = ket.buckets.size() - 1;
  for (int ib = task.begin; ib < task.end; ++ib) {
    if (bra.q[ib] < 0) continue;
    const double dab = bc.density_max[ib];
    const double *row_i = &r.shell_max[static_cast<size_t>(bra.ish[ib]) * r.nshell], *row_j = &r.shell_max[static_cast<size_t>(bra.jsh[ib]) * r.nshell];
    const double row = r.exchange ? std::max(r.row_max[bra.ish[ib]], r.row_max[bra.jsh[ib]]) : 0.0;
    const double reach = bra.q[ib] * std::max(row, r.coulomb ? std::max(dab, kc.density_list_max) : 0.0);
    if (r.coulomb)
      for (int s = 0; s < r.nset; ++s)
        for (int a = 0; a < nab; ++a) {
          jab[s * nab + a] = Pack{};
          dab2[s * nab + a] = 2.0 * bc.density[s][static_cast<size_t>(a) * bra.n + ib];
        }
    for (size_t b = 0; b < nbuckets; ++b) {
      if (task.same && ket.buckets[b] > ib) break;
      for (int k0 = ket.buckets[b]; k0 < ket.buckets[b + 1]; k0 += W) {
        if ((task.same && k0 > ib) || reach * ket.q[k0] <= r.threshold) break;
        const DensityBounds bounds = density_bounds(r, kc, k0, bra.q[ib], dab, row, row_i, row_j);
        const LaneFactors lanes = lane_factors(bra, ib, ket, k0, task.same, max(bounds.coulomb, bounds.exchange), r.threshold);
        if (!lanes.live) continue;
        const Pack* v = block(ib, k0, lanes.nprim);
        // J and K each have their own bound: a pack may matter to one of them only.
        const Pack q = bra.q[ib] * load(&ket.q[k0]);
        const bool to_j = any(q * bounds.coulomb > splat(r.threshold)), to_k = any(q * bounds.exchange > splat(r.threshold));
        for (int s = 0; s < r.nset; ++s) {
          if (to_j)
            digest_coulomb(TA ? TA * TB : nab, TC ? TC * TD : ncd, v, dab2 + s * nab, jab + s * nab, kc.density[s].data(),
                           slot.j[task.ket][s].data(), ket.n, k0, lanes.factor);
          if (to_k)
            digest_exchange<TA, TB, TC, TD>(dims, v, r.density[s], slot.k[s].data(), r.nao, bra.i0[ib], bra.j0[ib], &ket.i0[k0], &ket.j0[k0],
                                            lanes.factor, digest_work);
        }
      }
    }
    if (r.coulomb)
      for (int s = 0; s < r.nset; ++s)
        for (int a = 0; a < nab; ++a) slot.j[task.bra][s][static_cast<size_t>(a) * bra.n + ib] += 2.0 * sum(jab[s * nab + a]);
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
