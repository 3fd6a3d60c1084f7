"""Bodies of the Coulomb engine in Hermite Gaussians: R_tuv made and used at once, in straight-line code.

J_tuv += sum_t'u'v' R_{t+t',u+u',v+v'} h_t'u'v', where R follows from g_m = R^(m)_000 by McMurchie and Davidson's
recurrence R^(m)_{t+1} = x R^(m+1)_t + t R^(m+1)_{t-1} (doi:10.1016/0021-9991(78)90092-X). Axes z and y go by the
recurrence, only where something asks for a value; along x the closed form of the recurrence,
R_t = sum_j t! / (j! (t-2j)! 2^j) x^(t-2j) R^(t-j), needs fewer operations, since only m = 0 is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from .cartesian import Component, pair_components


@cache
def hermite_components(l: int) -> tuple[Component, ...]:
    """The orders (t, u, v) of the Hermite Gaussians up to total order l, by rising total."""
    return pair_components(0, l)


def parts(l: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The places of `hermite_components(l)` split into runs of at most `size`, each with few values of v and u."""
    components = hermite_components(l)
    places = sorted(range(len(components)), key=lambda k: components[k][::-1])
    count = -(-len(places) // size)
    ends = [len(places) * k // count for k in range(count + 1)]
    return tuple(tuple(places[a:b]) for a, b in zip(ends, ends[1:], strict=False))


class _Body:
    """Statements so far, and the names of the values that they make."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[tuple, str] = {}
        self.flops = 0

    def _make(self, key: tuple, expression: str, flops: int) -> str:
        if key not in self.names:
            name = "_".join(map(str, key))
            self.lines.append(f"const T {name} = {expression};")
            self.names[key] = name
            self.flops += flops
        return self.names[key]

    def _recurrence(self, letter: str, order: int, lower, key: tuple) -> str:
        if key in self.names:
            return self.names[key]
        text, flops = f"{letter} * {lower(order - 1)}", 1
        if order == 2:
            text, flops = f"{text} + {lower(0)}", 2
        elif order > 2:
            text, flops = f"{text} + T({order - 1}) * {lower(order - 2)}", 3
        return self._make(key, text, flops)

    def z(self, v: int, m: int) -> str:
        if v == 0:
            return f"g[{m}]"
        return self._recurrence("z", v, lambda k: self.z(k, m + 1), ("z", v, m))

    def y(self, u: int, v: int, m: int) -> str:
        if u == 0:
            return self.z(v, m)
        return self._recurrence("y", u, lambda k: self.y(k, v, m + 1), ("y", u, v, m))

    def power(self, n: int, factor: int) -> str:
        """factor x^n, n > 0."""
        if factor > 1:
            return self._make(("x", n, factor), f"T({factor}) * {self.power(n, 1)}", 1)
        if n == 1:
            return "x"
        return self._make(("x", n), f"{self.power(n // 2, 1)} * {self.power(n - n // 2, 1)}", 1)

    def r(self, t: int, u: int, v: int) -> str:
        terms = []
        for j in range(t // 2 + 1):
            factor = math.factorial(t) // (math.factorial(j) * math.factorial(t - 2 * j) * 2**j)
            value = self.y(u, v, t - j)
            if t == 2 * j:
                terms.append(value if factor == 1 else f"T({factor}) * {value}")
            else:
                terms.append(f"{self.power(t - 2 * j, factor)} * {value}")
        if len(terms) == 1 and t == 0:
            return terms[0]
        return self._make(("r", t, u, v), " + ".join(terms), 2 * len(terms) - 1)


def emit_hermite(
    name: str, bra: Sequence[Component], ket: Sequence[tuple[int, Component]], sets: int = 1, stride: int = 0
) -> tuple[str, int]:
    """The body `name(acc, h, g, x, y, z)` over a type T.

    acc[s * len(bra) + i] += sum_k R(bra_i + ket_k) h[s * stride + place_k] for each density s.

    Arguments:
        bra: components that are summed.
        ket: places in `h` with their components; h carries the sign (-1)^(t+u+v).
        sets: number of densities.
        stride: numbers of `h` for each of them.

    Returns:
        The text, and its floating point operations (a fused multiply-add is two).
    """
    wanted: dict[Component, list[tuple[int, int]]] = {}
    for i, a in enumerate(bra):
        for place, b in ket:
            wanted.setdefault((a[0] + b[0], a[1] + b[1], a[2] + b[2]), []).append((i, place))
    body = _Body()
    for t, u, v in sorted(wanted, key=lambda c: c[::-1]):
        value = body.r(t, u, v)
        for s in range(sets):
            for i, place in wanted[t, u, v]:
                body.lines.append(f"acc[{s * len(bra) + i}] += {value} * h[{s * stride + place}];")
                body.flops += 2
    head = (
        f"template <class T>\nstatic __device__ __forceinline__ void {name}(T* acc, const T* h, const T* g, "
        "T x, T y, T z)"
    )
    return f"{head} {{\n" + "\n".join(f"  {line}" for line in body.lines) + "\n}\n", body.flops
