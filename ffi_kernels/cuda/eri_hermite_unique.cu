// Primitives that occur in several contracted shells: same centre, exponent and angular momentum.

// first[k]: the first primitive equal to k; next[k]: the one after k, or -1; largest[k]: the largest |coefficient| among all.
// Primitives are sorted by angular momentum; begin has the first of each, and their number at the end.
extern "C" __global__ void hermite_unique(const double* __restrict__ centres, const double* __restrict__ exponents,
                                          const double* __restrict__ coefficients, const int* __restrict__ begin, int number,
                                          int* __restrict__ first, int* __restrict__ next, double* __restrict__ largest) {
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < number; k += gridDim.x * blockDim.x) {
    int l = 0;
    while (begin[l + 1] <= k) ++l;
    int before = k, after = -1;
    double most = 0.0;
    for (int m = begin[l]; m < begin[l + 1]; ++m) {
      if (exponents[m] != exponents[k] || centres[3 * m] != centres[3 * k] || centres[3 * m + 1] != centres[3 * k + 1] ||
          centres[3 * m + 2] != centres[3 * k + 2]) {
        continue;
      }
      if (before == k && m < k) before = m;
      if (after < 0 && m > k) after = m;
      const double size = coefficients[m] < 0 ? -coefficients[m] : coefficients[m];
      most = max(most, size);
    }
    first[k] = before;
    next[k] = after;
    largest[k] = most;
  }
}
