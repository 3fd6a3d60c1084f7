// Choice of the instruction set at run time.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace jaxqc {
#if defined(__x86_64__)
namespace avx512 { const KernelTable& table(); }
namespace avx2 { const KernelTable& table(); }
#endif
namespace baseline { const KernelTable& table(); }

namespace {
const KernelTable* find(const char* name) {
  const bool best = name == nullptr || std::strcmp(name, "auto") == 0 || *name == 0;
#if defined(__x86_64__)
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx512 && (best || std::strcmp(name, "avx512") == 0)) return &avx512::table();
  if (has_avx2 && (best || std::strcmp(name, "avx2") == 0)) return &avx2::table();
#endif
  if (best || std::strcmp(name, "baseline") == 0) return &baseline::table();
  return nullptr;
}
std::atomic<const KernelTable*> current{nullptr};
}  // namespace

const KernelTable& kernels() {
  const KernelTable* t = current.load();
  if (t == nullptr) {
    t = find(std::getenv("JAXQC_ISA"));
    if (t == nullptr) t = find(nullptr);
    current.store(t);
  }
  return *t;
}

bool select_kernels(const char* name) {
  const KernelTable* t = find(name);
  if (t != nullptr) current.store(t);
  return t != nullptr;
}

}  // namespace jaxqc

extern "C" __attribute__((visibility("default"))) int jaxqc_select_isa(const char* name) { return jaxqc::select_kernels(name) ? 1 : 0; }
extern "C" __attribute__((visibility("default"))) const char* jaxqc_isa() { return jaxqc::kernels().name; }
