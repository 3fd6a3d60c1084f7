// Shares of space of atoms at grid points (Becke; Stratmann, Scuseria and Frisch), and their pullback to nuclei and points.
//
// A block takes POINTS points that are neighbours in space and sorts the atoms by their distance. Bounds over the ball around the
// points leave the few atoms that can have a share. Then a warp takes a point. First lanes are candidates i, each with its product
// over a few near partners, an upper bound; then, for those that are left, lanes are partners j.
// Macros: SCHEME 0 Becke, 1 Stratmann; REVERSE 0 fractions, 1 pullback.
typedef unsigned long long uint64;

#define POINTS 128
#define SEARCH 16         // partners that bound a product over the ball,
#define FIRST 8           // and at one point
#define NEGLIGIBLE 1e-20  // share of the point's own atom that counts as none
#define UNSEEN 1e-18      // share of another atom that does not change it
#define BOUND 1e-26       // of a product that no point of the ball can see

// The step s(t), t from 0 to 2, and ds/dt.
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

__device__ __forceinline__ double slope(double t) {
#if SCHEME == 0
  double d = 0.5;
#pragma unroll
  for (int i = 0; i < 3; i++) {
    d *= 1.5 * t * (2.0 - t);
    t = t * t * (1.5 - 0.5 * t);
  }
  return d;
#else
  t = 1.0 + (t - 1.0) * (1.0 / 0.64);
  const double near = fmax(t * (2.0 - t), 0.0);
  return (1.09375 / 0.64) * near * near * near;
#endif
}

