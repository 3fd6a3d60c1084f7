// Densities on a grid, potential matrices and gradients: threads, slots, and the FFI handlers.
#include <algorithm>
#include <cmath>

#include "shells_ffi.h"
#include "xc_kernels.h"

namespace jaxqc {
namespace {

namespace ffi = xla::ffi;
typedef ffi::Buffer<ffi::F64> Doubles64;

constexpr int kRowsPerJob = 8;  // consecutive rows read the same part of the density
// Sums go to a number of slots that depends on the problem alone, each in a fixed order: the same bits for any number of threads.
constexpr int kSlots = 32;
constexpr double kSlotBytes = 4e8;

// Densities that one pass over the rows serves: orbital values are shared, memory is bounded.
constexpr int kSets = 8;

int slot_count(double bytes, int jobs) {
  return std::min(std::max(jobs, 1), std::clamp(static_cast<int>(kSlotBytes / std::max(bytes, 1.0)), 4, kSlots));
}

double largest_element(const double* matrix, size_t n) {
  double most = 0;
  for (size_t k = 0; k < n; ++k) most = std::max(most, std::fabs(matrix[k]));
  return most;
}

// Operands that all handlers share.
struct Operands {
  ffi::Span<const int32_t> ls, nprims;
  bool cart;
  int64_t row, ncomp;
  double epsilon;
  const Doubles64 &centers, &exponents, &coefficients, &points;
  const ffi::Buffer<ffi::S32>&count, &shell;
  const ffi::Buffer<ffi::F32>&bound, &weight_max;
  const ffi::Buffer<ffi::S32>& overflow;

