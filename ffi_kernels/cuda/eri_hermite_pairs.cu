// Pairs of primitives of one class (la >= lb) as charge distributions in Hermite Gaussians, and back:
//   a b = sum_tuv E^x_t E^y_u E^z_v Lambda_tuv,   H_tuv = sum_ab D_ab E^ab_tuv,   J_ab = sum_tuv E^ab_tuv J_tuv
// (McMurchie and Davidson, doi:10.1016/0021-9991(78)90092-X; Ahmadi and Almlof, doi:10.1016/0009-2614(95)01109-4).
// Screening rests on the Coulomb norm |f| = (f|f)^1/2: |(f|g)| <= |f| |g|, and the norm of a Lambda_tuv is known:
//   (L_tuv|L_tuv) = 2 pi^(5/2) / (sqrt 2 p^(5/2)) p^n (2t-1)!! (2u-1)!! (2v-1)!! / (2n+1),   n = t+u+v.
// Generated: LA, LB, NH (number of tuv), kNorm and kHermiteT, U, V of each, NFA and NFB (functions of a shell), their Cartesian
// coefficients kFunctionsA and B with the largest sums of magnitudes kSumA and B.
#include "eri_hermite_class.cuh"

#if defined(__CUDACC_RTC__)
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

constexpr int L = LA + LB, NCA = (LA + 1) * (LA + 2) / 2, NCB = (LB + 1) * (LB + 2) / 2;
constexpr double kSelf = 24.739429451193131;    // 2 pi^(5/2) / sqrt 2
constexpr double kCoulomb = 34.986836655249725;  // 2 pi^(5/2)
constexpr float kDead = 1e-20f;                  // bounds below this count as none
constexpr float kMost = 3e38f;
// Keys sort pairs of all orders at once: the uppermost four bits are the order's.
constexpr int kKeyBits = 28;
constexpr unsigned kLast = (1u << kKeyBits) - 1;

struct Primitives {
  const double *centres, *exponents, *coefficients;
  const int *first, *next;
  const double* largest;
};

// Which primitives, counted within their angular momentum, an entry of the class is made of.
static __device__ __forceinline__ int2 members(long long entry, int number_b) {
  if constexpr (LA == LB) {
    long long i = static_cast<long long>((sqrt(8.0 * entry + 1.0) - 1.0) * 0.5);
    while (i * (i + 1) / 2 > entry) --i;
    while ((i + 1) * (i + 2) / 2 <= entry) ++i;
    return make_int2(static_cast<int>(i), static_cast<int>(entry - i * (i + 1) / 2));
  } else {
    return make_int2(static_cast<int>(entry / number_b), static_cast<int>(entry % number_b));
  }
}
static __device__ __forceinline__ long long entry_of(int i, int j, int number_b) {
  if constexpr (LA == LB) {
    const long long high = max(i, j), low = min(i, j);
    return high * (high + 1) / 2 + low;
  } else {
    return static_cast<long long>(i) * number_b + j;
  }
}

// E[axis][i][j][t] of a pair of primitives, without the factor exp(-mu R^2).
struct Expansion {
  double e[3][LA + 1][LB + 1][L + 1];
  double p, centre[3], decay;

  // Everything but e.
  __device__ __forceinline__ void place(const double* ra, double a, const double* rb, double b) {
    p = a + b;
    double r2 = 0.0;
    for (int d = 0; d < 3; ++d) {
      r2 += (ra[d] - rb[d]) * (ra[d] - rb[d]);
      centre[d] = (a * ra[d] + b * rb[d]) / p;
    }
    decay = exp(-a * b / p * r2);
  }
  __device__ __forceinline__ void expand(const double* ra, const double* rb) {
    const double half = 0.5 / p;
    ROLLED for (int d = 0; d < 3; ++d) {
      const double xa = centre[d] - ra[d], xb = centre[d] - rb[d];
      e[d][0][0][0] = 1.0;
      for (int i = 0; i <= LA; ++i) {
        if (i > 0) raise(e[d][i - 1][0], e[d][i][0], i - 1, xa, half);
        for (int j = 1; j <= LB; ++j) raise(e[d][i][j - 1], e[d][i][j], i + j - 1, xb, half);
      }
    }
  }
  // The expansion of x times what `from`, of order n, is the expansion of.
  static __device__ __forceinline__ void raise(const double* from, double* to, int n, double x, double half) {
    for (int t = 0; t <= n + 1; ++t) {
      double sum = 0.0;
      if (t > 0) sum += half * from[t - 1];
      if (t <= n) sum += x * from[t];
      if (t < n) sum += (t + 1) * from[t + 1];
      to[t] = sum;
    }
  }
};