__device__ __forceinline__ double sum_of_warp(double v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ double product_of_warp(double v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v *= __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

// pairs (natm, natm): 1 / |R_i - R_j| (0 for one place), and the shift a_ij.
extern "C" __global__ void grid_partition(const double* coords, const double* points, const int* owner, const double2* pairs,
                                          const double* cotangent, double* fraction, double* centers, double* moved, int natm, int padded,
                                          long long n) {
  extern __shared__ double shared[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = blockDim.x >> 5;
  double* position = shared;                              // [3][natm], by distance
  uint64* keys = reinterpret_cast<uint64*>(position + 3 * natm);  // [padded]; then the list of candidates
  int* atom = reinterpret_cast<int*>(keys + padded);      // [natm] which atom each of the sorted ones is
  double* mine = reinterpret_cast<double*>(atom + ((natm + 1) & ~1)) + warp * (REVERSE ? 6 : 2) * natm;
  double* r = mine;                                       // [natm] distances from the warp's point
  double* product = mine + natm;                          // [candidates]
#if REVERSE
  double* push = mine + 2 * natm;                         // [natm] derivatives with respect to the distances
  double* pull = mine + 3 * natm;                         // [natm][3] sums for the nuclei
  for (int j = lane; j < 3 * natm; j += 32) pull[j] = 0.0;
#endif
  __shared__ double low[3], high[3];
  __shared__ int candidates;
  __shared__ double reach[SEARCH];
  const long long first = static_cast<long long>(blockIdx.x) * POINTS;
  const int used = static_cast<int>(min(static_cast<long long>(POINTS), n - first));
  if (warp == 0) {
    double a[3] = {1e300, 1e300, 1e300}, b[3] = {-1e300, -1e300, -1e300};
    for (int p = lane; p < used; p += 32) {
#pragma unroll
      for (int k = 0; k < 3; k++) {
        const double v = points[3 * (first + p) + k];
        a[k] = fmin(a[k], v);
        b[k] = fmax(b[k], v);
      }
    }
#pragma unroll
    for (int k = 0; k < 3; k++) {
      for (int o = 16; o; o >>= 1) {
        a[k] = fmin(a[k], __shfl_xor_sync(0xffffffffu, a[k], o));
        b[k] = fmax(b[k], __shfl_xor_sync(0xffffffffu, b[k], o));
      }
      if (lane == 0) {
        low[k] = a[k];
        high[k] = b[k];
      }
    }
    if (lane == 0) candidates = 0;
  }
  __syncthreads();
  const double cx = 0.5 * (low[0] + high[0]), cy = 0.5 * (low[1] + high[1]), cz = 0.5 * (low[2] + high[2]);
  const double hx = 0.5 * (high[0] - low[0]), hy = 0.5 * (high[1] - low[1]), hz = 0.5 * (high[2] - low[2]);
  const double radius = sqrt(hx * hx + hy * hy + hz * hz) * (1.0 + 1e-12) + 1e-12;
  for (int j = tid; j < padded; j += blockDim.x) {
    uint64 key = ~0ull;
    if (j < natm) {
      const double x = coords[3 * j] - cx, y = coords[3 * j + 1] - cy, z = coords[3 * j + 2] - cz;
      key = static_cast<uint64>(__float_as_uint(static_cast<float>(sqrt(x * x + y * y + z * z)))) << 32 | static_cast<unsigned>(j);
    }
    keys[j] = key;
  }
  __syncthreads();
  for (int k = 2; k <= padded; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      for (int i = tid; i < padded / 2; i += blockDim.x) {
        const int a = 2 * i - (i & (j - 1)), b = a + j;
        const uint64 x = keys[a], y = keys[b];
        if ((x > y) == ((a & k) == 0)) {
          keys[a] = y;
          keys[b] = x;
        }
      }
      __syncthreads();
    }
  }
  for (int j = tid; j < natm; j += blockDim.x) {
    const int at = static_cast<int>(keys[j] & 0xffffffffu);
    atom[j] = at;
#pragma unroll
    for (int k = 0; k < 3; k++) position[k * natm + j] = coords[3 * at + k];
  }
  __syncthreads();
  const auto from_centre = [&](int j) {
    const double x = position[j] - cx, y = position[natm + j] - cy, z = position[2 * natm + j] - cz;
    return sqrt(x * x + y * y + z * z);
  };
  const int search = min(SEARCH, natm);
  if (tid < search) reach[tid] = from_centre(tid) + radius;
  __syncthreads();
  // Candidates in order: the flags first, then one warp compacts them.
  unsigned char* flag = reinterpret_cast<unsigned char*>(keys);
  __syncthreads();
  for (int i = tid; i < natm; i += blockDim.x) {
    const double nearest = fmax(from_centre(i) - radius, 0.0);
    double bound = 1.0;
    for (int j = 0; j < search && bound >= BOUND; j++) {
      if (j == i) continue;
      const double2 pair = __ldg(pairs + static_cast<long long>(atom[i]) * natm + atom[j]);
      const double mu = fmax((nearest - reach[j]) * pair.x, -1.0);
      if (mu > -1.0) bound *= step(fmin(fmax((1.0 - mu) * (1.0 - pair.y * (1.0 + mu)), 0.0), 2.0));
    }
    flag[i] = bound >= BOUND;
  }
  __syncthreads();
  short* list = reinterpret_cast<short*>(keys) + ((natm + 1) / 2);  // after the flags
  if (warp == 0) {
    int kept = 0;
    for (int base = 0; base < natm; base += 32) {
      const bool live = base + lane < natm && flag[base + lane];
      const unsigned votes = __ballot_sync(0xffffffffu, live);
      if (live) list[kept + __popc(votes & ((1u << lane) - 1))] = static_cast<short>(base + lane);
      kept += __popc(votes);
    }
    if (lane == 0) candidates = kept;
  }
  __syncthreads();
  for (int p = warp; p < used; p += warps) {
    const long long point = first + p;
#if REVERSE
    const double seed = cotangent[point];
    if (seed == 0.0) {
      if (lane < 3) moved[3 * point + lane] = 0.0;
      continue;
    }
#endif
    const double X = points[3 * point], Y = points[3 * point + 1], Z = points[3 * point + 2];
    const int own = owner[point];
    for (int j = lane; j < natm; j += 32) {
      const double x = X - position[j], y = Y - position[natm + j], z = Z - position[2 * natm + j];
      r[j] = sqrt(x * x + y * y + z * z);
#if REVERSE
      push[j] = 0.0;
#endif
    }
    __syncwarp();
    // All of the product of a candidate; the same on all lanes.
    const auto whole = [&](int i) {
      const double ri = r[i];
      const double2* row = pairs + static_cast<long long>(atom[i]) * natm;
      double running = 1.0;
      for (int j = lane; j < natm; j += 32) {
        if (j == i) continue;
        const double2 pair = __ldg(row + atom[j]);
        const double mu = (ri - r[j]) * pair.x;
        running *= step((1.0 - mu) * (1.0 - pair.y * (1.0 + mu)));
      }
      return product_of_warp(running);
    };
    const int near = min(FIRST, natm);
    double best = -1.0;
    int leader = 0;
    for (int base = 0; base < candidates; base += 32) {
      const int k = base + lane;
      if (k < candidates) {
        const int i = list[k];
        const double ri = r[i];
        const double2* row = pairs + static_cast<long long>(atom[i]) * natm;
        double limit = 1.0;
        for (int j = 0; j < near; j++) {
          if (j == i) continue;
          const double2 pair = __ldg(row + atom[j]);
          const double mu = (ri - r[j]) * pair.x;
          limit *= step((1.0 - mu) * (1.0 - pair.y * (1.0 + mu)));
        }
        product[k] = limit;
        if (!(limit <= best)) {
          best = limit;
          leader = k;
        }
      }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const double other = __shfl_xor_sync(0xffffffffu, best, o);
      const int whose = __shfl_xor_sync(0xffffffffu, leader, o);
      if (other > best || (other == best && whose < leader)) {
        best = other;
        leader = whose;
      }
    }
    leader = __shfl_sync(0xffffffffu, leader, 0);  // lanes could differ only where NaN is among the bounds
    const double least = whole(list[leader]);
    double total = 0.0, owned = 0.0;
    for (int base = 0; base < candidates; base += 32) {
      const int k = base + lane;
      const bool mine_left = k < candidates && !(product[k] < (atom[list[k]] == own ? NEGLIGIBLE : UNSEEN) * least);
      unsigned left = __ballot_sync(0xffffffffu, mine_left);
      if (k < candidates && !mine_left) product[k] = 0.0;
      while (left) {
        const int at = base + __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        const int i = list[at];
        const double value = at == leader ? least : whole(i);
        total += value;
        if (atom[i] == own) owned = value;
        if (lane == 0) product[at] = value;
      }
    }
    __syncwarp();
    double share = owned / total;
    if (share < NEGLIGIBLE) share = 0.0;
#if !REVERSE
    if (lane == 0) fraction[point] = share;
#else
    // d f = f (d log P_own - sum_i f_i d log P_i)
    double gx = 0.0, gy = 0.0, gz = 0.0;
    if (share != 0.0) {
      for (int k = 0; k < candidates; k++) {
        const int i = list[k];
        const double part = product[k] / total;
        const double q = seed * share * ((atom[i] == own ? 1.0 : 0.0) - part);
        if (part == 0.0 || fabs(q) < 1e-16 * fabs(seed * share)) continue;
        const double ri = r[i];
        const double2* row = pairs + static_cast<long long>(atom[i]) * natm;
        double sum = 0.0, sx = 0.0, sy = 0.0, sz = 0.0;
        for (int base = 0; base < natm; base += 32) {
          const int j = base + lane;
          if (j < natm && j != i) {
            const double2 pair = __ldg(row + atom[j]);
            const double mu = (ri - r[j]) * pair.x, t = (1.0 - mu) * (1.0 - pair.y * (1.0 + mu));
            const double rate = slope(t);
            if (rate != 0.0) {
              const double k1 = -q * (1.0 - 2.0 * pair.y * mu) * rate / step(t) * pair.x;
              sum += k1;
              push[j] -= k1;
              // |R_i - R_j| changes along e = (R_i - R_j) / |R_i - R_j|.
              const double k2 = k1 * mu * pair.x;
              const double x = k2 * (position[i] - position[j]), y = k2 * (position[natm + i] - position[natm + j]),
                           z = k2 * (position[2 * natm + i] - position[2 * natm + j]);
              sx -= x;
              sy -= y;
              sz -= z;
              pull[3 * j] += x;
              pull[3 * j + 1] += y;
              pull[3 * j + 2] += z;
            }
          }
        }
        sum = sum_of_warp(sum);
        sx = sum_of_warp(sx);
        sy = sum_of_warp(sy);
        sz = sum_of_warp(sz);
        __syncwarp();
        if (lane == (i & 31)) {  // the lane that owns j = i
          push[i] += sum;
          pull[3 * i] += sx;
          pull[3 * i + 1] += sy;
          pull[3 * i + 2] += sz;
        }
        __syncwarp();
      }
      for (int j = lane; j < natm; j += 32) {
        if (r[j] > 0.0) {
          const double h = push[j] / r[j];
          const double x = h * (X - position[j]), y = h * (Y - position[natm + j]), z = h * (Z - position[2 * natm + j]);
          gx += x;
          gy += y;
          gz += z;
          pull[3 * j] -= x;
          pull[3 * j + 1] -= y;
          pull[3 * j + 2] -= z;
        }
      }
    }
    gx = sum_of_warp(gx);
    gy = sum_of_warp(gy);
    gz = sum_of_warp(gz);
    if (lane < 3) moved[3 * point + lane] = lane == 0 ? gx : lane == 1 ? gy : gz;
#endif
    __syncwarp();
  }
#if REVERSE
  __syncthreads();
  const double* all = reinterpret_cast<const double*>(atom + ((natm + 1) & ~1));
  for (int i = tid; i < 3 * natm; i += blockDim.x) {
    double v = 0.0;
    for (int w = 0; w < warps; w++) v += all[w * 6 * natm + 3 * natm + i];
    if (v != 0.0) atomicAdd(centers + 3 * atom[i / 3] + i % 3, v);
  }
#endif
}
