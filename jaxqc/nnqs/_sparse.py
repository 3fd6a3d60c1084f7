"""The Hamiltonian on a set of configurations as a sparse matrix in compressed rows, and its product with a vector."""

import math
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import on_gpu
from jaxqc.integrals._library import handler
from jaxqc.nnqs._bits import Configurations, batches, search
from jaxqc.nnqs._coupling import check_set, coarse_capacity, couple_fixed, couple_plain, uses_library, with_room
from jaxqc.nnqs._hamiltonian import Hamiltonian
from jaxqc.nnqs._slater_condon import diagonal
from jaxqc.nnqs._tables import tables_of

_SAMPLES = 256  # rows from which the number of elements is estimated
_PAIRS = 100  # comparisons of keys that take as long as looking up what one configuration is coupled to


class SparseMatrix(NamedTuple):
    """A symmetric matrix, both halves of which are stored, a JAX pytree. Rows beyond the set are zero.

    Attributes:
        row_start: (n + 1,) int64 where the off-diagonal elements of each row begin.
        columns: (capacity,) int32.
        elements: (capacity,) Hartree.
        diagonal: (n,) Hartree.
    """

    row_start: jax.Array
    columns: jax.Array
    elements: jax.Array
    diagonal: jax.Array


class SparseHamiltonian(NamedTuple):
    """Elements <i|H|j> on a set, in rising order of rows.

    Attributes:
        rows, columns: (nonzero,) int32.
        values: (nonzero,) Hartree; the diagonal is among them.
    """

    rows: jax.Array
    columns: jax.Array
    values: jax.Array


def sparse_hamiltonian(ham, keys, count=None) -> SparseHamiltonian:
    """All elements of the Hamiltonian on a set of configurations that are not zero.

    Args:
        ham: `Hamiltonian`.
        keys: (n, words) uint64, the first `count` of them used.
        count: () int32; None for all rows that are no sentinels.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
    """
    given = keys if count is None else Configurations(keys, count)
    keys, count = check_set(ham, given, "jaxqc.nnqs.sparse_hamiltonian")
    matrix, size = sparse_matrix(ham, keys, count), int(count)
    start = np.asarray(matrix.row_start)
    rows = np.repeat(np.arange(len(start) - 1), np.diff(start))
    here = np.arange(size)
    rows = np.concatenate([rows, here])
    columns = np.concatenate([np.asarray(matrix.columns[: start[-1]]), here])
    values = np.concatenate([np.asarray(matrix.elements[: start[-1]]), np.asarray(matrix.diagonal[:size])])
    order = np.argsort(rows, kind="stable")
    return SparseHamiltonian(
        jnp.asarray(rows[order], jnp.int32), jnp.asarray(columns[order], jnp.int32), jnp.asarray(values[order])
    )


def sparse_matrix(ham, keys, count) -> SparseMatrix:
    """The matrix of `ham` on the first `count` of `keys` (n, words), as large as `keys`."""
    rows = keys.shape[0]
    if rows == 0:
        return SparseMatrix(jnp.zeros(1, jnp.int64), jnp.zeros(0, jnp.int32), jnp.zeros(0), jnp.zeros(0))
    if on_gpu():
        return sparse_above(ham, keys, count, tables_of(ham), 0.0)

    def compiled(capacity, thresholds):
        operands = ham.constant, tables_of(ham), keys, count, jnp.asarray(thresholds)
        return _sparse_compiled(*operands, capacity=capacity)

    def call(capacity):
        return compiled(capacity, none) if uses_library() else _sparse_plain(ham, keys, count, capacity=capacity)

    none, size, number = np.zeros(rows), int(count), 64 * rows
    if uses_library() and size > 4 * _SAMPLES:  # how many there are in some of the rows
        some = np.full(rows, np.inf)
        some[np.linspace(0, size - 1, _SAMPLES).astype(int)] = 0.0
        number = int(1.2 * int(compiled(16, some)[1]) * size / np.count_nonzero(some == 0.0))
    return with_room(call, number, lambda out: int(out[1]))[0]


