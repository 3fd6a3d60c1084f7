// Lists of the shells that reach each row of grid points, sorted by falling bound, and the rows by falling number of functions.
#include "xc_common.cuh"

// One thread a shell: its record, and its primitives by rising exponent, so that the live ones come first.
extern "C" __global__ void xc_basis(const double* centers, const double* exponents, const double* coefficients, const uint64* meta,
                                    int nshell, ShellRecord* shells, Primitive* prims) {
  const int s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s >= nshell) return;
  const uint64 m = meta[s];
  shells[s] = {centers[3 * s], centers[3 * s + 1], centers[3 * s + 2], m};
  const int n = (m >> 8) & 0xff, start = (m >> 16) & 0xffffff;
  for (int i = 0; i < n; i++) {
    const Primitive p = {exponents[start + i], coefficients[start + i]};
    int j = i;
    for (; j > 0 && prims[start + j - 1].exponent > p.exponent; j--) prims[start + j] = prims[start + j - 1];
    prims[start + j] = p;
  }
}

// max over r' >= r of r'^k exp(-a r'^2)
__device__ __forceinline__ float envelope(int k, float a, float r2) {
  const float x = fmaxf(r2, 0.5f * k / a);
  float power = 1.0f;
  const float root = sqrtf(x);
  for (int i = 0; i < k; i++) power *= root;
  return power * expf(-a * x);
}

// Upper bound of |phi| and GRADIENT_SHARE |grad phi| at distances from sqrt(r2) on. By the addition theorem the functions of a
// shell obey sum Y^2 = (2l+1)/(4 pi) r^(2l) and sum |grad Y|^2 = l (2l+1)^2 / (4 pi) r^(2l-2). Single precision: made 1 % larger.
__device__ float shell_bound(const ShellRecord& shell, const Primitive* prims, float r2, float gradient_share, int cart) {
  const int l = shell.meta & 0xff, n = (shell.meta >> 8) & 0xff;
  const Primitive* p = prims + ((shell.meta >> 16) & 0xffffff);
  float value_factor = 1.0f, slope_factor = l;
  if (l > 1 && !cart) {
    value_factor = sqrtf((2 * l + 1) * 0.0795774715f);
    slope_factor = (2 * l + 1) * sqrtf(l * 0.0795774715f);
  }
  float value = 0.0f, slope = 0.0f;
  for (int i = 0; i < n; i++) {
    const float a = fmaxf((float)p[i].exponent, 1e-30f), c = fabsf((float)p[i].coefficient);
    value += c * envelope(l, a, r2);
    slope += c * (2.0f * a * value_factor * envelope(l + 1, a, r2) + (l ? slope_factor * envelope(l - 1, a, r2) : 0.0f));
  }
  return 1.01f * fmaxf(value * value_factor, gradient_share * slope);
}

