// Values and derivatives of contracted shells at a tile of points, points along the lanes. Compiled once per instruction set.
#pragma once
#include "simd.h"
#include "xc_kernels.h"

namespace jaxqc {
namespace JAXQC_ISA {

constexpr int kBlock = 3;                      // packs that are evaluated together, for independent chains of operations
constexpr int kBlocks = kTile / (kBlock * W);  // of a tile

// exp(x) for x <= 0 to 1 ulp or so; below exp(-700) that number.
RCG_INLINE Pack exp_negative(Pack x) {
  x = max(x, splat(-700.0));
  const double magic = 6755399441055744.0;  // 1.5 2^52: adding it rounds to an integer, which its low bits hold
  const Pack shifted = x * 1.4426950408889634074 + magic;
  const Pack n = shifted - magic;
  const Pack r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  // Taylor's series to degree 12 on |r| <= ln(2)/2: remainder below 2e-16.
  Pack p = splat(1.0 / 479001600.0);
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const Mask scale = ((Mask)shifted << 52) + (1023LL << 52);
  return p * (Pack)scale;
}

// Radial sums: sum c e^(-a r^2) and its derivatives with respect to r^2, times 2 and times 4.
template <int Order>
RCG_INLINE void radial(const double* exponents, const double* coefficients, int nprim, const Pack* r2, Pack (*sums)[kBlock]) {
  for (int o = 0; o <= Order; ++o)
    for (int q = 0; q < kBlock; ++q) sums[o][q] = Pack{};
  for (int k = 0; k < nprim; ++k) {
    const double a = exponents[k], c = coefficients[k], a2 = -2.0 * a;
#pragma GCC unroll 3
    for (int q = 0; q < kBlock; ++q) {
      Pack e = c * exp_negative(-a * r2[q]);
      sums[0][q] += e;
      if (Order > 0) {
        e = a2 * e;
        sums[1][q] += e;
      }
      if (Order > 1) sums[2][q] += a2 * e;
    }
  }
}

RCG_INLINE Pack combine(const AngularTerms& t, int function, const Pack* monomials) {
  Pack s = Pack{};
  for (int k = t.first[function]; k < t.first[function + 1]; ++k) s += t.factor[k] * monomials[t.monomial[k]];
  return s;
}

constexpr int monomials_below(int l) { return l * (l + 1) * (l + 2) / 6; }

// All monomials up to degree l, by rising degree; each from one of the degree below, whose order it shares.
RCG_INLINE void make_monomials(int l, Pack x, Pack y, Pack z, Pack* m) {
  m[0] = splat(1.0);
  for (int d = 1; d <= l; ++d) {
    const Pack* low = m + monomials_below(d - 1);
    Pack* high = m + monomials_below(d);
    const int n = ncart(d - 1);
    for (int i = 0; i < n; ++i) high[i] = x * low[i];
    for (int i = 0; i < d; ++i) high[n + i] = y * low[n - d + i];
    high[n + d] = z * low[n - 1];
  }
}

// Any l: one pack at a time.
template <int Order>
__attribute__((noinline)) void general_functions(const XcShell& s, Pack x, Pack y, Pack z, const Pack* r, double* out, size_t stride) {
  Pack m[monomials_below(kMaxL + 1)];
  make_monomials(s.l, x, y, z, m);
  const Angular& angular = *s.angular;
  const Pack* top = m + monomials_below(s.l);
  const Pack* first = s.l > 0 ? m + monomials_below(s.l - 1) : m;
  const Pack* second = s.l > 1 ? m + monomials_below(s.l - 2) : m;
  const Pack d[3] = {x, y, z};
  for (int f = 0; f < s.functions; ++f, out += kTile) {
    const Pack v = combine(angular.terms[0], f, top);
    store(out, v * r[0]);
    if (Order == 0) continue;
    Pack slope[3];
    for (int k = 0; k < 3; ++k) {
      slope[k] = combine(angular.terms[1 + k], f, first);
      store(out + (1 + k) * stride, slope[k] * r[0] + v * d[k] * r[1]);
    }
    if (Order == 1) continue;
    int place = 4;
    for (int k = 0; k < 3; ++k)
      for (int l = k; l < 3; ++l, ++place) {
        Pack h = combine(angular.terms[place], f, second) * r[0] + (slope[k] * d[l] + slope[l] * d[k]) * r[1] + v * d[k] * d[l] * r[2];
        if (k == l) h += v * r[1];
        store(out + place * stride, h);
      }
  }
}

// Functions of one shell at a tile: out[component * stride + function * kTile + point].
template <int Order>
RCG_INLINE void shell_functions(const XcBasis& basis, const XcShell& s, int live, const double* points, double* out, size_t stride) {
  for (int b = 0; b < kBlocks; ++b, points += kBlock * W, out += kBlock * W) {
    Pack d[3][kBlock], r2[kBlock], r[Order + 1][kBlock];
#pragma GCC unroll 3
    for (int q = 0; q < kBlock; ++q) {
      d[0][q] = load(points + q * W) - s.x;
      d[1][q] = load(points + kTile + q * W) - s.y;
      d[2][q] = load(points + 2 * kTile + q * W) - s.z;
      r2[q] = d[0][q] * d[0][q] + d[1][q] * d[1][q] + d[2][q] * d[2][q];
    }
    radial<Order>(&basis.exponents[s.first], &basis.coefficients[s.first], live, r2, r);
    if (Order < 2 && s.l == 0) {
      for (int q = 0; q < kBlock; ++q) {
        store(out + q * W, r[0][q]);
        if (Order > 0)
          for (int k = 0; k < 3; ++k) store(out + (1 + k) * stride + q * W, d[k][q] * r[Order > 0 ? 1 : 0][q]);
      }
    } else if (Order < 2 && s.l == 1) {
      for (int q = 0; q < kBlock; ++q)
        for (int f = 0; f < 3; ++f) {
          double* o = out + f * kTile + q * W;
          store(o, d[f][q] * r[0][q]);
          if (Order > 0) {
            const Pack slope = d[f][q] * r[Order > 0 ? 1 : 0][q];
            for (int k = 0; k < 3; ++k) store(o + (1 + k) * stride, k == f ? slope * d[k][q] + r[0][q] : slope * d[k][q]);
          }
        }
    } else {
      for (int q = 0; q < kBlock; ++q) {
        Pack radials[Order + 1];
        for (int o = 0; o <= Order; ++o) radials[o] = r[o][q];
        general_functions<Order>(s, d[0][q], d[1][q], d[2][q], radials, out + q * W, stride);
      }
    }
  }
}

// The functions of one row in the order of its list.
struct RowFunctions {
  int n = 0, padded = 0;           // functions; rounded up to whole tiles of kTile
  std::vector<int> shell, live, offset;  // of each shell: index, live primitives, first function
  std::vector<int> ao;             // of each function; those of the padding are nao
  std::vector<double> bound;       // of each function, falling
  void read(const XcBasis& basis, const XcRows& rows, int row, double gate) {
    const int count = rows.count[row];
    const int32_t* list = rows.shell + static_cast<int64_t>(row) * rows.capacity;
    const float* bounds = rows.bound + static_cast<int64_t>(row) * rows.capacity;
    shell.clear();
    live.clear();
    offset.clear();
    ao.clear();
    bound.clear();
    n = 0;
    for (int k = 0; k < count; ++k) {
      // The first shell has the largest bound: what does not matter with it does not matter at all.
      if (rows.epsilon > 0 && !(static_cast<double>(bounds[k]) * bounds[0] * gate > rows.epsilon)) break;
      const int s = list[k] & ((1 << kShellBits) - 1);
      shell.push_back(s);
      live.push_back(list[k] >> kShellBits);
      offset.push_back(n);
      for (int f = 0; f < basis.shells[s].functions; ++f) {
        ao.push_back(basis.shells[s].ao + f);
        bound.push_back(bounds[k]);
      }
      n += basis.shells[s].functions;
    }
    padded = (n + kTile - 1) / kTile * kTile;
    ao.resize(padded, basis.nao);
    bound.resize(padded, 0.0);
  }
  // How many functions matter together with function c.
  int limit(int c, double gate, double epsilon) const {
    if (!(epsilon > 0)) return n;
    const double least = epsilon / (bound[c] * gate);
    int low = 0, high = n;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (bound[middle] > least)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};

// Coordinates of a tile, (3, kTile); points beyond the row repeat its last one.
RCG_INLINE void tile_points(const double* points, int64_t first, int64_t end, double* out) {
  for (int p = 0; p < kTile; ++p) {
    const int64_t g = first + p < end ? first + p : end - 1;
    for (int k = 0; k < 3; ++k) out[k * kTile + p] = points[3 * g + k];
  }
}

// All functions of a row at a tile: out[(component * padded + function) * kTile + point], zeros in the padding.
template <int Order>
void tile_functions(const XcBasis& basis, const RowFunctions& row, const double* points, double* out) {
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  for (size_t k = 0; k < row.shell.size(); ++k)
    shell_functions<Order>(basis, basis.shells[row.shell[k]], row.live[k], points, out + static_cast<size_t>(row.offset[k]) * kTile, stride);
  constexpr int ncomp = Order == 0 ? 1 : Order == 1 ? 4 : 10;
  for (int c = 0; c < ncomp; ++c)
    std::memset(out + c * stride + static_cast<size_t>(row.n) * kTile, 0, static_cast<size_t>(row.padded - row.n) * kTile * sizeof(double));
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
