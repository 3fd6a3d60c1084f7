// Products of small matrices held in the registers of a warp, in single precision from halves.
//
// Lane 4 g + t of a warp holds rows g and g + 8, columns 2 t and 2 t + 1 of a result (16 x 8). Packed in pairs, these are what the
// lane has to bring as a left operand of the next product. With SPLIT a number is the sum of two halves, 22 bits together.
#pragma once

#define PARTS (1 + SPLIT)

#ifndef EMULATED
// Two halves in one word, `low` in the lower one.
__device__ __forceinline__ unsigned pack_halves(float low, float high) {
  unsigned out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// The lower (0) or the upper (1) of two halves.
__device__ __forceinline__ float half_of(unsigned word, int which) {
  float out;
  if (which == 0) {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(out) : "r"(word));
  } else {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(out) : "r"(word));
  }
  return out;
}

// D (16 x 8) += A (16 x 16) B (16 x 8).
__device__ __forceinline__ void mma_halves(float* d, const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// D (16 x 8) += A (16 x 8) B (8 x 8).
__device__ __forceinline__ void mma_halves(float* d, const unsigned (&a)[2], const unsigned (&b)[1]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// The transpose of 8 x 8 halves, of which a lane holds columns 2 t and 2 t + 1 of row g.
__device__ __forceinline__ unsigned transpose_halves(unsigned v) {
  unsigned out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
  return out;
}

// 2^x to 2 ulp.
__device__ __forceinline__ float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// tanh x to 2^-11 of it.
__device__ __forceinline__ float tanh_fast(float x) {
  float out;
  asm("tanh.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// 1 / x to 1 ulp.
__device__ __forceinline__ float reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
#endif

// What a lane brings of a left operand with K columns, and of a right operand with K rows.
template <int K>
struct Left {
  unsigned part[PARTS][K / 4];
};
template <int K>
struct Right {
  unsigned part[PARTS][K / 8];
};

// Two numbers along the direction of the sum as word `word` of an operand.
template <class Operand>
__device__ __forceinline__ void set_pair(Operand& to, int word, float a, float b) {
  const unsigned high = pack_halves(a, b);
  to.part[0][word] = high;
#if SPLIT
  to.part[1][word] = pack_halves(a - half_of(high, 0), b - half_of(high, 1));
#endif
}

// The results c (16 x 8) as a left operand.
__device__ __forceinline__ Left<8> left_of(const float (&c)[4]) {
  Left<8> out;
  set_pair(out, 0, c[0], c[1]);
  set_pair(out, 1, c[2], c[3]);
  return out;
}

// Neighbouring results c and d as one.
__device__ __forceinline__ Left<16> left_of(const float (&c)[4], const float (&d)[4]) {
  Left<16> out;
  set_pair(out, 0, c[0], c[1]);
  set_pair(out, 1, c[2], c[3]);
  set_pair(out, 2, d[0], d[1]);
  set_pair(out, 3, d[2], d[3]);
  return out;
}

// D += A B.
template <int K>
__device__ __forceinline__ void add_product(float* d, const Left<K>& a, const Right<K>& b) {
#if SPLIT
  mma_halves(d, a.part[1], b.part[0]);
  mma_halves(d, a.part[0], b.part[1]);
#endif
  mma_halves(d, a.part[0], b.part[0]);
}

// D += A B with one rounding to nearest: the unit rounds towards zero, which adds up where D is large and summed up many times.
template <int K>
__device__ __forceinline__ void add_rounded(float* d, const Left<K>& a, const Right<K>& b) {
#if SPLIT
  float part[4] = {};
  add_product(part, a, b);
#pragma unroll
  for (int e = 0; e < 4; e++) d[e] += part[e];
#else
  add_product(d, a, b);
#endif
}

// A lane's share of the right operand `tile` of a matrix in shared memory.
template <int K>
__device__ __forceinline__ Right<K> load_right(const unsigned* matrix, int tile, int lane) {
  constexpr int words = PARTS * K / 8;
  struct __align__(4 * words) Words {
    Right<K> right;
  };
  return reinterpret_cast<const Words*>(matrix)[tile * 32 + lane].right;
}

// Puts `count` numbers there, which are in the order of tiles, lanes, and the lane's share of a tile; all threads call it.
template <int K>
__device__ __forceinline__ void store_right(unsigned* matrix, const float* numbers, int count) {
  for (int k = threadIdx.x; k < count / (K / 4); k += blockDim.x) {
    Right<K> right;
#pragma unroll
    for (int word = 0; word < K / 8; word++) set_pair(right, word, numbers[K / 4 * k + 2 * word], numbers[K / 4 * k + 2 * word + 1]);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
#pragma unroll
      for (int word = 0; word < K / 8; word++) matrix[(k * PARTS + p) * (K / 8) + word] = right.part[p][word];
    }
  }
}
