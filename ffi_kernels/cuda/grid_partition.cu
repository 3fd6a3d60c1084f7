// Shares of space of atoms at grid points (Becke; Stratmann, Scuseria and Frisch), and their pullback to nuclei and points.
//
// A warp takes 32 points that are neighbours in space, a lane each, and all lanes look at the same pair of atoms: nothing is summed
// over lanes but what ends at nuclei. Bounds over the ball around the points leave the few atoms i that can have a share. Products
// over the nearest partners j leave fewer; how large they are says how far partners matter to each, because the tail of Becke's step
// falls with the eighth power of the distance. Candidates have a column of shared memory each; where there are more of them than columns,
// those whose products are complete make room. What belongs to pairs of atoms is staged there for 8 partners at a time. The code is
// kept short, as all of it runs in turn and has to stay in the instruction cache.
//
// Shares that are to be differentiated leave behind what their pullback needs of the products: of each warp, in a header, where its
// columns are (-1: nowhere, so that they have to be made again), their number, their atoms, and the shares of its points; and the
// columns, d f / d log P_i of atoms i, wherever there was place.
// Macros: SCHEME 0 Becke, 1 Stratmann; REVERSE 0 fractions, 1 pullback; BLOCKS of 128 threads a multiprocessor.
#define NEAR 16           // partners that bound a product,
#define BATCH 16          // candidates that a warp holds at once
#define STAGE 8           // partners whose pairs it holds
#define NEGLIGIBLE 1e-20  // share of the point's own atom that counts as none
#define UNSEEN 1e-14      // product, against the largest over the nearest partners, of a candidate that changes nothing
// Change of a share, in its own units and in those of the largest of the warp, that a partner may have and still be left out.
#define SMALL_FACTOR (REVERSE ? 1e-12f : 1e-14f)
#define SMALL_OWN 0.1f  // the least that a point's own atom counts, so that small shares keep their precision
// Derivatives that are left out: of a partner, and weights of candidates; against the largest |cotangent * share| of the warp, or
// against LEAST_OF_MEAN of the mean |cotangent| of all points, where this is more.
#define SMALL_SLOPE 1e-11f
// Partners whose u is less than SINGLE times that of those left out, and than SINGLE_MOST, are differentiated in single precision, which
// is off by 1e-6 of SMALL_SLOPE times SINGLE^7 at most.
#define SINGLE (SCHEME ? 0.0f : 8.0f)
#define SINGLE_MOST 0.5f
#define SMALL_WEIGHT 1e-13f
#define LEAST_OF_MEAN 0.1
#define SMALL_COLUMN 1e-14  // complete products, and d f / d log P_i, that derivatives do without
#define HEADER 40

// The steps s(t) of N numbers t from 0 to 2, side by side for the latency.
template <int N, class T>
__device__ __forceinline__ void steps(T* t) {
#if SCHEME == 0
#pragma unroll
  for (int i = 0; i < 3; i++) {
    T h[N];
#pragma unroll
    for (int u = 0; u < N; u++) h[u] = i < 2 ? T(1.5) - T(0.5) * t[u] : T(0.75) - T(0.25) * t[u];
#pragma unroll
    for (int u = 0; u < N; u++) t[u] *= t[u];
#pragma unroll
    for (int u = 0; u < N; u++) t[u] *= h[u];
  }
#else
#pragma unroll
  for (int u = 0; u < N; u++) {
    const T v = T(1) + (t[u] - T(1)) * T(1.0 / 0.64), near = max(v > T(1) ? T(2) - v : v, T(0)), square = near * near;
    const T below = T(1.09375) * square * square * (T(2) + near * (T(-2.4) + near * (T(1) - near * T(1.0 / 7.0))));
    t[u] = v > T(1) ? T(1) - below : below;
  }
#endif
}

template <class T>
__device__ __forceinline__ T step(T t) {
  steps<1>(&t);
  return t;
}

__device__ __forceinline__ double reciprocal(double v) {
#ifdef EMULATED
  return 1.0 / v;
#else
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
  const double e = fma(-v, y, 1.0);
  return fma(y, fma(e, e, e), y);
#endif
}

// 1 / sqrt(v) for v that are no smaller than 1e-290.
__device__ __forceinline__ double inverse_root(double v) {
#ifdef EMULATED
  return 1.0 / sqrt(v);
#else
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
  const double e = fma(-v * y, y, 1.0);
  return fma(y * e, fma(0.375, e, 0.5), y);
#endif
}

