// Shares of space of atoms at grid points (Becke; Stratmann, Scuseria and Frisch), and their pullback to nuclei and points.
//
// A warp takes 32 points that are neighbours in space, a lane each, and all lanes look at the same pair of atoms: nothing is summed
// over lanes but what ends at nuclei. Bounds over the ball around the points leave the few atoms i that can have a share. Products
// over the nearest partners j leave fewer; how large they are says how far partners matter to each, because the tail of Becke's step
// falls with the eighth power of the distance. Candidates have a column of shared memory each, and go in batches where there are more
// than columns; what belongs to pairs of atoms is staged there for 8 partners at a time. The code is kept short, as all of it runs in
// turn and has to stay in the instruction cache.
//
// What a pullback reads of the products, the shares of evaluations that are to be differentiated leave behind: of each warp, in 40
// doubles, where its columns are (-1: nowhere, so that they have to be made again), their number, their atoms, and the shares of its
// points; and the columns, d f / d log P_i of atoms i, wherever there was place.
// Macros: SCHEME 0 Becke, 1 Stratmann; REVERSE 0 fractions, 1 pullback; BLOCKS of 128 threads a multiprocessor.
#define NEAR 16           // partners that bound a product,
#define BATCH 16          // candidates that a warp holds at once
#define STAGE 8           // partners whose pairs it holds
#define NEGLIGIBLE 1e-20  // share of the point's own atom that counts as none
#define UNSEEN 1e-16      // product, against the largest over the nearest partners, of a candidate that changes nothing
#define BOUND 1e-26f      // of a product that no point of the ball can see
// Change of a share, in its own units and in those of the largest of the warp, that a partner may have and still be left out.
#define SMALL_FACTOR (REVERSE ? 1e-12f : 1e-14f)
#define SMALL_OWN 0.03f  // the least that a point's own atom counts, so that small shares keep their precision
// Derivatives that are left out: of a partner, and weights of candidates; against the largest |cotangent * share| of the warp, or
// against LEAST_OF_MEAN of the mean |cotangent| of all points, where this is more.
#define SMALL_SLOPE 1e-11f
#define SMALL_WEIGHT 1e-13f
#define LEAST_OF_MEAN 0.1
#define SMALL_COLUMN 1e-15  // d f / d log P_i that are not left behind
#define HEADER 40

