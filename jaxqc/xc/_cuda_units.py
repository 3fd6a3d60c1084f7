"""Which kernel handles rows of which length: size classes with their launch shapes, by shared memory of the GPU."""

import functools
from dataclasses import dataclass

from jaxqc.gpu import Unit
from jaxqc.xc._cuda_angular import HEADER, header

ROW_DENSITY, ROW_POTENTIAL = 64, 256
_ENTRY = 40  # bytes of a ShellEntry
_STEP = 16
_LARGE_CHUNK = 256
_STATIC = 512  # bytes of shared memory that the kernels declare themselves, and more


def shared_limit(arch: int) -> tuple[int, int]:
    """Bytes of shared memory that one block may have, and that two blocks on one multiprocessor may have each."""
    total = {80: 164, 87: 164, 90: 228, 100: 228, 103: 228}.get(arch, 100) * 1024
    return total - 1024 - _STATIC, total // 2 - 1024 - _STATIC


@dataclass(frozen=True)
class SizeClass:
    """Rows with more than `low` and at most `high` functions (None: no limit), and what handles them."""

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
    headers = ("xc_common.cuh", "xc_dots.cuh")
    return Unit(file, kernels, tuple(defines.items()), headers, ((HEADER, header(lmax, cart)),))


def rows_unit(lmax: int, cart: bool) -> Unit:
    """The kernels that make row lists."""
    return _unit("xc_rows.cu", ("xc_basis", "xc_rows", "xc_order"), lmax, cart)


def _tail(functions: int, shells: int) -> int:
    """Bytes of the descriptions of functions and shells."""
    return _ENTRY * shells + 4 * functions + 6 * (-(-functions // 8)) + 16


def _density_bytes(p: int, mw: int, cw: int, sets: int, functions: int, shells: int) -> int:
    return 8 * (functions * (p + 4) + mw * cw * sets * 8 * (p // mw + 2)) + _tail(functions, shells)


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


# (points, warps over points, warps over slabs, D steps ahead, blocks a multiprocessor), and the lengths at which they end;
# None: as far as shared memory goes. Measured on an H200, experiments/xc_gpu_benchmark.py.
DENSITY_SHAPES = (
    ((64, 2, 4, 2, 2), (96, None)),
    ((64, 2, 8, 2, 1), (224, None)),
    ((32, 1, 16, 2, 1), (416, None)),
)


@functools.lru_cache(maxsize=256)
def density_classes(
    arch: int, nao: int, capacity: int, lmax: int, cart: bool, ncomp: int, sets: int, shapes=DENSITY_SHAPES
) -> tuple[SizeClass, ...]:
    """Classes of the density kernel for `sets` densities at once."""
    most, out, low = _bounds(nao, capacity, lmax, cart), [], 0
    for (p, mw, cw, ku, minb), ends in shapes:
        limit = shared_limit(arch)[minb - 1]

        def size(n, p=p, mw=mw, cw=cw):
            return _density_bytes(p, mw, cw, sets, n, min(n, capacity))

        # The sums of the warps go where the orbital values were.
        least = -(-cw * sets * ncomp * p // (p + 4) // _STEP) * _STEP
        fit = _largest(size, limit, most)
        for end in ends:
            high = min(fit, most if end is None else end)
            if high <= low or size(max(high, least)) > limit:
                continue
            unit = _unit(
                "xc_density.cu", ("xc_density",), lmax, cart,
                ROW=ROW_DENSITY, P=p, MW=mw, CW=cw, KU=ku, MINB=minb, SETS=sets, NC=ncomp,
            )  # fmt: skip
            rows = max(high, least)
            last = None if high >= most else high
            out.append(
                SizeClass(low, last, unit, "xc_density", 32 * mw * cw, size(rows), min(rows, capacity), rows)
            )
            low = high
    if low < most:
        unit = _unit("xc_density_large.cu", ("xc_density_large",), lmax, cart, ROW=ROW_DENSITY, CHUNK=_LARGE_CHUNK, NC=ncomp)
        shared = 8 * (_LARGE_CHUNK * 36 + 8 * 8 * 34) + _tail(most, min(most, capacity))
        _fits(shared, arch, capacity)
        out.append(SizeClass(low, None, unit, "xc_density_large", 256, shared, min(most, capacity), most))
    return tuple(out)


def _fits(shared: int, arch: int, capacity: int) -> None:
    if shared > shared_limit(arch)[0]:
        raise ValueError(
            f"Rows of grid points list up to {capacity} shells here, more than the shared memory of this GPU can describe. "
            "Raise epsilon, or give a smaller capacity."
        )


# (points, warps, tiles a warp, blocks a multiprocessor) and the lengths at which they end.
POTENTIAL_SHAPES = (
    ((32, 8, 1, 2), (96, 160)),
    ((64, 8, 2, 1), (192,)),
    ((32, 16, 1, 1), (256, None)),
)


def _potential_bytes(p: int, slots: int, functions: int, shells: int) -> int:
    return 8 * 2 * 32 * slots * (p + 4) + _ENTRY * shells + 4 * functions + 8 * (-(-functions // 32)) + 16


@functools.lru_cache(maxsize=256)
def potential_classes(
    arch: int, nao: int, capacity: int, lmax: int, cart: bool, ncomp: int, fixed: bool, shapes=POTENTIAL_SHAPES
) -> tuple[SizeClass, ...]:
    """Classes of the potential kernel."""
    most, out, low = _bounds(nao, capacity, lmax, cart), [], 0
    for (p, w, tpw, minb), ends in shapes:
        limit = shared_limit(arch)[minb - 1]

        def size(n, p=p):
            return _potential_bytes(p, -(-n // 32), n, min(n, capacity))

        fit = _largest(size, limit, most)
        for end in ends:
            high = min(fit, most if end is None else end)
            if high <= low:
                continue
            unit = _unit(
                "xc_potential.cu", ("xc_potential",), lmax, cart,
                ROW=ROW_POTENTIAL, P=p, W=w, TPW=tpw, MINB=minb, NC=ncomp, SLOTS=0, FIXED=int(fixed),
            )  # fmt: skip
            last = None if high >= most else high
            out.append(SizeClass(low, last, unit, "xc_potential", 32 * w, size(high), min(high, capacity), high, -(-high // 32)))
            low = high
    if low < most:
        unit = _unit(
            "xc_potential.cu", ("xc_potential",), lmax, cart,
            ROW=ROW_POTENTIAL, P=32, W=16, TPW=1, MINB=1, NC=ncomp, SLOTS=1, FIXED=int(fixed),
        )  # fmt: skip
        shells = min(most, capacity)
        slots = max(2, (shared_limit(arch)[0] - _potential_bytes(32, 0, most, shells)) // (8 * 2 * 32 * 36))
        slots = min(slots, -(-most // 32))
        shared = _potential_bytes(32, slots, most, shells)
        _fits(shared, arch, capacity)
        out.append(SizeClass(low, None, unit, "xc_potential", 512, shared, shells, most, slots))
    return tuple(out)
