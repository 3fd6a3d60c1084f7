"""Kernels for NVIDIA GPUs behind coupling, perturbation theory and sparse products; see ffi_kernels/cuda/ci_*.cu."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxqc.gpu import Step, Unit, call, float64, int32, int64, operand, result
from jaxqc.nnqs._deduplicate import sort_keys
from jaxqc.nnqs._tables import Tables

_BLOCK = 128  # threads of a source
_PAIR_ROWS = 8  # of a warp, as in ci_pairs.cu


def unit(file: str, kernels: tuple[str, ...], norb: int) -> Unit:
    """A source file with the layout of keys of `norb` orbitals."""
    defines = (("WORDS", -(-norb // 64)), ("PACKED", int(norb <= 32)))
    return Unit(file, kernels, defines, ("ci_common.cuh",))


def couple_unit(norb: int) -> Unit:
    """Kernels that make coupled configurations."""
    return unit("ci_couple.cu", ("ci_count", "ci_fill", "ci_unused"), norb)


def sums_unit(norb: int) -> Unit:
    """Kernels that add up."""
    return unit("ci_sums.cu", ("ci_external", "ci_row_sums", "ci_matvec"), norb)


def pairs_unit(norb: int) -> Unit:
    """Kernels that compare all pairs of a set."""
    return unit("ci_pairs.cu", ("ci_pair_count", "ci_pair_fill"), norb)


def _row_number(nalpha, nbeta):
    """Rows of excitations of a source: occupied orbitals, pairs of like and of unlike spins."""
    electrons = nalpha + nbeta
    return electrons + electrons * (electrons - 1) // 2


@partial(jax.jit, static_argnames=("electrons", "capacity"))
def couple(tables: Tables, keys, count, thresholds, *, electrons, capacity: int, part=0, parts=1):
    """Keys, elements, sources and number of coupled configurations, as of `jaxqc_ci_couple`.

    Args:
        tables, keys, count, thresholds, capacity: as for `couple_fixed`.
        electrons: numbers of alpha and beta electrons (static).
        part, parts: only configurations whose hash falls into this part of so many, () int32 each.
    """
    norb, n = tables.one.shape[0], keys.shape[0]
    rows = _row_number(*electrons)
    # Threads take neighbouring targets.
    tables = tables._replace(coulomb=jnp.swapaxes(tables.coulomb, 1, 2), like=jnp.swapaxes(tables.like, 1, 2))
    common = (
        keys,
        count.reshape(1),
        thresholds,
        *tables,
        jnp.stack([jnp.asarray(part, jnp.int32), jnp.asarray(parts, jnp.int32)]),
    )
    given = (*map(operand, range(len(common))), int32(norb), int32(rows))
    kernels = couple_unit(norb)
    counting = Step(kernels, "ci_count", _BLOCK, (*given, result(0), result(1)), grid=n)
    shapes = [jax.ShapeDtypeStruct((n, rows), jnp.int32), jax.ShapeDtypeStruct((n,), jnp.int64)]
    offsets, totals = call("jaxqc_ci_count", [counting], shapes, *common)
    ends = jnp.cumsum(totals)
    at = len(common)
    size = int32(n), int64(capacity), result(0), result(1), result(2)
    filling = Step(kernels, "ci_fill", _BLOCK, (*given, *map(operand, range(at, at + 3)), *size), grid=n)
    unused = Step(kernels, "ci_unused", 256, (operand(at + 2), *size), grid=min(1024, -(-capacity // 256)))
    shapes = [
        jax.ShapeDtypeStruct((capacity, keys.shape[1]), jnp.uint64),
        jax.ShapeDtypeStruct((capacity,), jnp.float64),
        jax.ShapeDtypeStruct((capacity,), jnp.int32),
    ]
    out = call("jaxqc_ci_couple", [filling, unused], shapes, *common, offsets, totals, ends)
    return (*out, ends[-1])


@partial(jax.jit, static_argnames=("electrons", "capacity"))
def external(tables: Tables, constant, keys, count, vector, thresholds, *, electrons, capacity: int, part=0, parts=1):
    """Keys, sums H_ki c_i, energies of configurations outside of a sorted set, their number, and that of the terms.

    Rows are by rising keys; those that are used have a sum that is not 0. Where there are more terms than `capacity`,
    nothing of it must be used.
    """
    norb = tables.one.shape[0]
    options = {"electrons": electrons, "capacity": capacity, "part": part, "parts": parts}
    found, elements, sources, terms = couple(tables, keys, count, thresholds, **options)
    values = elements * vector[sources]
    if keys.shape[1] == 1:  # a value is as good a payload as an index
        ordered, values = jax.lax.sort((found[:, 0], values), num_keys=1, is_stable=True)
        found = ordered[:, None]
    else:
        found, order = sort_keys(found)
        values = values[order]
    diagonals = jnp.einsum("ppq->pq", tables.coulomb), jnp.einsum("ppq->pq", tables.like)
    operands = found, values, keys, count.reshape(1), tables.one, *diagonals
    arguments = (operand(0), operand(1), int64(capacity), *map(operand, range(2, 7)), int32(norb))
    step = Step(sums_unit(norb), "ci_external", 128, (*arguments, *map(result, range(3))), grid=-(-capacity // 128))
    row = jax.ShapeDtypeStruct((capacity,), jnp.float64)
    shapes = [row, row, jax.ShapeDtypeStruct((1,), jnp.int64)]
    sums, energies, number = call("jaxqc_ci_external", [step], shapes, *operands, zeroed=(2,))
    return found, sums, energies + constant, number[0], terms


@partial(jax.jit, static_argnames="threshold")
def pair_numbers(tables: Tables, two, keys, count, *, threshold: float):
    """(n,) int64: how many elements above a threshold couple each of a set's (n, words) keys to others of it."""
    operands, step = _pairs(tables, two, keys, count, threshold, "ci_pair_count", result(0))
    shape = jax.ShapeDtypeStruct((keys.shape[0],), jnp.int64)
    return call("jaxqc_ci_pair_count", [step], [shape], *operands)[0]