// Cartesian powers of component k of a shell of angular momentum l.
static __device__ __forceinline__ void powers_of(int l, int k, int* powers) {
  int rest = 0;
  while ((rest + 1) * (rest + 2) / 2 <= k) ++rest;
  const int z = k - rest * (rest + 1) / 2;
  powers[0] = l - rest;
  powers[1] = rest - z;
  powers[2] = z;
}

// The bound of every entry as a bra (no number where it is beyond single precision), its centre, and a key that sorts bras: powers of
// two of the bound first, then place in space, so that the lanes of a warp have similar distances from a ket.
extern "C" __global__ void hermite_bounds(const double* __restrict__ centres, const double* __restrict__ exponents,
                                          const int* __restrict__ first, const double* __restrict__ largest, int first_a,
                                          int first_b, int number_b, long long count, int tag, float* __restrict__ bounds,
                                          double* __restrict__ places, unsigned* __restrict__ keys) {
  for (long long k = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; k < count;
       k += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int2 ij = members(k, number_b);
    const int a = first_a + ij.x, b = first_b + ij.y;
    float bound = 0.0f;
    Expansion x;
    x.p = 1.0;
    x.centre[0] = x.centre[1] = x.centre[2] = 0.0;
    if (first[a] == a && first[b] == b) {
      x.place(centres + 3 * a, exponents[a], centres + 3 * b, exponents[b]);
      const double scale = largest[a] * largest[b] * x.decay * kSumA * kSumB * sqrt(kSelf * pow(x.p, -2.5));
      if (!(scale <= 0.0)) {
        x.expand(centres + 3 * a, centres + 3 * b);
        double most = 0.0, axis[3][LA + 1][LB + 1];
        // sum_t |E_t| p^(t/2) (2t-1)!!^(1/2): the product over the axes bounds the norm.
        for (int d = 0; d < 3; ++d)
          for (int i = 0; i <= LA; ++i)
            for (int j = 0; j <= LB; ++j) {
              double sum = 0.0, factor = 1.0;
              for (int t = 0; t <= i + j; ++t) {
                sum += fabs(x.e[d][i][j][t]) * factor;
                factor *= sqrt((2 * t + 1) * x.p);
              }
              axis[d][i][j] = sum;
            }
        ROLLED for (int m = 0; m < NCA; ++m) {
          int pa[3];
          powers_of(LA, m, pa);
          ROLLED for (int n = 0; n < NCB; ++n) {
            int pb[3];
            powers_of(LB, n, pb);
            most = max(most, axis[0][pa[0]][pb[0]] * axis[1][pa[1]][pb[1]] * axis[2][pa[2]][pb[2]]);
          }
        }
        // The factor by which a sum over J_tuv is multiplied at the end is not in J_tuv, but here.
        bound = __double2float_ru(scale * most);
        if (bound < kDead) bound = 0.0f;
        else if (!(bound <= kMost)) bound = nanf("");
      }
    }
    bounds[k] = bound;
    places[4 * k] = x.p;
    for (int d = 0; d < 3; ++d) places[4 * k + 1 + d] = x.centre[d];
    unsigned key = kLast;
    if (bound > 0.0f) {
      key = static_cast<unsigned>(min(max(40.0f - log2f(bound), 0.0f), 126.0f));
      unsigned cell[3];
      for (int d = 0; d < 3; ++d) cell[d] = static_cast<unsigned>(static_cast<int>(floor(x.centre[d] * 0.5))) & 127u;
      for (int bit = 6; bit >= 0; --bit)
        for (int d = 0; d < 3; ++d) key = key << 1 | (cell[d] >> bit & 1u);
    }
    keys[k] = static_cast<unsigned>(tag) << kKeyBits | key;
  }
}

