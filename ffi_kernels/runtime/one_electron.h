// Building blocks of the one-electron integrals (McMurchie and Davidson, J. Comput. Phys. 26, 218 (1978)):
// shell lists, Hermite expansion coefficients, Hermite Coulomb integrals, and a deterministic parallel loop.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "boys.h"
#include "finite.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace jaxqc::one_electron {

constexpr int cartesian_size(int l) { return (l + 1) * (l + 2) / 2; }

// Place of x^a y^b z^c in a shell of Cartesian functions (lx descending, then ly descending).
constexpr int cartesian_index(int lx, int ly, int lz) {
  (void)lx;
  return (ly + lz) * (ly + lz + 1) / 2 + lz;
}

// Hermite index (t, u, v) is stored by rising degree, so that "all of degree <= n" is a prefix of this length.
constexpr int hermite_size(int degree) { return (degree + 1) * (degree + 2) * (degree + 3) / 6; }
constexpr int hermite_index(int t, int u, int v) {
  return hermite_size(t + u + v - 1) + (u + v) * (u + v + 1) / 2 + v;
}

// Contracted shells in the flat format that all handlers share. `coefficients` has normalisation multiplied in.
struct Shells {
  int count = 0, nao = 0, max_l = 0, max_nprim = 0;
  const int32_t* ls = nullptr;
  const int32_t* nprims = nullptr;
  const double* centers = nullptr;
  const double* exponents = nullptr;
  const double* coefficients = nullptr;
  std::vector<int> primitive_offset, ao_offset;
};

using DoubleBuffer = xla::ffi::Buffer<xla::ffi::F64>;
using IntSpan = xla::ffi::Span<const int32_t>;

xla::ffi::Error make_shells(IntSpan ls, IntSpan nprims, const DoubleBuffer& centers, const DoubleBuffer& exponents,
                            const DoubleBuffer& coefficients, Shells& shells);

// A product of two primitives as one Gaussian at P: what every integral starts from.
struct PrimitivePair {
  double a, b, p, prefactor;  // prefactor: c_a c_b exp(-a b |A - B|^2 / p)
  double pa[3], pb[3], center[3];
};

// Pairs whose prefactor is below this are left out; it lies far below the accuracy of any integral.
constexpr double kPairCutoff = 1e-21;

template <typename Visitor>
void for_each_primitive_pair(const Shells& sa, int ia, const Shells& sb, int ib, Visitor&& visit) {
  const double* ra = sa.centers + 3 * ia;
  const double* rb = sb.centers + 3 * ib;
  double ab[3], r2 = 0;
  for (int d = 0; d < 3; ++d) {
    ab[d] = ra[d] - rb[d];
    r2 += ab[d] * ab[d];
  }
  for (int i = sa.primitive_offset[ia]; i < sa.primitive_offset[ia + 1]; ++i) {
    for (int j = sb.primitive_offset[ib]; j < sb.primitive_offset[ib + 1]; ++j) {
      PrimitivePair pair;
      pair.a = sa.exponents[i];
      pair.b = sb.exponents[j];
      pair.p = pair.a + pair.b;
      pair.prefactor = sa.coefficients[i] * sb.coefficients[j] * std::exp(-pair.a * pair.b / pair.p * r2);
      if (std::abs(pair.prefactor) < kPairCutoff) continue;
      for (int d = 0; d < 3; ++d) {
        pair.pa[d] = -pair.b / pair.p * ab[d];
        pair.pb[d] = pair.a / pair.p * ab[d];
        pair.center[d] = ra[d] + pair.pa[d];
      }
      visit(pair);
    }
  }
}

// E^{ij}_t of one axis for i <= la, j <= lb, t <= i + j, without the exponential: e[(i (lb+1) + j) (la+lb+1) + t].
void hermite_coefficients(int la, int lb, double p, double pa, double pb, double* e);

// block[a, b] += sum_tuv E_t E_u E_v h_tuv, and its transpose h_tuv += sum_ab E_t E_u E_v block[a, b].
// `e` holds the three axes one after the other, `scratch` (la + lb + 1)^2 numbers.
void hermite_to_cartesian(int la, int lb, const double* e, const double* h, double* scratch, double* block);
void cartesian_to_hermite(int la, int lb, const double* e, const double* block, double* scratch, double* h);

// Runs body(0) ... body(count - 1) on XLA's threads and on the calling one.
template <typename Body>
void for_each_row(xla::ffi::ThreadPool& pool, int count, const Body& body) {
  parallel_for(count, [&body](int row, int) { body(row); }, [&pool](auto helper) { pool.Schedule(std::move(helper)); });
}

template <typename Visitor>
void for_each_component(int l, Visitor&& visit) {
  for (int x = l; x >= 0; --x) {
    for (int y = l - x; y >= 0; --y) visit(cartesian_index(x, y, l - x - y), x, y, l - x - y);
  }
}

// Writes a block of two shells into the matrix out[sa.nao][sb.nao], and its transpose where both lists are the same.
void store_block(const Shells& sa, int ia, const Shells& sb, int ib, bool symmetric, const double* block, double* out);

}  // namespace jaxqc::one_electron

// The operands and attributes that all handlers over two shell lists share.
#define JAXQC_SHELL_LIST        \
  Arg<xla::ffi::Buffer<xla::ffi::F64>>().Arg<xla::ffi::Buffer<xla::ffi::F64>>().Arg<xla::ffi::Buffer<xla::ffi::F64>>()
#define JAXQC_TWO_LISTS xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().JAXQC_SHELL_LIST.JAXQC_SHELL_LIST
#define JAXQC_LIST_ATTRIBUTES                        \
  Ret<xla::ffi::Buffer<xla::ffi::F64>>()             \
      .Attr<xla::ffi::Span<const int32_t>>("a_ls")   \
      .Attr<xla::ffi::Span<const int32_t>>("a_nprims") \
      .Attr<xla::ffi::Span<const int32_t>>("b_ls")   \
      .Attr<xla::ffi::Span<const int32_t>>("b_nprims")
