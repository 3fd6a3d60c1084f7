// The loops of grid_loops.h, once for each step function and instruction set.
#include "grid_loops.h"

#include <cstring>

#include "kernels.h"

namespace jaxqc::grid {
namespace {

template <int W>
GRID_INLINE void distances(const Atoms& atoms, const double* points, double* r) {
  for (int j = 0; j < atoms.count; ++j) {
    const double x = atoms.x[j], y = atoms.y[j], z = atoms.z[j];
    double* out = r + static_cast<long>(j) * kLanes;
    for (int l = 0; l < kLanes; ++l) {
      const double dx = points[l] - x, dy = points[kLanes + l] - y, dz = points[2 * kLanes + l] - z;
      out[l] = __builtin_sqrt(dx * dx + dy * dy + dz * dz);
    }
  }
}

template <int W>
GRID_INLINE void fill_row(const Atoms& atoms, int i, int first, int count, const Row& row) {
  const double *__restrict xs = atoms.x, *__restrict ys = atoms.y, *__restrict zs = atoms.z, *__restrict radii = atoms.radius,
               *__restrict reach = atoms.reach, *__restrict near = atoms.near;
  double *__restrict to_inverse = row.inverse, *__restrict to_shift = row.shift, *__restrict to_most = row.most, *__restrict to_gap = row.gap;
  const double x = xs[i], y = ys[i], z = zs[i], radius = radii[i], over = 1.0 / radius, reach_i = reach[i], near_i = near[i];
#pragma GCC ivdep
  for (int j = first; j < first + count; ++j) {
    const double dx = x - xs[j], dy = y - ys[j], dz = z - zs[j];
    const double square = dx * dx + dy * dy + dz * dz;
    const bool apart = square > 0;
    const double inverse = apart ? 1.0 / __builtin_sqrt(apart ? square : 1.0) : 0.0;
    double a = 0.25 * (radii[j] * over - radius / radii[j]);
    a = a < -0.5 ? -0.5 : a;
    a = a > 0.5 ? 0.5 : a;
    // 1 - mu = 1 + (r_j - r_i) / R is at most 2 r_j / R; t = (1 - mu) (1 - a (1 + mu)). The same for 1 + mu and 2 - t.
    const double up = 1 + (reach[j] - near_i) * inverse, up2 = 2 * reach[j] * inverse;
    const double low = 1 + (reach_i - near[j]) * inverse, low2 = 2 * reach_i * inverse;
    double most = (up < up2 ? up : up2) * (1 - 2 * (a < 0 ? a : 0.0)), gap = (low < low2 ? low : low2) * (1 + 2 * (a > 0 ? a : 0.0));
    most = most < 2 ? most : 2.0;
    gap = gap < 2 ? gap : 2.0;
    to_inverse[j] = inverse;
    to_shift[j] = a;
    to_most[j] = apart ? most : 2.0;
    to_gap[j] = apart ? gap : 2.0;
  }
}

// t_ij and mu_ij of W points.
template <class V>
GRID_INLINE V argument(V ri, V rj, double inverse, double a, V& mu) {
  mu = (ri - rj) * inverse;
  return (1.0 - mu) * (1.0 - a * (1.0 + mu));
}

template <int W, int scheme>
GRID_INLINE void multiply(const double* ri, const double* r, const int* js, int count, const Row& row, double* product) {
  typedef typename Vector<W>::type V;
  for (int l = 0; l < kLanes; l += 2 * W) {
    const V r0 = load<W>(ri + l), r1 = load<W>(ri + l + W);
    V p0 = load<W>(product + l), p1 = load<W>(product + l + W), mu;
    for (int k = 0; k < count; ++k) {
      const int j = js[k];
      const double* rj = r + static_cast<long>(j) * kLanes + l;
      const double inverse = row.inverse[j], a = row.shift[j];
      p0 = p0 * step<scheme>(argument(r0, load<W>(rj), inverse, a, mu));
      p1 = p1 * step<scheme>(argument(r1, load<W>(rj + W), inverse, a, mu));
    }
    store<W>(product + l, p0);
    store<W>(product + l + W, p1);
  }
}

template <int W, int scheme>
GRID_INLINE void reverse(const double* c, const double* ri, const double* r, const int* js, int count, const Row& row, double* bar_i,
                         double* bar, double* separation) {
  typedef typename Vector<W>::type V;
  for (int l = 0; l < kLanes; l += W) {
    const V cotangent = load<W>(c + l), r0 = load<W>(ri + l);
    V own = load<W>(bar_i + l), mu;
    for (int k = 0; k < count; ++k) {
      const int j = js[k];
      const long at = static_cast<long>(j) * kLanes + l;
      const double inverse = row.inverse[j], a = row.shift[j];
      const V t = argument(r0, load<W>(r + at), inverse, a, mu);
      const V of_mu = cotangent * step_slope<scheme>(t) * (2.0 * a * mu - 1.0), part = of_mu * inverse;
      own = own + part;
      store<W>(bar + at, load<W>(bar + at) - part);
      const V of_separation = part * mu;
      double sum = 0;
      for (int w = 0; w < W; ++w) sum += of_separation[w];
      separation[j] -= sum;
    }
    store<W>(bar_i + l, own);
  }
}

template <int W, int scheme>
GRID_INLINE void forward(const double* ri, const double* r, const double* di, const double* d, const double* separation, const int* js,
                         int count, const Row& row, double* rate) {
  typedef typename Vector<W>::type V;
  for (int l = 0; l < kLanes; l += W) {
    const V r0 = load<W>(ri + l), d0 = load<W>(di + l);
    V sum = load<W>(rate + l), mu;
    for (int k = 0; k < count; ++k) {
      const int j = js[k];
      const long at = static_cast<long>(j) * kLanes + l;
      const double inverse = row.inverse[j], a = row.shift[j];
      const V t = argument(r0, load<W>(r + at), inverse, a, mu);
      const V of_mu = (d0 - load<W>(d + at) - mu * separation[j]) * inverse;
      sum = sum + step_slope<scheme>(t) * (2.0 * a * mu - 1.0) * of_mu;
    }
    store<W>(rate + l, sum);
  }
}

#define GRID_SCHEME(ATTRIBUTE, W, SCHEME, NAME)                                                                                            \
  ATTRIBUTE void multiply_##NAME(const double* ri, const double* r, const int* js, int count, const Row& row, double* product) {           \
    multiply<W, SCHEME>(ri, r, js, count, row, product);                                                                                   \
  }                                                                                                                                        \
  ATTRIBUTE void reverse_##NAME(const double* c, const double* ri, const double* r, const int* js, int count, const Row& row,              \
                                double* bar_i, double* bar, double* separation) {                                                          \
    reverse<W, SCHEME>(c, ri, r, js, count, row, bar_i, bar, separation);                                                                  \
  }                                                                                                                                        \
  ATTRIBUTE void forward_##NAME(const double* ri, const double* r, const double* di, const double* d, const double* separation,            \
                                const int* js, int count, const Row& row, double* rate) {                                                  \
    forward<W, SCHEME>(ri, r, di, d, separation, js, count, row, rate);                                                                    \
  }

