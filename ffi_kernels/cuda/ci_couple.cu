// Coupled configurations of many sources, in the order of the CPU handler: sources, then singles, doubles of like spins, of unlike spins.
//
// A block takes a source and a warp one row of excitations after the other: the targets of an occupied orbital, or of a pair of them.
// Rows of doubles are sorted by magnitude, so that a threshold ends them early. ci_count counts what each row gives and where its results
// begin within those of the source; ci_fill writes; ci_unused marks the rest of the results as unused.
#include "ci_common.cuh"

struct Source {
  uint64 key[KEYWORDS];
  uint64 occupied[2][WORDS];
  uint64 odd[2][WORDS];  // whether the number of electrons in lower orbitals is odd
  short list[2][64 * WORDS];
  int count[2];
};

struct Tables {
  const double *one, *coulomb, *like, *bound;  // as on the CPU, but the arrays of three indices are [p][q][a]
  const int *like_start, *like_target;
  const double* like_value;
  const int *unlike_start, *unlike_target;
  const double* unlike_value;
  int norb;
};

__device__ __forceinline__ bool bit(const uint64* words, uint64 first, int p) {
  return (WORDS == 1 ? first >> p : words[p >> 6] >> (p & 63)) & 1;
}

__device__ void read_source(Source& s, const uint64* key, int norb) {
  const int thread = threadIdx.x, threads = blockDim.x;
  if (thread < KEYWORDS) s.key[thread] = key[thread];
  if (thread < 2 * WORDS) {
    const int spin = thread / WORDS, word = thread % WORDS;
    int below = 0;
    for (int v = 0; v < word; v++) below += popcount(occupations(key, spin, v, norb));
    const uint64 w = occupations(key, spin, word, norb);
    uint64 x = w << 1;
    for (int shift = 1; shift < 64; shift *= 2) x ^= x << shift;
    s.occupied[spin][word] = w;
    s.odd[spin][word] = below & 1 ? ~x : x;
    if (word == WORDS - 1) s.count[spin] = below + popcount(w);
  }
  for (int k = thread; k < 2 * norb; k += threads) {
    const int spin = k >= norb, p = k - spin * norb;
    const uint64 w = occupations(key, spin, p / 64, norb);
    if (!(w >> (p & 63) & 1)) continue;
    int below = popcount(w & ((1ull << (p & 63)) - 1));
    for (int v = 0; v < p / 64; v++) below += popcount(occupations(key, spin, v, norb));
    s.list[spin][below] = static_cast<short>(p);
  }
}

// Where results of a row go; nowhere while rows are counted.
struct Output {
  uint64* keys;
  double* elements;
  int* sources;
  int64 at;
  int source, part, parts;
};

__device__ __forceinline__ bool in_part(const uint64* key, int part, int parts) {
  if (parts == 1) return true;
  uint64 h = 0;
#pragma unroll
  for (int w = 0; w < KEYWORDS; w++) {
    h = (h ^ key[w]) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
  }
  h *= 0xD6E8FEB86659FD93ull;
  return static_cast<int>((h >> 33) % static_cast<unsigned>(parts)) == part;
}

// One result for each lane with `valid`, in the order of lanes. Returns their number.
template <bool FILL>
__device__ __forceinline__ int emit(const Source& s, Output& out, int lane, bool valid, double element, int norb, int spin, int p, int a,
                                    int second_spin, int q, int b) {
  uint64 key[KEYWORDS];
  if ((FILL || out.parts > 1) && valid) {
#pragma unroll
    for (int w = 0; w < KEYWORDS; w++) key[w] = s.key[w];
    flip(key, spin, p, norb);
    flip(key, spin, a, norb);
    if (q >= 0) {
      flip(key, second_spin, q, norb);
      flip(key, second_spin, b, norb);
    }
    valid = in_part(key, out.part, out.parts);
  }
  const unsigned votes = __ballot_sync(FULL, valid);
  const int number = __popc(votes);
  if (FILL) {
    if (valid) {
      const int64 at = out.at + __popc(votes & ((1u << lane) - 1));
#pragma unroll
      for (int w = 0; w < KEYWORDS; w++) out.keys[at * KEYWORDS + w] = key[w];
      out.elements[at] = element;
      out.sources[at] = out.source;
    }
    out.at += number;
  }
  return number;
}

