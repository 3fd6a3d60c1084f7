#include "grid_block.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace jaxqc::grid {
namespace {

constexpr double kNegligible = 1e-20;  // share of an atom, relative to the others, that counts as none
constexpr int kSearch = 8;             // partners between two looks at whether anything is left

struct Ball {
  double x, y, z, radius;
};

// Around the points [first, last).
Ball ball(const double* points, int64_t first, int64_t last) {
  double low[3], high[3];
  for (int d = 0; d < 3; ++d) low[d] = high[d] = points[3 * first + d];
  for (int64_t k = first + 1; k < last; ++k) {
    for (int d = 0; d < 3; ++d) {
      low[d] = std::min(low[d], points[3 * k + d]);
      high[d] = std::max(high[d], points[3 * k + d]);
    }
  }
  Ball b{0.5 * (low[0] + high[0]), 0.5 * (low[1] + high[1]), 0.5 * (low[2] + high[2]), 0};
  double square = 0;
  for (int64_t k = first; k < last; ++k) {
    const double dx = points[3 * k] - b.x, dy = points[3 * k + 1] - b.y, dz = points[3 * k + 2] - b.z;
    square = std::max(square, dx * dx + dy * dy + dz * dz);
  }
  b.radius = std::sqrt(square) * (1 + 1e-12) + 1e-12;
  return b;
}

double distance(const Ball& b, const double* centre) {
  const double dx = centre[0] - b.x, dy = centre[1] - b.y, dz = centre[2] - b.z;
  return std::sqrt(dx * dx + dy * dy + dz * dz);
}

double step_of(Scheme scheme, double t) { return scheme == kBecke ? step<kBecke>(t) : step<kStratmann>(t); }

}  // namespace

Limits limits(const Problem& problem) {
  if (problem.scheme == kBecke) {
    // 1 - s = 8.54 (2 - t)^8 near t = 2: all steps that are taken as 1 change a product by less than 1e-16.
    return {std::pow(1e-16 / (8.55 * problem.natm), 0.125), 0.0};
  }
  double low = problem.radii[0], high = problem.radii[0];
  for (int i = 1; i < problem.natm; ++i) {
    low = std::min(low, problem.radii[i]);
    high = std::max(high, problem.radii[i]);
  }
  // P_i is 0 where some nu_ij >= a; with the largest shift b that is mu >= m, where m - b (1 - m^2) = a, and mu <= (r_i - r_j) / (r_i + r_j).
  const double b = std::min(0.5, 0.25 * (high / low - low / high));
  const double m = b > 1e-12 ? (std::sqrt(1 + 4 * b * (b + kCutoff)) - 1) / (2 * b) : kCutoff;
  return {(1 - kCutoff) * (1 - 1e-12), (1 + m) / (1 - m) * (1 + 1e-9)};
}

Block::Block(const Problem& problem, const Limits& limits) : loop(loops(problem.scheme)), problem_(problem), limits_(limits) {
  const size_t n = static_cast<size_t>(problem.natm);
  far_.resize(n);
  row_store_.resize(4 * n);
  row_ = {row_store_.data(), row_store_.data() + n, row_store_.data() + 2 * n, row_store_.data() + 3 * n};
}

void Block::enter_group(int64_t first, int64_t last) {
  group_.resize(problem_.natm);
  std::iota(group_.begin(), group_.end(), 0);
  if (limits_.ratio == 0) return;
  const Ball b = ball(problem_.points, first, last);
  double least = HUGE_VAL;
  for (int j = 0; j < problem_.natm; ++j) least = std::min(least, far_[j] = distance(b, problem_.coords + 3 * j));
  const double limit = limits_.ratio * limits_.ratio * (least + b.radius) + b.radius;
  group_.erase(std::remove_if(group_.begin(), group_.end(), [&](int j) { return far_[j] > limit; }), group_.end());
}