// The step s(t), t from 0 to 2, and d log s / dt.
template <class T>
__device__ __forceinline__ T step(T t) {
#if SCHEME == 0
#pragma unroll
  for (int i = 0; i < 2; i++) t = t * t * (T(1.5) - T(0.5) * t);
  return t * t * (T(0.75) - T(0.25) * t);
#else
  t = T(1) + (t - T(1)) * T(1.0 / 0.64);
  const T near = max(t > T(1) ? T(2) - t : t, T(0)), square = near * near;
  const T below = T(1.09375) * square * square * (T(2) + near * (T(-2.4) + near * (T(1) - near * T(1.0 / 7.0))));
  return t > T(1) ? T(1) - below : below;
#endif
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

__device__ __forceinline__ double log_slope(double t) {
#if SCHEME == 0
  // With T(t) = t^2 h(t), h = (3 - t) / 2: d log T / d log t = 3 (2 - t) / (2 h), and three of these make up s.
  double above = 3.375, below = fmax(fabs(t), 1e-290);  // rounding can make t negative
#pragma unroll
  for (int i = 0; i < 3; i++) {
    const double h = 1.5 - 0.5 * t;
    above *= 2.0 - t;
    below *= h;
    t = t * t * h;
  }
  return above * reciprocal(below);
#else
  const double value = step(t);
  t = 1.0 + (t - 1.0) * (1.0 / 0.64);
  const double near = fmax(t * (2.0 - t), 0.0);
  return value > 1e-290 ? (1.09375 / 0.64) * near * near * near * reciprocal(value) : 0.0;
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
  float margin;  // how much a difference of two distances can vary over the points
  int base, natm, nears, lane;

  static constexpr int COLUMNS = REVERSE ? 3 : 2;
  static __device__ __forceinline__ int size(int natm) { return (COLUMNS * 32 + 2 * STAGE + 3) * BATCH + NEAR + (5 * natm + 3) / 4; }
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
  // [NEAR] the nearest atoms, and how far they are at most
  __device__ __forceinline__ int* near() const { return reinterpret_cast<int*>(drawn() + 3 * BATCH); }
  __device__ __forceinline__ float* reach() const { return reinterpret_cast<float*>(near() + NEAR); }
  // [natm] distances from the centre, of all and of those that are not among the nearest; candidates
  __device__ __forceinline__ float* off() const { return reach() + NEAR; }
  __device__ __forceinline__ float* key() const { return off() + natm; }
  __device__ __forceinline__ short* list() const { return reinterpret_cast<short*>(key() + natm); }
};
constexpr float NONE = 3e38f;

// The vector from atom j to the point of the lane, its length and the inverse of it (0 at the atom).
struct Arm {
  double x, y, z, length, inverse;
};
__device__ __forceinline__ Arm arm_of(const Patch& w, int j) {
  const double x = w.X - __ldg(w.coords + 3 * j), y = w.Y - __ldg(w.coords + 3 * j + 1), z = w.Z - __ldg(w.coords + 3 * j + 2);
  const double square = x * x + y * y + z * z, inverse = square > 1e-290 ? inverse_root(square) : 0.0;
  return {x, y, z, square * inverse, inverse};
}

// Calls visit(j, which candidates have partner j, their pairs) for the nearest partners or for all others, or for all. Pairs with
// u = 1 + nu below `cut` all over the ball, of candidate k in lane k, are left out.
enum Partners { NEAREST, DISTANT, ALL };
template <class Visit>
__device__ __forceinline__ void sweep(const Patch& w, int b0, unsigned live, float cut, Partners which, const Visit& visit) {
  const int lane = w.lane, count = which == NEAREST ? w.nears : w.natm;
  double2* stage = w.stage();
  const float* off = w.off();
  const short* list = w.list() + b0;
  const auto partner = [&](int index) { return which == NEAREST ? w.near()[index] : which == ALL || w.key()[index] != NONE ? index : -1; };
#pragma unroll 1
  for (int base = 0; base < count; base += STAGE) {
    const int index = base + (lane & 7), j = index < count ? partner(index) : -1;
    double2 loaded[BATCH / 4];
    unsigned votes[BATCH / 4];
#pragma unroll
    for (int round = 0; round < BATCH / 4; round++) {
      const int k = 4 * round + (lane >> 3);
      if ((live >> k) & 1 && j >= 0) loaded[round] = __ldg(w.pairs + static_cast<long long>(list[k]) * w.natm + j);
    }
    __syncwarp();  // pairs of the last round have been read
#pragma unroll
    for (int round = 0; round < BATCH / 4; round++) {
      const int k = 4 * round + (lane >> 3);
      const float limit = __shfl_sync(0xffffffffu, cut, k);
      bool met = (live >> k) & 1 && j >= 0;
      if (met) {
        const float inverse = static_cast<float>(loaded[round].x), shift = static_cast<float>(loaded[round].y);
        const float u = (1.0f + (off[list[k]] - off[j] + w.margin) * inverse) * (1.0f + 2.0f * fmaxf(shift, 0.0f));
        met = !(inverse > 0.0f && inverse < 1.0f && u < limit);
        stage[STAGE * k + (lane & 7)] = loaded[round];
      }
      votes[round] = __ballot_sync(0xffffffffu, met);
    }
    __syncwarp();
#pragma unroll 1
    for (int l = 0; l < STAGE; l++) {
      unsigned mask = 0;
#pragma unroll
      for (int round = 0; round < BATCH / 4; round++) {
        // Bits 0, 8, 16 and 24 side by side.
        mask |= ((((votes[round] >> l) & 0x01010101u) * 0x01020408u) >> 24 & 15u) << (4 * round);
      }
      if (mask) visit(partner(base + l), mask, stage + l);
    }
  }
}

// Products of the candidates in `live` over the nearest partners, with their distances, or over the others.
__device__ __noinline__ void multiply(Patch w, int b0, unsigned live, float cut, Partners which) {
  double *r = w.column(0), *product = w.column(1);
  if (which == NEAREST) {
#pragma unroll 1
    for (unsigned left = live; left; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      r[32 * k] = arm_of(w, w.list()[b0 + k]).length;
      product[32 * k] = 1.0;
    }
  }
  const auto visit = [&](int j, unsigned mask, const double2* pair) {
    const double rj = arm_of(w, j).length;
#pragma unroll 1
    while (mask) {
      // Two at a time, for the latency; the last one may be done twice.
      int k[2];
      double value[2];
#pragma unroll
      for (int u = 0; u < 2; u++) {
        k[u] = u && !mask ? k[0] : __ffs(static_cast<int>(mask)) - 1;
        mask &= mask - 1;
        const double2 p = pair[STAGE * k[u]];
        const double mu = (r[32 * k[u]] - rj) * p.x;
        value[u] = product[32 * k[u]] * step((1.0 - mu) * (1.0 - p.y * (1.0 + mu)));
      }
#pragma unroll
      for (int u = 0; u < 2; u++) product[32 * k[u]] = value[u];
    }
  };
  sweep(w, b0, live, cut, which, visit);
}

// pairs (natm, natm): 1 / |R_i - R_j| (0 for one place) and the shift a_ij; (0, -1), which makes the step 1, on the diagonal.
// mean: of |cotangent| over all points. columns: what shares leave behind, or null, place for `room` columns; `taken` of them are.
extern "C" __global__ __launch_bounds__(128, BLOCKS) void grid_partition(const double* coords, const double* points, const int* owner,
                                                                         const double2* pairs, const double* cotangent,
                                                                         const double* mean, double* headers, double* columns,
                                                                         unsigned long long* taken, double* fraction, double* centers,
                                                                         double* moved, int natm, long long n, long long room) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  Patch w = {coords, pairs};
  w.base = warp * ((Patch::size(natm) + 1) & ~1);
  w.natm = natm;
  w.lane = lane;
  double *r = w.column(0), *product = w.column(1);
  int* near = w.near();
  float *reach = w.reach(), *key = w.key(), *off = w.off();
  short* list = w.list();
#if REVERSE
  double *rate = w.column(2), *drawn = w.drawn();
#endif
  const long long stride = static_cast<long long>(gridDim.x) * warps * 32;
#pragma unroll 1
  for (long long first = (static_cast<long long>(blockIdx.x) * warps + warp) * 32; first < n; first += stride) {
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
      continue;
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
    w.margin = 2.0f * radius;
    __syncwarp();
    float best = NONE;
    int which = 0;
#pragma unroll 1
    for (int j = lane; j < natm; j += 32) {
      const float d = from_centre(__ldg(coords + 3 * j), __ldg(coords + 3 * j + 1), __ldg(coords + 3 * j + 2));
      key[j] = off[j] = d;
      if (d < best) {
        best = d;
        which = j;
      }
    }
    const auto matters = [&](int i, int k, double reference) {
      const double limit = (i == own ? 0.01 * NEGLIGIBLE : UNSEEN) * reference;
      return __any_sync(0xffffffffu, !(product[32 * k] < limit));
    };
    double* header = headers + (first >> 5) * HEADER;
    short* atoms = reinterpret_cast<short*>(header + 2);
    int candidates = 0;
    unsigned live = 0;
    double reference = 0.0;  // the largest product over the nearest partners among the nearest atoms
#if REVERSE
    double factor = 0.0, base = 0.0;
    const long long from = __double_as_longlong(header[0]);
    const bool kept = from >= 0;
    if (kept) {
      candidates = static_cast<int>(__double_as_longlong(header[1]));
      live = (1u << candidates) - 1;
      factor = seed * header[8 + lane];
      if (lane < candidates) list[lane] = atoms[lane];
      __syncwarp();
#pragma unroll 1
      for (int k = 0; k < candidates; k++) {
        r[32 * k] = arm_of(w, list[k]).length;
        product[32 * k] = seed * columns[32 * (from + k) + lane];
      }
    } else
#endif
    {
      const auto append = [&](unsigned votes, int i, int at) {
        if ((votes >> lane) & 1) list[at + __popc(votes & ((1u << lane) - 1))] = static_cast<short>(i);
      };
      // The nearest atoms.
      int nears = 0;
#pragma unroll 1
      for (; nears < NEAR; nears++) {
        const float least = least_of_warp(best);
        if (!(least < NONE)) break;
        const int winner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best == least))) - 1;
        if (lane == winner) {
          near[nears] = which;
          reach[nears] = best + radius;
          key[which] = NONE;
          best = NONE;
#pragma unroll 1
          for (int j = lane; j < natm; j += 32) {
            if (key[j] < best) {
              best = key[j];
              which = j;
            }
          }
        }
      }
      __syncwarp();
      w.nears = nears;
      // Whether the product of atom i can reach `enough` at a point of the ball; of all atoms, or of those that are not near.
      const auto can_reach = [&](int i, float enough) {
        const float nearest = fmaxf(off[i] - radius, 0.0f);
        float bound = 1.0f;
#pragma unroll 1
        for (int m = 0; m < nears && !(bound < enough); m++) {
          if (near[m] == i) continue;
          const double2 pair = __ldg(pairs + static_cast<long long>(near[m]) * natm + i);  // of the partner with i: the shift is reversed
          const float mu = fmaxf((nearest - reach[m]) * static_cast<float>(pair.x), -1.0f), shift = static_cast<float>(pair.y);
          bound *= step(fminf(fmaxf((1.0f - mu) * (1.0f + shift * (1.0f + mu)), 0.0f), 2.0f));
        }
        return !(bound < enough);
      };
      // Candidates, the nearest atoms first, are held in columns where they matter.
      const int mine = lane < nears ? near[lane] : 0;
      const unsigned close = __ballot_sync(0xffffffffu, lane < nears && can_reach(mine, BOUND));
      append(close, mine, 0);
      int held = 0, next = 0;
      candidates = __popc(close);