// d log s / dt of N numbers t, in their place.
template <int N>
__device__ __forceinline__ void log_slopes(double* t) {
#if SCHEME == 0
  // With T(t) = t^2 h(t), h = (3 - t) / 2: d log T / d log t = 3 (2 - t) / (2 h), and three of these make up s.
  double above[N], below[N];
#pragma unroll
  for (int u = 0; u < N; u++) {
    above[u] = 3.375;
    // Rounding can make t negative, or 0 here and not where products were made, which fall with its eighth power and are
    // nothing where this is no longer small against t.
    below[u] = fabs(t[u]) + 1e-15;
  }
#pragma unroll
  for (int i = 0; i < 3; i++) {
    double h[N];
#pragma unroll
    for (int u = 0; u < N; u++) h[u] = 1.5 - 0.5 * t[u];
#pragma unroll
    for (int u = 0; u < N; u++) above[u] *= 2.0 - t[u];
#pragma unroll
    for (int u = 0; u < N; u++) below[u] *= h[u];
#pragma unroll
    for (int u = 0; u < N; u++) t[u] *= t[u] * h[u];
  }
#pragma unroll
  for (int u = 0; u < N; u++) t[u] = above[u] * reciprocal(below[u]);
#else
#pragma unroll
  for (int u = 0; u < N; u++) {
    const double value = step(t[u]), v = 1.0 + (t[u] - 1.0) * (1.0 / 0.64), near = fmax(v * (2.0 - v), 0.0);
    t[u] = value > 1e-290 ? (1.09375 / 0.64) * near * near * near * reciprocal(value) : 0.0;
  }
#endif
}

template <class T>
__device__ __forceinline__ T sum_of_warp(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

template <class T>
__device__ __forceinline__ T least_of_warp(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const T other = __shfl_xor_sync(0xffffffffu, v, o);
    v = other < v ? other : v;
  }
  return v;
}

// Sums of four numbers over the warp: lane l gets that of number l / 8.
__device__ __forceinline__ double sums_of_warp(const double* v, int lane) {
  const bool high = lane & 16, odd = lane & 8;
  double a = high ? v[2] : v[0], b = high ? v[3] : v[1];
  a += __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 16);
  b += __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 16);
  double sum = odd ? b : a;
  sum += __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
  for (int o = 4; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  return sum;
}

// A warp: its lane's point, and where in shared memory it keeps what.
struct Patch {
  const double* coords;
  const double2* pairs;
  double X, Y, Z;
  float radius;  // of the ball around the points
  int base, natm, nears, lane;

  static constexpr int COLUMNS = REVERSE ? 3 : 2;
  static __device__ __forceinline__ int size(int natm) {
    return (COLUMNS * 32 + 2 * STAGE + 3 * REVERSE) * BATCH + 32 * STAGE + 48 * REVERSE + BATCH / 2 + NEAR + (3 * natm + 3) / 4;
  }
  __device__ __forceinline__ double* memory() const {
    extern __shared__ double shared[];
    return shared + base;
  }
  // [candidate][STAGE] 1 / |R_i - R_j| and shift of pairs
  __device__ __forceinline__ double2* stage() const { return reinterpret_cast<double2*>(memory()); }
  // [candidate][lane] distances; products, and then what they weigh; derivatives with respect to the distances
  __device__ __forceinline__ double* column(int which) const { return memory() + (2 * STAGE + 32 * which) * BATCH + lane; }
  // [candidate][3] sums for the nuclei
  __device__ __forceinline__ double* drawn() const { return memory() + (2 * STAGE + 32 * COLUMNS) * BATCH; }
  // [STAGE][lane] distances of the partners
  __device__ __forceinline__ double* lengths() const { return drawn() + 3 * REVERSE * BATCH + lane; }
  // [4 partners][4 parts][3] sums for the partners
  __device__ __forceinline__ double* drawn_partners() const { return lengths() - lane + 32 * STAGE; }
  // [candidate] atoms
  __device__ __forceinline__ int* atoms() const { return reinterpret_cast<int*>(drawn_partners() + 48 * REVERSE); }
  // [NEAR] the nearest atoms, and how far they are at most
  __device__ __forceinline__ int* near() const { return atoms() + BATCH; }
  __device__ __forceinline__ float* reach() const { return reinterpret_cast<float*>(near() + NEAR); }
  // [natm] distances from the centre, positive, of the nearest atoms negative, odd bits of atoms that own a point; all candidates
  __device__ __forceinline__ float* off() const { return reach() + NEAR; }
  __device__ __forceinline__ short* list() const { return reinterpret_cast<short*>(off() + natm); }
};
constexpr float NONE = 3e38f;

// The vector from atom j to the point of the lane.
struct Arm {
  double x, y, z;
};
__device__ __forceinline__ Arm arm_of(const Patch& w, int j) {
  return {w.X - __ldg(w.coords + 3 * j), w.Y - __ldg(w.coords + 3 * j + 1), w.Z - __ldg(w.coords + 3 * j + 2)};
}
__device__ __forceinline__ double square_of(const Arm& arm) { return arm.x * arm.x + arm.y * arm.y + arm.z * arm.z; }
// 1e145 where there is no length.
__device__ __forceinline__ double inverse_length_of(const Arm& arm) { return inverse_root(square_of(arm) + 1e-290); }
__device__ __forceinline__ double length_of(const Arm& arm) { return square_of(arm) * inverse_length_of(arm); }

