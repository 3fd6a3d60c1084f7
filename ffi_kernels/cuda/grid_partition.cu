// Shares of space of atoms at grid points (Becke; Stratmann, Scuseria and Frisch), and their pullback to nuclei and points.
//
// A warp takes 32 points that are neighbours in space, a lane each, and all lanes look at the same pair of atoms: nothing is summed
// over lanes but what ends at nuclei. Bounds over the ball around the points leave the few atoms i that can have a share. Products
// over the nearest partners j leave fewer; how large they are says how far partners matter to each, because the tail of Becke's step
// falls with the eighth power of the distance. Candidates come in batches, so that any number of them is handled.
// Macros: SCHEME 0 Becke, 1 Stratmann; REVERSE 0 fractions, 1 pullback; BLOCKS a multiprocessor.
#define NEAR 16           // partners that bound a product,
#define BATCH 16          // candidates that a warp holds at once
#define NEGLIGIBLE 1e-20  // share of the point's own atom that counts as none
#define UNSEEN 1e-19      // product, against the largest over the nearest partners, of a candidate that changes nothing
#define BOUND 1e-26       // of a product that no point of the ball can see
// Change of a share, in its own units and in those of the largest of the warp, that a partner may have and still be left out.
#define SMALL_FACTOR (REVERSE ? 1e-13f : 1e-15f)
#define SMALL_SLOPE 1e-12f
#define SMALL_WEIGHT 1e-14  // of a candidate among the derivatives

// The step s(t), t from 0 to 2, and d log s / dt.
__device__ __forceinline__ double step(double t) {
#if SCHEME == 0
#pragma unroll
  for (int i = 0; i < 3; i++) t = t * t * (1.5 - 0.5 * t);
  return 0.5 * t;
#else
  t = 1.0 + (t - 1.0) * (1.0 / 0.64);
  const double near = fmax(t > 1.0 ? 2.0 - t : t, 0.0), square = near * near;
  const double below = 1.09375 * square * square * (2.0 + near * (-2.4 + near * (1.0 - near * (1.0 / 7.0))));
  return t > 1.0 ? 1.0 - below : below;
#endif
}

__device__ __forceinline__ double reciprocal(double v) {
#ifdef EMULATED
  return 1.0 / v;
#else
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
#pragma unroll
  for (int i = 0; i < 2; i++) y = fma(fma(-v, y, 1.0), y, y);
  return y;
#endif
}

