// Density, its gradient and tau on rows of points: values and derivatives of orbitals side by side in shared memory.
//
// With A = (phi, d_x phi, d_y phi, d_z phi), pairs of functions c > k on one side of the diagonal of D count twice: a warp takes a
// slab of 8 functions c, multiplies its columns of D, read once, with all four A over the functions k before it, and the dots of
// Y = sum_k A_k D_kc with the A of the slab are rho = Y_0 phi, d_i rho = Y_0 d_i phi + Y_i phi and 2 tau = sum_i Y_i d_i phi.
// Lists that are longer than what is held go in windows of half of it: one for the functions c, one for the functions k.
// Macros: ROW points a row, P = 16 or 32 points at a time (half warps make different shells, or whole ones), MW = 1, CW warps, KU
// steps of D held ahead, MINB blocks a multiprocessor.
#define LD P
#include "xc_product.cuh"

#define WARPS CW
constexpr int SUMS = 5, SHARE = 32 / P;

// Where point p of function f stands in its row: turned, so that lanes meet different banks.
__device__ __forceinline__ int turned(int f, int p) { return p ^ (f & 3) << 2; }

extern "C" __global__ __launch_bounds__(WARPS * 32, MINB) void xc_density_tau(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const float* weight_max, const int* overflow, const double* density, const double* largest, double* out,
    int64 n, int nrow, int capacity, int nao, int low, int high, int max_shells, int max_functions, int chunk, double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ int total, listed;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  double* phi = shared;  // [4][chunk][LD]
  const int array = chunk * LD, second = turned(t, g + 8) - turned(t, g);
  const RowSlabs row = row_slabs(phi + 4 * array, max_shells, max_functions);
  const int2 range = class_range(lists.first, low, high);
  const double poison = poison_of(overflow, capacity);
  const double dmax = __ldg(largest);
  for (int item = range.x + blockIdx.x; item < range.y; item += gridDim.x) {
    const int index = __ldg(order + item);
    const int ns = __ldg(count + index);
    const int functions = load_entries(lists, index, ns, row.entries, &total);
    const int padded = (functions + 7) & ~7, slabs = padded >> 3;
    describe_functions(row.entries, ns, functions, row.idx, row.bound, row.shell);
    __syncthreads();
    const float factor = static_cast<float>(fmin(dmax * inverse_epsilon * __ldg(weight_max + index), 1e30));
    // The number of functions that slab c has to meet.
    const auto partners = [&](int c) { return prefix(row.bound, slabs, c, factor, lane); };
    const int window = padded <= chunk ? chunk : chunk / 2;
    bool known = false;  // whether row.list lists what is wanted
    for (int64 first_point = static_cast<int64>(index) * ROW; first_point < static_cast<int64>(index + 1) * ROW; first_point += P) {
      const double* p = points + 3 * (first_point + lane % P);
      const double X = p[0], Y = p[1], Z = p[2];
      // Functions [k0, k1) go to slots from `slot` on.
      const auto hold = [&](int k0, int k1, int slot) {
        double* to = phi + slot * LD;
        if (!known) {
          list_by_momentum<WARPS>(row.entries, row.shell[k0 >> 3], ns, row.list, &listed, [&](const ShellEntry& e) { return e.offset < k1; });
        }
        known = window == chunk;
        for (int i = tid; i < (k1 - functions) * P; i += WARPS * 32) {
#pragma unroll
          for (int a = 0; a < 4; a++) to[a * array + (functions - k0 + i / P) * LD + i % P] = 0.0;
        }
        for (int i = warp * SHARE + lane / P; i < listed; i += WARPS * SHARE) {
          const ShellEntry e = row.entries[row.list[i]];
          const int f = static_cast<int>(e.offset) - k0;
          make_gradients(prims, e, X, Y, Z, to, array, [&](int m) {
            return static_cast<unsigned>(f + m) < static_cast<unsigned>(k1 - k0) ? (f + m) * LD + turned(f + m, lane % P) : -1;
          });
        }
      };
      double sum[P / 8][SUMS] = {};  // halves, of points 8 q + g
      int held = 0;                  // the window of functions k
      for (int c0 = 0; c0 < padded; c0 += window) {
        const int c1 = min(padded, c0 + window), slot = c0 ? window : 0;
        // Partners of its first slab, which has the largest bound: later slabs reach no further.
        const int reach = min(partners(c0 >> 3), c1);
        if (reach == 0) break;
        if (c0) __syncthreads();
        hold(c0, c1, slot);
        const int first = held;
        // The window itself, then what is held of those before it, then the others.
        for (int m = -1; m < c0 / window; m++) {
          const int k0 = m < 0 ? c0 : window * (m == 0 ? first : m <= first ? m - 1 : m);
          if (k0 >= reach) continue;
          const int k1 = min(k0 + window, reach);
          if (m > 0) {
            __syncthreads();
            hold(k0, k1, 0);
            held = k0 / window;
          }
          __syncthreads();
          const double* A = phi + ((m < 0 ? slot : 0) + t) * LD + turned(t, g);
          // Two and two rounds balance: the most partners are with the first of one and with the last of the next.
          for (int round = 0;; round++) {
            const int c = (c1 >> 3) - 1 - (round * WARPS + (round & 1 ? WARPS - 1 - warp : warp));
            if (c < c0 >> 3) break;
            const int limit = min(partners(c), m < 0 ? 8 * c + 8 : k1);
            if (limit <= k0) continue;
            const double* column = density + static_cast<int64>(row.idx[8 * c + g]) * nao;
            double acc[4][P / 16][4] = {};
            slab_product<4, 1>(acc, A, array, row.idx + k0, column, min(limit, 8 * c) - k0, t, second);
            const double* own = phi + (slot + 8 * c - c0) * LD;
            if (limit > 8 * c) {
              double b[1][2];
              load_step<1>(b, row.idx + 8 * c, column, t);
              b[0][0] *= 0.5;
              b[0][1] *= 0.5;
              slab_step<4, 1>(acc, own + t * LD + turned(t, g), array, b, second);
            }
#pragma unroll
            for (int q = 0; q < P / 8; q++) {
#pragma unroll
              for (int e = 0; e < 2; e++) {
                const double* u = own + (2 * t + e) * LD + turned(2 * t + e, 8 * q + g);
                const int k = 2 * (q & 1) + e;
                const double v = u[0], y0 = acc[0][q >> 1][k];
                sum[q][0] = fma(y0, v, sum[q][0]);
#pragma unroll
                for (int i = 1; i < 4; i++) {
                  const double w = u[i * array], y = acc[i][q >> 1][k];
                  sum[q][i] = fma(y0, w, fma(y, v, sum[q][i]));
                  sum[q][4] = fma(y, w, sum[q][4]);
                }
              }
            }
          }
        }
      }
      __syncthreads();
      double* partial = phi;  // [WARPS][SUMS][P]
#pragma unroll
      for (int q = 0; q < P / 8; q++) {
#pragma unroll
        for (int c = 0; c < SUMS; c++) {
          double v = sum[q][c];
          v += __shfl_xor_sync(0xffffffffu, v, 1);
          v += __shfl_xor_sync(0xffffffffu, v, 2);
          if (t == 0) partial[(warp * SUMS + c) * P + 8 * q + g] = v;
        }
      }
      __syncthreads();
      for (int i = tid; i < SUMS * P; i += WARPS * 32) {
        double v = poison;
#pragma unroll
        for (int w = 0; w < WARPS; w++) v += partial[w * SUMS * P + i];
        out[(i / P) * n + first_point + i % P] = i / P == 4 ? v : 2.0 * v;
      }
      __syncthreads();
    }
  }
}
