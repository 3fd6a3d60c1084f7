// The transpose of the density: coefficients on rows of points to a matrix, U with V = U + U^T.
//
// A block takes a row of ROW points in chunks of P: orbital values and Z = c_0 / 2 phi + c . grad phi go to shared memory, warps
// own upper tiles of 32 x 32 functions whose accumulators stay in registers over the whole row, and one atomic addition for each
// element ends it. Lists fall in bound, so that the tiles that matter form a staircase. Where they are more than the block holds
// at once, they are done in batches, each of which makes only the functions that it needs, in slots of 32: weak functions meet
// few others, and no length of a list is too long.
// Macros: ROW, P, W warps, TPW tiles a warp, NC components (1, 4, 5), MINB blocks a multiprocessor, SLOTS 1 where blocks of
// functions move between slots, FIXED 1 for sums in fixed point, which do not depend on their order, ALL 1 where (with tau) values
// and derivatives u are held side by side and made at once, instead of two arrays after the other: V = u^T (M u), with the M of a
// point applied to one side on the way to the matrix unit.
#include "xc_common.cuh"

#define LD (P + 4)
constexpr int TILES = W * TPW;
#if NC > 4
#define WEIGHT(value, k) ((value) * tau_weight[(k) + t])
#else
#define WEIGHT(value, k) (value)
#endif

struct Tile {
  short b, c, slot_b, slot_c;
};

#if NC > 4 && ALL
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
#endif