// One block of 128 threads a row. Shared memory: `size` sort keys (a power of two).
#define THREADS 128
#define CHUNK 512
extern "C" __global__ __launch_bounds__(THREADS) void xc_rows(const ShellRecord* shells, const Primitive* prims, const double* points,
                                                              const double* weights, int nshell, int row_size, int capacity, int size,
                                                              int cart, double epsilon, double envelope_epsilon, double margin,
                                                              double gradient_share, int* count, int* functions, int* list,
                                                              float* bound, float* weight_max, int* overflow) {
  extern __shared__ uint64 keys[];
  __shared__ double px[256], py[256], pz[256];
  __shared__ int candidates[CHUNK], ncandidate, nkept, nfunction;
  __shared__ float box[6][THREADS / 32], reduced[THREADS / 32];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int64 row = blockIdx.x;
  float low[3] = {3e38f, 3e38f, 3e38f}, high[3] = {-3e38f, -3e38f, -3e38f}, wmax = 0.0f;
  for (int i = tid; i < row_size; i += THREADS) {
    const int64 p = row * row_size + i;
    const double x = points[3 * p], y = points[3 * p + 1], z = points[3 * p + 2];
    px[i] = x;
    py[i] = y;
    pz[i] = z;
    low[0] = fminf(low[0], __double2float_rd(x));
    low[1] = fminf(low[1], __double2float_rd(y));
    low[2] = fminf(low[2], __double2float_rd(z));
    high[0] = fmaxf(high[0], __double2float_ru(x));
    high[1] = fmaxf(high[1], __double2float_ru(y));
    high[2] = fmaxf(high[2], __double2float_ru(z));
    const double w = fabs(weights[p]);
    wmax = fmaxf(wmax, __double2float_ru(w));
    if (!(w <= 1.79e308)) wmax = 3e38f;  // NaN keeps the row, so that it reaches the result
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) {
#pragma unroll
    for (int k = 0; k < 3; k++) {
      low[k] = fminf(low[k], __shfl_xor_sync(0xffffffffu, low[k], o));
      high[k] = fmaxf(high[k], __shfl_xor_sync(0xffffffffu, high[k], o));
    }
    wmax = fmaxf(wmax, __shfl_xor_sync(0xffffffffu, wmax, o));
  }
  if (lane == 0) {
    for (int k = 0; k < 3; k++) {
      box[k][warp] = low[k];
      box[k + 3][warp] = high[k];
    }
    reduced[warp] = wmax;
  }
  if (tid == 0) {
    ncandidate = 0;
    nkept = 0;
    nfunction = 0;
  }
  __syncthreads();
  for (int w = 0; w < THREADS / 32; w++) {
    for (int k = 0; k < 3; k++) {
      low[k] = fminf(low[k], box[k][w]);
      high[k] = fmaxf(high[k], box[k + 3][w]);
    }
    wmax = fmaxf(wmax, reduced[w]);
  }
  if (tid == 0) weight_max[row] = wmax;
  const float cut = static_cast<float>(envelope_epsilon);
  float largest = 0.0f;
  for (int base = 0; wmax > 0.0f && base < nshell; base += CHUNK) {
    // Shells that may reach the box of the row.
    for (int s = base + tid; s < min(nshell, base + CHUNK); s += THREADS) {
      const ShellRecord shell = load_record(shells + s);
      float r2 = 0.0f;
      const float at[3] = {(float)shell.x, (float)shell.y, (float)shell.z};
#pragma unroll
      for (int k = 0; k < 3; k++) {
        const float d = fmaxf(fmaxf(low[k] - at[k], at[k] - high[k]), 0.0f);
        r2 += d * d;
      }
      r2 = r2 * 0.999f - 1e-5f;
      if (!(shell_bound(shell, prims, fmaxf(r2, 0.0f), (float)gradient_share, cart) <= cut)) candidates[atomicAdd(&ncandidate, 1)] = s;
    }
    __syncthreads();
    // Exact distance of the nearest point.
    for (int c = tid; c < ncandidate; c += THREADS) {
      const int s = candidates[c];
      const ShellRecord shell = load_record(shells + s);
      double nearest = 1e300;
      for (int i = 0; i < row_size; i++) {
        const double x = px[i] - shell.x, y = py[i] - shell.y, z = pz[i] - shell.z;
        nearest = fmin(nearest, x * x + y * y + z * z);
      }
      const float r2 = __double2float_rd(nearest);
      float b = shell_bound(shell, prims, r2, (float)gradient_share, cart);
      if (!(b <= cut)) {
        if (!(b < 3e38f)) b = 3e38f;
        const int n = (shell.meta >> 8) & 0xff;
        const Primitive* p = prims + ((shell.meta >> 16) & 0xffffff);
        int live = 1;
        while (live < n && (epsilon <= 0.0 || p[live].exponent * nearest < 46.0)) live++;
        const int at = atomicAdd(&nkept, 1);
        // Falling bound, then rising code: bounds are positive, so their bits are ordered as they are.
        if (at < size) keys[at] = (uint64)__float_as_uint(b) << 32 | (0xffffffffu - (unsigned)(s | live << 20));
        largest = fmaxf(largest, b);
      }
    }
    __syncthreads();
    if (tid == 0) ncandidate = 0;
    __syncthreads();
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
  __syncthreads();
  if (lane == 0) reduced[warp] = largest;
  __syncthreads();
  for (int w = 0; w < THREADS / 32; w++) largest = fmaxf(largest, reduced[w]);
  const int met = nkept, n = min(met, size);
  int padded = 1;
  while (padded < n) padded *= 2;
  // What no partner makes matter goes to the end.
  const double factor = (double)largest * wmax * margin;
  for (int i = tid; i < padded; i += THREADS) {
    if (i >= n || !(__uint_as_float((unsigned)(keys[i] >> 32)) * factor > epsilon)) keys[i] = 0;
  }
  __syncthreads();
  for (int k = 2; k <= padded; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      for (int i = tid; i < padded / 2; i += THREADS) {
        const int a = 2 * i - (i & (j - 1)), b = a + j;
        const bool falling = (a & k) == 0;
        const uint64 x = keys[a], y = keys[b];
        if ((x < y) == falling) {
          keys[a] = y;
          keys[b] = x;
        }
      }
      __syncthreads();
    }
  }
  int mine = 0, functions_here = 0;
  for (int i = tid; i < max(n, capacity); i += THREADS) {
    const uint64 key = i < n ? keys[i] : 0;
    const unsigned code = key ? 0xffffffffu - (unsigned)key : 0u;
    if (key) {
      mine++;
      functions_here += shell_size((int)(shells[code & 0xfffff].meta & 0xff));
    }
    if (i < capacity) {
      list[row * capacity + i] = (int)code;
      bound[row * capacity + i] = __uint_as_float((unsigned)(key >> 32));
    }
  }
  if (tid == 0) nkept = 0;
  __syncthreads();
  atomicAdd(&nkept, mine);
  atomicAdd(&nfunction, functions_here);
  __syncthreads();
  if (tid == 0) {
    const int kept = met > size ? met : nkept;
    count[row] = min(kept, capacity);
    functions[row] = nfunction;
    atomicMax(overflow, kept);
  }
}

