// Shares of space of atoms at grid points (Becke; Stratmann, Scuseria and Frisch), and their pullback to nuclei and points.
//
// A warp takes 32 points that are neighbours in space, a lane each, and all lanes look at the same pair of atoms: nothing is summed
// over lanes but what ends at nuclei. Bounds over the ball around the points leave the few atoms i that can have a share. Products
// over the nearest partners j leave fewer; how large they are says how far partners matter to each, because the tail of Becke's step
// falls with the eighth power of the distance. Candidates have a column of shared memory each, and go in batches where there are more
// than columns; what belongs to pairs of atoms is staged there for 8 partners at a time.
// Macros: SCHEME 0 Becke, 1 Stratmann; REVERSE 0 fractions, 1 pullback; BLOCKS of 128 threads a multiprocessor.
#define NEAR 16           // partners that bound a product,
#define BATCH 16          // candidates that a warp holds at once
#define STAGE 8           // partners whose pairs it holds
#define NEGLIGIBLE 1e-20  // share of the point's own atom that counts as none
#define UNSEEN 1e-19      // product, against the largest over the nearest partners, of a candidate that changes nothing
#define BOUND 1e-26       // of a product that no point of the ball can see
// Change of a share, in its own units and in those of the largest of the warp, that a partner may have and still be left out.
#define SMALL_FACTOR (REVERSE ? 3e-13f : 1e-15f)
#define SMALL_OWN 0.03f  // the least that a point's own atom counts, so that small shares keep their precision
#define SMALL_SLOPE 1e-11f
#define SMALL_WEIGHT 1e-13  // of a candidate among the derivatives

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

