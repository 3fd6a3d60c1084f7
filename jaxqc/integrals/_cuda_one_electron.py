"""One-electron integrals on an NVIDIA GPU: the kernels behind the primitive of `_one_electron`."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, Unit, call, int32, int64, operand, result
from jaxqc.gpu._launch import architecture
from jaxqc.gpu._limits import shared_limit
from jaxqc.integrals._boys_table import boys_table
from jaxqc.integrals._shells import ShellList, cartesian_index, cartesian_offsets, cartesian_powers, cartesian_size

UNIT = Unit("one_electron.cu", ("multipole", "kinetic", "nuclear", "nuclear_weights"))

_LANES = 32
# Blocks that share sums over pairs, or tables that do not fit into shared memory: their number bounds the memory.
_PARTS, _LARGE = 1024, 256
_PARTS_SIZE = 1 << 26  # numbers


def hermite_size(degree: int) -> int:
    """The number of Cartesian components of all degrees up to `degree`."""
    return math.comb(degree + 3, 3)


def _hermite_index(x: int, y: int, z: int) -> int:
    return hermite_size(x + y + z - 1) + cartesian_index((x, y, z))


@functools.cache
def step_table(degree: int) -> np.ndarray:
    """The components up to `degree` as one_electron.cu wants them described; shape `(hermite_size(degree), 4)`."""
    table = np.zeros((hermite_size(degree), 4), np.int32)
    everything = [powers for l in range(degree + 1) for powers in cartesian_powers(l)]
    for i, powers in enumerate(everything):
        table[i, 0] = powers[0] | powers[1] << 8 | powers[2] << 16
        if i == 0:
            continue
        # R_i = X_axis R_first + factor R_second. Any axis that is there serves; the lowest power saves most.
        axis = min((p, d) for d, p in enumerate(powers) if p)[1]
        factor = powers[axis] - 1
        first, second = (np.subtract(powers, n * np.eye(3, dtype=int)[axis]) for n in (1, 2))
        table[i, 1:] = axis | factor << 2, _hermite_index(*first), _hermite_index(*second) if factor else 0
    return table


class _Sorted(NamedTuple):
    """Shells by rising l: (shell, first primitive, primitives, first function), and first and number of each l."""

    shells: np.ndarray
    ranges: tuple[tuple[int, int, int], ...]


@functools.lru_cache(maxsize=256)
def _sorted(ls: tuple[int, ...], nprims: tuple[int, ...]) -> _Sorted:
    order = np.argsort(np.asarray(ls), kind="stable")
    starts = np.concatenate([[0], np.cumsum(nprims)])[:-1]
    columns = (np.arange(len(ls)), starts, np.asarray(nprims), cartesian_offsets(ls)[:-1])
    by_l = np.asarray(ls)[order]
    ranges = tuple((int(l), int(np.searchsorted(by_l, l)), int(np.sum(by_l == l))) for l in np.unique(by_l))
    return _Sorted(np.stack(columns, axis=1)[order].astype(np.int32), ranges)


def _classes(a: _Sorted, b: _Sorted, symmetric: bool):
    """la, lb, the arguments (first, number) of both ranges, and the number of pairs of each class."""
    for la, first_a, count_a in a.ranges:
        for lb, first_b, count_b in b.ranges:
            if symmetric and lb > la:
                continue
            triangle = symmetric and la == lb
            npair = count_a * (count_a + 1) // 2 if triangle else count_a * count_b
            yield la, lb, (first_a, count_a, first_b, count_b), npair


def _line_bytes(kind: str, la: int, lb: int, order: int) -> int:
    """Shared memory of the tables of one-dimensional integrals."""
    if kind == "kinetic":
        return 24 * ((la + 2) * (lb + 2) + (la + 1) * (lb + 1))
    return 24 * (order + 1) * (la + 1) * (lb + order + 1)


def _fixed_bytes(kind: str, la: int, lb: int, order: int) -> int:
    """Shared memory of the kernels of nuclear attraction, less the tables of the points."""
    row = _LANES * cartesian_size(order) if kind == "nuclear" else cartesian_size(la) * cartesian_size(lb)
    return 8 * (3 * (la + 1) * (lb + 1) * (la + lb + 1) + hermite_size(la + lb) + row)


def one_electron(*operands, kind, order, first, second):
    """`jaxqc_one_electron`."""
    symmetric = second is None
    a = ShellList(*first, *operands[:3])
    b = a if symmetric else ShellList(*second, *operands[3:6])
    parameters = operands[3 if symmetric else 6 :]
    attraction = kind in ("nuclear", "weights")
    run = _attraction if attraction else _lines
    out = run(kind, order, a, b, symmetric, *parameters)
    # As on the CPU, one number that is not fit makes all of them so.
    fit = [jnp.all(jnp.isfinite(x)) for s in (a, b) for x in (s.centers, s.exponents, s.coefficients)]
    fit += [jnp.all(s.exponents > 0) for s in (a, b)] + [jnp.all(jnp.isfinite(x)) for x in parameters]
    return jnp.where(jnp.all(jnp.stack(fit)), out, jnp.nan)


def _operands(a: ShellList, b: ShellList, degree: int):
    """What all kernels are given first."""
    of_a, of_b = _sorted(a.ls, a.nprims), _sorted(b.ls, b.nprims)
    arrays = (a.centers, a.exponents, a.coefficients, jnp.asarray(of_a.shells))
    arrays += (b.centers, b.exponents, b.coefficients, jnp.asarray(of_b.shells))
    return of_a, of_b, (*arrays, jnp.asarray(step_table(degree)))


def _class_arguments(la, lb, ranges, symmetric, a, b):
    return [int32(x) for x in (la, lb, *ranges, symmetric, a.nao_cart, b.nao_cart)]


def _lines(kind, order, a, b, symmetric, *parameters):
    """Multipole and kinetic integrals."""
    of_a, of_b, arrays = _operands(a, b, max(*a.ls, *b.ls, order))
    arrays = (*arrays, *parameters)
    steps = []
    for la, lb, ranges, npair in _classes(of_a, of_b, symmetric):
        arguments = [*map(operand, range(len(arrays))), *_class_arguments(la, lb, ranges, symmetric, a, b)]
        arguments += [*([int32(order)] if kind == "multipole" else []), result(0)]
        shared = _line_bytes(kind, la, lb, order)
        steps.append(Step(UNIT, kind, _LANES, tuple(arguments), grid=npair, shared=shared, concurrent=True))
    shape = (a.nao_cart, b.nao_cart) if kind == "kinetic" else (cartesian_size(order), a.nao_cart, b.nao_cart)
    return call(f"jaxqc_{kind}", steps, [jax.ShapeDtypeStruct(shape, jnp.float64)], *arrays, zeroed=[0])[0]


def _attraction(kind, order, a, b, symmetric, points, last):
    """Nuclear attraction and its transpose."""
    npoint, ncomp = points.shape[0], cartesian_size(order)
    shape = (a.nao_cart, b.nao_cart) if kind == "nuclear" else (npoint, ncomp)
    if not npoint:
        return jnp.zeros(shape)
    degree = max(a.ls) + max(b.ls) + order
    of_a, of_b, arrays = _operands(a, b, degree)
    table = boys_table(degree)
    arrays = (*arrays, jnp.asarray(table), points, last)
    steps, scratch = [], 0
    parts = max(1, min(_PARTS, _PARTS_SIZE // (npoint * ncomp)))
    for la, lb, ranges, npair in _classes(of_a, of_b, symmetric):
        tables = _LANES * hermite_size(la + lb + order)
        shared = _fixed_bytes(kind, la, lb, order)
        grid, place = min(npair, parts) if kind == "weights" else npair, int64(0)
        if shared + 8 * tables <= shared_limit(architecture()):
            shared += 8 * tables
        else:
            grid, place = min(grid, _LARGE), result(1)
            scratch = max(scratch, grid * tables)
        arguments = [*map(operand, range(10)), int32(table.shape[1]), operand(10), operand(11), int32(npoint)]
        arguments += [*_class_arguments(la, lb, ranges, symmetric, a, b), int32(order), place, result(0)]
        kernel = "nuclear" if kind == "nuclear" else "nuclear_weights"
        # The classes share scratch space, and sums over pairs.
        alone = kind == "weights" or place == result(1)
        steps.append(Step(UNIT, kernel, _LANES, tuple(arguments), grid, shared=shared, concurrent=not alone))
    first = shape if kind == "nuclear" else (parts, ncomp, npoint)
    results = [jax.ShapeDtypeStruct(s, jnp.float64) for s in (first, (scratch,))]
    out = call(f"jaxqc_{kind}", steps, results, *arrays, zeroed=[0])[0]
    return out if kind == "nuclear" else jnp.sum(out, axis=0).T
