// The derivative of <c, R D> with respect to the centres of the shells and to the points.
//
// With X = phi D, Y_j = (d_j phi) D, F = sum_j c_j Y_j and b = 2 c_1..3, moving a point changes <c, R D> by
//   G_i = sum_m [2 c_0 d_i phi X + sum_j b_j d_i d_j phi X + 2 d_i phi F + c_4 sum_j d_i d_j phi Y_j],
// and moving a centre by minus the part of its shell. The first pass has X and F, with phi and c_1..3 . grad phi side by side in
// shared memory, so that D is read once for both; then each Y_j has one.
// Macros: ROW points a row, CW warps, KU steps of D held ahead, NC components (1, 4, 5), MINB blocks a multiprocessor.
#define P 32
#define MW 1
#define CHUNKED 1
#include "xc_product.cuh"

#define WARPS CW
#define ARRAYS (NC == 1 ? 1 : 2)
constexpr int PASSES = NC == 5 ? 4 : 1;

// G of one slab, added to that of the lane's point; sums over the points go to the centres. Xs: a product, and where TWO, F.
template <bool TWO>
__device__ __forceinline__ void slab_gradient(const ShellEntry* entries, const int* codes, int ns, int s, int slab, const Primitive* prims,
                                              const double* Xs, double X, double Y, double Z, int lane, double scale, const double* b,
                                              double* mine, double* centers) {
  for (; s < ns; s++) {
    const ShellEntry e = entries[s];
    const int o = static_cast<int>(e.offset) - slab;
    if (o >= 8) break;
    const double r[3] = {X - e.x, Y - e.y, Z - e.z};
    const double r2[1] = {r[0] * r[0] + r[1] * r[1] + r[2] * r[2]};
    double R[1], R1[1], R2[1];
    radial<1, 2>(prims + e.prim, e.nprim, r2, R, R1, R2);
    double G[3] = {};
    const double* at = Xs + o * LX + lane;
    if (TWO) {
      const auto v = [&](int m) { return static_cast<unsigned>(o + m) < 8u ? at[(8 + m) * LX] : 0.0; };
      double S[4];
      angular_dot(e.l, r[0], r[1], r[2], v, S);
#pragma unroll
      for (int i = 0; i < 3; i++) G[i] = 2.0 * fma(R1[0] * S[0], r[i], R[0] * S[i + 1]);
    }
    const auto v = [&](int m) { return static_cast<unsigned>(o + m) < 8u ? at[m * LX] : 0.0; };
    double S[10];
    angular_hessian(e.l, r[0], r[1], r[2], v, S);
    const double bx = b[0] * r[0] + b[1] * r[1] + b[2] * r[2], bs = b[0] * S[1] + b[1] * S[2] + b[2] * S[3];
    const double second[3] = {b[0] * S[4] + b[1] * S[5] + b[2] * S[6], b[0] * S[5] + b[1] * S[7] + b[2] * S[8],
                              b[0] * S[6] + b[1] * S[8] + b[2] * S[9]};
    const double along = scale * R1[0] * S[0] + R1[0] * bs + R2[0] * bx * S[0];
#pragma unroll
    for (int i = 0; i < 3; i++) {
      G[i] += r[i] * along + (scale * R[0] + R1[0] * bx) * S[i + 1] + R1[0] * b[i] * S[0] + R[0] * second[i];
      mine[i] += G[i];
    }
#pragma unroll
    for (int o2 = 16; o2; o2 >>= 1) {
#pragma unroll
      for (int i = 0; i < 3; i++) G[i] += __shfl_xor_sync(0xffffffffu, G[i], o2);
    }
    if (lane < 3) atomicAdd(centers + 3 * (__ldg(codes + s) & 0xfffff) + lane, lane == 0 ? -G[0] : lane == 1 ? -G[1] : -G[2]);
  }
}