__device__ __forceinline__ float power(float v, float exponent) { return exp2f(exponent * log2f(v)); }

// The step of an atom for a partner whose pair with it is given, from the bound mu.
__device__ __forceinline__ float bound_of(const double2& pair, float mu) {
  return step(fminf(fmaxf((1.0f - mu) * (1.0f + static_cast<float>(pair.y) * (1.0f + mu)), 0.0f), 2.0f));
}

// A bound of 1 + mu_ij over the ball, from the distances of its centre. |grad (r_i - r_j)| is at most 2, and at most
// sqrt(2 (1 + mu) |R_i - R_j|^2 / (r_i r_j)), so that sqrt(1 + mu) changes by at most 1 / sqrt(2 r_i r_j) along a path.
__device__ __forceinline__ float largest_of(float ri, float rj, float inverse, float radius) {
  const float centre = 1.0f + (ri - rj + 1e-3f) * inverse, u = centre + 2.0f * radius * inverse;
  const float least_i = ri - radius, least_j = rj - radius;
  if (!(least_i > 0.0f && least_j > 0.0f)) return u;
  const float safe = fmaxf(centre, 1e-12f), root = safe * rsqrtf(safe) + radius * rsqrtf(2.0f * least_i * least_j);
  return fminf(u, 1.0001f * root * root);
}

// Calls visit(first partner, votes, votes for single precision, which of the partners any candidate has) for 8 partners at a time, with their pairs in `stage` and
// their distances in `lengths`: of the nearest partners, of all others, or of all. Bit 8 (k % 4) + l of votes k / 4 says whether
// candidate k has partner l: pairs with u = 1 + nu below `cut` all over the ball, of candidate k in lane k, are left out. What is staged
// for other pairs makes the step 1.
enum Partners { NEAREST, DISTANT, ALL };
template <class Visit>
__device__ __forceinline__ void sweep(const Patch& w, unsigned live, float cut, Partners which, const Visit& visit) {
  const int lane = w.lane, count = which == NEAREST ? w.nears : w.natm;
  double2* stage = w.stage();
  const float* off = w.off();
  const int* atoms = w.atoms();
  const auto partner = [&](int index) { return which == NEAREST ? w.near()[index] : which == ALL || w.off()[index] > 0.0f ? index : -1; };
#pragma unroll 1
  for (int base = 0; base < count; base += STAGE) {
    const int index = base + (lane & 7), j = index < count ? partner(index) : -1;
    double2 loaded[BATCH / 4];
    unsigned votes[BATCH / 4], single[BATCH / 4], met_by = 0;  // met_by: partners that any candidate has
#pragma unroll
    for (int round = 0; round < BATCH / 4; round++) {
      const int k = 4 * round + (lane >> 3);
      loaded[round] = {0.0, -1.0};
      if ((live >> k) & 1 && j >= 0) loaded[round] = __ldg(w.pairs + static_cast<long long>(atoms[k]) * w.natm + j);
    }
    const float off_j = fabsf(off[j < 0 ? 0 : j]);
    __syncwarp();  // pairs of the last round have been read
#pragma unroll
    for (int round = 0; round < BATCH / 4; round++) {
      votes[round] = single[round] = 0;
      if (!((live >> 4 * round) & 15)) continue;
      const int k = 4 * round + (lane >> 3);
      bool met = loaded[round].x > 0.0, roughly = false;
      if (which != NEAREST) {
        const float limit = __shfl_sync(0xffffffffu, cut, k);
        const float inverse = static_cast<float>(loaded[round].x), shift = static_cast<float>(loaded[round].y);
        const float u = largest_of(met ? fabsf(off[atoms[k]]) : 1.0f, off_j, inverse, w.radius) * (1.0f + 2.0f * fmaxf(shift, 0.0f));
        // Derivatives have another factor of 1 / |R_i - R_j|.
        const float least = which == ALL && !SCHEME ? limit * power(inverse, -1.0f / 7.0f) : limit;
        met = met && !(inverse < 1.0f && u < least);
        roughly = which == ALL && met && u < fminf(SINGLE * least, SINGLE_MOST);
      }
      if (which != ALL && !met && loaded[round].x > 0.0) loaded[round] = {0.0, -1.0};
      stage[STAGE * k + (lane & 7)] = loaded[round];
      votes[round] = __ballot_sync(0xffffffffu, loaded[round].x > 0.0 ? met : loaded[round].y != -1.0);
      met_by |= votes[round];
      if (which == ALL) {
        single[round] = __ballot_sync(0xffffffffu, roughly);
        votes[round] &= ~single[round];
      }
    }
    __syncwarp();
    met_by |= met_by >> 16;
    met_by = (met_by | met_by >> 8) & ((1u << STAGE) - 1);
    double* lengths = w.lengths();
#pragma unroll 1
    for (int l = 0; l < STAGE; l += 4) {
      if (!((met_by >> l) & 15)) continue;
#pragma unroll
      for (int u = l; u < l + 4; u++) lengths[32 * u] = length_of(arm_of(w, __shfl_sync(0xffffffffu, max(j, 0), u)));
    }
    visit(base, votes, single, met_by);
  }
}

