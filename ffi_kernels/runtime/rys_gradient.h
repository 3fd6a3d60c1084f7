// First derivatives of any class from Rys tables.
#pragma once
#include "gradient_class.h"
#include "rys_block.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Components of one side sorted by (x, y, z), in groups of equal (x, y): a group is a run of z.
struct SideOrder {
  struct Group {
    int x, y, z, count, first;  // z: of the first component; first: its place in the sorted order
  };
  std::vector<Group> groups;
  std::vector<int> where;  // sorted place -> usual place
  SideOrder(int l0, int l1) {
    for (int x = 0; x <= l1; ++x)
      for (int y = 0; x + y <= l1; ++y) {
        const int z0 = std::max(0, l0 - x - y), z1 = l1 - x - y;
        groups.push_back({x, y, z0, z1 - z0 + 1, static_cast<int>(where.size())});
        for (int z = z0; z <= z1; ++z) {
          int before = 0;
          for (int l = l0; l < x + y + z; ++l) before += ncart(l);
          where.push_back(before + (y + z) * (y + z + 1) / 2 + z);
        }
      }
  }
};

struct RysGradientPlan {
  RysPlan base;  // roots and tables of one order more on the bra
  SideOrder e, f;
  int stride, axis, table;  // packs of one root's table, of one axis, of one kind of table
  bool need_h;
  size_t gamma_f, gamma_ef, gamma_e, sorted, g, h, rows, roots, total;
  RysGradientPlan(const PairList& b, const PairList& k) : base(b, k), e(b.la, b.la + b.lb), f(k.la, k.la + k.lb) {
    RysPlan& p = base;
    p.axis = false;
    p.n = (p.le + p.lf + 1) / 2 + 1;
    p.table = &rys_table(p.n);
    p.stride = stride = (p.le + 2) * (p.lf + 1);
    axis = p.n * stride;
    table = 3 * axis;
    need_h = p.lb > 0 || p.ld > 0;
    gamma_f = 0;
    gamma_ef = gamma_f + static_cast<size_t>(p.nab) * p.nf;
    gamma_e = gamma_ef + static_cast<size_t>(p.ne) * p.nf;
    sorted = gamma_e + static_cast<size_t>(p.ne) * p.ncd;
    g = sorted + static_cast<size_t>(p.ne) * p.nf;
    h = g + 4 * static_cast<size_t>(table);
    rows = h + static_cast<size_t>(p.ne) * p.nf;
    const size_t widest = std::max({static_cast<size_t>(p.bra->rows) * tape_chunk(*p.bra), static_cast<size_t>(p.ket->rows) * tape_chunk(*p.ket),
                                    explicit_rows(*p.bra), explicit_rows(*p.ket)});
    roots = rows + widest;
    total = roots + 2 * p.n;
  }
};

// Tables of g(e+1), e g(e-1) and f g(f-1) beside g.
inline void derived_tables(const RysGradientPlan& plan, Pack* g) {
  const RysPlan& p = plan.base;
  const int s = p.lf + 1;
  Pack *up = g + plan.table, *down = up + plan.table, *ket = down + plan.table;
  for (int r = 0; r < 3 * p.n; ++r) {
    const int o = r * plan.stride;
    for (int e = 0; e <= p.le; ++e)
      for (int f = 0; f < s; ++f) {
        const int at = o + e * s + f;
        up[at] = g[at + s];
        down[at] = e ? static_cast<double>(e) * g[at - s] : Pack{};
        ket[at] = f ? static_cast<double>(f) * g[at - 1] : Pack{};
      }
  }
}

