// Coulomb matrices from densities in Hermite Gaussians: J_tuv of primitive pairs (bra) in the field of all others (ket).
//
// A lane holds one bra with its sums in registers; all lanes of a warp read the same ket, and the warps of a block share their
// bras and divide the kets. Every sum has one owner and a fixed order: no atomics, the same result each time. Kets come sorted by
// the Coulomb norm of their charge. A block takes them in double precision until its largest bound times what is left of the
// norms is below `single`, then in single precision until that is below `cut`.
// Generated: kSets (densities), kAcc (components summed here), kHermite (components of the bra), NKETS, struct Ket0 ... (kOrder,
// kDegree and kDegree32 of the tables, kHermite, add), and put, which adds sums where they belong.
#include "eri_hermite_bodies.cuh"

constexpr int kRows = 16, kStride = 21, kStride32 = 11;  // of the tables; odd strides keep their rows in different banks
constexpr int kTile = 64;
constexpr int kSums = kAcc * kSets;

template <class T>
struct __align__(16) Group {
  T v[16 / sizeof(T)];
};

// 1 / sqrt(x): in double precision from an approximation of 20 bits and one step of third order.
static __device__ __forceinline__ double inverse_root(double x) {
#ifdef EMULATED
  return 1.0 / sqrt(x);
#else
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  const double e = 1.0 - x * y * y;
  return y + y * e * (0.5 + 0.375 * e);
#endif
}
static __device__ __forceinline__ float inverse_root(float x) {
#ifdef EMULATED
  return 1.0f / sqrtf(x);
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The nearest integer of x >= 0, as a number and as an index: added to 1.5 times 2^52 or 2^23, it is in the lowest bits.
static __device__ __forceinline__ double nearest(double x, int* index) {
  const double shifted = x + 6755399441055744.0;
  *index = __double2loint(shifted);
  return shifted - 6755399441055744.0;
}
static __device__ __forceinline__ float nearest(float x, int* index) {
  const float shifted = x + 12582912.0f;
  *index = static_cast<int>(__float_as_uint(shifted)) & 0x3fffff;
  return shifted - 12582912.0f;
}

// exp(-x), 0 <= x < 700.
static __device__ __forceinline__ double decay(double x) {
  int exponent;
  const double n = nearest(x * -1.4426950408889634074, &exponent), r = n * -0.69314718055994530942 - x;
  double e = 1.0 / 39916800.0;
  e = e * r + 1.0 / 3628800.0;
  e = e * r + 1.0 / 362880.0;
  e = e * r + 1.0 / 40320.0;
  e = e * r + 1.0 / 5040.0;
  e = e * r + 1.0 / 720.0;
  e = e * r + 1.0 / 120.0;
  e = e * r + 1.0 / 24.0;
  e = e * r + 1.0 / 6.0;
  e = e * r + 0.5;
  e = e * r + 1.0;
  e = e * r + 1.0;
  return __hiloint2double(__double2hiint(e) + (exponent << 20), __double2loint(e));
}
static __device__ __forceinline__ float decay(float x) {
#ifdef EMULATED
  return expf(-x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * -1.44269504f));
  return y;
#endif
}

// g_m = (-2 alpha)^m F_m(alpha r2) r, m = 0 .. N, with alpha r2 = t so large that the integral to infinity serves.
template <int N, class T>
static __device__ __forceinline__ void base_far(T alpha, T t, T r, T* g) {
  const T y = inverse_root(t), lower = -alpha * y * y;  // -1 / r2
  g[0] = T(0.88622692545275801365) * r * y;
#pragma unroll
  for (int m = 0; m < N; ++m) g[m + 1] = g[m] * lower * T(2 * m + 1);
}

// The same from a table of polynomials about multiples of a step, in which `scaled` is t.
template <int N, int DEGREE, int STRIDE, class T>
static __device__ __forceinline__ void base_near(T alpha, T r2, T t, T scaled, T r, const T* table, T* g) {
  int index;
  const T d = scaled - nearest(scaled, &index);
  const T* c = table + index * STRIDE;
  T f = c[DEGREE];
#pragma unroll
  for (int k = DEGREE - 1; k >= 0; --k) f = f * d + c[k];
  const T b = T(-2) * alpha;
  T power[N + 1];
  power[0] = r;
#pragma unroll
  for (int m = 1; m <= N; ++m) power[m] = power[m - 1] * b;
  g[N] = f * power[N];
  if constexpr (N > 0) {
    const T e = decay(t);
#pragma unroll
    for (int m = N - 1; m >= 0; --m) g[m] = (power[m] * e - r2 * g[m + 1]) * T(1.0 / (2 * m + 1));
  }
}