  // False where the results must be NaN: numbers that are not finite, or lists that did not fit.
  bool sound() const {
    const int32_t capacity = count.element_count() > 0 ? static_cast<int32_t>(shell.dimensions()[1]) : 0;
    return fit(centers, exponents, coefficients) && finite(points) && (count.element_count() == 0 || overflow.typed_data()[0] <= capacity);
  }
  XcBasis basis() const {
    return XcBasis(ls.begin(), nprims.begin(), static_cast<int64_t>(ls.size()), centers.typed_data(), exponents.typed_data(),
                   coefficients.typed_data(), cart);
  }
  XcRows rows() const {
    XcRows r;
    r.n = points.dimensions()[0];
    r.nrow = static_cast<int>(count.element_count());
    r.row = static_cast<int>(row);
    check(row > 0 && r.n == row * r.nrow, "the points of a grid must be padded to whole rows");
    r.capacity = r.nrow > 0 ? static_cast<int>(shell.dimensions()[1]) : 0;
    r.points = points.typed_data();
    r.count = count.typed_data();
    r.shell = shell.typed_data();
    r.bound = bound.typed_data();
    r.weight_max = weight_max.typed_data();
    r.epsilon = epsilon;
    return r;
  }
};

int check_features(const ffi::AnyBuffer::Dimensions dims, int64_t n, int64_t ncomp) {
  check(dims.size() == 3 && dims[2] == n && dims[1] == ncomp && (ncomp == 1 || ncomp == 4 || ncomp == 5),
        "features must have shape (nset, ncomp, n) with ncomp 1, 4 or 5");
  return static_cast<int>(dims[1]);
}
void check_matrix(const ffi::AnyBuffer::Dimensions dims, int64_t nset, int nao) {
  check(dims.size() == 3 && dims[0] == nset && dims[1] == nao && dims[2] == nao, "the matrices must have shape (nset, nao, nao)");
}

// Sets the direction in which centres and points move.
void set_direction(XcDensity& d, const Doubles64& centres, const Doubles64& points) {
  d.centre_change = centres.typed_data();
  d.point_change = points.typed_data();
  d.largest_change = 3.0 * (largest_element(d.centre_change, centres.element_count()) + largest_element(d.point_change, points.element_count()));
}

// Runs body(row, slot, workspace): the rows of a slot in a fixed order.
template <class Body>
void for_rows(const Runner& run, int nrow, int slots, const Body& body) {
  std::vector<Workspace> work(num_threads());
  const int jobs = (nrow + kRowsPerJob - 1) / kRowsPerJob;
  run(slots > 0 ? slots : jobs, [&](int k, int thread) {
    for (int job = k; job < jobs; job += slots > 0 ? slots : jobs)
      for (int r = job * kRowsPerJob; r < std::min(nrow, (job + 1) * kRowsPerJob); ++r) body(r, k, work[thread]);
  });
}

// Calls body(first) for groups of densities, with `d` set to each group.
template <class Body>
void for_sets(XcDensity& d, int nao, int64_t n, const Body& body) {
  const XcDensity all = d;
  for (int first = 0; first < all.nset; first += kSets) {
    d.nset = std::min(kSets, all.nset - first);
    if (all.matrix != nullptr) {
      d.matrix = all.matrix + static_cast<size_t>(first) * nao * nao;
      d.largest = largest_element(d.matrix, static_cast<size_t>(d.nset) * nao * nao);
    }
    if (all.coefficient != nullptr) d.coefficient = all.coefficient + static_cast<int64_t>(first) * all.ncomp * n;
    body(first);
  }
}

// out = Y + Y^T of the sum Y of all slots.
void add_slots(const Runner& run, std::vector<Doubles>& slots, int nset, int nao, int ld, double* out) {
  constexpr int block = 32;
  const int blocks = (nao + block - 1) / block;
  const size_t size = static_cast<size_t>(nao + 1) * ld;
  run(nset * blocks, [&](int job, int) {
    const int set = job / blocks, i0 = job % blocks * block, i1 = std::min(nao, i0 + block);
    double* y = slots[0].data() + set * size;
    for (size_t s = 1; s < slots.size(); ++s) {
      const double* from = slots[s].data() + set * size;
      for (size_t k = static_cast<size_t>(i0) * ld; k < static_cast<size_t>(i1) * ld; ++k) y[k] += from[k];
    }
  });
  run(nset * blocks, [&](int job, int) {
    const int set = job / blocks, i0 = job % blocks * block, i1 = std::min(nao, i0 + block);
    const double* y = slots[0].data() + set * size;
    double* v = out + static_cast<size_t>(set) * nao * nao;
    for (int j0 = 0; j0 < nao; j0 += block)
      for (int i = i0; i < i1; ++i)
        for (int j = j0; j < std::min(nao, j0 + block); ++j)
          v[static_cast<size_t>(i) * nao + j] = y[static_cast<size_t>(i) * ld + j] + y[static_cast<size_t>(j) * ld + i];
  });
}

// Features (nset, ncomp, n) by a kernel that makes those of one row.
template <class Kernel>
void make_features(const Runner& run, const XcBasis& basis, const XcRows& rows, XcDensity& d, const Kernel& kernel, double* features) {
  for_sets(d, basis.nao, rows.n, [&](int first) {
    double* out = features + static_cast<int64_t>(first) * d.ncomp * rows.n;
    for_rows(run, rows.nrow, 0, [&](int r, int, Workspace& work) { kernel(basis, rows, d, r, out, work); });
  });
}

// Matrices (nset, nao, nao) by a kernel that adds one row's part of Y.
template <class Kernel>
void make_matrices(const Runner& run, const XcBasis& basis, const XcRows& rows, XcDensity& d, const Kernel& kernel, double* matrices) {
  const int nao = basis.nao, ld = (nao + 1 + kLanes - 1) / kLanes * kLanes;
  const size_t size = static_cast<size_t>(nao + 1) * ld;
  std::vector<Doubles> slots(slot_count(8.0 * static_cast<double>(size) * std::min(d.nset, kSets), (rows.nrow + kRowsPerJob - 1) / kRowsPerJob));
  for_sets(d, nao, rows.n, [&](int first) {
    run(static_cast<int>(slots.size()), [&](int s, int) { slots[s].assign(size * d.nset, 0.0); });
    for_rows(run, rows.nrow, static_cast<int>(slots.size()),
             [&](int r, int slot, Workspace& work) { kernel(basis, rows, d, r, slots[slot].data(), ld, work); });
    add_slots(run, slots, d.nset, nao, ld, matrices + static_cast<size_t>(first) * nao * nao);
  });
}

ffi::Error density_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, int64_t row, int64_t ncomp, double epsilon,
                           Doubles64 centers, Doubles64 exponents, Doubles64 coefficients, Doubles64 points, Doubles64, ffi::Buffer<ffi::S32> count,
                           ffi::Buffer<ffi::S32>, ffi::Buffer<ffi::S32> shell, ffi::Buffer<ffi::F32> bound, ffi::Buffer<ffi::F32> weight_max,
                           ffi::Buffer<ffi::S32> overflow, Doubles64 matrix, ffi::ResultBuffer<ffi::F64> features) {
  return guarded([&] {
    const Operands o{ls, nprims, cart, row, ncomp, epsilon, centers, exponents, coefficients, points, count, shell, bound, weight_max, overflow};
    if (!o.sound() || !finite(matrix)) return fill_nan(features);
    const XcBasis basis = o.basis();
    const XcRows rows = o.rows();
    XcDensity d;
    d.ncomp = check_features(features->dimensions(), rows.n, ncomp);
    d.nset = static_cast<int>(features->dimensions()[0]);
    check_matrix(matrix.dimensions(), d.nset, basis.nao);
    d.matrix = matrix.typed_data();
    make_features(pool_runner(pool), basis, rows, d, xc_kernels().density, features->typed_data());
  });
}

ffi::Error potential_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, int64_t row, int64_t ncomp, double epsilon,
                             Doubles64 centers, Doubles64 exponents, Doubles64 coefficients, Doubles64 points, Doubles64, ffi::Buffer<ffi::S32> count,
                             ffi::Buffer<ffi::S32>, ffi::Buffer<ffi::S32> shell, ffi::Buffer<ffi::F32> bound, ffi::Buffer<ffi::F32> weight_max,
                             ffi::Buffer<ffi::S32> overflow, Doubles64 cotangent, ffi::ResultBuffer<ffi::F64> matrix) {
  return guarded([&] {
    const Operands o{ls, nprims, cart, row, ncomp, epsilon, centers, exponents, coefficients, points, count, shell, bound, weight_max, overflow};
    if (!o.sound() || !finite(cotangent)) return fill_nan(matrix);
    const XcBasis basis = o.basis();
    const XcRows rows = o.rows();
    XcDensity d;
    d.ncomp = check_features(cotangent.dimensions(), rows.n, ncomp);
    d.nset = static_cast<int>(cotangent.dimensions()[0]);
    check_matrix(matrix->dimensions(), d.nset, basis.nao);
    d.coefficient = cotangent.typed_data();
    make_matrices(pool_runner(pool), basis, rows, d, xc_kernels().potential, matrix->typed_data());
  });
}

