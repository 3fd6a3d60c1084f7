"""How much memory of a GPU a build of J and K takes, and the limit set by JAXQC_MEMORY.

Upper bounds from sizes alone: nothing depends on the geometry, whose far pairs keep their places.
"""

import os

import jax

from jaxqc.integrals import _cuda_hermite, _cuda_pairs
from jaxqc.integrals import _cuda_hermite_units as units

_GIB = 2**30
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # of a ShellList: ls and nprims


def quartets(layout: Layout, cart: bool) -> int:
    """Bytes of pairs of shells while they are sorted, two orders of them, keys and indices; or with a copy of them in
    single precision."""
    plan = _cuda_pairs.plan(*layout, cart)
    return 80 * plan.capacity + 140 * plan.npair


def hermite(layout: Layout, cart: bool, sets: int) -> int:
    """Bytes of pairs of primitives, and of the density and J in Hermite Gaussians, for up to two densities at once."""
    plan = _cuda_hermite.plan(*layout, cart)
    sets = min(sets, 2)
    rows = sum(8 * size * units.row_width(l, sets) for l, size in plan.sizes.items())
    # Unsorted and sorted rows; J and rows in single precision take less than either.
    return 52 * sum(plan.sizes.values()) + 2 * rows


def needed(layout: Layout, cart: bool, densities: int, matrices: int, symmetric: bool, split: bool) -> int:
    """Bytes of a build in all, with its operands and results.

    **Arguments:** `matrices`: 2 for J and K, 1 for one of them; `split`: whether J goes through Hermite Gaussians.
    """
    nao = int(_cuda_pairs._first_functions(layout[0], cart)[-1])
    matrix, at_once = 8 * nao * nao, min(densities, 2)
    # The densities and their symmetric parts, results before and after they are put together; sums in shell blocks.
    dense = matrix * (densities * (2 + (not symmetric) + 2 * matrices) + 2 * at_once * matrices)
    if split and matrices == 2:
        dense += matrix * (2 * densities + 2 * at_once)  # J and K in two ways, of which one finds nothing to do
    total = dense + (hermite(layout, cart, densities) if split else 0)
    return total + (quartets(layout, cart) if matrices == 2 or not split else 0)


def limit() -> float:
    """Bytes that a build may take: JAXQC_MEMORY in GiB, or what JAX takes of the GPU, or any number."""
    text = os.environ.get("JAXQC_MEMORY", "")
    if not text:
        try:
            stats = jax.local_devices()[0].memory_stats()
        except RuntimeError:  # some allocators of JAX keep none
            stats = None
        return (stats or {}).get("bytes_limit") or float("inf")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0.0:
        raise ValueError(
            f"The environment variable JAXQC_MEMORY is {text!r}, but must be a number above 0: the memory in GiB that "
            "a build of J and K may take on a GPU."
        )
    return value * _GIB


def by_hermite(
    layout: Layout, cart: bool, densities: int, matrices: int, symmetric: bool, possible: bool = True
) -> bool:
    """Whether J is built through Hermite Gaussians, rather than from quartets: it is possible, and there is room.

    **Raises:** `ValueError` where there is room for neither.
    """
    size, room = (layout, cart, densities, matrices, symmetric), limit()
    if possible and needed(*size, True) <= room:
        return True
    least = needed(*size, False)
    if least > room:
        number, hint = ("one density", "") if densities == 1 else (f"{densities} densities", "fewer at a time, ")
        raise ValueError(
            f"A build of J and K for {number} takes up to {least / _GIB:.3g} GiB on the GPU, but may take "
            f"{room / _GIB:.3g} GiB. Give JAX more of the GPU (XLA_PYTHON_CLIENT_MEM_FRACTION), raise the environment "
            f"variable JAXQC_MEMORY (GiB) if you set it, or try {hint}a smaller basis, or CPUs (JAX_PLATFORMS=cpu)."
        )
    return False
