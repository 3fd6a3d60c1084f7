#include "hrr_tape.h"

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>

#include "pairs.h"

namespace jaxqc {
namespace {

typedef std::array<int, 3> Power;

std::vector<Power> components(int l) {
  std::vector<Power> out;
  for (int x = l; x >= 0; --x)
    for (int y = l - x; y >= 0; --y) out.push_back({x, y, l - x - y});
  return out;
}

int index_of(const Power& a) {  // position among the components of its level
  const int rest = a[1] + a[2];
  return rest * (rest + 1) / 2 + a[2];
}

double factorial(int n) { return n < 2 ? 1.0 : n * factorial(n - 1); }
double binomial(int n, int k) { return k < 0 || k > n ? 0.0 : factorial(n) / (factorial(k) * factorial(n - k)); }

// Real solid harmonics over monomials, normalised over the unit sphere (Schlegel and Frisch, doi:10.1002/qua.560540202).
std::vector<double> make_spherical(int l) {
  const auto cart = components(l);
  const int nc = static_cast<int>(cart.size()), ns = 2 * l + 1;
  std::vector<double> t(static_cast<size_t>(ns) * nc, 0.0);
  if (l < 2) {
    for (int k = 0; k < nc; ++k) t[k * nc + k] = 1.0;
    return t;
  }
  for (int m = 0; m <= l; ++m) {
    const double norm = std::sqrt((2 * l + 1) / (4 * M_PI) * factorial(l - m) / factorial(l + m) * (m ? 2.0 : 1.0));
    // r^l P_l^m(cos) exp(i m phi) = sum_k c_k z^(l-m-2k) r^(2k) * (x + i y)^m, without the Condon-Shortley sign
    for (int k = 0; 2 * k <= l - m; ++k) {
      const double ck = (k % 2 ? -1.0 : 1.0) * std::pow(2.0, -l) * binomial(l, k) * binomial(2 * l - 2 * k, l) * factorial(l - 2 * k) /
                        factorial(l - 2 * k - m);
      for (int i = 0; i <= k; ++i)
        for (int j = 0; i + j <= k; ++j) {  // r^(2k) = sum multinomial x^2i y^2j z^2(k-i-j)
          const double mult = factorial(k) / (factorial(i) * factorial(j) * factorial(k - i - j));
          for (int q = 0; q <= m; ++q) {  // (x + i y)^m: binom(m, q) x^(m-q) (i y)^q
            const Power a = {2 * i + m - q, 2 * j + q, l - m - 2 * k + 2 * (k - i - j)};
            const double sign = (q / 2) % 2 ? -1.0 : 1.0;
            const double value = norm * ck * mult * binomial(m, q) * sign;
            const int row = q % 2 == 0 ? l + m : l - m;
            if (m == 0 && q % 2) continue;
            t[static_cast<size_t>(row) * nc + index_of(a)] += value;
          }
        }
    }
  }
  return t;
}

std::unique_ptr<HrrTape> make_tape(int la, int lb, bool cart) {
  auto tape = std::make_unique<HrrTape>();
  tape->la = la;
  tape->lb = lb;
  std::map<std::pair<Power, Power>, int> row;
  int rows = 0;
  for (int l = la; l <= la + lb; ++l)
    for (const Power& a : components(l)) row[{a, Power{0, 0, 0}}] = rows++;
  tape->inputs = rows;
  tape->first_of_level.push_back(0);
  tape->shifts_to_level.push_back(0);
  for (int b = 1; b <= lb; ++b) {
    tape->first_of_level.push_back(rows);
    for (int l = la; l <= la + lb - b; ++l)
      for (const Power& a : components(l))
        for (const Power& q : components(b)) {
          const int axis = q[0] ? 0 : q[1] ? 1 : 2;
          Power less = q, up = a;
          --less[axis];
          ++up[axis];
          tape->shifts.push_back({rows, row.at({up, less}), row.at({a, less}), axis});
          row[{a, q}] = rows++;
        }
    tape->shifts_to_level.push_back(static_cast<int>(tape->shifts.size()));
  }
  const auto ca = components(la), cb = components(lb);
  const int na = nfunc(la, cart), nb = nfunc(lb, cart), nca = static_cast<int>(ca.size()), ncb = static_cast<int>(cb.size());
  std::vector<int> half(static_cast<size_t>(nca) * nb);
  const bool turn_a = !cart && la > 1, turn_b = !cart && lb > 1;
  auto add_sum = [&](const std::vector<HrrTape::Term>& terms) {
    const int begin = static_cast<int>(tape->terms.size());
    tape->terms.insert(tape->terms.end(), terms.begin(), terms.end());
    tape->sums.push_back({rows, begin, static_cast<int>(tape->terms.size())});
    return rows++;
  };
  for (int i = 0; i < nca; ++i)
    for (int n = 0; n < nb; ++n) {
      if (!turn_b) {
        half[static_cast<size_t>(i) * nb + n] = row.at({ca[i], cb[n]});
        continue;
      }
      std::vector<HrrTape::Term> terms;
      for (int j = 0; j < ncb; ++j) {
        const double w = spherical_matrix(lb)[static_cast<size_t>(n) * ncb + j];
        if (w != 0.0) terms.push_back({row.at({ca[i], cb[j]}), w});
      }
      half[static_cast<size_t>(i) * nb + n] = add_sum(terms);
    }
  tape->first_output = rows;
  for (int m = 0; m < na; ++m)
    for (int n = 0; n < nb; ++n) {
      std::vector<HrrTape::Term> terms;
      if (!turn_a) {
        terms.push_back({half[static_cast<size_t>(m) * nb + n], 1.0});
      } else {
        for (int i = 0; i < nca; ++i) {
          const double w = spherical_matrix(la)[static_cast<size_t>(m) * nca + i];
          if (w != 0.0) terms.push_back({half[static_cast<size_t>(i) * nb + n], w});
        }
      }
      add_sum(terms);
    }
  tape->outputs = na * nb;
  tape->rows = rows;
  return tape;
}

}  // namespace

const std::vector<double>& spherical_matrix(int l) {
  static std::vector<double> matrices[kMaxL + 1];
  static std::once_flag once[kMaxL + 1];
  std::call_once(once[l], [l] { matrices[l] = make_spherical(l); });
  return matrices[l];
}

const HrrTape& hrr_tape(int la, int lb, bool cart) {
  static std::unique_ptr<HrrTape> tapes[2][kMaxL + 1][kMaxL + 1];
  static std::once_flag once[2][kMaxL + 1][kMaxL + 1];
  std::call_once(once[cart][la][lb], [=] { tapes[cart][la][lb] = make_tape(la, lb, cart); });
  return *tapes[cart][la][lb];
}

}  // namespace jaxqc
