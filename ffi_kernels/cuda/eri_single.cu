// Primitives of shell pairs in single precision: p, places relative to the first centre of their pair, weights, 1/p, one row of the
// grid each.
extern "C" __global__ void eri_single(const int4* info, const double* centers, const double* prims, long long capacity, float* out, int count) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, field = blockIdx.y;
  if (n >= count) return;
  const int4 pair = info[n];
  const double from = field >= 1 && field <= 3 ? centers[6LL * n + field - 1] : 0.0;
  const double* source = prims + field * capacity;
  for (int k = 0, at = pair.z; k < pair.w; ++k, at += 32) out[field * capacity + at] = static_cast<float>(source[at] - from);
}
