// The second tier of the FusionRCG paper (arXiv:2605.10312): a kernel whose vertical recurrence sums (e0|f0) of every quartet in global
// memory, then one that makes integrals and K of them. A tile is up to 32 quartets of one bra pair, a lane each.
#include "eri_boys.cuh"
#include "eri_parts.h"

constexpr int64 kTileSums = 32ll * kE * kF;
constexpr int kTileRow = 64;  // kets, or -1; then the bra

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

extern "C" __global__ void __launch_bounds__(BLOCK, 1)
    eri_horizontal(const int2*, const int4* info, const double* centers, const real*, int64, const float*, const int*, const int*, int,
                   const real* d, const float*, const float*, double*, double* out, const real*, const real*, double, double, int nao, int, int,
                   int, const int*, int same, double, const double* sums, const int* tiles, const int* count) {
  extern __shared__ real shared[];
  __shared__ int bases[BLOCK / 32][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  real* strips = shared + warp * 32 * odd(kWidest);
  for (int tile = blockIdx.x * (BLOCK / 32) + warp; tile < *count; tile += gridDim.x * (BLOCK / 32)) {
    const int bra_at = tiles[int64{tile} * kTileRow + 32], found = tiles[int64{tile} * kTileRow + lane];
    const bool live = found >= 0;
    const int ket_at = live ? found : tiles[int64{tile} * kTileRow];
    const double *a = centers + 6 * int64{bra_at}, *c = centers + 6 * int64{ket_at};
    const int4 bra = info[bra_at], ket = info[ket_at];
    const real* h = sums + tile * kTileSums + lane;
    real g[kAB * kF], v[kAB * kCD];
#pragma unroll
    for (int f = 0; f < kF; ++f) HRR_BRA<32 * kF, kF, real, real>(h + 32 * f, g + f, a[3], a[4], a[5]);
#pragma unroll
    for (int n = 0; n < kAB; ++n) HRR_KET<1, 1, real, real>(g + n * kF, v + n * kCD, c[3], c[4], c[5]);
    const real weight = live ? multiplicity(bra, ket, same) : 0.0;
    EXCHANGE_OF_QUARTET
  }
}