extern "C" __global__ __launch_bounds__(W * 32, MINB) void xc_potential(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const int* overflow, const double* coefficient, double* out, int64 n, int nrow, int capacity, int nao, int low,
    int high, int max_shells, int max_functions, int nslot, double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ int total, ntile, cursor_b, cursor_c;
  __shared__ float largest[W];
  __shared__ Tile tiles[TILES];
#if NC > 4
  __shared__ double tau_weight[ALL ? 5 * P : P];
#endif
  constexpr int NP = P / 32;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  double* phi = shared;  // [slots * 32][LD]
  double* zed = phi + nslot * 32 * LD;
  constexpr int ARRAYS = ALL ? 4 : 2;
  const int array = nslot * 32 * LD;  // from one to the next
  ShellEntry* entries = reinterpret_cast<ShellEntry*>(phi + ARRAYS * array);
  int* idx = reinterpret_cast<int*>(entries + max_shells);
  const int max_blocks = (max_functions + 31) / 32;
  float* block_bound = reinterpret_cast<float*>(idx + max_functions);
  short* block_count = reinterpret_cast<short*>(block_bound + max_blocks);
  short* slot_of = block_count + max_blocks;
  const int2 range = class_range(lists.first, low, high);
  const double poison = __ldg(overflow) > capacity ? __longlong_as_double(0x7ff8000000000000ll) : 0.0;
  const double* coef = coefficient + static_cast<int64>(blockIdx.y) * NC * n;
  double* matrix = out + static_cast<int64>(blockIdx.y) * nao * nao;
  for (int item = range.x + blockIdx.x; item < range.y; item += gridDim.x) {
    const int row = __ldg(order + item);
    const int64 row_point = static_cast<int64>(row) * ROW;
    float cmax = 0.0f;
    for (int i = tid; i < ROW; i += W * 32) {
      double v = 0.0;
#pragma unroll
      for (int c = 0; c < NC; c++) v += fabs(coef[c * n + row_point + i]);
      const float f = __double2float_ru(v);
      cmax = f <= cmax ? cmax : f < 3e38f ? f : 3e38f;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) cmax = fmaxf(cmax, __shfl_xor_sync(0xffffffffu, cmax, o));
    if (lane == 0) largest[warp] = cmax;
    const int ns = __ldg(count + row);
    const int functions = load_entries(lists, row, ns, entries, &total);
#pragma unroll
    for (int w = 0; w < W; w++) cmax = fmaxf(cmax, largest[w]);
    if (cmax == 0.0f) {
      __syncthreads();  // `largest` is read before the next row writes it
      continue;
    }
    const float factor = static_cast<float>(fmin(inverse_epsilon * cmax, 1e30));
    const int n16 = (functions + 15) & ~15, blocks = (functions + 31) >> 5;
    for (int s = tid; s < ns; s += W * 32) {
      const int offset = entries[s].offset, size = shell_size(entries[s].l);
      for (int m = 0; m < size; m++) {
        idx[offset + m] = entries[s].ao + m;
        if (((offset + m) & 31) == 0) block_bound[(offset + m) >> 5] = entries[s].bound;
      }
    }
    if (tid == 0) cursor_b = cursor_c = 0;
    __syncthreads();
    for (int c = tid; c < blocks; c += W * 32) {
      const float threshold = 1.0f / (factor * block_bound[c] + 1e-30f);
      int k = 0;
      while (k <= c && block_bound[k] > threshold) k++;
      block_count[c] = static_cast<short>(k);
      slot_of[c] = -1;
    }
    __syncthreads();
    while (true) {
      if (tid == 0) {
        int made = 0, b = cursor_b, c = cursor_c;
#if SLOTS
        int used = 0;
#endif
        while (made < TILES && c < blocks) {
          if (b >= block_count[c]) {
            c++;
            b = 0;
            continue;
          }
#if SLOTS
          const int need = (slot_of[c] < 0) + (b != c && slot_of[b] < 0);
          if (used + need > nslot) break;
          if (slot_of[b] < 0) slot_of[b] = static_cast<short>(used++);
          if (slot_of[c] < 0) slot_of[c] = static_cast<short>(used++);
#else
          slot_of[b] = static_cast<short>(b);
          slot_of[c] = static_cast<short>(c);
#endif
          tiles[made++] = {static_cast<short>(b), static_cast<short>(c), slot_of[b], slot_of[c]};
          b++;
        }
        ntile = made;
        cursor_b = b;
        cursor_c = c;
      }
      __syncthreads();
      const int here = ntile;
      if (here == 0) break;
      double acc[TPW][2][4][4] = {};
      Tile mine[TPW];
#pragma unroll
      for (int u = 0; u < TPW; u++) {
        mine[u] = {-1, 0, 0, 0};
        if (warp + u * W < here) mine[u] = tiles[warp + u * W];
      }
      if (slot_of[blocks - 1] >= 0) {
        const int first = slot_of[blocks - 1] * 32 + (functions - 32 * (blocks - 1));
        for (int i = tid; i < (n16 - functions) * P; i += W * 32) {
#pragma unroll
          for (int k = 0; k < ARRAYS; k++) phi[k * array + (first + i / P) * LD + i % P] = 0.0;
        }
      }
      for (int chunk = 0; chunk < ROW / P; chunk++) {
        double X[NP], Y[NP], Z[NP], c0[NP], bx[NP], by[NP], bz[NP];
#pragma unroll
        for (int q = 0; q < NP; q++) {
          const int64 p = row_point + chunk * P + q * 32 + lane;
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
#pragma unroll 1
        for (int pass = 0; pass < (NC > 4 && !ALL ? 3 : 1); pass++) {
          if (chunk || pass) __syncthreads();
#if NC > 4 && ALL
          for (int i = tid; i < 5 * P; i += W * 32) tau_weight[i] = (i < 4 * P ? 1.0 : 0.5) * coef[i / P * n + row_point + chunk * P + i % P];
#elif NC > 4
          // Derivatives, x and y in the second pass, z in the third, meet themselves with the weight of tau.
          if (pass < 2 && tid < P) tau_weight[tid] = pass ? 0.5 * coef[4 * n + row_point + chunk * P + tid] : 1.0;
#endif
          for (int s = warp; s < ns; s += W) {
            const ShellEntry e = entries[s];
            const int size = shell_size(e.l), b0 = e.offset >> 5, b1 = (e.offset + size - 1) >> 5;
            const int slot0 = slot_of[b0], slot1 = slot_of[b1];
            if (slot0 < 0 && slot1 < 0) continue;
#if SLOTS
            // Rows of the functions m below and from `split` on; negative where their block is not held.
            const int split = b1 > b0 ? 32 * b1 - e.offset : size;
            const int row0 = slot0 < 0 ? -1000 : slot0 * 32 + (e.offset & 31), row1 = slot1 < 0 ? -1000 : slot1 * 32 - split;
#endif
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
#if SLOTS
                const int at = m < split ? row0 + m : row1 + m;
                if (at >= 0) {
                  phi[at * LD + q * 32 + lane] = v;
                  zed[at * LD + q * 32 + lane] = w;
                }
#else
                phi[(e.offset + m) * LD + q * 32 + lane] = v;
                zed[(e.offset + m) * LD + q * 32 + lane] = w;
#endif
              };
              if (NC == 1) {
                const double h = c0[q] * R[q];
                angular_values(e.l, x[q], y[q], z[q], [&](int m, double v) { store(m, v * R[q], v * h); });
#if NC > 4 && ALL
              } else if (true) {
                angular_gradients(e.l, x[q], y[q], z[q], [&](int m, double v, double vx, double vy, double vz) {
                  const double along = v * R1[q];
                  double* at = phi + (e.offset + m) * LD + q * 32 + lane;
                  at[0] = v * R[q];
                  at[array] = fma(along, x[q], R[q] * vx);
                  at[2 * array] = fma(along, y[q], R[q] * vy);
                  at[3 * array] = fma(along, z[q], R[q] * vz);
                });
#endif
              } else if (NC < 5 || pass == 0) {
                const double h = fma(R1[q], bx[q] * x[q] + by[q] * y[q] + bz[q] * z[q], c0[q] * R[q]);
                angular_directional(e.l, x[q], y[q], z[q], R[q] * bx[q], R[q] * by[q], R[q] * bz[q],
                                    [&](int m, double v, double w) { store(m, v * R[q], fma(v, h, w)); });
              } else {
                const double ax = pass == 1 ? R1[q] * x[q] : R1[q] * z[q], ay = R1[q] * y[q];
                const bool first = pass == 1;
                angular_gradients(e.l, x[q], y[q], z[q], [&](int m, double v, double vx, double vy, double vz) {
                  store(m, fma(v, ax, R[q] * (first ? vx : vz)), fma(v, ay, R[q] * vy));
                });
              }
            }
          }
          __syncthreads();
#pragma unroll
          for (int u = 0; u < TPW; u++) {
            if (mine[u].b < 0) continue;
            const bool second_b = mine[u].b * 32 + 16 < n16, second_c = mine[u].c * 32 + 16 < n16;
#if NC > 4 && ALL
            const double *A = phi + (mine[u].slot_b * 32 + g) * LD + t, *B = phi + (mine[u].slot_c * 32 + g) * LD + t;
            if (second_b && second_c) {
              add_products<true>(acc[u], A, B, array, tau_weight + t, true, true);
            } else {
              add_products<false>(acc[u], A, B, array, tau_weight + t, second_b, second_c);
            }
#else
            const int products = pass > 1 || (NC < 5 && mine[u].b == mine[u].c) ? 1 : 2;
            const double *A = phi + (mine[u].slot_b * 32 + g) * LD + t, *B = (pass ? phi : zed) + (mine[u].slot_c * 32 + g) * LD + t;
            for (int product = 0; product < products; product++) {
              if (second_b && second_c) {
#pragma unroll 2
                for (int k = 0; k < P; k += 8) {
                  double b[4][2];
#pragma unroll
                  for (int j = 0; j < 4; j++) {
                    b[j][0] = B[8 * j * LD + k];
                    b[j][1] = B[8 * j * LD + k + 4];
                  }
#pragma unroll
                  for (int i = 0; i < 2; i++) {
                    const double* at = A + 16 * i * LD + k;
                    const double a[4] = {WEIGHT(at[0], k), WEIGHT(at[8 * LD], k), WEIGHT(at[4], k + 4), WEIGHT(at[8 * LD + 4], k + 4)};
#pragma unroll
                    for (int j = 0; j < 4; j++) mma(acc[u][i][j], a, b[j][0], b[j][1]);
                  }
                }
              } else {
                for (int k = 0; k < P; k += 8) {
                  double b[4][2] = {};
#pragma unroll
                  for (int j = 0; j < 4; j++) {
                    if (j < 2 || second_c) {
                      b[j][0] = B[8 * j * LD + k];
                      b[j][1] = B[8 * j * LD + k + 4];
                    }
                  }
#pragma unroll
                  for (int i = 0; i < 2; i++) {
                    if (i == 0 || second_b) {
                      const double* at = A + 16 * i * LD + k;
                      const double a[4] = {WEIGHT(at[0], k), WEIGHT(at[8 * LD], k), WEIGHT(at[4], k + 4), WEIGHT(at[8 * LD + 4], k + 4)};
#pragma unroll
                      for (int j = 0; j < 4; j++) {
                        if (j < 2 || second_c) mma(acc[u][i][j], a, b[j][0], b[j][1]);
                      }
                    }
                  }
                }
              }
              // phi and Z, then Z and phi; with derivatives, each with itself.
              A = zed + (mine[u].slot_b * 32 + g) * LD + t;
              B = (pass ? zed : phi) + (mine[u].slot_c * 32 + g) * LD + t;
            }
#endif
          }
        }
      }
#pragma unroll
      for (int u = 0; u < TPW; u++) {
        if (mine[u].b < 0) continue;
        const double scale = NC > 4 && mine[u].b == mine[u].c ? 0.5 : 1.0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int r = mine[u].b * 32 + 16 * i + 8 * h + g;
            double* target = matrix + static_cast<int64>(r < functions ? idx[r] : 0) * nao;
#pragma unroll
            for (int j = 0; j < 4; j++) {
              // The lanes of a quad take four columns side by side: whole sectors.
              const double v0 = acc[u][i][j][2 * h], v1 = acc[u][i][j][2 * h + 1];
              const int from = (lane & ~3) | (t >> 1);
              const double p0 = __shfl_sync(0xffffffffu, v0, from), p1 = __shfl_sync(0xffffffffu, v1, from);
              const double q0 = __shfl_sync(0xffffffffu, v0, from + 2), q1 = __shfl_sync(0xffffffffu, v1, from + 2);
#pragma unroll
              for (int half = 0; half < 2; half++) {
                const int c = mine[u].c * 32 + 8 * j + 4 * half + t;
                if (r < functions && c < functions) {
                  const double v = scale * (half ? (t & 1 ? q1 : q0) : (t & 1 ? p1 : p0)) + poison;
#if FIXED
                  // Units of 2^-44: sums of integers do not depend on their order. NaN becomes the largest integer.
                  const long long units = v == v ? __double2ll_rn(v * 17592186044416.0) : 0x4000000000000000ll;
                  atomicAdd(reinterpret_cast<uint64*>(target) + idx[c], static_cast<uint64>(units));
#else
                  atomicAdd(target + idx[c], v);
#endif
                }
              }
            }
          }
        }
      }
      __syncthreads();
      for (int c = tid; c < blocks; c += W * 32) slot_of[c] = -1;
      __syncthreads();
    }
    __syncthreads();
  }
}