template <class Ket>
static __device__ __forceinline__ void base(double alpha, double r2, double r, const double* table, double* g) {
  constexpr double inverse_step = (kRows - 0.5) / (36 + 2 * Ket::kOrder);
  const double t = alpha * r2, scaled = t * inverse_step;
  if (scaled < kRows - 0.5) base_near<Ket::kOrder, Ket::kDegree, kStride>(alpha, r2, t, scaled, r, table, g);
  else base_far<Ket::kOrder>(alpha, t, r, g);
}
// In single precision the far form is cheap: without it only whole warps are worth a branch.
template <class Ket>
static __device__ __forceinline__ void base(float alpha, float r2, float r, const float* table, float* g) {
  constexpr float inverse_step = static_cast<float>((kRows - 0.5) / (18 + 2 * Ket::kOrder)), last = kRows - 0.5f;
  const float t = alpha * r2, scaled = t * inverse_step;
  base_far<Ket::kOrder>(alpha, t, r, g);
  const bool near = scaled < last;
  if (__ballot_sync(0xffffffffu, near)) {
    float value[Ket::kOrder + 1];
    base_near<Ket::kOrder, Ket::kDegree32, kStride32>(alpha, r2, t, min(scaled, last - 0.01f), r, table, value);
#pragma unroll
    for (int m = 0; m <= Ket::kOrder; ++m) g[m] = near ? value[m] : g[m];
  }
}

// In single precision a place is its rounded value and the rest: differences keep their relative accuracy.
struct Bra {
  double p, at[3];
  float p32, high[3], low[3];
  float most;  // of the exponents of all lanes
};

// Numbers of a row, in groups of 16 bytes: exponent, place (in single precision: high and low parts), densities.
template <class Ket, class T>
constexpr int kWidth = ((sizeof(T) == 8 ? 4 : 7) + Ket::kHermite * kSets + 16 / sizeof(T) - 1) / (16 / sizeof(T)) * (16 / sizeof(T));

template <class Ket>
static __device__ __forceinline__ void add_ket(double* acc, const Bra& bra, double range, const double* row, const double* table) {
  const double q = row[0], x = bra.at[0] - row[1], y = bra.at[1] - row[2], z = bra.at[2] - row[3];
  const double product = bra.p * q, r = inverse_root(product * range + (bra.p + q));
  double g[Ket::kOrder + 1];
  base<Ket>(product * r * r, x * x + y * y + z * z, r, table, g);
  Ket::add(acc, row + 4, g, x, y, z);
}
template <class Ket>
static __device__ __forceinline__ void add_ket(float* acc, const Bra& bra, double range, const float* row, const float* table) {
  const float q = row[0], x = (bra.high[0] - row[1]) + (bra.low[0] - row[4]), y = (bra.high[1] - row[2]) + (bra.low[1] - row[5]),
              z = (bra.high[2] - row[3]) + (bra.low[2] - row[6]);
  const float product = bra.p32 * q, r = inverse_root(product * static_cast<float>(range) + (bra.p32 + q));
  float g[Ket::kOrder + 1];
  base<Ket>(product * r * r, x * x + y * y + z * z, r, table, g);
  Ket::add(acc, row + 7, g, x, y, z);
}

// The first ket from which on all together are below `limit`, in whole tiles.
static __device__ __forceinline__ int reach(double bound, double limit, const double* __restrict__ tails, int count) {
  int low = 0, high = (count + kTile - 1) / kTile;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (bound * tails[middle] > limit) low = middle + 1;
    else high = middle;
  }
  return min(low * kTile, count);
}

// Adds every WARPS-th ket from first + warp to end.
template <class Ket, class T>
static __device__ __forceinline__ void sweep(T* acc, const Bra& bra, double range, const T* __restrict__ rows, int first, int end,
                                             const T* table) {
  constexpr int kNumbers = 16 / sizeof(T), width = kWidth<Ket, T>;
#pragma unroll 1
  for (int k = first + threadIdx.x / 32; k < end; k += WARPS) {
    const T* from = rows + static_cast<long long>(k) * width;
    if constexpr (width * sizeof(T) <= 128) {
      T row[width];
#pragma unroll
      for (int i = 0; i < width / kNumbers; ++i) {
        const Group<T> group = reinterpret_cast<const Group<T>*>(from)[i];
#pragma unroll
        for (int j = 0; j < kNumbers; ++j) row[i * kNumbers + j] = group.v[j];
      }
      add_ket<Ket>(acc, bra, range, row, table);
    } else {
      add_ket<Ket>(acc, bra, range, from, table);
    }
  }
}

