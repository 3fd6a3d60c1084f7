// Integral blocks of any class from Rys tables: [e0|f0] accumulated over primitives, then both horizontal recurrences as tapes.
#pragma once
#include <algorithm>

#include "hrr_columns.h"
#include "hrr_tape.h"
#include "kernels.h"
#include "rys.h"

namespace jaxqc {
namespace JAXQC_ISA {

// Applies a tape to `columns` columns at once: in[row * in_row + column * in_column] -> out[row * out_row + column * out_column].
template <class Shift>
RCG_INLINE void apply_tape(const HrrTape& t, const Pack* in, int in_row, int in_column, Pack* out, int out_row, int out_column, int columns,
                           const Shift* ab, Pack* rows, int chunk) {
  for (int c0 = 0; c0 < columns; c0 += chunk) {
    const int n = std::min(chunk, columns - c0);
    for (int r = 0; r < t.inputs; ++r)
      for (int c = 0; c < n; ++c) rows[r * chunk + c] = in[r * in_row + (c0 + c) * in_column];
    for (const HrrTape::Shift& s : t.shifts) {
      Pack* o = rows + s.out * chunk;
      const Pack *u = rows + s.up * chunk, *v = rows + s.same * chunk;
      const Shift d = ab[s.axis];
      for (int c = 0; c < n; ++c) o[c] = u[c] + d * v[c];
    }
    for (const HrrTape::Sum& s : t.sums) {
      const bool last = s.out >= t.first_output;
      Pack* o = last ? out + (s.out - t.first_output) * out_row + c0 * out_column : rows + s.out * chunk;
      const int step = last ? out_column : 1;
      const HrrTape::Term* term = &t.terms[s.begin];
      for (int c = 0; c < n; ++c) {
        Pack v = term[0].weight * rows[term[0].source * chunk + c];
        for (int k = 1; k < s.end - s.begin; ++k) v += term[k].weight * rows[term[k].source * chunk + c];
        o[c * step] = v;
      }
    }
  }
}
inline int tape_chunk(const HrrTape& t) { return std::clamp(4096 / t.rows, 1, 16); }

// Whether the recurrence of the bra runs on the tables of each axis, before their products are summed: contracted (e0| lose (R sqrt(p))^lb,
// more still in spherical functions, and the recurrence of the ket loses as much again. Only long recurrences need it, above all two of them.
inline bool axis_bra(const PairList& bra, const PairList& ket) {
  const int la = bra.la, lb = bra.lb;
  return std::min(la, lb) >= 2 && std::max(la, lb) >= 4 && (la + lb >= 9 || (ket.lb >= 1 && la + lb + ket.la + ket.lb >= 10));
}

// Static facts of a class and the layout of its scratch memory (in packs).
struct RysPlan {
  bool axis;  // bras of two centres: h holds [ab|f0], Cartesian
  int hrows;  // rows of h, at most
  int la, lb, lc, ld, le, lf, n, ne, nf, nab, ncd, stride;
  const RysTable* table;
  RysTables tables;
  Accumulate accumulate;
  const HrrTape *bra, *ket;
  BraColumn bra_line;
  KetColumn ket_line;
  size_t h, g, half, rows, roots, total;
  RysPlan(const PairList& b, const PairList& k)
      : axis(axis_bra(b, k)), hrows(axis ? ncart(b.la) * ncart(b.lb) : nlevels(b.la, b.lb)),
        la(b.la), lb(b.lb), lc(k.la), ld(k.lb), le(la + lb), lf(lc + ld), n((le + lf) / 2 + 1), ne(nlevels(la, lb)), nf(nlevels(lc, ld)),
        nab(b.na * b.nb), ncd(k.na * k.nb), stride((le + 1) * (lf + 1)) {
    table = &rys_table(n);
    tables = rys_tables_for(lf);
    accumulate = accumulate_for(lc, ld);
    bra = &hrr_tape(la, lb, b.cart);
    ket = &hrr_tape(lc, ld, k.cart);
    bra_line = b.cart ? nullptr : bra_column(la, lb);
    ket_line = k.cart ? nullptr : ket_column(lc, ld);
    h = 0;
    g = h + static_cast<size_t>(hrows) * nf;
    half = g + static_cast<size_t>(3) * n * stride * (axis ? 1 + lb + 1 : 1);
    rows = half + static_cast<size_t>(nab) * nf;
    const size_t widest = std::max(static_cast<size_t>(bra->rows) * tape_chunk(*bra), static_cast<size_t>(ket->rows) * tape_chunk(*ket));
    roots = rows + widest;
    total = roots + 2 * n;
  }
};

RCG_INLINE void rys_attenuate(int n, double omega, const Quartet& s, const RysTable& table, Pack* roots) {
  if (omega == 0.0) {
    rys_roots(table, s.t, roots);
    return;
  }
  const Pack theta2 = attenuation(omega, s), theta = theta2 * rsqrt(theta2);
  rys_roots(table, s.t * theta2, roots);
  for (int r = 0; r < n; ++r) {
    roots[r] *= theta2;
    roots[n + r] *= theta;
  }
}

// One table of [e0|f0] for the current primitive quartet, added to h (e-major).
inline void rys_accumulate(const RysPlan& p, const Pack* g, Pack* h) {
  const int s = p.lf + 1, axis = p.n * p.stride;
  for (int l = p.la; l <= p.le; ++l)
    for (int x = l; x >= 0; --x)
      for (int y = l - x; y >= 0; --y, h += p.nf) {
        const Pack *gx = g + x * s, *gy = g + axis + y * s, *gz = g + 2 * axis + (l - x - y) * s;
        if (p.accumulate)
          p.accumulate(h, gx, gy, gz, p.n, p.stride);
        else
          accumulate_any(h, gx, gy, gz, p.n, p.stride, p.lc, p.lf);
      }
}

// Tables of one axis and root carried to both shells, t[(a * (lb + 1) + b) * (lf + 1) + f] for a <= la, b <= lb.
inline void axis_recurrence(const RysPlan& p, Pack* g, double ab, Pack* t) {
  const int s = p.lf + 1, nb = p.lb + 1;
  for (int b = 0; b <= p.lb; ++b) {
    for (int a = 0; a <= p.la; ++a)
      for (int f = 0; f < s; ++f) t[(a * nb + b) * s + f] = g[a * s + f];
    for (int e = 0; e < p.le - b; ++e)  // g becomes (e, b + 1)
      for (int f = 0; f < s; ++f) g[e * s + f] = g[(e + 1) * s + f] + ab * g[e * s + f];
  }
}
inline void axis_accumulate(const RysPlan& p, Pack* g, const double* ab, Pack* h) {
  const int s = p.lf + 1, nb = p.lb + 1, stride = (p.la + 1) * nb * s, axis = p.n * stride;
  Pack* t = g + 3 * p.n * p.stride;
  for (int x = 0; x < 3; ++x)
    for (int r = 0; r < p.n; ++r) axis_recurrence(p, g + (x * p.n + r) * p.stride, ab[x], t + x * axis + r * stride);
  for (int ax = p.la; ax >= 0; --ax)
    for (int ay = p.la - ax; ay >= 0; --ay)
      for (int bx = p.lb; bx >= 0; --bx)
        for (int by = p.lb - bx; by >= 0; --by, h += p.nf) {
          const Pack *gx = t + (ax * nb + bx) * s, *gy = t + axis + (ay * nb + by) * s;
          const Pack* gz = t + 2 * axis + ((p.la - ax - ay) * nb + p.lb - bx - by) * s;
          if (p.accumulate)
            p.accumulate(h, gx, gy, gz, p.n, stride);
          else
            accumulate_any(h, gx, gy, gz, p.n, stride, p.lc, p.lf);
        }
}
// Cartesian [ab|f0] to the functions of both shells, stored ket-major: half[f * nab + ab]. `row`: nf packs.
inline void axis_functions(const RysPlan& p, bool cart, const Pack* h, Pack* half, Pack* row) {
  const int na = nfunc(p.la, cart), nb = nfunc(p.lb, cart), nca = ncart(p.la), ncb = ncart(p.lb);
  if (cart) {
    for (int ab = 0; ab < p.nab; ++ab)
      for (int f = 0; f < p.nf; ++f) half[f * p.nab + ab] = h[ab * p.nf + f];
    return;
  }
  const double *ta = spherical_matrix(p.la).data(), *tb = spherical_matrix(p.lb).data();
  std::memset(static_cast<void*>(half), 0, sizeof(Pack) * p.nab * p.nf);
  for (int i = 0; i < nca; ++i)
    for (int b = 0; b < nb; ++b) {
      std::memset(static_cast<void*>(row), 0, sizeof(Pack) * p.nf);
      for (int j = 0; j < ncb; ++j) {
        const double w = tb[b * ncb + j];
        const Pack* from = h + (i * ncb + j) * p.nf;
        if (w != 0.0)
          for (int f = 0; f < p.nf; ++f) row[f] += w * from[f];
      }
      for (int a = 0; a < na; ++a) {
        const double w = ta[a * nca + i];
        if (w != 0.0)
          for (int f = 0; f < p.nf; ++f) half[f * p.nab + a * nb + b] += w * row[f];
      }
    }
}

// v[ab * ncd + cd] of bra pair ib and the kets k0 .. k0 + W - 1.
inline void rys_block(const RysPlan& p, const PairList& bra, int ib, const PairList& ket, int k0, int nket, const Operator& op, Pack* v, Pack* work) {
  Pack *h = work + p.h, *g = work + p.g, *half = work + p.half, *rows = work + p.rows, *roots = work + p.roots;
  const KetCentres c = ket_centres(ket, k0);
  const double ab[3] = {bra.dx[ib], bra.dy[ib], bra.dz[ib]};
  const bool axis = p.axis && (ab[0] != 0.0 || ab[1] != 0.0 || ab[2] != 0.0);
  std::memset(static_cast<void*>(h), 0, sizeof(Pack) * (axis ? p.hrows : p.ne) * p.nf);
  for_primitives(bra, ib, ket, k0, nket, c, op.cut, [&](const Quartet& s, auto) {
    rys_attenuate(p.n, op.omega, s, *p.table, roots);
    p.tables(g, p.le, p.n, roots, s);
    if (axis)
      axis_accumulate(p, g, ab, h);
    else
      rys_accumulate(p, g, h);
  });
  const Pack cd[3] = {c.dx, c.dy, c.dz};
  // [e0|f0] -> (ab|f0], stored ket-major, -> (ab|cd)
  if (axis) {
    axis_functions(p, bra.cart, h, half, g);
  } else if (p.bra_line) {
    for (int f = 0; f < p.nf; ++f) {
      for (int e = 0; e < p.ne; ++e) rows[e] = h[e * p.nf + f];
      p.bra_line(rows, half + f * p.nab, ab[0], ab[1], ab[2]);
    }
  } else {
    apply_tape(*p.bra, h, p.nf, 1, half, 1, p.nab, p.nf, ab, rows, tape_chunk(*p.bra));
  }
  if (p.ket_line) {
    for (int a = 0; a < p.nab; ++a) {
      for (int f = 0; f < p.nf; ++f) rows[f] = half[f * p.nab + a];
      p.ket_line(rows, v + a * p.ncd, cd[0], cd[1], cd[2]);
    }
  } else {
    apply_tape(*p.ket, half, p.nab, 1, v, 1, p.ncd, p.nab, cd, rows, tape_chunk(*p.ket));
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
