// Configurations of selected CI on a GPU: their keys, and what excitations need to know about a source.
//
// Macros: WORDS of 64 orbitals for each spin; PACKED where both spins share one word of a key (up to 32 orbitals).
#pragma once
typedef long long int64;
typedef unsigned long long uint64;

#define KEYWORDS (PACKED ? 1 : 2 * WORDS)
#define FULL 0xffffffffu
#define EMPTY (~0ull)  // each word of an unused key

#ifdef EMULATED  // by tests, on a CPU
inline int popcount(uint64 x) { return __builtin_popcountll(x); }
inline int lowest_bit(uint64 x) { return __builtin_ctzll(x); }
#else
__device__ __forceinline__ int popcount(uint64 x) { return __popcll(x); }
__device__ __forceinline__ int lowest_bit(uint64 x) { return __ffsll(static_cast<long long>(x)) - 1; }
#endif

// Word v of a spin's occupations, lowest orbitals first; jaxqc/nnqs/_bits.py has the layout of keys.
__device__ __forceinline__ uint64 occupations(const uint64* key, int spin, int v, int norb) {
#if PACKED
  return spin ? key[0] & ((1ull << norb) - 1) : key[0] >> norb;
#else
  return key[spin * WORDS + WORDS - 1 - v];
#endif
}

__device__ __forceinline__ void flip(uint64* key, int spin, int p, int norb) {
#if PACKED
  key[0] ^= 1ull << (spin ? p : p + norb);
#else
  const int word = spin * WORDS + WORDS - 1 - p / 64;
#pragma unroll
  for (int w = 0; w < KEYWORDS; w++) key[w] ^= w == word ? 1ull << (p & 63) : 0ull;
#endif
}

__device__ __forceinline__ bool equal(const uint64* a, const uint64* b) {
  bool same = true;
#pragma unroll
  for (int w = 0; w < KEYWORDS; w++) same = same && a[w] == b[w];
  return same;
}

__device__ __forceinline__ bool before(const uint64* a, const uint64* b) {
#pragma unroll
  for (int w = 0; w < KEYWORDS; w++)
    if (a[w] != b[w]) return a[w] < b[w];
  return false;
}
