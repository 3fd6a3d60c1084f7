"""Cartesian components of a shell and their transformation to real solid harmonics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

Component = tuple[int, int, int]
"""Powers (x, y, z) of a Cartesian Gaussian."""


def ncart(l: int) -> int:
    """Number of Cartesian components of a shell, (l+1)(l+2)/2."""
    return (l + 1) * (l + 2) // 2


def nsph(l: int) -> int:
    """Number of real spherical components of a shell, 2l+1."""
    return 2 * l + 1


@cache
def components(l: int) -> tuple[Component, ...]:
    """Powers (x, y, z) of a Cartesian shell in PySCF's order.

    x falls first, then y: ``components(2)`` is xx, xy, xz, yy, yz, zz.
    """
    return tuple((x, y, l - x - y) for x in range(l, -1, -1) for y in range(l - x, -1, -1))


@cache
def pair_components(la: int, lb: int) -> tuple[Component, ...]:
    """The components e of total la..la+lb of the intermediates (e0|, by rising total, each in PySCF's order."""
    return tuple(e for l in range(la, la + lb + 1) for e in components(l))


def ncomp(la: int, lb: int) -> int:
    """Number of components of (e0| with total la..la+lb."""
    return sum(ncart(l) for l in range(la, la + lb + 1))


def raised(component: Component, axis: int, by: int = 1) -> Component:
    """The component with one power raised by ``by`` (which may be negative)."""
    x, y, z = component
    return (x + by, y, z) if axis == 0 else (x, y + by, z) if axis == 1 else (x, y, z + by)


def _solid_harmonic_terms(l: int, m: int) -> Iterator[tuple[Component, Fraction]]:
    """Monomials of the solid harmonic S_lm without its normalisation.

    Helgaker, Jorgensen, Olsen, Molecular Electronic-Structure Theory, eq. 6.4.47 (https://doi.org/10.1002/9781119019572).
    Half-integer v of the odd (sine) functions is written as v = w + 1/2.
    """
    n, odd = abs(m), int(m < 0)
    for t in range((l - n) // 2 + 1):
        for u in range(t + 1):
            for w in range((n - odd) // 2 + 1):
                sign = -1 if (t + w) % 2 else 1
                weight = math.comb(l, t) * math.comb(l - t, n + t) * math.comb(t, u) * math.comb(n, 2 * w + odd)
                y = 2 * (u + w) + odd
                yield (2 * t + n - y, y, l - 2 * t - n), Fraction(sign * weight, 4**t)


@cache
def spherical_matrix(l: int) -> tuple[tuple[float, ...], ...]:
    """Rows: Cartesian components; columns: real solid harmonics, m = -l..l (l = 1: x, y, z).

    The normalisation is PySCF's, ``pyscf.gto.cart2sph(l, normalized="sp")``: the identity for l <= 1, whose factor
    sqrt((2l+1)/4pi) is part of the contraction coefficients; sqrt((2l+1)/4pi) S_lm for l >= 2.
    """
    order = components(l)
    if l <= 1:
        return tuple(tuple(float(i == j) for j in range(len(order))) for i in range(len(order)))
    columns = []
    for m in range(-l, l + 1):
        exact = dict.fromkeys(order, Fraction(0))
        for powers, value in _solid_harmonic_terms(l, m):
            exact[powers] += value
        n = abs(m)
        # Squares stay rational up to 1/4pi, so that each entry is rounded once before its square root.
        norm = Fraction((2 if m else 1) * math.factorial(l + n) * math.factorial(l - n) * (2 * l + 1))
        norm /= (2**n * math.factorial(l)) ** 2
        columns.append([math.copysign(math.sqrt(c * c * norm / (4 * math.pi)), c) for c in exact.values()])
    return tuple(zip(*columns, strict=True))
