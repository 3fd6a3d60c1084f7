// What all exchange-correlation kernels share: shells in shared memory, radial functions, matrix units.
#pragma once
#include "xc_angular.cuh"

typedef long long int64;
typedef unsigned long long uint64;

// A shell in device memory; meta = l | primitives << 8 | first primitive << 16 | first function << 40.
struct __align__(16) ShellRecord {
  double x, y, z;
  uint64 meta;
};

// Primitives of a shell by rising exponent.
struct __align__(16) Primitive {
  double exponent, coefficient;
};

// A shell of the row at hand. `offset` is its first function within the row, `ao` within the molecule.
struct ShellEntry {
  double x, y, z;
  int prim, ao;
  unsigned short offset;
  unsigned char l, nprim;
  float bound;
};

__device__ __forceinline__ double2 load_pair(const void* p) { return __ldg(reinterpret_cast<const double2*>(p)); }

__device__ __forceinline__ ShellRecord load_record(const ShellRecord* p) {
  const double2 a = load_pair(p), b = load_pair(reinterpret_cast<const char*>(p) + 16);
  return {a.x, a.y, b.x, static_cast<uint64>(__double_as_longlong(b.y))};
}

// exp(x) for x <= 0 to 2 ulp: Cody-Waite reduction, Taylor polynomial of degree 11. Underflow stops at exp(-700).
__device__ __forceinline__ double exp_negative(double x) {
  x = x < -700.0 ? -700.0 : x;
  const double shifted = fma(x, 1.4426950408889634074, 6755399441055744.0);
  const int n = __double2loint(shifted);
  const double f = shifted - 6755399441055744.0;
  double r = fma(f, -6.93147180369123816490e-01, x);
  r = fma(f, -1.90821492927058770002e-10, r);
  double p = 2.50521083854417187751e-8;
  p = fma(p, r, 2.75573192239858906526e-7);
  p = fma(p, r, 2.75573192239858906526e-6);
  p = fma(p, r, 2.48015873015873015873e-5);
  p = fma(p, r, 1.98412698412698412698e-4);
  p = fma(p, r, 1.38888888888888888889e-3);
  p = fma(p, r, 8.33333333333333333333e-3);
  p = fma(p, r, 4.16666666666666666667e-2);
  p = fma(p, r, 1.66666666666666666667e-1);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  return __hiloint2double(__double2hiint(p) + (n << 20), __double2loint(p));
}

// R = sum c exp(-a r^2) and its derivatives with respect to r^2 times 2 (ORDER 1) and 4 (ORDER 2): R' = dR/dr / r and so on.
template <int NP, int ORDER>
__device__ __forceinline__ void radial(const Primitive* prims, int n, const double* r2, double* R, double* R1, double* R2) {
#pragma unroll
  for (int q = 0; q < NP; q++) {
    R[q] = 0;
    if (ORDER > 0) R1[q] = 0;
    if (ORDER > 1) R2[q] = 0;
  }
  for (int i = 0; i < n; i++) {
    const double2 p = load_pair(prims + i);
    const double m = -2.0 * p.x;
#pragma unroll
    for (int q = 0; q < NP; q++) {
      const double e = p.y * exp_negative(-p.x * r2[q]);
      R[q] += e;
      if (ORDER > 0) R1[q] = fma(m, e, R1[q]);
      if (ORDER > 1) R2[q] = fma(m * m, e, R2[q]);
    }
  }
}

// Values and derivatives of a shell at a point, of function m to place(m) in four arrays, `array` apart; negative: to none.
template <class Place>
__device__ __forceinline__ void make_gradients(const Primitive* prims, const ShellEntry& e, double X, double Y, double Z, double* to,
                                               int array, const Place& place) {
  const double x = X - e.x, y = Y - e.y, z = Z - e.z, r2[1] = {x * x + y * y + z * z};
  double R[1], R1[1];
  radial<1, 1>(prims + e.prim, e.nprim, r2, R, R1, nullptr);
  angular_gradients(e.l, x, y, z, [&](int m, double v, double vx, double vy, double vz) {
    const int offset = place(m);
    if (offset < 0) return;
    const double along = v * R1[0];
    double* at = to + offset;
    at[0] = v * R[0];
    at[array] = fma(along, x, R[0] * vx);
    at[2 * array] = fma(along, y, R[0] * vy);
    at[3 * array] = fma(along, z, R[0] * vz);
  });
}

