// The partition of space among the atoms, as XLA FFI handlers.
//
//   jaxqc_grid_partition          -> fraction (n,), work (): steps evaluated
//   jaxqc_grid_partition_forward  rates of nuclei and points -> rate (n,)
//   jaxqc_grid_partition_reverse  cotangent (n,) -> cotangents of nuclei (natm, 3) and points (n, 3)
//
// Operands of all: coords (natm, 3), points (n, 3), owner (n,), radii (natm,); attribute scheme: 0 Becke, 1 Stratmann-Scuseria-Frisch.
#include "grid_partition.h"
#include "shells_ffi.h"

namespace ffi = xla::ffi;

namespace jaxqc::grid {
namespace {

typedef ffi::Buffer<ffi::F64> Doubles;
typedef ffi::Buffer<ffi::S32> Integers;
typedef ffi::ResultBuffer<ffi::F64> DoubleResult;

Problem problem(const Doubles& coords, const Doubles& points, const Integers& owner, const Doubles& radii, int64_t scheme) {
  const size_t natm = radii.element_count(), n = owner.element_count();
  check(coords.element_count() == 3 * natm && points.element_count() == 3 * n && natm > 0,
        "coords, points, owner and radii of a grid partition must have the shapes (natm, 3), (n, 3), (n,) and (natm,).");
  check(scheme == kBecke || scheme == kStratmann, "scheme of a grid partition must be 0 or 1.");
  for (size_t i = 0; i < natm; ++i) check(radii.typed_data()[i] > 0, "radii of a grid partition must be positive.");
  return {coords.typed_data(), points.typed_data(), owner.typed_data(), radii.typed_data(), static_cast<int>(natm), static_cast<int64_t>(n),
          static_cast<Scheme>(scheme)};
}

ffi::Error partition(ffi::ThreadPool pool, Doubles coords, Doubles points, Integers owner, Doubles radii, DoubleResult fraction,
                     ffi::ResultBuffer<ffi::S64> work, int64_t scheme) {
  return guarded([&] {
    const Problem p = problem(coords, points, owner, radii, scheme);
    work->typed_data()[0] = 0;
    if (!finite(coords) || !finite(points)) return fill_nan(fraction);
    work->typed_data()[0] = fractions(p, pool_runner(pool), fraction->typed_data());
  });
}

ffi::Error partition_forward(ffi::ThreadPool pool, Doubles coords, Doubles points, Integers owner, Doubles radii, Doubles coords_rate,
                             Doubles points_rate, DoubleResult rate, int64_t scheme) {
  return guarded([&] {
    const Problem p = problem(coords, points, owner, radii, scheme);
    if (!finite(coords) || !finite(points)) return fill_nan(rate);
    forward(p, coords_rate.typed_data(), points_rate.typed_data(), pool_runner(pool), rate->typed_data());
  });
}

ffi::Error partition_reverse(ffi::ThreadPool pool, Doubles coords, Doubles points, Integers owner, Doubles radii, Doubles cotangent,
                             DoubleResult coords_bar, DoubleResult points_bar, int64_t scheme) {
  return guarded([&] {
    const Problem p = problem(coords, points, owner, radii, scheme);
    if (!finite(coords) || !finite(points)) {
      fill_nan(coords_bar);
      return fill_nan(points_bar);
    }
    reverse(p, cotangent.typed_data(), pool_runner(pool), coords_bar->typed_data(), points_bar->typed_data());
  });
}

#define JAXQC_GRID_OPERANDS                                                                                                                \
  ffi::Ffi::Bind()                                                                                                                         \
      .Ctx<ffi::ThreadPool>()                                                                                                              \
      .Arg<jaxqc::grid::Doubles>()                                                                                                         \
      .Arg<jaxqc::grid::Doubles>()                                                                                                         \
      .Arg<jaxqc::grid::Integers>()                                                                                                        \
      .Arg<jaxqc::grid::Doubles>()

}  // namespace
}  // namespace jaxqc::grid

#pragma GCC visibility push(default)
extern "C" {
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_grid_partition, jaxqc::grid::partition,
                              JAXQC_GRID_OPERANDS.Ret<jaxqc::grid::Doubles>().Ret<ffi::Buffer<ffi::S64>>().Attr<int64_t>("scheme"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_grid_partition_forward, jaxqc::grid::partition_forward,
                              JAXQC_GRID_OPERANDS.Arg<jaxqc::grid::Doubles>()
                                  .Arg<jaxqc::grid::Doubles>()
                                  .Ret<jaxqc::grid::Doubles>()
                                  .Attr<int64_t>("scheme"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_grid_partition_reverse, jaxqc::grid::partition_reverse,
                              JAXQC_GRID_OPERANDS.Arg<jaxqc::grid::Doubles>()
                                  .Ret<jaxqc::grid::Doubles>()
                                  .Ret<jaxqc::grid::Doubles>()
                                  .Attr<int64_t>("scheme"));
}
#pragma GCC visibility pop
