// The transpose of the density and its gradient: coefficients on rows of points to a matrix, U with V = U + U^T.
//
// Orbital values and Z = c_0 / 2 phi + c . grad phi go to shared memory side by side.
// Macros: those of xc_tiles.cuh with NC 1 or 4, MINB blocks a multiprocessor.
#define ARRAYS 2
#include "xc_tiles.cuh"

// Adds A^T B of 32 x 32 functions, of which the upper 16 may be missing on either side.
template <bool WHOLE>
__device__ __forceinline__ void add_products(double (*acc)[4][4], const double* A, const double* B, bool second_b, bool second_c) {
#pragma unroll 2
  for (int k = 0; k < P; k += 8) {
    double b[4][2] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (WHOLE || j < 2 || second_c) {
        b[j][0] = B[8 * j * LD + k];
        b[j][1] = B[8 * j * LD + k + 4];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (!WHOLE && i && !second_b) continue;
      const double* at = A + 16 * i * LD + k;
      const double a[4] = {at[0], at[8 * LD], at[4], at[8 * LD + 4]};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (WHOLE || j < 2 || second_c) mma(acc[i][j], a, b[j][0], b[j][1]);
      }
    }
  }
}

extern "C" __global__ __launch_bounds__(W * 32, MINB) void xc_potential(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const int* overflow, const double* coefficient, double* out, int64 n, int nrow, int capacity, int nao, int low,
    int high, int max_shells, int max_functions, int nslot, double inverse_epsilon) {
  extern __shared__ double shared[];
  constexpr int NP = P / 32;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  double *phi = shared, *zed = phi + nslot * 32 * LD;  // [slots * 32][LD]
  const RowBlocks row = row_blocks(phi + ARRAYS * nslot * 32 * LD, max_shells, max_functions);
  const double* coef = coefficient + static_cast<int64>(blockIdx.y) * NC * n;
  const auto values = [&](int64 first, int ns, bool) {
    double X[NP], Y[NP], Z[NP], c0[NP], bx[NP], by[NP], bz[NP];
#pragma unroll
    for (int q = 0; q < NP; q++) {
      const int64 p = first + q * 32 + lane;
      X[q] = points[3 * p];
      Y[q] = points[3 * p + 1];
      Z[q] = points[3 * p + 2];
      c0[q] = 0.5 * coef[p];
      if (NC > 1) {
        bx[q] = coef[(1 % NC) * n + p];
        by[q] = coef[(2 % NC) * n + p];
        bz[q] = coef[(3 % NC) * n + p];
      }
    }
    for (int s = warp; s < ns; s += W) {
      const ShellEntry e = row.entries[s];
      const Place place(e, row.slot);
      if (!place.held()) continue;
      double x[NP], y[NP], z[NP], r2[NP], R[NP], R1[NP];
#pragma unroll
      for (int q = 0; q < NP; q++) {
        x[q] = X[q] - e.x;
        y[q] = Y[q] - e.y;
        z[q] = Z[q] - e.z;
        r2[q] = x[q] * x[q] + y[q] * y[q] + z[q] * z[q];
      }
      radial<NP, (NC > 1)>(prims + e.prim, e.nprim, r2, R, R1, nullptr);
#pragma unroll
      for (int q = 0; q < NP; q++) {
        const auto store = [&](int m, double v, double w) {
          const int at = place(m);
          if (SLOTS && at < 0) return;
          phi[at * LD + q * 32 + lane] = v;
          zed[at * LD + q * 32 + lane] = w;
        };
        if (NC == 1) {
          const double h = c0[q] * R[q];
          angular_values(e.l, x[q], y[q], z[q], [&](int m, double v) { store(m, v * R[q], v * h); });
        } else {
          const double h = fma(R1[q], bx[q] * x[q] + by[q] * y[q] + bz[q] * z[q], c0[q] * R[q]);
          angular_directional(e.l, x[q], y[q], z[q], R[q] * bx[q], R[q] * by[q], R[q] * bz[q],
                              [&](int m, double v, double w) { store(m, v * R[q], fma(v, h, w)); });
        }
      }
    }
  };
  const auto products = [&](double (*acc)[4][4], const Tile& tile, int n16) {
    const bool second_b = tile.b * 32 + 16 < n16, second_c = tile.c * 32 + 16 < n16;
    const int b = (tile.slot_b * 32 + g) * LD + t, c = (tile.slot_c * 32 + g) * LD + t;
    const double *A = phi + b, *B = zed + c;
    for (int product = 0; product < (tile.b == tile.c ? 1 : 2); product++) {
      if (second_b && second_c) {
        add_products<true>(acc, A, B, true, true);
      } else {
        add_products<false>(acc, A, B, second_b, second_c);
      }
      A = zed + b;
      B = phi + c;
    }
  };
  tiles_of_rows(lists, overflow, coef, out + static_cast<int64>(blockIdx.y) * nao * nao, n, nao, low, high, nslot, inverse_epsilon, phi,
                row, 1.0, values, products);
}
