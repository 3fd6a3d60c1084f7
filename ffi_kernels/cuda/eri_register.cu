// Structure A: one thread a quartet, one bra pair a block. The generated recurrence runs inside the loops over primitives, both horizontal
// recurrences follow in registers; K and J of the ket go through shared memory into shell-blocked matrices. So that registers suffice, sums of HELD of the
// columns f of (e0|f0), and J of the bra (SUMS_APART), may be in shared memory meanwhile. With all of them there (SLICED), the functions a of the bra
// follow one after the other, each with its own (ab|cd).
#include "eri_boys.cuh"

__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__device__ constexpr int odd(int n) { return n | 1; }  // rows of an odd number of doubles have no bank conflicts
#if SLICED
constexpr int kSums = kE * kF, kOthers = kFunctionsA * (kFunctionsC + kFunctionsD), kRow = odd(kSums + kOthers);  // of a thread: sums, K of (ac) and (ad)
static_assert(kOthers >= kFunctionsB * kFunctionsC && kOthers >= kCD, "the other matrices follow in their place");
#else
constexpr int kWidest = larger(larger(larger(kFunctionsA * kFunctionsC, kFunctionsA * kFunctionsD),
                                      larger(kFunctionsB * kFunctionsC, kFunctionsB * kFunctionsD)), larger(kCD, kE * HELD));
constexpr int kRow = odd(kWidest);
#endif

#if HELD
#define SUMS h, held
#else
#define SUMS h
#endif

// (e0|f0) of one contracted quartet: the last HELD columns in held[e * HELD + f], the others in h[e * kF + f].
__device__ __forceinline__ void recurrence(const Pairs& pairs, const double* a, const double* c, int4 bra, int4 ket, const real* rows, const real* grid,
                                           real omega, volatile real* held, real* h) {
  if (QUARTETS != UNCONTRACTED) {
#pragma unroll
    for (int n = 0; n < kE * kF; ++n) h[n] = 0.0;
#pragma unroll
    for (int n = 0; n < kE * HELD; ++n) held[n] = 0.0;
  }
  // Loads of the ket, which differ from lane to lane, cost more than those of the bra: where registers suffice they are in the outer loop.
  for (int outer = 0; outer < (QUARTETS == UNCONTRACTED ? 1 : KET_OUTER ? ket.w : bra.w); ++outer) {
    for (int inner = 0; inner < (QUARTETS == UNCONTRACTED ? 1 : KET_OUTER ? bra.w : ket.w); ++inner) {
      const int ip = bra.z + (KET_OUTER ? inner : outer) * kTile, iq = ket.z + (KET_OUTER ? outer : inner) * kTile;
      const PrimitivePair q(pairs, iq);
      const real p = pairs.p[ip], px = pairs.x()[ip], py = pairs.y()[ip], pz = pairs.z()[ip];
      const Primitives s(p, seen(px, a[0], c[0]), seen(py, a[1], c[1]), seen(pz, a[2], c[2]), pairs.weight()[ip], q);
      real f[kTotal + 1];
      boys<kTotal>(s, p, rows, grid, omega, f);
      vrr<real, real>(SUMS, f, relative(px, a[0]), relative(py, a[1]), relative(pz, a[2]), relative(q.x, c[0]), relative(q.y, c[1]), relative(q.z, c[2]),
                      -s.rho_p * s.x, -s.rho_p * s.y, -s.rho_p * s.z, s.rho_q * s.x, s.rho_q * s.y, s.rho_q * s.z, kHalf * pairs.inverse()[ip],
                      kHalf * pairs.inverse()[iq], kHalf * s.inverse_pq, s.rho_p, s.rho_q);
    }
  }
}

// (ab|cd) of one contracted quartet, v[ab * kCD + cd].
__device__ __forceinline__ void quartet(const Pairs& pairs, int bra_at, int4 bra, int ket_at, int4 ket, const real* rows, const real* grid, real omega,
                                        volatile real* held, real* v) {
  const double *a = pairs.centers + 6 * int64{bra_at}, *c = pairs.centers + 6 * int64{ket_at};
  real h[kE * kF], g[kAB * kF];
  recurrence(pairs, a, c, bra, ket, rows, grid, omega, held, h);
#pragma unroll
  for (int f = 0; f < kF - HELD; ++f) HRR_BRA<kF, kF, real, real>(h + f, g + f, a[3], a[4], a[5]);
#pragma unroll
  for (int f = 0; f < HELD; ++f) {
    real column[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) column[e] = held[e * HELD + f];
    HRR_BRA<1, kF, real, real>(column, g + kF - HELD + f, a[3], a[4], a[5]);
  }
#pragma unroll
  for (int n = 0; n < kAB; ++n) HRR_KET<1, 1, real, real>(g + n * kF, v + n * kCD, c[3], c[4], c[5]);
}

