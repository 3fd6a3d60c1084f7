// How many quartets, and quartets of primitives, of a class pass the screening: counts[0] and counts[1]. Called as eri_register is.
#include "eri_quartets.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    eri_count(const int2* shells, const int4* info, const double*, const double*, int64, const float* bound, const int* bra_groups,
              const int* ket_groups, int ngroup, const double*, const float* density_bound, const float* top, uint64* counts, double*,
              const double*, const double*, double, double threshold, int, int nshell, int bra_first, int bra_step, const int* part,
              int same) {
  __shared__ int slots[BLOCK / 32][64];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup]) return;
  const Screen screen = {bound, shells, density_bound, nshell, top[0] + kCoulombLog, static_cast<float>(threshold)};
  KetQueue queue{slots[warp]};
  uint64 quartets = 0, primitives = 0;
  while (true) {
    queue.fill<32>(screen, ket_groups, ngroup, same ? bra_at + 1 : 0x7fffffff, (blockIdx.y * (BLOCK / 32) + warp) * 32, BLOCK * gridDim.y,
                   bound[bra_at], shells[bra_at]);
    if (queue.count == 0) break;
    const int taken = min(queue.count, 32);
    queue.count -= taken;
    if (lane < taken) {
      ++quartets;
      primitives += static_cast<uint64>(info[bra_at].w) * info[queue.slots[queue.count + lane]].w;
    }
    __syncwarp();
  }
  if (quartets > 0) {
    atomicAdd(counts, quartets);
    atomicAdd(counts + 1, primitives);
  }
}