// The first bit of the mask, which loses it; `other` where there is none.
__device__ __forceinline__ int next_of(unsigned& mask, int other) {
  const int k = mask ? __ffs(static_cast<int>(mask)) - 1 : other;
  mask &= mask - 1;
  return k;
}

// Multiplies N products, of candidates that follow each other at distances r, with their steps for 4 / N partners.
template <int N>
__device__ __forceinline__ void times_steps(const double2* pairs, const double* lengths, const double* r, double* product) {
  double t[4];
#pragma unroll
  for (int u = 0; u < 4; u++) {
    const int k = u % N, l = u / N;
    const double2 p = pairs[STAGE * k + l];
    const double mu = (r[k] - lengths[32 * l]) * p.x;
    t[u] = (1.0 - mu) * (1.0 - p.y * (1.0 + mu));
  }
  steps<4>(t);
#pragma unroll
  for (int u = 0; u < 4; u++) product[u % N] *= t[u];
}

// The same for those of 8 partners that are in the mask; r, product: columns.
template <int N>
__device__ __forceinline__ void times_all(unsigned mask, const double2* pairs, const double* lengths, const double* r, double* product) {
  double at[N], value[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    at[k] = r[32 * k];
    value[k] = product[32 * k];
  }
#pragma unroll 1
  for (int l = 0; l < STAGE; l += 4 / N) {
    if (mask >> l & (N == 4 ? 0x01010101u : 0x03030303u)) times_steps<N>(pairs + l, lengths + 32 * l, at, value);
  }
#pragma unroll
  for (int k = 0; k < N; k++) product[32 * k] = value[k];
}

// Products of the candidates in `live`, which follow each other, over the nearest partners, with their distances; or, of any, over the
// others.
__device__ __noinline__ void multiply(Patch w, unsigned live, float cut, Partners which) {
  double *r = w.column(0), *product = w.column(1);
  if (which == NEAREST) {
    const int first = __ffs(static_cast<int>(live)) - 1, end = first + __popc(live);
#pragma unroll 4
    for (int k = first; k < end; k++) {
      r[32 * k] = length_of(arm_of(w, w.atoms()[k]));
      product[32 * k] = 1.0;
    }
  }
  const auto visit = [&](int, const unsigned* votes, const unsigned*, unsigned) {
#pragma unroll 1
    for (int k = 0; live >> k; k += 4) {
      const unsigned mask = k & 8 ? k & 4 ? votes[3] : votes[2] : k & 4 ? votes[1] : votes[0];
      if (!mask) continue;
      if (live >> k & 12) {
        times_all<4>(mask, w.stage() + STAGE * k, w.lengths(), r + 32 * k, product + 32 * k);
      } else {
        times_all<2>(mask, w.stage() + STAGE * k, w.lengths(), r + 32 * k, product + 32 * k);
      }
    }
  };
  sweep(w, live, cut, which, visit);
}

// Derivatives of N weights with respect to the distances of their candidates, added to `rate`, of the partner, taken from `push`, and
// to the distances between the two.
template <int N>
__device__ __forceinline__ void slopes(unsigned& mask, const double2* pair, double length, const double* r, const double* weight,
                                       double* rate, double& push, int* k, double* along) {
  double mu[N], slope[N], factor[N];
#pragma unroll
  for (int u = 0; u < N; u++) {
    k[u] = next_of(mask, -1);
    const int safe = k[u] < 0 ? k[0] : k[u];
    const double2 p = pair[STAGE * safe];
    mu[u] = (r[32 * safe] - length) * p.x;
    slope[u] = (1.0 - mu[u]) * (1.0 - p.y * (1.0 + mu[u]));
    factor[u] = weight[32 * safe] * p.x * (2.0 * p.y * mu[u] - 1.0);
    mu[u] *= p.x;
  }
  log_slopes<N>(slope);
#pragma unroll
  for (int u = 0; u < N; u++) {
    slope[u] *= factor[u];
    // |R_i - R_j| changes along (R_i - R_j) / |R_i - R_j|.
    along[u] = slope[u] * mu[u];
    push -= k[u] < 0 ? 0.0 : slope[u];
    slope[u] += rate[32 * (k[u] < 0 ? k[0] : k[u])];
  }
#pragma unroll
  for (int u = 0; u < N; u++) rate[32 * (k[u] < 0 ? k[0] : k[u])] = slope[u];
}