// D (16 x 8) += A (16 x 8) B (8 x 8): lane = 4 g + t holds A[g][t], A[g+8][t], A[g][t+4], A[g+8][t+4], B[t][g], B[t+4][g] and
// D[g][2t], D[g][2t+1], D[g+8][2t], D[g+8][2t+1].
#ifndef EMULATED  // by tests, on a CPU
__device__ __forceinline__ void mma(double* d, const double* a, double b0, double b1) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
               : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
#define MMA884(c0, c1, a, b) \
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};" : "+d"(c0), "+d"(c1) : "d"(a), "d"(b))
  MMA884(d[0], d[1], a[0], b0);
  MMA884(d[2], d[3], a[1], b0);
  MMA884(d[0], d[1], a[2], b1);
  MMA884(d[2], d[3], a[3], b1);
#endif
}
#endif

// The lists of all rows.
struct Lists {
  const ShellRecord* shells;
  const Primitive* prims;
  const double* points;  // (n, 3)
  const int* count;      // (rows)
  const int* order;      // (rows) rows by falling number of functions, then `first`
  const int* first;      // (1024) rows with more than 8 k functions
  const int* list;       // (rows, capacity)
  const float* bound;    // (rows, capacity)
  int capacity;
};

// What is added to all results: NaN where a list did not fit.
__device__ __forceinline__ double poison_of(const int* overflow, int capacity) {
  return __ldg(overflow) > capacity ? __longlong_as_double(0x7ff8000000000000ll) : 0.0;
}

// The rows whose number of functions is above `low` and at most `high`; multiples of 8, at most 8184; high < 0: no limit.
__device__ __forceinline__ int2 class_range(const int* first, int low, int high) {
  return make_int2(high < 0 ? 0 : __ldg(first + high / 8), __ldg(first + low / 8));
}

// Fills `entries`, with offsets; returns the number of functions of the row. All threads of the block call it.
__device__ __forceinline__ int load_entries(const Lists& lists, int row, int ns, ShellEntry* entries, int* total) {
  const int tid = threadIdx.x;
  for (int i = tid; i < ns; i += blockDim.x) {
    const int64 at = static_cast<int64>(row) * lists.capacity + i;
    const int code = __ldg(lists.list + at);
    const ShellRecord r = load_record(lists.shells + (code & 0xfffff));
    ShellEntry e;
    e.x = r.x;
    e.y = r.y;
    e.z = r.z;
    e.prim = static_cast<int>((r.meta >> 16) & 0xffffff);
    e.ao = static_cast<int>(r.meta >> 40);
    e.l = static_cast<unsigned char>(r.meta & 0xff);
    e.nprim = static_cast<unsigned char>(code >> 20);
    e.offset = 0;
    e.bound = __ldg(lists.bound + at);
    entries[i] = e;
  }
  __syncthreads();
  if (tid < 32) {
    int running = 0;
    for (int base = 0; base < ns; base += 32) {
      const int i = base + tid;
      const int size = i < ns ? shell_size(entries[i].l) : 0;
      int sum = size;
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, sum, o);
        if (tid >= o) sum += other;
      }
      if (i < ns) entries[i].offset = static_cast<unsigned short>(running + sum - size);
      running += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (tid == 0) *total = running;
  }
  __syncthreads();
  return *total;
}

// Lists the shells [begin, end) that are wanted by angular momentum, so that neighbours in the list are mostly of one kind; returns
// how many there are. All threads call it; what they read and write meets at barriers on both sides.
template <int WARPS, class Wanted>
__device__ __forceinline__ int list_by_momentum(const ShellEntry* entries, int begin, int end, short* list, int* listed, Wanted wanted) {
  const int lane = threadIdx.x & 31;
  __syncthreads();
  // A warp counts the shells of smaller momenta, then adds its own; the last counts all.
  for (int l = threadIdx.x >> 5; l <= LMAX + 1; l += WARPS) {
    int at = 0;
#pragma unroll 1
    for (int pass = 0; pass < (l > LMAX ? 1 : 2); pass++) {
      for (int base = begin; base < end; base += 32) {
        const int s = base + lane;
        const bool mine = s < end && (pass ? entries[s].l == l : entries[s].l < l) && wanted(entries[s]);
        const unsigned voters = __ballot_sync(0xffffffffu, mine);
        if (pass && mine) list[at + __popc(voters & ((1u << lane) - 1))] = static_cast<short>(s);
        at += __popc(voters);
      }
    }
    if (l > LMAX && lane == 0) *listed = at;
  }
  __syncthreads();
  return *listed;
}
