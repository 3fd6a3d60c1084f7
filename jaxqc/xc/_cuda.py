r"""Rows, densities and potentials on an NVIDIA GPU: what the CPU handlers do, with kernels compiled at run time.

A layout has two sets of row lists, rows of 64 points for densities and of 256 for potentials. Beside the documented
content of `RowLists`, `order` carries, after the rows, how many rows have more than 8 k functions for k = 0 ... 1023:
so each size class finds its rows on the device, and no call waits for the host.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, call, float64, int32, int64, operand, result
from jaxqc.gpu._launch import architecture
from jaxqc.integrals._shells import ShellList
from jaxqc.xc import _cuda_units as units
from jaxqc.xc._cells import RowLists

_FIRST = 1024  # entries of `order` after the rows
_ENVELOPE = (
    1e-10  # shells whose values and slopes stay below this on a row are never listed (unless epsilon is smaller)
)
_MARGIN = 16.0  # a list keeps what a density matrix with elements up to this can see; kernels read the actual maximum
_UNIT = 2.0**-44  # of the fixed-point sums of the deterministic potential
# How much the gradient of an orbital counts in its bound, against its value. The energy sees gradients through sigma,
# with a factor well below that of the density. On an H200 tamoxifen in def2-TZVP takes 10 % longer with 1 than with
# 0.25.
GRADIENT_SHARE = 0.5


def _sizes(ls: tuple[int, ...], cart: bool) -> np.ndarray:
    l = np.asarray(ls)
    return (l + 1) * (l + 2) // 2 if cart else 2 * l + 1


def nao_of(shells: ShellList, cart: bool) -> int:
    """The number of functions of the shells."""
    return shells.nao_cart if cart else shells.nao_sph


@functools.lru_cache(maxsize=64)
def _meta(ls: tuple[int, ...], nprims: tuple[int, ...], cart: bool) -> np.ndarray:
    """l | primitives << 8 | first primitive << 16 | first function << 40 of each shell."""
    if max(nprims) > 255 or max(ls) > 6 or len(ls) >= 2**20 or sum(nprims) >= 2**24:
        raise ValueError(
            f"The GPU kernels take shells with l up to 6 and up to 255 primitives, at most {2**20 - 1} of them; this "
            f"basis has l = {max(ls)}, {max(nprims)} primitives a shell and {len(ls)} shells."
        )
    l, n = np.asarray(ls, np.int64), np.asarray(nprims, np.int64)
    prim, ao = np.cumsum(n) - n, np.cumsum(_sizes(ls, cart)) - _sizes(ls, cart)
    return l | n << 8 | prim << 16 | ao.astype(np.int64) << 40


def basis(shells: ShellList, cart: bool) -> tuple[jax.Array, jax.Array]:
    """Records of the shells, (nshell, 4), and their primitives by rising exponent, (nprim, 2)."""
    unit = units.rows_unit(max(shells.ls), cart)
    arguments = (*map(operand, range(4)), int32(shells.nshell), result(0), result(1))
    step = Step(unit, "xc_basis", 64, arguments, grid=-(-shells.nshell // 64))
    shapes = [
        jax.ShapeDtypeStruct((shells.nshell, 4), np.float64),
        jax.ShapeDtypeStruct((len(shells.exponents), 2), np.float64),
    ]
    meta = jnp.asarray(_meta(shells.ls, shells.nprims, cart))
    records, prims = call("jaxqc_xc_basis", [step], shapes, shells.centers, shells.exponents, shells.coefficients, meta)
    return records, prims


@functools.partial(jax.jit, static_argnums=(1, 4, 5, 6, 7))
def rows(
    shells: ShellList,
    cart: bool,
    points: jax.Array,
    weights: jax.Array,
    row: int,
    capacity: int,
    epsilon: float,
    share: float = GRADIENT_SHARE,
) -> RowLists:
    """The lists of shells of all rows; `points` (n, 3) and `weights` (n,) fill whole rows."""
    records, prims = basis(shells, cart)
    nrow = points.shape[0] // row
    power = 2 ** int(np.ceil(np.log2(max(shells.nshell, 2))))
    size = min(power, max(1024, 2 ** int(np.ceil(np.log2(2 * capacity)))), 16384)
    cut = min(_ENVELOPE, 100.0 * epsilon)
    unit = units.rows_unit(max(shells.ls), cart)
    make = Step(
        unit, "xc_rows", 128,
        (
            *map(operand, range(4)), int32(shells.nshell), int32(row), int32(capacity), int32(size), int32(cart),
            float64(epsilon), float64(cut), float64(_MARGIN), float64(share),
            result(0), result(1), result(2), result(3), result(4), result(5),
        ),
        grid=max(nrow, 1), shared=8 * size,
    )  # fmt: skip
    sort = _sort_step(shells, cart, result(1), 6, nrow)
    shapes = [
        jax.ShapeDtypeStruct((nrow,), np.int32),
        jax.ShapeDtypeStruct((nrow,), np.int32),
        jax.ShapeDtypeStruct((nrow, capacity), np.int32),
        jax.ShapeDtypeStruct((nrow, capacity), np.float32),
        jax.ShapeDtypeStruct((nrow,), np.float32),
        jax.ShapeDtypeStruct((), np.int32),
        jax.ShapeDtypeStruct((nrow + _FIRST,), np.int32),
    ]
    steps = [make, sort] if nrow else [sort]
    count, _, shell, bound, weight_max, overflow, order = call(
        "jaxqc_xc_rows", steps, shapes, records, prims, points, weights, zeroed=(5,)
    )
    return RowLists(row, capacity, count, order, shell, bound, weight_max, overflow)


def deterministic() -> bool:
    """Whether potentials are summed in fixed point, so that they do not depend on the order: JAXQC_DETERMINISTIC=1."""
    return os.environ.get("JAXQC_DETERMINISTIC") == "1"


def _ordered(shells: ShellList, cart: bool, lists: RowLists) -> jax.Array:
    """`order` with what follows the rows; made here for lists that were dealt to devices, which come without."""
    nrow = lists.count.shape[0]
    if lists.order.shape[0] == nrow + _FIRST:
        return lists.order
    listed = jnp.arange(lists.capacity, dtype=jnp.int32) < lists.count[:, None]
    sizes = jnp.asarray(_sizes(shells.ls, cart).astype(np.int32))
    index = jnp.where(listed, lists.shell & np.int32(2**20 - 1), 0)
    functions = jnp.sum(jnp.where(listed, sizes[index], 0), axis=1, dtype=np.int32)
    shape = jax.ShapeDtypeStruct((nrow + _FIRST,), np.int32)
    (order,) = call("jaxqc_xc_order", [_sort_step(shells, cart, operand(0), 0, nrow)], [shape], functions)
    return order


def _sort_step(shells: ShellList, cart: bool, functions, index: int, nrow: int) -> Step:
    arguments = (functions, int32(nrow), result(index), result(index, 4 * nrow))
    return Step(units.rows_unit(max(shells.ls), cart), "xc_order", 1024, arguments, grid=1, shared=4 * 32 * 1024)


def _scalars(c: units.SizeClass, n: int, nset: int | None, lists: RowLists, nao: int, epsilon: float):
    """The numbers that the kernels take after their arrays."""
    sets = () if nset is None else (int32(nset),)
    high = -1 if c.high is None else c.high
    rest = (lists.count.shape[0], lists.capacity, nao, c.low, high, c.max_shells, c.max_functions, c.slots)
    return (int64(n), *sets, *map(int32, rest), float64(1.0 / epsilon if epsilon > 0 else 1e300))


def _arrays(shells: ShellList, cart: bool, points: jax.Array, lists: RowLists) -> list[jax.Array]:
    """The arrays that the kernels take first: operands 0 ... 8."""
    records, prims = basis(shells, cart)
    order = _ordered(shells, cart, lists)
    return [records, prims, points, lists.count, order, lists.shell, lists.bound, lists.weight_max, lists.overflow]


# Operands of `_arrays`, with and without the largest weights.
_WITH_WEIGHTS = tuple(map(operand, range(9)))
_WITHOUT_WEIGHTS = (*_WITH_WEIGHTS[:7], _WITH_WEIGHTS[8])


def density(
    shells: ShellList, cart: bool, points: jax.Array, lists: RowLists, matrices: jax.Array, ncomp: int, epsilon: float
) -> jax.Array:
    """R: symmetric matrices (nset, nao, nao) to (nset, ncomp, n) at points (n, 3) in whole rows."""
    nset, nao = matrices.shape[:2]
    n = points.shape[0]
    shape = jax.ShapeDtypeStruct((nset, ncomp, n), np.float64)
    if n == 0 or nset == 0:
        return jnp.zeros(shape.shape)
    steps = []
    for c, start, _ in units.density_plan(architecture(), nao, lists.capacity, max(shells.ls), cart, ncomp, nset):
        buffers = (operand(9, 8 * start * nao * nao), operand(10), result(0, 8 * start * ncomp * n))
        arguments = (*_WITH_WEIGHTS, *buffers, *_scalars(c, n, None, lists, nao, epsilon))
        steps.append(Step(c.unit, c.kernel, c.block, arguments, shared=c.shared))
    arrays = _arrays(shells, cart, points, lists)
    largest = jnp.max(jnp.abs(matrices))
    if ncomp < 5:
        matrices = _side_by_side(matrices)
    (out,) = call("jaxqc_xc_density", steps, [shape], *arrays, matrices, largest, zeroed=(0,))
    return out


def _side_by_side(matrices: jax.Array) -> jax.Array:
    """Matrices two by two, their elements side by side, (nset // 2, nao, nao, 2), and the last as it is; flat."""
    pairs = 2 * (matrices.shape[0] // 2)
    if not pairs:
        return matrices
    together = jnp.moveaxis(matrices[:pairs].reshape(-1, 2, *matrices.shape[1:]), 1, -1)
    return jnp.concatenate([together.ravel(), matrices[pairs:].ravel()])


def potential(
    shells: ShellList,
    cart: bool,
    points: jax.Array,
    lists: RowLists,
    coefficient: jax.Array,
    epsilon: float,
    deterministic: bool = False,
) -> jax.Array:
    """The transpose of R: coefficients (nset, ncomp, n) to symmetric matrices (nset, nao, nao)."""
    nset, ncomp, n = coefficient.shape
    nao = nao_of(shells, cart)
    if n == 0 or nset == 0:
        return jnp.zeros((nset, nao, nao))
    classes = units.potential_classes(architecture(), nao, lists.capacity, max(shells.ls), cart, ncomp, deterministic)
    steps = []
    for c in classes:
        arguments = (*_WITHOUT_WEIGHTS, operand(9), result(0), *_scalars(c, n, None, lists, nao, epsilon))
        steps.append(Step(c.unit, c.kernel, c.block, arguments, grid_y=nset, shared=c.shared))
    shape = jax.ShapeDtypeStruct((nset, nao, nao), np.int64 if deterministic else np.float64)
    arrays = _arrays(shells, cart, points, lists)
    (half,) = call("jaxqc_xc_potential", steps, [shape], *arrays, coefficient, zeroed=(0,))
    if deterministic:
        half = half + jnp.swapaxes(half, 1, 2)
        return jnp.where(jnp.abs(half) < 2**61, half.astype(np.float64) * _UNIT, jnp.nan)
    return half + jnp.swapaxes(half, 1, 2)


def gradient(
    shells: ShellList,
    cart: bool,
    points: jax.Array,
    lists: RowLists,
    matrices: jax.Array,
    coefficient: jax.Array,
    epsilon: float,
) -> list[jax.Array]:
    """Derivatives of <c, R D> with respect to the centres, (nshell, 3), and to the points, (n, 3)."""
    nset, ncomp, n = coefficient.shape
    nao = matrices.shape[1]
    if n == 0 or nset == 0:
        return [jnp.zeros((shells.nshell, 3)), jnp.zeros((n, 3))]
    steps = []
    for c in units.gradient_classes(architecture(), nao, lists.capacity, max(shells.ls), cart, ncomp):
        buffers = (*map(operand, (9, 10, 11)), result(0), result(1))
        arguments = (*_WITHOUT_WEIGHTS, *buffers, *_scalars(c, n, nset, lists, nao, epsilon))
        steps.append(Step(c.unit, c.kernel, c.block, arguments, shared=c.shared))
    shapes = [jax.ShapeDtypeStruct((shells.nshell, 3), np.float64), jax.ShapeDtypeStruct((n, 3), np.float64)]
    arrays = _arrays(shells, cart, points, lists)
    largest = jnp.max(jnp.abs(matrices))
    return call("jaxqc_xc_gradient", steps, shapes, *arrays, matrices, largest, coefficient, zeroed=(0, 1))