// pairs (natm, natm): 1 / |R_i - R_j| (0 for one place) and the shift a_ij; (0, -1), which makes the step 1, on the diagonal.
extern "C" __global__ __launch_bounds__(128, BLOCKS) void grid_partition(const double* coords, const double* points, const int* owner,
                                                                         const double2* pairs, const double* cotangent, double* fraction,
                                                                         double* centers, double* moved, int natm, long long n) {
  extern __shared__ double shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  constexpr int COLUMNS = REVERSE ? 3 : 2;
  constexpr float NONE = 3e38f;
  const int of_warp = (COLUMNS * 32 + 2 * STAGE + 3) * BATCH + NEAR + NEAR / 2 + (5 * natm + 3) / 4;
  double2* stage = reinterpret_cast<double2*>(shared + warp * ((of_warp + 1) & ~1));  // [candidate][STAGE]
  double* r = reinterpret_cast<double*>(stage + BATCH * STAGE) + lane;                // [candidate][lane] distances,
  double* product = r + BATCH * 32;                                                   // products, and then what they weigh,
  double* rate = product + (COLUMNS - 2) * BATCH * 32;     // derivatives with respect to the distances
  double* drawn = rate - lane + BATCH * 32;                // [candidate][3] sums for the nuclei
  double* reach = drawn + 3 * BATCH;                       // [NEAR] how far the nearest atoms are at most
  int* near = reinterpret_cast<int*>(reach + NEAR);        // [NEAR] and which they are
  float* key = reinterpret_cast<float*>(near + NEAR);      // [natm] distances; none for atoms among the nearest
  float* off = key + natm;                                 // [natm] distances of all
  short* list = reinterpret_cast<short*>(off + natm);      // [natm] candidates
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
      key[j] = off[j] = d;
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
      if (lane == winner) {
        near[nears] = which;
        key[which] = NONE;
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
    if (lane < nears) reach[lane] = from_centre(near[lane]) + radius;
    __syncwarp();
    // Of the product of atom i, over the ball.
    const auto bound_of = [&](int i, double enough) {
      const double nearest = fmax(from_centre(i) - radius, 0.0);
      double bound = 1.0;
      for (int m = 0; m < nears && bound >= enough; m++) {
        if (near[m] == i) continue;
        const double2 pair = __ldg(pairs + static_cast<long long>(near[m]) * natm + i);  // of the partner with i: the shift is reversed
        const double mu = fmax((nearest - reach[m]) * pair.x, -1.0);
        bound *= step(fmin(fmax((1.0 - mu) * (1.0 + pair.y * (1.0 + mu)), 0.0), 2.0));
      }
      return bound;
    };
    const auto append = [&](unsigned votes, int i, int at) {
      if ((votes >> lane) & 1) list[at + __popc(votes & ((1u << lane) - 1))] = static_cast<short>(i);
    };
    // Calls visit(j, which candidates have partner j, their pairs) for partners j = partner(0 ... count - 1), negative for none. Pairs
    // with u = 1 + nu below `cut` all over the ball, of candidate k in lane k, are left out.
    const float margin = 2.0f * static_cast<float>(radius) + 1e-3f;
    const auto sweep = [&](int b0, unsigned live, float cut, int count, const auto& partner, const auto& visit) {
      for (int base = 0; base < count; base += STAGE) {
        const int index = base + (lane & 7), j = index < count ? partner(index) : -1;
        double2 loaded[BATCH / 4];
        unsigned votes[BATCH / 4];
#pragma unroll
        for (int round = 0; round < BATCH / 4; round++) {
          const int k = 4 * round + (lane >> 3);
          if ((live >> k) & 1 && j >= 0) loaded[round] = __ldg(pairs + static_cast<long long>(list[b0 + k]) * natm + j);
        }
        __syncwarp();  // pairs of the last round have been read
#pragma unroll
        for (int round = 0; round < BATCH / 4; round++) {
          const int k = 4 * round + (lane >> 3);
          const float limit = __shfl_sync(0xffffffffu, cut, k);
          bool met = (live >> k) & 1 && j >= 0;
          if (met) {
            const float inverse = static_cast<float>(loaded[round].x), shift = static_cast<float>(loaded[round].y);
            const float u = (1.0f + (off[list[b0 + k]] - off[j] + margin) * inverse) * (1.0f + 2.0f * fmaxf(shift, 0.0f));
            met = !(inverse > 0.0f && inverse < 1.0f && u < limit);
            stage[STAGE * k + (lane & 7)] = loaded[round];
          }
          votes[round] = __ballot_sync(0xffffffffu, met);
        }
        __syncwarp();
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
    };
    const auto nearest = [&](int index) { return near[index]; };
    const auto distant = [&](int index) { return key[index] != NONE ? index : -1; };
    // Products over partners of the candidates in `live`.
    const auto multiply = [&](int b0, unsigned live, float cut, int count, const auto& partner) {
      const auto visit = [&](int j, unsigned mask, const double2* pair) {
        const double rj = distance(j);
        while (mask) {
          // Two at a time, for the latency.
          const int k0 = __ffs(static_cast<int>(mask)) - 1;
          mask &= mask - 1;
          const int k1 = mask ? __ffs(static_cast<int>(mask)) - 1 : k0;
          mask &= mask - 1;
          const double2 p0 = pair[STAGE * k0], p1 = pair[STAGE * k1];
          const double mu0 = (r[32 * k0] - rj) * p0.x, mu1 = (r[32 * k1] - rj) * p1.x;
          const double s0 = step((1.0 - mu0) * (1.0 - p0.y * (1.0 + mu0))), s1 = step((1.0 - mu1) * (1.0 - p1.y * (1.0 + mu1)));
          product[32 * k0] *= s0;
          if (k1 != k0) product[32 * k1] *= s1;
        }
      };
      sweep(b0, live, cut, count, partner, visit);
    };
    const auto start = [&](int b0, int from, int to) {
      for (int k = from; k < to; k++) {
        r[32 * k] = distance(list[b0 + k]);
        product[32 * k] = 1.0;
      }
      multiply(b0, (1u << to) - (1u << from), 0.0f, nears, nearest);
    };
    const auto matters = [&](int i, int k, double reference) {
      const double limit = (i == own ? 0.01 * NEGLIGIBLE : UNSEEN) * reference;
      return __any_sync(0xffffffffu, !(product[32 * k] < limit));
    };
    double reference = 0.0;  // the largest product over the nearest partners among the nearest atoms
    int held = 0;
    // Adds `count` atoms, at most a batch, listed from `next` on, to those held in columns, where they matter.
    const auto hold = [&](int next, int count) {
      const int listed = lane < count ? list[next + lane] : -1;
      __syncwarp();
      append((1u << count) - 1, listed, held);
      __syncwarp();
      start(0, held, held + count);
      if (held == 0) {
        for (int k = 0; k < count; k++) reference = product[32 * k] < reference ? reference : product[32 * k];
      }
      unsigned kept = 0;
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
      __syncwarp();
    };
    const int mine = lane < nears ? near[lane] : -1;
    const unsigned close = __ballot_sync(0xffffffffu, mine >= 0 && !(bound_of(max(mine, 0), BOUND) < BOUND));
    append(close, mine, 0);
    __syncwarp();
    hold(0, __popc(close));
    int candidates = held;
    const double enough = 0.01 * NEGLIGIBLE * least_of_warp(reference);
    for (int base = 0; base < natm; base += 32) {
      const bool other = base + lane < natm && key[base + lane] != NONE;
      const unsigned votes = __ballot_sync(0xffffffffu, other && !(bound_of(base + lane, enough) < enough));
      append(votes, base + lane, candidates);
      candidates += __popc(votes);
    }
    __syncwarp();
    int next = held;
    while (next < candidates && held < BATCH) {
      const int count = min(BATCH - held, candidates - next);
      hold(next, count);
      next += count;
    }
    // Those for whom there is no column left: then all are done in batches.
    int length = held;
    for (; next < candidates; next += 32) {
      const int listed = next + lane < candidates ? list[next + lane] : -1;
      const unsigned votes = __ballot_sync(0xffffffffu, listed >= 0);
      __syncwarp();
      append(votes, listed, length);
      length += __popc(votes);
      __syncwarp();
    }
    candidates = length;
    // Products of a batch; returns which of its candidates count.
    const auto finish = [&](int b0, int count) {
      if (candidates > BATCH) start(b0, 0, count);
      unsigned live = 0;
      float cut = 0.0f;
      for (int k = 0; k < count; k++) {
        if (matters(list[b0 + k], k, reference)) {
          live |= 1u << k;
          // A partner leaves out at most 8.6 u^8, u = (1 + mu) (1 + 2 a); with Stratmann's step nothing where u < 0.36.
          const float part = fmaxf(static_cast<float>(product[32 * k] / reference), list[b0 + k] == own ? SMALL_OWN : 0.0f);
          const float u = SCHEME ? 0.36f : sqrtf(sqrtf(sqrtf(SMALL_FACTOR / (8.6f * part + 1e-30f))));
          const float limit_of_k = least_of_warp(u);
          if (lane == k) cut = limit_of_k;
        } else {
          product[32 * k] = 0.0;
        }
      }
      multiply(b0, live, cut, natm, distant);
      return live;
    };
    unsigned live = 0;
    double total = 0.0, owned = 0.0;
    for (int b0 = 0; b0 < candidates; b0 += BATCH) {
      const int count = min(BATCH, candidates - b0);
      live = finish(b0, count);
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
    double at_point[3] = {};
    const auto sum_up = [&](double h, double x, double y, double z) {
      const double along[4] = {h * x, h * y, h * z, 0.0};
#pragma unroll
      for (int k = 0; k < 3; k++) at_point[k] += along[k];
      return __shfl_sync(0xffffffffu, sums_of_warp(along, lane), 8 * lane);  // lanes 0 to 2
    };
    for (int b0 = 0; b0 < candidates; b0 += BATCH) {
      const int count = min(BATCH, candidates - b0);
      if (candidates > BATCH) live = finish(b0, count);
      float cut = 0.0f;
      for (int k = 0; k < count; k++) {
        if (!((live >> k) & 1)) continue;
        const double part = product[32 * k] / total;
        double weight = seed * share * ((list[b0 + k] == own ? 1.0 : 0.0) - part);
        if (part == 0.0) weight = 0.0;
        if (!__any_sync(0xffffffffu, !(fabs(weight) <= SMALL_WEIGHT * largest))) {
          live &= ~(1u << k);
          continue;
        }
        // The derivative of that tail is at most 137 u^7 / R.
        const float u = SCHEME ? 0.36f : exp2f(log2f(SMALL_SLOPE * static_cast<float>(largest / (137.0 * fabs(weight) + 1e-290))) / 7.0f);
        const float limit_of_k = least_of_warp(u);
        if (lane == k) cut = limit_of_k;
        product[32 * k] = weight;
        rate[32 * k] = 0.0;
      }
      __syncwarp();
      for (int k = lane; k < 3 * BATCH; k += 32) drawn[k] = 0.0;
      const int component = min(lane & 7, 2);
      const auto visit = [&](int j, unsigned mask, const double2* pair) {
        const double x = X - __ldg(coords + 3 * j), y = Y - __ldg(coords + 3 * j + 1), z = Z - __ldg(coords + 3 * j + 2);
        const double rj = sqrt(x * x + y * y + z * z), place = __ldg(coords + 3 * j + component);
        double push = 0.0, drawn_j = 0.0;
        while (mask) {
          int k[4] = {-1, -1, -1, -1};
          double along[4] = {};
#pragma unroll
          for (int u = 0; u < 4; u += 2) {
            if (!mask) continue;
            k[u] = __ffs(static_cast<int>(mask)) - 1;
            mask &= mask - 1;
            k[u + 1] = __ffs(static_cast<int>(mask)) - 1;
            mask &= mask - 1;
            double slope[2];
#pragma unroll
            for (int v = 0; v < 2; v++) {
              const int at = v && k[u + 1] >= 0 ? k[u + 1] : k[u];
              const double2 p = pair[STAGE * at];
              const double mu = (r[32 * at] - rj) * p.x, t = (1.0 - mu) * (1.0 - p.y * (1.0 + mu));
              slope[v] = -product[32 * at] * p.x * (1.0 - 2.0 * p.y * mu) * log_slope(t);
              // |R_i - R_j| changes along (R_i - R_j) / |R_i - R_j|.
              along[u + v] = slope[v] * mu * p.x;
            }
            rate[32 * k[u]] += slope[0];
            push -= slope[0];
            if (k[u + 1] >= 0) {
              rate[32 * k[u + 1]] += slope[1];
              push -= slope[1];
            }
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
        const double sum = sum_up(rj > 0.0 ? push * reciprocal(rj) : 0.0, x, y, z);
        if (lane < 3) atomicAdd(centers + 3 * j + lane, drawn_j - sum);
      };
      sweep(b0, live, cut, natm, [](int index) { return index; }, visit);
      __syncwarp();
      for (unsigned left = live; left; left &= left - 1) {
        const int k = __ffs(static_cast<int>(left)) - 1, i = list[b0 + k];
        const double x = X - __ldg(coords + 3 * i), y = Y - __ldg(coords + 3 * i + 1), z = Z - __ldg(coords + 3 * i + 2);
        const double sum = sum_up(r[32 * k] > 0.0 ? rate[32 * k] / r[32 * k] : 0.0, x, y, z);
        if (lane < 3) atomicAdd(centers + 3 * i + lane, drawn[3 * k + lane] - sum);
      }
    }
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (used) moved[3 * point + k] = at_point[k];
    }
#endif
  }
}
