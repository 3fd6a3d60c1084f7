// What the handlers of selected CI share: the operands of the tables, checks, and the choice of the number of words.
#pragma once
#include "ci_excite.h"
#include "shells_ffi.h"

namespace jaxqc::ci {

namespace ffi = xla::ffi;
using Keys = ffi::Buffer<ffi::U64>;
using Ints = ffi::Buffer<ffi::S32>;
using Reals = ffi::Buffer<ffi::F64>;

// The tables are the ten operands one, coulomb, like, bound, like_start, like_target, like_value, unlike_start, unlike_target, unlike_value.
#define JAXQC_CI_BIND_TABLES Arg<ci::Reals>().Arg<ci::Reals>().Arg<ci::Reals>().Arg<ci::Reals>().Arg<ci::Ints>().Arg<ci::Ints>().Arg<ci::Reals>() \
      .Arg<ci::Ints>().Arg<ci::Ints>().Arg<ci::Reals>()
#define JAXQC_CI_TABLE_PARAMETERS Reals one, Reals coulomb, Reals like, Reals bound, Ints like_start, Ints like_target, Reals like_value, \
      Ints unlike_start, Ints unlike_target, Reals unlike_value
#define JAXQC_CI_TABLES make_tables(one, coulomb, like, bound, like_start, like_target, like_value, unlike_start, unlike_target, unlike_value)

inline void check_rows(const Ints& start, const Ints& target, const Reals& value, int64_t rows) {
  const int64_t entries = static_cast<int64_t>(target.element_count());
  check(static_cast<int64_t>(start.element_count()) == rows + 1 && entries == static_cast<int64_t>(value.element_count()),
        "tables of excitations do not fit together.");
  const int32_t* s = start.typed_data();
  for (int64_t r = 0; r < rows; ++r) check(s[r] >= 0 && s[r] <= s[r + 1] && s[r + 1] <= entries, "tables of excitations have wrong rows.");
}

inline Tables make_tables(JAXQC_CI_TABLE_PARAMETERS) {
  const int64_t norb = one.dimensions()[0], square = norb * norb;
  check(static_cast<int64_t>(one.element_count()) == square && static_cast<int64_t>(bound.element_count()) == square &&
            static_cast<int64_t>(coulomb.element_count()) == square * norb && static_cast<int64_t>(like.element_count()) == square * norb,
        "tables of single excitations must have the shapes (norb, norb) and (norb, norb, norb).");
  check_rows(like_start, like_target, like_value, norb * (norb - 1) / 2);
  check_rows(unlike_start, unlike_target, unlike_value, square);
  return {static_cast<int>(norb),       one.typed_data(),        coulomb.typed_data(),    like.typed_data(),
          bound.typed_data(),           like_start.typed_data(), like_target.typed_data(), like_value.typed_data(),
          unlike_start.typed_data(),    unlike_target.typed_data(), unlike_value.typed_data()};
}

// Number of configurations, which their array must hold.
inline int64_t checked_count(const Keys& keys, const Ints& count, int norb) {
  check(keys.dimensions().size() == 2 && keys.dimensions()[1] == key_words(norb), "keys must have the shape (n, words) of norb orbitals.");
  const int64_t n = count.typed_data()[0];
  check(n >= 0 && n <= keys.dimensions()[0], "count must be from 0 to the number of keys.");
  return n;
}

// Calls body with the number of words of one spin as a constant.
template <class Body>
void with_words(int norb, Body&& body) {
  const int words = (norb + 63) / 64;
  check(words >= 1 && words <= 4, "more than 256 orbitals are not supported.");
  if (words == 1) body(std::integral_constant<int, 1>());
  if (words == 2) body(std::integral_constant<int, 2>());
  if (words == 3) body(std::integral_constant<int, 3>());
  if (words == 4) body(std::integral_constant<int, 4>());
}

}  // namespace jaxqc::ci
