"""Compiled units of the Coulomb engine in Hermite Gaussians, and its table of the Boys function."""

import functools
from dataclasses import dataclass

import numpy as np

from jaxqc.ffi_kernels.rcg.hermite import emit_hermite, hermite_components, parts
from jaxqc.gpu import Unit
from jaxqc.integrals._shells import cartesian_to_spherical_matrix

_ROWS = 16  # of the tables of the Boys function; kRows of eri_hermite.cu
KETS = 5  # classes of kets that one kernel takes
_SUMS = 36  # components of the bra that one thread sums
_PRODUCTS = 1300  # components of the bra times those of the ket in one body
_WORK = 4000  # floating point operations in the bodies of one kernel, beyond the first
WARPS = 4
# Blocks on a multiprocessor that registers are bounded for, by the number of sums in a thread and by the order of R.
_BLOCKS_BY_SUMS = ((1, 7), (4, 5), (10, 4), (20, 3), (99, 2))
_BLOCKS_BY_ORDER = ((4, 7), (5, 5), (6, 4), (8, 3), (99, 2))


def hermite_size(l: int) -> int:
    """Number of Hermite Gaussians up to order `l`."""
    return len(hermite_components(l))


def row_width(l: int, sets: int, single: bool = False) -> int:
    """Numbers of a ket: exponent, place (in single precision twice) and density, padded to 16 bytes."""
    group = 4 if single else 2
    return -(-((7 if single else 4) + hermite_size(l) * sets) // group) * group


@functools.cache
def _boys_tables(top: int, single: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """Polynomials of F_n, n <= top, on 16 intervals about multiples of a step, up to T = 36 + 2n (single: 18 + 2n).

    There the integral to infinity differs from F_n by less than rounding in all that is made of it.

    **Returns:** `(top + 1, 16, 21)` or `(top + 1, 16, 11)`, and the degrees.
    """
    tables, degrees = zip(*[_boys_table(n, single) for n in range(top + 1)], strict=True)
    return np.stack(tables), degrees


@functools.cache
def _boys_table(n: int, single: bool) -> tuple[np.ndarray, int]:
    """The polynomials of F_n, and their degree."""
    dtype, stride, extent, tolerance = (np.float32, 11, 18, 2e-8) if single else (np.float64, 21, 36, 1e-15)
    nodes = np.cos(np.arccos(np.longdouble(-1)) * (np.arange(32, dtype=np.longdouble) + 0.5) / 32) / 2
    vandermonde = np.polynomial.chebyshev.chebvander(2 * nodes, 31)
    t = (np.arange(_ROWS)[:, None] + nodes) * (np.longdouble(extent + 2 * n) / (_ROWS - np.longdouble(0.5)))
    values = _boys(n, np.abs(t))
    values[0] = _boys_near_zero(n, t[0])  # the polynomial about 0 has nodes at negative T
    series = values @ vandermonde / 16
    series[:, 0] /= 2
    size = np.max(np.abs(series), axis=0)
    degree = int(np.flatnonzero(size > tolerance / (2 * n + 1))[-1])
    table = np.zeros((_ROWS, stride), dtype)
    for row, coefficients in enumerate(series[:, : degree + 1]):
        polynomial = np.polynomial.chebyshev.cheb2poly(coefficients)
        table[row, : len(polynomial)] = polynomial * 2.0 ** np.arange(len(polynomial))
    return table, degree


def _boys(n: int, t: np.ndarray) -> np.ndarray:
    """F_n(T) = exp(-T) sum_i (2T)^i / ((2n+1)(2n+3) ... (2n+2i+1)): every term is positive."""
    term = np.full_like(t, np.longdouble(1) / (2 * n + 1))
    total, i = term.copy(), 0
    while np.any(term > total * np.longdouble(1e-21)):
        i += 1
        term = term * 2 * t / (2 * n + 2 * i + 1)
        total += term
    return np.exp(-t) * total


def _boys_near_zero(n: int, t: np.ndarray) -> np.ndarray:
    """F_n(T) = sum_i (-T)^i / (i! (2n+2i+1)), for small |T| of either sign."""
    total, term = np.zeros_like(t), np.ones_like(t)
    for i in range(60):
        total += term / (2 * n + 2 * i + 1)
        term = term * -t / (i + 1)
    return total


def boys_tables(top: int, single: bool) -> np.ndarray:
    """What eri_hermite.cu reads for orders up to `top`."""
    return _boys_tables(top, single)[0]


@dataclass(frozen=True)
class Sweep:
    """One kernel: bras of order `bra`, some of their components, and the orders of the kets that they meet."""

    unit: Unit
    kets: tuple[int, ...]
    flops: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def sweeps(l: int, kets: tuple[int, ...], sets: int) -> tuple[Sweep, ...]:
    """The kernels of bras of order `l` and kets of the orders `kets`."""
    out = []
    for places in parts(l, _SUMS // sets):
        chunk: list = []
        for ket in kets:
            for ket_places in parts(ket, _PRODUCTS // (len(places) * sets)):
                name = f"add{len(chunk)}"
                components = hermite_components(ket)
                body, flops = emit_hermite(
                    name, [hermite_components(l)[k] for k in places], [(k, components[k]) for k in ket_places],
                    sets, hermite_size(ket),
                )  # fmt: skip
                if chunk and (len(chunk) == KETS or sum(c[2] for c in chunk) + flops > _WORK):
                    out.append(_sweep(l, places, sets, chunk))
                    chunk, body = [], body.replace(f" {name}(", " add0(")
                chunk.append((ket, body, flops))
        out.append(_sweep(l, places, sets, chunk))
    return tuple(out)


def _sweep(l: int, places: tuple[int, ...], sets: int, chunk: list) -> Sweep:
    lines = [
        f"constexpr int kSets = {sets}, kAcc = {len(places)}, kHermite = {hermite_size(l)};",
        "static __device__ __forceinline__ void put(const double* acc, double* out) {",
    ]
    for s in range(sets):
        lines += [f"  out[{s * hermite_size(l) + k}] += acc[{s * len(places) + i}];" for i, k in enumerate(places)]
    lines.append("}")
    for index, (ket, body, _) in enumerate(chunk):
        degree, degree32 = (_boys_tables(l + ket, single)[1][-1] for single in (False, True))
        constants = f"kOrder = {l + ket}, kDegree = {degree}, kDegree32 = {degree32}, kHermite = {hermite_size(ket)}"
        head = "T* acc, const T* h, const T* g, T x, T y, T z"
        lines += [
            body,
            f"struct Ket{index} {{",
            f"  static constexpr int {constants};",
            "  template <class T>",
            f"  static __device__ __forceinline__ void add({head}) {{ add{index}(acc, h, g, x, y, z); }}",
            "};",
        ]
    blocks = min(
        next(b for most, b in _BLOCKS_BY_SUMS if len(places) * sets <= most),
        next(b for most, b in _BLOCKS_BY_ORDER if l + max(c[0] for c in chunk) <= most),
    )
    defines = (("NKETS", len(chunk)), ("WARPS", WARPS), ("MINB", blocks))
    unit = Unit(
        "eri_hermite.cu", ("hermite_coulomb",), defines, (), (("eri_hermite_bodies.cuh", "\n".join(lines) + "\n"),)
    )
    return Sweep(unit, tuple(c[0] for c in chunk), tuple(c[2] for c in chunk))


UNIQUE = Unit("eri_hermite_unique.cu", ("hermite_unique",))


@functools.cache
def pair_unit(la: int, lb: int, cart: bool) -> Unit:
    """The kernels of pairs of primitives of angular momenta la >= lb: bounds, densities, matrices."""
    l = la + lb
    components = hermite_components(l)
    norms = []
    for t, u, v in components:
        product = np.prod([k for n in (t, u, v) for k in range(1, 2 * n, 2)]) if t + u + v else 1.0
        norms.append(float(np.sqrt(product / (2 * (t + u + v) + 1))))
    lines = [
        f"constexpr int LA = {la}, LB = {lb}, NH = {len(components)};",
        _table("double", "kNorm", norms),
        _table("int", "kHermiteT", [c[0] for c in components]),
        _table("int", "kHermiteU", [c[1] for c in components]),
        _table("int", "kHermiteV", [c[2] for c in components]),
    ]
    for name, k in (("A", la), ("B", lb)):
        plain = cart or k < 2
        matrix = np.eye((k + 1) * (k + 2) // 2) if plain else cartesian_to_spherical_matrix(k)
        largest = 1.0 if plain else float(np.max(np.sum(np.abs(matrix), axis=0)))
        lines.append(f"constexpr int NF{name} = {matrix.shape[1]}; constexpr double kSum{name} = {largest!r};")
        lines.append(_table("double", f"kFunctions{name}", [float(x) for x in matrix.ravel()]))
    kernels = ("hermite_bounds", "hermite_density", "hermite_matrix")
    return Unit("eri_hermite_pairs.cu", kernels, (), (), (("eri_hermite_class.cuh", "\n".join(lines) + "\n"),))


def _table(kind: str, name: str, values) -> str:
    return f"static __device__ const {kind} {name}[] = {{{', '.join(map(repr, values))}}};"