#pragma unroll 1
      while (next < candidates && held < BATCH) {
        const int count = min(BATCH - held, candidates - next);
        __syncwarp();
        const int listed = lane < count ? list[next + lane] : -1;
        __syncwarp();
        append((1u << count) - 1, listed, held);
        __syncwarp();
        multiply(w, 0, (1u << (held + count)) - (1u << held), 0.0f, NEAREST);
        if (next == 0) {
#pragma unroll 1
          for (int k = 0; k < count; k++) reference = product[32 * k] < reference ? reference : product[32 * k];
        }
        unsigned kept = 0;
#pragma unroll 1
        for (int k = held; k < held + count; k++) {
          if (!matters(list[k], k, reference)) continue;
          const int to = held + __popc(kept);
          r[32 * to] = r[32 * k];
          product[32 * to] = product[32 * k];
          kept |= 1u << (k - held);
        }
        __syncwarp();
        append(kept, listed, held);
        held += __popc(kept);
        if (next == 0) {
          const float enough = fmaxf(static_cast<float>(0.01 * NEGLIGIBLE * least_of_warp(reference)), 1e-37f);
          candidates = next = held;
#pragma unroll 1
          for (int base = 0; base < natm; base += 32) {
            const int i = base + lane;
            const unsigned votes = __ballot_sync(0xffffffffu, i < natm && key[i] != NONE && can_reach(i, enough));
            append(votes, i, candidates);
            candidates += __popc(votes);
          }
        } else {
          next += count;
        }
      }
      // Those for whom there is no column left: then all are done in batches.
      int length = held;
