// The transpose of the density, its gradient and tau: coefficients on rows of points to a matrix, U with V = U + U^T.
//
// Values and derivatives u = (phi, d_x phi, d_y phi, d_z phi) go to shared memory side by side: V = sum u^T M u with a 4 x 4 matrix M
// of each point, which is applied to one side on the way to the matrix unit. With P = 16 points, half warps make different shells, of
// one angular momentum but for a few pairs.
// Macros: those of xc_tiles.cuh with NC 5 and TPW 1, P 16 or 32, MINB blocks a multiprocessor.
#define ARRAYS 4
#include "xc_tiles.cuh"

constexpr int SHARE = 32 / P;  // shells that a warp makes at once

// Adds A^T (M B) of 32 x 32 functions, of which the upper 16 may be missing on either side; weight: [5][P].
template <bool WHOLE>
__device__ __forceinline__ void add_products(double (*acc)[4][4], const double* A, const double* B, int array, const double* weight,
                                             bool second_b, bool second_c) {
  const auto multiply = [&](const double* at, const double (*b)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (!WHOLE && i && !second_b) continue;
      const double* p = at + 16 * i * LD;
      const double a[4] = {p[0], p[8 * LD], p[4], p[8 * LD + 4]};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (WHOLE || j < 2 || second_c) mma(acc[i][j], a, b[j][0], b[j][1]);
      }
    }
  };
#pragma unroll 1
  for (int k = 0; k < P; k += 8) {
    double value[4][2] = {}, b[4][2] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (!WHOLE && j >= 2 && !second_c) continue;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const double *w = weight + k + 4 * h, *at = B + 8 * j * LD + k + 4 * h;
        value[j][h] = at[0];
        b[j][h] = fma(w[0], at[0], fma(w[P], at[array], fma(w[2 * P], at[2 * array], w[3 * P] * at[3 * array])));
      }
    }
    multiply(A + k, b);
#pragma unroll 1
    for (int m = 1; m < 4; m++) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (!WHOLE && j >= 2 && !second_c) continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const double* w = weight + k + 4 * h;
          b[j][h] = fma(w[m * P], value[j][h], w[4 * P] * B[m * array + 8 * j * LD + k + 4 * h]);
        }
      }
      multiply(A + m * array + k, b);
    }
  }
}

extern "C" __global__ __launch_bounds__(W * 32, MINB) void xc_potential_tau(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const int* overflow, const double* coefficient, double* out, int64 n, int nrow, int capacity, int nao, int low,
    int high, int max_shells, int max_functions, int nslot, double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ double weight[5 * P];
  __shared__ int listed;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  double* phi = shared;  // [4][slots * 32][LD]
  const int array = nslot * 32 * LD;
  const RowBlocks row = row_blocks(phi + ARRAYS * array, max_shells, max_functions);
  const double* coef = coefficient + static_cast<int64>(blockIdx.y) * NC * n;

  const auto values = [&](int64 first, int ns, bool others) {
    for (int i = tid; i < 5 * P; i += W * 32) weight[i] = (i < 4 * P ? 1.0 : 0.5) * coef[i / P * n + first + i % P];
    if (others) {
      list_by_momentum<W>(row.entries, 0, ns, row.list, &listed, [&](const ShellEntry& e) { return Place(e, row.slot).held(); });
    }
    const int64 p = first + lane % P;
    const double X = points[3 * p], Y = points[3 * p + 1], Z = points[3 * p + 2];
    for (int k = warp * SHARE + lane / P; k < listed; k += W * SHARE) {
      const ShellEntry e = row.entries[row.list[k]];
      const Place place(e, row.slot);
      make_gradients(prims, e, X, Y, Z, phi + lane % P, array, [&](int m) { return place(m) * LD; });
    }
  };
  const auto products = [&](double (*acc)[4][4], const Tile& tile, int n16) {
    const bool second_b = tile.b * 32 + 16 < n16, second_c = tile.c * 32 + 16 < n16;
    const double *A = phi + (tile.slot_b * 32 + g) * LD + t, *B = phi + (tile.slot_c * 32 + g) * LD + t;
    if (second_b && second_c) {
      add_products<true>(acc, A, B, array, weight + t, true, true);
    } else {
      add_products<false>(acc, A, B, array, weight + t, second_b, second_c);
    }
  };
  tiles_of_rows(lists, overflow, coef, out + static_cast<int64>(blockIdx.y) * nao * nao, n, nao, low, high, nslot, inverse_epsilon, phi,
                row, 0.5, values, products);
}