// The same in single precision, for four partners with small u = 1 + nu: s(2 - u) is 1 - s(u).
__device__ __forceinline__ void single_slopes(unsigned& mask, const double2* pair, double length, const double* r, const double* weight,
                                              double* rate, double& push, int* k, double* along) {
  float u[4], slope[4], shorter[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    k[i] = next_of(mask, -1);
    const int safe = k[i] < 0 ? k[0] : k[i];
    const double2 p = pair[STAGE * safe];
    const float inverse = static_cast<float>(p.x), shift = static_cast<float>(p.y);
    const float v = static_cast<float>(1.0 + (r[32 * safe] - length) * p.x), twice = 1.0f + 2.0f * shift;
    u[i] = v * (twice - shift * v);
    slope[i] = -1.6875f * static_cast<float>(weight[32 * safe]) * inverse * (twice - 2.0f * shift * v);
    shorter[i] = (v - 1.0f) * inverse;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) slope[i] *= u[i] * (2.0f - u[i]);
#pragma unroll
  for (int turn = 0; turn < 2; turn++) {
#pragma unroll
    for (int i = 0; i < 4; i++) u[i] *= u[i] * (1.5f - 0.5f * u[i]);
#pragma unroll
    for (int i = 0; i < 4; i++) slope[i] *= u[i] * (2.0f - u[i]);
  }
  float pushed = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float rest = u[i] * u[i] * (0.75f - 0.25f * u[i]);  // 1 / (1 - rest) is this product but for rest^4
    slope[i] *= (1.0f + rest) * (1.0f + rest * rest);
    pushed += k[i] < 0 ? 0.0f : slope[i];
    along[i] = slope[i] * shorter[i];
  }
  push -= pushed;
  double sum[4];
#pragma unroll
  for (int i = 0; i < 4; i++) sum[i] = rate[32 * (k[i] < 0 ? k[0] : k[i])] + slope[i];
#pragma unroll
  for (int i = 0; i < 4; i++) rate[32 * (k[i] < 0 ? k[0] : k[i])] = sum[i];
}

// Which candidates have partner l, from the votes of `sweep`.
__device__ __forceinline__ unsigned candidates_of(const unsigned* votes, int l) {
  unsigned mask = 0;
#pragma unroll
  for (int round = 0; round < BATCH / 4; round++) {
    // Bits 0, 8, 16 and 24 side by side.
    mask |= ((((votes[round] >> l) & 0x01010101u) * 0x01020408u) >> 24 & 15u) << (4 * round);
  }
  return mask;
}

// pairs (natm, natm): 1 / |R_i - R_j| (0 for one place) and the shift a_ij; (0, -1), which makes the step 1, on the diagonal.
// mean: of |cotangent| over all points. headers, columns: what shares leave behind (headers null: nothing); `taken` of the places for
// columns are.
extern "C" __global__ __launch_bounds__(128, BLOCKS) void grid_partition(const double* coords, const double* points, const int* owner,
                                                                         const double2* pairs, const double* cotangent,
                                                                         const double* mean, double* headers, double* columns,
                                                                         unsigned long long* taken, double* fraction, double* centers,
                                                                         double* moved, int natm, long long n, long long places) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  Patch w = {coords, pairs};
  w.base = warp * ((Patch::size(natm) + 1) & ~1);
  w.natm = natm;
  w.lane = lane;
  double *r = w.column(0), *product = w.column(1);
  int* near = w.near();
  float *reach = w.reach(), *off = w.off();
  int* atoms = w.atoms();
  short* list = w.list();
#if REVERSE
  double *rate = w.column(2), *drawn = w.drawn();
#endif
  const long long first = (static_cast<long long>(blockIdx.x) * warps + warp) * 32;
  if (first >= n) return;
  const bool used = first + lane < n;
  const long long point = used ? first + lane : n - 1;
  const double X = w.X = points[3 * point], Y = w.Y = points[3 * point + 1], Z = w.Z = points[3 * point + 2];
  const int own = owner[point];
#if REVERSE
  const double seed = used ? cotangent[point] : 0.0;
  if (!__any_sync(0xffffffffu, seed != 0.0)) {
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (used) moved[3 * point + k] = 0.0;
    }
    return;
  }
#endif
  // The ball; single precision, and the radius makes up for it.
  const double cx = sum_of_warp(X) * (1.0 / 32.0), cy = sum_of_warp(Y) * (1.0 / 32.0), cz = sum_of_warp(Z) * (1.0 / 32.0);
  const auto from_centre = [&](double x, double y, double z) {
    const float dx = static_cast<float>(x - cx), dy = static_cast<float>(y - cy), dz = static_cast<float>(z - cz);
    const float square = dx * dx + dy * dy + dz * dz;
    return square * rsqrtf(fmaxf(square, 1e-30f));
  };
  const float radius = -least_of_warp(-1.00001f * from_centre(X, Y, Z)) + 1e-3f;
  w.radius = radius;
  __syncwarp();
  float best = NONE;
  int which = 0;
