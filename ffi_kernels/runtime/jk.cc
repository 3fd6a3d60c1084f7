// Direct J/K builds: densities, tasks, slots, threads, and the FFI handler.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "jk_parts.h"
#include "parallel.h"
#include "shells_ffi.h"

namespace jaxqc {
namespace {

namespace ffi = xla::ffi;

// Work goes to a number of slots that depends on the problem alone, each summed in a fixed order: the same bits for any number of threads.
constexpr int kSlots = 32;
constexpr double kSlotBytes = 4e8;

int slot_count(int nao, int nset) {
  const double bytes = 2.0 * 8.0 * nao * nao * nset;
  return std::clamp(static_cast<int>(kSlotBytes / std::max(bytes, 1.0)), 4, kSlots);
}

// Symmetric and antisymmetric parts of a density; a part that vanishes is left out.
struct DensityPart {
  std::vector<double> matrix;
  int source;
  bool antisymmetric;
};

std::vector<DensityPart> split_densities(const double* d, int nset, int nao, bool exchange) {
  std::vector<DensityPart> parts;
  for (int s = 0; s < nset; ++s) {
    const double* m = d + static_cast<int64_t>(s) * nao * nao;
    DensityPart even{{}, s, false}, odd{{}, s, true};
    fold(m, nao, 1.0, even.matrix);
    const bool skew = exchange && fold(m, nao, -1.0, odd.matrix);
    parts.push_back(std::move(even));
    if (skew) parts.push_back(std::move(odd));
  }
  return parts;
}

void jk_build(const PairSet& set, const double* density, int nset, bool coulomb, bool exchange, double omega, double threshold, Share share, double* j,
              double* k, const Runner& run) {
  const Basis& basis = set.basis;
  const int nao = basis.nao, nshell = static_cast<int>(basis.shells.size());
  const int64_t n2 = static_cast<int64_t>(nao) * nao;
  std::vector<DensityPart> parts = split_densities(density, nset, nao, exchange);
  JKRequest r;
  r.nao = nao;
  r.nset = static_cast<int>(parts.size());
  r.nshell = nshell;
  r.coulomb = coulomb;
  r.exchange = exchange;
  r.threshold = threshold;
  r.omega = omega;
  for (const DensityPart& part : parts) {
    r.density.push_back(part.matrix.data());
    raise_shell_max(basis, part.matrix.data(), r.shell_max);
  }
  for (int a = 0; a < nshell; ++a)
    r.row_max.push_back(*std::max_element(&r.shell_max[static_cast<size_t>(a) * nshell], &r.shell_max[static_cast<size_t>(a) * nshell] + nshell));

  std::vector<PairClass> classes(set.lists.size());
  run(static_cast<int>(classes.size()), [&](int c, int) {
    PairClass& pc = classes[c];
    pc.list = set.lists[c];
    const PairList& l = pc.list;
    pc.density_max.resize(l.n);
    for (int i = 0; i < l.n; ++i) {
      pc.density_max[i] = 4.0 * r.shell_max[static_cast<size_t>(l.ish[i]) * nshell + l.jsh[i]];
      pc.density_list_max = std::max(pc.density_list_max, pc.density_max[i]);
    }
    for (const DensityPart& part : parts) {
      Doubles d(coulomb ? static_cast<size_t>(l.na) * l.nb * l.n : 0);
      if (coulomb && !part.antisymmetric)
        for (int a = 0; a < l.na; ++a)
          for (int b = 0; b < l.nb; ++b)
            for (int i = 0; i < l.n; ++i)
              d[static_cast<size_t>(a * l.nb + b) * l.n + i] = part.matrix[static_cast<int64_t>(l.i0[i] + a) * nao + l.j0[i] + b];
      pc.density.push_back(std::move(d));
    }
  });

  const std::vector<JKTask> tasks = make_tasks(classes, share);
  const int nslots = slot_count(nao, r.nset);
  std::vector<JKSlot> slots(nslots);
  std::vector<Workspace> work(num_threads());
  const KernelTable& table = kernels();
  run(nslots, [&](int s, int thread) {
    JKSlot& slot = slots[s];
    if (exchange) slot.k.assign(r.nset, Doubles(n2, 0.0));
    if (coulomb)
      for (const PairClass& pc : classes) slot.j.emplace_back(r.nset, Doubles(static_cast<size_t>(pc.list.na) * pc.list.nb * pc.list.n, 0.0));
    for (size_t t = s; t < tasks.size(); t += nslots) table.jk(r, classes, tasks[t], slot, work[thread]);
  });

  if (coulomb) {
    std::fill(j, j + nset * n2, 0.0);
    run(static_cast<int>(classes.size()), [&](int c, int) {
      const PairList& l = classes[c].list;
      for (size_t p = 0; p < parts.size(); ++p) {
        if (parts[p].antisymmetric) continue;
        double* out = j + parts[p].source * n2;
        for (int a = 0; a < l.na; ++a)
          for (int b = 0; b < l.nb; ++b)
            for (int i = 0; i < l.n; ++i) {
              if (l.q[i] < 0) continue;
              double v = 0;
              for (const JKSlot& slot : slots) v += slot.j[c][p][static_cast<size_t>(a * l.nb + b) * l.n + i];
              out[static_cast<int64_t>(l.i0[i] + a) * nao + l.j0[i] + b] += v;
            }
      }
    });
    for (int s = 0; s < nset; ++s)
      for (int a = 0; a < nao; ++a)
        for (int b = 0; b <= a; ++b) {
          double *u = j + s * n2 + static_cast<int64_t>(a) * nao + b, *v = j + s * n2 + static_cast<int64_t>(b) * nao + a;
          *u = *v = *u + *v;
        }
  }
  if (exchange) {
    std::fill(k, k + nset * n2, 0.0);
    constexpr int kRows = 16;
    run((nao + kRows - 1) / kRows, [&](int block, int) {
      const int64_t begin = static_cast<int64_t>(block) * kRows * nao, end = std::min(n2, begin + static_cast<int64_t>(kRows) * nao);
      for (int p = 0; p < r.nset; ++p)
        for (int s = 1; s < nslots; ++s)
          for (int64_t x = begin; x < end; ++x) slots[0].k[p][x] += slots[s].k[p][x];
    });
    for (int p = 0; p < r.nset; ++p) {
      const double sign = parts[p].antisymmetric ? -1.0 : 1.0;
      const Doubles& m = slots[0].k[p];
      double* out = k + parts[p].source * n2;
      for (int a = 0; a < nao; ++a)
        for (int b = 0; b < nao; ++b) out[static_cast<int64_t>(a) * nao + b] += m[static_cast<int64_t>(a) * nao + b] + sign * m[static_cast<int64_t>(b) * nao + a];
    }
  }
}

ffi::Error jk_handler(ffi::ThreadPool pool, ffi::Span<const int32_t> ls, ffi::Span<const int32_t> nprims, bool cart, bool coulomb, bool exchange,
                      double omega, double threshold, int32_t parts, ffi::Buffer<ffi::S32> part, ffi::Buffer<ffi::F64> centers,
                      ffi::Buffer<ffi::F64> exponents, ffi::Buffer<ffi::F64> coefficients, ffi::Buffer<ffi::F64> density, ffi::ResultBuffer<ffi::F64> j,
                      ffi::ResultBuffer<ffi::F64> k) {
  return guarded([&] {
    if (!fit(centers, exponents, coefficients) || !finite(density)) {
      fill_nan(j);
      fill_nan(k);
      return;
    }
    check_share(part.typed_data()[0], parts);
    const Runner run = pool_runner(pool);
    const auto set = pair_set(ls.begin(), nprims.begin(), static_cast<int64_t>(ls.size()), centers.typed_data(), exponents.typed_data(),
                              coefficients.typed_data(), static_cast<int64_t>(exponents.element_count()), cart, threshold, run);
    const auto dims = density.dimensions();
    check(dims.size() == 3 && dims[1] == set->basis.nao && dims[2] == set->basis.nao, "the density must have shape (n, nao, nao)");
    jk_build(*set, density.typed_data(), static_cast<int>(dims[0]), coulomb, exchange, omega, threshold, {part.typed_data()[0], parts}, j->typed_data(),
             k->typed_data(), run);
  });
}

}  // namespace
}  // namespace jaxqc

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_jk, jaxqc::jk_handler,
                              jaxqc::jk_binding()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>());
#pragma GCC visibility pop
