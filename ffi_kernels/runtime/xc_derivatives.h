// Derivatives with respect to the centres of shells and to the points: of a contraction of the features, and of features and potential
// matrices along a direction.
#pragma once
#include "xc_row.h"

namespace jaxqc {
namespace JAXQC_ISA {
namespace {

// Adds the derivatives of one tile and one density: to `points` (3, packs of the tile), and per function to `centres` (padded, 3).
template <int NComp>
__attribute__((noinline)) void tile_gradient(const RowFunctions& row, const PackedDensity& packed, const double* matrix, const double* phi, const double* z,
                                             const double* factors, Pack (*points)[kTilePacks], Pack (*centres)[3]) {
  static const int second[3][3] = {{4, 5, 6}, {5, 7, 8}, {6, 8, 9}};
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  constexpr int nproduct = NComp == 1 ? 1 : NComp == 4 ? 2 : 5;
  for (size_t p = 0; p < packed.limit.size(); ++p)
    for (int j0 = 0; j0 < kPanel; j0 += kRows)
      for (int b = 0; b < kBlocks; ++b) {
        const double* panel = matrix + packed.start[p] + j0;
        const int c0 = static_cast<int>(p) * kPanel + j0, limit = packed.limit[p];
        RegisterTile x[nproduct];
        panel_product(x[0], z + b * kBlock * W, panel, limit);
        if (NComp > 1) panel_product(x[NComp > 1 ? 1 : 0], phi + b * kBlock * W, panel, limit);
        for (int k = 2; k < nproduct; ++k) panel_product(x[k], phi + (k - 1) * stride + b * kBlock * W, panel, limit);
        for (int q = 0; q < kBlock; ++q) {
          const int place = b * kBlock + q;
          for (int j = 0; j < kRows; ++j) {
            const double* f = phi + static_cast<size_t>(c0 + j) * kTile + place * W;
            Pack slope[3] = {};
            if (NComp > 1)
              for (int k = 0; k < 3; ++k) {
                slope[k] = 2.0 * load(factors + (1 + k) * kTile + place * W) * x[NComp > 1 ? 1 : 0][q][j];
                if (NComp == 5) slope[k] += load(factors + 4 * kTile + place * W) * x[NComp == 5 ? 2 + k : 0][q][j];
              }
            for (int i = 0; i < 3; ++i) {
              Pack change = 2.0 * x[0][q][j] * load(f + (1 + i) * stride);
              if (NComp > 1)
                for (int k = 0; k < 3; ++k) change += slope[k] * load(f + second[i][k] * stride);
              points[i][place] += change;
              centres[c0 + j][i] += change;
            }
          }
        }
      }
}

template <int NComp>
void gradient_row(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int r, double* centres, double* points, Workspace& work) {
  constexpr int order = NComp == 1 ? 1 : 2, ncomp = NComp == 1 ? 4 : 10;
  RowFunctions& row = scratch().row;
  PackedDensity& packed = scratch().packed;
  const double gate = largest_coefficient(rows, d, r) * d.largest;
  if (gate == 0) return;
  row.read(basis, rows, r, gate);
  packed.plan(row, gate, rows.epsilon);
  packed.gather(row, d.matrix, basis.nao, d.nset);
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  double* coordinates = aligned(work, 8 * kTile + (1 + ncomp) * stride + 3 * static_cast<size_t>(row.padded) * W);
  double* factors = coordinates + 3 * kTile;
  double* phi = factors + 5 * kTile;
  double* z = phi + ncomp * stride;
  Pack(*sums)[3] = reinterpret_cast<Pack(*)[3]>(z + stride);
  std::memset(static_cast<void*>(sums), 0, static_cast<size_t>(row.padded) * sizeof(*sums));
  const int64_t begin = static_cast<int64_t>(r) * rows.row, end = begin + rows.row;
  for (int64_t g = begin; g < end; g += kTile) {
    tile_points(rows.points, g, end, coordinates);
    tile_functions<order>(basis, row, coordinates, phi);
    Pack change[3][kTilePacks] = {};
    for (int s = 0; s < d.nset; ++s) {
      tile_coefficients(rows, d, s, g, end, factors);
      combine_functions<NComp>(phi, stride, row.padded, factors, z);
      tile_gradient<NComp>(row, packed, packed.data.data() + s * packed.size, phi, z, factors, change, sums);
    }
    for (int i = 0; i < 3; ++i) {
      double values[kTile];
      for (int q = 0; q < kTilePacks; ++q) store(values + q * W, change[i][q]);
      for (int64_t p = 0; p < std::min<int64_t>(kTile, end - g); ++p) points[3 * (g + p) + i] = values[p];
    }
  }
  for (size_t k = 0; k < row.shell.size(); ++k)
    for (int f = 0; f < basis.shells[row.shell[k]].functions; ++f)
      for (int i = 0; i < 3; ++i) centres[3 * row.shell[k] + i] -= sum(sums[row.offset[k] + f][i]);
}

void gradient(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* centres, double* points, Workspace& work) {
  std::fill_n(points + 3 * static_cast<int64_t>(row) * rows.row, 3 * rows.row, 0.0);
  if (rows.count[row] == 0) return;
  if (d.ncomp == 1) return gradient_row<1>(basis, rows, d, row, centres, points, work);
  if (d.ncomp == 4) return gradient_row<4>(basis, rows, d, row, centres, points, work);
  return gradient_row<5>(basis, rows, d, row, centres, points, work);
}

// Changes of the functions of a tile, and of their derivatives, when shells and points move: out (1 or 4, padded, kTile).
template <int Order>
void changed_functions(const XcBasis& basis, const RowFunctions& row, const XcDensity& d, int64_t first, int64_t end,
                       const double* phi, double* out) {
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  constexpr int ncomp = Order == 1 ? 1 : 4;
  static const int source[4][3] = {{1, 2, 3}, {4, 5, 6}, {5, 7, 8}, {6, 8, 9}};
  double points[3 * kTile];
  for (int p = 0; p < kTile; ++p)
    for (int i = 0; i < 3; ++i) points[i * kTile + p] = first + p < end ? d.point_change[3 * (first + p) + i] : 0.0;
  for (size_t k = 0; k < row.shell.size(); ++k) {
    const double* centre = d.centre_change + 3 * row.shell[k];
    for (int q = 0; q < kTilePacks; ++q) {
      const Pack x = load(points + q * W) - centre[0], y = load(points + kTile + q * W) - centre[1], z = load(points + 2 * kTile + q * W) - centre[2];
      for (int f = row.offset[k]; f < row.offset[k] + basis.shells[row.shell[k]].functions; ++f)
        for (int c = 0; c < ncomp; ++c) {
          const double* from = phi + static_cast<size_t>(f) * kTile + q * W;
          const Pack change = x * load(from + source[c][0] * stride) + y * load(from + source[c][1] * stride) + z * load(from + source[c][2] * stride);
          store(out + c * stride + static_cast<size_t>(f) * kTile + q * W, change);
        }
    }
  }
  for (int c = 0; c < ncomp; ++c)
    std::memset(out + c * stride + static_cast<size_t>(row.n) * kTile, 0, static_cast<size_t>(row.padded - row.n) * kTile * sizeof(double));
}

// Changes of the features of one tile and one density: sums (half of rho and its gradient, tau).
template <int NComp>
__attribute__((noinline)) void tile_move(const PackedDensity& packed, const double* matrix, const double* phi, const double* change, size_t stride,
                                         Pack (*sums)[kTilePacks]) {
  for (size_t p = 0; p < packed.limit.size(); ++p)
    for (int j0 = 0; j0 < kPanel; j0 += kRows)
      for (int b = 0; b < kBlocks; ++b) {
        const double* panel = matrix + packed.start[p] + j0;
        const size_t lanes = b * kBlock * W, column = static_cast<size_t>(p * kPanel + j0) * kTile + lanes;
        const int limit = packed.limit[p];
        RegisterTile x;
        panel_product(x, phi + lanes, panel, limit);
        add_dots<0, NComp == 1 ? 1 : 4>(x, change + column, stride, sums, b * kBlock);
        if (NComp == 1) continue;
        panel_product(x, change + lanes, panel, limit);
        add_dots<1, NComp == 1 ? 1 : 4>(x, phi + column, stride, sums, b * kBlock);
        for (int k = 1; NComp == 5 && k < 4; ++k) {
          panel_product(x, phi + k * stride + lanes, panel, limit);
          add_dots<0, 1>(x, change + k * stride + column, stride, sums + 4, b * kBlock);
        }
      }
}

template <int NComp>
void move_row(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int r, double* out, Workspace& work) {
  constexpr int order = NComp == 1 ? 1 : 2, ncomp = NComp == 1 ? 4 : 10;
  RowFunctions& row = scratch().row;
  PackedDensity& packed = scratch().packed;
  const double gate = rows.weight_max[r] * d.largest * d.largest_change;
  row.read(basis, rows, r, gate);
  packed.plan(row, gate, rows.epsilon);
  packed.gather(row, d.matrix, basis.nao, d.nset);
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  double* points = aligned(work, 3 * kTile + (ncomp + 4) * stride);
  double* phi = points + 3 * kTile;
  double* change = phi + ncomp * stride;
  const int64_t begin = static_cast<int64_t>(r) * rows.row, end = begin + rows.row;
  for (int64_t g = begin; g < end; g += kTile) {
    tile_points(rows.points, g, end, points);
    tile_functions<order>(basis, row, points, phi);
    changed_functions<order>(basis, row, d, g, end, phi, change);
    for (int s = 0; s < d.nset; ++s) {
      Pack sums[NComp == 5 ? 5 : 4][kTilePacks] = {};
      tile_move<NComp>(packed, packed.data.data() + s * packed.size, phi, change, stride, sums);
      for (int c = 0; c < NComp; ++c) store_features(sums[c], c == 4 ? 1.0 : 2.0, (static_cast<int64_t>(s) * NComp + c) * rows.n, g, end, out);
    }
  }
}

void move(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* out, Workspace& work) {
  if (rows.count[row] == 0 || d.largest_change == 0) return clear_features(rows, d, row, out);
  if (d.ncomp == 1) return move_row<1>(basis, rows, d, row, out, work);
  if (d.ncomp == 4) return move_row<4>(basis, rows, d, row, out, work);
  return move_row<5>(basis, rows, d, row, out, work);
}

template <int NComp>
void potential_move_row(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int r, double* y, int ld, Workspace& work) {
  constexpr int order = NComp == 1 ? 1 : 2, ncomp = NComp == 1 ? 4 : 10, parts = NComp == 1 ? 1 : NComp == 4 ? 2 : 5;
  const double gate = largest_coefficient(rows, d, r) * d.largest_change;
  if (gate == 0) return;
  RowFunctions& row = scratch().row;
  row.read(basis, rows, r, gate);
  const int tiles = (rows.row + kTile - 1) / kTile, points = tiles * kTile;
  const size_t stride = static_cast<size_t>(row.padded) * kTile, side = stride * tiles * parts;
  double* coordinates = aligned(work, 8 * kTile + stride * (ncomp + 5) + side * (1 + d.nset));
  double* factors = coordinates + 3 * kTile;
  double* phi = factors + 5 * kTile;
  double* change = phi + ncomp * stride;
  double* z = change + 4 * stride;
  double *left = z + stride, *right = left + side;
  const int64_t begin = static_cast<int64_t>(r) * rows.row, end = begin + rows.row;
  for (int t = 0; t < tiles; ++t) {
    const int64_t g = begin + t * kTile;
    tile_points(rows.points, g, end, coordinates);
    tile_functions<order>(basis, row, coordinates, phi);
    changed_functions<order>(basis, row, d, g, end, phi, change);
    double* to_left = left + t * parts * stride;
    std::copy_n(change, stride, to_left);
    if (NComp > 1) std::copy_n(phi, stride, to_left + stride);
    if (NComp == 5) std::copy_n(change + stride, 3 * stride, to_left + 2 * stride);
    for (int s = 0; s < d.nset; ++s) {
      tile_coefficients(rows, d, s, g, end, factors);
      for (int p = 0; NComp > 1 && p < kTile; ++p) factors[p] *= 0.5;
      for (int p = 0; NComp == 5 && p < kTile; ++p) factors[4 * kTile + p] *= 0.5;
      double* to = right + s * side;
      combine_functions<NComp>(phi, stride, row.padded, factors, z);
      transpose_tile(z, row.padded, points, t * kTile, to);
      if (NComp == 1) continue;
      combine_functions<NComp>(change, stride, row.padded, factors, z);
      transpose_tile(z, row.padded, points, t * kTile, to + stride * tiles);
      for (int k = 1; NComp == 5 && k < 4; ++k) {
        combine_functions<1>(phi + k * stride, stride, row.padded, factors + 4 * kTile, z);
        transpose_tile(z, row.padded, points, t * kTile, to + (1 + k) * stride * tiles);
      }
    }
  }
  for (int s = 0; s < d.nset; ++s)
    multiply_parts({left, right + s * side, parts, tiles, parts}, row, gate, rows.epsilon, y + static_cast<size_t>(s) * (basis.nao + 1) * ld, ld);
}

void potential_move(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* y, int ld, Workspace& work) {
  if (rows.count[row] == 0) return;
  if (d.ncomp == 1) return potential_move_row<1>(basis, rows, d, row, y, ld, work);
  if (d.ncomp == 4) return potential_move_row<4>(basis, rows, d, row, y, ld, work);
  return potential_move_row<5>(basis, rows, d, row, y, ld, work);
}

}  // namespace
}  // namespace JAXQC_ISA
}  // namespace jaxqc
