// Guards of the handlers: numbers that the kernels cannot take.
#pragma once
#include <algorithm>
#include <cmath>

#include "xla/ffi/api/ffi.h"

namespace jaxqc {

// Whether numbers are fit for the kernels, whose tables are indexed by them. Where they are not the results are NaN, as of any
// arithmetic with them.
inline bool finite(const xla::ffi::Buffer<xla::ffi::F64>& b) {
  const double* p = b.typed_data();
  for (size_t k = 0; k < static_cast<size_t>(b.element_count()); ++k)
    if (!std::isfinite(p[k])) return false;
  return true;
}
inline bool fit(const xla::ffi::Buffer<xla::ffi::F64>& centers, const xla::ffi::Buffer<xla::ffi::F64>& exponents,
                const xla::ffi::Buffer<xla::ffi::F64>& coefficients) {
  const double* e = exponents.typed_data();
  for (size_t k = 0; k < static_cast<size_t>(exponents.element_count()); ++k)
    if (!(e[k] > 0)) return false;
  return finite(centers) && finite(exponents) && finite(coefficients);
}
inline void fill_nan(xla::ffi::ResultBuffer<xla::ffi::F64>& out) {
  std::fill(out->typed_data(), out->typed_data() + out->element_count(), std::nan(""));
}

}  // namespace jaxqc
