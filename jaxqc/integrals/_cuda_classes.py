"""Which kernel serves which class of electron-repulsion integrals on a GPU, and its launch shape."""

import enum
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
# Shapes of the kernels in single precision, and of those for uncontracted quartets where they are worth a launch.
OTHER_SHAPES = "eri_other_shapes_sm90.json"
# Classes that it does not name: contracted values (e0|f0) up to which one thread a quartet beats a group of lanes.
_REGISTER_SIZE = 40
# Up to this size there are registers enough to keep a primitive of the ket through the loop over those of the bra.
_KET_OUTER_SIZE = 18
_BLOCK = 128
# (ab|cd) and sums over them that a thread has at once where all (e0|f0) are in shared memory: what fits into registers.
_SLICE = {False: 84, True: 76}  # spherical and Cartesian

# Bytes of shared memory a group of lanes may take for the exchange of (ab|f0), which is sliced by a where that is more;
# for sums of J, or it takes fewer quartets at a time; and a block, which then has fewer groups.
_EXCHANGE_BYTES = 50_000
_SUM_BYTES = 20_000
_BLOCK_BYTES = 110_000
# What a block with a thread a quartet may take: what every GPU since sm_80 has, but for its queues.
_REGISTER_BYTES = 161 * 1024


class Quartets(enum.IntEnum):
    """Which quartets of a class a kernel computes: all, or only those of one primitive in each pair, or all others."""

    ALL = 0
    CONTRACTED = 1
    UNCONTRACTED = 2


@dataclass(frozen=True)
class Variant:
    """What is compiled: which matrices, for how many densities at once, of which functions.

    `mixed`: with kernels for small quartets in single precision; `short`: of the operator erfc(omega r) / r.
    """

    cart: bool
    coulomb: bool = True
    exchange: bool = True
    sets: int = 1
    deterministic: bool = False
    mixed: bool = False
    short: bool = False


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
    single: bool = False


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


@functools.cache
def other_shapes(kind: str) -> dict[str, tuple[str, int]]:
    """As `shapes`, of the kernels in single precision ("single") or for uncontracted quartets ("uncontracted")."""
    stored = json.loads((source_folder() / OTHER_SHAPES).read_text())[kind]
    return {name: (tier, blocks) for name, (tier, blocks) in stored.items()}


def shape(bra: Pair, ket: Pair, single: bool = False) -> tuple[bool, int]:
    """Whether one thread computes a quartet, and blocks on a multiprocessor."""
    usual = ("registers", 1) if ncomp(*bra) * ncomp(*ket) <= _REGISTER_SIZE else ("lanes", 2)
    name = _name(bra, ket)
    tier, blocks = shapes().get(name, usual)
    if single:
        tier, blocks = other_shapes("single").get(name, (tier, blocks))
    return tier == "registers", blocks


@functools.cache
def _changes() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads((source_folder() / OTHER_SHAPES).read_text())["changes"]


def choice(what: str, bra: Pair, ket: Pair, kind: str, variant: Variant) -> int | None:
    """What was measured for a class of the register tier, or None.

    **Arguments:** `what`: "blocks" on a multiprocessor; how many "columns" f of (e0|f0) a thread keeps in shared
    memory, beside J of the bra; threads of a block that keeps all of them there and digests "slices", some functions a
    at a time. `kind`: of kernel, "contracted", "uncontracted" or "single".
    """
    features = {
        "single, with J": kind == "single" and variant.coulomb,
        "Cartesian": variant.cart and kind != "single",
        "several densities": variant.sets > 1 and kind != "single",
        "short range": variant.short,
        "without J": not variant.coulomb and kind == "contracted",
        kind: True,
    }
    tables = (_changes()[feature].get(what, {}) for feature, has in features.items() if has)
    return next((table[_name(bra, ket)] for table in tables if _name(bra, ket) in table), None)


def _name(bra: Pair, ket: Pair) -> str:
    return "".join(map(str, bra + ket))


