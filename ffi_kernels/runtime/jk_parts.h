// Parts of the symmetric builds shared by J/K and their derivatives.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "pair_cache.h"

namespace jaxqc {

// The quartet work of a build in pieces: bra pairs of one class against all kets of another.
// Which part of the work is done here, where several devices share it.
struct Share {
  int part, parts;
};

// Every `parts`-th task from number `part` on.
inline std::vector<JKTask> make_tasks(const std::vector<PairClass>& classes, Share share) {
  std::vector<JKTask> tasks;
  const int n = static_cast<int>(classes.size());
  int number = 0;
  for (int a = 0; a < n; ++a)
    for (int b = 0; b <= a; ++b) {
      // The bra is the pair with more [e0| components (accumulation runs over the kets' components in registers).
      const PairList &x = classes[a].list, &y = classes[b].list;
      const bool swap = nlevels(y.la, y.lb) > nlevels(x.la, x.lb);
      const int bra = swap ? b : a, ket = swap ? a : b;
      const int size = classes[bra].list.n, chunk = std::clamp(size / 128, 1, 64);
      for (int begin = 0; begin < size; begin += chunk)
        if (number++ % share.parts == share.part) tasks.push_back({bra, ket, a == b, begin, std::min(size, begin + chunk)});
    }
  return tasks;
}

// Raises max[a, b] to the largest |m| of each shell block.
inline void raise_shell_max(const Basis& basis, const double* m, std::vector<double>& max) {
  const size_t nshell = basis.shells.size();
  const int64_t nao = basis.nao;
  max.resize(nshell * nshell, 0.0);
  for (size_t a = 0; a < nshell; ++a)
    for (size_t b = 0; b < nshell; ++b) {
      const Shell &s = basis.shells[a], &t = basis.shells[b];
      double most = max[a * nshell + b];
      for (int x = 0; x < nfunc(s.l, basis.cart); ++x)
        for (int y = 0; y < nfunc(t.l, basis.cart); ++y) most = std::max(most, std::fabs(m[(s.ao + x) * nao + t.ao + y]));
      max[a * nshell + b] = most;
    }
}

// (m + sign m^T) / 2; false where it is negligible beside m.
inline bool fold(const double* m, int64_t nao, double sign, std::vector<double>& out) {
  out.resize(static_cast<size_t>(nao) * nao + kLanes);  // whole-row loads may run over the end
  double largest = 0, part = 0;
  for (int64_t i = 0; i < nao; ++i)
    for (int64_t j = 0; j < nao; ++j) {
      const double u = m[i * nao + j], v = 0.5 * (u + sign * m[j * nao + i]);
      out[i * nao + j] = v;
      largest = std::max(largest, std::fabs(u));
      part = std::max(part, std::fabs(v));
    }
  return part > 1e-15 * largest;
}

}  // namespace jaxqc
