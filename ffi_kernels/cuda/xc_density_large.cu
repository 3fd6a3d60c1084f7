// Density of rows that list more functions than shared memory holds: orbital values are made in chunks, once for each batch of
// 256 functions whose X = phi D stays in registers. One set of densities a block (blockIdx.y).
// Macros: ROW points a row, CHUNK functions in shared memory, NC components (1, 4, 5).
#include "xc_dots.cuh"

#define P 32
#define LD (P + 4)
#define LX (P + 2)
#define WARPS 8
#define NT 4
constexpr int NCG = NC > 4 ? 4 : NC;

extern "C" __global__ __launch_bounds__(WARPS * 32, 1) void xc_density_large(
    const ShellRecord* shells, const Primitive* prims, const double* points, const int* count, const int* order, const int* list,
    const float* bound, const float* weight_max, const int* overflow, const double* density, const double* largest, double* out,
    int64 n, int nrow, int capacity, int nao, int low, int high, int max_shells, int max_functions, double inverse_epsilon) {
  extern __shared__ double shared[];
  __shared__ int total;
  constexpr int SPLIT = ROW / P;
  const Lists lists = {shells, prims, points, count, order, order + nrow, list, bound, capacity};
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  double* phi = shared;  // [CHUNK][LD]
  double* buffer = phi + CHUNK * LD + warp * 8 * LX;
  ShellEntry* entries = reinterpret_cast<ShellEntry*>(phi + CHUNK * LD + WARPS * 8 * LX);
  int* idx = reinterpret_cast<int*>(entries + max_shells);
  float* slab_bound = reinterpret_cast<float*>(idx + max_functions);
  short* slab_shell = reinterpret_cast<short*>(slab_bound + max_functions / 8);
  const int2 range = class_range(lists.first, low, high);
  const double poison = __ldg(overflow) > capacity ? __longlong_as_double(0x7ff8000000000000ll) : 0.0;
  const double dmax = __ldg(largest);
  const double* matrix = density + static_cast<int64>(blockIdx.y) * nao * nao;
  double* target = out + static_cast<int64>(blockIdx.y) * NC * n;
  for (int item = range.x * SPLIT + blockIdx.x; item < range.y * SPLIT; item += gridDim.x) {
    const int row = __ldg(order + item / SPLIT);
    const int64 first_point = static_cast<int64>(row) * ROW + (item % SPLIT) * P;
    const int ns = __ldg(count + row);
    const int functions = load_entries(lists, row, ns, entries, &total);
    const int padded = (functions + 7) & ~7, slabs = padded >> 3;
    for (int s = tid; s < ns; s += WARPS * 32) {
      const int offset = entries[s].offset, size = shell_size(entries[s].l);
      for (int m = 0; m < size; m++) {
        idx[offset + m] = entries[s].ao + m;
        if (((offset + m) & 7) == 0) {
          slab_shell[(offset + m) >> 3] = static_cast<short>(s);
          slab_bound[(offset + m) >> 3] = entries[s].bound;
        }
      }
    }
    if (tid < padded - functions) idx[functions + tid] = 0;
    __syncthreads();
    const double* point = points + 3 * (first_point + lane);
    const double X[1] = {point[0]}, Y[1] = {point[1]}, Z[1] = {point[2]};
    const float factor = static_cast<float>(fmin(dmax * inverse_epsilon * __ldg(weight_max + row), 1e30));
    double sum[1][NCG][1] = {}, tau = 0.0;
    for (int pass = 0; pass < (NC > 4 ? 4 : 1); pass++) {
      for (int c0 = 0; c0 < slabs; c0 += WARPS * NT) {
        int limit[NT], longest = 0;
#pragma unroll
        for (int j = 0; j < NT; j++) {
          const int c = c0 + warp + WARPS * j;
          limit[j] = 0;
          if (c >= slabs) continue;
          const float threshold = 1.0f / (factor * slab_bound[c] + 1e-30f);
          for (int k = 0; k < slabs; k += 32) {
            limit[j] += 8 * __popc(__ballot_sync(0xffffffffu, k + lane < slabs && slab_bound[k + lane] > threshold));
          }
        }
        {  // the first slab of the batch has the largest bound
          const float threshold = 1.0f / (factor * slab_bound[c0] + 1e-30f);
          for (int k = 0; k < slabs; k += 32) {
            longest += 8 * __popc(__ballot_sync(0xffffffffu, k + lane < slabs && slab_bound[k + lane] > threshold));
          }
        }
        double acc[NT][2][4] = {};
        for (int k0 = 0; k0 < longest; k0 += CHUNK) {
          const int k1 = min(k0 + CHUNK, padded);
          __syncthreads();
          for (int i = tid; i < (k1 - functions) * P; i += WARPS * 32) phi[(functions - k0 + i / P) * LD + i % P] = 0.0;
          for (int s = slab_shell[k0 >> 3] + warp; s < ns; s += WARPS) {
            const ShellEntry e = entries[s];
            if (e.offset >= k1) break;
            double x = X[0] - e.x, y = Y[0] - e.y, z = Z[0] - e.z, r2[1] = {x * x + y * y + z * z}, R[1], R1[1];
            radial<1, 1>(prims + e.prim, e.nprim, r2, R, R1, nullptr);
            const auto store = [&](int m, double v) {
              const int f = e.offset + m;
              if (f >= k0 && f < k1) phi[(f - k0) * LD + lane] = v;
            };
            if (pass == 0) {
              angular_values(e.l, x, y, z, [&](int m, double v) { store(m, v * R[0]); });
            } else {
              const double along = R1[0] * (pass == 1 ? x : pass == 2 ? y : z);
              angular_directional(e.l, x, y, z, pass == 1 ? R[0] : 0.0, pass == 2 ? R[0] : 0.0, pass == 3 ? R[0] : 0.0,
                                  [&](int m, double v, double w) { store(m, fma(v, along, w)); });
            }
          }
          __syncthreads();
#pragma unroll
          for (int j = 0; j < NT; j++) {
            const int c = c0 + warp + WARPS * j;
            if (c >= slabs) continue;
            const double* column = matrix + static_cast<int64>(idx[8 * c + g]) * nao;
#pragma unroll 2
            for (int k = k0; k < min(k1, limit[j]); k += 8) {
              const double b0 = __ldg(column + idx[k + t]), b1 = __ldg(column + idx[k + 4 + t]);
              const double* a0 = phi + (k - k0 + t) * LD + g;
#pragma unroll
              for (int i = 0; i < 2; i++) {
                const double a[4] = {a0[16 * i], a0[16 * i + 8], a0[4 * LD + 16 * i], a0[4 * LD + 16 * i + 8]};
                mma(acc[j][i], a, b0, b1);
              }
            }
          }
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
          const int c = c0 + warp + WARPS * j;
          if (c >= slabs || limit[j] == 0) continue;
          __syncwarp();
          double* x = buffer + 2 * t * LX + g;
#pragma unroll
          for (int i = 0; i < 2; i++) {
            x[16 * i] = acc[j][i][0];
            x[LX + 16 * i] = acc[j][i][1];
            x[16 * i + 8] = acc[j][i][2];
            x[LX + 16 * i + 8] = acc[j][i][3];
          }
          __syncwarp();
          if (pass == 0) {
            slab_dots<1, 1, NCG, LX>(entries, ns, slab_shell[c], 8 * c, prims, buffer, X, Y, Z, lane, sum);
          } else {
            double slope[1][NCG][1] = {};
            slab_dots<1, 1, NCG, LX>(entries, ns, slab_shell[c], 8 * c, prims, buffer, X, Y, Z, lane, slope);
            tau += slope[0][pass % NCG][0];
          }
        }
      }
    }
    __syncthreads();
    double* partial = phi;  // [WARPS][NC][P]
#pragma unroll
    for (int c = 0; c < NCG; c++) partial[(warp * NC + c) * P + lane] = sum[0][c][0];
    if (NC > 4) partial[(warp * NC + NC - 1) * P + lane] = tau;
    __syncthreads();
    for (int i = tid; i < NC * P; i += WARPS * 32) {
      double v = poison;
      for (int k = 0; k < WARPS; k++) v += partial[k * NC * P + i];
      const int c = i / P;
      target[c * n + first_point + i % P] = c == 0 ? v : c < 4 ? 2.0 * v : 0.5 * v;
    }
    __syncthreads();
  }
}