// One block: a stable counting sort of the rows by falling number of functions / 8, and the number of rows above each multiple.
#define KEYS 1024
extern "C" __global__ __launch_bounds__(1024) void xc_order(const int* functions, int nrow, int* order, int* first) {
  extern __shared__ int counters[];  // (32 warps, KEYS)
  __shared__ int sums[KEYS];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int part = (nrow + 31) / 32, begin = warp * part, end = min(nrow, begin + part);
  for (int i = tid; i < 32 * KEYS; i += 1024) counters[i] = 0;
  __syncthreads();
  int* mine = counters + warp * KEYS;
  for (int i = begin + lane; i < end; i += 32) atomicAdd(mine + (KEYS - 1 - min((functions[i] + 7) / 8, KEYS - 1)), 1);
  __syncthreads();
  int total = 0;
  for (int w = 0; w < 32; w++) {
    const int c = counters[w * KEYS + tid];
    counters[w * KEYS + tid] = total;
    total += c;
  }
  sums[tid] = total;
  __syncthreads();
  for (int o = 1; o < KEYS; o <<= 1) {
    const int v = tid >= o ? sums[tid - o] : 0;
    __syncthreads();
    sums[tid] += v;
    __syncthreads();
  }
  // Rows whose key exceeds k are those of the bins 0 ... KEYS - 2 - k.
  first[tid] = tid == KEYS - 1 ? 0 : sums[KEYS - 2 - tid];
  const int before = sums[tid] - total;
  for (int w = 0; w < 32; w++) counters[w * KEYS + tid] += before;
  __syncthreads();
  for (int base = begin; base < end; base += 32) {
    const int i = base + lane;
    const bool valid = i < end;
    const int bin = valid ? KEYS - 1 - min((functions[i] + 7) / 8, KEYS - 1) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, bin);
    const int rank = __popc(same & ((1u << lane) - 1));
    if (valid) order[mine[bin] + rank] = i;
    __syncwarp();
    if (valid && rank == 0) mine[bin] += __popc(same);
    __syncwarp();
  }
}
