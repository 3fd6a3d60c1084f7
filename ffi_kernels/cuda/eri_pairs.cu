// Shell pairs as the two-electron kernels read them, and matrices on their way to and from those kernels.
//
// Primitive m of pair k lies at base + 32 m: the pairs of a tile, 32 consecutive ones, have their primitives interleaved, and a tile
// has as many rows as its pair with the most primitives. Places that a pair leaves free there hold harmless numbers.
typedef unsigned long long uint64;

#define TILE 32
#define CUT 2e-16            // primitive pairs whose charge distribution is smaller are dropped, as on the CPU
#define LARGEST_TERMS 100.0  // of a horizontal recurrence; beyond, the pair is based on its other shell if that has smaller ones
#define HALVED 4             // l of contracted shells whose products are shared out, from here on; see _cuda_pairs.py
#define SERIAL ((1ull << 20) - 1)  // low bits of a key, which number the products of primitives

struct Shell {
  int l, nprim, first, ao;  // first: of its primitives
};

__device__ __forceinline__ double power(double x, int n) {
  double r = 1.0;
  for (int k = 0; k < n; ++k) r *= x;
  return r;
}

struct Product {
  double p, inverse, width, c;  // a + b, 1/(a + b), its square root, c_a c_b exp(-ab/p R^2)
};

__device__ __forceinline__ Product product(double a, double b, double c, double r2) {
  const double p = a + b, inverse = 1.0 / p;
  return {p, inverse, sqrt(inverse), c * exp(-a * b * inverse * r2)};
}

// |c| p^(-5/4): a bound of (ab|ab)^(1/2) / 5 of s functions.
__device__ __forceinline__ double charge(const Product& w) { return fabs(w.c) * w.inverse * sqrt(w.width); }

__device__ __forceinline__ double size_of(const Product& w, double a, double b, double r, int la, int lb) {
  return charge(w) * power(r * b * w.inverse + w.width, la) * power(r * a * w.inverse + w.width, lb);
}

__device__ __forceinline__ double square_distance(const double* u, const double* v) {
  const double x = u[0] - v[0], y = u[1] - v[1], z = u[2] - v[2];
  return x * x + y * y + z * z;
}

// Whether the pair (i, j) has a product. A recurrence based on the farther shell loses digits: of two contracted shells of the same high l,
// on different centres, (i, j) has the products near i and (j, i) those near j.
__device__ __forceinline__ bool belongs(const Shell& s, const Shell& u, int i, int j, double a, double b, double r2) {
  if (s.l != u.l || s.l < HALVED || s.nprim * u.nprim == 1) return true;
  return r2 == 0.0 || a == b ? i >= j : a > b;
}

// The shells of each pair in natural order, and how many of its primitives survive. `blocks` lists, for runs of pairs whose shells
// have the same l and number of primitives: the first pair, where the shells i and j of the run begin in `order`, the number of
// shells j, or 0 where both run over the same shells and each unordered pair is meant once, and 1 where these are the pairs (j, i) beside
// others (i, j), which are never of one shell.
extern "C" __global__ void pairs_count(const int* blocks, const int* order, const Shell* shells, const double* centers,
                                       const double* exponents, const double* coefficients, int* pairs, int* counts, int nblock, int npair) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= npair) return;
  int low = 0, high = nblock;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (blocks[5 * middle] <= t ? low : high) = middle;
  }
  const int* block = blocks + 5 * low;
  const long long k = t - block[0];
  long long row, column;
  if (block[3]) {
    row = k / block[3];
    column = k % block[3];
  } else {
    row = static_cast<long long>(0.5 * (sqrt(8.0 * k + 1.0) - 1.0));
    while (row * (row + 1) / 2 > k) --row;
    while ((row + 1) * (row + 2) / 2 <= k) ++row;
    column = k - row * (row + 1) / 2;
    row += block[4];
  }
  int i = order[block[1] + row], j = order[block[2] + column];
  Shell s = shells[i], u = shells[j];
  if (s.l == u.l && (i < j) != block[4]) {
    const int other = i;
    i = j;
    j = other;
    const Shell v = s;
    s = u;
    u = v;
  }
  const double r2 = square_distance(centers + 3 * i, centers + 3 * j), r = sqrt(r2);
  const bool compare = s.l == u.l && s.l > 0 && (s.l < HALVED || s.nprim * u.nprim == 1);
  double terms = 0.0, others = 0.0;
  int count = 0;
  for (int m = 0; m < s.nprim; ++m) {
    const double a = exponents[s.first + m], ca = coefficients[s.first + m];
    for (int n = 0; n < u.nprim; ++n) {
      const double b = exponents[u.first + n];
      const Product w = product(a, b, ca * coefficients[u.first + n], r2);
      count += belongs(s, u, i, j, a, b, r2) && size_of(w, a, b, r, s.l, u.l) > CUT;
      if (compare) {
        const double reach = r * b * w.inverse + w.width, other = r * a * w.inverse + w.width;
        terms += 5.0 * charge(w) * power(reach, s.l) * power(reach + r, s.l);
        others += 5.0 * charge(w) * power(other, s.l) * power(other + r, s.l);
      }
    }
  }
  const bool turned = terms > LARGEST_TERMS && others < terms;
  pairs[2 * t] = turned ? j : i;
  pairs[2 * t + 1] = turned ? i : j;
  counts[t] = count;
}