@partial(jax.jit, static_argnames="capacity")
def _sparse_compiled(constant, tables, keys, count, thresholds, *, capacity):
    rows = keys.shape[0]
    results = (
        jax.ShapeDtypeStruct((rows + 1,), jnp.int64),
        jax.ShapeDtypeStruct((capacity,), jnp.int32),
        jax.ShapeDtypeStruct((capacity,), jnp.float64),
        jax.ShapeDtypeStruct((rows,), jnp.float64),
        jax.ShapeDtypeStruct((1,), jnp.int64),
    )
    call = jax.ffi.ffi_call(handler("jaxqc_ci_sparse"), results)
    start, columns, elements, energies, total = call(keys, count.reshape(1), thresholds, *tables)
    energies = jnp.where(jnp.arange(rows, dtype=jnp.int32) < count, energies + constant, 0.0)
    return SparseMatrix(start, columns, elements, energies), total[0]


def _sparse_plain(ham, keys, count, *, capacity):
    """The same in plain JAX: everything coupled, of which members of the set are kept."""
    rows = keys.shape[0]
    thresholds = jnp.zeros(rows)
    coupled = with_room(
        lambda size: couple_plain(ham, keys, count, thresholds, capacity=size), capacity, lambda out: int(out.count)
    )
    position = jnp.minimum(search(keys, coupled.keys), rows - 1)
    kept = jnp.all(keys[position] == coupled.keys, axis=1) & (jnp.arange(coupled.keys.shape[0]) < coupled.count)
    place = jnp.where(kept, jnp.cumsum(kept) - 1, capacity)
    number = jnp.zeros(rows, jnp.int64).at[coupled.sources].add(kept.astype(jnp.int64))
    matrix = SparseMatrix(
        jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(number)]),
        jnp.zeros(capacity, jnp.int32).at[place].set(position, mode="drop"),
        jnp.zeros(capacity).at[place].set(coupled.elements, mode="drop"),
        jnp.where(jnp.arange(rows, dtype=jnp.int32) < count, diagonal(ham, keys), 0.0),
    )
    return matrix, jnp.sum(kept, dtype=jnp.int64)


def sparse_above(ham, keys, count, tables, threshold: float) -> SparseMatrix:
    """The matrix of elements above a threshold, by whichever way is less work."""
    if int(count) == 0:
        rows = keys.shape[0]
        return SparseMatrix(jnp.zeros(rows + 1, jnp.int64), jnp.zeros(0, jnp.int32), jnp.zeros(0), jnp.zeros(rows))
    few = on_gpu() and int(count) <= _PAIRS * coupled_number(ham, tables)
    return (sparse_from_pairs if few else sparse_in_batches)(ham, keys, count, tables, threshold)


def sparse_from_pairs(ham, keys, count, tables, threshold: float) -> SparseMatrix:
    """The same from comparing all pairs, on a GPU."""
    from jaxqc.nnqs import _cuda_coupling

    operands = tables, ham.two, keys, count
    start = np.zeros(keys.shape[0] + 1, np.int64)
    start[1:] = np.cumsum(_cuda_coupling.pair_numbers(*operands, threshold=threshold))
    start, capacity = jax.device_put(start), coarse_capacity(int(start[-1]))
    columns, elements = _cuda_coupling.pair_elements(*operands, start, threshold=threshold, capacity=capacity)
    return SparseMatrix(start, columns, elements, _energies(ham, keys, count))


