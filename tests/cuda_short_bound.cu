// The bounds of eri_short.cuh for all pairs with all others.
#include "eri_short.cuh"

extern "C" __global__ void short_bounds(const float4* places, const float2* charges, double omega, int npair, float* bounds) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < npair * npair) bounds[t] = Reach(places, charges, t / npair, omega).bound(t % npair);
}
