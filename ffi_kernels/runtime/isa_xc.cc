// Exchange-correlation kernels of one instruction set: densities, potentials and gradients of one row of grid points.
#include "xc_derivatives.h"

namespace jaxqc {
namespace JAXQC_ISA {
namespace {

void distances(const double* x, const double* y, const double* z, int n, const double* centre, double* least, double* most) {
  Pack low = splat(1e300), high = splat(0.0);
  for (int p = 0; p < n; p += W) {
    const Pack dx = load(x + p) - centre[0], dy = load(y + p) - centre[1], dz = load(z + p) - centre[2];
    const Pack r2 = dx * dx + dy * dy + dz * dz;
    low = r2 < low ? r2 : low;
    high = r2 > high ? r2 : high;
  }
  *least = low[0];
  *most = high[0];
  for (int l = 1; l < W; ++l) {
    *least = std::min(*least, low[l]);
    *most = std::max(*most, high[l]);
  }
}

// Features of one tile and one density: sums (rho, half its gradient, tau).
template <int NComp>
__attribute__((noinline)) void tile_density(const PackedDensity& packed, const double* matrix, const double* phi, size_t stride,
                                            Pack (*sums)[kTilePacks]) {
  for (size_t p = 0; p < packed.limit.size(); ++p) {
    const int limit = packed.limit[p], c0 = static_cast<int>(p) * kPanel;
    for (int j0 = 0; j0 < kPanel; j0 += kRows)
      for (int b = 0; b < kBlocks; ++b) {
        const double *panel = matrix + packed.start[p] + j0, *a = phi + b * kBlock * W, *columns = a + static_cast<size_t>(c0 + j0) * kTile;
        RegisterTile x;
        if (NComp == 1) {
          folded_product(x, a, panel, limit, c0);
          add_dots<0, 1>(x, columns, stride, sums, b * kBlock);
        } else {
          panel_product(x, a, panel, limit);
          add_dots<0, 4>(x, columns, stride, sums, b * kBlock);
        }
        if (NComp == 5)
          for (int k = 1; k < 4; ++k) {
            folded_product(x, a + k * stride, panel, limit, c0);
            add_dots<0, 1>(x, columns + k * stride, stride, sums + 4, b * kBlock);
          }
      }
  }
}

template <int NComp>
void density_row(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int r, double* out, Workspace& work) {
  RowFunctions& row = scratch().row;
  PackedDensity& packed = scratch().packed;
  const double gate = rows.weight_max[r] * d.largest;
  row.read(basis, rows, r, gate);
  packed.plan(row, gate, rows.epsilon);
  packed.gather(row, d.matrix, basis.nao, d.nset);
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  double* points = aligned(work, 3 * kTile + 4 * stride);
  double* phi = points + 3 * kTile;
  const int64_t begin = static_cast<int64_t>(r) * rows.row, end = begin + rows.row;
  for (int64_t g = begin; g < end; g += kTile) {
    tile_points(rows.points, g, end, points);
    tile_functions<NComp == 1 ? 0 : 1>(basis, row, points, phi);
    for (int s = 0; s < d.nset; ++s) {
      Pack sums[NComp][kTilePacks] = {};
      tile_density<NComp>(packed, packed.data.data() + s * packed.size, phi, stride, sums);
      for (int c = 0; c < NComp; ++c) {
        const double factor = c == 4 ? 1.0 : NComp == 1 || c > 0 ? 2.0 : 1.0;
        store_features(sums[c], factor, (static_cast<int64_t>(s) * NComp + c) * rows.n, g, end, out);
      }
    }
  }
}

void density(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* out, Workspace& work) {
  if (rows.count[row] == 0) return clear_features(rows, d, row, out);
  if (d.ncomp == 1) return density_row<1>(basis, rows, d, row, out, work);
  if (d.ncomp == 4) return density_row<4>(basis, rows, d, row, out, work);
  return density_row<5>(basis, rows, d, row, out, work);
}

template <int NComp>
void potential_row(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int r, double* y, int ld, Workspace& work) {
  const double gate = largest_coefficient(rows, d, r);
  if (gate == 0) return;
  RowFunctions& row = scratch().row;
  row.read(basis, rows, r, gate);
  const int tiles = (rows.row + kTile - 1) / kTile, parts = NComp == 5 ? 4 : 1, points = tiles * kTile;
  const size_t stride = static_cast<size_t>(row.padded) * kTile;
  double* coordinates = aligned(work, 8 * kTile + stride * (5 + static_cast<size_t>(tiles) * parts * (1 + d.nset)));
  double* factors = coordinates + 3 * kTile;
  double* functions = factors + 5 * kTile;
  double* z = functions + 4 * stride;
  double* left = z + stride;
  double* right = left + stride * tiles * parts;
  const int64_t begin = static_cast<int64_t>(r) * rows.row, end = begin + rows.row;
  for (int t = 0; t < tiles; ++t) {
    const int64_t g = begin + t * kTile;
    tile_points(rows.points, g, end, coordinates);
    tile_functions<NComp == 1 ? 0 : 1>(basis, row, coordinates, functions);
    std::copy_n(functions, stride * parts, left + t * parts * stride);
    for (int s = 0; s < d.nset; ++s) {
      tile_coefficients(rows, d, s, g, end, factors);
      if (NComp > 1)
        for (int p = 0; p < kTile; ++p) factors[p] *= 0.5;
      double* to = right + s * stride * tiles * parts;
      combine_functions<NComp>(functions, stride, row.padded, factors, z);
      transpose_tile(z, row.padded, points, t * kTile, to);
      if (NComp < 5) continue;
      for (int p = 0; p < kTile; ++p) factors[4 * kTile + p] *= 0.5;
      for (int k = 1; k < 4; ++k) {
        combine_functions<1>(functions + k * stride, stride, row.padded, factors + 4 * kTile, z);
        transpose_tile(z, row.padded, points, t * kTile, to + k * stride * tiles);
      }
    }
  }
  for (int s = 0; s < d.nset; ++s)
    multiply_parts({left, right + s * stride * tiles * parts, parts, tiles, NComp > 1 ? 1 : 0}, row, gate, rows.epsilon,
                   y + static_cast<size_t>(s) * (basis.nao + 1) * ld, ld);
}

void potential(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* y, int ld, Workspace& work) {
  if (rows.count[row] == 0) return;
  if (d.ncomp == 1) return potential_row<1>(basis, rows, d, row, y, ld, work);
  if (d.ncomp == 4) return potential_row<4>(basis, rows, d, row, y, ld, work);
  return potential_row<5>(basis, rows, d, row, y, ld, work);
}

}  // namespace

const XcTable& xc_table();
const XcTable& xc_table() {
  static const XcTable t{distances, density, potential, gradient, move, potential_move};
  return t;
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