template <bool FILL>
__device__ int single_row(const Tables& t, const Source& s, double threshold, int spin, int p, Output& out, int lane) {
  const int norb = t.norb;
  const uint64 *occupied = s.occupied[spin], *odd = s.odd[spin];
  const uint64 first = occupied[0], first_odd = odd[0];
  int number = 0;
  for (int start = 0; start < norb; start += 32) {
    const int a = start + lane;
    bool valid = a < norb && !bit(occupied, first, a) && t.bound[p * norb + a] > threshold;
    double value = 0.0;
    if (valid) {
      const int64 row = static_cast<int64>(p) * norb * norb + a;
      value = t.one[p * norb + a];
      for (int k = 0; k < s.count[spin]; k++) value += t.like[row + s.list[spin][k] * norb];
      for (int k = 0; k < s.count[1 - spin]; k++) value += t.coulomb[row + s.list[1 - spin][k] * norb];
      valid = fabs(value) > threshold;
      if (bit(odd, first_odd, a) ^ bit(odd, first_odd, p) ^ (a > p)) value = -value;
    }
    number += emit<FILL>(s, out, lane, valid, value, norb, spin, p, a, 0, -1, 0);
  }
  return number;
}

// LIKE: p < q and a < b of one spin; otherwise p, a are alpha and q, b beta.
template <bool FILL, bool LIKE>
__device__ int double_row(const Tables& t, const Source& s, double threshold, int spin, int p, int q, Output& out, int lane) {
  const int norb = t.norb, row = LIKE ? p * (2 * norb - p - 1) / 2 + q - p - 1 : p * norb + q, other = LIKE ? spin : 1;
  const int* targets = LIKE ? t.like_target : t.unlike_target;
  const double* values = LIKE ? t.like_value : t.unlike_value;
  const int begin = LIKE ? t.like_start[row] : t.unlike_start[row], end = LIKE ? t.like_start[row + 1] : t.unlike_start[row + 1];
  const uint64 *occupied = s.occupied[spin], *odd = s.odd[spin], *occupied2 = s.occupied[other], *odd2 = s.odd[other];
  const uint64 first = occupied[0], first_odd = odd[0], second = occupied2[0], second_odd = odd2[0];
  int number = 0;
  for (int e = begin + lane; __ballot_sync(FULL, e < end && fabs(values[e]) > threshold); e += 32) {
    double value = e < end ? values[e] : 0.0;
    bool valid = e < end && fabs(value) > threshold;
    const int target = valid ? targets[e] : 0, a = target & 0xFFFF, b = target >> 16;
    valid = valid && !bit(occupied, first, a) && !bit(occupied2, second, b);
    bool minus = bit(odd, first_odd, a) ^ bit(odd, first_odd, p) ^ (a > p) ^ bit(odd2, second_odd, b) ^ bit(odd2, second_odd, q) ^ (b > q);
    if (LIKE) {  // p moves to a first, which changes what is between q and b
      const int low = min(q, b), high = max(q, b);
      minus ^= (p > low && p < high) ^ (a > low && a < high);
    }
    if (minus) value = -value;
    number += emit<FILL>(s, out, lane, valid, value, norb, spin, p, a, other, q, b);
  }
  return number;
}

template <bool FILL>
__device__ int excite(const Tables& t, const Source& s, double threshold, int row, Output& out, int lane) {
  const int alpha = s.count[0], beta = s.count[1];
  if (row < alpha + beta) {
    const int spin = row >= alpha;
    return single_row<FILL>(t, s, threshold, spin, s.list[spin][row - spin * alpha], out, lane);
  }
  row -= alpha + beta;
  const int alphas = alpha * (alpha - 1) / 2, betas = beta * (beta - 1) / 2;
  if (row < alphas + betas) {
    const int spin = row >= alphas;
    row -= spin * alphas;
    int l = static_cast<int>(0.5f * (1.0f + sqrtf(1.0f + 8.0f * row)));  // row = l (l - 1) / 2 + k
    while (l * (l - 1) / 2 > row) l--;
    while (l * (l + 1) / 2 <= row) l++;
    return double_row<FILL, true>(t, s, threshold, spin, s.list[spin][row - l * (l - 1) / 2], s.list[spin][l], out, lane);
  }
  row -= alphas + betas;
  return double_row<FILL, false>(t, s, threshold, 0, s.list[0][row / beta], s.list[1][row % beta], out, lane);
}