// Pairs in the order `order` of natural ones: thread k writes pair k. `bases` (tiles + 1): where the primitives of each tile begin.
// `keys` (capacity) is scratch: the sizes of the primitives, made different by their numbers.
extern "C" __global__ void pairs_fill(const int* order, const int* natural, const int* counts, const int* bases, const Shell* shells,
                                      const double* centers, const double* exponents, const double* coefficients, int* pairs, int* info,
                                      double* places, double* prims, uint64* keys, long long capacity, int npair) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x, tile = k / TILE;
  if (tile > (npair - 1) / TILE) return;
  const int base = bases[tile] + k % TILE, most = (bases[tile + 1] - bases[tile]) / TILE;
  double* const out = prims + base;
  int found = 0;
  double x = 0.0, y = 0.0, z = 0.0;
  if (k < npair) {
    const int i = natural[2 * order[k]], j = natural[2 * order[k] + 1], count = counts[k];
    const Shell s = shells[i], u = shells[j];
    const double *A = centers + 3 * i, *B = centers + 3 * j;
    x = A[0], y = A[1], z = A[2];
    pairs[2 * k] = i;
    pairs[2 * k + 1] = j;
    info[4 * k] = s.ao;
    info[4 * k + 1] = u.ao;
    info[4 * k + 2] = base;
    info[4 * k + 3] = count;
    double* const place = places + 6LL * k;
    place[0] = x, place[1] = y, place[2] = z;
    place[3] = x - B[0], place[4] = y - B[1], place[5] = z - B[2];

    const double r2 = square_distance(A, B), r = sqrt(r2);
    uint64 key = 0;
    // From the last: bases list diffuse primitives there, and of distant shells only these matter.
    for (int m = s.nprim - 1; m >= 0 && found < count; --m) {
      const double a = exponents[s.first + m], ca = coefficients[s.first + m];
      for (int n = u.nprim - 1; n >= 0 && found < count; --n) {
        const double b = exponents[u.first + n];
        const double size = size_of(product(a, b, ca * coefficients[u.first + n], r2), a, b, r, s.l, u.l);
        if (!(size > CUT && belongs(s, u, i, j, a, b, r2))) continue;
        key = (static_cast<uint64>(__double_as_longlong(size)) | SERIAL) - static_cast<uint64>(m * u.nprim + n);
        if (count > 1) keys[base + TILE * found] = key;
        ++found;
      }
    }
    // The place of a primitive is the number of larger ones. Sizes are read back, never made again: two ways to round would
    // give two primitives the same place.
    for (int q = 0; q < found; ++q) {
      int rank = 0;
      if (found > 1) {
        key = keys[base + TILE * q];
        for (int other = 0; other < found; ++other) rank += keys[base + TILE * other] > key;
      }
      const int serial = static_cast<int>(SERIAL - (key & SERIAL)), m = serial / u.nprim, n = serial % u.nprim;
      const double a = exponents[s.first + m], b = exponents[u.first + n];
      const Product w = product(a, b, coefficients[s.first + m] * coefficients[u.first + n], r2);
      double* const at = out + TILE * rank;
      at[0] = w.p;
      at[capacity] = (a * x + b * B[0]) * w.inverse;
      at[2 * capacity] = (a * y + b * B[1]) * w.inverse;
      at[3 * capacity] = (a * z + b * B[2]) * w.inverse;
      at[4 * capacity] = w.c * w.inverse;
      at[5 * capacity] = w.inverse;
      at[6 * capacity] = 2.0 * a;
    }
  }
  for (int q = found; q < most; ++q) {
    double* const at = out + TILE * q;
    at[0] = 1.0;
    at[capacity] = x;
    at[2 * capacity] = y;
    at[3 * capacity] = z;
    at[4 * capacity] = 0.0;
    at[5 * capacity] = 1.0;
    at[6 * capacity] = 0.0;
  }
}

