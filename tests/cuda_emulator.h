// CUDA on a CPU, for tests: threads of a block are fibers, barriers and warp collectives switch between them, and blocks run one
// after the other. Slow and faithful: whatever waits for a thread that never comes is an error, not a hang.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define EMULATED 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __noinline__

struct dim3 {
  int x = 1, y = 1, z = 1;
};
struct alignas(16) double2 {
  double x, y;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct int2 {
  int x, y;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
struct alignas(16) int4 {
  int x, y, z, w;
};

namespace emulator {

struct Barrier {
  int arrived = 0, generation = 0;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Barrier* waits = nullptr;
  int generation = 0, turn = 0;
  bool done = false;
};
struct Warp {
  Barrier barrier;
  unsigned char values[2][32][64];
};

inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline Barrier block_barrier;
inline ucontext_t scheduler;
inline int current = 0, alive = 0;
inline std::vector<double> shared_store;
inline void (*body)(void*) = nullptr;
inline void* payload = nullptr;

inline void arrive(Barrier& b, int expected) {
  if (++b.arrived == expected) {
    b.arrived = 0;
    ++b.generation;
    return;
  }
  Fiber& f = fibers[current];
  f.waits = &b;
  f.generation = b.generation;
  swapcontext(&f.context, &scheduler);
}

inline void entry() {
  body(payload);
  fibers[current].done = true;
  --alive;
  if (block_barrier.arrived > 0 && block_barrier.arrived == alive) {
    block_barrier.arrived = 0;
    ++block_barrier.generation;
  }
  swapcontext(&fibers[current].context, &scheduler);
}

inline void run_block(int threads) {
  fibers.resize(threads);
  warps.assign((threads + 31) / 32, Warp());
  block_barrier = Barrier();
  alive = threads;
  for (int i = 0; i < threads; ++i) {
    Fiber& f = fibers[i];
    f.stack.resize(1 << 16);
    f.waits = nullptr;
    f.done = false;
    f.turn = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = &scheduler;
    makecontext(&f.context, entry, 0);
  }
  while (alive > 0) {
    bool moved = false;
    for (int i = 0; i < threads; ++i) {
      Fiber& f = fibers[i];
      if (f.done || (f.waits && f.waits->generation == f.generation)) continue;
      f.waits = nullptr;
      current = i;
      moved = true;
      swapcontext(&scheduler, &f.context);
    }
    if (!moved) {
      std::fprintf(stderr, "emulated kernel: a barrier or a warp collective that not all threads reach\n");
      std::abort();
    }
  }
}

// All lanes give a value and see those of the others. Two buffers take turns, so that one barrier is enough.
template <class T>
inline const unsigned char (&exchange(T value))[32][64] {
  static_assert(sizeof(T) <= 64);
  Fiber& f = fibers[current];
  Warp& w = warps[current / 32];
  auto& values = w.values[f.turn ^= 1];
  std::memcpy(values[current % 32], &value, sizeof(T));
  arrive(w.barrier, 32);
  return values;
}
template <class T>
inline T of_lane(const unsigned char (&values)[32][64], int lane) {
  T out;
  std::memcpy(&out, values[lane], sizeof(T));
  return out;
}

}  // namespace emulator

struct ThreadIndex {
  struct X {
    operator unsigned() const { return static_cast<unsigned>(emulator::current); }
  } x;
};
inline ThreadIndex threadIdx;
inline dim3 blockIdx, blockDim, gridDim;

inline void __syncthreads() { emulator::arrive(emulator::block_barrier, emulator::alive); }
inline void __syncwarp() { emulator::exchange(0); }
template <class T>
inline T __shfl_xor_sync(unsigned, T v, int mask) {
  const int lane = emulator::current % 32;
  return emulator::of_lane<T>(emulator::exchange(v), lane ^ mask);
}
template <class T>
inline T __shfl_up_sync(unsigned, T v, int delta) {
  const int lane = emulator::current % 32;
  return emulator::of_lane<T>(emulator::exchange(v), lane >= delta ? lane - delta : lane);
}
template <class T>
inline T __shfl_sync(unsigned, T v, int from) {
  return emulator::of_lane<T>(emulator::exchange(v), from & 31);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  auto& values = emulator::exchange(vote);
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= static_cast<unsigned>(emulator::of_lane<bool>(values, i)) << i;
  return out;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
template <class T>
inline unsigned __match_any_sync(unsigned, T v) {
  auto& values = emulator::exchange(v);
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= static_cast<unsigned>(emulator::of_lane<T>(values, i) == v) << i;
  return out;
}

// The matrix unit: D (16 x 8) += A (16 x 8) B (8 x 8), spread over the lanes as on the GPU.
inline void mma(double* d, const double* a, double b0, double b1) {
  struct Part {
    double a[4], b[2];
  } part = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
  auto& values = emulator::exchange(part);
  for (int half = 0; half < 2; ++half) {
    for (int e = 0; e < 2; ++e) {
      for (int k = 0; k < 8; ++k) {
        const Part row = emulator::of_lane<Part>(values, 4 * g + k % 4), column = emulator::of_lane<Part>(values, 4 * (2 * t + e) + k % 4);
        d[2 * half + e] += row.a[half + 2 * (k / 4)] * column.b[k / 4];
      }
    }
  }
}

// Two halves in one word, and the products of them, as on the GPU.
inline unsigned pack_halves(float low, float high) {
  const _Float16 pair[2] = {static_cast<_Float16>(low), static_cast<_Float16>(high)};
  unsigned out;
  std::memcpy(&out, pair, sizeof(out));
  return out;
}
inline float half_of(unsigned word, int which) {
  _Float16 pair[2];
  std::memcpy(pair, &word, sizeof(word));
  return pair[which];
}
// D (16 x 8) += A (16 x 8 N) B (8 N x 8).
template <size_t N>
inline void mma_halves(float* d, const unsigned (&a)[2 * N], const unsigned (&b)[N]) {
  struct Part {
    unsigned a[2 * N], b[N];
  } part;
  std::memcpy(part.a, a, sizeof(a));
  std::memcpy(part.b, b, sizeof(b));
  const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
  auto& values = emulator::exchange(part);
  for (int e = 0; e < 4; ++e) {
    double terms[8 * N + 1] = {d[e]}, largest = std::fabs(d[e]), sum = 0;
    for (int k = 0; k < 4; ++k) {
      const Part row = emulator::of_lane<Part>(values, 4 * g + k), column = emulator::of_lane<Part>(values, 4 * (2 * t + e % 2) + k);
      for (size_t word = 0; word < N; ++word) {
        for (int i = 0; i < 2; ++i) {
          double& term = terms[1 + 2 * (4 * word + k) + i];
          term = half_of(row.a[2 * word + e / 2], i) * half_of(column.b[word], i);
          largest = std::max(largest, std::fabs(term));
        }
      }
    }
    // The unit cuts off what is below 2^-24 of the largest term, and the sum to single precision, towards zero.
    const double unit = std::ldexp(1.0, std::ilogb(largest + 1e-300) - 24);
    for (double term : terms) sum += std::trunc(term / unit) * unit;
    const float near = static_cast<float>(sum);
    d[e] = std::fabs(near) > std::fabs(sum) ? std::nextafterf(near, 0.0f) : near;
  }
}
inline unsigned transpose_halves(unsigned v) {
  const int lane = emulator::current % 32, g = lane / 4, t = lane % 4;
  auto& values = emulator::exchange(v);
  unsigned out = 0;
  for (int i = 0; i < 2; ++i) {
    const unsigned word = emulator::of_lane<unsigned>(values, 4 * (2 * t + i) + g / 2);
    out |= (word >> (16 * (g % 2)) & 0xffffu) << (16 * i);
  }
  return out;
}
inline float exp2_fast(float x) { return std::exp2(x); }
inline float tanh_fast(float x) { return std::tanh(x); }
inline float reciprocal(float x) { return 1.0f / x; }

template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T, class U>
inline T atomicAdd(T* p, U v) {
  const T old = *p;
  *p += v;
  return old;
}
template <class T>
inline T atomicMax(T* p, T v) {
  const T old = *p;
  *p = old < v ? v : old;
  return old;
}
template <class To, class From>
inline To bits(From v) {
  To out;
  static_assert(sizeof(To) == sizeof(From));
  std::memcpy(&out, &v, sizeof(To));
  return out;
}
inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
inline float rsqrt(float v) { return 1.0f / std::sqrt(v); }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline long long __double_as_longlong(double v) { return bits<long long>(v); }
inline double __longlong_as_double(long long v) { return bits<double>(v); }
inline unsigned __float_as_uint(float v) { return bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return bits<float>(v); }
inline int __double2loint(double v) { return static_cast<int>(bits<uint64_t>(v)); }
inline int __double2hiint(double v) { return static_cast<int>(bits<uint64_t>(v) >> 32); }
inline double __hiloint2double(int high, int low) {
  return bits<double>(static_cast<uint64_t>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low));
}
inline long long __double2ll_rn(double v) { return std::llrint(v); }
inline float __double2float_rd(double v) {
  const float f = static_cast<float>(v);
  return f > v ? std::nextafterf(f, -INFINITY) : f;
}
inline float __double2float_ru(double v) {
  const float f = static_cast<float>(v);
  return f < v ? std::nextafterf(f, INFINITY) : f;
}
template <class T, class U>
inline std::common_type_t<T, U> min(T a, U b) {
  return static_cast<std::common_type_t<T, U>>(a) < b ? a : b;
}
template <class T, class U>
inline std::common_type_t<T, U> max(T a, U b) {
  return static_cast<std::common_type_t<T, U>>(a) < b ? b : a;
}

namespace emulator {

template <class... A, size_t... I>
inline void launch_with(void (*kernel)(A...), void** arguments, int grid_x, int grid_y, int threads, int shared, std::index_sequence<I...>) {
  struct Call {
    void (*kernel)(A...);
    void** arguments;
  } call = {kernel, arguments};
  body = [](void* p) {
    Call& c = *static_cast<Call*>(p);
    c.kernel(*static_cast<A*>(c.arguments[I])...);
  };
  payload = &call;
  gridDim = {grid_x, grid_y, 1};
  blockDim = {threads, 1, 1};
  for (int y = 0; y < grid_y; ++y) {
    for (int x = 0; x < grid_x; ++x) {
      blockIdx = {x, y, 0};
      // What a block leaves must not reach the next.
      shared_store.assign(shared / sizeof(double) + 2, std::nan(""));
      run_block(threads);
    }
  }
}
template <class... A>
inline void launch(void (*kernel)(A...), void** arguments, int grid_x, int grid_y, int threads, int shared) {
  launch_with(kernel, arguments, grid_x, grid_y, threads, shared, std::index_sequence_for<A...>{});
}

}  // namespace emulator
