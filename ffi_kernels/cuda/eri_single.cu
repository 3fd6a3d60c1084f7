// Primitives of shell pairs in single precision: p, places relative to the first centre of their pair, weights, 1/p.
extern "C" __global__ void eri_single(const int4* info, const double* centers, const double* prims, long long capacity, float* out, int count) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n >= count) return;
  const int4 pair = info[n];
  const double* a = centers + 6LL * n;
  for (int k = 0, at = pair.z; k < pair.w; ++k, at += 32) {
    for (int field = 0; field < 6; ++field) {
      const double from = field >= 1 && field <= 3 ? a[field - 1] : 0.0;
      out[field * capacity + at] = static_cast<float>(prims[field * capacity + at] - from);
    }
  }
}
