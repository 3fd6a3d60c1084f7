"""Which kernel handles rows of which length: size classes with their launch shapes, by shared memory of the GPU."""

import functools
from dataclasses import dataclass

from jaxqc.gpu import Unit
from jaxqc.gpu._limits import shared_limit as shared_limit
from jaxqc.xc._cuda_angular import HEADER, header

ROW_DENSITY, ROW_POTENTIAL = 64, 256
_ENTRY = 40  # bytes of a ShellEntry
_STEP = 16


@dataclass(frozen=True)
class SizeClass:
    """Rows with more than `low` and at most `high` functions (None: no limit), and what handles them.

    `slots`: functions of orbital values held at once (density), blocks of 32 functions held (potential).
    """

    low: int
    high: int | None
    unit: Unit
    kernel: str
    block: int
    shared: int
    max_shells: int
    max_functions: int
    slots: int = 0


def _unit(file: str, kernels: tuple[str, ...], lmax: int, cart: bool, **defines: int) -> Unit:
    headers = ("xc_common.cuh", "xc_dots.cuh", "xc_product.cuh", "xc_tiles.cuh")
    return Unit(file, kernels, tuple(defines.items()), headers, ((HEADER, header(lmax, cart)),))


def rows_unit(lmax: int, cart: bool) -> Unit:
    """The kernels that make row lists."""
    return _unit("xc_rows.cu", ("xc_basis", "xc_rows", "xc_order"), lmax, cart)