// Where the pairs of each class and bucket begin among sorted keys, class << 40 | bucket << 32 | ....
extern "C" __global__ void pairs_groups(const uint64* keys, int* groups, int npair, int nclass, int nbucket) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= nclass * nbucket) return;
  const uint64 key = static_cast<uint64>(t / nbucket) << 40 | static_cast<uint64>(t % nbucket) << 32;
  int low = 0, high = npair;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  groups[t] = low;
}

// log max |D| of each block of shells (i, k) over all densities, at least -60. `offsets` (nshell + 1): first functions.
extern "C" __global__ void density_bounds(const double* density, const int* offsets, float* bounds, int sets, int nshell, int nao) {
  const long long t = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= static_cast<long long>(nshell) * nshell) return;
  const int i = static_cast<int>(t / nshell), k = static_cast<int>(t % nshell), end = offsets[k + 1];
  double most = 0.0;
  for (int set = 0; set < sets; ++set) {
    const double* const matrix = density + static_cast<long long>(set) * nao * nao;
    for (int row = offsets[i]; row < offsets[i + 1]; ++row) {
      for (int column = offsets[k]; column < end; ++column) most = fmax(most, fabs(matrix[static_cast<long long>(row) * nao + column]));
    }
  }
  bounds[t] = static_cast<float>(fmax(log(most), -60.0));
}

// Element (row, column) of a matrix whose blocks of shells are contiguous. `functions` lists, for each function, the first one of
// its shell and their number.
__device__ __forceinline__ double blocked_element(const double* matrix, const int2* functions, int row, int column, int nao) {
  const int2 s = functions[row], u = functions[column];
  return matrix[static_cast<long long>(s.x) * nao + u.x * s.y + (row - s.x) * u.y + column - u.x];
}

// dense = M + sign M^T for matrices M in blocks of shells. A block of 256 threads makes TILE x TILE elements.
extern "C" __global__ void unblock(const double* blocked, const int2* functions, double* dense, double sign, int nao) {
  __shared__ double turned[TILE][TILE + 1];
  const int tiles = (nao + TILE - 1) / TILE, first_row = blockIdx.x / tiles * TILE, first_column = blockIdx.x % tiles * TILE;
  const int lane = threadIdx.x % TILE, warp = threadIdx.x / TILE;
  const long long matrix = static_cast<long long>(blockIdx.y) * nao * nao;
  for (int k = warp; k < TILE; k += 8) {
    const int row = first_column + k, column = first_row + lane;
    if (row < nao && column < nao) turned[k][lane] = blocked_element(blocked + matrix, functions, row, column, nao);
  }
  __syncthreads();
  for (int k = warp; k < TILE; k += 8) {
    const int row = first_row + k, column = first_column + lane;
    if (row < nao && column < nao) {
      const double own = blocked_element(blocked + matrix, functions, row, column, nao);
      dense[matrix + static_cast<long long>(row) * nao + column] = own + sign * turned[lane][k];
    }
  }
}
