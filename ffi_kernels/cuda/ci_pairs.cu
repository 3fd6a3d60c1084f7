// Matrix elements among the members of a set, found by comparing all pairs: two keys differ by at most two electrons where they differ in at
// most four bits. For sets that are not much larger than what a configuration is coupled to, that is much less work than to look up all of it.
//
// A warp takes ROWS rows, and its lanes neighbouring columns. ci_pair_count counts the elements of each row, ci_pair_fill writes them.
#include "ci_common.cuh"

#define ROWS 8

struct Integrals {
  const double *one, *coulomb, *like;  // h_pa, (pa|qq) and (pa|qq) - (pq|qa) as [p][a][q]
  const double* two;                   // (pa|qb)
  int norb;
};

// The lowest orbital of some words, and the words without it.
__device__ __forceinline__ int take(uint64* words) {
#pragma unroll
  for (int v = 0; v < WORDS; v++) {
    if (words[v]) {
      const int p = 64 * v + lowest_bit(words[v]);
      words[v] &= words[v] - 1;
      return p;
    }
  }
  return 0;
}

__device__ __forceinline__ uint64 lower(int p, int v) {  // orbitals below p in word v
  return p >= 64 * v + 64 ? ~0ull : p <= 64 * v ? 0 : (1ull << (p & 63)) - 1;
}

// Whether the number of electrons strictly between two orbitals is odd.
__device__ __forceinline__ bool odd_between(const uint64* words, int p, int a) {
  int number = 0;
#pragma unroll
  for (int v = 0; v < WORDS; v++) number += popcount(words[v] & lower(max(p, a), v) & ~lower(min(p, a) + 1, v));
  return number & 1;
}

// <i|H|j> of configurations that differ by one or two electrons.
__device__ double pair_element(const Integrals& t, const uint64* key_i, const uint64* key_j) {
  const int norb = t.norb;
  uint64 mine[WORDS], other[WORDS], left[WORDS], entered[WORDS], left2[WORDS], entered2[WORDS];
  int alphas = 0, betas = 0;
#pragma unroll
  for (int v = 0; v < WORDS; v++) {
    alphas += popcount(occupations(key_i, 0, v, norb) & ~occupations(key_j, 0, v, norb));
    betas += popcount(occupations(key_i, 1, v, norb) & ~occupations(key_j, 1, v, norb));
  }
  const int spin = alphas == 0;
#pragma unroll
  for (int v = 0; v < WORDS; v++) {
    mine[v] = occupations(key_i, spin, v, norb);
    other[v] = occupations(key_i, 1 - spin, v, norb);
    const uint64 to = occupations(key_j, spin, v, norb), to2 = occupations(key_j, 1 - spin, v, norb);
    left[v] = mine[v] & ~to;
    entered[v] = to & ~mine[v];
    left2[v] = other[v] & ~to2;
    entered2[v] = to2 & ~other[v];
  }
  const int p = take(left), a = take(entered);
  const int64 pa = static_cast<int64>(p) * norb + a;
  bool minus = odd_between(mine, p, a);
  double value;
  if (alphas + betas == 1) {
    value = t.one[pa];
#pragma unroll
    for (int v = 0; v < WORDS; v++) {
      for (uint64 w = mine[v]; w; w &= w - 1) value += t.like[pa * norb + 64 * v + lowest_bit(w)];
      for (uint64 w = other[v]; w; w &= w - 1) value += t.coulomb[pa * norb + 64 * v + lowest_bit(w)];
    }
  } else if (alphas == betas) {
    const int q = take(left2), b = take(entered2);
    minus ^= odd_between(other, q, b);
    value = t.two[(pa * norb + q) * norb + b];
  } else {
    const int q = take(left), b = take(entered);
#pragma unroll
    for (int v = 0; v < WORDS; v++) {
      if (p / 64 == v) mine[v] ^= 1ull << (p & 63);
      if (a / 64 == v) mine[v] ^= 1ull << (a & 63);
    }
    minus ^= odd_between(mine, q, b);
    value = t.two[(pa * norb + q) * norb + b] - t.two[((static_cast<int64>(p) * norb + b) * norb + q) * norb + a];
  }
  return minus ? -value : value;
}

// Lane r has where the next element of row r goes, or how many there are. Returns that after the last one.
template <bool FILL>
__device__ int64 pair_rows(const Integrals& t, const uint64* keys, int first, int n, double threshold, int64 at, int* columns, double* elements,
                           int lane) {
  uint64 mine[ROWS][KEYWORDS];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int w = 0; w < KEYWORDS; w++) mine[r][w] = keys[static_cast<int64>(min(first + r, n - 1)) * KEYWORDS + w];
  for (int start = 0; start < n; start += 32) {
    const int column = start + lane;
    const uint64* key = keys + static_cast<int64>(min(column, n - 1)) * KEYWORDS;
    unsigned near = 0;
    int differing[ROWS] = {};
#pragma unroll
    for (int w = 0; w < KEYWORDS; w++) {
      const uint64 word = key[w];
#pragma unroll
      for (int r = 0; r < ROWS; r++) differing[r] += popcount(mine[r][w] ^ word);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) near |= static_cast<unsigned>(differing[r] <= 4 && differing[r] > 0 && column < n && first + r < n) << r;
    if (!__ballot_sync(FULL, near != 0)) continue;
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
      double value = 0.0;
      bool kept = near >> r & 1;
      if (kept) {
        value = pair_element(t, keys + static_cast<int64>(first + r) * KEYWORDS, key);
        kept = fabs(value) > threshold;
      }
      const unsigned votes = __ballot_sync(FULL, kept);
      const int64 begin = __shfl_sync(FULL, at, r);
      if (FILL && kept) {
        const int64 place = begin + __popc(votes & ((1u << lane) - 1));
        columns[place] = column;
        elements[place] = value;
      }
      if (lane == r) at += __popc(votes);
    }
  }
  return at;
}

#define PARAMETERS const uint64 *keys, const int *count, const double *one, const double *coulomb, const double *like, const double *two, int norb, int rows, double threshold

extern "C" __global__ void __launch_bounds__(128) ci_pair_count(PARAMETERS, int64* totals) {
  const int lane = threadIdx.x % 32, first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * ROWS;
  int64 number = 0;
  if (first < *count) number = pair_rows<false>({one, coulomb, like, two, norb}, keys, first, *count, threshold, 0, nullptr, nullptr, lane);
  if (lane < ROWS && first + lane < rows) totals[first + lane] = number;
}

extern "C" __global__ void __launch_bounds__(128) ci_pair_fill(PARAMETERS, const int64* row_start, int* columns, double* elements) {
  const int lane = threadIdx.x % 32, first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * ROWS;
  if (first >= *count) return;
  const int64 at = lane < ROWS && first + lane < rows ? row_start[first + lane] : 0;
  pair_rows<true>({one, coulomb, like, two, norb}, keys, first, *count, threshold, at, columns, elements, lane);
}
