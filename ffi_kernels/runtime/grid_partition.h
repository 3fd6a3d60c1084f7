// The partition of space among the atoms for many points, and its first derivatives, in blocks of neighbouring points.
#pragma once
#include <cstdint>

#include "grid_loops.h"
#include "pair_cache.h"

namespace jaxqc::grid {

// What all handlers are given. Points next to each other in memory should be next to each other in space.
struct Problem {
  const double* coords;  // (natm, 3)
  const double* points;  // (n, 3)
  const int32_t* owner;  // (n,)
  const double* radii;   // (natm,)
  int natm;
  int64_t n;
  Scheme scheme;
};

// fraction (n,); returns the number of steps s(t) that were evaluated.
int64_t fractions(const Problem& problem, const Runner& run, double* fraction);
// rate (n,) of the fractions, for rates of the nuclei and of the points.
void forward(const Problem& problem, const double* coords_rate, const double* points_rate, const Runner& run, double* rate);
// The transpose: from cotangents (n,) of the fractions those of the nuclei (natm, 3) and of the points (n, 3).
void reverse(const Problem& problem, const double* cotangent, const Runner& run, double* coords_bar, double* points_bar);

}  // namespace jaxqc::grid
