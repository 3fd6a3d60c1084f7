// Probabilities of configurations under a causal transformer of width 32 with 4 heads: one warp for each configuration.
//
// The matrices stay in shared memory; hidden states, queries, keys and values never leave the registers. All matrices are SCALE times
// theirs, so that the lower half of a small number is not subnormal; hidden states are SCALE^2 times theirs. Macros: TILES of 16
// orbitals, LAYERS, SPLIT (see nnqs_mma.cuh), THREADS of a block.
#include "nnqs_mma.cuh"

#define WIDTH 32
#define HEADS 4
#define ROWS (16 * TILES)
#define FULL 0xffffffffu
#define NEVER -1e30f
#define SCALE 16.0f

// Numbers of the matrices of a layer, and where they begin; two of them are PARTS words in shared memory.
#define QKV 0
#define OUT (QKV + 3 * WIDTH * WIDTH)
#define UP (OUT + WIDTH * WIDTH)
#define DOWN (UP + 4 * WIDTH * WIDTH)
#define LAYER (DOWN + 4 * WIDTH * WIDTH)
#define HEAD (LAYERS * LAYER)
#define MATRICES (HEAD + 8 * WIDTH)
#define WORDS(numbers) ((numbers) / 2 * PARTS)
// Numbers of the tables, and where they begin.
#define UP_BIAS 0
#define DOWN_BIAS (UP_BIAS + LAYERS * 4 * WIDTH)
#define EMBEDDING (DOWN_BIAS + LAYERS * WIDTH)
#define POSITION (EMBEDDING + 5 * WIDTH)
#define HEAD_BIAS (POSITION + ROWS * WIDTH)
#define TABLES (HEAD_BIAS + ROWS * 4)

typedef unsigned long long uint64;

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(FULL, v, 1);
  return v + __shfl_xor_sync(FULL, v, 2);
}

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(FULL, v, 1));
  return fmaxf(v, __shfl_xor_sync(FULL, v, 2));
}

// Rows with mean 0 and variance 1, as left operands.
__device__ __forceinline__ void normalise(const float (&x)[4][4], Left<16> (&out)[2]) {
  float y[4][4];
#pragma unroll
  for (int e = 0; e < 4; e += 2) {
    float sum = 0, square = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) sum += x[j][e] + x[j][e + 1];
    const float mean = quad_sum(sum) * (1.0f / WIDTH);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      y[j][e] = x[j][e] - mean;
      y[j][e + 1] = x[j][e + 1] - mean;
      square += y[j][e] * y[j][e] + y[j][e + 1] * y[j][e + 1];
    }
    const float scale = rsqrtf(quad_sum(square) * (1.0f / WIDTH) + 1e-6f * SCALE * SCALE * SCALE * SCALE);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      y[j][e] *= scale;
      y[j][e + 1] *= scale;
    }
  }
  out[0] = left_of(y[0], y[1]);
  out[1] = left_of(y[2], y[3]);
}

// x += attention of one head, from the normalised states `a`. Scores are in units of log 2.
__device__ __forceinline__ void attend(float (&x)[TILES][4][4], const Left<16> (&a)[TILES][2], const unsigned* matrices, int head, int lane) {
  const int g = lane / 4, t = lane % 4;
  Left<8> queries[TILES];
  Right<8> keys[2 * TILES];
  Right<16> values[TILES];
#pragma unroll
  for (int what = 0; what < 3; what++) {
    const int tile = 2 * (what * HEADS + head);
    const Right<16> w[2] = {load_right<16>(matrices + WORDS(QKV), tile, lane), load_right<16>(matrices + WORDS(QKV), tile + 1, lane)};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      float y[4] = {};
      add_product(y, a[i][0], w[0]);
      add_product(y, a[i][1], w[1]);
      if (what == 0) queries[i] = left_of(y);
      if (what == 1) {  // a row of keys is a column of the right operand
        set_pair(keys[2 * i], 0, y[0], y[1]);
        set_pair(keys[2 * i + 1], 0, y[2], y[3]);
      }
      if (what == 2) {
        set_pair(values[i], 0, y[0], y[1]);
        set_pair(values[i], 1, y[2], y[3]);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          values[i].part[p][0] = transpose_halves(values[i].part[p][0]);
          values[i].part[p][1] = transpose_halves(values[i].part[p][1]);
        }
      }
    }
  }
  Right<8> out[4];