#define GRID_SET(ATTRIBUTE, W, NAME)                                                                                                       \
  ATTRIBUTE void distances_##NAME(const Atoms& atoms, const double* points, double* r) { distances<W>(atoms, points, r); }                 \
  ATTRIBUTE void row_##NAME(const Atoms& atoms, int i, int first, int count, const Row& row) { fill_row<W>(atoms, i, first, count, row); } \
  GRID_SCHEME(ATTRIBUTE, W, kBecke, becke_##NAME)                                                                                          \
  GRID_SCHEME(ATTRIBUTE, W, kStratmann, stratmann_##NAME)                                                                                  \
  const Loops loops_##NAME[2] = {                                                                                                          \
      {distances_##NAME, row_##NAME, multiply_becke_##NAME, reverse_becke_##NAME, forward_becke_##NAME},                                   \
      {distances_##NAME, row_##NAME, multiply_stratmann_##NAME, reverse_stratmann_##NAME, forward_stratmann_##NAME}};

GRID_SET(__attribute__((optimize("O3"))), 2, baseline)
#if defined(__x86_64__)
GRID_SET(__attribute__((target("avx2,fma"), optimize("O3"))), 4, avx2)
GRID_SET(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx512cd,fma,prefer-vector-width=512"), optimize("O3"))), 8, avx512)
#endif

}  // namespace

const Loops& loops(Scheme scheme) {
#if defined(__x86_64__)
  const char* name = kernels().name;
  if (std::strcmp(name, "avx512") == 0) return loops_avx512[scheme];
  if (std::strcmp(name, "avx2") == 0) return loops_avx2[scheme];
#endif
  return loops_baseline[scheme];
}

}  // namespace jaxqc::grid
