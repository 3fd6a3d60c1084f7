// The steps of the partition of space, and blocks of points on which they are evaluated. Inlined into functions that are compiled once
// for each instruction set (grid_loops.cc); W is the number of doubles in a vector.
//
//   s(t), t = 1 - nu_ij, 0 <= t <= 2: the share of space of atom i against atom j, rising from 0 to 1.
//
// Written in t, a share near 0 keeps its relative precision.
#pragma once

#define GRID_INLINE static inline __attribute__((always_inline))

namespace jaxqc::grid {

constexpr int kLanes = 32;  // points of a block
enum Scheme { kBecke = 0, kStratmann = 1 };
constexpr double kCutoff = 0.64;  // Stratmann, Scuseria and Frisch's a
constexpr double kTiny = 1e-150;  // keeps divisors off 0 where the numerator is 0 as well

template <int W>
struct Vector {
  typedef double type __attribute__((vector_size(8 * W)));
  typedef double unaligned __attribute__((vector_size(8 * W), aligned(8), may_alias));
};

template <int W>
GRID_INLINE typename Vector<W>::type load(const double* p) {
  return *reinterpret_cast<const typename Vector<W>::unaligned*>(p);
}
template <int W>
GRID_INLINE void store(double* p, typename Vector<W>::type v) {
  *reinterpret_cast<typename Vector<W>::unaligned*>(p) = v;
}

// Becke's polynomial p(nu) = (3 nu - nu^3) / 2 in t: 1 - p = t^2 (3 - t) / 2.
template <class V>
GRID_INLINE V smooth(V t) {
  return t * t * (1.5 - 0.5 * t);
}

template <int scheme, class V>
GRID_INLINE V step(V t) {
  if constexpr (scheme == kBecke) {
    return 0.5 * smooth(smooth(smooth(t)));
  } else {
    t = 1.0 + (t - 1.0) * (1.0 / kCutoff);
    const V zero = t - t;
    V m = t > 1.0 ? 2.0 - t : t;
    m = m > 0.0 ? m : zero;
    const V m2 = m * m;
    const V below = (35.0 / 32.0) * (m2 * m2) * (2.0 + m * (-2.4 + m * (1.0 - m * (1.0 / 7.0))));
    return t > 1.0 ? 1.0 - below : below;
  }
}

// d ln s / dt.
template <int scheme, class V>
GRID_INLINE V step_slope(V t) {
  const V tiny = (t - t) + kTiny;
  if constexpr (scheme == kBecke) {
    const V t1 = smooth(t), t2 = smooth(t1), d = t2 * (3.0 - t2);
    return 6.75 * (t * (2.0 - t)) * (t1 * (2.0 - t1)) * (2.0 - t2) / (d > tiny ? d : tiny);
  } else {
    const V s = step<scheme>(t);
    t = 1.0 + (t - 1.0) * (1.0 / kCutoff);
    const V zero = t - t;
    V m = t * (2.0 - t);
    m = m > 0.0 ? m : zero;
    return (35.0 / 32.0 / kCutoff) * (m * m * m) / (s > tiny ? s : tiny);
  }
}

}  // namespace jaxqc::grid