def ket_axes(bra: Pair, ket: Pair) -> bool:
    """Whether the lane tier runs the recurrence of the ket on the tables of each axis, before they are multiplied.

    Two long recurrences of contracted (e0|f0) lose too many digits where g functions are among them. Short kets of
    equal l need it less: their products are based on the nearer shell.
    """
    long = sum(bra) + sum(ket) >= 10 and (bra[0] > bra[1] or sum(ket) >= 5) and (ket[0] > ket[1] or sum(ket) >= 6)
    return long and max(bra[0], ket[0]) == 4 and bra[1] >= 2 and ket[1] >= 1


def ket_size(bra: Pair, ket: Pair) -> int:
    """How many (f0|, or Cartesian (cd| in their place, a quartet of the lane tier has."""
    return ncart(ket[0]) * ncart(ket[1]) if ket_axes(bra, ket) else ncomp(*ket)


def _lane_shape(bra: Pair, ket: Pair, size, sets: int, single: bool = False) -> tuple[int, int, int, int, int]:
    """Block, lanes of a group, quartets at a time, slice of functions a, bytes of shared memory of each group."""
    number = 4 if single else 8
    nf, nb = ket_size(bra, ket), size(bra[1])
    group = max(32, -(-nf // 32) * 32)
    sums = size(bra[0]) * nb * sets  # of J, or bounds
    together = max(1, min(32 // nf, _SUM_BYTES // (8 * sums)))
    parts = 2 * (size(ket[0]) + size(ket[1]))
    row = max(nf, sets * parts) | 1
    slice_a = max(1, min(size(bra[0]), _EXCHANGE_BYTES // (number * row * nb * together)))
    roots = (sum(bra) + sum(ket)) // 2 + 1
    table_row = sum(bra) + 1 + (sum(bra) + 1) % 2
    stride = ((ket[0] + 1) * (ket[1] + 1) if ket_axes(bra, ket) else sum(ket) + 1) * table_row
    stride += 2 if stride // 2 % 2 == 0 else 0
    area = (max(3 * roots * stride, slice_a * nb * row) + 1) // 2 * 2 + 2
    needed = together * (number * (area + 2 * roots) + 8 * sums)
    groups = max(1, min(_BLOCK // group, _BLOCK_BYTES // needed))
    return group * groups if group == 32 else group, group, together, slice_a, needed


def _register_shape(bra: Pair, ket: Pair, variant: Variant, kind: str, bound: bool, blocks: int):
    """Block, bytes of its shared memory, columns (e0|f0) that are there, and other definitions of a kernel."""
    size = ncart if variant.cart else nsph
    na, nb, nc, nd = (size(l) for l in bra + ket)
    ne, nf = ncomp(*bra), ncomp(*ket)
    chosen = functools.partial(choice, bra=bra, ket=ket, kind=kind, variant=variant)
    threads = None if bound else chosen("slices")
    columns = None if bound or threads else chosen("columns")
    held = nf if threads else columns or 0
    apart = variant.coulomb and not bound and (threads or columns is not None)
    strip = max(na * nc, na * nd, nb * nc, nb * nd, nc * nd, ne * held)
    if threads:  # K of (ac) and (ad) is there at the same time as the sums
        strip = ne * nf + na * (nc + nd)
    at_once = (_SLICE[variant.cart] - nb * (nc + nd) - nc * nd) // (nb * nc * nd)
    defines = {
        "KET_OUTER": int(ne * nf <= _KET_OUTER_SIZE),
        "MINBLOCKS": 1 if variant.sets > 1 or variant.cart or bound else chosen("blocks") or blocks,
        "HELD": held,
        "SUMS_APART": int(bool(apart)),
        "SLICED": max(1, min(na, at_once)) if threads else 0,
    }
    each = (4 if kind == "single" else 8) * (strip | 1) + (8 * variant.sets * na * nb if apart else 0)
    block = min(threads or _BLOCK, _REGISTER_BYTES // each // 32 * 32)
    return block, 0 if bound else block * each, held, defines


def kernels(bra: Pair, ket: Pair, variant: Variant) -> list[Kernel]:
    """The kernels of a class, which together compute all quartets."""
    if variant.mixed:
        return [kernel(bra, ket, variant), kernel(bra, ket, variant, single=True)]
    measured = variant.sets == 1 and not variant.cart
    if measured and _name(bra, ket) in other_shapes("uncontracted"):
        return [kernel(bra, ket, variant, quartets=q) for q in (Quartets.CONTRACTED, Quartets.UNCONTRACTED)]
    return [kernel(bra, ket, variant)]


@functools.cache
def kernel(
    bra: Pair,
    ket: Pair,
    variant: Variant,
    bound: bool = False,
    single: bool = False,
    quartets: Quartets = Quartets.ALL,
) -> Kernel:
    """A kernel of a class.

    **Arguments:** `bound`: for Schwarz bounds of the pairs, bra and ket being the same class, instead of J and K;
    `single`: in single precision; `quartets`: those that it computes.
    """
    uncontracted = quartets == Quartets.UNCONTRACTED
    registers, blocks = shape(bra, ket, single)
    if uncontracted:
        tier, blocks = other_shapes("uncontracted")[_name(bra, ket)]
        registers = tier == "registers"
    size, held = ncart if variant.cart else nsph, 0
    defines = dict(zip(("LA", "LB", "LC", "LD"), bra + ket, strict=True)) | {
        "COULOMB": int(variant.coulomb),
        "EXCHANGE": int(variant.exchange),
        "SETS": variant.sets,
        "DETERMINISTIC": int(variant.deterministic),
        "SCHWARZ": int(bound),
        "SINGLE": int(single),
        "QUARTETS": int(quartets),
    }
    if variant.short:
        defines["SHORT"] = 1
    if registers:
        group, together, file = 1, 1, "eri_register.cu"
        kind = "single" if single else "uncontracted" if uncontracted else "contracted"
        block, shared, held, chosen = _register_shape(bra, ket, variant, kind, bound, blocks)
        defines |= chosen
    else:
        block, group, together, slice_a, needed = _lane_shape(bra, ket, size, variant.sets, single)
        file, shared = "eri_lanes.cu", block // group * needed
        defines |= {"CHUNK": slice_a, "TOGETHER": together, "DERIVATIVE": 0}
        defines["MINBLOCKS"] = 1 if group > 96 or variant.cart else blocks
    defines["BLOCK"] = block
    axes = not registers and ket_axes(bra, ket)
    header = class_header((*bra, *ket), variant.cart, registers, uncontracted=uncontracted, apart=held, ket_axes=axes)
    entry = "eri_bound" if bound else file.removesuffix(".cu")
    headers = ("eri_boys.cuh" if registers else "eri_lanes.cuh", "eri_quartets.cuh")
    headers += ("eri_short.cuh",) if variant.short else ()
    unit = Unit(file, (entry,), tuple(defines.items()), headers, ((HEADER, header),))
    return Kernel(unit, bra, ket, registers, block, shared, group, together, single)


@functools.cache
def ket_kernel(ket: Pair, variant: Variant, axes: bool = False) -> Kernel:
    """The kernel that finishes J of a class of ket pairs, from sums of (f0| or, `axes`, of the Cartesian (cd|."""
    defines = {"LA": ket[0], "LB": ket[1], "LC": ket[0], "LD": ket[1], "SETS": variant.sets, "BLOCK": _BLOCK}
    defines |= {"COULOMB": 1, "EXCHANGE": 0, "DETERMINISTIC": int(variant.deterministic)}
    generated = ((HEADER, class_header((*ket, *ket), variant.cart, False, ket_axes=axes)),)
    unit = Unit("eri_ket.cu", ("eri_ket",), tuple(defines.items()), ("eri_quartets.cuh",), generated)
    return Kernel(unit, ket, ket, False, _BLOCK, 0, 1)
