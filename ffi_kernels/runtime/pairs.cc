#include "pairs.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace jaxqc {
namespace {

// Primitive pairs whose charge distribution is smaller than this are dropped; contributions to an integral are then below 1e-15.
constexpr double kPrimitiveCut = 2e-16;
// Few buckets: each ends with a pack that is not full.
const int kBuckets[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 1 << 30};

int bucket_of(int n) {
  int k = 0;
  while (kBuckets[k] < n) ++k;
  return k;
}

struct Pair {
  int i, j, bucket;
  double q;
  std::vector<PairPrimitive> primitives;
};

double power(double x, int n) {
  double r = 1;
  for (int k = 0; k < n; ++k) r *= x;
  return r;
}

// Lays pairs out in their given order; buckets follow from runs of equal bucket index.
PairList lay_out(const std::vector<Pair>& pairs, const Basis& a, const Basis& b, int la, int lb) {
  PairList out;
  out.la = la;
  out.lb = lb;
  out.cart = a.cart;
  out.na = nfunc(la, a.cart);
  out.nb = nfunc(lb, a.cart);
  out.buckets.push_back(0);
  size_t begin = 0;
  while (begin < pairs.size()) {
    size_t end = begin;
    while (end < pairs.size() && pairs[end].bucket == pairs[begin].bucket) ++end;
    for (size_t pack = begin; pack < end; pack += kLanes) {
      int most = 1;
      for (size_t k = pack; k < std::min(end, pack + kLanes); ++k) most = std::max(most, static_cast<int>(pairs[k].primitives.size()));
      const size_t base = out.p.size();
      const size_t size = base + static_cast<size_t>(most) * kLanes;
      // Padding lanes are harmless numbers: exponent 1, coefficient 0.
      out.p.resize(size, 1.0);
      out.ip.resize(size, 1.0);
      out.a2.resize(size, 0.0);
      out.size.resize(size, 0.0);
      out.pack_size.resize(size / kLanes, 0.0);
      for (auto* v : {&out.x, &out.y, &out.z, &out.c}) v->resize(size, 0.0);
      for (int lane = 0; lane < kLanes; ++lane) {
        const bool real = pack + lane < end;
        const Pair& pair = pairs[real ? pack + lane : pack];
        const Shell &s = a.shells[pair.i], &t = b.shells[pair.j];
        out.i0.push_back(s.ao);
        out.j0.push_back(t.ao);
        out.ish.push_back(pair.i);
        out.jsh.push_back(pair.j);
        out.nprim.push_back(real ? static_cast<int>(pair.primitives.size()) : 1);
        out.base.push_back(static_cast<int>(base + lane));
        out.q.push_back(real ? pair.q : -1.0);
        out.most.push_back(most);
        out.weight.push_back(!real ? 0.0 : &a == &b && pair.i == pair.j ? 0.5 : 1.0);
        out.ax.push_back(s.x);
        out.ay.push_back(s.y);
        out.az.push_back(s.z);
        out.dx.push_back(s.x - t.x);
        out.dy.push_back(s.y - t.y);
        out.dz.push_back(s.z - t.z);
        for (int m = 0; m < most; ++m) {
          const size_t o = base + static_cast<size_t>(m) * kLanes + lane;
          if (real && m < static_cast<int>(pair.primitives.size())) {
            const PairPrimitive& w = pair.primitives[m];
            out.p[o] = w.p;
            out.ip[o] = 1.0 / w.p;
            out.x[o] = w.x;
            out.y[o] = w.y;
            out.z[o] = w.z;
            out.c[o] = w.c / w.p;
            out.a2[o] = w.a2;
            out.size[o] = w.size;
            out.pack_size[o / kLanes] = std::max(out.pack_size[o / kLanes], w.size);
          } else {
            out.x[o] = s.x;
            out.y[o] = s.y;
            out.z[o] = s.z;
          }
        }
      }
    }
    out.n = static_cast<int>(out.i0.size());
    out.buckets.push_back(out.n);
    begin = end;
  }
  return out;
}

}  // namespace

Basis::Basis(const int32_t* ls, const int32_t* nprims, int64_t nshell, const double* centers, const double* exps, const double* coefs,
             int64_t nprim, bool cartesian)
    : exponents(exps, exps + nprim), coefficients(coefs, coefs + nprim), cart(cartesian) {
  int first = 0;
  for (int64_t k = 0; k < nshell; ++k) {
    if (ls[k] < 0 || ls[k] > kMaxL) throw std::invalid_argument("a shell's angular momentum is outside 0 to 9");
    shells.push_back(Shell{ls[k], nprims[k], first, nao, centers[3 * k], centers[3 * k + 1], centers[3 * k + 2]});
    first += nprims[k];
    nao += nfunc(ls[k], cart);
    lmax = std::max(lmax, static_cast<int>(ls[k]));
  }
  if (first != nprim) throw std::invalid_argument("the primitive counts of the shells do not add up to the number of exponents");
}