#pragma unroll 1
  for (int j = lane; j < natm; j += 32) {
    const float d = from_centre(__ldg(coords + 3 * j), __ldg(coords + 3 * j + 1), __ldg(coords + 3 * j + 2)) + 1e-9f;
    off[j] = __uint_as_float(__float_as_uint(d) & ~1u);
    if (d < best) {
      best = d;
      which = j;
    }
  }
  __syncwarp();
  off[own] = __uint_as_float(__float_as_uint(off[own]) | 1u);
  __syncwarp();
  // The products of candidates in columns: over the nearest partners at first, and then complete.
  double total = 0.0, owned = 0.0, reference = 0.0;  // reference: the largest over the nearest partners among the nearest atoms
  int candidates = 0, held = 0, nears = 0;
  bool ready = false;  // are the columns those of all candidates that matter?
  double* header = headers + (first >> 5) * HEADER;
  short* left = reinterpret_cast<short*>(header + 2);
#if REVERSE
  double factor = 0.0, base = 0.0, at_point[3] = {};
  const long long from = __double_as_longlong(header[0]);
  const bool stored = from >= 0;
  if (stored) {
    ready = true;
    held = static_cast<int>(__double_as_longlong(header[1]));
    factor = seed * header[8 + lane];
    if (lane < held) atoms[lane] = left[lane];
    __syncwarp();
#pragma unroll 4
    for (int k = 0; k < held; k++) {
      r[32 * k] = length_of(arm_of(w, atoms[k]));
      product[32 * k] = seed * columns[32 * (from + k) + lane];
    }
  }
  const auto sum_up = [&](double h, const Arm& arm) {
    const double along[4] = {h * arm.x, h * arm.y, h * arm.z, 0.0};
#pragma unroll
    for (int k = 0; k < 3; k++) at_point[k] += along[k];
    return __shfl_sync(0xffffffffu, sums_of_warp(along, lane), 8 * lane);  // lanes 0 to 2
  };
#endif
  // Whether the product of atom i can matter at a point of the ball where the largest is `largest`.
  const auto can_matter = [&](int i, float largest) {
    const bool owns = __float_as_uint(off[i]) & 1;
    const float enough = fmaxf(static_cast<float>(owns ? 0.01 * NEGLIGIBLE : UNSEEN) * largest, 1e-37f);
    const float nearest = fmaxf(fabsf(off[i]) - radius, 0.0f);
    float bound = 1.0f;
#pragma unroll 1
    for (int first_m = 0; first_m < nears && !(bound < enough); first_m += 4) {
      double2 pair[4];  // of partners with i: shifts are reversed
#pragma unroll
      for (int u = 0; u < 4; u++) pair[u] = __ldg(pairs + static_cast<long long>(near[min(first_m + u, nears - 1)]) * natm + i);
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const int m = first_m + u;
        if (m >= nears || near[m] == i) continue;
        bound *= bound_of(pair[u], fmaxf((nearest - reach[m]) * static_cast<float>(pair[u].x), -1.0f));
      }
    }
    return !(bound < enough);
  };
  // Appends atoms to the candidates.
  const auto append = [&](bool reaches, int i) {
    const unsigned votes = __ballot_sync(0xffffffffu, reaches);
    if (reaches) list[candidates + __popc(votes & ((1u << lane) - 1))] = static_cast<short>(i);
    candidates += __popc(votes);
  };
  // Leaves out columns from `begin` on where all products are less than `least`, of points' own atoms `least_of_own`; returns the end
  // of the others.
  const auto keep = [&](int begin, double least, double least_of_own) {
    int end = begin;
#pragma unroll 1
    for (int k = begin; k < held; k++) {
      const int i = atoms[k];
      const double limit = (i == own ? least_of_own : least) * reference;
      if (!__any_sync(0xffffffffu, !(product[32 * k] < limit))) continue;
      if (end < k) {
        if (lane == 0) atoms[end] = i;
        r[32 * end] = r[32 * k];
        product[32 * end] = product[32 * k];
      }
      end++;
    }
    __syncwarp();
    return end;
  };
  if (!ready) {
    // The nearest atoms.
#pragma unroll 1
    for (; nears < NEAR; nears++) {
      const float least = least_of_warp(best);
      if (!(least < NONE)) break;
      const int winner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best == least))) - 1;
      if (lane == winner) {
        near[nears] = which;
        reach[nears] = best + radius;
        off[which] = -off[which];
        best = NONE;
#pragma unroll 1
        for (int j = lane; j < natm; j += 32) {
          if (off[j] > 0.0f && off[j] < best) {
            best = off[j];
            which = j;
          }
        }
      }
    }
    __syncwarp();
    w.nears = nears;
    const int mine = lane < nears ? near[lane] : 0;
    // The product of the nearest atom over the others is at least this.
    float largest = 1.0f;
    if (lane > 0 && lane < nears) {
      const double2 pair = __ldg(pairs + static_cast<long long>(mine) * natm + near[0]);
      largest = bound_of(pair, fminf((reach[0] - reach[lane] + 2.0f * radius) * static_cast<float>(pair.x), 1.0f));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) largest *= __shfl_xor_sync(0xffffffffu, largest, o);
    append(lane < nears && can_matter(mine, largest), mine);
  }
  // d f = f (d log P_own - sum_i f_i d log P_i)
  const auto column = [&](int i, double value, double share) {
    const double part = value * reciprocal(total);
    return part == 0.0 ? 0.0 : share * ((i == own ? 1.0 : 0.0) - part);
  };
