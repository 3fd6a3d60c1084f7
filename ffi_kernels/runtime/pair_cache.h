// Pair lists of the last few geometries: an SCF calls J/K many times with the same shells.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "kernels.h"

namespace jaxqc {

struct PairSet {
  Basis basis;
  std::vector<PairList> lists;  // classes (la, lb), la >= lb, that occur, by rising la, lb
  double q_max = 0;
};

// Lists for these shells and threshold, from the cache or new. `run` executes jobs in parallel.
typedef std::function<void(int count, const std::function<void(int, int)>&)> Runner;
std::shared_ptr<const PairSet> pair_set(const int32_t* ls, const int32_t* nprims, int64_t nshell, const double* centers, const double* exps,
                                        const double* coefs, int64_t nprim, bool cart, double threshold, const Runner& run);

}  // namespace jaxqc
