// The Boys function F_m(T) = int_0^1 t^(2m) exp(-T t^2) dt, to about 1e-15 relative for m <= kBoysMaxOrder
// and any T >= 0.
//
// T < kBoysRange: the highest order wanted comes from a ten-term Taylor series about the nearest point of a table with
// step 1/8 (d/dT F_m = -F_{m+1}), lower orders from the downward recursion
// F_m = (2T F_{m+1} + exp(-T)) / (2m+1), whose terms are all positive. T >= kBoysRange: F_0 = sqrt(pi/T)/2, higher orders from the upward recursion, in which exp(-T) is
// already so small beside (2m+1) F_m that nothing cancels.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace jaxqc::one_electron {

constexpr int kBoysMaxOrder = 40;
constexpr int kBoysTerms = 10;  // (1/16)^10 / 10! is below 1e-18
constexpr int kBoysRange = 64;
constexpr int kBoysInverseStep = 8;
constexpr int kBoysRows = kBoysRange * kBoysInverseStep + 1;
constexpr int kBoysColumns = kBoysMaxOrder + kBoysTerms + 1;  // column 0 holds exp(-T), column 1 + m holds F_m

constexpr double kReciprocal[kBoysTerms] = {0,       1.0,     1.0 / 2, 1.0 / 3, 1.0 / 4,
                                            1.0 / 5, 1.0 / 6, 1.0 / 7, 1.0 / 8, 1.0 / 9};

inline std::vector<double> make_boys_table() {
  constexpr int top = kBoysColumns - 2;
  std::vector<double> table(static_cast<size_t>(kBoysRows) * kBoysColumns);
  for (int row = 0; row < kBoysRows; ++row) {
    const long double t = static_cast<long double>(row) / kBoysInverseStep;
    const long double decay = std::exp(-t);
    // F_top = exp(-T) sum_i (2T)^i / ((2 top + 1)(2 top + 3) ... (2 top + 2i + 1)); every term is positive.
    long double term = 1.0L / (2 * top + 1), sum = term;
    for (int i = 1; i < 1000 && term > sum * 1e-22L; ++i) {
      term *= 2 * t / (2 * top + 2 * i + 1);
      sum += term;
    }
    double* values = &table[static_cast<size_t>(row) * kBoysColumns];
    long double value = decay * sum;
    values[0] = static_cast<double>(decay);
    values[1 + top] = static_cast<double>(value);
    for (int m = top - 1; m >= 0; --m) {
      value = (2 * t * value + decay) / (2 * m + 1);
      values[1 + m] = static_cast<double>(value);
    }
  }
  return table;
}

inline const double* boys_table() {
  static const std::vector<double> table = make_boys_table();
  return table.data();
}

// F_0 ... F_order at T >= kBoysRange; values[m * stride].
inline void boys_upward(int order, double t, double* values, int stride) {
  constexpr double half_sqrt_pi = 0.88622692545275801365;
  const double half = 0.5 / t;
  const double decay = t < 700 ? std::exp(-t) : 0.0;
  double value = half_sqrt_pi / std::sqrt(t);
  values[0] = value;
  for (int m = 0; m < order; ++m) {
    value = ((2 * m + 1) * value - decay) * half;
    values[(m + 1) * stride] = value;
  }
}

// F_0 ... F_order at T; values has order + 1 entries.
inline void boys(const double* table, int order, double t, double* values) {
  if (!(t >= 0)) {
    std::fill(values, values + order + 1, NAN);
    return;
  }
  if (!(t < kBoysRange)) {
    boys_upward(order, t, values, 1);
    return;
  }
  const int row = static_cast<int>(t * kBoysInverseStep + 0.5);
  const double* entry = table + static_cast<size_t>(row) * kBoysColumns;
  const double step = static_cast<double>(row) / kBoysInverseStep - t;
  double decay = 1, value = entry[1 + order + kBoysTerms - 1];
  for (int k = kBoysTerms - 1; k > 0; --k) {
    decay = 1 + decay * step * kReciprocal[k];
    value = entry[order + k] + value * step * kReciprocal[k];
  }
  decay *= entry[0];
  values[order] = value;
  for (int m = order - 1; m >= 0; --m) {
    value = (2 * t * value + decay) / (2 * m + 1);
    values[m] = value;
  }
}

}  // namespace jaxqc::one_electron