@partial(jax.jit, static_argnames=("threshold", "capacity"))
def pair_elements(tables: Tables, two, keys, count, row_start, *, threshold: float, capacity: int):
    """Their columns, int32, and the elements, (capacity,) each, where row_start (n + 1,) says."""
    operands, step = _pairs(tables, two, keys, count, threshold, "ci_pair_fill", operand(6), result(0), result(1))
    shapes = [jax.ShapeDtypeStruct((capacity,), dtype) for dtype in (jnp.int32, jnp.float64)]
    return call("jaxqc_ci_pair_fill", [step], shapes, *operands, row_start, zeroed=(0, 1))


def _pairs(tables, two, keys, count, threshold, kernel, *more):
    operands = keys, count.reshape(1), tables.one, tables.coulomb, tables.like, two
    norb, rows = tables.one.shape[0], keys.shape[0]
    arguments = (*map(operand, range(6)), int32(norb), int32(rows), float64(threshold), *more)
    grid = -(-rows // (_PAIR_ROWS * _BLOCK // 32))
    return operands, Step(pairs_unit(norb), kernel, _BLOCK, arguments, grid=grid)


@jax.jit
def row_sums(row_start, terms):
    """(n,) sums of terms (entries,) between the (n + 1,) int32 row_start; the same bits each time."""
    n = row_start.shape[0] - 1
    arguments = operand(0), operand(1), int32(n), result(0)
    step = Step(sums_unit(1), "ci_row_sums", 256, arguments, grid=-(-n // 8))
    return call("jaxqc_ci_row_sums", [step], [jax.ShapeDtypeStruct((n,), jnp.float64)], row_start, terms)[0]


@jax.jit
def product(row_start, columns, elements, diagonal, x):
    """The product of a sparse matrix in compressed rows, its diagonal apart, with a vector; the same bits each time."""
    operands = row_start, columns, elements, diagonal, x
    n = x.shape[0]
    arguments = (*map(operand, range(5)), int32(n), result(0))
    step = Step(sums_unit(1), "ci_matvec", 256, arguments, grid=-(-n // 8))
    return call("jaxqc_ci_matvec", [step], [jax.ShapeDtypeStruct((n,), jnp.float64)], *operands)[0]
