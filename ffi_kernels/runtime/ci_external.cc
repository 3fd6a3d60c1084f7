// The first-order interacting space of a vector, as an XLA FFI handler: all configurations k outside of the set with sum_i H_ki c_i.
//
//   jaxqc_ci_external  keys, count, coefficients, thresholds, tables; part, parts -> keys, sums, energies <k|H|k> - E_0, total
//
// Only configurations whose hash falls into `part` of `parts` are made, which bounds the memory. Sums are made in the order of sources and results
// come in an order of their own, whatever the number of threads. Where total exceeds the rows of the results, these must not be used.
#include <algorithm>
#include <numeric>

#include "ci_ffi.h"

namespace jaxqc::ci {
namespace {

constexpr int kBuckets = 64;

template <int V>
struct Term {
  Strings<V> strings;
  double value;
};

// Sums of equal configurations, in the order in which they first come; members of the set are left out.
template <int V>
std::vector<Term<V>> collect(const std::vector<std::vector<Term<V>>*>& lists, const Lookup<V>& members) {
  size_t terms = 0;
  for (const auto* list : lists) terms += list->size();
  uint64_t size = 64;
  while (size < terms) size *= 2;  // most come more than once
  std::vector<int32_t> slots(size, -1);
  std::vector<Term<V>> unique;
  unique.reserve(terms / 2);
  const auto place = [&](const Strings<V>& c) {
    // The upper bits choose the part and the bucket, so slots are found by the lower ones.
    uint64_t k = c.hash() & (size - 1);
    while (slots[k] >= 0 && !(unique[slots[k]].strings == c)) k = (k + 1) & (size - 1);
    return k;
  };
  for (auto* list : lists) {
    for (const Term<V>& term : *list) {
      uint64_t k = place(term.strings);
      if (slots[k] >= 0) {
        unique[slots[k]].value += term.value;
        continue;
      }
      if (2 * (unique.size() + 1) > size) {
        size *= 2;
        slots.assign(size, -1);
        for (size_t i = 0; i < unique.size(); ++i) {
          uint64_t m = unique[i].strings.hash() & (size - 1);
          while (slots[m] >= 0) m = (m + 1) & (size - 1);
          slots[m] = static_cast<int32_t>(i);
        }
        k = place(term.strings);
      }
      slots[k] = static_cast<int32_t>(unique.size());
      unique.push_back(term);
    }
    std::vector<Term<V>>().swap(*list);
  }
  unique.erase(std::remove_if(unique.begin(), unique.end(), [&](const Term<V>& u) { return members.find(u.strings) >= 0; }), unique.end());
  return unique;
}

ffi::Error external(ffi::ThreadPool pool, int64_t part, int64_t parts, Keys keys, Ints count, Reals coefficients, Reals thresholds,
                    JAXQC_CI_TABLE_PARAMETERS, ffi::ResultBuffer<ffi::U64> out_keys, ffi::ResultBuffer<ffi::F64> out_sums,
                    ffi::ResultBuffer<ffi::F64> out_energies, ffi::ResultBuffer<ffi::S64> out_total) {
  return guarded([&] {
    const Tables t = JAXQC_CI_TABLES;
    const int64_t n = checked_count(keys, count, t.norb), capacity = static_cast<int64_t>(out_sums->element_count());
    check(static_cast<int64_t>(thresholds.element_count()) >= n && static_cast<int64_t>(coefficients.element_count()) >= n,
          "thresholds and coefficients must have one value for each configuration.");
    check(parts >= 1 && part >= 0 && part < parts, "part must be from 0 to parts - 1.");
    const double *threshold = thresholds.typed_data(), *c = coefficients.typed_data();
    const int words = key_words(t.norb);
    int64_t filled = 0;
    with_words(t.norb, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const auto members = read_keys<V>(keys.typed_data(), n, t.norb);
      const Lookup<V> lookup(members);
      const int64_t chunk = std::max<int64_t>(16, (n + 255) / 256);
      const int jobs = static_cast<int>((n + chunk - 1) / chunk);
      std::vector<std::vector<std::vector<Term<V>>>> terms(jobs, std::vector<std::vector<Term<V>>>(kBuckets));
      pool_runner(pool)(jobs, [&](int job, int) {
        for (int64_t i = job * chunk; i < std::min(n, (job + 1) * chunk); ++i) {
          const auto keep = [&](const Strings<V>& k, double h) {
            const uint64_t hash = k.hash() >> 32;
            if (parts > 1 && static_cast<int64_t>((hash >> 6) % static_cast<uint64_t>(parts)) != part) return;
            terms[job][hash % kBuckets].push_back({k, h * c[i]});
          };
          excite(
              t, Source<V>(members[i], t.norb), threshold[i],
              [&](int, int, int, double h, double sign, const Strings<V>& k) { keep(k, sign * h); },
              [&](bool, int, int, int, int, int, double h, double sign, const Strings<V>& k) { keep(k, sign * h); });
        }
      });
      std::vector<std::vector<Term<V>>> sums(kBuckets);
      pool_runner(pool)(kBuckets, [&](int bucket, int) {
        std::vector<std::vector<Term<V>>*> lists;
        for (auto& job : terms) lists.push_back(&job[bucket]);
        sums[bucket] = collect<V>(lists, lookup);
      });
      std::vector<int64_t> start(kBuckets + 1, 0);
      for (int b = 0; b < kBuckets; ++b) start[b + 1] = start[b] + static_cast<int64_t>(sums[b].size());
      out_total->typed_data()[0] = start[kBuckets];
      if (start[kBuckets] > capacity) return;
      pool_runner(pool)(kBuckets, [&](int bucket, int) {
        int64_t k = start[bucket];
        for (const Term<V>& term : sums[bucket]) {
          write_key(term.strings, t.norb, out_keys->typed_data() + k * words);
          out_sums->typed_data()[k] = term.value;
          out_energies->typed_data()[k++] = diagonal_element(t, term.strings);
        }
      });
      filled = start[kBuckets];
    });
    std::fill(out_keys->typed_data() + filled * words, out_keys->typed_data() + capacity * words, ~uint64_t{0});
    std::fill(out_sums->typed_data() + filled, out_sums->typed_data() + capacity, 0.0);
    std::fill(out_energies->typed_data() + filled, out_energies->typed_data() + capacity, 0.0);
  });
}

}  // namespace
}  // namespace jaxqc::ci

#pragma GCC visibility push(default)
extern "C" {
namespace ci = jaxqc::ci;
namespace ffi = xla::ffi;
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_ci_external, ci::external,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Attr<int64_t>("part").Attr<int64_t>("parts").Arg<ci::Keys>().Arg<ci::Ints>()
                                  .Arg<ci::Reals>().Arg<ci::Reals>().JAXQC_CI_BIND_TABLES.Ret<ffi::Buffer<ffi::U64>>().Ret<ci::Reals>()
                                  .Ret<ci::Reals>().Ret<ffi::Buffer<ffi::S64>>());
}
#pragma GCC visibility pop
