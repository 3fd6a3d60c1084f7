// Contractions of (ab|cd) over four shell lists, each a list of its own: the slow, general form that closes J and K under differentiation.
//
//   j:    out_ab = sum_cd (ab|cd) X_cd      k:    out_ac = sum_bd (ab|cd) X_bd      eri:  out_abcd = (ab|cd)
// All functions are Cartesian. Every quartet of the lists is evaluated; only negligible ones are skipped.
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "shells_ffi.h"

namespace jaxqc {
namespace {

namespace ffi = xla::ffi;

enum class Kind { kCoulomb = 0, kExchange = 1, kIntegrals = 2 };

struct Lists {
  Basis a, b, c, d;
  std::vector<PairList> bra, ket;
};

std::vector<PairList> all_pairs(const Basis& a, const Basis& b, double cutoff, const Runner& run) {
  std::vector<std::pair<int, int>> classes;
  for (int la = 0; la <= kMaxL; ++la)
    for (int lb = 0; lb <= kMaxL; ++lb) {
      auto has = [](const Basis& s, int l) { return std::any_of(s.shells.begin(), s.shells.end(), [l](const Shell& x) { return x.l == l; }); };
      if (has(a, la) && has(b, lb)) classes.push_back({la, lb});
    }
  std::vector<PairList> lists(classes.size());
  run(static_cast<int>(classes.size()), [&](int k, int) {
    lists[k] = build_pairs(a, b, false, classes[k].first, classes[k].second, cutoff, kernels().schwarz);
  });
  lists.erase(std::remove_if(lists.begin(), lists.end(), [](const PairList& l) { return l.n == 0; }), lists.end());
  return lists;
}

// Adds the integrals of one bra pair with one pack of kets to the output of every operand.
void digest(Kind kind, const Lists& s, const PairList& bra, int ib, const PairList& ket, int k0, int width, const double* v, const double* x,
            double* out, int nset) {
  const int64_t na = s.a.nao, nb = s.b.nao, nc = s.c.nao, nd = s.d.nao;
  for (int lane = 0; lane < width; ++lane) {
    const int ik = k0 + lane;
    if (ket.q[ik] < 0) continue;
    const int64_t i = bra.i0[ib], j = bra.j0[ib], k = ket.i0[ik], l = ket.j0[ik];
    const double* w = v + lane;
    for (int a = 0; a < bra.na; ++a)
      for (int b = 0; b < bra.nb; ++b)
        for (int c = 0; c < ket.na; ++c)
          for (int d = 0; d < ket.nb; ++d, w += width) {
            if (kind == Kind::kIntegrals) {
              out[(((i + a) * nb + j + b) * nc + k + c) * nd + l + d] = *w;
              continue;
            }
            for (int n = 0; n < nset; ++n) {
              if (kind == Kind::kCoulomb)
                out[(n * na + i + a) * nb + j + b] += *w * x[(n * nc + k + c) * nd + l + d];
              else
                out[(n * na + i + a) * nc + k + c] += *w * x[(n * nb + j + b) * nd + l + d];
            }
          }
  }
}

void contract(Kind kind, const Lists& s, double omega, double threshold, const double* x, int64_t nx, double* out, int64_t nout, int nset,
              const Runner& run) {
  double xmax = kind == Kind::kIntegrals ? 1.0 : 0.0;
  for (int64_t n = 0; n < nx; ++n) xmax = std::max(xmax, std::fabs(x[n]));
  std::fill(out, out + nout, 0.0);
  // The output is summed in a fixed number of slots, each in a fixed order; integrals are written once each and need none.
  const int nslots = kind == Kind::kIntegrals ? 1 : std::clamp(static_cast<int>(2e8 / (8.0 * nout + 1)), 1, 8);
  std::vector<Doubles> slots(nslots);
  std::vector<Workspace> work(num_threads()), blocks(num_threads());
  const KernelTable& table = kernels();
  run(kind == Kind::kIntegrals ? 32 : nslots, [&](int slot, int thread) {
    double* target = out;
    if (kind != Kind::kIntegrals) {
      slots[slot].assign(nout, 0.0);
      target = slots[slot].data();
    }
    const int stride = kind == Kind::kIntegrals ? 32 : nslots;
    for (const PairList& bra : s.bra)
      for (const PairList& ket : s.ket) {
        double* v = blocks[thread].get(static_cast<size_t>(bra.na) * bra.nb * ket.na * ket.nb * table.width);
        for (int ib = slot; ib < bra.n; ib += stride) {
          if (bra.q[ib] < 0) continue;
          for (size_t b = 0; b + 1 < ket.buckets.size(); ++b)
            for (int k0 = ket.buckets[b]; k0 < ket.buckets[b + 1]; k0 += table.width) {
              if (bra.q[ib] * ket.q[k0] * xmax <= threshold) break;
              table.block(bra, ib, ket, k0, omega, v, work[thread]);
              digest(kind, s, bra, ib, ket, k0, table.width, v, x, target, nset);
            }
        }
      }
  });
  for (const Doubles& slot : slots)
    for (size_t n = 0; n < slot.size(); ++n) out[n] += slot[n];
}

typedef ffi::Buffer<ffi::F64> Operand;
typedef ffi::Span<const int32_t> Ints;

Basis basis_of(Ints ls, Ints nprims, const Operand& centers, const Operand& exponents, const Operand& coefficients) {
  return Basis(ls.begin(), nprims.begin(), static_cast<int64_t>(ls.size()), centers.typed_data(), exponents.typed_data(),
               coefficients.typed_data(), static_cast<int64_t>(exponents.element_count()), true);
}

ffi::Error contract_handler(ffi::ThreadPool pool, int64_t kind, double omega, double threshold, Ints a_ls, Ints a_nprims, Ints b_ls,
                            Ints b_nprims, Ints c_ls, Ints c_nprims, Ints d_ls, Ints d_nprims, Operand a0, Operand a1, Operand a2, Operand b0,
                            Operand b1, Operand b2, Operand c0, Operand c1, Operand c2, Operand d0, Operand d1, Operand d2, Operand x,
                            ffi::ResultBuffer<ffi::F64> out) {
  return guarded([&] {
    const Runner run = pool_runner(pool);
    Lists s;
    s.a = basis_of(a_ls, a_nprims, a0, a1, a2);
    s.b = basis_of(b_ls, b_nprims, b0, b1, b2);
    s.c = basis_of(c_ls, c_nprims, c0, c1, c2);
    s.d = basis_of(d_ls, d_nprims, d0, d1, d2);
    const double cutoff = std::min(threshold, 1e-14);
    s.bra = all_pairs(s.a, s.b, cutoff, run);
    s.ket = all_pairs(s.c, s.d, cutoff, run);
    const int nset = kind == 2 ? 1 : static_cast<int>(x.dimensions()[0]);
    contract(static_cast<Kind>(kind), s, omega, threshold, x.typed_data(), static_cast<int64_t>(x.element_count()), out->typed_data(),
             static_cast<int64_t>(out->element_count()), nset, run);
  });
}

}  // namespace
}  // namespace jaxqc

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_contract, jaxqc::contract_handler,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Attr<int64_t>("kind")
                                  .Attr<double>("omega")
                                  .Attr<double>("threshold")
                                  .Attr<jaxqc::Ints>("a_ls")
                                  .Attr<jaxqc::Ints>("a_nprims")
                                  .Attr<jaxqc::Ints>("b_ls")
                                  .Attr<jaxqc::Ints>("b_nprims")
                                  .Attr<jaxqc::Ints>("c_ls")
                                  .Attr<jaxqc::Ints>("c_nprims")
                                  .Attr<jaxqc::Ints>("d_ls")
                                  .Attr<jaxqc::Ints>("d_nprims")
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Arg<jaxqc::Operand>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F64>>());
#pragma GCC visibility pop