def _tail(functions: int, shells: int, listed: bool = False) -> int:
    """Bytes of the descriptions of functions and shells; `listed`: with a list of shells."""
    return (_ENTRY + 2 * listed) * shells + 4 * functions + 6 * (-(-functions // 8)) + 16


def _largest(size, limit: int, most: int) -> int:
    """The largest multiple of 16, at most `most`, whose `size` is within the limit."""
    n = -(-most // _STEP) * _STEP
    while n > 0 and size(n) > limit:
        n -= _STEP
    return n


def _bounds(nao: int, capacity: int, lmax: int, cart: bool) -> int:
    """The most functions that a row can list, rounded up."""
    shell = (lmax + 1) * (lmax + 2) // 2 if cart else 2 * lmax + 1
    most = -(-min(nao, capacity * shell) // _STEP) * _STEP
    if most > 65535:
        raise ValueError(
            f"Rows of grid points may list up to {most} orbitals here, but the GPU kernels take at most 65535. "
            "Raise epsilon, or give a smaller capacity."
        )
    return most


@dataclass(frozen=True)
class DensityShape:
    """Points a block, warps over points and slabs, steps of D held ahead, blocks a multiprocessor, ends of classes.

    None among the ends: as far as shared memory goes. `chunked`: lists are taken in parts, and may
    have any length unless there are ends.
    """

    p: int
    mw: int
    cw: int
    ku: int
    minb: int
    ends: tuple[int | None, ...] = ()
    chunked: bool = False


# Measured on an H200 for (H2O)20 in def2-SVP and tamoxifen in def2-TZVP: warps that hold all points of a row load D
# once; beyond 160 functions two blocks a multiprocessor, in chunks, are faster than one that holds the whole list.
_TWO_BLOCKS = DensityShape(64, 2, 4, 2, 2, (96, None))
_ONE_BLOCK = DensityShape(64, 2, 8, 2, 1, (224, None))
_CHUNKS = DensityShape(64, 2, 8, 2, 1, chunked=True)
_SHAPES = {
    "one": (DensityShape(64, 1, 8, 2, 2, (96, None)), _TWO_BLOCKS, DensityShape(64, 1, 8, 2, 2, chunked=True)),
    "two": (_TWO_BLOCKS, _ONE_BLOCK, _CHUNKS),
}
# With tau, and for gradients: whole lists, where two blocks hold them; parts of lists of any length.
_TAU_DENSITY_SHAPES = (
    DensityShape(16, 1, 8, 2, 2, (None,)),
    DensityShape(16, 1, 16, 2, 1, (None,)),
    *(DensityShape(16, 1, cw, 2, 1, chunked=True) for cw in (16, 8, 4)),
)
_GRADIENT_SHAPES = (
    DensityShape(32, 1, 8, 2, 2, (None,)),
    DensityShape(32, 1, 8, 2, 2, (224,), chunked=True),  # two blocks are 5 % faster than one that holds the list
    *(DensityShape(32, 1, cw, 2, 1, chunked=True) for cw in (16, 8, 4)),
)


# For GPUs with less shared memory, and for very long lists, whose description takes much of it.
_SMALL_SHAPES = (
    DensityShape(64, 1, 8, 2, 1, chunked=True),
    DensityShape(32, 1, 8, 2, 2, chunked=True),
    DensityShape(32, 1, 8, 2, 1, chunked=True),
)


@functools.lru_cache(maxsize=256)
def density_classes(
    arch: int, nao: int, capacity: int, lmax: int, cart: bool, ncomp: int, sets: int,
    shapes: tuple[DensityShape, ...] | None = None,
) -> tuple[SizeClass, ...]:  # fmt: skip
    """Classes of the density kernel for `sets` densities at once; with tau (`ncomp` 5) one at a time."""
    if ncomp > 4:
        return _tau_classes(arch, nao, capacity, lmax, cart)
    most, out, low = _bounds(nao, capacity, lmax, cart), [], 0
    usual = _SHAPES["two" if sets > 1 else "one"]
    for shape in (*(shapes or usual), *_SMALL_SHAPES):
        if low >= most:
            break
        limit = shared_limit(arch, shape.minb)

        def size(chunk, functions, shape=shape):
            values = chunk * (shape.p + 4) + shape.mw * shape.cw * sets * 8 * (shape.p // shape.mw + 2)
            return 8 * values + _tail(functions, min(functions, capacity))

        def unit(shape=shape):
            return _unit(
                "xc_density.cu", ("xc_density",), lmax, cart, ROW=ROW_DENSITY, P=shape.p, MW=shape.mw, CW=shape.cw,
                KU=shape.ku, MINB=shape.minb, SETS=sets, NC=ncomp, CHUNKED=int(shape.chunked),
            )  # fmt: skip

        block = 32 * shape.mw * shape.cw
        # The sums of the warps go where the orbital values were.
        least = -(-shape.cw * sets * ncomp * shape.p // (shape.p + 4) // _STEP) * _STEP
        if shape.chunked:
            chunk = _largest(lambda n, size=size: size(n, most), limit, max(most, least))
            if chunk >= max(least, min(most, 64)):
                shared, below, low = size(chunk, most), low, most
                out.append(
                    SizeClass(below, None, unit(), "xc_density", block, shared, min(most, capacity), most, chunk)
                )
            continue
        fit = _largest(lambda n, size=size: size(n, n), limit, most)
        for end in shape.ends:
            high = min(fit, most if end is None else end)
            chunk = max(high, least)
            if high <= low or size(chunk, chunk) > limit:
                continue
            last = None if high >= most else high
            shared = size(chunk, chunk)
            out.append(SizeClass(low, last, unit(), "xc_density", block, shared, min(chunk, capacity), chunk, chunk))
            low = high
    _fits(low >= most, capacity)
    return tuple(out)


def _tau_classes(arch: int, nao: int, capacity: int, lmax: int, cart: bool) -> tuple[SizeClass, ...]:
    key = (arch, nao, capacity, lmax, cart)
    return _held_classes(
        "xc_density_tau", _TAU_DENSITY_SHAPES, *key, arrays=4, buffers=0, sums=5, padding=0, listed=True
    )


@functools.lru_cache(maxsize=256)
def gradient_classes(arch: int, nao: int, capacity: int, lmax: int, cart: bool, ncomp: int) -> tuple[SizeClass, ...]:
    """Classes of the gradient kernel."""
    key, arrays = (arch, nao, capacity, lmax, cart), 1 if ncomp == 1 else 2
    return _held_classes(
        "xc_gradient", _GRADIENT_SHAPES, *key, arrays=arrays, buffers=arrays, sums=3, padding=4, listed=False, NC=ncomp
    )


def _held_classes(
    kernel: str, shapes: tuple[DensityShape, ...], arch: int, nao: int, capacity: int, lmax: int, cart: bool, *,
    arrays: int, buffers: int, sums: int, padding: int, listed: bool, **defines: int,
) -> tuple[SizeClass, ...]:  # fmt: skip
    """Classes of a kernel that holds `arrays` of orbital values, and of each warp `buffers` of 8 functions."""
    most, out, low = _bounds(nao, capacity, lmax, cart), [], 0
    for shape in shapes:
        limit = shared_limit(arch, shape.minb)
        # The sums of the warps go where the orbital values were.
        least = -(-shape.cw * sums * shape.p // (arrays * (shape.p + padding)) // _STEP) * _STEP

        def size(held, functions, shape=shape, least=least):
            values = arrays * max(held, least) * (shape.p + padding) + buffers * shape.cw * 8 * (shape.p + 2)
            return 8 * values + _tail(functions, min(functions, capacity), listed)

        if shape.chunked:
            high = min([most, *filter(None, shape.ends)])
            held = _largest(lambda n, size=size, high=high: size(n, high), limit, high)
            if held < min(high, 8 * shape.cw):
                continue
        else:
            fit = _largest(lambda n, size=size: size(n, n), limit, most)
            held = high = min(fit, most if shape.ends[0] is None else shape.ends[0])
        if high <= low:
            continue
        unit = _unit(
            f"{kernel}.cu", (kernel,), lmax, cart, ROW=ROW_DENSITY, P=shape.p, MW=shape.mw, CW=shape.cw, KU=shape.ku,
            MINB=shape.minb, **defines,
        )  # fmt: skip
        last, shared = (None if high >= most else high), size(held, high)
        block = 32 * shape.mw * shape.cw
        out.append(SizeClass(low, last, unit, kernel, block, shared, min(high, capacity), high, max(held, least)))
        low = high
    _fits(low >= most, capacity)
    return tuple(out)


def density_plan(
    arch: int, nao: int, capacity: int, lmax: int, cart: bool, ncomp: int, nset: int
) -> tuple[tuple[SizeClass, int, int], ...]:
    """Classes of the density kernel with the sets that each handles: the first of them, and how many."""
    plan, most = [], 1 if ncomp > 4 else 2
    for start in range(0, nset, most):
        sets = min(most, nset - start)
        plan += [(c, start, sets) for c in density_classes(arch, nao, capacity, lmax, cart, ncomp, sets)]
    return tuple(plan)


def _fits(fits: bool, capacity: int) -> None:
    if not fits:
        raise ValueError(
            f"Rows of grid points list up to {capacity} shells here, more than the shared memory of this GPU can "
            "describe. Raise epsilon, or give a smaller capacity."
        )


@dataclass(frozen=True)
class PotentialShape:
    """Points a chunk, warps, tiles a warp, blocks a multiprocessor, ends of classes.

    None among the ends: as far as shared memory goes. `moving`: batches of tiles, for lists of any length.
    """

    p: int
    w: int
    tpw: int
    minb: int
    ends: tuple[int | None, ...] = ()
    moving: bool = False


_POTENTIAL_SHAPES = (
    PotentialShape(32, 8, 1, 2, (96,)),
    PotentialShape(64, 8, 2, 1, (144, 192)),
    PotentialShape(32, 16, 1, 1, (256, None)),
    PotentialShape(32, 16, 1, 1, moving=True),
)
_TAU_POTENTIAL_SHAPES = (
    PotentialShape(32, 8, 1, 2, (96,)),
    PotentialShape(32, 16, 1, 1, (192,)),
    PotentialShape(16, 16, 1, 1, moving=True),
)


@functools.lru_cache(maxsize=256)
def potential_classes(
    arch: int, nao: int, capacity: int, lmax: int, cart: bool, ncomp: int, fixed: bool
) -> tuple[SizeClass, ...]:
    """Classes of the potential kernel."""
    most, out, low = _bounds(nao, capacity, lmax, cart), [], 0
    kernel, shapes, arrays = "xc_potential", _POTENTIAL_SHAPES, 2
    if ncomp > 4:
        kernel, shapes, arrays = "xc_potential_tau", _TAU_POTENTIAL_SHAPES, 4
    for shape in shapes:
        limit = shared_limit(arch, shape.minb)

        def size(functions, slots=None, shape=shape):
            slots = -(-functions // 32) if slots is None else slots
            shells = min(functions, capacity)
            values = arrays * 32 * slots * (shape.p + 4)
            return 8 * values + (_ENTRY + 2) * shells + 4 * functions + 8 * (-(-functions // 32)) + 16

        if shape.moving:
            room = (limit - size(most, 0)) // (size(0, 1) - size(0, 0))
            ends, slots = (most,) if room >= 2 else (), min(room, -(-most // 32))
        else:
            fit = _largest(size, limit, most)
            ends, slots = [min(fit, most if end is None else end) for end in shape.ends], None
        unit = _unit(
            f"{kernel}.cu", (kernel,), lmax, cart, ROW=ROW_POTENTIAL, P=shape.p, W=shape.w, TPW=shape.tpw,
            MINB=shape.minb, NC=ncomp, SLOTS=int(shape.moving), FIXED=int(fixed),
        )  # fmt: skip
        for end in ends:
            if end <= low:
                continue
            last, held = None if end >= most else end, -(-end // 32) if slots is None else slots
            shells = min(end, capacity)
            out.append(SizeClass(low, last, unit, kernel, 32 * shape.w, size(end, held), shells, end, held))
            low = min(end, most)
    _fits(low >= most, capacity)
    return tuple(out)


def units_for(lmax: int, cart: bool, arch: int) -> list[Unit]:
    """All that calculations in a basis up to `lmax` compile, small molecules and large, on grids of any functional."""
    units = [rows_unit(lmax, cart)]
    for nao, capacity in ((100, 64), (2000, 256)):
        for ncomp in (1, 4, 5):
            key = (arch, nao, capacity, lmax, cart, ncomp)
            classes = [c for sets in (1, 2) for c in density_classes(*key, sets)]
            units += [c.unit for c in (*classes, *potential_classes(*key, False), *gradient_classes(*key))]
    return list(dict.fromkeys(units))
