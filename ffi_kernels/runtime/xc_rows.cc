// Which shells reach which rows of grid points: bounds of the radial envelopes, sorted and compacted, and the FFI handler.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "shells_ffi.h"
#include "xc_kernels.h"

namespace jaxqc {
namespace {

namespace ffi = xla::ffi;

constexpr double kDensityMargin = 16.0;    // lists hold for densities with elements up to this
constexpr double kPrimitiveShare = 1e-3;   // a primitive is left out where its own part is below this share of the threshold
constexpr double kRoundUp = 1 + 1e-6;      // bounds are stored in single precision
constexpr int kRowsPerJob = 16;

// Shells of one centre, consecutive in the list.
struct Centre {
  double x[3];
  int first, end;
};

double power(double x, int n) {
  double p = 1;
  for (int k = 0; k < n; ++k) p *= x;
  return p;
}

// The largest of r^n e^(-a r^2) where low <= r <= high; `least` is e^(-a low^2).
double largest_term(int n, double a, double low, double high, double least) {
  if (n <= 0 || 2 * a * low * low >= n) return power(low, n) * least;
  const double r = std::min(high, std::sqrt(n / (2 * a)));
  return power(r, n) * std::exp(-a * r * r);
}

// Bound of one primitive and of its gradient where low <= r <= high.
double primitive_bound(const XcShell& s, double a, double c, double low, double high) {
  const Angular& g = *s.angular;
  const double least = std::exp(-a * low * low);
  double slope = g.value_bound * 2 * a * largest_term(s.l + 1, a, low, high, least);
  if (s.l > 0) slope += g.gradient_bound * largest_term(s.l - 1, a, low, high, least);
  return std::fabs(c) * std::max(g.value_bound * largest_term(s.l, a, low, high, least), slope);
}

std::vector<Centre> find_centres(const XcBasis& basis) {
  std::vector<Centre> out;
  for (int s = 0; s < static_cast<int>(basis.shells.size()); ++s) {
    const XcShell& shell = basis.shells[s];
    if (out.empty() || out.back().x[0] != shell.x || out.back().x[1] != shell.y || out.back().x[2] != shell.z)
      out.push_back({{shell.x, shell.y, shell.z}, s, s});
    out.back().end = s + 1;
  }
  return out;
}

struct Listed {
  int shell, live;
  double bound;
};

struct RowBuilder {
  const XcBasis& basis;
  double epsilon;
  std::vector<Centre> centres;
  std::vector<double> reach;  // of each shell: bound wherever a point may be
  double largest = 0;

  RowBuilder(const XcBasis& b, double eps) : basis(b), epsilon(eps), centres(find_centres(b)) {
    for (const XcShell& s : b.shells) {
      double sum = 0;
      for (int p = s.first; p < s.first + s.nprim; ++p)
        sum += primitive_bound(s, b.exponents[p], b.coefficients[p], 0.0, std::numeric_limits<double>::max());
      reach.push_back(sum);
      largest = std::max(largest, sum);
    }
  }

  // The list of one row. x, y, z: its points, padded to whole packs.
  void list(const double* x, const double* y, const double* z, int padded, double weight, std::vector<Listed>& out) const {
    out.clear();
    if (weight == 0) return;
    double middle[3], radius = 0;
    const double* axes[3] = {x, y, z};
    for (int k = 0; k < 3; ++k) {
      const auto [low, high] = std::minmax_element(axes[k], axes[k] + padded);
      middle[k] = 0.5 * (*low + *high);
      radius += 0.25 * (*high - *low) * (*high - *low);
    }
    radius = std::sqrt(radius);
    const double gate = epsilon / (weight * kDensityMargin);  // of a product of two bounds
    for (const Centre& c : centres) {
      double d2 = 0;
      for (int k = 0; k < 3; ++k) d2 += (c.x[k] - middle[k]) * (c.x[k] - middle[k]);
      double low = std::max(0.0, std::sqrt(d2) - radius), high = std::sqrt(d2) + radius;
      if (epsilon > 0 && !near(c, low, high, gate / largest)) continue;
      double least, most;
      xc_kernels().distances(x, y, z, padded, c.x, &least, &most);
      low = std::sqrt(least);
      high = std::sqrt(most);
      for (int s = c.first; s < c.end; ++s) {
        const double bound = shell_bound(s, low, high);
        if (epsilon == 0 || bound * largest > gate) out.push_back({s, basis.shells[s].nprim, bound * kRoundUp});
      }
    }
    double most = 0;
    for (const Listed& e : out) most = std::max(most, e.bound);
    if (epsilon > 0) {
      out.erase(std::remove_if(out.begin(), out.end(), [&](const Listed& e) { return !(e.bound * most > gate); }), out.end());
      for (Listed& e : out) count_live(x, y, z, padded, kPrimitiveShare * gate / most, e);
    }
    std::sort(out.begin(), out.end(), [](const Listed& a, const Listed& b) { return a.bound != b.bound ? a.bound > b.bound : a.shell < b.shell; });
  }

