// Second kernel of that tier, see eri_gpu_vertical.cu: a group of lanes makes integrals and K of the sums of a tile, a few quartets at a
// time; as our lane tier does with sums of its own.
#include "eri_lanes.cuh"
#include "eri_lane_parts.h"

constexpr int64 kTileSums = 32ll * kE * kF;
constexpr int kTileRow = 64;

extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_horizontal(const int2*, const int4* info, const double* centers, const real*, int64, const float*, const int*, const int*, int,
                   const real* density, const float*, const float*, double*, double* k, const real*, const real*, double, double, int nao, int,
                   int, int, const int*, int same, double, const double* sums, const int* tiles, const int* count) {
  extern __shared__ double shared[];
  const Group group = make_group<kArea>(shared);
  const int64 square = int64{nao} * nao;
  for (int tile = blockIdx.x * kGroups + threadIdx.x / kGroup; tile < *count; tile += gridDim.x * kGroups) {
    const int* row = tiles + int64{tile} * kTileRow;
    const int4 bra = info[row[32]];
    const double* a = centers + 6 * int64{row[32]};
    for (int begin = 0; begin < 32 && row[begin] >= 0; begin += kTogether) {
      const int* kets = row + begin;
      int taken = 1;
      while (taken < kTogether && begin + taken < 32 && kets[taken] >= 0) ++taken;
      const bool live = group.sub < taken;
      const real* from = sums + tile * kTileSums + 32 * group.f + begin + (live ? group.sub : 0);
      real h[kE];
#pragma unroll
      for (int e = 0; e < kE; ++e) h[e] = from[e * kF * 32];
#include "eri_lane_digestion.h"
      group_sync();
    }
  }
}