#define TABLE_PARAMETERS                                                                                                          \
  const double *one, const double *coulomb, const double *like, const double *bound, const int *like_start, const int *like_target, \
      const double *like_value, const int *unlike_start, const int *unlike_target, const double *unlike_value
#define TABLES {one, coulomb, like, bound, like_start, like_target, like_value, unlike_start, unlike_target, unlike_value, norb}

// part: which part of the configurations is wanted, and how many there are. offsets (n, rows): where results of a row begin within those of its source; totals (n,): results of each source.
extern "C" __global__ void __launch_bounds__(128, 8)
    ci_count(const uint64* keys, const int* count, const double* thresholds, TABLE_PARAMETERS, const int* part, int norb, int rows,
             int* offsets, int64* totals) {
  __shared__ Source s;
  const int source = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int* mine = offsets + static_cast<int64>(source) * rows;
  if (source >= *count) {
    for (int row = threadIdx.x; row < rows; row += blockDim.x) mine[row] = 0;
    if (threadIdx.x == 0) totals[source] = 0;
    return;
  }
  const Tables t = TABLES;
  read_source(s, keys + static_cast<int64>(source) * KEYWORDS, norb);
  __syncthreads();
  Output nowhere = {nullptr, nullptr, nullptr, 0, source, part[0], part[1]};
  for (int row = warp; row < rows; row += blockDim.x / 32) {
    const int number = excite<false>(t, s, thresholds[source], row, nowhere, lane);
    if (lane == 0) mine[row] = number;
  }
  __syncthreads();
  if (warp > 0) return;
  int sum = 0;
  for (int start = 0; start < rows; start += 32) {
    const int row = start + lane, number = row < rows ? mine[row] : 0;
    int upto = number;
    for (int d = 1; d < 32; d *= 2) {
      const int lower = __shfl_up_sync(FULL, upto, d);
      if (lane >= d) upto += lower;
    }
    if (row < rows) mine[row] = sum + upto - number;
    sum += __shfl_sync(FULL, upto, 31);
  }
  if (lane == 0) totals[source] = sum;
}

// ends (n,): running sums of totals. Nothing is written where the results have too few rows.
extern "C" __global__ void __launch_bounds__(128, 8)
    ci_fill(const uint64* keys, const int* count, const double* thresholds, TABLE_PARAMETERS, const int* part, int norb, int rows,
            const int* offsets, const int64* totals, const int64* ends, int n, int64 capacity, uint64* out_keys, double* elements,
            int* sources) {
  __shared__ Source s;
  const int source = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64 begin = ends[source] - totals[source];
  if (source >= *count || totals[source] == 0 || ends[n - 1] > capacity) return;
  const Tables t = TABLES;
  read_source(s, keys + static_cast<int64>(source) * KEYWORDS, norb);
  __syncthreads();
  const int* mine = offsets + static_cast<int64>(source) * rows;
  for (int row = warp; row < rows; row += blockDim.x / 32) {
    const int64 end = row + 1 < rows ? mine[row + 1] : totals[source];
    if (end == mine[row]) continue;
    Output out = {out_keys, elements, sources, begin + mine[row], source, part[0], part[1]};
    excite<true>(t, s, thresholds[source], row, out, lane);
  }
}

extern "C" __global__ void ci_unused(const int64* ends, int n, int64 capacity, uint64* keys, double* elements, int* sources) {
  const int64 used = ends[n - 1] > capacity ? 0 : ends[n - 1];
  const int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
  for (int64 k = used + static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; k < capacity; k += step) {
#pragma unroll
    for (int w = 0; w < KEYWORDS; w++) keys[k * KEYWORDS + w] = EMPTY;
    elements[k] = 0.0;
    sources[k] = 0;
  }
}
