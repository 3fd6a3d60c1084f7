// Generated horizontal recurrences with spherical fusion, one column at a time, for the Rys kernels of one instruction set.
#include "hrr_columns.h"

namespace jaxqc {
namespace JAXQC_ISA {
namespace {
#include "rcg_pairs.h"

#define JAXQC_BRA(A, B) \
  __attribute__((noinline)) void bra_##A##B(const Pack* in, Pack* out, double x, double y, double z) { hrr_sph_##A##B<1, 1, double, Pack>(in, out, x, y, z); }
#define JAXQC_KET(A, B) \
  __attribute__((noinline)) void ket_##A##B(const Pack* in, Pack* out, Pack x, Pack y, Pack z) { hrr_sph_##A##B<1, 1, Pack, Pack>(in, out, x, y, z); }
RCG_PAIRS(JAXQC_BRA)
RCG_PAIRS(JAXQC_KET)
}  // namespace

BraColumn bra_column(int la, int lb) {
#define JAXQC_CASE(A, B) \
  if (la == A && lb == B) return bra_##A##B;
  RCG_PAIRS(JAXQC_CASE)
#undef JAXQC_CASE
  return nullptr;
}
KetColumn ket_column(int la, int lb) {
#define JAXQC_CASE(A, B) \
  if (la == A && lb == B) return ket_##A##B;
  RCG_PAIRS(JAXQC_CASE)
#undef JAXQC_CASE
  return nullptr;
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
