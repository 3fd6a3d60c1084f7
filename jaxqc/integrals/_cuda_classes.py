"""Which kernel serves which class of electron-repulsion integrals on a GPU, and its launch shape."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from jaxqc.ffi_kernels.rcg.cartesian import ncart, ncomp, nsph
from jaxqc.ffi_kernels.rcg.cuda import HEADER, class_header
from jaxqc.gpu import Unit
from jaxqc.gpu._compile import source_folder

Pair = tuple[int, int]

# Tier of each class, and blocks on a multiprocessor that the compiler is asked for: experiments/eri_gpu_classes.py.
SHAPES = "eri_shapes_sm90.json"
# Classes that it does not name: contracted values (e0|f0) up to which one thread a quartet beats a group of lanes.
_REGISTER_SIZE = 139
# Up to this size there are registers enough to keep a primitive of the ket through the loop over those of the bra.
_KET_OUTER_SIZE = 18
_BLOCK = 128

# Bytes of shared memory a group of lanes may take for the exchange of (ab|f0), which is sliced by a where that is more;
# for sums of J, or it takes fewer quartets at a time; and a block, which then has fewer groups.
_EXCHANGE_BYTES = 50_000
_SUM_BYTES = 20_000
_BLOCK_BYTES = 110_000


@dataclass(frozen=True)
class Variant:
    """What is compiled: which matrices, for how many densities at once, of which functions."""

    cart: bool
    coulomb: bool = True
    exchange: bool = True
    sets: int = 1
    deterministic: bool = False


@dataclass(frozen=True)
class Kernel:
    """A compiled class: `registers` names the tier; `shared` is in bytes; `group` lanes do `together` quartets."""

    unit: Unit
    bra: Pair
    ket: Pair
    registers: bool
    block: int
    shared: int
    group: int
    together: int = 1


def order(pair: Pair) -> tuple[int, int, int]:
    """Bras have more components (e0| than their kets."""
    return (ncomp(*pair), *pair)


def pairs_of(ls: Sequence[int]) -> list[Pair]:
    """The classes (la, lb), la >= lb, of pairs of shells with these angular momenta."""
    return sorted({(max(a, b), min(a, b)) for a in set(ls) for b in set(ls)})


def classes(pairs: Sequence[Pair]) -> list[tuple[Pair, Pair]]:
    """All (bra, ket) of the pair classes that occur."""
    ordered = sorted(pairs, key=order)
    return [(bra, ket) for n, bra in enumerate(ordered) for ket in ordered[: n + 1]]


@functools.cache
def shapes() -> dict[str, tuple[str, int]]:
    """Tier ("registers" or "lanes") and blocks a multiprocessor of the classes that were measured, by their digits."""
    return {
        name: (tier, blocks)
        for name, (tier, blocks) in json.loads((source_folder() / SHAPES).read_text())["shapes"].items()
    }


def shape(bra: Pair, ket: Pair) -> tuple[bool, int]:
    """Whether one thread computes a quartet, and blocks on a multiprocessor. Kets (ss| always go to threads."""
    size = ncomp(*bra) * ncomp(*ket)
    usual = ("registers", 1) if ncomp(*ket) == 1 or size <= _REGISTER_SIZE else ("lanes", 2)
    tier, blocks = shapes().get("".join(map(str, bra + ket)), usual)
    return tier == "registers", blocks


def _lane_shape(bra: Pair, ket: Pair, size, sets: int) -> tuple[int, int, int, int, int]:
    """Block, lanes of a group, quartets at a time, slice of functions a, doubles of shared memory of each group."""
    nf, nb = ncomp(*ket), size(bra[1])
    group = max(32, -(-nf // 32) * 32)
    sums = size(bra[0]) * nb * sets  # of J, or bounds
    together = max(1, min(32 // nf, _SUM_BYTES // (8 * sums)))
    parts = 2 * (size(ket[0]) + size(ket[1]))
    row = max(nf, sets * parts) | 1
    slice_a = max(1, min(size(bra[0]), _EXCHANGE_BYTES // (8 * row * nb * together)))
    roots = (sum(bra) + sum(ket)) // 2 + 1
    table_row = sum(bra) + 1 + (sum(bra) + 1) % 2
    stride = (sum(ket) + 1) * table_row
    stride += 2 if stride // 2 % 2 == 0 else 0
    area = (max(3 * roots * stride, slice_a * nb * row) + 1) // 2 * 2 + 2
    doubles = together * (area + 2 * roots + sums)
    groups = max(1, min(_BLOCK // group, _BLOCK_BYTES // (8 * doubles)))
    return group * groups if group == 32 else group, group, together, slice_a, doubles


@functools.cache
def kernel(bra: Pair, ket: Pair, variant: Variant, bound: bool = False) -> Kernel:
    """The kernel of a class.

    **Arguments:** `bound`: for Schwarz bounds of the pairs, bra and ket being the same class, instead of J and K.
    """
    registers, blocks = shape(bra, ket)
    size = ncart if variant.cart else nsph
    defines = dict(zip(("LA", "LB", "LC", "LD"), bra + ket, strict=True)) | {
        "COULOMB": int(variant.coulomb),
        "EXCHANGE": int(variant.exchange),
        "SETS": variant.sets,
        "DETERMINISTIC": int(variant.deterministic),
        "SCHWARZ": int(bound),
    }
    if registers:
        block, group, together, file = _BLOCK, 1, 1, "eri_register.cu"
        na, nb, nc, nd = (size(l) for l in bra + ket)
        defines["KET_OUTER"] = int(ncomp(*bra) * ncomp(*ket) <= _KET_OUTER_SIZE)
        shared = 0 if bound else 8 * block * (max(na * nc, na * nd, nb * nc, nb * nd, nc * nd) | 1)
        defines["MINBLOCKS"] = 1 if variant.sets > 1 or variant.cart or bound else blocks
    else:
        block, group, together, slice_a, doubles = _lane_shape(bra, ket, size, variant.sets)
        file, shared = "eri_lanes.cu", 8 * (block // group) * doubles
        defines |= {"CHUNK": slice_a, "TOGETHER": together, "DERIVATIVE": 0}
        defines["MINBLOCKS"] = 1 if group > 96 or variant.cart else blocks
    defines["BLOCK"] = block
    header = class_header((*bra, *ket), variant.cart, registers)
    entry = "eri_bound" if bound else file.removesuffix(".cu")
    headers = ("eri_boys.cuh" if registers else "eri_lanes.cuh", "eri_quartets.cuh")
    unit = Unit(file, (entry,), tuple(defines.items()), headers, ((HEADER, header),))
    return Kernel(unit, bra, ket, registers, block, shared, group, together)


@functools.cache
def ket_kernel(ket: Pair, variant: Variant) -> Kernel:
    """The kernel that finishes J of a class of ket pairs."""
    defines = {"LA": ket[0], "LB": ket[1], "LC": ket[0], "LD": ket[1], "SETS": variant.sets, "BLOCK": _BLOCK}
    defines |= {"COULOMB": 1, "EXCHANGE": 0, "DETERMINISTIC": int(variant.deterministic)}
    generated = ((HEADER, class_header((*ket, *ket), variant.cart, False)),)
    unit = Unit("eri_ket.cu", ("eri_ket",), tuple(defines.items()), ("eri_quartets.cuh",), generated)
    return Kernel(unit, ket, ket, False, _BLOCK, 0, 1)
