"""The second tier of the FusionRCG paper (arXiv:2605.10312), for comparison: two kernels, (e0|f0) in memory between."""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp

from jaxqc.ffi_kernels.rcg.cartesian import ncomp
from jaxqc.gpu import Step, Unit, call, result
from jaxqc.gpu._compile import source_folder
from jaxqc.integrals import _cuda_jk
from jaxqc.integrals._cuda_classes import Kernel, Pair

_HERE = Path(__file__).parent
_TILE, _TILE_ROW = 32, 64  # quartets of a tile, and numbers that describe it
_BLOCKS = 4  # of lanes, on a multiprocessor

# Assembly keeps the compiler from holding numbers in registers that belong into memory.
ACCESS = """
#ifdef EMULATED
static inline double get(const double* at) { return *at; }
static inline void put(double* at, double value) { *at = value; }
#else
static __device__ __forceinline__ double get(const double* at) {
  double value;
  asm volatile("ld.global.f64 %0, [%1];" : "=d"(value) : "l"(at));
  return value;
}
static __device__ __forceinline__ void put(double* at, double value) {
  asm volatile("st.global.f64 [%0], %1;" ::"l"(at), "d"(value));
}
#endif
"""


def lanes(bra: Pair, ket: Pair) -> Kernel:
    """Our second tier."""
    return measure.in_tier(bra, ket, "lanes", _BLOCKS)


def _between(text: str, begin: str, end: str) -> str:
    at = text.index(begin)
    return text[at : text.index(end, at)]


def _changed(text: str, changes: Sequence[tuple[str, str]]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def vertical(unit: Unit) -> Unit:
    """The first kernel, of the parts of the register tier that `unit` is."""
    source = (source_folder() / unit.file).read_text()
    loops = _between(source, "__device__ __forceinline__ void quartet(", "  real g[kAB * kF];")
    changes = [("quartet(", "vertical("), ("volatile real* held, real* v)", "real* h)"), ("  real h[kE * kF];\n", "")]
    changes += [("SUMS", "h"), ("#pragma unroll\n    for (int n = 0; n < kE * HELD; ++n) held[n] = 0.0;\n", "")]
    loops = _changed(loops, [*changes, ("h[n] =", f"h[{_TILE} * n] =")]) + "}\n"
    ((name, header),) = unit.generated
    place = rf"h + {_TILE} * \1"
    header = re.sub(r"h\[(\d+)\] \+= (.*);", rf"put({place}, get({place}) + \2);", header)
    header = header.replace("template", f"{ACCESS}template", 1)
    generated = ((name, header), ("eri_recurrence.h", loops))
    return replace(unit, file=str(_HERE / "eri_gpu_vertical.cu"), kernels=("eri_vertical",), generated=generated)


def horizontal(bra: Pair, ket: Pair) -> Kernel:
    """The second kernel, of the parts of the lane tier."""
    made = lanes(bra, ket)
    source = (source_folder() / made.unit.file).read_text()
    parts = _between(source, "constexpr int kParts", "// h[e] += (e0|f0)")
    parts += _between(source, "// Partial sums of K of one row", 'extern "C"')
    after = source[source.index("    eri_lanes(") :]
    digestion = _between(after, "    real v[kAB];", "    group_sync();\n  }\n#if COULOMB")
    generated = (*made.unit.generated, ("eri_lane_parts.h", parts), ("eri_lane_digestion.h", digestion))
    file = str(_HERE / "eri_gpu_horizontal.cu")
    return replace(made, unit=replace(made.unit, file=file, kernels=("eri_horizontal",), generated=generated))


def _call(
    made: Sequence[Kernel], quartets: int, width: int, target, steps: Sequence[Step], results, *operands, **kwargs
):
    """In place of `call`: both launches with `width` sums of each of the `quartets` between them."""
    (step,) = steps
    n, tiles = len(results), quartets // _TILE + step.grid * step.grid_y * (step.block // 32)
    first, second = made
    step = replace(step, arguments=(*step.arguments, *(result(n + k) for k in range(3))), concurrent=False)
    launches = [
        replace(step, unit=first.unit, kernel="eri_vertical"),
        replace(
            step, unit=second.unit, kernel="eri_horizontal", grid=0, grid_y=1, block=second.block, shared=second.shared
        ),
    ]
    between = (((tiles, _TILE * width), jnp.float64), ((tiles, _TILE_ROW), jnp.int32), ((1,), jnp.int32))
    more = [*results, *(jax.ShapeDtypeStruct(*s) for s in between)]
    return call(target, launches, more, *operands, zeroed=(*kwargs["zeroed"], n + 2))[:n]


def sums(system: measure.System, bra: Pair, ket: Pair, made: Sequence[Kernel], quartets: int):
    """As `measure.sums`, of both kernels."""
    run = measure.sums(system, {(bra, ket): made[:1]})
    twice = functools.partial(_call, made, quartets, ncomp(*bra) * ncomp(*ket))
    with mock.patch.object(_cuda_jk, "call", twice):  # while it is traced
        run()
    return run