#if SLICED
// (ab|cd) of N functions a from the FIRST on, v[ab * kCD + cd], from (e0|f0) held[e * kF + f]; what other functions need alone is not computed.
template <int FIRST, int N>
__device__ __forceinline__ void slice(const real* held, const double* bra, const double* ket, real* v) {
  real g[kAB * kF];
#pragma unroll
  for (int f = 0; f < kF; ++f) {
    real column[kE];
#pragma unroll
    for (int e = 0; e < kE; ++e) column[e] = held[e * kF + f];
    HRR_BRA<1, kF, real, real>(column, g + f, bra[3], bra[4], bra[5]);
  }
#pragma unroll
  for (int n = 0; n < N * kFunctionsB; ++n) HRR_KET<1, 1, real, real>(g + (FIRST * kFunctionsB + n) * kF, v + n * kCD, ket[3], ket[4], ket[5]);
}
#endif

#if SCHWARZ
extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_bound(const int2* shells, const int4* info, const double* centers, const real* prims, int64 capacity, const real* rows,
              const real* grid, double omega, int first, int count, float* bound) {
  const int n = blockIdx.x * BLOCK + threadIdx.x;
  if (n >= count) return;
  const Pairs pairs = {shells, info, centers, prims, capacity, nullptr};
  const int4 pair = info[first + n];
  double largest = 0.0;
  if (pair.w > 0) {
    real v[kAB * kCD];
    quartet(pairs, first + n, pair, first + n, pair, rows, grid, omega, nullptr, v);
#pragma unroll
    for (int k = 0; k < kAB; ++k) largest = fmax(largest, fabs(v[k * kCD + k]));
  }
  bound[first + n] = largest > 0.0 ? static_cast<float>(0.5 * log(largest)) : kNothing;
}
#else

// Adds the N numbers of each lane to N consecutive ones at target + base, lanes emitting neighbouring addresses; base < 0: nothing.
template <int N, int ROW = odd(N)>
__device__ __forceinline__ void flush(const real* strip, int* bases, double* target, int64 base) {
  const int lane = threadIdx.x & 31;
  bases[lane] = static_cast<int>(base);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int item = n * 32 + lane, from = item / N, entry = item - from * N;
    if (bases[from] >= 0) add(target + bases[from] + entry, strip[from * ROW + entry]);
  }
  __syncwarp();
}

#if HELD
template <int N>
__device__ __forceinline__ void zero(real* x) {
#pragma unroll
  for (int n = 0; n < N; ++n) x[n] = 0.0;
}

// As `flush`, of numbers in registers.
template <int N, int ROW>
__device__ __forceinline__ void give(const real* x, real* strips, int* bases, double* target, int64 base) {
#pragma unroll
  for (int n = 0; n < N; ++n) strips[(threadIdx.x & 31) * ROW + n] = x[n];
  flush<N, ROW>(strips, bases, target, base);
}
#endif

// strip[x * NY + y] = sum over u, w of v(x, y, u, w) d[u][w], where S* are the strides of v and d is a block of the density. MORE: added to what is there.
template <int NX, int NY, int NU, int NW, int SX, int SY, int SU, int SW, bool MORE = false>
__device__ __forceinline__ void contract(const real* v, const real* d, int nao, real scale, real* strip) {
  real block[NU * NW];
#pragma unroll
  for (int u = 0; u < NU; ++u)
#pragma unroll
    for (int w = 0; w < NW; ++w) block[u * NW + w] = scale * d[int64{u} * nao + w];
#pragma unroll
  for (int x = 0; x < NX; ++x)
#pragma unroll
    for (int y = 0; y < NY; ++y) {
      real sum = MORE ? strip[x * NY + y] : real(0.0);
#pragma unroll
      for (int u = 0; u < NU; ++u)
#pragma unroll
        for (int w = 0; w < NW; ++w) sum += v[x * SX + y * SY + u * SU + w * SW] * block[u * NW + w];
      strip[x * NY + y] = sum;
    }
}