 private:
  double shell_bound(int shell, double low, double high) const {
    const XcShell& s = basis.shells[shell];
    double sum = 0;
    for (int p = s.first; p < s.first + s.nprim; ++p) {
      const double a = basis.exponents[p];
      if (p > s.first && a * low * low > 100 + (s.l + 2) * std::max(1.0, std::log(high + 1))) break;  // below 1e-40; those that follow are tighter
      sum += primitive_bound(s, a, basis.coefficients[p], low, high);
    }
    return sum;
  }
  bool near(const Centre& c, double low, double high, double least) const {
    for (int s = c.first; s < c.end; ++s)
      if (reach[s] > least && shell_bound(s, low, high) > least) return true;
    return false;
  }
  void count_live(const double* x, const double* y, const double* z, int padded, double least, Listed& e) const {
    const XcShell& s = basis.shells[e.shell];
    if (s.nprim == 1) return;
    const double centre[3] = {s.x, s.y, s.z};
    double near2, far2;
    xc_kernels().distances(x, y, z, padded, centre, &near2, &far2);
    while (e.live > 1) {
      const int p = s.first + e.live - 1;
      if (primitive_bound(s, basis.exponents[p], basis.coefficients[p], std::sqrt(near2), std::sqrt(far2)) > least) return;
      --e.live;
    }
  }
};

ffi::Error rows_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, int64_t row, double epsilon,
                        ffi::Buffer<ffi::F64> centers, ffi::Buffer<ffi::F64> exponents, ffi::Buffer<ffi::F64> coefficients,
                        ffi::Buffer<ffi::F64> points, ffi::Buffer<ffi::F64> weights, ffi::ResultBuffer<ffi::S32> count,
                        ffi::ResultBuffer<ffi::S32> order, ffi::ResultBuffer<ffi::S32> shell, ffi::ResultBuffer<ffi::F32> bound,
                        ffi::ResultBuffer<ffi::F32> weight_max, ffi::ResultBuffer<ffi::S32> overflow) {
  return guarded([&] {
    const int nrow = static_cast<int>(count->element_count()), capacity = nrow > 0 ? static_cast<int>(shell->dimensions()[1]) : 0;
    check(row > 0 && points.element_count() == 3 * static_cast<size_t>(nrow) * static_cast<size_t>(row) &&
              weights.element_count() == static_cast<size_t>(nrow) * static_cast<size_t>(row),
          "the points of a grid must be padded to whole rows");
    check(ls.size() < (1u << kShellBits), "a basis on a grid can have at most 1048575 shells");
    int32_t *counts = count->typed_data(), *orders = order->typed_data(), *shells = shell->typed_data(), *longest = overflow->typed_data();
    float *bounds = bound->typed_data(), *heaviest = weight_max->typed_data();
    *longest = 0;
    std::fill_n(counts, nrow, 0);
    std::fill_n(shells, static_cast<size_t>(nrow) * capacity, 0);
    std::fill_n(bounds, static_cast<size_t>(nrow) * capacity, 0.0f);
    std::fill_n(heaviest, nrow, 0.0f);
    std::iota(orders, orders + nrow, 0);
    if (!fit(centers, exponents, coefficients) || !finite(points) || !finite(weights)) {
      *longest = std::numeric_limits<int32_t>::max();  // the kernels answer with NaN
      return;
    }
    const XcBasis basis(ls.begin(), nprims.begin(), static_cast<int64_t>(ls.size()), centers.typed_data(), exponents.typed_data(),
                        coefficients.typed_data(), cart);
    const RowBuilder builder(basis, epsilon);
    std::vector<int32_t> lengths(nrow), functions(nrow);
    const int jobs = (nrow + kRowsPerJob - 1) / kRowsPerJob, padded = (static_cast<int>(row) + kLanes - 1) / kLanes * kLanes;
    pool_runner(pool)(jobs, [&](int job, int) {
      std::vector<Listed> list;
      Doubles xyz(3 * static_cast<size_t>(padded));
      for (int r = job * kRowsPerJob; r < std::min(nrow, (job + 1) * kRowsPerJob); ++r) {
        double weight = 0;
        for (int p = 0; p < padded; ++p) {
          const int64_t g = static_cast<int64_t>(r) * row + std::min<int64_t>(p, row - 1);
          for (int k = 0; k < 3; ++k) xyz[static_cast<size_t>(k) * padded + p] = points.typed_data()[3 * g + k];
          weight = std::max(weight, std::fabs(weights.typed_data()[g]));
        }
        heaviest[r] = static_cast<float>(weight * kRoundUp);
        builder.list(&xyz[0], &xyz[padded], &xyz[2 * static_cast<size_t>(padded)], padded, weight, list);
        lengths[r] = static_cast<int32_t>(list.size());
        counts[r] = std::min(lengths[r], capacity);
        for (int k = 0; k < counts[r]; ++k) {
          shells[static_cast<size_t>(r) * capacity + k] = list[k].shell + (list[k].live << kShellBits);
          bounds[static_cast<size_t>(r) * capacity + k] = static_cast<float>(list[k].bound);
        }
        for (const Listed& e : list) functions[r] += basis.shells[e.shell].functions;
      }
    });
    if (nrow > 0) *longest = *std::max_element(lengths.begin(), lengths.end());
    std::stable_sort(orders, orders + nrow, [&](int a, int b) { return functions[a] > functions[b]; });
  });
}

}  // namespace
}  // namespace jaxqc

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_xc_rows, jaxqc::rows_handler,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Attr<xla::ffi::Span<const int32_t>>("ls")
                                  .Attr<xla::ffi::Span<const int32_t>>("nprims")
                                  .Attr<bool>("cart")
                                  .Attr<int64_t>("row")
                                  .Attr<double>("epsilon")
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>());
#pragma GCC visibility pop
