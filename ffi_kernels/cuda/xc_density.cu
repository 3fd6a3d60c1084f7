// Density and its gradient on rows of points: orbital values in shared memory, X = phi D by matrix units, dots at once.
//
// A block takes P points of a row. Lanes are points and warps are shells while orbital values are made; then each warp alone owns
// slabs of 8 functions: D comes straight from the cache into registers, X goes through a buffer of the warp, and the dots make R,
// R' and the angular sums once for each shell and point. Lists fall in bound, so that screening is a limit on k for each slab.
// Macros: ROW points a row, P points a block, MW x CW warps (points x slabs), KU steps of D held ahead, SETS densities,
// NC components (1: rho, 4: rho and gradient, 5: and tau), MINB blocks a multiprocessor, CHUNKED 1 where orbital values are held in
// chunks of `chunk` functions, strong ones first: X and so the dots are sums over chunks, and the weak chunks at the end of a list
// meet few slabs.
#include "xc_dots.cuh"
#include "xc_product.cuh"

#define WARPS (MW * CW)
constexpr int NCG = NC > 4 ? 4 : NC;


extern "C" __global__ __launch_bounds__(WARPS * 32, MINB) void xc_density(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const float* weight_max, const int* overflow, const double* density, const double* largest, double* out,
    int64 n, int nrow, int capacity, int nao, int low, int high, int max_shells, int max_functions, int chunk, double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ int total;
  constexpr int NP = P / 32, NQ = PM / 32, MI = PM / 16, SPLIT = ROW / P;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int wm = warp % MW, wc = warp / MW;
  double* phi = shared;  // [chunk][LD]
  double* buffer = phi + chunk * LD + warp * (SETS * 8 * LX);
  ShellEntry* entries = reinterpret_cast<ShellEntry*>(phi + chunk * LD + WARPS * SETS * 8 * LX);
  int* idx = reinterpret_cast<int*>(entries + max_shells);
  float* slab_bound = reinterpret_cast<float*>(idx + max_functions);
  short* slab_shell = reinterpret_cast<short*>(slab_bound + max_functions / 8);
  const int2 range = class_range(lists.first, low, high);
  const double poison = __ldg(overflow) > capacity ? __longlong_as_double(0x7ff8000000000000ll) : 0.0;
  const double dmax = __ldg(largest);
  for (int item = range.x * SPLIT + blockIdx.x; item < range.y * SPLIT; item += gridDim.x) {
    const int row = __ldg(order + item / SPLIT);
    const int64 first_point = static_cast<int64>(row) * ROW + (item % SPLIT) * P;
    const int ns = __ldg(count + row);
    const int functions = load_entries(lists, row, ns, entries, &total);
    const int padded = (functions + 7) & ~7;
    describe_functions(entries, ns, functions, idx, slab_bound, slab_shell);
    if (CHUNKED) __syncthreads();  // slab_shell is read below
    const int slabs = padded >> 3;
    const float factor = static_cast<float>(fmin(dmax * inverse_epsilon * __ldg(weight_max + row), 1e30));
    const double* A = phi + t * LD + wm * PM + g;
    double sum[SETS][NCG][NQ] = {};
    for (int k0 = 0; k0 < padded; k0 += chunk) {
      const int k1 = CHUNKED ? min(padded, k0 + chunk) : padded;
      if (CHUNKED && k0) {
        // The first slab has the largest bound: where it does not reach this chunk, none does.
        if (prefix(slab_bound, slabs, 0, factor, lane) <= k0) break;
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
        for (int s = (CHUNKED ? slab_shell[k0 >> 3] : 0) + warp; s < ns; s += WARPS) {
          const ShellEntry e = entries[s];
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
        const int limit = min(prefix(slab_bound, slabs, c, factor, lane), k1) - k0;
        if (limit <= 0) {
          if (CHUNKED) break;  // later slabs are weaker
          continue;
        }
        __syncwarp();
#pragma unroll
        for (int set = 0; set < SETS; set++) {
          double acc[MI][4] = {};
          const double* column = density + (static_cast<int64>(set) * nao + idx[8 * c + g]) * nao;
          slab_product(acc, A, idx + k0, column, limit, t);
          double* x = buffer + set * 8 * LX + 2 * t * LX + g;
#pragma unroll
          for (int i = 0; i < MI; i++) {
            x[16 * i] = acc[i][0];
            x[LX + 16 * i] = acc[i][1];
            x[16 * i + 8] = acc[i][2];
            x[LX + 16 * i + 8] = acc[i][3];
          }
        }
        __syncwarp();
        slab_dots<NQ, SETS, NCG, LX>(entries, ns, slab_shell[c], 8 * c, prims, buffer, X, Y, Z, lane, sum);
      }
    }
    __syncthreads();
    double* partial = phi;  // [CW][SETS * NCG][P]
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int c = 0; c < NCG; c++) {
#pragma unroll
        for (int q = 0; q < NQ; q++) partial[((wc * SETS + set) * NCG + c) * P + wm * PM + q * 32 + lane] = sum[set][c][q];
      }
    }
    __syncthreads();
    for (int i = tid; i < SETS * NCG * P; i += WARPS * 32) {
      double v = poison;
#pragma unroll
      for (int k = 0; k < CW; k++) v += partial[k * SETS * NCG * P + i];
      const int c = i / P % NCG, set = i / P / NCG;
      out[(static_cast<int64>(set) * NC + c) * n + first_point + i % P] = c ? 2.0 * v : v;
    }
#if NC > 4
    // tau = 1/2 sum_k (d_k phi)^T D (d_k phi).
#if CHUNKED
    double slope[SETS][NQ] = {};
#else
    double tau[SETS][MI][2] = {};
#endif
    for (int axis = 0; axis < 3; axis++) {
      for (int k0 = 0; k0 < padded; k0 += chunk) {
        const int k1 = CHUNKED ? min(padded, k0 + chunk) : padded;
        if (CHUNKED && k0 && prefix(slab_bound, slabs, 0, factor, lane) <= k0) break;
        __syncthreads();
        for (int i = tid; i < (k1 - functions) * P; i += WARPS * 32) phi[(functions - k0 + i / P) * LD + i % P] = 0.0;
        double X[NP], Y[NP], Z[NP];
#pragma unroll
        for (int q = 0; q < NP; q++) {
          const double* p = points + 3 * (first_point + q * 32 + lane);
          X[q] = p[0];
          Y[q] = p[1];
          Z[q] = p[2];
        }
        for (int s = (CHUNKED ? slab_shell[k0 >> 3] : 0) + warp; s < ns; s += WARPS) {
          const ShellEntry e = entries[s];
          if (CHUNKED && e.offset >= k1) break;
          double x[NP], y[NP], z[NP], r2[NP], R[NP], R1[NP];
#pragma unroll
          for (int q = 0; q < NP; q++) {
            x[q] = X[q] - e.x;
            y[q] = Y[q] - e.y;
            z[q] = Z[q] - e.z;
            r2[q] = x[q] * x[q] + y[q] * y[q] + z[q] * z[q];
          }
          radial<NP, 1>(prims + e.prim, e.nprim, r2, R, R1, nullptr);
          const int f = static_cast<int>(e.offset) - k0;
#pragma unroll
          for (int q = 0; q < NP; q++) {
            const double along = R1[q] * (axis == 0 ? x[q] : axis == 1 ? y[q] : z[q]);
            angular_directional(e.l, x[q], y[q], z[q], axis == 0 ? R[q] : 0.0, axis == 1 ? R[q] : 0.0, axis == 2 ? R[q] : 0.0,
                                [&](int m, double v, double w) {
                                  if (!CHUNKED || static_cast<unsigned>(f + m) < static_cast<unsigned>(k1 - k0)) {
                                    phi[(f + m) * LD + q * 32 + lane] = fma(v, along, w);
                                  }
                                });
          }
        }
        __syncthreads();
#if CHUNKED
        double PX[NQ], PY[NQ], PZ[NQ];
#pragma unroll
        for (int q = 0; q < NQ; q++) {
          const double* p = points + 3 * (first_point + wm * PM + q * 32 + lane);
          PX[q] = p[0];
          PY[q] = p[1];
          PZ[q] = p[2];
        }
#endif
        for (int c = wc; c < slabs; c += CW) {
#if CHUNKED
          // The slab's own derivatives may not be held: dots make them.
          const int limit = min(prefix(slab_bound, slabs, c, factor, lane), k1) - k0;
          if (limit <= 0) break;
          __syncwarp();
#pragma unroll
          for (int set = 0; set < SETS; set++) {
            double acc[MI][4] = {};
            const double* column = density + (static_cast<int64>(set) * nao + idx[8 * c + g]) * nao;
            slab_product(acc, A, idx + k0, column, limit, t);
            double* x = buffer + set * 8 * LX + 2 * t * LX + g;
#pragma unroll
            for (int i = 0; i < MI; i++) {
              x[16 * i] = acc[i][0];
              x[LX + 16 * i] = acc[i][1];
              x[16 * i + 8] = acc[i][2];
              x[LX + 16 * i + 8] = acc[i][3];
            }
          }
          __syncwarp();
          double part[SETS][NCG][NQ] = {};
          slab_dots<NQ, SETS, NCG, LX>(entries, ns, slab_shell[c], 8 * c, prims, buffer, PX, PY, PZ, lane, part);
#pragma unroll
          for (int set = 0; set < SETS; set++) {
#pragma unroll
            for (int q = 0; q < NQ; q++) slope[set][q] += axis == 0 ? part[set][1][q] : axis == 1 ? part[set][2][q] : part[set][3][q];
          }
#else
          // Blocks of D on one side of the diagonal count twice; the dots are those of the accumulators with what is held.
          const int limit = min(prefix(slab_bound, slabs, c, factor, lane), 8 * c + 8);
          if (limit == 0) continue;
#pragma unroll
          for (int set = 0; set < SETS; set++) {
            double acc[MI][4] = {};
            const double* column = density + (static_cast<int64>(set) * nao + idx[8 * c + g]) * nao;
            slab_product(acc, A, idx, column, min(limit, 8 * c), t);
#pragma unroll
            for (int i = 0; i < MI; i++) {
#pragma unroll
              for (int k = 0; k < 4; k++) acc[i][k] *= 2.0;
            }
            if (limit > 8 * c) {
              const double b0 = __ldg(column + idx[8 * c + t]), b1 = __ldg(column + idx[8 * c + 4 + t]);
#pragma unroll
              for (int i = 0; i < MI; i++) {
                const double* a0 = A + 8 * c * LD + 16 * i;
                const double a[4] = {a0[0], a0[8], a0[4 * LD], a0[4 * LD + 8]};
                mma(acc[i], a, b0, b1);
              }
            }
#pragma unroll
            for (int i = 0; i < MI; i++) {
              const double* d = phi + (8 * c + 2 * t) * LD + wm * PM + 16 * i + g;
              tau[set][i][0] += acc[i][0] * d[0] + acc[i][1] * d[LD];
              tau[set][i][1] += acc[i][2] * d[8] + acc[i][3] * d[LD + 8];
            }
          }
#endif
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#if CHUNKED
#pragma unroll
      for (int q = 0; q < NQ; q++) partial[(wc * SETS + set) * P + wm * PM + q * 32 + lane] = slope[set][q];
#else
#pragma unroll
      for (int i = 0; i < MI; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          double v = tau[set][i][h];
          v += __shfl_xor_sync(0xffffffffu, v, 1);
          v += __shfl_xor_sync(0xffffffffu, v, 2);
          if (t == 0) partial[(wc * SETS + set) * P + wm * PM + 16 * i + 8 * h + g] = v;
        }
      }
#endif
    }
    __syncthreads();
    for (int i = tid; i < SETS * P; i += WARPS * 32) {
      double v = poison;
#pragma unroll
      for (int k = 0; k < CW; k++) v += partial[k * SETS * P + i];
      out[(static_cast<int64>(i / P) * NC + 4) * n + first_point + i % P] = 0.5 * v;
    }
#endif
    __syncthreads();
  }
}