#pragma unroll
  for (int j = 0; j < 4; j++) out[j] = load_right<8>(matrices + WORDS(OUT), 4 * head + j, lane);
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    float s[2 * TILES][4], top[2] = {NEVER, NEVER}, sum[2] = {}, mixed[4] = {};
#pragma unroll
    for (int j = 0; j < 2 * i + 2; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) s[j][e] = 0;
      add_product(s[j], queries[i], keys[j]);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (8 * j + 2 * t + e % 2 > 16 * i + g + 8 * (e / 2)) s[j][e] = NEVER;
        top[e / 2] = fmaxf(top[e / 2], s[j][e]);
      }
    }
    constexpr float unit = 1.0f / (SCALE * SCALE);
    top[0] = quad_max(top[0]) * unit;
    top[1] = quad_max(top[1]) * unit;
#pragma unroll
    for (int j = 0; j < 2 * i + 2; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[j][e] = exp2_fast(fmaf(s[j][e], unit, -top[e / 2]));
        sum[e / 2] += s[j][e];
      }
    }
#pragma unroll
    for (int k = 0; k <= i; k++) add_product(mixed, left_of(s[2 * k], s[2 * k + 1]), values[k]);
    const float scale[2] = {reciprocal(quad_sum(sum[0])), reciprocal(quad_sum(sum[1]))};
#pragma unroll
    for (int e = 0; e < 4; e++) mixed[e] *= scale[e / 2];
    const Left<8> left = left_of(mixed);
#pragma unroll
    for (int j = 0; j < 4; j++) add_rounded(x[i][j], left, out[j]);
  }
}

// The approximation of the Gaussian error linear unit by tanh; x and the result are SCALE times theirs.
__device__ __forceinline__ float gelu(float x) {
  constexpr float slope = 0.7978845608f / SCALE, cubic = 0.044715f * slope / (SCALE * SCALE);  // sqrt(2 / pi)
#if SPLIT
  constexpr float unit = -2.885390082f;  // -2 / log 2: 1 + tanh u = 2 / (1 + exp(-2 u))
  return x * reciprocal(1.0f + exp2_fast(x * fmaf(unit * cubic, x * x, unit * slope)));
#else
  const float half = 0.5f * x;
  return fmaf(half, tanh_fast(x * fmaf(cubic, x * x, slope)), half);
#endif
}

// x += perceptron of the normalised states.
__device__ __forceinline__ void perceive(float (&x)[TILES][4][4], const unsigned* matrices, const float* up_bias, const float* down_bias, int lane) {
  const int t = lane % 4;
  Left<16> a[TILES][2];
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    normalise(x[i], a[i]);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) x[i][j][e] += down_bias[8 * j + 2 * t + e % 2];
    }
  }
#pragma unroll 1
  for (int chunk = 0; chunk < 4 * WIDTH / 16; chunk++) {
    Right<16> up[2][2], down[4];
    float bias[2][2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int k = 0; k < 2; k++) {
        up[j][k] = load_right<16>(matrices + WORDS(UP), 4 * chunk + 2 * j + k, lane);
        bias[j][k] = up_bias[16 * chunk + 8 * j + 2 * t + k];
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) down[j] = load_right<16>(matrices + WORDS(DOWN), 4 * chunk + j, lane);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      float y[2][4];
#pragma unroll
      for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) y[j][e] = bias[j][e % 2];
        add_product(y[j], a[i][0], up[j][0]);
        add_product(y[j], a[i][1], up[j][1]);
#pragma unroll
        for (int e = 0; e < 4; e++) y[j][e] = gelu(y[j][e]);
      }
      const Left<16> left = left_of(y[0], y[1]);
#pragma unroll
      for (int j = 0; j < 4; j++) add_rounded(x[i][j], left, down[j]);
    }
  }
}

