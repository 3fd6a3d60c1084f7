// Sums of products over the points of a row, in upper tiles of 32 x 32 functions: a matrix U with V = U + U^T.
//
// A block takes a row of ROW points in chunks of P: arrays of orbital values go to shared memory, warps own tiles whose sums stay in
// registers over the whole row, and one atomic addition for each element ends it. Lists fall in bound, so that the tiles that matter
// form a staircase. Where they are more than the block holds at once, they are done in batches, each of which makes only the
// functions that it needs, in slots of 32: weak functions meet few others, and no length of a list is too long.
// Macros: ROW, P, W warps, TPW tiles a warp, NC components, ARRAYS of orbital values, SLOTS 1 where blocks of functions move between
// slots, FIXED 1 for sums in fixed point, which do not depend on their order.
#pragma once
#include "xc_common.cuh"

#define LD (P + 4)
constexpr int TILES = W * TPW;

struct Tile {
  short b, c, slot_b, slot_c;
};

// The row at hand, in shared memory; blocks are of 32 functions.
struct RowBlocks {
  ShellEntry* entries;
  int* idx;      // place of each function in the matrix
  float* bound;  // of each block
  short* count;  // partners of each block, itself and those before it
  short* slot;   // where the values of a block are held, or negative
  short* list;   // room for as many shells as a row lists
};

__device__ __forceinline__ RowBlocks row_blocks(double* after, int max_shells, int max_functions) {
  RowBlocks r;
  const int blocks = (max_functions + 31) / 32;
  r.entries = reinterpret_cast<ShellEntry*>(after);
  r.idx = reinterpret_cast<int*>(r.entries + max_shells);
  r.bound = reinterpret_cast<float*>(r.idx + max_functions);
  r.count = reinterpret_cast<short*>(r.bound + blocks);
  r.slot = r.count + blocks;
  r.list = r.slot + blocks;
  return r;
}

// Where function m of a shell goes among the values held.
struct Place {
  int first, second, split;

  __device__ __forceinline__ Place(const ShellEntry& e, const short* slot) {
    const int size = shell_size(e.l), b0 = e.offset >> 5, b1 = (e.offset + size - 1) >> 5;
    const int slot0 = slot[b0], slot1 = slot[b1];
#if SLOTS
    split = b1 > b0 ? 32 * b1 - e.offset : size;
    first = slot0 < 0 ? -1000 : slot0 * 32 + (e.offset & 31);
    second = slot1 < 0 ? -1000 : slot1 * 32 - split;
#else
    split = slot0 < 0 && slot1 < 0 ? -1 : size;
    first = second = e.offset;
#endif
  }
  __device__ __forceinline__ bool held() const { return SLOTS ? first >= 0 || second > -1000 : split >= 0; }
  // Negative where that function is not held.
  __device__ __forceinline__ int operator()(int m) const { return SLOTS && m >= split ? second + m : first + m; }
};

