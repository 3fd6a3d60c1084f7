// One group of straight-line classes of one instruction set: JAXQC_GROUP names the list that the generator wrote.
#include "line_kernel.h"

#define RCG_PASTE_(a, b) a##b
#define RCG_PASTE(a, b) RCG_PASTE_(a, b)
#define RCG_QUOTE_(x) #x
#define RCG_QUOTE(x) RCG_QUOTE_(x)

namespace jaxqc {
namespace JAXQC_ISA {
namespace {
#include RCG_QUOTE(JAXQC_GROUP_HEADER)
RCG_GROUP(JAXQC_LINE_CLASS)
RCG_GRADIENT_GROUP(JAXQC_LINE_GRADIENT_CLASS)
}  // namespace

#define JAXQC_ENTRY(A, B, C, D)                                                                               \
  {A, B, C, D, LineClass<Generated##A##B##C##D>::block, LineClass<Generated##A##B##C##D>::jk, LineClass<Generated##A##B##C##D>::scratch},
const LineEntry* RCG_PASTE(line_group_, JAXQC_GROUP)(int* count);
const LineEntry* RCG_PASTE(line_group_, JAXQC_GROUP)(int* count) {
  static const LineEntry entries[] = {RCG_GROUP(JAXQC_ENTRY)};
  *count = sizeof(entries) / sizeof(entries[0]);
  return entries;
}

#define JAXQC_GRADIENT_ENTRY(A, B, C, D) \
  {A, B, C, D, LineGradient<GeneratedGradient##A##B##C##D>::gradient, LineGradient<GeneratedGradient##A##B##C##D>::scratch},
const LineGradientEntry* RCG_PASTE(line_gradient_group_, JAXQC_GROUP)(int* count);
const LineGradientEntry* RCG_PASTE(line_gradient_group_, JAXQC_GROUP)(int* count) {
  static const LineGradientEntry entries[] = {RCG_GRADIENT_GROUP(JAXQC_GRADIENT_ENTRY)};
  *count = sizeof(entries) / sizeof(entries[0]);
  return entries;
}

}  // namespace JAXQC_ISA
}  // namespace jaxqc