ffi::Error gradient_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, int64_t row, int64_t ncomp, double epsilon,
                            Doubles64 centers, Doubles64 exponents, Doubles64 coefficients, Doubles64 points, Doubles64, ffi::Buffer<ffi::S32> count,
                            ffi::Buffer<ffi::S32>, ffi::Buffer<ffi::S32> shell, ffi::Buffer<ffi::F32> bound, ffi::Buffer<ffi::F32> weight_max,
                            ffi::Buffer<ffi::S32> overflow, Doubles64 matrix, Doubles64 cotangent, ffi::ResultBuffer<ffi::F64> of_centers,
                            ffi::ResultBuffer<ffi::F64> of_points) {
  return guarded([&] {
    const Operands o{ls, nprims, cart, row, ncomp, epsilon, centers, exponents, coefficients, points, count, shell, bound, weight_max, overflow};
    if (!o.sound() || !finite(matrix) || !finite(cotangent)) {
      fill_nan(of_centers);
      return fill_nan(of_points);
    }
    const XcBasis basis = o.basis();
    const XcRows rows = o.rows();
    XcDensity d;
    d.ncomp = check_features(cotangent.dimensions(), rows.n, ncomp);
    d.nset = static_cast<int>(cotangent.dimensions()[0]);
    check_matrix(matrix.dimensions(), d.nset, basis.nao);
    d.matrix = matrix.typed_data();
    d.largest = largest_element(d.matrix, matrix.element_count());
    d.coefficient = cotangent.typed_data();
    const size_t size = 3 * basis.shells.size();
    std::vector<Doubles> slots(slot_count(8.0 * static_cast<double>(size), (rows.nrow + kRowsPerJob - 1) / kRowsPerJob), Doubles(size, 0.0));
    double* at_points = of_points->typed_data();
    for_rows(pool_runner(pool), rows.nrow, static_cast<int>(slots.size()),
             [&](int r, int slot, Workspace& work) { xc_kernels().gradient(basis, rows, d, r, slots[slot].data(), at_points, work); });
    for (size_t k = 0; k < size; ++k) {
      double sum = 0;
      for (const Doubles& slot : slots) sum += slot[k];
      of_centers->typed_data()[k] = sum;
    }
  });
}