// The largest exponent for which (2 alpha)^n, alpha below it, is within the range of single precision.
__device__ constexpr double most_exponent(int n) {
  double largest = 1e18;
  for (bool fits = false; !fits;) {
    double value = 1.0;
    for (int k = 0; k < n && value < 1e36; ++k) value *= 2.0 * largest;
    fits = value < 1e36;
    if (!fits) largest *= 0.5;
  }
  return largest;
}

struct Kets {
  const double* rows;
  const float* rows32;
  const double* tails;
  int count;
};
struct Tables {
  double* wide;
  float* narrow;
};

template <class Ket>
static __device__ __forceinline__ void visit(double* acc, const Bra& bra, double range, double bound, double single, double cut,
                                             const Kets& kets, const double* __restrict__ tables,
                                             const float* __restrict__ tables32, const Tables& shared) {
  // All this is the same in all warps of a block.
  constexpr double limit = most_exponent(Ket::kOrder);
  const int end = reach(bound, cut, kets.tails, kets.count);
  const int turn = bra.most < limit ? min(reach(bound, single, kets.tails, kets.count), end) : end;
  if (end == 0) return;
  __syncthreads();
  for (int k = threadIdx.x; k < kRows * kStride; k += 32 * WARPS) shared.wide[k] = tables[Ket::kOrder * kRows * kStride + k];
  for (int k = threadIdx.x; k < kRows * kStride32; k += 32 * WARPS) {
    shared.narrow[k] = tables32[Ket::kOrder * kRows * kStride32 + k];
  }
  __syncthreads();
  sweep<Ket>(acc, bra, range, kets.rows, 0, turn, shared.wide);
  for (int first = turn; first < end; first += kTile * WARPS) {
    float part[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) part[i] = 0.0f;
    sweep<Ket>(part, bra, range, kets.rows32, first, min(first + kTile * WARPS, end), shared.narrow);
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[i] += part[i];
  }
}

// order: the bras, nbra of them, large bounds first; bounds and centres (p, Px, Py, Pz) lie in their own order, as `out` does.
// range: 1 / omega^2 of the attenuated operator, else 0. Of all groups of 32 bras, every parts-th one from *part on is done.
extern "C" __global__ void __launch_bounds__(32 * WARPS, MINB)
    hermite_coulomb(const int* __restrict__ order, const float* __restrict__ bounds, const double* __restrict__ centres, int nbra,
                    const int* __restrict__ part, int parts, double range, double single, double cut, const double* __restrict__ tables, const float* __restrict__ tables32,
                    const double* rows0, const float* single0, const double* tails0, int count0,
                    const double* rows1, const float* single1, const double* tails1, int count1,
                    const double* rows2, const float* single2, const double* tails2, int count2,
                    const double* rows3, const float* single3, const double* tails3, int count3,
                    const double* rows4, const float* single4, const double* tails4, int count4, double* out) {
  __shared__ double table[kRows * kStride];
  __shared__ float table32[kRows * kStride32];
  __shared__ double sums[kSums][32];
  const Tables shared = {table, table32};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = (blockIdx.x * parts + *part) * 32 + lane;
  if (place - lane >= nbra) return;
  const int index = order[min(place, nbra - 1)];
  const double* centre = centres + 4ll * index;
  Bra bra;
  bra.p = centre[0];
  bra.p32 = static_cast<float>(bra.p);
  for (int d = 0; d < 3; ++d) {
    bra.at[d] = centre[1 + d];
    bra.high[d] = static_cast<float>(bra.at[d]);
    bra.low[d] = static_cast<float>(bra.at[d] - bra.high[d]);
  }
  bra.most = bra.p32;
  float largest = place < nbra ? bounds[index] : 0.0f;
  for (int step = 16; step > 0; step /= 2) {
    bra.most = max(bra.most, __shfl_xor_sync(0xffffffffu, bra.most, step));
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  double acc[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) acc[i] = 0.0;
#define VISIT(k) visit<Ket##k>(acc, bra, range, largest, single, cut, {rows##k, single##k, tails##k, count##k}, tables, tables32, shared)
  VISIT(0);
#if NKETS > 1
  VISIT(1);
#endif
#if NKETS > 2
  VISIT(2);
#endif
#if NKETS > 3
  VISIT(3);
#endif
#if NKETS > 4
  VISIT(4);
#endif
  for (int w = 1; w < WARPS; ++w) {
    __syncthreads();
    if (warp == w) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i][lane] = acc[i];
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) acc[i] += sums[i][lane];
    }
  }
  if (warp == 0 && place < nbra) put(acc, out + static_cast<long long>(index) * (kHermite * kSets));
}
