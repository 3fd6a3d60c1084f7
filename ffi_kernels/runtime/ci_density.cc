// One- and two-particle density matrices of a vector on a set of configurations, as an XLA FFI handler.
//
//   jaxqc_ci_density  keys, count, left, right, tables -> dm1 (norb, norb), dm2 (norb, norb, norb, norb)
//
// dm1[p, q] = <q' p> and dm2[p, q, r, s] = <p' r' s q>, summed over spins. The tables must hold all excitations. Sums are made in a fixed order.
#include <algorithm>

#include "ci_ffi.h"

namespace jaxqc::ci {
namespace {

struct Accumulator {
  int64_t norb;
  std::vector<double> one, two;
  explicit Accumulator(int64_t n) : norb(n), one(n * n, 0.0), two(n * n * n * n, 0.0) {}
  double& at(int64_t p, int64_t q, int64_t r, int64_t s) { return two[((p * norb + q) * norb + r) * norb + s]; }
  void pair(int p, int q, int r, int s, double value) {
    at(p, q, r, s) += value;
    at(r, s, p, q) += value;
  }
};

template <int V>
void add_diagonal(const Source<V>& source, double weight, Accumulator& sum) {
  for (int s = 0; s < 2; ++s) {
    for (int k = 0; k < source.count[s]; ++k) {
      const int p = source.occupied[s][k];
      sum.one[p * sum.norb + p] += weight;
      for (int m = 0; m < k; ++m) {
        const int q = source.occupied[s][m];
        sum.pair(p, p, q, q, weight);
        sum.pair(p, q, q, p, -weight);
      }
      if (s == 0)
        for (int m = 0; m < source.count[1]; ++m) sum.pair(p, p, source.occupied[1][m], source.occupied[1][m], weight);
    }
  }
}

ffi::Error density(ffi::ThreadPool pool, Keys keys, Ints count, Reals left, Reals right, JAXQC_CI_TABLE_PARAMETERS,
                   ffi::ResultBuffer<ffi::F64> dm1, ffi::ResultBuffer<ffi::F64> dm2) {
  return guarded([&] {
    const Tables t = JAXQC_CI_TABLES;
    const int64_t n = checked_count(keys, count, t.norb), norb = t.norb, size = norb * norb * norb * norb;
    check(static_cast<int64_t>(left.element_count()) >= n && static_cast<int64_t>(right.element_count()) >= n,
          "vectors must have one value for each configuration.");
    check(static_cast<int64_t>(dm1->element_count()) == norb * norb && static_cast<int64_t>(dm2->element_count()) == size,
          "density matrices must have the shapes (norb, norb) and (norb, norb, norb, norb).");
    const double *bra = left.typed_data(), *ket = right.typed_data();
    // As many parts as 2 GiB hold, at most 16; not as many as there are threads, so that sums do not depend on that.
    const int jobs = static_cast<int>(std::clamp<int64_t>((int64_t{1} << 28) / size, 1, 16));
    std::vector<Accumulator> sums(jobs, Accumulator(norb));
    with_words(t.norb, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const auto members = read_keys<V>(keys.typed_data(), n, t.norb);
      const Lookup<V> lookup(members);
      pool_runner(pool)(jobs, [&](int job, int) {
        Accumulator& sum = sums[job];
        for (int64_t i = job; i < n; i += jobs) {
          const Source<V> source(members[i], t.norb);
          add_diagonal(source, bra[i] * ket[i], sum);
          const auto weight = [&](const Strings<V>& c, double sign) {
            const int32_t j = lookup.find(c);
            return j < 0 ? 0.0 : sign * bra[j] * ket[i];
          };
          excite(
              t, source, -1.0,
              [&](int spin, int p, int a, double, double sign, const Strings<V>& c) {
                const double w = weight(c, sign);
                if (w == 0) return;
                sum.one[p * norb + a] += w;
                for (int s = 0; s < 2; ++s) {
                  for (int k = 0; k < source.count[s]; ++k) {
                    const int r = source.occupied[s][k];
                    if (s == spin && r == p) continue;
                    sum.pair(a, p, r, r, w);
                    if (s == spin) sum.pair(a, r, r, p, -w);
                  }
                }
              },
              [&](bool same, int, int p, int q, int a, int b, double, double sign, const Strings<V>& c) {
                const double w = weight(c, sign);
                if (w == 0) return;
                sum.pair(a, p, b, q, w);
                if (same) sum.pair(a, q, b, p, -w);
              });
        }
      });
    });
    for (int64_t k = 0; k < norb * norb; ++k) {
      double total = 0;
      for (const auto& sum : sums) total += sum.one[k];
      dm1->typed_data()[k] = total;
    }
    for (int64_t k = 0; k < size; ++k) {
      double total = 0;
      for (const auto& sum : sums) total += sum.two[k];
      dm2->typed_data()[k] = total;
    }
  });
}

}  // namespace
}  // namespace jaxqc::ci

#pragma GCC visibility push(default)
extern "C" {
namespace ci = jaxqc::ci;
namespace ffi = xla::ffi;
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_ci_density, ci::density,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ci::Keys>().Arg<ci::Ints>().Arg<ci::Reals>().Arg<ci::Reals>()
                                  .JAXQC_CI_BIND_TABLES.Ret<ci::Reals>().Ret<ci::Reals>());
}
#pragma GCC visibility pop
