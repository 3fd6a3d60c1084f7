// One block of neighbouring points: the atoms that matter to it, nearest first, and the products of those that have a share of its space.
#pragma once
#include <vector>

#include "grid_partition.h"

namespace jaxqc::grid {

// What is left out follows from these; the rest is bounded by them.
struct Limits {
  double gap;    // a step with 2 - t below it is 1
  double ratio;  // an atom more than this times as far away as another one has no share; 0: there is no such limit
};
Limits limits(const Problem& problem);

// An atom whose product P_i is not negligible at all points of the block.
struct Share {
  int atom;          // its place in the block's list
  int first, count;  // its partners, with steps other than 1: Block::partners
};

class Block {
 public:
  Block(const Problem& problem, const Limits& limits);
  // Chooses the atoms that may matter to the points [first, last), which hold blocks that are evaluated next.
  void enter_group(int64_t first, int64_t last);
  // The points [first, first + used), at most kLanes; the rest of the block repeats the last one.
  void evaluate(int64_t first, int used);

  // The pairs of a share's atom with its partners; valid until the next call.
  const Row& row(const Share& share);
  const int* partners(const Share& share) const { return partners_.data() + share.first; }
  const double* distances(int i) const { return r_.data() + static_cast<size_t>(i) * kLanes; }
  const double* product(int share) const { return products_.data() + static_cast<size_t>(share) * kLanes; }

  const Loops& loop;
  std::vector<int> atom;         // the block's list: indices of atoms
  std::vector<double> x, y, z;   // of the list
  std::vector<Share> shares;
  double total[kLanes];          // sum of the products
  double fraction[kLanes];       // share of each point's own atom
  int owned[kLanes];             // its number among the shares, -1 where the fraction is 0
  double points[3 * kLanes];     // x, y, z
  int64_t work = 0;              // steps evaluated so far

 private:
  bool add_share(int i, double floor);

  const Problem& problem_;
  const Limits limits_;
  std::vector<int> group_, partners_, order_;
  std::vector<double> far_, radius_, reach_, near_, r_, products_, row_store_;
  Atoms atoms_;
  Row row_;
};

}  // namespace jaxqc::grid