// Adds the sums of a tile to the matrix. All lanes of the warp call it.
__device__ __forceinline__ void flush_tile(const double (*acc)[4][4], const Tile& tile, const int* idx, int functions, double* matrix,
                                           int nao, double scale, double poison, int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int r = tile.b * 32 + 16 * i + 8 * h + g;
      double* target = matrix + static_cast<int64>(r < functions ? idx[r] : 0) * nao;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        // The lanes of a quad take four columns side by side: whole sectors.
        const double v0 = acc[i][j][2 * h], v1 = acc[i][j][2 * h + 1];
        const int from = (lane & ~3) | (t >> 1);
        const double p0 = __shfl_sync(0xffffffffu, v0, from), p1 = __shfl_sync(0xffffffffu, v1, from);
        const double q0 = __shfl_sync(0xffffffffu, v0, from + 2), q1 = __shfl_sync(0xffffffffu, v1, from + 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int c = tile.c * 32 + 8 * j + 4 * half + t;
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

// All rows of a size class. values(row, point, ns, batch): makes the orbital values that are held, at P points from `point` on; all
// threads call it, `batch` is true where the functions held are others than before. products(acc, tile, n16): adds those of a tile,
// of n16 functions in all.
template <class Values, class Products>
__device__ __forceinline__ void tiles_of_rows(const Lists& lists, const int* overflow, const double* coefficient, double* out, int64 n,
                                              int nao, int low, int high, int nslot, double inverse_epsilon, double* phi,
                                              const RowBlocks& row, double diagonal, Values values, Products products) {
  __shared__ int total, ntile, cursor_b, cursor_c;
  __shared__ float largest[W];
  __shared__ Tile tiles[TILES];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, array = nslot * 32 * LD;
  const int2 range = class_range(lists.first, low, high);
  const double poison = poison_of(overflow, lists.capacity);
  for (int item = range.x + blockIdx.x; item < range.y; item += gridDim.x) {
    const int index = __ldg(lists.order + item);
    const int64 point = static_cast<int64>(index) * ROW;
    float cmax = 0.0f;
    for (int i = tid; i < ROW; i += W * 32) {
      double v = 0.0;
#pragma unroll
      for (int c = 0; c < NC; c++) v += fabs(coefficient[c * n + point + i]);
      const float f = __double2float_ru(v);
      cmax = f <= cmax ? cmax : f < 3e38f ? f : 3e38f;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) cmax = fmaxf(cmax, __shfl_xor_sync(0xffffffffu, cmax, o));
    if (lane == 0) largest[warp] = cmax;
    const int ns = __ldg(lists.count + index);
    const int functions = load_entries(lists, index, ns, row.entries, &total);
#pragma unroll
    for (int w = 0; w < W; w++) cmax = fmaxf(cmax, largest[w]);
    if (cmax == 0.0f) {
      __syncthreads();  // `largest` is read before the next row writes it
      continue;
    }
    const float factor = static_cast<float>(fmin(inverse_epsilon * cmax, 1e30));
    const int n16 = (functions + 15) & ~15, blocks = (functions + 31) >> 5;
    for (int s = tid; s < ns; s += W * 32) {
      const int offset = row.entries[s].offset, size = shell_size(row.entries[s].l);
      for (int m = 0; m < size; m++) {
        row.idx[offset + m] = row.entries[s].ao + m;
        if (((offset + m) & 31) == 0) row.bound[(offset + m) >> 5] = row.entries[s].bound;
      }
    }
    if (tid == 0) cursor_b = cursor_c = 0;
    __syncthreads();
    for (int c = tid; c < blocks; c += W * 32) {
      const float threshold = 1.0f / (factor * row.bound[c] + 1e-30f);
      int k = 0;
      while (k <= c && row.bound[k] > threshold) k++;
      row.count[c] = static_cast<short>(k);
      row.slot[c] = -1;
    }
    __syncthreads();
    while (true) {
      if (tid == 0) {
        int made = 0, b = cursor_b, c = cursor_c;
#if SLOTS
        int used = 0;
#endif
        while (made < TILES && c < blocks) {
          if (b >= row.count[c]) {
            c++;
            b = 0;
            continue;
          }
#if SLOTS
          const int need = (row.slot[c] < 0) + (b != c && row.slot[b] < 0);
          if (used + need > nslot) break;
          if (row.slot[b] < 0) row.slot[b] = static_cast<short>(used++);
          if (row.slot[c] < 0) row.slot[c] = static_cast<short>(used++);
#else
          row.slot[b] = static_cast<short>(b);
          row.slot[c] = static_cast<short>(c);
#endif
          tiles[made++] = {static_cast<short>(b), static_cast<short>(c), row.slot[b], row.slot[c]};
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
      if (row.slot[blocks - 1] >= 0) {
        const int first = row.slot[blocks - 1] * 32 + (functions - 32 * (blocks - 1));
        for (int i = tid; i < (n16 - functions) * P; i += W * 32) {
#pragma unroll
          for (int k = 0; k < ARRAYS; k++) phi[k * array + (first + i / P) * LD + i % P] = 0.0;
        }
      }
      for (int chunk = 0; chunk < ROW / P; chunk++) {
        if (chunk) __syncthreads();
        values(point + chunk * P, ns, chunk == 0);
        __syncthreads();
#pragma unroll
        for (int u = 0; u < TPW; u++) {
          if (mine[u].b >= 0) products(acc[u], mine[u], n16);
        }
      }
#pragma unroll
      for (int u = 0; u < TPW; u++) {
        if (mine[u].b >= 0) {
          flush_tile(acc[u], mine[u], row.idx, functions, out, nao, mine[u].b == mine[u].c ? diagonal : 1.0, poison, lane);
        }
      }
      __syncthreads();
      for (int c = tid; c < blocks; c += W * 32) row.slot[c] = -1;
      __syncthreads();
    }
    __syncthreads();
  }
}
