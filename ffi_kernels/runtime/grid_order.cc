// The order of points along a Hilbert curve, as an XLA FFI handler: the same keys as jaxqc/xc/_grid_hilbert.py, sorted by radix.
//
//   jaxqc_grid_order  points (n, 3) -> order (n,)
#include <algorithm>
#include <utility>
#include <vector>

#include "shells_ffi.h"

namespace ffi = xla::ffi;

namespace jaxqc::grid {
namespace {

constexpr int kBits = 16;  // an axis
constexpr int kDigit = 12;
constexpr int64_t kPart = 1 << 14;  // points of a job

// J. Skilling, AIP Conf. Proc. 707, 381 (2004).
uint64_t hilbert_key(uint32_t a, uint32_t b, uint32_t c) {
  for (uint32_t high = 1u << (kBits - 1); high > 1; high >>= 1) {
    const uint32_t low = high - 1;
    if (a & high) a ^= low;
    for (uint32_t* other : {&b, &c}) {
      if (*other & high) {
        a ^= low;
      } else {
        const uint32_t swap = (a ^ *other) & low;
        a ^= swap;
        *other ^= swap;
      }
    }
  }
  b ^= a;
  c ^= b;
  uint32_t t = 0;
  for (uint32_t high = 1u << (kBits - 1); high > 1; high >>= 1)
    if (c & high) t ^= high - 1;
  a ^= t;
  b ^= t;
  c ^= t;
  uint64_t key = 0;
  for (int k = kBits - 1; k >= 0; --k) key = key << 3 | ((a >> k) & 1) << 2 | ((b >> k) & 1) << 1 | ((c >> k) & 1);
  return key;
}

struct Entry {
  uint64_t key;
  int32_t index;
};

ffi::Error order(ffi::ThreadPool pool, ffi::Buffer<ffi::F64> points, ffi::ResultBuffer<ffi::S32> result) {
  return guarded([&] {
    const double* p = points.typed_data();
    const int64_t n = static_cast<int64_t>(result->element_count());
    check(static_cast<int64_t>(points.element_count()) == 3 * n, "points must have the shape (n, 3) of the order (n,).");
    int32_t* out = result->typed_data();
    for (int64_t k = 0; k < n; ++k) out[k] = static_cast<int32_t>(k);
    if (n == 0 || !finite(points)) return;
    double low[3], high[3];
    for (int d = 0; d < 3; ++d) low[d] = high[d] = p[d];
    for (int64_t k = 0; k < n; ++k) {
      for (int d = 0; d < 3; ++d) {
        low[d] = std::min(low[d], p[3 * k + d]);
        high[d] = std::max(high[d], p[3 * k + d]);
      }
    }
    const double extent = std::max({high[0] - low[0], high[1] - low[1], high[2] - low[2], 1e-300});
    const double most = (1 << kBits) - 1, scale = most / extent;
    std::vector<Entry> entries(n), sorted(n);
    const int jobs = static_cast<int>((n + kPart - 1) / kPart);
    pool_runner(pool)(jobs, [&](int job, int) {
      for (int64_t k = job * kPart; k < std::min(n, (job + 1) * kPart); ++k) {
        uint32_t cell[3];
        for (int d = 0; d < 3; ++d) cell[d] = static_cast<uint32_t>(std::min(most, (p[3 * k + d] - low[d]) * scale));
        entries[k] = {hilbert_key(cell[0], cell[1], cell[2]), static_cast<int32_t>(k)};
      }
    });
    std::vector<int64_t> count(1 << kDigit);
    for (int shift = 0; shift < 3 * kBits; shift += kDigit) {
      std::fill(count.begin(), count.end(), 0);
      for (const Entry& e : entries) ++count[(e.key >> shift) & ((1 << kDigit) - 1)];
      int64_t start = 0;
      for (int64_t& c : count) start += std::exchange(c, start);
      for (const Entry& e : entries) sorted[count[(e.key >> shift) & ((1 << kDigit) - 1)]++] = e;
      entries.swap(sorted);
    }
    for (int64_t k = 0; k < n; ++k) out[k] = entries[k].index;
  });
}

}  // namespace
}  // namespace jaxqc::grid

#pragma GCC visibility push(default)
extern "C" {
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_grid_order, jaxqc::grid::order,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::Buffer<ffi::F64>>().Ret<ffi::Buffer<ffi::S32>>());
}
#pragma GCC visibility pop