extern "C" __global__ __launch_bounds__(WARPS * 32, MINB) void xc_gradient(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const int* overflow, const double* density, const double* largest, const double* coefficient, double* centers,
    double* moved, int64 n, int nset, int nrow, int capacity, int nao, int low, int high, int max_shells, int max_functions, int chunk,
    double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ int total;
  constexpr int SPLIT = ROW / P;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  double* phi = shared;  // [ARRAYS][chunk][LD]
  const int array = chunk * LD;
  double* buffer = phi + ARRAYS * array + warp * ARRAYS * 8 * LX;
  ShellEntry* entries = reinterpret_cast<ShellEntry*>(phi + ARRAYS * (array + WARPS * 8 * LX));
  int* idx = reinterpret_cast<int*>(entries + max_shells);
  float* slab_bound = reinterpret_cast<float*>(idx + max_functions);
  short* slab_shell = reinterpret_cast<short*>(slab_bound + max_functions / 8);
  const int2 range = class_range(lists.first, low, high);
  const double poison = __ldg(overflow) > capacity ? __longlong_as_double(0x7ff8000000000000ll) : 0.0;
  const double dmax = __ldg(largest);
  for (int item = range.x * SPLIT + blockIdx.x; item < range.y * SPLIT; item += gridDim.x) {
    const int row = __ldg(order + item / SPLIT);
    const int64 point = static_cast<int64>(row) * ROW + (item % SPLIT) * P + lane;
    const int ns = __ldg(count + row);
    const int functions = load_entries(lists, row, ns, entries, &total);
    const int padded = (functions + 7) & ~7, slabs = padded >> 3;
    describe_functions(entries, ns, functions, idx, slab_bound, slab_shell);
    __syncthreads();
    const double X = points[3 * point], Y = points[3 * point + 1], Z = points[3 * point + 2];
    double mine[3] = {};
    for (int set = 0; set < nset; set++) {
      const double* matrix = density + static_cast<int64>(set) * nao * nao;
      double c[5] = {};
      double sum = 0.0;
#pragma unroll
      for (int k = 0; k < NC; k++) {
        c[k] = coefficient[(static_cast<int64>(set) * NC + k) * n + point];
        sum += fabs(c[k]);
      }
      float cmax = __double2float_ru(sum);
      if (!(cmax < 3e38f)) cmax = 3e38f;
#pragma unroll
      for (int o = 16; o; o >>= 1) cmax = fmaxf(cmax, __shfl_xor_sync(0xffffffffu, cmax, o));
      const float factor = static_cast<float>(fmin(dmax * inverse_epsilon * cmax, 1e30));
      const int reach = prefix(slab_bound, slabs, 0, factor, lane);
#pragma unroll 1
      for (int pass = 0; pass < PASSES; pass++) {
        const bool start = pass == 0;
        const double scale = start ? 2.0 * c[0] : 0.0;
        double beta[3], b[3];
#pragma unroll
        for (int i = 0; i < 3; i++) {
          beta[i] = start ? (NC > 1 ? c[i + 1] : 0.0) : pass == i + 1 ? 1.0 : 0.0;
          b[i] = start ? 2.0 * beta[i] : c[4] * beta[i];
        }
        for (int k0 = 0; k0 < reach; k0 += chunk) {
          const int k1 = min(padded, k0 + chunk);
          __syncthreads();
          for (int i = tid; i < (k1 - functions) * P; i += WARPS * 32) {
#pragma unroll
            for (int a = 0; a < ARRAYS; a++) phi[a * array + (functions - k0 + i / P) * LD + i % P] = 0.0;
          }
          for (int s = slab_shell[k0 >> 3] + warp; s < ns; s += WARPS) {
            const ShellEntry e = entries[s];
            if (e.offset >= k1) break;
            const double x = X - e.x, y = Y - e.y, z = Z - e.z, r2[1] = {x * x + y * y + z * z};
            double R[1], R1[1];
            radial<1, (NC > 1)>(prims + e.prim, e.nprim, r2, R, R1, nullptr);
            const int f = static_cast<int>(e.offset) - k0;
#if NC == 1
            angular_values(e.l, x, y, z, [&](int m, double v) {
              if (static_cast<unsigned>(f + m) < static_cast<unsigned>(k1 - k0)) phi[(f + m) * LD + lane] = v * R[0];
            });
#else
            const double h = R1[0] * (beta[0] * x + beta[1] * y + beta[2] * z);
            double* slope = phi + (start ? array : 0) + lane;
            angular_directional(e.l, x, y, z, R[0] * beta[0], R[0] * beta[1], R[0] * beta[2], [&](int m, double v, double w) {
              if (static_cast<unsigned>(f + m) >= static_cast<unsigned>(k1 - k0)) return;
              if (start) phi[(f + m) * LD + lane] = v * R[0];
              slope[(f + m) * LD] = fma(v, h, w);
            });
#endif
          }
          __syncthreads();
          for (int slab = warp; slab < slabs; slab += CW) {
            const int limit = min(prefix(slab_bound, slabs, slab, factor, lane), k1) - k0;
            if (limit <= 0) break;
            const double *A = phi + t * LD + g, *column = matrix + static_cast<int64>(idx[8 * slab + g]) * nao;
            double acc[ARRAYS][2][4] = {};
            if (start) {
              slab_product<ARRAYS, 1>(acc, A, array, idx + k0, column, limit, t);
            } else {
              slab_product<1, 1>(acc, A, 0, idx + k0, column, limit, t);
            }
            __syncwarp();
#pragma unroll
            for (int a = 0; a < ARRAYS; a++) {
              double* x = buffer + (8 * a + 2 * t) * LX + g;
#pragma unroll
              for (int i = 0; i < 2; i++) {
                x[16 * i] = acc[a][i][0];
                x[LX + 16 * i] = acc[a][i][1];
                x[16 * i + 8] = acc[a][i][2];
                x[LX + 16 * i + 8] = acc[a][i][3];
              }
            }
            __syncwarp();
            const int* codes = list + static_cast<int64>(row) * capacity;
            if (start) {
              slab_gradient<(ARRAYS > 1)>(entries, codes, ns, slab_shell[slab], 8 * slab, prims, buffer, X, Y, Z, lane, scale, b, mine,
                                          centers);
            } else {
              slab_gradient<false>(entries, codes, ns, slab_shell[slab], 8 * slab, prims, buffer, X, Y, Z, lane, scale, b, mine, centers);
            }
          }
        }
      }
    }
    __syncthreads();
    double* partial = phi;  // [CW][3][P]
#pragma unroll
    for (int i = 0; i < 3; i++) partial[(warp * 3 + i) * P + lane] = mine[i];
    __syncthreads();
    if (tid < 3 * P) {
      double v = poison;
#pragma unroll
      for (int w = 0; w < CW; w++) v += partial[w * 3 * P + tid];
      moved[3 * (point - lane + tid % P) + tid / P] = v;
    }
    __syncthreads();
  }
}
