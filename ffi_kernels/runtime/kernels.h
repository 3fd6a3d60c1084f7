// What the instruction-set specific kernels offer to the drivers. Every entry exists once per instruction set and is chosen at run time.
#pragma once
#include <vector>

#include "pairs.h"

namespace jaxqc {

// A pair list with the densities of its pairs, component-major, in list order.
struct PairClass {
  PairList list;
  std::vector<Doubles> density;  // [set][component * n + pair]
  Doubles density_max;           // 4 max |D_ij| of the pair over all sets
  double density_list_max = 0;   // the largest of them
};

// One J/K build over a set of densities, each symmetric or antisymmetric (K only).
struct JKRequest {
  int nao = 0, nset = 0, nshell = 0;
  bool coulomb = true, exchange = true;
  double threshold = 1e-13, omega = 0.0;
  std::vector<const double*> density;  // [set] -> (nao, nao)
  std::vector<double> shell_max;       // (nshell, nshell) max |D| over a shell block and all sets
  std::vector<double> row_max;         // (nshell) the largest of each row
};

// Partial sums of one slot: K complete rows, J in pair order. The same quartets go to the same slot whatever the number of threads.
struct JKSlot {
  std::vector<Doubles> k;               // [set] (nao, nao)
  std::vector<std::vector<Doubles>> j;  // [class][set][component * n + pair]
};

// Scratch memory of one thread.
struct Workspace {
  Doubles data;
  double* get(size_t doubles) {
    if (data.size() < doubles) data.resize(doubles);
    return data.data();
  }
};

// Bra pairs [begin, end) of one class against all kets of another (of the same: kets up to the bra itself).
struct JKTask {
  int bra, ket;  // indices of the pair classes
  bool same;
  int begin, end;
};

// First derivatives of sum_s [tr(pj_s J(D_s)) + tr(pk_s K(D_s))] with respect to the shell centres.
struct GradientRequest {
  int nao = 0, nset = 0, nshell = 0;
  bool coulomb = true, exchange = true;
  double threshold = 1e-13, omega = 0.0;
  std::vector<const double*> density, weight_j, weight_k;  // [set] -> (nao, nao)
  std::vector<double> bound_d, bound_w;                    // (nshell, nshell) largest |D| and |weight| of a block
  double density_max = 0.0, weight_max = 0.0;
};

struct KernelTable {
  const char* name;
  int width;
  void (*schwarz)(const PairList& pairs, double omega, double* q);
  void (*jk)(const JKRequest&, const std::vector<PairClass>&, const JKTask&, JKSlot&, Workspace&);
  void (*gradient)(const GradientRequest&, const std::vector<PairClass>&, const JKTask&, double* out, Workspace&);
  // Integral blocks of one bra pair with the pack of kets that starts at k0: v[(component of bra * components of ket) * width + lane].
  void (*block)(const PairList& bra, int ib, const PairList& ket, int k0, double omega, double* v, Workspace&);
};

// The table in use: the best that the processor supports, unless select_kernels (or JAXQC_ISA) asked for another.
const KernelTable& kernels();
bool select_kernels(const char* name);  // "auto", "baseline", "avx2", "avx512"; false where the processor lacks it

}  // namespace jaxqc
