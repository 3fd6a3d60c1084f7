#include "grid_partition.h"

#include <algorithm>
#include <vector>

#include "grid_block.h"

namespace jaxqc::grid {
namespace {

constexpr int kGroup = 32;     // blocks that share a list of candidates
constexpr int kMaxJobs = 256;  // fixed, so that sums do not depend on the number of threads

struct Jobs {
  int64_t groups;
  int count;
  explicit Jobs(int64_t n) : groups((n + kGroup * kLanes - 1) / (kGroup * kLanes)), count(static_cast<int>(std::min<int64_t>(groups, kMaxJobs))) {}
};

// body(job, block, first, used) for each block of points, evaluated.
template <class Body>
void for_each_block(const Problem& problem, const Runner& run, Body&& body) {
  const Jobs jobs(problem.n);
  const Limits bounds = limits(problem);
  run(jobs.count, [&](int job, int) {
    Block block(problem, bounds);
    for (int64_t g = jobs.groups * job / jobs.count; g < jobs.groups * (job + 1) / jobs.count; ++g) {
      const int64_t first = g * kGroup * kLanes, last = std::min(problem.n, first + kGroup * kLanes);
      block.enter_group(first, last);
      for (int64_t k = first; k < last; k += kLanes) {
        const int used = static_cast<int>(std::min<int64_t>(kLanes, last - k));
        block.evaluate(k, used);
        body(job, block, k, used);
      }
    }
  });
}

double over(double r) { return r > 0 ? 1.0 / r : 0.0; }

}  // namespace

int64_t fractions(const Problem& problem, const Runner& run, double* fraction) {
  std::vector<int64_t> work(Jobs(problem.n).count, 0);
  for_each_block(problem, run, [&](int job, const Block& block, int64_t first, int used) {
    std::copy(block.fraction, block.fraction + used, fraction + first);
    work[job] = std::max(work[job], block.work);
  });
  int64_t sum = 0;
  for (int64_t w : work) sum += w;
  return sum;
}

void forward(const Problem& problem, const double* coords_rate, const double* points_rate, const Runner& run, double* rate) {
  for_each_block(problem, run, [&](int, Block& block, int64_t first, int used) {
    const size_t n = block.atom.size();
    std::vector<double> d(n * kLanes), separation(n), of_share(block.shares.size() * kLanes, 0.0);
    for (size_t j = 0; j < n; ++j) {
      const double* r = block.distances(static_cast<int>(j));
      const double* moved = coords_rate + 3 * block.atom[j];
      for (int l = 0; l < kLanes; ++l) {
        const double* p = points_rate + 3 * (first + std::min(l, used - 1));
        d[j * kLanes + l] = ((block.points[l] - block.x[j]) * (p[0] - moved[0]) + (block.points[kLanes + l] - block.y[j]) * (p[1] - moved[1]) +
                             (block.points[2 * kLanes + l] - block.z[j]) * (p[2] - moved[2])) *
                            over(r[l]);
      }
    }
    double mean[kLanes] = {};
    for (size_t s = 0; s < block.shares.size(); ++s) {
      const Share& share = block.shares[s];
      const Row& row = block.row(share);
      const int i = share.atom, *js = block.partners(share);
      const double* moved = coords_rate + 3 * block.atom[i];
      for (int k = 0; k < share.count; ++k) {
        const int j = js[k];
        const double* other = coords_rate + 3 * block.atom[j];
        separation[j] = ((block.x[i] - block.x[j]) * (moved[0] - other[0]) + (block.y[i] - block.y[j]) * (moved[1] - other[1]) +
                         (block.z[i] - block.z[j]) * (moved[2] - other[2])) *
                        row.inverse[j];
      }
      double* own = of_share.data() + s * kLanes;
      block.loop.forward(block.distances(i), block.distances(0), d.data() + static_cast<size_t>(i) * kLanes, d.data(), separation.data(), js,
                         share.count, row, own);
      for (int l = 0; l < kLanes; ++l) {
        const double p = block.product(static_cast<int>(s))[l];
        if (p > 0) mean[l] += p / block.total[l] * own[l];
      }
    }
    for (int l = 0; l < used; ++l)
      rate[first + l] = block.owned[l] < 0 ? 0.0 : block.fraction[l] * (of_share[static_cast<size_t>(block.owned[l]) * kLanes + l] - mean[l]);
  });
}

void reverse(const Problem& problem, const double* cotangent, const Runner& run, double* coords_bar, double* points_bar) {
  const size_t width = 3 * static_cast<size_t>(problem.natm);
  const int jobs = Jobs(problem.n).count;
  std::vector<double> partial(width * jobs, 0.0);
  for_each_block(problem, run, [&](int job, Block& block, int64_t first, int used) {
    double* atoms = partial.data() + width * job;
    const size_t n = block.atom.size();
    std::fill(points_bar + 3 * first, points_bar + 3 * (first + used), 0.0);
    double weight[kLanes] = {};
    bool any = false;
    for (int l = 0; l < used; ++l) {
      weight[l] = cotangent[first + l] * block.fraction[l];
      any |= weight[l] != 0;
    }
    if (!any) return;
    std::vector<double> bar(n * kLanes, 0.0), separation(n, 0.0);
    std::vector<char> touched(n, 0);
    for (size_t s = 0; s < block.shares.size(); ++s) {
      const Share& share = block.shares[s];
      double c[kLanes];
      bool live = false;
      for (int l = 0; l < kLanes; ++l) {
        const double p = block.product(static_cast<int>(s))[l] / block.total[l];
        c[l] = weight[l] * ((block.owned[l] == static_cast<int>(s) ? 1.0 : 0.0) - p);
        live |= c[l] != 0;
      }
      if (!live || share.count == 0) continue;
      const Row& row = block.row(share);
      const int i = share.atom, *js = block.partners(share);
      block.loop.reverse(c, block.distances(i), block.distances(0), js, share.count, row, bar.data() + static_cast<size_t>(i) * kLanes, bar.data(),
                         separation.data());
      touched[i] = 1;
      double* own = atoms + 3 * block.atom[i];
      for (int k = 0; k < share.count; ++k) {
        const int j = js[k];
        double* other = atoms + 3 * block.atom[j];
        const double q = separation[j] * row.inverse[j];
        const double part[3] = {q * (block.x[i] - block.x[j]), q * (block.y[i] - block.y[j]), q * (block.z[i] - block.z[j])};
        for (int e = 0; e < 3; ++e) {
          own[e] += part[e];
          other[e] -= part[e];
        }
        separation[j] = 0;
        touched[j] = 1;
      }
    }
    double at[3][kLanes] = {};
    for (size_t j = 0; j < n; ++j) {
      if (!touched[j]) continue;
      const double *r = block.distances(static_cast<int>(j)), *b = bar.data() + j * kLanes;
      const double centre[3] = {block.x[j], block.y[j], block.z[j]};
      double q[kLanes];
      for (int l = 0; l < kLanes; ++l) q[l] = b[l] * over(r[l]);
      double* own = atoms + 3 * block.atom[j];
      for (int e = 0; e < 3; ++e) {
        double sum = 0;
        for (int l = 0; l < kLanes; ++l) {
          const double part = q[l] * (block.points[e * kLanes + l] - centre[e]);
          at[e][l] += part;
          sum += part;
        }
        own[e] -= sum;
      }
    }
    for (int l = 0; l < used; ++l)
      for (int e = 0; e < 3; ++e) points_bar[3 * (first + l) + e] = at[e][l];
  });
  std::fill(coords_bar, coords_bar + width, 0.0);
  for (int job = 0; job < jobs; ++job)
    for (size_t k = 0; k < width; ++k) coords_bar[k] += partial[width * job + k];
}

}  // namespace jaxqc::grid