// The density of every entry: rows of `width` numbers p, P, h = (-1)^(t+u+v) H / p for each of `sets` densities, the norm of the
// largest, and a key that sorts by falling norm.
extern "C" __global__ void hermite_density(const double* __restrict__ centres, const double* __restrict__ exponents,
                                           const double* __restrict__ coefficients, const int* __restrict__ next,
                                           const int* __restrict__ functions, int first_a, int first_b, int number_b,
                                           long long count, int tag, const float* __restrict__ bounds,
                                           const double* __restrict__ density,
                                           int nao, int sets, int width, double* __restrict__ rows, float* __restrict__ norms,
                                           unsigned* __restrict__ keys) {
  for (long long k = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; k < count;
       k += static_cast<long long>(gridDim.x) * blockDim.x) {
    double* row = rows + k * width;
    float norm = 0.0f;
    if (!(bounds[k] > 0.0f)) {
      row[0] = 1.0;
      for (int m = 1; m < width; ++m) row[m] = 0.0;
    } else {
      const int2 ij = members(k, number_b);
      const int a = first_a + ij.x, b = first_b + ij.y;
      Expansion x;
      x.place(centres + 3 * a, exponents[a], centres + 3 * b, exponents[b]);
      x.expand(centres + 3 * a, centres + 3 * b);
      row[0] = x.p;
      for (int d = 0; d < 3; ++d) row[1 + d] = x.centre[d];
      const double half_norm = sqrt(kSelf * pow(x.p, -2.5)), root = sqrt(x.p);
      ROLLED for (int s = 0; s < sets; ++s) {
        double block[NFA * NFB];
        for (int m = 0; m < NFA * NFB; ++m) block[m] = 0.0;
        ROLLED for (int i = a; i >= 0; i = next[i])
          ROLLED for (int j = b; j >= 0; j = next[j]) {
            const double c = coefficients[i] * coefficients[j];
            const double* from = density + (static_cast<long long>(s) * nao + functions[i]) * nao + functions[j];
            for (int m = 0; m < NFA; ++m)
              for (int n = 0; n < NFB; ++n) block[m * NFB + n] += c * from[static_cast<long long>(m) * nao + n];
          }
        double half[NCA * NFB], h[NH];
        for (int m = 0; m < NCA; ++m)
          for (int n = 0; n < NFB; ++n) {
            double sum = 0.0;
            for (int f = 0; f < NFA; ++f) sum += kFunctionsA[m * NFA + f] * block[f * NFB + n];
            half[m * NFB + n] = sum;
          }
        for (int m = 0; m < NH; ++m) h[m] = 0.0;
        const double scale = x.decay * (LA == LB && a != b ? 2.0 : LA == LB ? 1.0 : 2.0);
        ROLLED for (int m = 0; m < NCA; ++m) {
          int pa[3];
          powers_of(LA, m, pa);
          ROLLED for (int n = 0; n < NCB; ++n) {
            int pb[3];
            powers_of(LB, n, pb);
            double d = 0.0;
            for (int f = 0; f < NFB; ++f) d += half[m * NFB + f] * kFunctionsB[n * NFB + f];
            d *= scale;
            for (int at = 0; at < NH; ++at) {
              const int t = kHermiteT[at], u = kHermiteU[at], v = kHermiteV[at];
              if (t > pa[0] + pb[0] || u > pa[1] + pb[1] || v > pa[2] + pb[2]) continue;
              h[at] += d * x.e[0][pa[0]][pb[0]][t] * x.e[1][pa[1]][pb[1]][u] * x.e[2][pa[2]][pb[2]][v];
            }
          }
        }
        double total = 0.0;
        for (int at = 0; at < NH; ++at) {
          const int n = kHermiteT[at] + kHermiteU[at] + kHermiteV[at];
          double size = fabs(h[at]) * kNorm[at];
          for (int m = 0; m < n; ++m) size *= root;
          total += size;
          row[4 + s * NH + at] = (n % 2 ? -h[at] : h[at]) / x.p;
        }
        norm = max(norm, __double2float_ru(total * half_norm));
      }
      for (int m = 4 + sets * NH; m < width; ++m) row[m] = 0.0;
    }
    norms[k] = norm;
    keys[k] = static_cast<unsigned>(tag) << kKeyBits | (~__float_as_uint(norm) & 0x7fffffffu) >> (31 - kKeyBits);
  }
}