__device__ __forceinline__ double log_slope(double t) {
#if SCHEME == 0
  // With T(t) = t^2 h(t), h = (3 - t) / 2: d log T / d log t = 3 (2 - t) / (2 h), and three of these make up s.
  double above = 3.375, below = fmax(t, 1e-290);
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

__device__ __forceinline__ double sum_of_warp(double v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float least_of_warp(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fminf(v, __shfl_xor_sync(0xffffffffu, v, o));
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

// pairs (natm, natm): 1 / |R_i - R_j| (0 for one place) and the shift a_ij; (0, -1), which makes the step 1, on the diagonal.
extern "C" __global__ __launch_bounds__(256, BLOCKS) void grid_partition(const double* coords, const double* points, const int* owner,
                                                                    const double2* pairs, const double* cotangent, double* fraction,
                                                                    double* centers, double* moved, int natm, long long n) {
  extern __shared__ double shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = blockDim.x >> 5;
#if REVERSE
  double* pull = shared;  // [natm][3] sums of the block for the nuclei
  constexpr int COLUMNS = 3;
#else
  double* pull = nullptr;
  constexpr int COLUMNS = 2;
#endif
  const int of_warp = COLUMNS * BATCH * 32 + 3 * BATCH + NEAR / 2 + (3 * natm + 3) / 4;
  double* r = shared + (REVERSE ? 3 * natm : 0) + warp * of_warp + lane;  // [candidate][lane] distances,
  double* product = r + BATCH * 32;                                       // products, and then what they weigh,
  double* rate = product + (COLUMNS - 2) * BATCH * 32;                    // derivatives with respect to the distances
  double* drawn = rate - lane + BATCH * 32;                               // [candidate][3] sums for the nuclei
  int* near = reinterpret_cast<int*>(drawn + 3 * BATCH);                  // [NEAR] the nearest atoms
  float* key = reinterpret_cast<float*>(near + NEAR);                     // [natm] distances; none for atoms among the nearest
  short* list = reinterpret_cast<short*>(key + natm);                     // [natm] candidates
  constexpr float NONE = 3e38f;
#if REVERSE
  for (int i = tid; i < 3 * natm; i += blockDim.x) pull[i] = 0.0;
  __syncthreads();
#endif
  const long long stride = static_cast<long long>(gridDim.x) * warps * 32;
  for (long long first = (static_cast<long long>(blockIdx.x) * warps + warp) * 32; first < n; first += stride) {
    const bool used = first + lane < n;
    const long long point = used ? first + lane : n - 1;
    const double X = points[3 * point], Y = points[3 * point + 1], Z = points[3 * point + 2];
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
    const auto distance = [&](int j) {
      const double x = X - __ldg(coords + 3 * j), y = Y - __ldg(coords + 3 * j + 1), z = Z - __ldg(coords + 3 * j + 2);
      return sqrt(x * x + y * y + z * z);
    };
    // The ball.
    const double cx = sum_of_warp(X) * (1.0 / 32.0), cy = sum_of_warp(Y) * (1.0 / 32.0), cz = sum_of_warp(Z) * (1.0 / 32.0);
    const auto from_centre = [&](int j) {
      const double x = cx - __ldg(coords + 3 * j), y = cy - __ldg(coords + 3 * j + 1), z = cz - __ldg(coords + 3 * j + 2);
      return sqrt(x * x + y * y + z * z);
    };
    const double dx = X - cx, dy = Y - cy, dz = Z - cz;
    const double radius = -static_cast<double>(least_of_warp(-1.000001f * static_cast<float>(sqrt(dx * dx + dy * dy + dz * dz)))) + 1e-9;
    // The nearest atoms.
    __syncwarp();
    float best = NONE;
    int which = 0;
    for (int j = lane; j < natm; j += 32) {
      const float d = static_cast<float>(from_centre(j));
      key[j] = d;
      if (d < best) {
        best = d;
        which = j;
      }
    }
    int nears = 0;
    for (; nears < NEAR; nears++) {
      const float least = least_of_warp(best);
      if (!(least < NONE)) break;
      const int winner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best == least))) - 1;
      const int at = __shfl_sync(0xffffffffu, which, winner);
      if (lane == winner) {
        near[nears] = at;
        key[at] = NONE;
        best = NONE;
        for (int j = lane; j < natm; j += 32) {
          if (key[j] < best) {
            best = key[j];
            which = j;
          }
        }
      }
    }
    __syncwarp();
    double* reach = r - lane;
    if (lane < nears) reach[lane] = from_centre(near[lane]) + radius;
    __syncwarp();
    // Candidates, the nearest first.
    int candidates = 0;
    for (int base = -32; base < natm; base += 32) {
      const int i = base < 0 ? (lane < nears ? near[lane] : -1) : base + lane < natm && key[base + lane] != NONE ? base + lane : -1;
      double bound = 0.0;
      if (i >= 0) {
        const double nearest = fmax(from_centre(i) - radius, 0.0);
        bound = 1.0;
        for (int m = 0; m < nears && bound >= BOUND; m++) {
          const double2 pair = __ldg(pairs + static_cast<long long>(i) * natm + near[m]);
          const double mu = fmax((nearest - reach[m]) * pair.x, -1.0);
          bound *= step(fmin(fmax((1.0 - mu) * (1.0 - pair.y * (1.0 + mu)), 0.0), 2.0));
        }
      }
      const bool live = i >= 0 && !(bound < BOUND);
      const unsigned votes = __ballot_sync(0xffffffffu, live);
      if (live) list[candidates + __popc(votes & ((1u << lane) - 1))] = static_cast<short>(i);
      candidates += __popc(votes);
    }
    __syncwarp();
    const auto step_of = [&](double ri, double rj, const double2 pair) {
      const double mu = (ri - rj) * pair.x;
      return step((1.0 - mu) * (1.0 - pair.y * (1.0 + mu)));
    };
    // Which of the candidates k have partner j = base + lane; cuts in 1 / distance are held by lanes k.
    const auto partners = [&](int b0, unsigned live, float cut, int base, bool all) {
      const int j = base + lane;
      const bool valid = j < natm && (all || key[min(j, natm - 1)] != NONE);
      unsigned word = 0;
      for (unsigned left = live; left; left &= left - 1) {
        const int k = __ffs(static_cast<int>(left)) - 1;
        const float limit = __shfl_sync(0xffffffffu, cut, k);
        if (valid) {
          const double2 pair = __ldg(pairs + static_cast<long long>(list[b0 + k]) * natm + j);
          const float inverse = static_cast<float>(pair.x);
          if (!(inverse > 0.0f && inverse * (1.0f + 2.0f * fmaxf(static_cast<float>(pair.y), 0.0f)) < limit)) word |= 1u << k;
        }
      }
      return word;
    };
    double reference = 0.0;
    // Products of a batch; returns which of its candidates count.
    const auto multiply = [&](int b0, int count) {
      for (int k = 0; k < count; k++) {
        r[32 * k] = distance(list[b0 + k]);
        product[32 * k] = 1.0;
      }
      for (int m = 0; m < nears; m++) {
        const int j = near[m];
        const double rj = distance(j);
        for (int k = 0; k < count; k++) {
          product[32 * k] *= step_of(r[32 * k], rj, __ldg(pairs + static_cast<long long>(list[b0 + k]) * natm + j));
        }
      }
      if (b0 == 0) {
        for (int k = 0; k < count; k++) reference = product[32 * k] < reference ? reference : product[32 * k];
      }
      unsigned live = 0;
      float cut = 0.0f;
      for (int k = 0; k < count; k++) {
        const double limit = (list[b0 + k] == own ? 0.01 * NEGLIGIBLE : UNSEEN) * reference;
        if (__any_sync(0xffffffffu, !(product[32 * k] < limit))) {
          live |= 1u << k;
          // A partner at R leaves out at most 8.6 u^8, u = 2 r (1 + 2 a) / R; with Stratmann's step nothing where u < 0.36.
          const float part = static_cast<float>(product[32 * k] / reference);
          const float u = SCHEME ? 0.36f : sqrtf(sqrtf(sqrtf(SMALL_FACTOR / (8.6f * part + 1e-30f))));
          const float limit_of_k = least_of_warp(u / (2.001f * static_cast<float>(r[32 * k])));
          if (lane == k) cut = limit_of_k;
        } else {
          product[32 * k] = 0.0;
        }
      }
      for (int base = 0; base < natm; base += 32) {
        const unsigned word = partners(b0, live, cut, base, false);
        for (int l = 0; l < min(32, natm - base); l++) {
          unsigned left = __shfl_sync(0xffffffffu, word, l);
          if (!left) continue;
          const int j = base + l;
          const double rj = distance(j);
          for (; left; left &= left - 1) {
            const int k = __ffs(static_cast<int>(left)) - 1;
            product[32 * k] *= step_of(r[32 * k], rj, __ldg(pairs + static_cast<long long>(list[b0 + k]) * natm + j));
          }
        }
      }
      return live;
    };
    unsigned live = 0;
    double total = 0.0, owned = 0.0;
    for (int b0 = 0; b0 < candidates; b0 += BATCH) {
      const int count = min(BATCH, candidates - b0);
      live = multiply(b0, count);
      for (int k = 0; k < count; k++) {
        const double value = product[32 * k];
        total += value;
        if (list[b0 + k] == own) owned = value;
      }
    }
    double share = owned / total;
    if (share < NEGLIGIBLE) share = 0.0;
#if !REVERSE
    if (used) fraction[point] = share;
#else
    // d f = f (d log P_own - sum_i f_i d log P_i)
    const double scale = fabs(seed * share), largest = -static_cast<double>(least_of_warp(-static_cast<float>(scale)));
    double mine[4] = {};
    const auto sum_up = [&](double h, double x, double y, double z) {
      const double along[4] = {h * x, h * y, h * z, 0.0};
#pragma unroll
      for (int k = 0; k < 3; k++) mine[k] += along[k];
      return __shfl_sync(0xffffffffu, sums_of_warp(along, lane), 8 * lane);  // lanes 0 to 2
    };
    for (int b0 = 0; b0 < candidates; b0 += BATCH) {
      const int count = min(BATCH, candidates - b0);
      if (candidates > BATCH) live = multiply(b0, count);
      float cut = 0.0f;
      for (int k = 0; k < count; k++) {
        const double part = product[32 * k] / total;
        double weight = seed * share * ((list[b0 + k] == own ? 1.0 : 0.0) - part);
        if (part == 0.0) weight = 0.0;
        if (!__any_sync(0xffffffffu, !(fabs(weight) <= SMALL_WEIGHT * largest))) {
          live &= ~(1u << k);
          continue;
        }
        // The derivative of that tail is at most 137 u^7 / R.
        const float u = SCHEME ? 0.36f : exp2f(log2f(SMALL_SLOPE * static_cast<float>(largest / (137.0 * fabs(weight) + 1e-290))) / 7.0f);
        const float limit_of_k = least_of_warp(fminf(u / (2.001f * static_cast<float>(r[32 * k])), 1.0f));
        if (lane == k) cut = limit_of_k;
        product[32 * k] = weight;
        rate[32 * k] = 0.0;
      }
      __syncwarp();
      for (int k = lane; k < 3 * BATCH; k += 32) drawn[k] = 0.0;
      __syncwarp();
      for (int base = 0; base < natm; base += 32) {
        const unsigned word = partners(b0, live, cut, base, true);
        for (int l = 0; l < min(32, natm - base); l++) {
          unsigned left = __shfl_sync(0xffffffffu, word, l);
          if (!left) continue;
          const int j = base + l, component = min(lane & 7, 2);
          const double x = X - __ldg(coords + 3 * j), y = Y - __ldg(coords + 3 * j + 1), z = Z - __ldg(coords + 3 * j + 2);
          const double rj = sqrt(x * x + y * y + z * z), place = __ldg(coords + 3 * j + component);
          double push = 0.0, drawn_j = 0.0;
          while (left) {
            int k[4];
            double along[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
              k[u] = __ffs(static_cast<int>(left)) - 1;
              along[u] = 0.0;
              if (k[u] < 0) continue;
              left &= left - 1;
              const double2 pair = __ldg(pairs + static_cast<long long>(list[b0 + k[u]]) * natm + j);
              const double mu = (r[32 * k[u]] - rj) * pair.x, t = (1.0 - mu) * (1.0 - pair.y * (1.0 + mu));
              const double slope = -product[32 * k[u]] * pair.x * (1.0 - 2.0 * pair.y * mu) * log_slope(t);
              rate[32 * k[u]] += slope;
              push -= slope;
              // |R_i - R_j| changes along (R_i - R_j) / |R_i - R_j|.
              along[u] = slope * mu * pair.x;
            }
            const double sum = sums_of_warp(along, lane);
            const int held = lane & 16 ? (lane & 8 ? k[3] : k[2]) : lane & 8 ? k[1] : k[0];
            if (held >= 0 && (lane & 7) < 3) {
              const double v = sum * (__ldg(coords + 3 * list[b0 + held] + component) - place);
              drawn[3 * held + component] -= v;
              drawn_j += v;
            }
          }
          drawn_j += __shfl_xor_sync(0xffffffffu, drawn_j, 8);
          drawn_j += __shfl_xor_sync(0xffffffffu, drawn_j, 16);
          __syncwarp();  // other lanes may add to `drawn` next
          const double sum = sum_up(rj > 0.0 ? push / rj : 0.0, x, y, z);
          if (lane < 3) atomicAdd(pull + 3 * j + lane, drawn_j - sum);
        }
      }
      __syncwarp();
      for (unsigned left = live; left; left &= left - 1) {
        const int k = __ffs(static_cast<int>(left)) - 1, i = list[b0 + k];
        const double x = X - __ldg(coords + 3 * i), y = Y - __ldg(coords + 3 * i + 1), z = Z - __ldg(coords + 3 * i + 2);
        const double sum = sum_up(r[32 * k] > 0.0 ? rate[32 * k] / r[32 * k] : 0.0, x, y, z);
        if (lane < 3) atomicAdd(pull + 3 * i + lane, drawn[3 * k + lane] - sum);
      }
    }
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (used) moved[3 * point + k] = mine[k];
    }
#endif
  }
#if REVERSE
  __syncthreads();
  for (int i = tid; i < 3 * natm; i += blockDim.x) {
    if (pull[i] != 0.0) atomicAdd(centers + i, pull[i]);
  }
#endif
}
