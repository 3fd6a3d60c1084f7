// Densities and potentials on rows of grid points: what the drivers give to the instruction-set specific kernels.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace jaxqc {

constexpr int kTile = 24;         // points that are taken together: three packs of the widest instruction set
constexpr int kShellBits = 20;    // a list entry is the index of a shell + (live primitives << kShellBits)
constexpr int kXcComponents = 5;  // rho, its gradient, tau

// One sparse combination of monomials for each function of a shell.
struct AngularTerms {
  std::vector<int> first;  // of each function, and the end
  std::vector<int> monomial;
  std::vector<double> factor;
};
// Angular parts of the functions of one l: values, first (x, y, z) and second derivatives (xx, xy, xz, yy, yz, zz), over the monomials of
// degree l, l - 1, l - 2.
struct Angular {
  int functions = 0;
  AngularTerms terms[10];
  double value_bound = 1, gradient_bound = 0;  // largest |S| and |grad S| on the unit sphere
};
const Angular& angular(int l, bool cart);

struct XcShell {
  int l, nprim, first, ao, functions;
  const Angular* angular;
  double x, y, z;
};
// Contracted shells with the primitives of each by rising exponent: the live ones of a row come first.
struct XcBasis {
  std::vector<XcShell> shells;
  std::vector<double> exponents, coefficients;
  bool cart = false;
  int nao = 0;
  XcBasis(const int32_t* ls, const int32_t* nprims, int64_t nshell, const double* centers, const double* exps, const double* coefs, bool cartesian);
};

// Rows of points with their lists.
struct XcRows {
  int64_t n = 0;
  int nrow = 0, row = 0, capacity = 0;
  const double* points = nullptr;  // (n, 3)
  const int32_t *count = nullptr, *shell = nullptr;
  const float *bound = nullptr, *weight_max = nullptr;
  double epsilon = 0;
};

struct XcDensity {
  int nset = 0, ncomp = 0;
  const double* matrix = nullptr;       // (nset, nao, nao), symmetric
  const double* coefficient = nullptr;  // (nset, ncomp, n)
  double largest = 0;                   // of |matrix|
  const double* centre_change = nullptr;  // (nshell, 3) and
  const double* point_change = nullptr;   // (n, 3): directions of `move` and `potential_move`
  double largest_change = 0;
};

struct XcTable {
  // Smallest and largest squared distance of points from a centre; x, y, z are padded to whole packs by repetition.
  void (*distances)(const double* x, const double* y, const double* z, int n, const double* centre, double* least, double* most);
  // Features of one row into out (nset, ncomp, n).
  void (*density)(const XcBasis&, const XcRows&, const XcDensity&, int row, double* out, Workspace&);
  // Adds one row's part of Y, V = Y + Y^T, into y (nset, nao + 1, ld); functions nao and above of it are a bin for padding.
  void (*potential)(const XcBasis&, const XcRows&, const XcDensity&, int row, double* y, int ld, Workspace&);
  // Derivatives of sum of coefficient times features of one row: adds into centres (nshell, 3), writes points (n, 3).
  void (*gradient)(const XcBasis&, const XcRows&, const XcDensity&, int row, double* centres, double* points, Workspace&);
  // Changes of `density` and `potential` when centres and points move.
  void (*move)(const XcBasis&, const XcRows&, const XcDensity&, int row, double* out, Workspace&);
  void (*potential_move)(const XcBasis&, const XcRows&, const XcDensity&, int row, double* y, int ld, Workspace&);
};
const XcTable& xc_kernels();

}  // namespace jaxqc
