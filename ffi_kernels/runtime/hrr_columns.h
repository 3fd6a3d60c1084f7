// Straight-line spherical horizontal recurrences of single columns; null where the generator made none (the tapes serve every pair).
#pragma once
#include "simd.h"

namespace jaxqc {
namespace JAXQC_ISA {

typedef void (*BraColumn)(const Pack* in, Pack* out, double abx, double aby, double abz);
typedef void (*KetColumn)(const Pack* in, Pack* out, Pack cdx, Pack cdy, Pack cdz);
BraColumn bra_column(int la, int lb);
KetColumn ket_column(int la, int lb);

}  // namespace JAXQC_ISA
}  // namespace jaxqc