def sparse_in_batches(ham, keys, count, tables, threshold: float, memory: int = 2 << 30) -> SparseMatrix:
    """The same with everything that some rows are coupled to at a time."""
    size, rows = int(count), keys.shape[0]
    each = 1.25 * coupled_number(ham, tables)
    limit = max(1 << 16, 1 << (memory // 64).bit_length() - 1)
    batch = min(max(int(limit / each), 16), 1 << 16, rows)
    room = coarse_capacity(math.ceil(min(each * batch, limit)))
    columns, elements, at, numbers = jnp.zeros(room, jnp.int32), jnp.zeros(room), 0, []
    for _, part in batches(Configurations(keys, jnp.int32(size)), batch):

        def call(capacity, part=part):
            return couple_fixed(ham, tables, *part, np.full(part.keys.shape[0], threshold), capacity=capacity)

        coupled = with_room(call, room, lambda out: int(out.count), coarse_capacity)
        room = coupled.keys.shape[0]
        if at + room > columns.shape[0]:
            longer = max(at + room, min(2 * at + room, 2**31 - 1))
            columns, elements = _longer(columns, elements, size=coarse_capacity(longer))
        columns, elements, number = _members(columns, elements, jnp.int64(at), keys, coupled, rows=batch)
        numbers.append(np.asarray(number)[: int(part.count)])
        at += int(np.sum(numbers[-1]))
    start = np.zeros(rows + 1, np.int64)
    start[1 : size + 1] = np.cumsum(np.concatenate(numbers))
    start[size + 1 :] = start[size]
    return SparseMatrix(jax.device_put(start), columns, elements, _energies(ham, keys, count))


def coupled_number(ham, tables) -> float:
    """About how many configurations are coupled to one, from the sizes of tables."""
    norb, nalpha, nbeta = ham.norb, ham.nalpha, ham.nbeta
    empty = [(norb - n) / norb for n in (nalpha, nbeta)]
    unlike = nalpha * nbeta * empty[0] * empty[1] * tables.unlike_value.size / norb**2
    pairs = sum(math.comb(n, 2) * e**2 for n, e in zip((nalpha, nbeta), empty, strict=True))
    like = pairs * tables.like_value.size / max(1, math.comb(norb, 2))
    singles = np.mean(np.asarray(tables.bound) > 0) * sum(n * (norb - n) for n in (nalpha, nbeta))
    return unlike + like + singles + 1


@jax.jit
def _energies(ham, keys, count):
    return jnp.where(jnp.arange(keys.shape[0], dtype=jnp.int32) < count, diagonal(ham, keys), 0.0)


@partial(jax.jit, static_argnames="size")
def _longer(columns, elements, *, size):
    return tuple(jnp.pad(x, (0, size - x.shape[0])) for x in (columns, elements))


@partial(jax.jit, static_argnames="rows", donate_argnums=(0, 1))
def _members(columns, elements, at, keys, coupled, *, rows):
    """Writes columns and elements of what is within the sorted set, in the order of sources, from `at` on, with zeros
    after them; and how many there are of each source."""
    position = jnp.minimum(search(keys, coupled.keys), keys.shape[0] - 1)
    capacity = coupled.keys.shape[0]
    kept = jnp.all(keys[position] == coupled.keys, axis=1) & (jnp.arange(capacity) < coupled.count)
    place = jnp.where(kept, jnp.cumsum(kept) - 1, capacity)
    here = jnp.zeros(capacity, jnp.int32).at[place].set(position, mode="drop")
    values = jnp.zeros(capacity).at[place].set(coupled.elements, mode="drop")
    return (
        jax.lax.dynamic_update_slice(columns, here, (at,)),
        jax.lax.dynamic_update_slice(elements, values, (at,)),
        jnp.zeros(rows, jnp.int64).at[coupled.sources].add(kept.astype(jnp.int64)),
    )


def product(matrix: SparseMatrix, x) -> jax.Array:
    """The matrix times a vector (n,)."""
    if on_gpu():
        from jaxqc.nnqs import _cuda_coupling

        return _cuda_coupling.product(*matrix, x)
    return _product_compiled(matrix, x) if uses_library() else _product_plain(matrix, x)


@jax.jit
def _product_compiled(matrix, x):
    call = jax.ffi.ffi_call(handler("jaxqc_ci_matvec"), jax.ShapeDtypeStruct(x.shape, jnp.float64))
    return call(*matrix, x)


@jax.jit
def _product_plain(matrix, x):
    at = jnp.arange(matrix.columns.shape[0])
    rows = jnp.searchsorted(matrix.row_start, at, side="right") - 1  # unused elements get a row that there is not
    terms = matrix.elements * x[matrix.columns]
    return matrix.diagonal * x + jax.ops.segment_sum(terms, rows, x.shape[0], indices_are_sorted=True)


@lru_cache(maxsize=4)
def spin_operator(norb: int, nalpha: int, nbeta: int) -> Hamiltonian:
    """S^2 as a Hamiltonian with (pq|rs) = -delta_ps delta_qr: N - N^2 / 4 - 1/2 sum_pq e_pq,qp, by Dirac's identity."""
    electrons = nalpha + nbeta
    unit = np.eye(norb)
    two = -np.einsum("ps,qr->pqrs", unit, unit)
    arrays = np.float64(electrons - electrons**2 / 4), np.zeros((norb, norb)), two
    constant, one, two = (jax.device_put(x) for x in arrays)
    return Hamiltonian(constant, one, two, nalpha, nbeta)


def spin_squares(ham, keys, count, vectors) -> jax.Array:
    """<S^2> of normalised vectors (nroots, n) on a set, (nroots,)."""
    matrix = sparse_matrix(spin_operator(ham.norb, ham.nalpha, ham.nbeta), keys, count)
    return _expectations(matrix, vectors)


@jax.jit
def _expectations(matrix, vectors):
    return jnp.stack([jnp.sum(vector * product(matrix, vector)) for vector in vectors])