void Block::evaluate(int64_t first, int used) {
  for (int l = 0; l < kLanes; ++l) {
    const double* p = problem_.points + 3 * (first + std::min(l, used - 1));
    for (int d = 0; d < 3; ++d) points[d * kLanes + l] = p[d];
    total[l] = 0;
    owned[l] = -1;
  }
  const Ball b = ball(problem_.points, first, first + used);
  double least = HUGE_VAL;
  for (int j : group_) least = std::min(least, far_[j] = distance(b, problem_.coords + 3 * j));
  const double near_limit = limits_.ratio > 0 ? limits_.ratio * (least + b.radius) + b.radius : HUGE_VAL;
  const double limit = limits_.ratio > 0 ? limits_.ratio * (near_limit + b.radius) + b.radius : HUGE_VAL;
  atom.clear();
  for (int j : group_)
    if (far_[j] <= limit) atom.push_back(j);
  std::sort(atom.begin(), atom.end(), [&](int i, int j) { return far_[i] != far_[j] ? far_[i] < far_[j] : i < j; });

  const size_t n = atom.size();
  for (std::vector<double>* v : {&x, &y, &z, &radius_, &reach_, &near_}) v->resize(n);
  r_.resize(n * kLanes);
  size_t candidates = 0;
  for (size_t k = 0; k < n; ++k) {
    const double* centre = problem_.coords + 3 * atom[k];
    x[k] = centre[0];
    y[k] = centre[1];
    z[k] = centre[2];
    radius_[k] = problem_.radii[atom[k]];
    reach_[k] = far_[atom[k]] + b.radius;
    near_[k] = std::max(0.0, far_[atom[k]] - b.radius);
    if (far_[atom[k]] <= near_limit) candidates = k + 1;
  }
  atoms_ = {x.data(), y.data(), z.data(), radius_.data(), reach_.data(), near_.data(), static_cast<int>(n)};
  loop.distances(atoms_, points, r_.data());

  shares.clear();
  partners_.clear();
  products_.clear();
  double floor = 0;  // least total of the points, times what is negligible
  for (size_t i = 0; i < candidates; ++i) {
    if (!add_share(static_cast<int>(i), floor)) continue;
    for (int l = 0; l < used; ++l)
      if (problem_.owner[first + l] == atom[i]) owned[l] = static_cast<int>(shares.size()) - 1;
    floor = kNegligible * *std::min_element(total, total + kLanes);
  }
  for (int l = 0; l < kLanes; ++l) {
    fraction[l] = owned[l] < 0 ? 0.0 : product(owned[l])[l] / total[l];
    if (!(fraction[l] >= kNegligible)) {
      fraction[l] = 0;
      owned[l] = -1;
    }
  }
}

bool Block::add_share(int i, double floor) {
  const int n = static_cast<int>(atom.size()), first = static_cast<int>(partners_.size());
  double running[kLanes], bound = 1;
  std::fill(running, running + kLanes, 1.0);
  const double* ri = distances(i);
  for (int start = 0, size = kSearch; start < n; start += size, size = 2 * kSearch) {
    const int count = std::min(size, n - start), from = static_cast<int>(partners_.size());
    loop.row(atoms_, i, start, count, row_);
    for (int j = start; j < start + count; ++j) {
      if (j == i || row_.gap[j] <= limits_.gap) continue;
      partners_.push_back(j);
      if (row_.most[j] < 2) bound *= step_of(problem_.scheme, row_.most[j]);
    }
    const int found = static_cast<int>(partners_.size()) - from;
    bool left = bound >= floor;
    if (left && found > 0) {
      loop.multiply(ri, r_.data(), partners_.data() + from, found, row_, running);
      work += static_cast<int64_t>(found) * kLanes;
      left = false;
      for (int l = 0; l < kLanes; ++l) left |= running[l] >= kNegligible * total[l] && running[l] > 0;
    }
    if (!left) {
      partners_.resize(first);
      return false;
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    if (!(running[l] >= kNegligible * total[l])) running[l] = 0;
    total[l] += running[l];
  }
  shares.push_back({i, first, static_cast<int>(partners_.size()) - first});
  products_.insert(products_.end(), running, running + kLanes);
  return true;
}

const Row& Block::row(const Share& share) {
  loop.row(atoms_, share.atom, 0, static_cast<int>(atom.size()), row_);
  return row_;
}

}  // namespace jaxqc::grid
