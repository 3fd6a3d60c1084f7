// Derivatives of J and K contracted with weights, with respect to the shell centres, and the FFI handler.
#include "jk_parts.h"
#include "shells_ffi.h"

namespace jaxqc {
namespace {

namespace ffi = xla::ffi;

constexpr int kSlots = 32;

void gradient_build(const PairSet& set, const double* density, const double* weight_j, const double* weight_k, int nset, bool coulomb,
                    bool exchange, double omega, double threshold, Share share, double* out, const Runner& run) {
  const Basis& basis = set.basis;
  const int64_t nao = basis.nao, n2 = nao * nao, nshell = static_cast<int64_t>(basis.shells.size());
  GradientRequest r;
  r.nao = static_cast<int>(nao);
  r.nshell = static_cast<int>(nshell);
  r.coulomb = coulomb;
  r.exchange = exchange;
  // Derivative integrals exceed the integrals that the Schwarz bounds are made of.
  r.threshold = 0.1 * threshold;
  r.omega = omega;
  std::vector<std::vector<double>> kept;
  kept.reserve(6 * nset);
  auto part = [&](const double* m, double sign, bool& there) -> const double* {
    kept.emplace_back();
    there = fold(m, nao, sign, kept.back());
    return kept.back().data();
  };
  for (int s = 0; s < nset; ++s) {
    // Symmetric with symmetric, antisymmetric with antisymmetric (exchange only); mixed products vanish.
    for (double sign : {1.0, -1.0}) {
      bool has_d, has_j = false, has_k = false;
      const double* d = part(density + s * n2, sign, has_d);
      const double* pj = coulomb && sign > 0 ? part(weight_j + s * n2, sign, has_j) : nullptr;
      const double* pk = exchange ? part(weight_k + s * n2, sign, has_k) : nullptr;
      if (!has_d || !(has_j || has_k)) continue;
      r.density.push_back(d);
      r.weight_j.push_back(has_j ? pj : nullptr);
      r.weight_k.push_back(has_k ? pk : nullptr);
      raise_shell_max(basis, d, r.bound_d);
      if (has_j) raise_shell_max(basis, pj, r.bound_w);
      if (has_k) raise_shell_max(basis, pk, r.bound_w);
    }
  }
  std::fill(out, out + 3 * nshell, 0.0);
  r.nset = static_cast<int>(r.density.size());
  if (r.nset == 0) return;
  for (double m : r.bound_d) r.density_max = std::max(r.density_max, m);
  for (double& m : r.bound_w) {
    m *= r.nset;  // the bounds are largest elements over the sets; Gamma is a sum over them
    r.weight_max = std::max(r.weight_max, m);
  }

  std::vector<PairClass> classes(set.lists.size());
  for (size_t c = 0; c < classes.size(); ++c) classes[c].list = set.lists[c];
  const std::vector<JKTask> tasks = make_tasks(classes, share);
  std::vector<Doubles> slots(kSlots);
  std::vector<Workspace> work(num_threads());
  const KernelTable& table = kernels();
  run(kSlots, [&](int s, int thread) {
    slots[s].assign(3 * nshell, 0.0);
    for (size_t t = s; t < tasks.size(); t += kSlots) table.gradient(r, classes, tasks[t], slots[s].data(), work[thread]);
  });
  for (const Doubles& slot : slots)
    for (int64_t x = 0; x < 3 * nshell; ++x) out[x] += slot[x];
}

ffi::Error gradient_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, bool coulomb,
                            bool exchange, double omega, double threshold, int32_t parts, ffi::Buffer<ffi::S32> part,
                            ffi::Buffer<ffi::F64> centers, ffi::Buffer<ffi::F64> exponents, ffi::Buffer<ffi::F64> coefficients,
                            ffi::Buffer<ffi::F64> density, ffi::Buffer<ffi::F64> weight_j, ffi::Buffer<ffi::F64> weight_k,
                            ffi::ResultBuffer<ffi::F64> out) {
  return guarded([&] {
    if (!fit(centers, exponents, coefficients) || !finite(density) || !finite(weight_j) || !finite(weight_k)) {
      fill_nan(out);
      return;
    }
    check_share(part.typed_data()[0], parts);
    const Runner run = pool_runner(pool);
    const auto set = pair_set(ls.begin(), nprims.begin(), static_cast<int64_t>(ls.size()), centers.typed_data(), exponents.typed_data(),
                              coefficients.typed_data(), static_cast<int64_t>(exponents.element_count()), cart, threshold, run);
    const auto dims = density.dimensions();
    check(dims.size() == 3 && dims[1] == set->basis.nao && dims[2] == set->basis.nao, "the density must have shape (n, nao, nao)");
    gradient_build(*set, density.typed_data(), weight_j.typed_data(), weight_k.typed_data(), static_cast<int>(dims[0]), coulomb, exchange, omega,
                   threshold, {part.typed_data()[0], parts}, out->typed_data(), run);
  });
}

}  // namespace
}  // namespace jaxqc

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_jk_gradient, jaxqc::gradient_handler,
                              jaxqc::jk_binding()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>());
#pragma GCC visibility pop
