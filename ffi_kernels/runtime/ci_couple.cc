// Coupled configurations of many sources, as XLA FFI handlers. Results come in the order of sources whatever the number of threads.
//
//   jaxqc_ci_couple  keys, count, thresholds, tables -> keys, elements, sources, total
//   jaxqc_ci_sparse  keys, count, thresholds, tables -> row_start, columns, elements, energies <i|H|i> - E_0, total   (within the sorted set)
//
// Where total exceeds the rows of the results, these are incomplete and must not be used.
#include <atomic>
#include <numeric>

#include "ci_ffi.h"

namespace jaxqc::ci {
namespace {

template <class Item>
struct Parts {
  std::vector<std::vector<Item>> items;
  std::vector<int64_t> start;
  int64_t total;
};

// generate(source, threshold, items, i) for all sources in chunks; chunks beyond the capacity are only counted.
template <int V, class Item, class Generate>
Parts<Item> generate_all(const std::vector<Strings<V>>& sources, int64_t capacity, ffi::ThreadPool& pool, Generate&& generate) {
  constexpr int64_t kChunk = 32;
  const int64_t n = static_cast<int64_t>(sources.size());
  const int jobs = static_cast<int>((n + kChunk - 1) / kChunk);
  Parts<Item> parts;
  parts.items.resize(jobs);
  parts.start.assign(jobs + 1, 0);
  std::atomic<int64_t> total{0};
  pool_runner(pool)(jobs, [&](int job, int) {
    std::vector<Item> items;
    for (int64_t i = job * kChunk; i < std::min(n, (job + 1) * kChunk); ++i) generate(i, items);
    const int64_t size = static_cast<int64_t>(items.size());
    parts.start[job + 1] = size;
    if (total.fetch_add(size) + size <= capacity) {
      items.shrink_to_fit();
      parts.items[job] = std::move(items);
    }
  });
  std::partial_sum(parts.start.begin(), parts.start.end(), parts.start.begin());
  parts.total = total;
  return parts;
}

template <int V>
struct Coupled {
  Strings<V> strings;
  double element;
  int32_t source;
};

ffi::Error couple(ffi::ThreadPool pool, Keys keys, Ints count, Reals thresholds, JAXQC_CI_TABLE_PARAMETERS, ffi::ResultBuffer<ffi::U64> out_keys,
                  ffi::ResultBuffer<ffi::F64> out_elements, ffi::ResultBuffer<ffi::S32> out_sources, ffi::ResultBuffer<ffi::S64> out_total) {
  return guarded([&] {
    const Tables t = JAXQC_CI_TABLES;
    const int64_t n = checked_count(keys, count, t.norb), capacity = static_cast<int64_t>(out_elements->element_count());
    check(static_cast<int64_t>(thresholds.element_count()) >= n, "thresholds must have one value for each configuration.");
    const double* threshold = thresholds.typed_data();
    const int words = key_words(t.norb);
    int64_t filled = 0;
    with_words(t.norb, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const auto sources = read_keys<V>(keys.typed_data(), n, t.norb);
      auto parts = generate_all<V, Coupled<V>>(sources, capacity, pool, [&](int64_t i, std::vector<Coupled<V>>& items) {
        const int32_t index = static_cast<int32_t>(i);
        excite(
            t, Source<V>(sources[i], t.norb), threshold[i],
            [&](int, int, int, double h, double sign, const Strings<V>& c) { items.push_back({c, sign * h, index}); },
            [&](bool, int, int, int, int, int, double h, double sign, const Strings<V>& c) { items.push_back({c, sign * h, index}); });
      });
      out_total->typed_data()[0] = parts.total;
      if (parts.total > capacity) return;
      pool_runner(pool)(static_cast<int>(parts.items.size()), [&](int job, int) {
        int64_t k = parts.start[job];
        for (const auto& item : parts.items[job]) {
          write_key(item.strings, t.norb, out_keys->typed_data() + k * words);
          out_elements->typed_data()[k] = item.element;
          out_sources->typed_data()[k++] = item.source;
        }
        std::vector<Coupled<V>>().swap(parts.items[job]);
      });
      filled = parts.total;
    });
    std::fill(out_keys->typed_data() + filled * words, out_keys->typed_data() + capacity * words, ~uint64_t{0});
    std::fill(out_elements->typed_data() + filled, out_elements->typed_data() + capacity, 0.0);
    std::fill(out_sources->typed_data() + filled, out_sources->typed_data() + capacity, 0);
  });
}

struct Entry {
  double element;
  int32_t row, column;
};

ffi::Error sparse(ffi::ThreadPool pool, Keys keys, Ints count, Reals thresholds, JAXQC_CI_TABLE_PARAMETERS, ffi::ResultBuffer<ffi::S64> row_start,
                  ffi::ResultBuffer<ffi::S32> columns, ffi::ResultBuffer<ffi::F64> elements, ffi::ResultBuffer<ffi::F64> energies,
                  ffi::ResultBuffer<ffi::S64> out_total) {
  return guarded([&] {
    const Tables t = JAXQC_CI_TABLES;
    const int64_t n = checked_count(keys, count, t.norb), capacity = static_cast<int64_t>(elements->element_count());
    const int64_t rows = keys.dimensions()[0];
    check(static_cast<int64_t>(thresholds.element_count()) >= n, "thresholds must have one value for each configuration.");
    check(static_cast<int64_t>(row_start->element_count()) == rows + 1, "row_start must have one more value than there are keys.");
    const double* threshold = thresholds.typed_data();
    int64_t* start = row_start->typed_data();
    check(static_cast<int64_t>(energies->element_count()) == rows, "energies must have one value for each key.");
    std::fill(start, start + rows + 1, 0);
    std::fill(energies->typed_data(), energies->typed_data() + rows, 0.0);
    int64_t filled = 0;
    with_words(t.norb, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const auto members = read_keys<V>(keys.typed_data(), n, t.norb);
      const Lookup<V> lookup(members);
      // Members are sorted: each pair is found from its first one, and stored for both.
      auto parts = generate_all<V, Entry>(members, capacity / 2, pool, [&](int64_t i, std::vector<Entry>& items) {
        const auto keep = [&](const Strings<V>& c, double h) {
          if (!(members[i] < c)) return;
          const int32_t column = lookup.find(c);
          if (column >= 0) items.push_back({h, static_cast<int32_t>(i), column});
        };
        energies->typed_data()[i] = diagonal_element(t, members[i]);
        excite(
            t, Source<V>(members[i], t.norb), threshold[i],
            [&](int, int, int, double h, double sign, const Strings<V>& c) { keep(c, sign * h); },
            [&](bool, int, int, int, int, int, double h, double sign, const Strings<V>& c) { keep(c, sign * h); });
      });
      out_total->typed_data()[0] = 2 * parts.total;
      if (2 * parts.total > capacity) return;
      for (const auto& items : parts.items) {
        for (const Entry& item : items) {
          ++start[item.row + 1];
          ++start[item.column + 1];
        }
      }
      std::partial_sum(start, start + rows + 1, start);
      std::vector<int64_t> next(start, start + rows);
      const auto place = [&](int32_t row, int32_t column, double element) {
        const int64_t k = next[row]++;
        columns->typed_data()[k] = column;
        elements->typed_data()[k] = element;
      };
      for (auto& items : parts.items) {
        for (const Entry& item : items) {
          place(item.row, item.column, item.element);
          place(item.column, item.row, item.element);
        }
        std::vector<Entry>().swap(items);
      }
      filled = 2 * parts.total;
    });
    std::fill(elements->typed_data() + filled, elements->typed_data() + capacity, 0.0);
    std::fill(columns->typed_data() + filled, columns->typed_data() + capacity, 0);
  });
}