#pragma unroll 1
  for (int pass = ready; pass <= REVERSE; pass++) {
#if REVERSE
    if (pass == 1) base = reciprocal(fmax(-least_of_warp(-fabs(factor)), LEAST_OF_MEAN * __ldg(mean)));
#endif
    bool room = true;
    if (!ready) held = 0;
    int next = 0, complete = 0;
    do {
      if (!ready) {
#pragma unroll 1
        while (next < candidates && held < BATCH) {
          const int begin = held, count = min(BATCH - held, candidates - next);
          const bool start = pass == 0 && next == 0;
          __syncwarp();
          if (lane < count) atoms[begin + lane] = list[next + lane];
          __syncwarp();
          held += count;
          next += count;
          multiply(w, (1u << held) - (1u << begin), 0.0f, NEAREST);
          if (start) {
#pragma unroll 1
            for (int k = 0; k < held; k++) reference = product[32 * k] < reference ? reference : product[32 * k];
          }
          held = keep(begin, UNSEEN, 0.01 * NEGLIGIBLE);
          if (start) {
            const float largest = static_cast<float>(least_of_warp(reference));
#pragma unroll 1
            for (int i = lane; i - lane < natm; i += 32) append(i < natm && off[i] > 0.0f && can_matter(i, largest), i);
            __syncwarp();
          }
        }
        float cut = 0.0f;
        const double scale = reciprocal(reference);
#pragma unroll 1
        for (int k = complete; k < held; k++) {
          // A partner leaves out at most 8.6 u^8, u = (1 + mu) (1 + 2 a); with Stratmann's step nothing where u < 0.36.
          const float part = fmaxf(static_cast<float>(product[32 * k] * scale), atoms[k] == own ? SMALL_OWN : 0.0f);
          const float limit = least_of_warp(SCHEME ? 0.36f : power(SMALL_FACTOR / (8.6f * part + 1e-30f), 0.125f));
          if (lane == k) cut = limit;
        }
        multiply(w, (1u << held) - (1u << complete), cut, DISTANT);
        if (pass == 0) {
#pragma unroll 1
          for (int k = complete; k < held; k++) {
            total += product[32 * k];
            if (atoms[k] == own) owned = product[32 * k];
          }
        }
        held = complete = keep(complete, SMALL_COLUMN, SMALL_COLUMN);
        if (next < candidates) {
          if (held < BATCH) continue;
          if (pass == 0) {
            room = false;
            held = complete = 0;
            continue;
          }
        }
      }
#if REVERSE
      if (pass == 0) continue;
      unsigned live = 0;
      float cut = 0.0f;
#pragma unroll 1
      for (int k = 0; k < held; k++) {
        const double weight = stored ? product[32 * k] : column(atoms[k], product[32 * k], factor);
        const float size = fabsf(static_cast<float>(weight * base));
        if (!__any_sync(0xffffffffu, !(size <= SMALL_WEIGHT))) continue;
        live |= 1u << k;
        // The derivative of that tail is at most 137 u^7 / R.
        const float limit = least_of_warp(SCHEME ? 0.36f : power(SMALL_SLOPE / (137.0f * size + 1e-37f), 1.0f / 7.0f));
        if (lane == k) cut = limit;
        product[32 * k] = weight;
        rate[32 * k] = 0.0;
      }
      __syncwarp();
      for (int k = lane; k < 3 * BATCH; k += 32) drawn[k] = 0.0;
      const int component = min(lane & 7, 2);
      const auto visit = [&](int first_partner, const unsigned* votes, const unsigned* single, unsigned some) {
#pragma unroll 1
        for (int half = 0; half < STAGE; half += 4) {
          const unsigned met = some >> half & 15;
          if (!met) continue;
          double* pushes = w.lengths() + 32 * half;  // take the places of the distances
#pragma unroll 1
          for (int l = 0; l < 4; l++) {
            const double2* pair = w.stage() + half + l;
            const double length = pushes[32 * l];
            unsigned mask = candidates_of(votes, half + l), roughly = candidates_of(single, half + l);
            const double place = __ldg(coords + 3 * min(first_partner + half + l, natm - 1) + component);
            double push = 0.0, drawn_j = 0.0;
#pragma unroll 1
            while (mask | roughly) {
              int k[4] = {-1, -1, -1, -1};
              double along[4] = {};
              if (!mask) {
                single_slopes(roughly, pair, length, r, product, rate, push, k, along);
              } else if (__popc(mask) > 2) {
                slopes<4>(mask, pair, length, r, product, rate, push, k, along);
              } else {
                slopes<2>(mask, pair, length, r, product, rate, push, k, along);
              }
              const double sum = sums_of_warp(along, lane);
              const int whose = lane & 16 ? (lane & 8 ? k[3] : k[2]) : lane & 8 ? k[1] : k[0];
              if (whose >= 0 && (lane & 7) < 3) {
                const double v = sum * (__ldg(coords + 3 * atoms[whose] + component) - place);
                drawn[3 * whose + component] -= v;
                drawn_j += v;
              }
              __syncwarp();  // other lanes may add to `drawn` next
            }
            pushes[32 * l] = push;
            if ((lane & 7) < 3) w.drawn_partners()[3 * (4 * l + (lane >> 3)) + component] = drawn_j;
          }
          __syncwarp();
          // Lanes 8 l ... 8 l + 2 are for partner l.
          double pull[3][4];
#pragma unroll
          for (int l = 0; l < 4; l++) {
            const Arm arm = arm_of(w, min(first_partner + half + l, natm - 1));
            const double h = pushes[32 * l] * inverse_length_of(arm);
            pull[0][l] = h * arm.x;
            pull[1][l] = h * arm.y;
            pull[2][l] = h * arm.z;
          }
          double sum[3];
#pragma unroll
          for (int i = 0; i < 3; i++) {
#pragma unroll
            for (int l = 0; l < 4; l++) at_point[i] += pull[i][l];
            sum[i] = sums_of_warp(pull[i], lane);
          }
          if ((lane & 7) < 3 && met >> (lane >> 3) & 1) {
            double v = -(component == 0 ? sum[0] : component == 1 ? sum[1] : sum[2]);
#pragma unroll
            for (int part = 0; part < 4; part++) v += w.drawn_partners()[3 * (4 * (lane >> 3) + part) + component];
            atomicAdd(centers + 3 * (first_partner + half + (lane >> 3)) + component, v);
          }
          __syncwarp();
        }
      };
      sweep(w, live, cut, ALL, visit);
      __syncwarp();
#pragma unroll 1
      for (unsigned some = live; some; some &= some - 1) {
        const int k = __ffs(static_cast<int>(some)) - 1, i = atoms[k];
        const Arm arm = arm_of(w, i);
        const double sum = sum_up(r[32 * k] > 0.0 ? rate[32 * k] * reciprocal(r[32 * k]) : 0.0, arm);
        if (lane < 3) atomicAdd(centers + 3 * i + lane, drawn[3 * k + lane] - sum);
      }
      held = complete = 0;
#endif
    } while (!ready && next < candidates);
    if (pass == 0) {
      ready = room;
      owned *= reciprocal(total);
      if (owned < NEGLIGIBLE) owned = 0.0;
#if REVERSE
      factor = seed * owned;
#endif
    }
  }
