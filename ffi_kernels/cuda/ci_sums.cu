// Sums over sorted configurations, and over the rows of sparse matrices, in a fixed order.
#include "ci_common.cuh"

// <k|H|k> without the constant; coulomb and like (norb, norb) are (pp|qq) and (pp|qq) - (pq|qp).
__device__ double diagonal_element(const uint64* key, const double* one, const double* coulomb, const double* like, int norb) {
  double single = 0.0, two = 0.0, mixed = 0.0;
  for (int s = 0; s < 2; s++) {
    for (int v = 0; v < WORDS; v++) {
      for (uint64 w = occupations(key, s, v, norb); w; w &= w - 1) {
        const int p = 64 * v + lowest_bit(w);
        single += one[p * norb + p];
        for (int u = 0; u <= v; u++) {
          uint64 x = occupations(key, s, u, norb);
          if (u == v) x &= (1ull << (p & 63)) - 1;
          for (; x; x &= x - 1) two += like[p * norb + 64 * u + lowest_bit(x)];
        }
        if (s) continue;
        for (int u = 0; u < WORDS; u++)
          for (uint64 x = occupations(key, 1, u, norb); x; x &= x - 1) mixed += coulomb[p * norb + 64 * u + lowest_bit(x)];
      }
    }
  }
  return single + two + mixed;
}

// The first-order interacting space: keys (n, words) sorted with values (n,). Where a configuration comes first that is not among the
// sorted `members`, sums gets the sum of its values and energies its energy; 0 elsewhere. found counts them.
extern "C" __global__ void __launch_bounds__(128)
    ci_external(const uint64* keys, const double* values, int64 n, const uint64* members, const int* count, const double* one,
                const double* coulomb, const double* like, int norb, double* sums, double* energies, uint64* found) {
  const int64 k = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint64* key = keys + (k < n ? k : 0) * KEYWORDS;
  bool first = false;
#pragma unroll
  for (int w = 0; w < KEYWORDS; w++) first = first || key[w] != EMPTY;
  first = first && k < n && (k == 0 || !equal(key, key - KEYWORDS));
  if (first) {
    int low = 0, high = *count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (before(members + static_cast<int64>(middle) * KEYWORDS, key))
        low = middle + 1;
      else
        high = middle;
    }
    first = low == *count || !equal(members + static_cast<int64>(low) * KEYWORDS, key);
  }
  const unsigned votes = __ballot_sync(FULL, first);
  if (votes && threadIdx.x % 32 == 0) atomicAdd(found, static_cast<uint64>(__popc(votes)));
  if (k >= n) return;
  double sum = 0.0, energy = 0.0;
  if (first) {
    for (int64 i = k; i < n && equal(keys + i * KEYWORDS, key); i++) sum += values[i];
    energy = diagonal_element(key, one, coulomb, like, norb);
  }
  sums[k] = sum;
  energies[k] = energy;
}

// y_i = sum of terms_k over k of row i: a warp for each row.
extern "C" __global__ void __launch_bounds__(256) ci_row_sums(const int* row_start, const double* terms, int n, double* y) {
  const int row = static_cast<int>((static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (row >= n) return;
  double sum = 0.0;
  for (int k = row_start[row] + lane; k < row_start[row + 1]; k += 32) sum += terms[k];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(FULL, sum, d);
  if (lane == 0) y[row] = sum;
}

// y_i = diagonal_i x_i + sum of elements_k x[columns_k] over k of row i: a warp for each row.
extern "C" __global__ void __launch_bounds__(256)
    ci_matvec(const int64* row_start, const int* columns, const double* elements, const double* diagonal, const double* x, int n, double* y) {
  const int row = static_cast<int>((static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (row >= n) return;
  double sum = 0.0;
  for (int64 k = row_start[row] + lane; k < row_start[row + 1]; k += 32) sum += elements[k] * x[columns[k]];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(FULL, sum, d);
  if (lane == 0) y[row] = diagonal[row] * x[row] + sum;
}
