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

// Pairs of two lists; `turned`: the first shell of a pair is from the second list.
struct Pairs {
  PairList list;
  bool turned;
};
struct Lists {
  Basis a, b, c, d;
  std::vector<Pairs> bra, ket;
};

std::vector<Pairs> all_pairs(const Basis& a, const Basis& b, double cutoff, const Runner& run) {
  std::vector<std::pair<int, int>> classes;
  for (int la = 0; la <= kMaxL; ++la)
    for (int lb = 0; lb <= kMaxL; ++lb) {
      auto has = [](const Basis& s, int l) { return std::any_of(s.shells.begin(), s.shells.end(), [l](const Shell& x) { return x.l == l; }); };
      if (has(a, la) && has(b, lb)) classes.push_back({la, lb});
    }
  std::vector<Pairs> lists(2 * classes.size());
  run(static_cast<int>(lists.size()), [&](int k, int) {
    const auto [la, lb] = classes[k / 2];
    const bool turned = k % 2 == 1;
    // A recurrence that starts from the shell of higher angular momentum has fewer terms, and loses fewer digits.
    const Base base = turned == (lb > la) ? Base::kPreferred : Base::kOther;
    lists[k].turned = turned;
    lists[k].list = turned ? build_pairs(b, a, false, lb, la, base, cutoff, kernels().schwarz)
                           : build_pairs(a, b, false, la, lb, base, cutoff, kernels().schwarz);
  });
  lists.erase(std::remove_if(lists.begin(), lists.end(), [](const Pairs& l) { return l.list.n == 0; }), lists.end());
  return lists;
}

// Adds the integrals of one bra pair with one pack of kets to the output of every operand; `exchanged`: the bra is a pair (cd|.
void digest(Kind kind, const Lists& s, const Pairs& bras, int ib, const Pairs& kets, int k0, bool exchanged, int width, const double* v,
            const double* x, double* out, int nset) {
  const PairList &bra = bras.list, &ket = kets.list;
  const int64_t na = s.a.nao, nb = s.b.nao, nc = s.c.nao, nd = s.d.nao;
  for (int lane = 0; lane < width; ++lane) {
    const int ik = k0 + lane;
    if (ket.q[ik] < 0) continue;
    const double* w = v + lane;
    for (int a0 = 0; a0 < bra.na; ++a0)
      for (int b0 = 0; b0 < bra.nb; ++b0) {
        const int64_t u = bra.i0[ib] + a0, r = bra.j0[ib] + b0, bra_a = bras.turned ? r : u, bra_b = bras.turned ? u : r;
        for (int c0 = 0; c0 < ket.na; ++c0)
          for (int d0 = 0; d0 < ket.nb; ++d0, w += width) {
            const int64_t t = ket.i0[ik] + c0, q = ket.j0[ik] + d0, ket_c = kets.turned ? q : t, ket_d = kets.turned ? t : q;
            const int64_t a = exchanged ? ket_c : bra_a, b = exchanged ? ket_d : bra_b, c = exchanged ? bra_a : ket_c, d = exchanged ? bra_b : ket_d;
            if (kind == Kind::kIntegrals) {
              out[((a * nb + b) * nc + c) * nd + d] += *w;
              continue;
            }
            for (int64_t n = 0; n < nset; ++n) {
              if (kind == Kind::kCoulomb)
                out[(n * na + a) * nb + b] += *w * x[(n * nc + c) * nd + d];
              else
                out[(n * na + a) * nc + c] += *w * x[(n * nb + b) * nd + d];
            }
          }
      }
  }
}

void contract(Kind kind, const Lists& s, double omega, double threshold, const double* x, int64_t nx, double* out, int64_t nout, int nset,
              const Runner& run) {
  double xmax = kind == Kind::kIntegrals ? 1.0 : 0.0;
  for (int64_t n = 0; n < nx; ++n) xmax = std::max(xmax, std::fabs(x[n]));
  std::fill(out, out + nout, 0.0);
  // The output is summed in a fixed number of slots, each in a fixed order; integrals need none, for each bra pair is met in one slot.
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
    for (const Pairs& ab : s.bra)
      for (const Pairs& cd : s.ket) {
        const bool exchanged = nlevels(cd.list.la, cd.list.lb) > nlevels(ab.list.la, ab.list.lb);  // the longer recurrence is the bra's
        const Pairs &bras = exchanged ? cd : ab, &kets = exchanged ? ab : cd;
        const PairList &bra = bras.list, &ket = kets.list;
        double* v = blocks[thread].get(static_cast<size_t>(bra.na) * bra.nb * ket.na * ket.nb * table.width);
        for (int ib = 0; ib < bra.n; ++ib) {
          if (bra.q[ib] < 0 || (bra.ish[ib] + bra.jsh[ib]) % stride != slot) continue;
          for (size_t b = 0; b + 1 < ket.buckets.size(); ++b)
            for (int k0 = ket.buckets[b]; k0 < ket.buckets[b + 1]; k0 += table.width) {
              if (bra.q[ib] * ket.q[k0] * xmax <= threshold) break;
              table.block(bra, ib, ket, k0, omega, v, work[thread]);
              digest(kind, s, bras, ib, kets, k0, exchanged, table.width, v, x, target, nset);
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
    if (!fit(a0, a1, a2) || !fit(b0, b1, b2) || !fit(c0, c1, c2) || !fit(d0, d1, d2) || !finite(x)) {
      fill_nan(out);
      return;
    }
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