#if REVERSE
#pragma unroll
  for (int k = 0; k < 3; k++) {
    if (used) moved[3 * point + k] = at_point[k];
  }
#else
  if (used) fraction[point] = owned;
  if (!headers) return;
  long long to = -1;
  unsigned live = 0;
  if (ready) {
#pragma unroll 1
    for (int k = 0; k < held; k++) {
      product[32 * k] = column(atoms[k], product[32 * k], owned);
      if (__any_sync(0xffffffffu, !(fabs(product[32 * k]) <= SMALL_COLUMN))) live |= 1u << k;
    }
    if (lane == 0) to = static_cast<long long>(atomicAdd(taken, static_cast<unsigned long long>(__popc(live))));
    to = __shfl_sync(0xffffffffu, to, 0);
    if (to + __popc(live) > places) to = -1;
  }
  header[8 + lane] = owned;
  if (lane == 0) {
    header[0] = __longlong_as_double(to);
    header[1] = __longlong_as_double(__popc(live));
  }
  if (to < 0) return;
#pragma unroll 1
  for (int m = 0; live; m++) {
    const int k = __ffs(static_cast<int>(live)) - 1;
    live &= live - 1;
    if (lane == 0) left[m] = static_cast<short>(atoms[k]);
    columns[32 * (to + m) + lane] = product[32 * k];
  }
#endif
}
