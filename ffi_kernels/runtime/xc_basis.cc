// Shells of the exchange-correlation kernels and the angular parts of their functions.
#include "xc_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>

namespace jaxqc {

#if defined(__x86_64__)
namespace avx512 { const XcTable& xc_table(); }
namespace avx2 { const XcTable& xc_table(); }
#endif
namespace baseline { const XcTable& xc_table(); }

const XcTable& xc_kernels() {
  const char* name = kernels().name;
#if defined(__x86_64__)
  if (std::strcmp(name, "avx512") == 0) return avx512::xc_table();
  if (std::strcmp(name, "avx2") == 0) return avx2::xc_table();
#endif
  (void)name;
  return baseline::xc_table();
}

namespace {

struct Term {
  int a, b, c;  // powers of x, y, z
  double factor;
};
typedef std::vector<Term> Polynomial;

double factorial(int n) { return n < 2 ? 1.0 : n * factorial(n - 1); }
double binomial(int n, int k) { return k < 0 || k > n ? 0.0 : factorial(n) / (factorial(k) * factorial(n - k)); }

// Real solid harmonic, normalised on the sphere. Helgaker, Jorgensen, Olsen, Molecular Electronic-Structure Theory, eqs. 6.4.47-50.
Polynomial solid_harmonic(int l, int m) {
  const int k = std::abs(m);
  const double pi = std::acos(-1.0);
  const double norm = std::sqrt((m != 0 ? 2.0 : 1.0) * factorial(l + k) * factorial(l - k) * (2 * l + 1) / (4 * pi)) / (std::ldexp(1.0, k) * factorial(l));
  Polynomial p;
  for (int t = 0; t <= (l - k) / 2; ++t)
    for (int u = 0; u <= t; ++u)
      for (int v2 = m < 0 ? 1 : 0; v2 <= k; v2 += 2) {  // twice v, which is half-integer for m < 0
        const double sign = (t + v2 / 2) % 2 != 0 ? -1.0 : 1.0;
        p.push_back({2 * t + k - 2 * u - v2, 2 * u + v2, l - 2 * t - k,
                     norm * sign * std::ldexp(1.0, -2 * t) * binomial(l, t) * binomial(l - t, k + t) * binomial(t, u) * binomial(k, v2)});
      }
  return p;
}

Polynomial derivative(const Polynomial& p, int axis) {
  Polynomial d;
  for (Term t : p) {
    int& power = axis == 0 ? t.a : axis == 1 ? t.b : t.c;
    t.factor *= power;
    if (power-- > 0) d.push_back(t);
  }
  return d;
}

void append(AngularTerms& out, const Polynomial& p) {
  std::map<int, double> sum;
  for (const Term& t : p) sum[(t.b + t.c) * (t.b + t.c + 1) / 2 + t.c] += t.factor;
  if (out.first.empty()) out.first.push_back(0);
  for (const auto& [monomial, factor] : sum) {
    out.monomial.push_back(monomial);
    out.factor.push_back(factor);
  }
  out.first.push_back(static_cast<int>(out.monomial.size()));
}

Angular make_angular(int l, bool cart) {
  std::vector<Polynomial> functions;
  if (cart || l < 2)
    for (int x = l; x >= 0; --x)
      for (int y = l - x; y >= 0; --y) functions.push_back({{x, y, l - x - y, 1.0}});
  else
    for (int m = -l; m <= l; ++m) functions.push_back(solid_harmonic(l, m));
  Angular out;
  out.functions = static_cast<int>(functions.size());
  for (const Polynomial& f : functions) {
    append(out.terms[0], f);
    int second = 4;
    for (int i = 0; i < 3; ++i) {
      append(out.terms[1 + i], derivative(f, i));
      for (int j = i; j < 3; ++j) append(out.terms[second++], derivative(derivative(f, i), j));
    }
  }
  // Sums over m of |Y_lm|^2 and |grad of the solid harmonic|^2 bound each; a Cartesian monomial is at most 1.
  out.value_bound = cart || l < 2 ? 1.0 : std::sqrt((2 * l + 1) / (4 * std::acos(-1.0)));
  out.gradient_bound = cart || l < 2 ? l : out.value_bound * std::sqrt(l * (2.0 * l + 1));
  return out;
}

}  // namespace

const Angular& angular(int l, bool cart) {
  static std::mutex lock;
  static std::map<std::pair<int, bool>, Angular> all;
  const std::lock_guard<std::mutex> hold(lock);
  auto [place, fresh] = all.try_emplace({l, cart});
  if (fresh) place->second = make_angular(l, cart);
  return place->second;
}

XcBasis::XcBasis(const int32_t* ls, const int32_t* nprims, int64_t nshell, const double* centers, const double* exps, const double* coefs,
                 bool cartesian)
    : cart(cartesian) {
  int first = 0;
  for (int64_t s = 0; s < nshell; ++s) {
    if (ls[s] < 0 || ls[s] > kMaxL) throw std::invalid_argument("shells on a grid must have an angular momentum of at most 9");
    XcShell shell;
    shell.l = ls[s];
    shell.nprim = nprims[s];
    shell.first = first;
    shell.ao = nao;
    shell.angular = &angular(shell.l, cart);
    shell.functions = shell.angular->functions;
    shell.x = centers[3 * s];
    shell.y = centers[3 * s + 1];
    shell.z = centers[3 * s + 2];
    std::vector<int> rising(shell.nprim);
    std::iota(rising.begin(), rising.end(), first);
    std::stable_sort(rising.begin(), rising.end(), [&](int a, int b) { return exps[a] < exps[b]; });
    for (int p : rising) {
      exponents.push_back(exps[p]);
      coefficients.push_back(coefs[p]);
    }
    shells.push_back(shell);
    first += shell.nprim;
    nao += shell.functions;
  }
}

}  // namespace jaxqc