// J of every pair of contracted shells from the sums J_tuv of their primitive pairs; a shell is (first primitive, number of
// primitives, first function).
extern "C" __global__ void hermite_matrix(const double* __restrict__ centres, const double* __restrict__ exponents,
                                          const double* __restrict__ coefficients, const int* __restrict__ first,
                                          const int* __restrict__ shells, int shell_a, int shell_b, int nshell_b, int pairs,
                                          int first_a, int first_b, int number_b, const float* __restrict__ bounds,
                                          const double* __restrict__ sums, int nao, int sets, double* __restrict__ out) {
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < pairs; k += gridDim.x * blockDim.x) {
    const int2 ij = members(k, nshell_b);
    const int *sa = shells + 3 * (shell_a + ij.x), *sb = shells + 3 * (shell_b + ij.y);
    ROLLED for (int s = 0; s < sets; ++s) {
      double block[NCA * NCB];
      for (int m = 0; m < NCA * NCB; ++m) block[m] = 0.0;
      ROLLED for (int i = sa[0]; i < sa[0] + sa[1]; ++i)
        ROLLED for (int j = sb[0]; j < sb[0] + sb[1]; ++j) {
          const long long entry = entry_of(first[i] - first_a, first[j] - first_b, number_b);
          if (!(bounds[entry] > 0.0f)) continue;
          Expansion x;
          x.place(centres + 3 * i, exponents[i], centres + 3 * j, exponents[j]);
          x.expand(centres + 3 * i, centres + 3 * j);
          const double scale = coefficients[i] * coefficients[j] * x.decay * kCoulomb / x.p;
          const double* from = sums + (entry * sets + s) * NH;
          ROLLED for (int m = 0; m < NCA; ++m) {
            int pa[3];
            powers_of(LA, m, pa);
            ROLLED for (int n = 0; n < NCB; ++n) {
              int pb[3];
              powers_of(LB, n, pb);
              double sum = 0.0;
              for (int at = 0; at < NH; ++at) {
                const int t = kHermiteT[at], u = kHermiteU[at], v = kHermiteV[at];
                if (t > pa[0] + pb[0] || u > pa[1] + pb[1] || v > pa[2] + pb[2]) continue;
                sum += from[at] * x.e[0][pa[0]][pb[0]][t] * x.e[1][pa[1]][pb[1]][u] * x.e[2][pa[2]][pb[2]][v];
              }
              block[m * NCB + n] += scale * sum;
            }
          }
        }
      double* to = out + static_cast<long long>(s) * nao * nao;
      ROLLED for (int m = 0; m < NFA; ++m)
        ROLLED for (int n = 0; n < NFB; ++n) {
          double value = 0.0;
          for (int i = 0; i < NCA; ++i)
            for (int j = 0; j < NCB; ++j)
              value += kFunctionsA[i * NFA + m] * kFunctionsB[j * NFB + n] * block[i * NCB + j];
          const long long row = sa[2] + m, column = sb[2] + n;
          to[row * nao + column] = value;
          to[column * nao + row] = value;
        }
    }
  }
}
