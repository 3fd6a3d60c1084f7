#include "tables.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

namespace jaxqc {
namespace {

typedef long double Real;
constexpr Real kPi = 3.14159265358979323846264338327950288L;

// F_m(T) by the ascending series, which converges for the T of the grid.
Real boys_series(int m, Real t) {
  Real term = 1.0L / (2 * m + 1), s = term;
  for (int k = 1; k < 2000 && term > 1e-22L * s; ++k) {
    term *= 2.0L * t / (2 * m + 2 * k + 1);
    s += term;
  }
  return std::exp(-t) * s;
}

struct GaussLegendre {
  std::vector<Real> x, w;
  explicit GaussLegendre(int n) : x(n), w(n) {
    for (int i = 0; i < n; ++i) {
      Real z = std::cos(kPi * (i + 0.75L) / (n + 0.5L)), d = 0;
      for (int it = 0; it < 60; ++it) {
        Real p0 = 1, p1 = 0;
        for (int j = 1; j <= n; ++j) {
          const Real p2 = p1;
          p1 = p0;
          p0 = ((2 * j - 1) * z * p1 - (j - 1) * p2) / j;
        }
        d = n * (z * p0 - p1) / (z * z - 1);
        const Real step = p0 / d;
        z -= step;
        if (std::fabs(step) < 1e-19L) break;
      }
      x[i] = 0.5L * (1 + z);  // on [0, 1]
      w[i] = 1.0L / ((1 - z * z) * d * d);
    }
  }
};

// Eigenvalues of a symmetric tridiagonal matrix and first components of the eigenvectors (implicit QL; Golub and Welsch 1969).
void tridiagonal(std::vector<Real>& d, std::vector<Real> e, std::vector<Real>& first) {
  const int n = static_cast<int>(d.size());
  e.resize(n, 0);
  first.assign(n, 0);
  first[0] = 1;
  for (int l = 0; l < n; ++l) {
    for (int it = 0; it < 200; ++it) {
      int m = l;
      for (; m < n - 1; ++m)
        if (std::fabs(e[m]) <= 1e-20L * (std::fabs(d[m]) + std::fabs(d[m + 1]))) break;
      if (m == l) break;
      Real g = (d[l + 1] - d[l]) / (2 * e[l]), r = std::hypot(g, static_cast<Real>(1));
      g = d[m] - d[l] + e[l] / (g + std::copysign(r, g));
      Real s = 1, c = 1, p = 0;
      int i = m - 1;
      for (; i >= l; --i) {
        Real f = s * e[i];
        const Real b = c * e[i];
        r = std::hypot(f, g);
        e[i + 1] = r;
        if (r == 0) {
          d[i + 1] -= p;
          e[m] = 0;
          break;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        r = (d[i] - g) * s + 2 * c * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        f = first[i + 1];
        first[i + 1] = s * first[i] + c * f;
        first[i] = c * first[i] - s * f;
      }
      if (r == 0 && i >= l) continue;
      d[l] -= p;
      e[l] = g;
      e[m] = 0;
    }
  }
}

// Gauss quadrature of n points for a discrete measure on nodes u with weights w (Stieltjes procedure).
void stieltjes(int n, const std::vector<Real>& u, const std::vector<Real>& w, std::vector<Real>& roots, std::vector<Real>& weights) {
  const size_t m = u.size();
  Real norm = 0;
  for (Real x : w) norm += x;
  std::vector<Real> p(m, 1 / std::sqrt(norm)), before(m, 0), a(n), b(n, 0);
  Real beta = 0;
  for (int k = 0; k < n; ++k) {
    Real alpha = 0, size = 0;
    for (size_t i = 0; i < m; ++i) alpha += w[i] * u[i] * p[i] * p[i];
    for (size_t i = 0; i < m; ++i) {
      const Real q = (u[i] - alpha) * p[i] - beta * before[i];
      before[i] = p[i];
      p[i] = q;
      size += w[i] * q * q;
    }
    a[k] = alpha;
    beta = std::sqrt(size);
    b[k] = beta;
    for (size_t i = 0; i < m; ++i) p[i] /= beta;
  }
  std::vector<Real> first;
  tridiagonal(a, b, first);
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](int x, int y) { return a[x] < a[y]; });
  roots.resize(n);
  weights.resize(n);
  for (int i = 0; i < n; ++i) {
    roots[i] = a[order[i]];
    weights[i] = norm * first[order[i]] * first[order[i]];
  }
}

struct RysStorage {
  RysTable table;
  std::vector<double> polynomials, hermite;
};

std::unique_ptr<RysStorage> make_rys(int n) {
  static const GaussLegendre legendre(240);
  auto s = std::make_unique<RysStorage>();
  const int intervals = static_cast<int>((35 + 5 * n) / kRysInterval);
  const Real asymptotic = intervals * static_cast<Real>(kRysInterval);
  const int terms = kRysTerms;
  s->polynomials.resize(static_cast<size_t>(intervals) * 2 * n * terms);
  const size_t m = legendre.x.size();
  std::vector<Real> u(m), w(m), roots, weights;
  for (size_t i = 0; i < m; ++i) u[i] = legendre.x[i] * legendre.x[i];
  // Chebyshev polynomials as monomials
  std::vector<std::vector<Real>> cheb(terms, std::vector<Real>(terms, 0));
  cheb[0][0] = 1;
  cheb[1][1] = 1;
  for (int k = 2; k < terms; ++k)
    for (int j = 0; j < terms; ++j) cheb[k][j] = (j ? 2 * cheb[k - 1][j - 1] : 0) - cheb[k - 2][j];
  std::vector<std::vector<Real>> values(terms, std::vector<Real>(2 * n));
  for (int iv = 0; iv < intervals; ++iv) {
    for (int j = 0; j < terms; ++j) {
      const Real x = std::cos(kPi * (j + 0.5L) / terms), t = kRysInterval * (iv + 0.5L * (x + 1));
      for (size_t i = 0; i < m; ++i) w[i] = legendre.w[i] * std::exp(-t * u[i]);
      stieltjes(n, u, w, roots, weights);
      for (int r = 0; r < n; ++r) {
        values[j][r] = roots[r];
        values[j][n + r] = weights[r];
      }
    }
    for (int r = 0; r < 2 * n; ++r) {
      std::vector<Real> mono(terms, 0);
      for (int k = 0; k < terms; ++k) {
        Real c = 0;
        for (int j = 0; j < terms; ++j) c += values[j][r] * std::cos(kPi * k * (j + 0.5L) / terms);
        c *= (k ? 2.0L : 1.0L) / terms;
        for (int j = 0; j < terms; ++j) mono[j] += c * cheb[k][j];
      }
      for (int j = 0; j < terms; ++j) s->polynomials[(static_cast<size_t>(iv) * 2 * n + r) * terms + j] = static_cast<double>(mono[j]);
    }
  }
  // Limit of large T: half of the Gauss-Hermite rule of 2n points, from the Stieltjes procedure on exp(-x^2) in u = x^2.
  {
    const Real top = 12.0L;
    for (size_t i = 0; i < m; ++i) {
      const Real x = top * legendre.x[i];
      u[i] = x * x;
      w[i] = top * legendre.w[i] * std::exp(-u[i]);
    }
    stieltjes(n, u, w, roots, weights);
    s->hermite.resize(2 * n);
    for (int r = 0; r < n; ++r) {
      s->hermite[r] = static_cast<double>(roots[r]);
      s->hermite[n + r] = static_cast<double>(weights[r]);
    }
  }
  s->table = RysTable{n, static_cast<double>(asymptotic), s->polynomials.data(), s->hermite.data()};
  return s;
}

constexpr int kBoysMax = 40;
}  // namespace

