// The matrix products of the exchange-correlation kernels, register-tiled: points or functions along the lanes, kRows scalars broadcast.
#pragma once
#include "xc_orbitals.h"

namespace jaxqc {
namespace JAXQC_ISA {

constexpr int kPanel = 8;                  // columns of a packed density panel
constexpr int kRows = W == 8 ? 8 : 4;      // broadcast side of a register tile: kBlock * kRows accumulators
constexpr int kWide = W == 8 ? 24 : 12;    // columns of a transposed panel
typedef Pack RegisterTile[kBlock][kRows];

RCG_INLINE void clear(RegisterTile& t) {
#pragma GCC unroll 3
  for (int q = 0; q < kBlock; ++q)
#pragma GCC unroll 8
    for (int j = 0; j < kRows; ++j) t[q][j] = Pack{};
}
RCG_INLINE void halve(RegisterTile& t) {
#pragma GCC unroll 3
  for (int q = 0; q < kBlock; ++q)
#pragma GCC unroll 8
    for (int j = 0; j < kRows; ++j) t[q][j] *= 0.5;
}

// t[q][j] += sum over steps of a[step * a_step + q W + lanes] * b[step * b_step + j * b_stride].
template <int AStep, int BStep, int BStride>
RCG_INLINE void multiply(RegisterTile& t, const double* a, const double* b, int steps) {
  for (int k = 0; k < steps; ++k, a += AStep, b += BStep) {
    Pack v[kBlock];
#pragma GCC unroll 3
    for (int q = 0; q < kBlock; ++q) v[q] = load(a + q * W);
#pragma GCC unroll 8
    for (int j = 0; j < kRows; ++j) {
      const Pack s = splat(b[j * BStride]);
#pragma GCC unroll 3
      for (int q = 0; q < kBlock; ++q) t[q][j] += v[q] * s;
    }
  }
}

// Columns of a row's density matrix that matter, in panels of kPanel with the rows [0, limit).
struct PackedDensity {
  std::vector<int> limit;     // of each panel
  std::vector<size_t> start;  // of each panel in the packed matrix of a set
  size_t size = 0;            // of a set
  Doubles data;
  void plan(const RowFunctions& row, double gate, double epsilon) {
    limit.clear();
    start.clear();
    size = 0;
    for (int c = 0; c < row.n; c += kPanel) {
      const int n = row.limit(c, gate, epsilon);
      if (n == 0) break;
      limit.push_back(n);
      start.push_back(size);
      size += static_cast<size_t>(n) * kPanel;
    }
  }
  void gather(const RowFunctions& row, const double* matrix, int nao, int nset) {
    if (data.size() < size * nset) data.resize(size * nset);
    double* out = data.data();
    for (int s = 0; s < nset; ++s, matrix += static_cast<size_t>(nao) * nao)
      for (size_t p = 0; p < limit.size(); ++p) {
        int column[kPanel];
        for (int j = 0; j < kPanel; ++j) column[j] = std::min(row.ao[p * kPanel + j], nao - 1);  // padding meets orbitals that are 0
        for (int k = 0; k < limit[p]; ++k, out += kPanel) {
          const double* from = matrix + static_cast<size_t>(row.ao[k]) * nao;
          for (int j = 0; j < kPanel; ++j) out[j] = from[column[j]];
        }
      }
  }
};

// Product of the functions of a tile, at `a`, with columns of a packed panel.
RCG_INLINE void panel_product(RegisterTile& t, const double* a, const double* panel, int limit) {
  clear(t);
  multiply<kTile, kPanel, 1>(t, a, panel, limit);
}
// The same with the triangle of the density above the panel's own rows, and half of those: what symmetric sums need.
RCG_INLINE void folded_product(RegisterTile& t, const double* a, const double* panel, int limit, int c0) {
  clear(t);
  const int low = std::min(limit, c0), high = std::min(limit, c0 + kPanel);
  multiply<kTile, kPanel, 1>(t, a + static_cast<size_t>(low) * kTile, panel + static_cast<size_t>(low) * kPanel, high - low);
  halve(t);
  multiply<kTile, kPanel, 1>(t, a, panel, low);
}

// out[panel of kWide functions][point0 + point][function in panel] from tile [function][kTile]; `points` is the number of points of a row.
RCG_INLINE void transpose_tile(const double* tile, int padded, int points, int point0, double* out) {
  for (int c = 0; c < padded; c += kWide) {
    double* panel = out + static_cast<size_t>(c) * points + static_cast<size_t>(point0) * kWide;
    for (int l = 0; l < kWide; l += W) {
      int index[W];
      for (int k = 0; k < W; ++k) index[k] = (c + l + k) * kTile;
      for (int p = 0; p < kTile; p += 8) {
        Pack column[8];
        gather_rows<8>(tile + p, index, column);
        for (int k = 0; k < 8; ++k) store(panel + (p + k) * kWide + l, column[k]);
      }
    }
  }
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
