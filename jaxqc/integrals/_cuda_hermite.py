r"""Coulomb matrices on an NVIDIA GPU from densities in Hermite Gaussians.

A product of two primitives is a combination of Hermite Gaussians about one centre. The density is carried to them once,
$H_{tuv} = \sum_{cd} D_{cd} E^{cd}_{tuv}$; then $J_{tuv} = \sum (-1)^{t'+u'+v'} R_{t+t',u+u',v+v'} H_{t'u'v'}$ over all
pairs of primitive pairs, whatever functions they belong to; and $J_{ab} = \sum_{tuv} E^{ab}_{tuv} J_{tuv}$ at the end.
McMurchie and Davidson, doi:10.1016/0021-9991(78)90092-X; Ahmadi and Almlof, doi:10.1016/0009-2614(95)01109-4.

Primitives that several contracted shells share count once. Each sum has one owner: results do not vary between runs.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, call, float64, int32, int64, operand, result
from jaxqc.integrals import _cuda_hermite_units as units
from jaxqc.integrals._shells import cartesian_offsets, offsets, spherical_offsets

Check = Callable[[], None]

NONE = np.int32(1 << 25)  # a number of a part beyond all bras: kernels find nothing to do
_TILE = 64  # kets that share one rest of norms
_SETS = 2  # densities that one kernel takes
_BLOCK, _GRID = 128, 1 << 16
# What the neglected part of one J_tuv may be at most, in units of the threshold. This bound is the sum of all
# neglected magnitudes without regard to distance or sign: true errors are far below.
_NEGLECT = 1000.0
# Single precision serves where all that is left is below so many times what is neglected. Its errors are at most 4e-8
# of the bounds of the terms; the margin is there because they are systematic.
SINGLE = 1e6


@dataclass(frozen=True)
class Class:
    """Pairs of primitives of angular momenta la >= lb: their place among those of the same order la + lb."""

    la: int
    lb: int
    offset: int
    count: int


@dataclass(frozen=True)
class Plan:
    """What is known without numbers: primitives and shells sorted by angular momentum, and classes of pairs."""

    cart: bool
    nao: int
    primitives: np.ndarray  # places in the arrays of the shells
    owners: np.ndarray  # shell of each primitive
    functions: np.ndarray  # first function of each primitive's shell
    begin: np.ndarray  # first primitive of each angular momentum, and their number
    shells: np.ndarray  # (nshell, 3): first primitive, number of primitives, first function
    shell_begin: np.ndarray
    classes: tuple[Class, ...]
    sizes: dict[int, int]  # number of pairs of each order


@functools.lru_cache(maxsize=64)
def plan(ls: tuple[int, ...], nprims: tuple[int, ...], cart: bool) -> Plan:
    """The plan of the shells `ls` with `nprims` primitives each."""
    first = (cartesian_offsets(ls) if cart else spherical_offsets(ls)).astype(np.int32)
    begin_of = offsets(nprims)
    order = np.argsort(np.asarray(ls), kind="stable")
    counts = np.asarray(nprims)[order]
    owners = np.repeat(order, counts)
    starts = offsets(tuple(counts))[:-1]
    primitives = np.arange(len(owners)) - np.repeat(starts, counts) + begin_of[owners]
    top = max(ls)
    shell_begin = np.searchsorted(np.asarray(ls)[order], np.arange(top + 2))
    begin = np.searchsorted(np.asarray(ls)[owners], np.arange(top + 2)).astype(np.int32)
    classes, sizes = [], {}
    for la in range(top + 1):
        for lb in range(la + 1):
            na, nb = (int(begin[l + 1] - begin[l]) for l in (la, lb))
            count = na * (na + 1) // 2 if la == lb else na * nb
            if count:
                classes.append(Class(la, lb, sizes.get(la + lb, 0), count))
                sizes[la + lb] = sizes.get(la + lb, 0) + count
    shells = np.stack([starts, counts, first[order]], axis=1).astype(np.int32)
    functions = first[owners].astype(np.int32)
    sizes = dict(sorted(sizes.items()))
    return Plan(cart, int(first[-1]), primitives, owners, functions, begin, shells, shell_begin, tuple(classes), sizes)


class Pairs(NamedTuple):
    """Primitives in the order of the plan, which of them are equal, and all pairs of them by order."""

    centers: jax.Array
    exponents: jax.Array
    coefficients: jax.Array
    first: jax.Array  # the first primitive that is equal
    next: jax.Array  # the next one, or -1
    bounds: dict[int, jax.Array]  # Coulomb norms; 0 for pairs that do not count, no number for those beyond all
    places: dict[int, jax.Array]  # exponent and centre
    order: dict[int, jax.Array]  # pairs in the order in which they are summed for


def _shape(shape, dtype=jnp.float64):
    return jax.ShapeDtypeStruct(shape, dtype)


def _grid(count: int) -> int:
    return min(-(-count // _BLOCK), _GRID)


def _members(p: Plan, c: Class):
    """Arguments of kernels that say where the primitives of a class are."""
    return [int32(p.begin[c.la]), int32(p.begin[c.lb]), int32(p.begin[c.lb + 1] - p.begin[c.lb])]


def prepare(
    p: Plan, centers: jax.Array, exponents: jax.Array, coefficients: jax.Array, check: Check | None = None
) -> Pairs:
    """Pairs of primitives, sorted, for any number of densities.

    **Arguments:**

    - `centers`, `exponents`, `coefficients`: those of a `ShellList`: shapes `(nshell, 3)`, `(nprim,)`, `(nprim,)`.
    - `check`: a test of fresh kernels.
    """
    primitives = (
        centers[jnp.asarray(p.owners)],
        exponents[jnp.asarray(p.primitives)],
        coefficients[jnp.asarray(p.primitives)],
    )
    number = len(p.primitives)
    arguments = [operand(0), operand(1), operand(2), operand(3), int32(number), result(0), result(1), result(2)]
    steps = [Step(units.UNIQUE, "hermite_unique", _BLOCK, tuple(arguments), grid=_grid(number))]
    results = [_shape((number,), jnp.int32), _shape((number,), jnp.int32), _shape((number,))]
    results.append(_shape((sum(p.sizes.values()),), jnp.uint32))
    for size in p.sizes.values():
        results += [_shape((size,), jnp.float32), _shape((size, 4))]
    for c in p.classes:
        tag = list(p.sizes).index(c.la + c.lb)
        arguments = [operand(0), operand(1), result(0), result(2), *_members(p, c), int64(c.count), int32(tag)]
        arguments += [result(4 + 2 * tag, 4 * c.offset), result(5 + 2 * tag, 32 * c.offset)]
        arguments.append(result(3, 4 * (_first(p, c.la + c.lb) + c.offset)))
        unit = units.pair_unit(c.la, c.lb, p.cart)
        steps.append(Step(unit, "hermite_bounds", _BLOCK, tuple(arguments), grid=_grid(c.count)))
    operands = (*primitives, jnp.asarray(p.begin))
    first, following, _, keys, *rest = call("jaxqc_hermite_bounds", steps, results, *operands, check=check)
    bounds, places = (dict(zip(p.sizes, rest[n::2], strict=True)) for n in range(2))
    return Pairs(*primitives, first, following, bounds, places, _sorted(p, keys))


def _first(p: Plan, l: int) -> int:
    """Number of all pairs of lower order than `l`."""
    return sum(size for lower, size in p.sizes.items() if lower < l)


def _sorted(p: Plan, keys: jax.Array) -> dict[int, jax.Array]:
    """Pairs of each order by rising keys. One sort for all: the upper bits of the keys are the order."""
    index = jax.lax.sort((keys, jnp.arange(keys.shape[0], dtype=jnp.int32)), num_keys=1)[1]
    return {l: index[_first(p, l) : _first(p, l) + size] - _first(p, l) for l, size in p.sizes.items()}


def _kets(p: Plan, pairs: Pairs, density: jax.Array, single: bool, check: Check | None):
    """Rows of kets by falling norm, and for each tile of them the sum of its norms and all that follow, by order.

    Rows in single precision are there where they are asked for.
    """
    sets, steps = density.shape[0], []
    results = [_shape((sum(p.sizes.values()),), jnp.uint32)]
    for l, size in p.sizes.items():
        results += [_shape((size, units.row_width(l, sets))), _shape((size,), jnp.float32)]
    operands = [*pairs[:3], pairs.next, jnp.asarray(p.functions), density, *pairs.bounds.values()]
    for c in p.classes:
        tag, width = list(p.sizes).index(c.la + c.lb), units.row_width(c.la + c.lb, sets)
        arguments = [*map(operand, range(5)), *_members(p, c), int64(c.count), int32(tag)]
        arguments += [operand(6 + tag, 4 * c.offset), operand(5), int32(p.nao), int32(sets), int32(width)]
        arguments += [result(1 + 2 * tag, 8 * width * c.offset), result(2 + 2 * tag, 4 * c.offset)]
        arguments.append(result(0, 4 * (_first(p, c.la + c.lb) + c.offset)))
        unit = units.pair_unit(c.la, c.lb, p.cart)
        steps.append(Step(unit, "hermite_density", _BLOCK, tuple(arguments), grid=_grid(c.count)))
    keys, *rest = call("jaxqc_hermite_density", steps, results, *operands, check=check)
    rows, rows32, tails = {}, {}, {}
    for (l, order), unsorted, norms in zip(_sorted(p, keys).items(), rest[::2], rest[1::2], strict=True):
        rows[l] = unsorted[order]
        rows32[l] = _narrow(rows[l], l, sets) if single else jnp.zeros((1,), jnp.float32)
        norms = jnp.pad(norms[order].astype(jnp.float64), (0, -p.sizes[l] % _TILE))
        tails[l] = jnp.cumsum(jnp.sum(norms.reshape(-1, _TILE), axis=1)[::-1])[::-1]
    return rows, rows32, tails


def _narrow(rows: jax.Array, l: int, sets: int) -> jax.Array:
    """Rows in single precision, with places as rounded values and the rest."""
    places = rows[:, 1:4]
    high = jax.lax.reduce_precision(places, 8, 23)
    numbers = jnp.concatenate([rows[:, :1], high, places - high, rows[:, 4 : 4 + sets * units.hermite_size(l)]], axis=1)
    padding = units.row_width(l, sets, True) - numbers.shape[1]
    return jnp.pad(numbers.astype(jnp.float32), ((0, 0), (0, padding)))


def _sums(
    p: Plan, pairs: Pairs, kets, sets: int, options: "Options", part, check: Check | None = None
) -> dict[int, jax.Array]:
    """J_tuv of every pair, by order."""
    orders, steps, results = list(p.sizes), [], []
    operands = [jnp.asarray(units.boys_tables(2 * orders[-1], single)) for single in (False, True)]
    operands.append(jnp.asarray(part, jnp.int32).reshape(1))
    at = {}
    for l in orders:
        at[l] = len(operands)
        operands += [pairs.order[l], pairs.bounds[l], pairs.places[l], *(x[l] for x in kets)]
    cut = _NEGLECT * options.threshold / len(orders)
    scale = 1.0 / options.omega**2 if options.omega else 0.0
    limits = [float64(options.single * cut), float64(cut)]
    for k, l in enumerate(orders):
        results.append(_shape((p.sizes[l], sets * units.hermite_size(l))))
        for sweep in units.sweeps(l, tuple(orders), sets):
            arguments = [operand(at[l]), operand(at[l] + 1), operand(at[l] + 2), int32(p.sizes[l])]
            arguments += [operand(2), int32(options.parts), float64(scale), *limits, operand(0), operand(1)]
            for ket in range(units.KETS):
                if ket < len(sweep.kets):
                    m = sweep.kets[ket]
                    arguments += [operand(at[m] + 3), operand(at[m] + 4), operand(at[m] + 5), int32(p.sizes[m])]
                else:
                    arguments += [int64(0), int64(0), int64(0), int32(0)]
            arguments.append(result(k))
            grid = -(-p.sizes[l] // (32 * options.parts))
            steps.append(Step(sweep.unit, "hermite_coulomb", 32 * units.WARPS, tuple(arguments), grid=grid))
    out = call("jaxqc_hermite_coulomb", steps, results, *operands, zeroed=range(len(orders)), check=check)
    return dict(zip(orders, out, strict=True))


def _matrix(p: Plan, pairs: Pairs, sums: dict[int, jax.Array], sets: int) -> jax.Array:
    operands, steps = [*pairs[:3], pairs.first, jnp.asarray(p.shells)], []
    operands += [x for l in p.sizes for x in (pairs.bounds[l], sums[l])]
    for c in p.classes:
        l, k = c.la + c.lb, 5 + 2 * list(p.sizes).index(c.la + c.lb)
        na, nb = (int(p.shell_begin[l + 1] - p.shell_begin[l]) for l in (c.la, c.lb))
        number = na * (na + 1) // 2 if c.la == c.lb else na * nb
        arguments = [*map(operand, range(5)), int32(p.shell_begin[c.la]), int32(p.shell_begin[c.lb]), int32(nb)]
        arguments += [int32(number), *_members(p, c), operand(k, 4 * c.offset)]
        arguments += [operand(k + 1, 8 * sets * units.hermite_size(l) * c.offset)]
        arguments += [int32(p.nao), int32(sets), result(0)]
        unit = units.pair_unit(c.la, c.lb, p.cart)
        steps.append(Step(unit, "hermite_matrix", _BLOCK, tuple(arguments), grid=_grid(number)))
    return call("jaxqc_hermite_matrix", steps, [_shape((sets, p.nao, p.nao))], *operands)[0]


class Options(NamedTuple):
    r"""Operator, accuracy and division of work, all static.

    - `omega`: 0 for $1/r$, positive for $\mathrm{erf}(\omega r)/r$.
    - `threshold`: what is neglected of the potential of one primitive pair is at most 1000 times as much.
    - `single`: see `SINGLE`; 0 for double precision throughout.
    - `parts`: into how many parts the work is divided.
    """

    omega: float = 0.0
    threshold: float = 1e-13
    single: float = SINGLE
    parts: int = 1


DEFAULT = Options()


def units_of(p: Plan, sets: int = 1) -> list[units.Unit]:
    """All that is compiled for a plan and so many densities at once (1 or 2)."""
    orders = tuple(p.sizes)
    classes = [units.pair_unit(c.la, c.lb, p.cart) for c in p.classes]
    return [units.UNIQUE, *classes, *(s.unit for l in orders for s in units.sweeps(l, orders, sets))]


def coulomb(
    p: Plan,
    pairs: Pairs,
    density: jax.Array,
    options: Options = DEFAULT,
    part: jax.Array | int = 0,
    check: Check | None = None,
) -> jax.Array:
    r"""$J_{ij} = \sum_{kl} (ij|kl) D_{kl}$.

    **Arguments:**

    - `p`, `pairs`: of `plan` and `prepare`.
    - `density`: shape `(n, nao, nao)`, symmetric.
    - `options`: operator, accuracy, division of work.
    - `part`: which part of the work is done, below `options.parts`; the results of all of them add up to J.
    - `check`: a test of fresh kernels.

    **Returns:** shape `(n, nao, nao)`.
    """
    out = []
    for start in range(0, density.shape[0], _SETS):
        some = density[start : start + _SETS]
        kets = _kets(p, pairs, some, options.single > 0.0, check)
        sums = _sums(p, pairs, kets, some.shape[0], options, part, check)
        out.append(_matrix(p, pairs, sums, some.shape[0]))
    return jnp.concatenate(out) if out else density
