"""Shell pairs on an NVIDIA GPU as its two-electron kernels read them, and matrices on their way to and from those.

Everything has a static shape and is made on the device. Pairs have a natural order, by class $(l_i, l_j)$ and then by
falling product of the numbers of primitives; the final order within a class is by falling bucket of the number of
primitive pairs that matter, then by falling Schwarz bound, with the pairs that do not matter at the end.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, Unit, call, float64, int32, int64, operand, result
from jaxqc.integrals._shells import cartesian_size, offsets

# Upper ends of the buckets of numbers of primitives; in the last one there is no limit.
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
DROPPED = -1e30  # in place of the Schwarz bound of a dropped pair
_TILE = 32  # pairs whose primitives are interleaved; see eri_pairs.cu
_MOST_PRODUCTS = 1 << 20  # of primitives of a pair; see eri_pairs.cu
_BLOCK = 128
# Two contracted shells of the same l from here on make two pairs, (i, j) and (j, i); see eri_pairs.cu.
_HALVED = 4
# A pair is dropped where its integrals with all others are below this part of the threshold: densities may exceed 1.
_MARGIN = 1e-3

UNIT = Unit("eri_pairs.cu", ("pairs_count", "pairs_fill", "pairs_groups", "density_bounds", "unblock"))


@dataclass(frozen=True)
class PairPlan:
    """What is known of the pairs of a basis before any number is.

    `classes`: (l_i, l_j, first pair, number of pairs) of each class, l_i >= l_j. `capacity`: places for primitives.
    `blocks`: runs of pairs in natural order, as `pairs_count` takes them; `order`: the shells that they refer to.
    """

    ls: tuple[int, ...]
    nprims: tuple[int, ...]
    cart: bool
    classes: tuple[tuple[int, int, int, int], ...]
    npair: int
    capacity: int
    nbucket: int
    blocks: tuple[tuple[int, int, int, int, int], ...]
    order: tuple[int, ...]


class Pairs(NamedTuple):
    """All pairs of shells, sorted.

    - `shells`: `(npair, 2)`, shells i and j, l_i >= l_j.
    - `info`: `(npair, 4)`, first functions of i and j, place of the first primitive, number of primitives (0: dropped).
    - `centers`: `(npair, 6)`, A and A - B.
    - `prims`: `(7, capacity)`, p = a + b, P, c_a c_b exp(-ab/p R^2)/p, 1/p, 2a; primitive m lies 32 m places after the
      first, by falling size.
    - `bound`: `(npair,)`, log of the Schwarz bound; -1e30 for dropped pairs, NaN where it is not a number.
    - `groups`: `(nclass, nbucket + 1)`, first pair of each bucket, most primitives first; and the first dropped pair.
    """

    shells: jax.Array
    info: jax.Array
    centers: jax.Array
    prims: jax.Array
    bound: jax.Array
    groups: jax.Array


def _bucket_end(count: int, most: int) -> int:
    """The largest number of primitives in the bucket of `count`, at most `most`."""
    return min(next((end for end in BUCKETS if count <= end), most), most)


@functools.cache
def plan(ls: tuple[int, ...], nprims: tuple[int, ...], cart: bool) -> PairPlan:
    """Classes, natural order and sizes of the pairs of the shells `ls` with `nprims` primitives each.

    **Raises:** `ValueError` for more pairs or primitives than the kernels can number.
    """
    order = sorted(range(len(ls)), key=lambda k: (ls[k], nprims[k], k))
    runs: dict[int, list[tuple[int, int, int]]] = {}  # for each l, rising: where a run of one number of primitives is
    at = 0
    for (l, nprim), members in itertools.groupby(order, key=lambda k: (ls[k], nprims[k])):
        n = len(list(members))
        runs.setdefault(l, []).append((nprim, at, n))
        at += n
    classes, blocks, ends, npair = [], [], [], 0
    for la, lb in ((la, lb) for la in runs for lb in runs if lb <= la):
        found = []
        for (ka, a), (kb, b) in itertools.product(enumerate(runs[la]), enumerate(runs[lb])):
            products = a[0] * b[0]
            for turned in range(1 + (la == lb >= _HALVED and products > 1)):
                if la != lb or ka > kb:
                    found.append((products, a[1], b[1], b[2], a[2] * b[2], turned))
                elif ka == kb:
                    found.append((products, a[1], b[1], 0, a[2] * (a[2] + 1 - 2 * turned) // 2, turned))
        found.sort(key=lambda block: -block[0])
        first, most = npair, found[0][0]
        for products, row, column, width, count, turned in found:
            blocks.append((npair, row, column, width, turned))
            ends.append((_bucket_end(products, most), count))
            npair += count
        classes.append((la, lb, first, npair - first))
    return PairPlan(
        ls, nprims, cart, tuple(classes), npair, _capacity(ends, npair), len(BUCKETS) + 1, tuple(blocks), tuple(order)
    )


def _capacity(ends: list[tuple[int, int]], npair: int) -> int:
    """Places that suffice for the primitives of all tiles in whatever order within the rules.

    A tile takes as many rows as its pair with the most primitives has. In natural order that is at most the product of
    the primitives, which falls within a class. In the final order it is at most the end of the pair's bucket, which
    falls as well; and the k-th largest end in a class is at most that of the k-th pair in natural order.
    """
    most = max(end for end, _ in ends)
    rows = np.repeat(np.array([end for end, _ in ends]), [count for _, count in ends])
    rows = np.concatenate([rows, np.zeros(-npair % _TILE, int)]).reshape(-1, _TILE).max(axis=1)
    capacity = _TILE * int(rows.sum())
    if capacity >= 1 << 31 or most > _MOST_PRODUCTS:
        raise ValueError(
            f"The pairs of shells of this basis have up to {capacity} products of primitives, and one of them up to "
            f"{most}; the GPU kernels take at most {(1 << 31) - 1} and {_MOST_PRODUCTS}. Take a smaller basis, or "
            "compute on CPUs."
        )
    return capacity


@functools.cache
def _first_functions(ls: tuple[int, ...], cart: bool) -> np.ndarray:
    return offsets(tuple(cartesian_size(l) if cart else 2 * l + 1 for l in ls))


def _table(values) -> jax.Array:
    return jnp.asarray(np.asarray(values, np.int32))


def _shell_table(plan: PairPlan) -> jax.Array:
    columns = (plan.ls, plan.nprims, offsets(plan.nprims)[:-1], _first_functions(plan.ls, plan.cart)[:-1])
    return _table(np.stack([np.asarray(c) for c in columns], axis=1))


def _grid(threads: int) -> int:
    return -(-threads // _BLOCK)


def _count(plan: PairPlan, basis) -> tuple[jax.Array, jax.Array]:
    """Shells of the pairs in natural order, and their numbers of primitives that matter."""
    arguments = (*map(operand, range(6)), result(0), result(1), int32(len(plan.blocks)), int32(plan.npair))
    step = Step(UNIT, "pairs_count", _BLOCK, arguments, grid=_grid(plan.npair))
    shapes = [jax.ShapeDtypeStruct((plan.npair, 2), np.int32), jax.ShapeDtypeStruct((plan.npair,), np.int32)]
    shells, counts = call(
        "jaxqc_pairs_count", [step], shapes, _table(plan.blocks), _table(plan.order), _shell_table(plan), *basis
    )
    return shells, counts


def _bases(counts: jax.Array) -> jax.Array:
    """Where the primitives of each tile begin, and where those of the last one end."""
    rows = jnp.max(jnp.pad(counts, (0, -len(counts) % _TILE)).reshape(-1, _TILE), axis=1)
    return jnp.pad(_TILE * jnp.cumsum(rows, dtype=np.int32), (1, 0))


def _fill(plan: PairPlan, basis, natural, order, counts, bound, groups) -> Pairs:
    """The pairs in the order given; `counts` and what follows are in that order."""
    n, capacity = plan.npair, plan.capacity
    arguments = (*map(operand, range(8)), *map(result, range(5)), int64(capacity), int32(n))
    step = Step(UNIT, "pairs_fill", _BLOCK, arguments, grid=_grid(n + -n % _TILE))
    shapes = [
        jax.ShapeDtypeStruct((n, 2), np.int32),
        jax.ShapeDtypeStruct((n, 4), np.int32),
        jax.ShapeDtypeStruct((n, 6), np.float64),
        jax.ShapeDtypeStruct((7, capacity), np.float64),
        jax.ShapeDtypeStruct((capacity,), np.int64),
    ]
    shells, info, places, prims, _ = call(
        "jaxqc_pairs_fill", [step], shapes, order, natural, counts, _bases(counts), _shell_table(plan), *basis
    )
    return Pairs(shells, info, places, prims, bound, groups)


def _sorted(plan: PairPlan, counts: jax.Array, bound: jax.Array, live: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The final order of the pairs, and their groups.

    One key of 64 bits for each pair: class, bucket from the last to the first and then those dropped, falling bound.
    """
    index, firsts = jnp.arange(plan.npair, dtype=np.uint32), np.asarray([c[2] for c in plan.classes], np.uint32)
    classes = jnp.sum(index[:, None] >= firsts[1:], axis=1)
    bucket = jnp.sum(counts[:, None] > np.asarray(BUCKETS, np.int32), axis=1)
    rank = jnp.where(live, len(BUCKETS) - bucket, plan.nbucket).astype(np.uint64)
    bits = jax.lax.bitcast_convert_type(jnp.where(live, bound, jnp.zeros_like(bound)), np.uint32)
    negative = bits >> np.uint32(31) == 1
    falling = jnp.where(negative, bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys = classes.astype(np.uint64) << np.uint64(40) | rank << np.uint64(32) | falling
    keys, order = jax.lax.sort((keys, index), num_keys=1)
    nclass, ngroup = len(plan.classes), plan.nbucket + 1
    arguments = (operand(0), result(0), int32(plan.npair), int32(nclass), int32(ngroup))
    step = Step(UNIT, "pairs_groups", _BLOCK, arguments, grid=_grid(nclass * ngroup))
    (groups,) = call("jaxqc_pairs_groups", [step], [jax.ShapeDtypeStruct((nclass, ngroup), np.int32)], keys)
    return order.astype(np.int32), groups


def prepare(
    plan: PairPlan,
    centers: jax.Array,
    exponents: jax.Array,
    coefficients: jax.Array,
    threshold: float,
    schwarz: Callable[[Pairs], jax.Array],
) -> Pairs:
    """All pairs of the shells, sorted.

    **Arguments:**

    - `plan`: of the basis.
    - `centers`, `exponents`, `coefficients`: of the shells, as in `ShellList`.
    - `threshold`: size of the integrals, times density elements, that may be left out.
    - `schwarz`: gives log (ab|ab)^(1/2), the largest over the functions of each pair, shape `(npair,)`, for pairs that
      are not sorted, with all of a class in one bucket, among them pairs without primitives.

    **Returns:** the pairs. A bound is NaN where that of `schwarz` is infinite or not a number.
    """
    basis, n = (centers, exponents, coefficients), plan.npair
    natural, counts = _count(plan, basis)
    one_bucket = [[first] + [first + count] * plan.nbucket for _, _, first, count in plan.classes]
    index = jnp.arange(n, dtype=np.int32)
    unsorted = _fill(plan, basis, natural, index, counts, jnp.zeros(n, np.float32), _table(one_bucket))
    bound = schwarz(unsorted).astype(np.float32)
    bound = jnp.where(counts > 0, jnp.where(bound < np.inf, bound, np.float32(np.nan)), np.float32(DROPPED))

    largest = jnp.max(jnp.where(jnp.isnan(bound), np.float32(DROPPED), bound))
    least = np.float32(math.log(threshold * _MARGIN)) - jnp.maximum(largest, np.float32(math.log(10.0)))
    live = bound > least
    order, groups = _sorted(plan, counts, bound, live)
    bound = jnp.where(live | jnp.isnan(bound), bound, np.float32(DROPPED))
    return _fill(plan, basis, natural, order, jnp.where(live, counts, 0)[order], bound[order], groups)


def density_bounds(ls: tuple[int, ...], cart: bool, density: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logarithms of the largest element of each block of shells, over all densities, and of all, at least -60.

    **Arguments:** `density`: shape `(n, nao, nao)`; its elements must be finite.

    **Returns:** shapes `(nshell, nshell)` and `()`, single precision.
    """
    nshell, first = len(ls), _first_functions(ls, cart)
    sizes = (int32(density.shape[0]), int32(nshell), int32(first[-1]))
    step = Step(
        UNIT, "density_bounds", _BLOCK, (operand(0), operand(1), result(0), *sizes), grid=_grid(nshell * nshell)
    )
    shape = jax.ShapeDtypeStruct((nshell, nshell), np.float32)
    (bounds,) = call("jaxqc_density_bounds", [step], [shape], density, _table(first))
    return bounds, jnp.max(bounds)


def unblock(ls: tuple[int, ...], cart: bool, blocked: jax.Array, sign: int) -> jax.Array:
    """$M + s M^T$ for matrices M whose blocks of shells are contiguous.

    **Arguments:**

    - `blocked`: shape `(n, nao * nao)`; block (i, k), of n_i rows and n_k columns, begins at i0 nao + k0 n_i.
    - `sign`: s, 1 or -1.

    **Returns:** shape `(n, nao, nao)`.
    """
    first = _first_functions(ls, cart)
    nao, sizes = int(first[-1]), np.diff(first)
    functions = np.stack([np.repeat(first[:-1], sizes), np.repeat(sizes, sizes)], axis=1)
    tiles = -(-nao // _TILE)
    arguments = (operand(0), operand(1), result(0), float64(sign), int32(nao))
    step = Step(UNIT, "unblock", 256, arguments, grid=tiles * tiles, grid_y=blocked.shape[0])
    shape = jax.ShapeDtypeStruct((blocked.shape[0], nao, nao), np.float64)
    return call("jaxqc_unblock", [step], [shape], blocked, _table(functions))[0]