#pragma unroll 1
      for (; next < candidates; next += 32) {
        __syncwarp();
        const int listed = next + lane < candidates ? list[next + lane] : -1;
        const unsigned votes = __ballot_sync(0xffffffffu, listed >= 0);
        append(votes, listed, length);
        length += __popc(votes);
      }
      __syncwarp();
      candidates = length;
    }
    double total = 0.0, owned = 0.0;
#if REVERSE
    double at_point[3] = {};
    const auto sum_up = [&](double h, const Arm& arm) {
      const double along[4] = {h * arm.x, h * arm.y, h * arm.z, 0.0};
#pragma unroll
      for (int k = 0; k < 3; k++) at_point[k] += along[k];
      return __shfl_sync(0xffffffffu, sums_of_warp(along, lane), 8 * lane);  // lanes 0 to 2
    };
#endif
    // d f = f (d log P_own - sum_i f_i d log P_i)
    const auto column = [&](int i, double value, double share) {
      const double part = value * reciprocal(total);
      return part == 0.0 ? 0.0 : share * ((i == own ? 1.0 : 0.0) - part);
    };
    const double scale = reciprocal(reference);
#if REVERSE
    const int first_pass = kept;
#else
    const int first_pass = 0;
#endif
#pragma unroll 1
    for (int pass = first_pass; pass <= REVERSE; pass++) {
#if REVERSE
      if (pass == 1) base = reciprocal(fmax(-least_of_warp(-fabs(factor)), LEAST_OF_MEAN * __ldg(mean)));
#endif
#pragma unroll 1
      for (int b0 = 0; b0 < candidates; b0 += BATCH) {
        const int count = min(BATCH, candidates - b0);
        if (pass == 0 || candidates > BATCH) {
          if (candidates > BATCH) multiply(w, b0, (1u << count) - 1, 0.0f, NEAREST);
          live = 0;
          float cut = 0.0f;
#pragma unroll 1
          for (int k = 0; k < count; k++) {
            if (matters(list[b0 + k], k, reference)) {
              live |= 1u << k;
              // A partner leaves out at most 8.6 u^8, u = (1 + mu) (1 + 2 a); with Stratmann's step nothing where u < 0.36.
              const float part = fmaxf(static_cast<float>(product[32 * k] * scale), list[b0 + k] == own ? SMALL_OWN : 0.0f);
              const float limit = least_of_warp(SCHEME ? 0.36f : exp2f(0.125f * log2f(SMALL_FACTOR / (8.6f * part + 1e-30f))));
              if (lane == k) cut = limit;
            } else {
              product[32 * k] = 0.0;
            }
          }
          multiply(w, b0, live, cut, DISTANT);
        }
        if (pass == 0) {
#pragma unroll 1
          for (int k = 0; k < count; k++) {
            const double value = product[32 * k];
            total += value;
            if (list[b0 + k] == own) owned = value;
          }
          continue;
        }
#if REVERSE
        float cut = 0.0f;
#pragma unroll 1
        for (int k = 0; k < count; k++) {
          if (!((live >> k) & 1)) continue;
          const double weight = kept ? product[32 * k] : column(list[b0 + k], product[32 * k], factor);
          const float size = fabsf(static_cast<float>(weight * base));
          if (!__any_sync(0xffffffffu, !(size <= SMALL_WEIGHT))) {
            live &= ~(1u << k);
            continue;
          }
          // The derivative of that tail is at most 137 u^7 / R.
          const float limit = least_of_warp(SCHEME ? 0.36f : exp2f((1.0f / 7.0f) * log2f(SMALL_SLOPE / (137.0f * size + 1e-37f))));
          if (lane == k) cut = limit;
          product[32 * k] = weight;
          rate[32 * k] = 0.0;
        }
        __syncwarp();
        for (int k = lane; k < 3 * BATCH; k += 32) drawn[k] = 0.0;
        const int component = min(lane & 7, 2);
        const auto visit = [&](int j, unsigned mask, const double2* pair) {
          const Arm arm = arm_of(w, j);
          const double place = __ldg(coords + 3 * j + component);
          double push = 0.0, drawn_j = 0.0;
#pragma unroll 1
          while (mask) {
            int k[4] = {-1, -1, -1, -1};
            double along[4] = {};
#pragma unroll
            for (int u = 0; u < 4; u += 2) {
              if (!mask) continue;
              double slope[2], rates[2];
#pragma unroll
              for (int v = 0; v < 2; v++) {
                k[u + v] = __ffs(static_cast<int>(mask)) - 1;
                mask &= mask - 1;
                const int at = v && k[u + 1] < 0 ? k[u] : k[u + v];
                const double2 p = pair[STAGE * at];
                const double mu = (r[32 * at] - arm.length) * p.x, t = (1.0 - mu) * (1.0 - p.y * (1.0 + mu));
                slope[v] = -product[32 * at] * p.x * (1.0 - 2.0 * p.y * mu) * log_slope(t);
                // |R_i - R_j| changes along (R_i - R_j) / |R_i - R_j|.
                along[u + v] = slope[v] * mu * p.x;
                rates[v] = rate[32 * at] + slope[v];
                if (!v || k[u + 1] >= 0) push -= slope[v];
              }
#pragma unroll
              for (int v = 0; v < 2; v++) rate[32 * (v && k[u + 1] < 0 ? k[u] : k[u + v])] = rates[v];
            }
            const double sum = sums_of_warp(along, lane);
            const int whose = lane & 16 ? (lane & 8 ? k[3] : k[2]) : lane & 8 ? k[1] : k[0];
            if (whose >= 0 && (lane & 7) < 3) {
              const double v = sum * (__ldg(coords + 3 * list[b0 + whose] + component) - place);
              drawn[3 * whose + component] -= v;
              drawn_j += v;
            }
          }
          drawn_j += __shfl_xor_sync(0xffffffffu, drawn_j, 8);
          drawn_j += __shfl_xor_sync(0xffffffffu, drawn_j, 16);
          __syncwarp();  // other lanes may add to `drawn` next
          const double sum = sum_up(push * arm.inverse, arm);
          if (lane < 3) atomicAdd(centers + 3 * j + lane, drawn_j - sum);
        };
        sweep(w, b0, live, cut, ALL, visit);
        __syncwarp();
#pragma unroll 1
        for (unsigned left = live; left; left &= left - 1) {
          const int k = __ffs(static_cast<int>(left)) - 1, i = list[b0 + k];
          const Arm arm = arm_of(w, i);
          const double sum = sum_up(rate[32 * k] * arm.inverse, arm);
          if (lane < 3) atomicAdd(centers + 3 * i + lane, drawn[3 * k + lane] - sum);
        }
#endif
      }
#if REVERSE
      if (pass == 0) {
        const double share = owned * reciprocal(total);
        factor = share < NEGLIGIBLE ? 0.0 : seed * share;
      }
#endif
    }