// y = (diagonal + off-diagonal) x, rows in parallel.
ffi::Error matvec(ffi::ThreadPool pool, ffi::Buffer<ffi::S64> row_start, Ints columns, Reals elements, Reals diagonal, Reals x,
                  ffi::ResultBuffer<ffi::F64> y) {
  return guarded([&] {
    const int64_t n = static_cast<int64_t>(y->element_count());
    check(static_cast<int64_t>(x.element_count()) == n && static_cast<int64_t>(diagonal.element_count()) == n &&
              static_cast<int64_t>(row_start.element_count()) == n + 1,
          "operands of the product with a sparse matrix do not fit together.");
    constexpr int64_t kChunk = 1024;
    pool_runner(pool)(static_cast<int>((n + kChunk - 1) / kChunk), [&](int job, int) {
      const int64_t* start = row_start.typed_data();
      const double* value = x.typed_data();
      for (int64_t i = job * kChunk; i < std::min(n, (job + 1) * kChunk); ++i) {
        double sum = diagonal.typed_data()[i] * value[i];
        for (int64_t k = start[i]; k < start[i + 1]; ++k) sum += elements.typed_data()[k] * value[columns.typed_data()[k]];
        y->typed_data()[i] = sum;
      }
    });
  });
}

}  // namespace
}  // namespace jaxqc::ci

#pragma GCC visibility push(default)
extern "C" {
namespace ci = jaxqc::ci;
namespace ffi = xla::ffi;
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_ci_couple, ci::couple,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ci::Keys>().Arg<ci::Ints>().Arg<ci::Reals>().JAXQC_CI_BIND_TABLES
                                  .Ret<ffi::Buffer<ffi::U64>>().Ret<ci::Reals>().Ret<ci::Ints>().Ret<ffi::Buffer<ffi::S64>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_ci_sparse, ci::sparse,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ci::Keys>().Arg<ci::Ints>().Arg<ci::Reals>().JAXQC_CI_BIND_TABLES
                                  .Ret<ffi::Buffer<ffi::S64>>().Ret<ci::Ints>().Ret<ci::Reals>().Ret<ci::Reals>().Ret<ffi::Buffer<ffi::S64>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_ci_matvec, ci::matvec,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::Buffer<ffi::S64>>().Arg<ci::Ints>().Arg<ci::Reals>().Arg<ci::Reals>()
                                  .Arg<ci::Reals>().Ret<ci::Reals>());
}
#pragma GCC visibility pop