// out[0..9] of one primitive quartet (see CentreSums::add), gamma in sorted order.
inline __attribute__((noinline)) void rys_gradient_sums(const RysGradientPlan& plan, const Pack* gamma, const Pack* g, Pack* out) {
  const RysPlan& p = plan.base;
  const int s = p.lf + 1;
  Pack o[10];
  for (Pack& v : o) v = Pack{};
  for (int r = 0; r < p.n; ++r) {
    const Pack *gx = g + r * plan.stride, *gy = gx + plan.axis, *gz = gy + plan.axis;
    const Pack *ux = gx + plan.table, *uy = gy + plan.table, *uz = gz + plan.table;
    const Pack *dx = ux + plan.table, *dy = uy + plan.table, *dz = uz + plan.table;
    const Pack *kx = dx + plan.table, *ky = dy + plan.table, *kz = dz + plan.table;
    for (const SideOrder::Group& e : plan.e.groups)
      for (const SideOrder::Group& f : plan.f.groups) {
        Pack t0 = Pack{}, t1 = Pack{}, t2 = Pack{}, t3 = Pack{};
        for (int z = 0; z < e.count; ++z) {
          const Pack* w = gamma + static_cast<size_t>(e.first + z) * p.nf + f.first;
          const int at = (e.z + z) * s + f.z;
          for (int y = 0; y < f.count; ++y) {
            const Pack v = w[y];
            t0 += v * gz[at + y];
            t1 += v * uz[at + y];
            t2 += v * dz[at + y];
            t3 += v * kz[at + y];
          }
        }
        const int x = e.x * s + f.x, y = e.y * s + f.y;
        const Pack xy = gx[x] * gy[y], ty = t0 * gy[y], tx = t0 * gx[x];
        o[0] += xy * t0;
        o[1] += ux[x] * ty;
        o[2] += uy[y] * tx;
        o[3] += xy * t1;
        o[4] += dx[x] * ty;
        o[5] += dy[y] * tx;
        o[6] += xy * t2;
        o[7] += kx[x] * ty;
        o[8] += ky[y] * tx;
        o[9] += xy * t3;
      }
  }
  for (int k = 0; k < 10; ++k) out[k] = o[k];
}

inline void rys_gradient(const RysGradientPlan& plan, const PairList& bra, int ib, const PairList& ket, int k0, int nprim, const Operator& op,
                         const Pack* gamma, CentreSums& sums, Pack* work) {
  const RysPlan& p = plan.base;
  const KetCentres c = ket_centres(ket, k0);
  const double ab[3] = {bra.dx[ib], bra.dy[ib], bra.dz[ib]};
  const Pack cd[3] = {c.dx, c.dy, c.dz};
  Pack *rows = work + plan.rows, *h = work + plan.h, *gamma_f = work + plan.gamma_f, *gamma_ef = work + plan.gamma_ef, *sorted = work + plan.sorted;
  // Gamma_(ab)(cd) -> gamma_(ab)f -> gamma_ef
  apply_transposed(*p.ket, gamma, 1, p.ncd, gamma_f, 1, p.nf, p.nab, cd, rows, tape_chunk(*p.ket));
  apply_transposed(*p.bra, gamma_f, p.nf, 1, gamma_ef, p.nf, 1, p.nf, ab, rows, tape_chunk(*p.bra));
  for (int e = 0; e < p.ne; ++e)
    for (int f = 0; f < p.nf; ++f) sorted[e * p.nf + f] = gamma_ef[plan.e.where[e] * p.nf + plan.f.where[f]];
  if (plan.need_h) std::memset(static_cast<void*>(h), 0, sizeof(Pack) * p.ne * p.nf);
  Pack *g = work + plan.g, *roots = work + plan.roots;
  for_primitives(bra, ib, ket, k0, nprim, c, op.cut, [&](const Quartet& s, auto) {
    Pack out[10];
    rys_attenuate(p.n, op.omega, s, *p.table, roots);
    p.tables(g, p.le + 1, p.n, roots, s);
    derived_tables(plan, g);
    rys_gradient_sums(plan, sorted, g, out);
    if (plan.need_h) rys_accumulate(p, g, h);
    CentreSums::add(sums, s, out, ab, cd);
  });
  Pack extra[3] = {Pack{}, Pack{}, Pack{}};
  if (p.lb > 0) {
    explicit_terms(*p.bra, bra.cart, gamma_f, p.nf, 1, h, p.nf, 1, p.nf, ab, extra, rows);
    for (int i = 0; i < 3; ++i) {
      sums.a[i] += extra[i];
      sums.b[i] -= extra[i];
      extra[i] = Pack{};
    }
  }
  if (p.ld > 0) {
    Pack* gamma_e = work + plan.gamma_e;
    apply_transposed(*p.bra, gamma, p.ncd, 1, gamma_e, p.ncd, 1, p.ncd, ab, rows, tape_chunk(*p.bra));
    explicit_terms(*p.ket, ket.cart, gamma_e, 1, p.ncd, h, 1, p.nf, p.ne, cd, extra, rows);
    for (int i = 0; i < 3; ++i) sums.c[i] += extra[i];
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