// log p of the token of an orbital, from SCALE times the logits of tokens 2 t and 2 t + 1 in lanes t = 0 and 1 of a quad; the result is
// theirs.
__device__ __forceinline__ float log_conditional(float empty, float filled, int row, int norb, int nalpha, int nbeta, uint64 alpha,
                                                 uint64 beta, int t) {
  const uint64 before = (1ull << row) - 1;
  const int left_alpha = nalpha - __popcll(alpha & before), left_beta = nbeta - __popcll(beta & before), orbitals = norb - 1 - row;
  const bool may = t == 0 ? left_beta <= orbitals : left_beta > 0;
  empty = may && left_alpha <= orbitals ? empty * (1.0f / SCALE) : NEVER;
  filled = may && left_alpha > 0 ? filled * (1.0f / SCALE) : NEVER;
  float top = fmaxf(empty, filled);
  top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
  float sum = expf(empty - top) + expf(filled - top);
  sum += __shfl_xor_sync(FULL, sum, 1);
  const float mine = (alpha >> row) & 1 ? filled : empty, other = __shfl_xor_sync(FULL, mine, 1);
  return (((beta >> row) & 1) == static_cast<uint64>(t) ? mine : other) - top - logf(sum);
}

// log P (n) of configurations, of which occupations (n, 2, norb) are bytes; matrices and tables are in the order of the macros.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    nnqs_log_probability(const unsigned char* occupations, const float* matrices, const float* tables, int n, int norb, int nalpha,
                         int nbeta, double* log_p) {
  extern __shared__ int4 store[];
  unsigned* matrix = reinterpret_cast<unsigned*>(store);
  float* table = reinterpret_cast<float*>(matrix + WORDS(MATRICES));
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; layer++) {
    unsigned* to = matrix + layer * WORDS(LAYER);
    const float* from = matrices + layer * LAYER;
    store_right<16>(to + WORDS(QKV), from + QKV, OUT - QKV);
    store_right<8>(to + WORDS(OUT), from + OUT, UP - OUT);
    store_right<16>(to + WORDS(UP), from + UP, LAYER - UP);
  }
  store_right<16>(matrix + WORDS(HEAD), matrices + HEAD, MATRICES - HEAD);
  for (int k = threadIdx.x; k < TABLES; k += blockDim.x) table[k] = tables[k];
  __syncthreads();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warps = blockDim.x / 32;
  for (int c = blockIdx.x * warps + threadIdx.x / 32; c < n; c += gridDim.x * warps) {
    uint64 occupied[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int spin = k / 2, orbital = 32 * (k % 2) + lane;
      const bool filled = orbital < norb && occupations[(2ll * c + spin) * norb + orbital];
      occupied[spin] |= static_cast<uint64>(__ballot_sync(FULL, filled)) << (32 * (k % 2));
    }
    float x[TILES][4][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = 16 * i + g + 8 * (e / 2);
        const int before = row == 0 ? 4 : ((occupied[0] >> (row - 1)) & 1) + 2 * ((occupied[1] >> (row - 1)) & 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int column = 8 * j + 2 * t + e % 2;
          x[i][j][e] = table[EMBEDDING + before * WIDTH + column] + table[POSITION + row * WIDTH + column];
        }
      }
    }
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
      const unsigned* mine = matrix + layer * WORDS(LAYER);
      Left<16> a[TILES][2];
#pragma unroll
      for (int i = 0; i < TILES; i++) normalise(x[i], a[i]);
#pragma unroll 1
      for (int head = 0; head < HEADS; head++) attend(x, a, mine, head, lane);
      perceive(x, mine, table + UP_BIAS + layer * 4 * WIDTH, table + DOWN_BIAS + layer * WIDTH, lane);
    }
    double total = 0;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      Left<16> a[2];
      float logits[4];
      normalise(x[i], a);
#pragma unroll
      for (int e = 0; e < 4; e++) logits[e] = t < 2 ? table[HEAD_BIAS + (16 * i + g + 8 * (e / 2)) * 4 + 2 * t + e % 2] : 0.0f;
#pragma unroll
      for (int k = 0; k < 2; k++) add_product(logits, a[k], load_right<16>(matrix + WORDS(HEAD), k, lane));
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = 16 * i + g + 8 * half;
        const float found = log_conditional(logits[2 * half], logits[2 * half + 1], row, norb, nalpha, nbeta, occupied[0], occupied[1], t);
        if (t == 0 && row < norb) total += found;
      }
    }
#pragma unroll
    for (int d = 4; d < 32; d *= 2) total += __shfl_xor_sync(FULL, total, d);
    if (lane == 0) log_p[c] = total;
  }
}
