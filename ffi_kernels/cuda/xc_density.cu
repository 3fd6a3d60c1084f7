// Density and its gradient on rows of points: orbital values in shared memory, X = phi D by matrix units, dots at once.
//
// A block takes P points of a row. Lanes are points and warps are shells while orbital values are made; then each warp alone owns
// slabs of 8 functions: D comes straight from the cache into registers, X goes through a buffer of the warp, and the dots make R,
// R' and the angular sums once for each shell and point. Lists fall in bound, so that screening is a limit on k for each slab.
// Macros: ROW points a row, P points a block, MW x CW warps (points x slabs), KU steps of D held ahead, SETS densities (of two, elements lie side by side),
// NC components (1: rho, 4: rho and gradient), MINB blocks a multiprocessor, CHUNKED 1 where orbital values are held in
// chunks of `chunk` functions, strong ones first: X and so the dots are sums over chunks, and the weak chunks at the end of a list
// meet few slabs.
#include "xc_dots.cuh"
#include "xc_product.cuh"

#define WARPS (MW * CW)

extern "C" __global__ __launch_bounds__(WARPS * 32, MINB) void xc_density(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const float* weight_max, const int* overflow, const double* density, const double* largest, double* out,
    int64 n, int nrow, int capacity, int nao, int low, int high, int max_shells, int max_functions, int chunk, double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ int total;
  constexpr int NP = P / 32, NQ = PM / 32, SPLIT = ROW / P;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int wm = warp % MW, wc = warp / MW;
  double* phi = shared;  // [chunk][LD]
  double* buffer = phi + chunk * LD + warp * (SETS * 8 * LX);
  const RowSlabs row = row_slabs(phi + chunk * LD + WARPS * SETS * 8 * LX, max_shells, max_functions);
  const int2 range = class_range(lists.first, low, high);
  const double poison = poison_of(overflow, capacity);
  const double dmax = __ldg(largest);
  for (int item = range.x * SPLIT + blockIdx.x; item < range.y * SPLIT; item += gridDim.x) {
    const int index = __ldg(order + item / SPLIT);
    const int64 first_point = static_cast<int64>(index) * ROW + (item % SPLIT) * P;
    const int ns = __ldg(count + index);
    const int functions = load_entries(lists, index, ns, row.entries, &total);
    const int padded = (functions + 7) & ~7;
    describe_functions(row.entries, ns, functions, row.idx, row.bound, row.shell);
    if (CHUNKED) __syncthreads();  // row.shell is read below
    const int slabs = padded >> 3;
    const float factor = static_cast<float>(fmin(dmax * inverse_epsilon * __ldg(weight_max + index), 1e30));
    const double* A = phi + t * LD + wm * PM + g;
    double sum[SETS][NC][NQ] = {};
    for (int k0 = 0; k0 < padded; k0 += chunk) {
      const int k1 = CHUNKED ? min(padded, k0 + chunk) : padded;
      if (CHUNKED && k0) {
        // The first slab has the largest bound: where it does not reach this chunk, none does.
        if (prefix(row.bound, slabs, 0, factor, lane) <= k0) break;
        __syncthreads();
      }
      for (int i = tid; i < (k1 - functions) * P; i += WARPS * 32) phi[(functions - k0 + i / P) * LD + i % P] = 0.0;
      {
        double X[NP], Y[NP], Z[NP];
#pragma unroll
        for (int q = 0; q < NP; q++) {
          const double* p = points + 3 * (first_point + q * 32 + lane);
          X[q] = p[0];
          Y[q] = p[1];
          Z[q] = p[2];
        }
        for (int s = (CHUNKED ? row.shell[k0 >> 3] : 0) + warp; s < ns; s += WARPS) {
          const ShellEntry e = row.entries[s];
          if (CHUNKED && e.offset >= k1) break;
          double x[NP], y[NP], z[NP], r2[NP], R[NP];
#pragma unroll
          for (int q = 0; q < NP; q++) {
            x[q] = X[q] - e.x;
            y[q] = Y[q] - e.y;
            z[q] = Z[q] - e.z;
            r2[q] = x[q] * x[q] + y[q] * y[q] + z[q] * z[q];
          }
          radial<NP, 0>(prims + e.prim, e.nprim, r2, R, nullptr, nullptr);
          const int f = static_cast<int>(e.offset) - k0;
#pragma unroll
          for (int q = 0; q < NP; q++) {
            angular_values(e.l, x[q], y[q], z[q], [&](int m, double v) {
              if (!CHUNKED || static_cast<unsigned>(f + m) < static_cast<unsigned>(k1 - k0)) phi[(f + m) * LD + q * 32 + lane] = v * R[q];
            });
          }
        }
      }
      __syncthreads();
      double X[NQ], Y[NQ], Z[NQ];
#pragma unroll
      for (int q = 0; q < NQ; q++) {
        const double* p = points + 3 * (first_point + wm * PM + q * 32 + lane);
        X[q] = p[0];
        Y[q] = p[1];
        Z[q] = p[2];
      }
      for (int c = wc; c < slabs; c += CW) {
        const int limit = min(prefix(row.bound, slabs, c, factor, lane), k1) - k0;
        if (limit <= 0) {
          if (CHUNKED) break;  // later slabs are weaker
          continue;
        }
        __syncwarp();
        double acc[SETS][PM / 16][4] = {};
        const double* column = density + static_cast<int64>(row.idx[8 * c + g]) * nao * SETS;
        slab_product<1, SETS>(acc, A, 0, row.idx + k0, column, limit, t);
#pragma unroll
        for (int set = 0; set < SETS; set++) keep_product(acc[set], buffer + set * 8 * LX, g, t);
        __syncwarp();
        slab_dots<NQ, SETS, NC, LX>(row.entries, ns, row.shell[c], 8 * c, prims, buffer, X, Y, Z, lane, sum);
      }
    }
    __syncthreads();
    double* partial = phi;  // [CW][SETS * NC][P]
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int c = 0; c < NC; c++) {
#pragma unroll
        for (int q = 0; q < NQ; q++) partial[((wc * SETS + set) * NC + c) * P + wm * PM + q * 32 + lane] = sum[set][c][q];
      }
    }
    __syncthreads();
    for (int i = tid; i < SETS * NC * P; i += WARPS * 32) {
      double v = poison;
#pragma unroll
      for (int k = 0; k < CW; k++) v += partial[k * SETS * NC * P + i];
      const int c = i / P % NC, set = i / P / NC;
      out[(static_cast<int64>(set) * NC + c) * n + first_point + i % P] = c ? 2.0 * v : v;
    }
    __syncthreads();
  }
}
