// The inner loops of the partition of space over one block of points, for the instruction set in use.
//
// Arrays of a block: r[j * kLanes + l] is the distance of point l to atom j of the block's list. A Row holds, for one atom i, what its pairs
// with the atoms of the list need.
#pragma once

#include "grid_step.h"

namespace jaxqc::grid {

// Atoms of a block's list, nearest first.
struct Atoms {
  const double *x, *y, *z, *radius;
  const double* reach;  // upper bound of the distance to any point of the block
  const double* near;   // lower bound of it
  int count;
};

// Pairs (i, j) for j in [first, first + count).
struct Row {
  double* inverse;  // 1 / |R_i - R_j|, 0 for i itself and for centres at one place
  double* shift;     // a_ij
  double* most;      // upper bound of t_ij over the block
  double* gap;       // upper bound of 2 - t_ij over the block
};

struct Loops {
  // r for all atoms of the list; points as x, y, z of kLanes.
  void (*distances)(const Atoms& atoms, const double* points, double* r);
  void (*row)(const Atoms& atoms, int i, int first, int count, const Row& row);
  // product *= s(t_ij) over the atoms `js`.
  void (*multiply)(const double* ri, const double* r, const int* js, int count, const Row& row, double* product);
  // From the cotangents c of ln P_i: those of r_i (added to bar_i), of all r_j (to bar) and of the distances |R_i - R_j| (to separation[j]).
  void (*reverse)(const double* c, const double* ri, const double* r, const int* js, int count, const Row& row, double* bar_i, double* bar,
                  double* separation);
  // From the rates of r (and of |R_i - R_j|: separation[j]): that of ln P_i, added to rate.
  void (*forward)(const double* ri, const double* r, const double* di, const double* d, const double* separation, const int* js, int count,
                  const Row& row, double* rate);
};

// For the instruction set that dispatch.cc chose.
const Loops& loops(Scheme scheme);

}  // namespace jaxqc::grid
