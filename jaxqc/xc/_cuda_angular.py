"""Angular parts of shells as CUDA source: polynomials in x, y, z and their derivatives, written out for each l."""

import functools
from collections.abc import Callable

import numpy as np

from jaxqc.integrals._shells import cartesian_powers, cartesian_to_spherical_matrix

Polynomial = dict[tuple[int, int, int], float]
HEADER = "xc_angular.cuh"


def _functions(l: int, cart: bool) -> list[Polynomial]:
    powers = cartesian_powers(l)
    if cart:
        return [{power: 1.0} for power in powers]
    matrix = cartesian_to_spherical_matrix(l)
    return [{powers[i]: float(matrix[i, m]) for i in np.nonzero(matrix[:, m])[0]} for m in range(2 * l + 1)]


def _derivative(polynomial: Polynomial, axis: int) -> Polynomial:
    out: Polynomial = {}
    for power, factor in polynomial.items():
        if power[axis]:
            lowered = tuple(n - (k == axis) for k, n in enumerate(power))
            out[lowered] = factor * power[axis]  # type: ignore[index]
    return out


def _text(polynomial: Polynomial) -> str:
    """Horner's scheme in the variable that most terms share."""
    if not polynomial:
        return "0.0"
    if len(polynomial) == 1:
        ((power, factor),) = polynomial.items()
        parts = [name for name, n in zip("xyz", power, strict=True) for _ in range(n)]
        if factor != 1.0 or not parts:
            parts.append(repr(factor))
        return "*".join(parts)
    axis = max(range(3), key=lambda k: sum(power[k] > 0 for power in polynomial))
    inside = {tuple(n - (k == axis) for k, n in enumerate(p)): f for p, f in polynomial.items() if p[axis]}
    outside = {p: f for p, f in polynomial.items() if not p[axis]}
    text = f"{'xyz'[axis]}*({_text(inside)})"  # type: ignore[arg-type]
    return f"{text} + {_text(outside)}" if outside else text


def _switch(lmax: int, body: Callable[[int], list[str]]) -> list[str]:
    lines = ["  switch (l) {"]
    for l in range(lmax + 1):
        lines += [f"    case {l}: {{"] + [f"      {line}" for line in body(l)] + ["      break;", "    }"]
    return [*lines, "  }"]


def _sum(terms: list[tuple[Polynomial, str]]) -> str:
    parts = [factor if text == "1.0" else f"({text})*{factor}" for p, factor in terms if (text := _text(p)) != "0.0"]
    return " + ".join(parts) or "0.0"


_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


@functools.cache
def header(lmax: int, cart: bool) -> str:
    """CUDA source with the functions of shells up to `lmax`; l is the same for all threads of a warp.

    - `shell_size(l)`: number of functions.
    - `angular_values(l, x, y, z, f)`: calls `f(m, Y)`.
    - `angular_gradients(l, x, y, z, f)`: calls `f(m, Y, Yx, Yy, Yz)`.
    - `angular_directional(l, x, y, z, bx, by, bz, f)`: calls `f(m, Y, bx Yx + by Yy + bz Yz)`.
    - `angular_sum(l, x, y, z, v, S)`: sum of `v(m) Y`.
    - `angular_dot(l, x, y, z, v, S)`: S[0] = sum of `v(m) Y`, S[1..3] the same with the derivatives.
    - `angular_hessian(l, x, y, z, v, S)`: S[0..3] likewise, S[4..9] with the second derivatives xx, xy, xz, yy, yz, zz.
    """
    f = {l: _functions(l, cart) for l in range(lmax + 1)}
    size = "(l + 1) * (l + 2) / 2" if cart else "2 * l + 1"
    out = ["#pragma once", f"#define LMAX {lmax}", f"#define MAX_SHELL {len(f[lmax])}"]
    out += [f"__device__ __forceinline__ int shell_size(int l) {{ return {size}; }}"]
    xyz = "int l, double x, double y, double z"

    def function(name: str, arguments: str, body: Callable[[int], list[str]]) -> None:
        out.append(f"template <class F> __device__ __forceinline__ void {name}({xyz}, {arguments}) {{")
        out.extend(_switch(lmax, body))
        out.append("}")

    def slopes(p: Polynomial) -> list[Polynomial]:
        return [_derivative(p, k) for k in range(3)]

    def loads(l: int) -> list[str]:
        return [f"const double v{m} = v({m});" for m in range(len(f[l]))]

    def sums(l: int, order: int) -> list[str]:
        v = [f"v{m}" for m in range(len(f[l]))]
        lines = [f"S[0] = {_sum(list(zip(f[l], v, strict=True)))};"]
        if order > 0:
            for k in range(3):
                lines.append(
                    f"S[{k + 1}] = {_sum([(_derivative(p, k), name) for p, name in zip(f[l], v, strict=True)])};"
                )
        if order > 1:
            for n, (i, j) in enumerate(_PAIRS):
                terms = [(_derivative(_derivative(p, i), j), name) for p, name in zip(f[l], v, strict=True)]
                lines.append(f"S[{n + 4}] = {_sum(terms)};")
        return lines

    function("angular_values", "F f", lambda l: [f"f({m}, {_text(p)});" for m, p in enumerate(f[l])])
    function(
        "angular_gradients",
        "F f",
        lambda l: [f"f({m}, {_text(p)}, {', '.join(_text(q) for q in slopes(p))});" for m, p in enumerate(f[l])],
    )
    function(
        "angular_directional",
        "double bx, double by, double bz, F f",
        lambda l: [
            f"f({m}, {_text(p)}, {_sum(list(zip(slopes(p), ('bx', 'by', 'bz'), strict=True)))});"
            for m, p in enumerate(f[l])
        ],
    )
    function("angular_sum", "F v, double* S", lambda l: loads(l) + sums(l, 0))
    function("angular_dot", "F v, double* S", lambda l: loads(l) + sums(l, 1))
    function("angular_hessian", "F v, double* S", lambda l: loads(l) + sums(l, 2))
    return "\n".join(out) + "\n"
