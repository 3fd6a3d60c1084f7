// Shells and shell pairs as the two-electron kernels read them: per class, bucketed by primitive count, sorted by Schwarz bound,
// padded to whole packs of eight, primitives interleaved so that a pack loads contiguous lanes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace jaxqc {

constexpr int kLanes = 8;   // padding of pair lists: a multiple of every pack width
constexpr int kMaxL = 9;    // highest shell that the kernels accept (i, and the shells its derivatives need)

constexpr int ncart(int l) { return (l + 1) * (l + 2) / 2; }
constexpr int nfunc(int l, bool cart) { return cart ? ncart(l) : 2 * l + 1; }
// Components of the levels la .. la+lb: the size of one side of [e0|f0].
constexpr int nlevels(int la, int lb) {
  int n = 0;
  for (int l = la; l <= la + lb; ++l) n += ncart(l);
  return n;
}

// Arrays that packs are loaded from start on a cache line.
template <class T>
struct CacheLineAllocator {
  typedef T value_type;
  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  template <class U>
  bool operator==(const CacheLineAllocator<U>&) const { return true; }
  template <class U>
  bool operator!=(const CacheLineAllocator<U>&) const { return false; }
};
typedef std::vector<double, CacheLineAllocator<double>> Doubles;

struct Shell {
  int l, nprim, first, ao;  // first: index of its first primitive
  double x, y, z;
};

// Contracted shells with the normalisation inside the coefficients.
struct Basis {
  std::vector<Shell> shells;
  std::vector<double> exponents, coefficients;
  bool cart = false;
  int nao = 0, lmax = 0;
  Basis() = default;
  Basis(const int32_t* ls, const int32_t* nprims, int64_t nshell, const double* centers, const double* exps, const double* coefs,
        int64_t nprim, bool cartesian);
};

struct PairList {
  int la = 0, lb = 0, na = 0, nb = 0;  // na, nb: functions of each shell
  bool cart = false;
  int n = 0;                 // padded number of pairs
  std::vector<int> buckets;  // starts of the buckets, multiples of kLanes, and n at the end
  std::vector<int> i0, j0, ish, jsh, nprim, base;
  std::vector<int> most;       // largest primitive count of the pair's pack
  Doubles weight;              // 1/2 where both shells are the same, 0 for padding, else 1
  Doubles size, pack_size;     // per primitive: bound of its charge distribution; and the largest of its pack
  Doubles q;                                       // Schwarz bound, -1 for padding
  Doubles ax, ay, az, dx, dy, dz;                  // centre A, and A - B
  Doubles p, x, y, z, c, ip, a2;                   // per primitive: a+b, P, c_a c_b exp(-mu R^2)/p, 1/p, 2a
  int prim(int pair, int m) const { return base[pair] + m * kLanes; }
};

struct PairPrimitive {
  double p, x, y, z, c, a2, size;
};

// Which shell of a pair carries the angular momentum of [e0|. Moving it to the other shell by the horizontal recurrence cancels when the product
// sits at the other one (the loss is about (R sqrt(p))^lb), so a pair with a tight second shell is listed the other way round. Of two contracted
// shells of the same l from g on, each product counts on its own: such a pair is listed both ways round, each with the products near its base.
enum class Base {
  kPreferred,  // pairs whose first shell is the base
  kOther       // pairs that need the shell which is not preferred as base: here the first is that shell
};

// All pairs (i, j) with l_i = la and l_j = lb of two bases, or of one (same: each pair once where la = lb, turned round if need be, or both ways).
// `schwarz` fills q of an unsorted list.
typedef void (*SchwarzFunction)(const PairList&, double omega, double* q);
PairList build_pairs(const Basis& a, const Basis& b, bool same, int la, int lb, Base base, double cutoff, SchwarzFunction schwarz);

}  // namespace jaxqc