ffi::Error move_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, int64_t row, int64_t ncomp, double epsilon,
                        Doubles64 centers, Doubles64 exponents, Doubles64 coefficients, Doubles64 points, Doubles64, ffi::Buffer<ffi::S32> count,
                        ffi::Buffer<ffi::S32>, ffi::Buffer<ffi::S32> shell, ffi::Buffer<ffi::F32> bound, ffi::Buffer<ffi::F32> weight_max,
                        ffi::Buffer<ffi::S32> overflow, Doubles64 matrix, Doubles64 centre_change, Doubles64 point_change,
                        ffi::ResultBuffer<ffi::F64> features) {
  return guarded([&] {
    const Operands o{ls, nprims, cart, row, ncomp, epsilon, centers, exponents, coefficients, points, count, shell, bound, weight_max, overflow};
    if (!o.sound() || !finite(matrix) || !finite(centre_change) || !finite(point_change)) return fill_nan(features);
    const XcBasis basis = o.basis();
    const XcRows rows = o.rows();
    XcDensity d;
    d.ncomp = check_features(features->dimensions(), rows.n, ncomp);
    d.nset = static_cast<int>(features->dimensions()[0]);
    check_matrix(matrix.dimensions(), d.nset, basis.nao);
    d.matrix = matrix.typed_data();
    set_direction(d, centre_change, point_change);
    make_features(pool_runner(pool), basis, rows, d, xc_kernels().move, features->typed_data());
  });
}

ffi::Error potential_move_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, int64_t row, int64_t ncomp,
                                  double epsilon, Doubles64 centers, Doubles64 exponents, Doubles64 coefficients, Doubles64 points, Doubles64,
                                  ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32>, ffi::Buffer<ffi::S32> shell, ffi::Buffer<ffi::F32> bound,
                                  ffi::Buffer<ffi::F32> weight_max, ffi::Buffer<ffi::S32> overflow, Doubles64 cotangent, Doubles64 centre_change,
                                  Doubles64 point_change, ffi::ResultBuffer<ffi::F64> matrix) {
  return guarded([&] {
    const Operands o{ls, nprims, cart, row, ncomp, epsilon, centers, exponents, coefficients, points, count, shell, bound, weight_max, overflow};
    if (!o.sound() || !finite(cotangent) || !finite(centre_change) || !finite(point_change)) return fill_nan(matrix);
    const XcBasis basis = o.basis();
    const XcRows rows = o.rows();
    XcDensity d;
    d.ncomp = check_features(cotangent.dimensions(), rows.n, ncomp);
    d.nset = static_cast<int>(cotangent.dimensions()[0]);
    check_matrix(matrix->dimensions(), d.nset, basis.nao);
    d.coefficient = cotangent.typed_data();
    set_direction(d, centre_change, point_change);
    make_matrices(pool_runner(pool), basis, rows, d, xc_kernels().potential_move, matrix->typed_data());
  });
}

}  // namespace
}  // namespace jaxqc

#define JAXQC_XC_BIND                                                                                          \
  xla::ffi::Ffi::Bind()                                                                                        \
      .Ctx<xla::ffi::ThreadPool>()                                                                             \
      .Attr<xla::ffi::Span<const int32_t>>("ls")                                                               \
      .Attr<xla::ffi::Span<const int32_t>>("nprims")                                                           \
      .Attr<bool>("cart")                                                                                      \
      .Attr<int64_t>("row")                                                                                    \
      .Attr<int64_t>("ncomp")                                                                                  \
      .Attr<double>("epsilon")                                                                                 \
      .Arg<xla::ffi::Buffer<xla::ffi::F64>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F64>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F64>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F64>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F64>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::S32>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::S32>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::S32>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F32>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::S32>>()                                                                  \
      .Arg<xla::ffi::Buffer<xla::ffi::F64>>()

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_xc_density, jaxqc::density_handler, JAXQC_XC_BIND.Ret<xla::ffi::Buffer<xla::ffi::F64>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_xc_potential, jaxqc::potential_handler, JAXQC_XC_BIND.Ret<xla::ffi::Buffer<xla::ffi::F64>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_xc_gradient, jaxqc::gradient_handler,
                              JAXQC_XC_BIND.Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>());
#define JAXQC_XC_BIND_DIRECTION \
  JAXQC_XC_BIND.Arg<xla::ffi::Buffer<xla::ffi::F64>>().Arg<xla::ffi::Buffer<xla::ffi::F64>>().Ret<xla::ffi::Buffer<xla::ffi::F64>>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_xc_move, jaxqc::move_handler, JAXQC_XC_BIND_DIRECTION);
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_xc_potential_move, jaxqc::potential_move_handler, JAXQC_XC_BIND_DIRECTION);
#pragma GCC visibility pop
