// Tables of the Boys function and of Rys roots and weights, computed once per process in extended precision.
#pragma once

namespace jaxqc {

// Boys function near grid points: row i holds the Taylor coefficients F_{L+k}(i/8)/k!, k < 8, for 0 <= i < kBoysRows.
constexpr int kBoysRows = 385;
constexpr double kBoysAsymptotic = 48.0;  // from here F_m(T) is the integral to infinity
const double* boys_rows(int order);
const double* exp_grid();  // exp(-i/8), 0 <= i < kBoysRows

// Rys quadrature of n points: roots u = t^2 and weights, as polynomials of degree 13 in each interval of length 2.5 of T.
constexpr int kRysMax = 16;
constexpr int kRysTerms = 14;
constexpr double kRysInterval = 2.5;
struct RysTable {
  int n;
  double asymptotic;          // from this T on the Hermite limit holds
  const double* polynomials;  // [interval][2 n][kRysTerms], roots first
  const double* hermite;      // [2 n]: u = hermite[r] / T, weight = hermite[n + r] / sqrt(T)
};
const RysTable& rys_table(int n);

}  // namespace jaxqc
