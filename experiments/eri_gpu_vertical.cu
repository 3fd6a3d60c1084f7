// First kernel of the second tier of the FusionRCG paper (arXiv:2605.10312): the vertical recurrence sums (e0|f0) of every quartet in
// global memory. A tile is up to 32 quartets of one bra pair, a lane each; its row has their kets, or -1, then the bra.
#include "eri_boys.cuh"
#include "eri_recurrence.h"

constexpr int64 kTileSums = 32ll * kE * kF;
constexpr int kTileRow = 64;

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
    eri_vertical(const int2* shells, const int4* info, const double* centers, const real* prims, int64 capacity, const float* bound,
                 const int* bra_groups, const int* ket_groups, int ngroup, const real*, const float* density_bound, const float* top, double*,
                 double*, const real* rows, const real* grid, double omega, double threshold, int, int nshell, int bra_first, int bra_step,
                 const int* part, int same, double limit, double* sums, int* tiles, int* count) {
  __shared__ int slots[BLOCK / 32][64];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup]) return;
  const Pairs pairs = {shells, info, centers, prims, capacity, bound};
  const Screen screen = {bound, shells, density_bound, nshell, top[0] + kCoulombLog, static_cast<float>(threshold), static_cast<float>(limit)};
  KetQueue queue{slots[warp]};
  while (true) {
    queue.fill<32>(screen, ket_groups, ngroup, same ? bra_at + 1 : 0x7fffffff, (blockIdx.y * (BLOCK / 32) + warp) * 32, BLOCK * gridDim.y,
                   bound[bra_at], shells[bra_at]);
    if (queue.count == 0) break;
    const int taken = min(queue.count, 32);
    queue.count -= taken;
    const int ket_at = queue.slots[queue.count + (lane < taken ? lane : 0)];
    __syncwarp();
    const int tile = __shfl_sync(0xffffffffu, lane == 0 ? atomicAdd(count, 1) : 0, 0);
    tiles[int64{tile} * kTileRow + lane] = lane < taken ? ket_at : -1;
    if (lane == 0) tiles[int64{tile} * kTileRow + 32] = bra_at;
    vertical(pairs, bra_at, info[bra_at], ket_at, info[ket_at], rows, grid, omega, sums + tile * kTileSums + lane);
  }
}
