// What the exchange-correlation kernels do with one row of points: scratch memory, dots, and the sums over points of potential matrices.
#pragma once
#include <algorithm>

#include "xc_products.h"

namespace jaxqc {
namespace JAXQC_ISA {
namespace {

constexpr int kTilePacks = kTile / W;

// What a thread keeps between rows.
struct Scratch {
  RowFunctions row;
  PackedDensity packed;
};
Scratch& scratch() {
  static thread_local Scratch s;
  return s;
}
double* aligned(Workspace& w, size_t doubles) {
  const uintptr_t p = reinterpret_cast<uintptr_t>(w.get(doubles + 8));
  return reinterpret_cast<double*>((p + 63) & ~static_cast<uintptr_t>(63));
}

// sums[component][pack] of one register tile: X times the functions of its columns and their derivatives.
template <int First, int Last>
RCG_INLINE void add_dots(const RegisterTile& x, const double* functions, size_t stride, Pack (*sums)[kTilePacks], int q0) {
  for (int c = First; c < Last; ++c) {
    const double* f = functions + c * stride;
#pragma GCC unroll 3
    for (int q = 0; q < kBlock; ++q) {
      Pack s = sums[c][q0 + q];
#pragma GCC unroll 8
      for (int j = 0; j < kRows; ++j) s += x[q][j] * load(f + j * kTile + q * W);
      sums[c][q0 + q] = s;
    }
  }
}

// One feature of a tile, times a factor.
inline void store_features(const Pack* sums, double factor, int64_t start, int64_t first, int64_t end, double* out) {
  double values[kTile];
  for (int q = 0; q < kTilePacks; ++q) store(values + q * W, factor * sums[q]);
  std::copy(values, values + std::min<int64_t>(kTile, end - first), out + start + first);
}
inline void clear_features(const XcRows& rows, const XcDensity& d, int row, double* out) {
  for (int64_t c = 0; c < static_cast<int64_t>(d.nset) * d.ncomp; ++c) std::fill_n(out + c * rows.n + static_cast<int64_t>(row) * rows.row, rows.row, 0.0);
}

// Coefficients of a tile, (ncomp, kTile), zero beyond the row.
inline void tile_coefficients(const XcRows& rows, const XcDensity& d, int set, int64_t first, int64_t end, double* out) {
  const int n = static_cast<int>(std::min<int64_t>(kTile, end - first));
  for (int c = 0; c < d.ncomp; ++c, out += kTile) {
    std::copy_n(d.coefficient + (static_cast<int64_t>(set) * d.ncomp + c) * rows.n + first, n, out);
    std::fill(out + n, out + kTile, 0.0);
  }
}
// The largest over a row's points and the sets of the sum of |coefficients|.
inline double largest_coefficient(const XcRows& rows, const XcDensity& d, int r) {
  double most = 0;
  for (int s = 0; s < d.nset; ++s)
    for (int64_t g = static_cast<int64_t>(r) * rows.row; g < static_cast<int64_t>(r + 1) * rows.row; ++g) {
      double sum = 0;
      for (int c = 0; c < d.ncomp; ++c) sum += std::fabs(d.coefficient[(static_cast<int64_t>(s) * d.ncomp + c) * rows.n + g]);
      most = std::max(most, sum);
    }
  return most;
}

// z = factor[0] phi + sum over k of factor[k] d_k phi for all functions of a tile; factors (ncomp, kTile).
template <int NComp>
void combine_functions(const double* phi, size_t stride, int padded, const double* factors, double* z) {
  constexpr int n = NComp == 1 ? 1 : 4;
  Pack f[n][kTilePacks];
  for (int c = 0; c < n; ++c)
    for (int q = 0; q < kTilePacks; ++q) f[c][q] = load(factors + c * kTile + q * W);
  for (int i = 0; i < padded; ++i, phi += kTile, z += kTile)
    for (int q = 0; q < kTilePacks; ++q) {
      Pack s = f[0][q] * load(phi + q * W);
      for (int c = 1; c < n; ++c) s += f[c][q] * load(phi + c * stride + q * W);
      store(z + q * W, s);
    }
}

// Adds a register tile of Y into the matrix: rows ao[k0 + j], columns ao[c0 + lanes].
RCG_INLINE void scatter(const RegisterTile& t, const int* rows, const int* columns, double* y, int ld) {
  for (int j = 0; j < kRows; ++j) {
    double values[kBlock * W];
    for (int q = 0; q < kBlock; ++q) store(values + q * W, t[q][j]);
    double* to = y + static_cast<size_t>(rows[j]) * ld;
    for (int l = 0; l < kBlock * W; ++l) to[columns[l]] += values[l];
  }
}

// Y = sum over points of left[functions] times right[functions].
struct PotentialParts {
  const double* phi;         // left sides: [tile][part][padded][kTile]
  const double* transposed;  // right sides: [part][panel of kWide][points][kWide]
  int parts, tiles;
  int full;  // how many parts are summed over all pairs; the others, symmetric, over one triangle
};
__attribute__((noinline)) inline void multiply_parts(const PotentialParts& m, const RowFunctions& row, double gate, double epsilon, double* y, int ld) {
  const size_t stride = static_cast<size_t>(row.padded) * kTile, part_size = stride * m.tiles;
  const int points = m.tiles * kTile;
  for (int c0 = 0; c0 < row.n; c0 += kWide) {
    const int limit = row.limit(c0, gate, epsilon);
    for (int k0 = 0; k0 < limit; k0 += kRows) {
      const bool triangle = k0 < c0 + kWide;
      if (m.full == 0 && !triangle) break;
      for (int cb = 0; cb < kWide; cb += kBlock * W) {
        RegisterTile t;
        clear(t);
        const auto add = [&](int part) __attribute__((always_inline)) {
          for (int tile = 0; tile < m.tiles; ++tile)
            multiply<kWide, 1, kTile>(t, m.transposed + part * part_size + static_cast<size_t>(c0) * points + tile * kTile * kWide + cb,
                                      m.phi + (tile * m.parts + part) * stride + static_cast<size_t>(k0) * kTile, kTile);
        };
        for (int part = m.full; triangle && part < m.parts; ++part) add(part);
        if (triangle && k0 >= c0) halve(t);
        for (int part = 0; part < m.full; ++part) add(part);
        scatter(t, &row.ao[k0], &row.ao[c0 + cb], y, ld);
      }
    }
  }
}

}  // namespace
}  // namespace JAXQC_ISA
}  // namespace jaxqc
