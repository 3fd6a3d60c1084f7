// J of ket pairs, collected as (f0| or the Cartesian (cd| by eri_lanes, carried to (cd| and added to J.
#include "eri_quartets.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
    eri_ket(const int4* info, const double* centers, const int* groups, int ngroup, const double* j_ket, double* j, int nao, int first, int count) {
  const int n = blockIdx.x * BLOCK + threadIdx.x, at = first + n;
  if (n >= count || at >= groups[ngroup]) return;
  const int4 pair = info[at];
  const double* c = centers + 6 * int64{at};
  for (int s = 0; s < SETS; ++s) {
    double f[kF], v[kCD];
#pragma unroll
    for (int m = 0; m < kF; ++m) f[m] = (1.0 / kIntermediate) * stored(j_ket + (int64{s} * count + n) * kF + m);
    HRR_KET<1, 1, double, double>(f, v, c[3], c[4], c[5]);
    double* target = j + s * int64{nao} * nao + int64{pair.x} * nao + pair.y * kFunctionsC;
#pragma unroll
    for (int m = 0; m < kCD; ++m) add(target + m, v[m]);
  }
}
