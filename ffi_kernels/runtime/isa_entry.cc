// The kernel table of one instruction set; compiled once for each with JAXQC_ISA and JAXQC_W set.
#include "line_kernel.h"
#include "rys_gradient.h"

namespace jaxqc {
namespace JAXQC_ISA {

#define JAXQC_GROUP_DECLARATION(k)              \
  const LineEntry* line_group_##k(int* count); \
  const LineGradientEntry* line_gradient_group_##k(int* count);
JAXQC_GROUPS(JAXQC_GROUP_DECLARATION)

namespace {

// The straight-line kernel of a spherical class, or null.
template <class Entry>
const Entry* find_entry(const std::vector<Entry>& all, const PairList& bra, const PairList& ket) {
  const bool spherical = !bra.cart || std::max({bra.la, bra.lb, ket.la, ket.lb}) <= 1;
  if (spherical)
    for (const Entry& e : all)
      if (e.la == bra.la && e.lb == bra.lb && e.lc == ket.la && e.ld == ket.lb) return &e;
  return nullptr;
}
template <class Entry>
void append(std::vector<Entry>& all, const Entry* (*group)(int*)) {
  int n = 0;
  const Entry* e = group(&n);
  all.insert(all.end(), e, e + n);
}
const LineEntry* find_line(const PairList& bra, const PairList& ket) {
  static const std::vector<LineEntry> all = [] {
    std::vector<LineEntry> v;
#define JAXQC_COLLECT(k) append(v, line_group_##k);
    JAXQC_GROUPS(JAXQC_COLLECT)
    return v;
  }();
  return find_entry(all, bra, ket);
}
const LineGradientEntry* find_line_gradient(const PairList& bra, const PairList& ket) {
  static const std::vector<LineGradientEntry> all = [] {
    std::vector<LineGradientEntry> v;
#define JAXQC_COLLECT_GRADIENT(k) append(v, line_gradient_group_##k);
    JAXQC_GROUPS(JAXQC_COLLECT_GRADIENT)
    return v;
  }();
  return find_entry(all, bra, ket);
}

Pack* packs(Workspace& w, size_t n) {
  const uintptr_t p = reinterpret_cast<uintptr_t>(w.get(n * W + 8));
  return reinterpret_cast<Pack*>((p + 63) & ~static_cast<uintptr_t>(63));
}

void block(const PairList& bra, int ib, const PairList& ket, int k0, double omega, double* v, Workspace& work) {
  int nket = 1;
  for (int l = 0; l < W; ++l) nket = std::max(nket, ket.nprim[k0 + l]);
  const size_t nv = static_cast<size_t>(bra.na) * bra.nb * ket.na * ket.nb;
  if (const LineEntry* line = find_line(bra, ket)) {
    Pack* w = packs(work, nv);
    line->block(bra, ib, ket, k0, nket, {omega, 0.0}, w);
    std::memcpy(v, w, nv * sizeof(Pack));
    return;
  }
  const RysPlan plan(bra, ket);
  Pack* w = packs(work, nv + plan.total);
  rys_block(plan, bra, ib, ket, k0, nket, {omega, 0.0}, w, w + nv);
  std::memcpy(v, w, nv * sizeof(Pack));
}

void schwarz(const PairList& pairs, double omega, double* q) {
  Workspace work;
  const int n = pairs.na * pairs.nb;
  const size_t nv = static_cast<size_t>(n) * n;
  const RysPlan plan(pairs, pairs);
  const LineEntry* line = find_line(pairs, pairs);
  Pack* v = packs(work, nv + plan.total);
  for (int i = 0; i < pairs.n; ++i) {
    const int k0 = i / W * W;
    if (pairs.q[i] < 0) continue;
    if (line)
      line->block(pairs, i, pairs, k0, pairs.nprim[i], {omega, 0.0}, v);
    else
      rys_block(plan, pairs, i, pairs, k0, pairs.nprim[i], {omega, 0.0}, v, v + nv);
    double most = 0;
    for (int a = 0; a < n; ++a) most = std::max(most, std::fabs(v[a * n + a][i - k0]));
    q[i] = std::sqrt(most);
  }
}

void jk_rys(const JKRequest& r, const std::vector<PairClass>& classes, const JKTask& task, JKSlot& slot, Workspace& work) {
  const PairList &bra = classes[task.bra].list, &ket = classes[task.ket].list;
  const RysPlan plan(bra, ket);
  const size_t nv = static_cast<size_t>(plan.nab) * plan.ncd, nj = static_cast<size_t>(r.nset) * plan.nab;
  const size_t nd = 2 * static_cast<size_t>(bra.na + bra.nb) * (ket.na + ket.nb);
  Pack* v = packs(work, nv + nd + 2 * nj + plan.total);
  Pack *digest_work = v + nv, *jab = digest_work + nd, *scratch = jab + 2 * nj;
  double* dab2 = reinterpret_cast<double*>(jab + nj);
  auto integrals = [&](int ib, int k0, int nprim) {
    rys_block(plan, bra, ib, ket, k0, nprim, {r.omega, kPrimitiveShare * r.threshold}, v, scratch);
    return v;
  };
  switch (ket.nb) {
    case 1: return jk_loop<0, 0, 0, 1>(r, classes, task, slot, jab, dab2, digest_work, integrals);
    case 3: return jk_loop<0, 0, 0, 3>(r, classes, task, slot, jab, dab2, digest_work, integrals);
    case 5: return jk_loop<0, 0, 0, 5>(r, classes, task, slot, jab, dab2, digest_work, integrals);
    case 7: return jk_loop<0, 0, 0, 7>(r, classes, task, slot, jab, dab2, digest_work, integrals);
    default: return jk_loop<0, 0, 0, 0>(r, classes, task, slot, jab, dab2, digest_work, integrals);
  }
}

void jk(const JKRequest& r, const std::vector<PairClass>& classes, const JKTask& task, JKSlot& slot, Workspace& work) {
  if (const LineEntry* line = find_line(classes[task.bra].list, classes[task.ket].list))
    line->jk(r, classes, task, slot, packs(work, line->scratch(r.nset)));
  else
    jk_rys(r, classes, task, slot, work);
}

void gradient_rys(const GradientRequest& r, const std::vector<PairClass>& classes, const JKTask& task, double* out, Workspace& work) {
  const PairList &bra = classes[task.bra].list, &ket = classes[task.ket].list;
  const RysGradientPlan plan(bra, ket);
  const size_t nv = static_cast<size_t>(plan.base.nab) * plan.base.ncd, nr = 4 * static_cast<size_t>(bra.na + bra.nb) * (ket.na + ket.nb) + 2 * ket.na * ket.nb;
  Pack* gamma = packs(work, nv + nr + plan.total);
  Pack *rows = gamma + nv, *scratch = rows + nr;
  gradient_loop<0, 0, 0, 0>(r, classes, task, out, gamma, rows, [&](int ib, int k0, int nprim, const Pack* block, CentreSums& sums) {
    rys_gradient(plan, bra, ib, ket, k0, nprim, {r.omega, kPrimitiveShare * r.threshold}, block, sums, scratch);
  });
}

void gradient(const GradientRequest& r, const std::vector<PairClass>& classes, const JKTask& task, double* out, Workspace& work) {
  if (const LineGradientEntry* line = find_line_gradient(classes[task.bra].list, classes[task.ket].list))
    line->gradient(r, classes, task, out, packs(work, line->scratch()));
  else
    gradient_rys(r, classes, task, out, work);
}

}  // namespace

const KernelTable& table();
const KernelTable& table() {
#define JAXQC_NAME_(x) #x
#define JAXQC_NAME(x) JAXQC_NAME_(x)
  static const KernelTable t{JAXQC_NAME(JAXQC_ISA), W, schwarz, jk, gradient, block};
  return t;
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