namespace {

// Largest size that the terms of a horizontal recurrence based on `s` may have; its square times the rounding unit bounds the error.
constexpr double kLargestTerms = 100.0;

double recurrence_terms(const Basis& a, const Shell& s, const Basis& b, const Shell& t) {
  if (t.l == 0) return 0.0;
  const double x = s.x - t.x, y = s.y - t.y, z = s.z - t.z, r2 = x * x + y * y + z * z, r = std::sqrt(r2);
  double total = 0;
  for (int m = 0; m < s.nprim; ++m)
    for (int n = 0; n < t.nprim; ++n) {
      const double ea = a.exponents[s.first + m], eb = b.exponents[t.first + n], p = ea + eb;
      const double c = a.coefficients[s.first + m] * b.coefficients[t.first + n] * std::exp(-ea * eb / p * r2);
      const double reach = r * eb / p + 1.0 / std::sqrt(p);
      total += 5.0 * std::fabs(c) * std::pow(p, -1.25) * power(reach, s.l) * power(reach + r, t.l);
    }
  return total;
}

// Which products of primitives a pair has: those whose first exponent is the larger, or with them those of equal exponents, or all.
enum class Products { kAll, kTighterOrEqual, kTighter };

// Whether the products of the pair are shared out between both bases.
bool halved(const Shell& s, const Shell& t) {
  return s.l == t.l && s.l >= 4 && s.nprim * t.nprim > 1 && (s.x != t.x || s.y != t.y || s.z != t.z);
}

// Whether the pair (preferred, other) is to be based on the other shell.
bool needs_other(const Basis& a, const Shell& preferred, const Basis& b, const Shell& other) {
  const double terms = recurrence_terms(a, preferred, b, other);
  return terms > kLargestTerms && recurrence_terms(b, other, a, preferred) < terms;
}

}  // namespace

PairList build_pairs(const Basis& a, const Basis& b, bool same, int la, int lb, Base base, double cutoff, SchwarzFunction schwarz) {
  std::vector<Pair> pairs;
  std::vector<double> estimates;
  double largest = 0;
  auto add = [&](int i, int j, Products products) {
    const Shell &s = a.shells[i], &t = b.shells[j];
    const double x = s.x - t.x, y = s.y - t.y, z = s.z - t.z, r2 = x * x + y * y + z * z, r = std::sqrt(r2);
    Pair pair{i, j, 0, 1.0, {}};
    double total = 0;
    for (int m = 0; m < s.nprim; ++m) {
      const double ea = a.exponents[s.first + m], ca = a.coefficients[s.first + m];
      for (int n = 0; n < t.nprim; ++n) {
        const double eb = b.exponents[t.first + n], p = ea + eb;
        if (products != Products::kAll && (ea < eb || (ea == eb && products == Products::kTighter))) continue;
        const double c = ca * b.coefficients[t.first + n] * std::exp(-ea * eb / p * r2);
        const double width = 1.0 / std::sqrt(p);
        const double size = std::fabs(c) * std::pow(p, -1.25) * power(r * eb / p + width, la) * power(r * ea / p + width, lb);
        if (!(size > kPrimitiveCut)) continue;
        total += size;
        pair.primitives.push_back(
            {p, (ea * s.x + eb * t.x) / p, (ea * s.y + eb * t.y) / p, (ea * s.z + eb * t.z) / p, c, 2.0 * ea, size});
      }
    }
    if (pair.primitives.empty()) return;
    total *= 5.0;  // (ab|ab)^(1/2) of one primitive pair is 4.97 |c| p^(-5/4)
    largest = std::max(largest, total);
    estimates.push_back(total);
    pairs.push_back(std::move(pair));
  };
  for (int first = 0; first < static_cast<int>(a.shells.size()); ++first) {
    if (a.shells[first].l != la) continue;
    for (int second = 0; second < static_cast<int>(b.shells.size()); ++second) {
      if (b.shells[second].l != lb) continue;
      if (same && la == lb && second > first) break;
      const Shell &preferred = a.shells[first], &other = b.shells[second];
      const bool turn = same && la == lb;
      if (halved(preferred, other)) {
        add(first, second, base == Base::kPreferred ? Products::kTighterOrEqual : Products::kTighter);
        if (turn) add(second, first, Products::kTighter);
      } else if (turn && needs_other(a, preferred, b, other)) {
        add(second, first, Products::kAll);
      } else if (turn || (base == Base::kPreferred ? !needs_other(a, preferred, b, other) : needs_other(b, other, a, preferred))) {
        add(first, second, Products::kAll);
      }
    }
  }
  size_t kept = 0;
  for (size_t k = 0; k < pairs.size(); ++k)
    if (estimates[k] * std::max(largest, 10.0) > cutoff * 1e-3) {
      if (kept != k) pairs[kept] = std::move(pairs[k]);
      ++kept;
    }
  pairs.resize(kept);
  for (Pair& pair : pairs) {
    std::stable_sort(pair.primitives.begin(), pair.primitives.end(),
                     [](const PairPrimitive& u, const PairPrimitive& v) { return u.size > v.size; });
    pair.bucket = bucket_of(static_cast<int>(pair.primitives.size()));
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& u, const Pair& v) { return u.bucket > v.bucket; });
  if (pairs.empty()) return lay_out(pairs, a, b, la, lb);

  const PairList unsorted = lay_out(pairs, a, b, la, lb);
  std::vector<double> q(unsorted.n);
  schwarz(unsorted, 0.0, q.data());
  int at = 0, bucket = -1;
  for (Pair& pair : pairs) {  // padding sits at the end of each bucket
    if (bucket >= 0 && pair.bucket != bucket) at = (at + kLanes - 1) / kLanes * kLanes;
    bucket = pair.bucket;
    pair.q = q[at++];
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& u, const Pair& v) { return u.bucket != v.bucket ? u.bucket > v.bucket : u.q > v.q; });
  return lay_out(pairs, a, b, la, lb);
}

}  // namespace jaxqc