#if REVERSE
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (used) moved[3 * point + k] = at_point[k];
    }
#else
    double share = owned * reciprocal(total);
    if (share < NEGLIGIBLE) share = 0.0;
    if (used) fraction[point] = share;
    if (!headers) continue;
    long long to = -1;
    int count = 0;
    if (candidates <= BATCH) {
      live = 0;
#pragma unroll 1
      for (int k = 0; k < candidates; k++) {
        product[32 * k] = column(list[k], product[32 * k], share);
        if (__any_sync(0xffffffffu, !(fabs(product[32 * k]) <= SMALL_COLUMN))) live |= 1u << k;
      }
      count = __popc(live);
      if (lane == 0) to = static_cast<long long>(atomicAdd(taken, static_cast<unsigned long long>(count)));
      to = __shfl_sync(0xffffffffu, to, 0);
      if (to + count > room) to = -1;
    }
    header[8 + lane] = share;
    if (lane == 0) {
      header[0] = __longlong_as_double(to);
      header[1] = __longlong_as_double(count);
    }
    if (to < 0) continue;
#pragma unroll 1
    for (int m = 0; m < count; m++) {
      const int k = __ffs(static_cast<int>(live)) - 1;
      live &= live - 1;
      if (lane == 0) atoms[m] = list[k];
      columns[32 * (to + m) + lane] = product[32 * k];
    }
#endif
  }
}
