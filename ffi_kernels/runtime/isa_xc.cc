// Exchange-correlation kernels of one instruction set: densities, potentials and gradients of one row of grid points.
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
        double values[kTile];
        const double factor = c == 4 ? 1.0 : NComp == 1 || c > 0 ? 2.0 : 1.0;
        for (int q = 0; q < kTilePacks; ++q) store(values + q * W, factor * sums[c][q]);
        std::copy(values, values + std::min<int64_t>(kTile, end - g), out + (static_cast<int64_t>(s) * NComp + c) * rows.n + g);
      }
    }
  }
}

void density(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* out, Workspace& work) {
  if (rows.count[row] == 0) {
    for (int64_t c = 0; c < static_cast<int64_t>(d.nset) * d.ncomp; ++c)
      std::fill_n(out + c * rows.n + static_cast<int64_t>(row) * rows.row, rows.row, 0.0);
    return;
  }
  if (d.ncomp == 1) return density_row<1>(basis, rows, d, row, out, work);
  if (d.ncomp == 4) return density_row<4>(basis, rows, d, row, out, work);
  return density_row<5>(basis, rows, d, row, out, work);
}

// Coefficients of a tile, (ncomp, kTile), zero beyond the row.
void tile_coefficients(const XcRows& rows, const XcDensity& d, int set, int64_t first, int64_t end, double* out) {
  const int n = static_cast<int>(std::min<int64_t>(kTile, end - first));
  for (int c = 0; c < d.ncomp; ++c, out += kTile) {
    std::copy_n(d.coefficient + (static_cast<int64_t>(set) * d.ncomp + c) * rows.n + first, n, out);
    std::fill(out + n, out + kTile, 0.0);
  }
}
// The largest over a row's points and the sets of the sum of |coefficients|.
double largest_coefficient(const XcRows& rows, const XcDensity& d, int r) {
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

// Y = sum over points of left[functions] times right[functions]; `full` over all pairs, the `folded` ones over one triangle.
struct PotentialParts {
  const double* phi;         // left sides: [tile][part][padded][kTile]
  const double* transposed;  // right sides: [part][panel of kWide][points][kWide]
  int parts, tiles;
  bool full;  // whether part 0 is summed over all pairs
};
__attribute__((noinline)) void multiply_parts(const PotentialParts& m, const RowFunctions& row, double gate, double epsilon, double* y, int ld) {
  const size_t stride = static_cast<size_t>(row.padded) * kTile, part_size = stride * m.tiles;
  const int points = m.tiles * kTile;
  for (int c0 = 0; c0 < row.n; c0 += kWide) {
    const int limit = row.limit(c0, gate, epsilon);
    for (int k0 = 0; k0 < limit; k0 += kRows) {
      const bool triangle = k0 < c0 + kWide;
      if (!m.full && !triangle) break;
      for (int cb = 0; cb < kWide; cb += kBlock * W) {
        RegisterTile t;
        clear(t);
        for (int part = m.full ? 1 : 0; triangle && part < m.parts; ++part)
          for (int tile = 0; tile < m.tiles; ++tile)
            multiply<kWide, 1, kTile>(t, m.transposed + part * part_size + static_cast<size_t>(c0) * points + tile * kTile * kWide + cb,
                                      m.phi + (tile * m.parts + part) * stride + static_cast<size_t>(k0) * kTile, kTile);
        if (triangle && k0 >= c0) halve(t);
        for (int tile = 0; m.full && tile < m.tiles; ++tile)
          multiply<kWide, 1, kTile>(t, m.transposed + static_cast<size_t>(c0) * points + tile * kTile * kWide + cb,
                                    m.phi + tile * m.parts * stride + static_cast<size_t>(k0) * kTile, kTile);
        scatter(t, &row.ao[k0], &row.ao[c0 + cb], y, ld);
      }
    }
  }
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
    multiply_parts({left, right + s * stride * tiles * parts, parts, tiles, NComp > 1}, row, gate, rows.epsilon,
                   y + static_cast<size_t>(s) * (basis.nao + 1) * ld, ld);
}

void potential(const XcBasis& basis, const XcRows& rows, const XcDensity& d, int row, double* y, int ld, Workspace& work) {
  if (rows.count[row] == 0) return;
  if (d.ncomp == 1) return potential_row<1>(basis, rows, d, row, y, ld, work);
  if (d.ncomp == 4) return potential_row<4>(basis, rows, d, row, y, ld, work);
  return potential_row<5>(basis, rows, d, row, y, ld, work);
}

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

}  // namespace

const XcTable& xc_table();
const XcTable& xc_table() {
  static const XcTable t{distances, density, potential, gradient};
  return t;
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
