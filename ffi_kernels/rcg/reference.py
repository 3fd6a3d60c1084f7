"""A contracted class evaluated through the graphs in plain Python: slow, exact to rounding, used to check the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from .graph import Class

PARAMETERS = (
    *(f"{s}{x}" for s in ("pa", "qc", "wp", "wq") for x in "xyz"),
    *("half_p", "half_q", "half_pq", "rho_p", "rho_q"),
)
"""Names of the arguments of a vertical body after the arrays, in order."""


@dataclass(frozen=True)
class Shell:
    """A contracted Cartesian or spherical shell; coefficients carry every normalisation factor."""

    l: int
    center: tuple[float, float, float]
    exponents: tuple[float, ...]
    coefficients: tuple[float, ...]


def boys(mmax: int, t: float) -> list[float]:
    """Boys functions F_0..F_mmax(t): upward recursion for large t, else a positive series and downward recursion."""
    decay = math.exp(-t)
    if t > mmax + 35.0:
        values = [0.5 * math.sqrt(math.pi / t) * math.erf(math.sqrt(t))]
        for m in range(mmax):
            values.append(((2 * m + 1) * values[m] - decay) / (2 * t))
        return values
    term = total = 1.0 / (2 * mmax + 1)
    k = 0
    while term > 1e-18 * total:
        k += 1
        term *= 2 * t / (2 * (mmax + k) + 1)
        total += term
    values = [decay * total]
    for m in range(mmax - 1, -1, -1):
        values.append((2 * t * values[-1] + decay) / (2 * m + 1))
    return values[::-1]


def primitives(shells: Sequence[Shell], mmax: int) -> Iterator[tuple[list[float], dict[str, float], tuple[float, ...]]]:
    """Boys values times prefactor, recurrence parameters and exponents of each primitive quartet."""
    a, b, c, d = shells
    ab2 = math.dist(a.center, b.center) ** 2
    cd2 = math.dist(c.center, d.center) ** 2
    for pa, pb, pc, pd in product(*(tuple(zip(s.exponents, s.coefficients, strict=True)) for s in shells)):
        p, q = pa[0] + pb[0], pc[0] + pd[0]
        rho = p * q / (p + q)
        center_p = [(pa[0] * x + pb[0] * y) / p for x, y in zip(a.center, b.center, strict=True)]
        center_q = [(pc[0] * x + pd[0] * y) / q for x, y in zip(c.center, d.center, strict=True)]
        center_w = [(p * x + q * y) / (p + q) for x, y in zip(center_p, center_q, strict=True)]
        prefactor = 2 * math.pi**2.5 / (p * q * math.sqrt(p + q)) * pa[1] * pb[1] * pc[1] * pd[1]
        prefactor *= math.exp(-pa[0] * pb[0] / p * ab2 - pc[0] * pd[0] / q * cd2)
        values = [prefactor * v for v in boys(mmax, rho * math.dist(center_p, center_q) ** 2)]
        parameters = {"half_p": 0.5 / p, "half_q": 0.5 / q, "half_pq": 0.5 / (p + q)}
        parameters |= {"rho_p": rho / p, "rho_q": rho / q}
        for i, x in enumerate("xyz"):
            parameters["pa" + x] = center_p[i] - a.center[i]
            parameters["qc" + x] = center_q[i] - c.center[i]
            parameters["wp" + x] = center_w[i] - center_p[i]
            parameters["wq" + x] = center_w[i] - center_q[i]
        yield values, parameters, (pa[0], pb[0], pc[0], pd[0])


def class_of(shells: Sequence[Shell]) -> Class:
    """The angular momenta of four shells."""
    a, b, c, d = (s.l for s in shells)
    return a, b, c, d