#if SLICED
// Digests the functions a of the bra from the FIRST on, SLICED at a time: K of (ac) and (ad) go behind the sums, J of the bra to j_bra, the rest is added up.
template <int FIRST>
__device__ __forceinline__ void slices(real* held, const double* centers, const double* others, const real* density, int nao, int4 bra, int4 ket,
                                       real weight, double* j_bra, real* k_bc, real* k_bd, real* j_ket) {
  constexpr int A = kFunctionsA, B = kFunctionsB, C = kFunctionsC, D = kFunctionsD, N = FIRST + SLICED < A ? SLICED : A - FIRST;
  __syncwarp();  // or the compiler begins one slice within another, and runs out of registers
  real v[N * B * kCD];
  slice<FIRST, N>(held, centers, others, v);
  const real *d_a = density + (int64{bra.x} + FIRST) * nao, *d_b = density + int64{bra.y} * nao;
#if EXCHANGE
  contract<N, C, B, D, B * kCD, D, kCD, 1>(v, d_b + ket.y, nao, weight, held + kSums + FIRST * C);
  contract<N, D, B, C, B * kCD, 1, kCD, D>(v, d_b + ket.x, nao, weight, held + kSums + A * C + FIRST * D);
  contract<B, C, N, D, kCD, D, B * kCD, 1, true>(v, d_a + ket.y, nao, weight, k_bc);
  contract<B, D, N, C, kCD, 1, B * kCD, D, true>(v, d_a + ket.x, nao, weight, k_bd);
#endif
#if COULOMB
  real j_ab[N * B];
  contract<N * B, 1, C, D, kCD, 0, D, 1>(v, density + int64{ket.x} * nao + ket.y, nao, real(2.0) * weight, j_ab);
#pragma unroll
  for (int n = 0; n < N * B; ++n) j_bra[(FIRST * B + n) * BLOCK] += j_ab[n];
  contract<1, kCD, N, B, 0, 1, B * kCD, kCD, true>(v, d_a + bra.y, nao, real(2.0) * weight, j_ket);
#endif
  if constexpr (FIRST + N < A) slices<FIRST + N>(held, centers, others, density, nao, bra, ket, weight, j_bra, k_bc, k_bd, j_ket);
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, MINBLOCKS)
    eri_register(const int2* shells, const int4* info, const double* centers, const real* prims, int64 capacity, const float* bound,
                 const int* bra_groups, const int* ket_groups, int ngroup, const real* density, const float* density_bound,
                 const float* top, double* j, double* k, const real* rows, const real* grid, double omega, double threshold, int nao,
                 int nshell, int bra_first, int bra_step, const int* part, int same, double limit REACH_PARAMETERS) {
  extern __shared__ real shared[];
  __shared__ int slots[BLOCK / 32][64], bases[BLOCK / 32][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int bra_at = bra_first + part[0] + blockIdx.x * bra_step;
  if (bra_at >= bra_groups[ngroup]) return;
  const Pairs pairs = {shells, info, centers, prims, capacity, bound};
  const Screen screen = {bound, shells, density_bound, nshell, top[0] + kCoulombLog, static_cast<float>(threshold), static_cast<float>(limit) REACH};
  const int4 bra = info[bra_at];
  if (!kets_of(bra, ket_groups, ngroup)) return;
  const int2 bra_shells = shells[bra_at];
  const int64 square = int64{nao} * nao;
#if SUMS_APART
  double* j_bra = reinterpret_cast<double*>(shared + BLOCK * kRow) + threadIdx.x;
  constexpr int kStride = BLOCK;
#else
  double j_bra[SETS * kAB];
  constexpr int kStride = 1;
#endif
#pragma unroll
  for (int n = 0; n < (COULOMB ? SETS * kAB : 0); ++n) j_bra[n * kStride] = 0.0;
  real* strips = shared + warp * 32 * kRow;
  KetQueue queue{slots[warp]};
  while (true) {
    queue.fill<32>(screen, ket_groups, ngroup, same ? bra_at + 1 : 0x7fffffff, (blockIdx.y * (BLOCK / 32) + warp) * 32, BLOCK * gridDim.y,
                   bound[bra_at], bra_shells);
    if (queue.count == 0) break;
    const int taken = min(queue.count, 32);
    queue.count -= taken;
    const bool live = lane < taken;
    const int ket_at = queue.slots[queue.count + (live ? lane : 0)];
    __syncwarp();
    const int4 ket = info[ket_at];
    const real weight = live ? multiplicity(bra, ket, same) : 0.0;
#if SLICED
    const double *centers = pairs.centers + 6 * int64{bra_at}, *others = pairs.centers + 6 * int64{ket_at};
    constexpr int A = kFunctionsA, B = kFunctionsB, C = kFunctionsC, D = kFunctionsD;
    real *held = strips + lane * kRow, unused[kE * kF], k_bc[B * C], k_bd[B * D], j_ket[kCD];
    recurrence(pairs, centers, others, bra, ket, rows, grid, omega, held, unused);
#pragma unroll
    for (int s = 0; s < SETS; ++s) {
      zero<B * C>(k_bc), zero<B * D>(k_bd), zero<kCD>(j_ket);
      slices<0>(held, centers, others, density + s * square, nao, bra, ket, weight, j_bra + s * kAB * kStride, k_bc, k_bd, j_ket);
#if EXCHANGE
      double* out = k + s * square;
      flush<A * C, kRow>(strips + kSums, bases[warp], out, live ? int64{bra.x} * nao + ket.x * A : -1);
      flush<A * D, kRow>(strips + kSums + A * C, bases[warp], out, live ? int64{bra.x} * nao + ket.y * A : -1);
      give<B * C, kRow>(k_bc, strips + kSums, bases[warp], out, live ? int64{bra.y} * nao + ket.x * B : -1);
      give<B * D, kRow>(k_bd, strips + kSums, bases[warp], out, live ? int64{bra.y} * nao + ket.y * B : -1);
#endif
#if COULOMB
      give<kCD, kRow>(j_ket, strips + kSums, bases[warp], j + s * square, live ? int64{ket.x} * nao + ket.y * C : -1);
#endif
    }
#else
    real v[kAB * kCD];
    quartet(pairs, bra_at, bra, ket_at, ket, rows, grid, omega, strips + lane * kRow, v);
    if (HELD) __syncwarp();  // other lanes may still sum where this one is about to write
#pragma unroll
    for (int s = 0; s < SETS; ++s) {
      const real* d = density + s * square;
#if EXCHANGE
      double* out = k + s * square;
      constexpr int A = kFunctionsA, B = kFunctionsB, C = kFunctionsC, D = kFunctionsD;
      contract<A, C, B, D, B * kCD, D, kCD, 1>(v, d + int64{bra.y} * nao + ket.y, nao, weight, strips + lane * odd(A * C));
      flush<A * C>(strips, bases[warp], out, live ? int64{bra.x} * nao + ket.x * A : -1);
      contract<A, D, B, C, B * kCD, 1, kCD, D>(v, d + int64{bra.y} * nao + ket.x, nao, weight, strips + lane * odd(A * D));
      flush<A * D>(strips, bases[warp], out, live ? int64{bra.x} * nao + ket.y * A : -1);
      contract<B, C, A, D, kCD, D, B * kCD, 1>(v, d + int64{bra.x} * nao + ket.y, nao, weight, strips + lane * odd(B * C));
      flush<B * C>(strips, bases[warp], out, live ? int64{bra.y} * nao + ket.x * B : -1);
      contract<B, D, A, C, kCD, 1, B * kCD, D>(v, d + int64{bra.x} * nao + ket.x, nao, weight, strips + lane * odd(B * D));
      flush<B * D>(strips, bases[warp], out, live ? int64{bra.y} * nao + ket.y * B : -1);
#endif
#if COULOMB
      {
        real block[kCD];
#pragma unroll
        for (int n = 0; n < kCD; ++n) block[n] = real(2.0) * weight * d[int64{ket.x + n / kFunctionsD} * nao + ket.y + n % kFunctionsD];
#pragma unroll
        for (int n = 0; n < kAB; ++n) {
          real sum = 0.0;
#pragma unroll
          for (int m = 0; m < kCD; ++m) sum += v[n * kCD + m] * block[m];
          j_bra[(s * kAB + n) * kStride] += sum;  // sums over kets are always in double precision
        }
      }
#if HELD
      real j_ket[kCD];  // added up row by row of the density, which together take more registers than there are left
      zero<kCD>(j_ket);
#pragma unroll
      for (int a = 0; a < kFunctionsA; ++a) {
        __syncwarp();
        contract<1, kCD, 1, kFunctionsB, 0, 1, 0, kCD, true>(v + a * kFunctionsB * kCD, d + (int64{bra.x} + a) * nao + bra.y, nao, real(2.0) * weight,
                                                             j_ket);
      }
      give<kCD, odd(kCD)>(j_ket, strips, bases[warp], j + s * square, live ? int64{ket.x} * nao + ket.y * kFunctionsC : -1);
#else
      contract<1, kCD, kFunctionsA, kFunctionsB, 0, 1, kFunctionsB * kCD, kCD>(v, d + int64{bra.x} * nao + bra.y, nao, real(2.0) * weight, strips + lane * odd(kCD));
      flush<kCD>(strips, bases[warp], j + s * square, live ? int64{ket.x} * nao + ket.y * kFunctionsC : -1);
#endif
#endif
    }
#endif
  }
#if COULOMB
#pragma unroll
  for (int s = 0; s < SETS; ++s)
#pragma unroll
    for (int n = 0; n < kAB; ++n) {
      double sum = j_bra[(s * kAB + n) * kStride];
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
      if (lane == 0) add(j + s * square + int64{bra.x} * nao + bra.y * kFunctionsA + n, sum);
    }
#endif
}
#endif