const double* boys_rows(int order) {
  static std::vector<double> rows[kBoysMax];
  static std::once_flag once[kBoysMax];
  std::call_once(once[order], [order] {
    std::vector<double>& r = rows[order];
    r.resize(kBoysRows * 8 + 8);
    for (int i = 0; i < kBoysRows; ++i) {
      const Real t = i / 8.0L;
      Real f[8], factorial = 5040.0L;
      f[7] = boys_series(order + 7, t);
      for (int k = 6; k >= 0; --k) f[k] = (2 * t * f[k + 1] + std::exp(-t)) / (2 * (order + k) + 1);
      for (int k = 7; k >= 0; --k) {
        r[i * 8 + k] = static_cast<double>(f[k] / factorial);
        if (k) factorial /= k;
      }
    }
  });
  return rows[order].data();
}

const double* exp_grid() {
  static const std::vector<double> grid = [] {
    std::vector<double> g(kBoysRows + 8);
    for (int i = 0; i < kBoysRows; ++i) g[i] = static_cast<double>(std::exp(-i / 8.0L));
    return g;
  }();
  return grid.data();
}

const RysTable& rys_table(int n) {
  static std::unique_ptr<RysStorage> tables[kRysMax + 1];
  static std::once_flag once[kRysMax + 1];
  std::call_once(once[n], [n] { tables[n] = make_rys(n); });
  return tables[n]->table;
}

}  // namespace jaxqc

// The same tables for kernels on other devices, read by Python.
#pragma GCC visibility push(default)
extern "C" const double* jaxqc_boys_rows(int order) { return order < 0 || order >= jaxqc::kBoysMax ? nullptr : jaxqc::boys_rows(order); }
extern "C" const double* jaxqc_exp_grid() { return jaxqc::exp_grid(); }
extern "C" int jaxqc_rys_table(int n, double* asymptotic, const double** polynomials, const double** hermite) {
  if (n < 1 || n > jaxqc::kRysMax) return 1;
  const jaxqc::RysTable& table = jaxqc::rys_table(n);
  *asymptotic = table.asymptotic;
  *polynomials = table.polynomials;
  *hermite = table.hermite;
  return 0;
}
#pragma GCC visibility pop
