"""Lowest states of the Hamiltonian on a set of configurations.

Davidson's method (J. Comput. Phys. 17, 87 (1975), doi:10.1016/0021-9991(75)90065-0) with a block of roots, started
from the exact solution among configurations of the lowest energies; small sets are diagonalised as a whole.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._coupling import check_set, coarse_capacity
from jaxqc.nnqs._sparse import product, sparse_hamiltonian, sparse_matrix, spin_squares

__all__ = ["Eigenstates", "lowest", "sparse_hamiltonian"]

_DENSE = 400  # configurations that are diagonalised as a whole
_VECTORS = 16  # of the subspace, for one root
_SECTORS = 16  # of symmetry that are looked into
_COUPLED = 1e-12  # Hartree; smaller elements are noise


class Eigenstates(NamedTuple):
    """The lowest states on a set, a JAX pytree.

    Attributes:
        energies: (nroots,) Hartree, rising. The first one is an upper bound of the exact ground-state energy.
        vectors: (nroots, capacity) normalised, zero in unused rows; the largest element is positive.
        residuals: (nroots,) norms of H c - E c, Hartree.
        spin_squares: (nroots,) <S^2>.
    """

    energies: jax.Array
    vectors: jax.Array
    residuals: jax.Array
    spin_squares: jax.Array


def lowest(
    ham,
    configurations,
    nroots: int = 1,
    *,
    guess=None,
    tolerance: float = 1e-7,
    max_cycles: int = 200,
    throw: bool = True,
) -> Eigenstates:
    """The lowest states of the Hamiltonian on a set of configurations.

    Args:
        ham: `Hamiltonian`.
        configurations: `Configurations`, or (n, words) uint64 keys; each once.
        nroots: how many states.
        guess: (k, capacity) vectors to begin with, or None.
        tolerance: bound of the norms of the residuals, Hartree; energies converge as their square.
        max_cycles: bound on the number of iterations.
        throw: raise where that does not suffice; otherwise `residuals` tell.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
        RuntimeError: the iteration did not converge.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
        >>> ham = jaxqc.nnqs.Hamiltonian.from_molecule(mol)
        >>> states = jaxqc.nnqs.lowest(ham, jaxqc.nnqs.all_configurations(2, 1, 1))
        >>> round(float(states.energies[0]), 5)
        -1.13728
    """
    name = "jaxqc.nnqs.lowest"
    keys, count = check_set(ham, configurations, name)
    size = int(count)
    if isinstance(nroots, bool) or not isinstance(nroots, int | np.integer) or not 1 <= nroots <= size:
        raise ValueError(
            f"Argument nroots of {name} is {nroots!r}; it must be a whole number from 1 to the {size} configurations "
            "of the set." + (" The set is empty; begin with jaxqc.nnqs.aufbau." if size == 0 else "")
        )
    states = states_on(ham, keys, count, int(nroots), guess, tolerance, max_cycles)
    worst = float(np.max(np.asarray(states.residuals)))
    if throw and not worst <= max(tolerance, 1e-11 * float(np.max(np.abs(np.asarray(ham.two))))):
        raise RuntimeError(
            f"{name} did not converge in {max_cycles} cycles: the largest residual is {worst:.2e} Hartree and must be "
            f"{tolerance:.0e}. Increase max_cycles or tolerance, ask for fewer roots, or use throw=False."
        )
    return states


def states_on(ham, keys, count, nroots, guess, tolerance, max_cycles) -> Eigenstates:
    """`lowest` without checks."""
    size, matrix = int(count), sparse_matrix(ham, keys, count)
    if size <= _DENSE:
        energies, residuals, vectors = _diagonalise(matrix, size, nroots)
    else:
        energies, residuals, vectors = _davidson(matrix, size, nroots, guess, tolerance, max_cycles)
    return Eigenstates(energies, vectors, residuals, spin_squares(ham, keys, count, vectors))


def _diagonalise(matrix, size, nroots):
    """All of a small matrix, in NumPy: nothing is compiled."""
    dense = _dense(matrix, np.arange(size))
    energies, states = np.linalg.eigh(dense)
    energies, states = energies[:nroots], states[:, :nroots]
    states = states * np.where(states[np.argmax(np.abs(states), axis=0), np.arange(nroots)] < 0, -1.0, 1.0)
    vectors = np.zeros((nroots, len(matrix.row_start) - 1))
    vectors[:, :size] = states.T
    residuals = np.linalg.norm(dense @ states - states * energies, axis=0)
    return jax.device_put((energies, residuals, vectors))


def _dense(matrix, chosen):
    """The matrix among some configurations, as a NumPy array."""
    start = np.asarray(matrix.row_start)
    place = np.full(len(start) - 1, -1)
    place[chosen] = np.arange(len(chosen))
    number = start[chosen + 1] - start[chosen]
    rows = np.repeat(np.arange(len(chosen)), number)
    at = np.repeat(start[chosen] - np.cumsum(number) + number, number) + np.arange(int(np.sum(number)))
    # As few sizes as possible, of what may be a small part of the matrix.
    wanted = np.pad(at, (0, coarse_capacity(len(at)) - len(at)))
    columns, elements = (np.asarray(x)[: len(at)] for x in _taken(matrix.columns, matrix.elements, wanted))
    kept = place[columns] >= 0
    dense = np.diag(np.asarray(matrix.diagonal)[chosen])
    dense[rows[kept], place[columns[kept]]] = elements[kept]
    return dense


@jax.jit
def _taken(columns, elements, at):
    return columns[at], elements[at]


@jax.jit
def _ritz(matrix, basis, turn):
    """Energies, residuals and vectors with a fixed sign, of combinations of the basis."""
    vectors = turn.T @ basis
    vectors = vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
    image = jnp.stack([product(matrix, vector) for vector in vectors])
    energies = jnp.sum(vectors * image, axis=1)
    residuals = jnp.linalg.norm(image - energies[:, None] * vectors, axis=1)
    largest = jnp.take_along_axis(vectors, jnp.argmax(jnp.abs(vectors), axis=1)[:, None], axis=1)
    return energies, residuals, vectors * jnp.where(largest < 0, -1.0, 1.0)


def _davidson(matrix, size, nroots, guess, tolerance, max_cycles):
    """States of lowest energy. Besides the roots, others of the first guess are followed while they may become lower:
    an eigenvalue lies within the residual's norm of each energy."""
    if guess is None:
        first = _guess_sectors(matrix, size, nroots + 2)
    else:
        # A state of another symmetry may have become lower than those of the guess.
        more = _guess(matrix, size, 2) if nroots == 1 else _guess_sectors(matrix, size, 2)
        first = np.concatenate([np.asarray(guess)[:, : matrix.diagonal.shape[0]], more])
    followed = min(len(first), nroots + 24)
    room = _VECTORS * nroots + 4 * followed
    basis = jnp.zeros((room, matrix.diagonal.shape[0]))
    images, used = jnp.zeros_like(basis), 0
    new = [(first, k) for k in range(len(first))]
    turn, overlaps = np.zeros((room, followed)), np.zeros((room, room))
    for _ in range(max_cycles):
        for vectors, k in new:
            if used < room:
                basis, images, left, row = _append(matrix, basis, images, vectors, np.int32(k), np.int32(used))
                overlaps[used] = overlaps[:, used] = np.asarray(row)
                used += float(left) > 1e-8
        values, states = np.linalg.eigh(overlaps[:used, :used])
        turn[:] = 0.0
        turn[:used, : min(used, followed)] = states[:, :followed]
        norms, corrections = _corrections(matrix.diagonal, basis, images, turn)
        norms = np.asarray(norms)[: min(used, followed)]
        values = values[: len(norms)]
        may_be_lower = (np.arange(len(norms)) < nroots) | (values - norms < values[nroots - 1])
        wanted = np.flatnonzero(may_be_lower & (norms > tolerance))
        if wanted.size == 0:
            break
        if used + wanted.size > room:  # begin again from the best vectors
            basis, images, used = *_restart(basis, images, turn), len(norms)
            overlaps[:used, :used] = np.diag(values)
        new = [(corrections, k) for k in wanted]
    return _ritz(matrix, basis, turn[:, :nroots])


def _guess(matrix, size, number):
    """The lowest states among the configurations of lowest energies, (number, n)."""
    return _guess_among(matrix, np.arange(size), number)


def _guess_among(matrix, members, number):
    energies = np.asarray(matrix.diagonal)[members]
    chosen = np.sort(members[np.argsort(energies, kind="stable")[:_DENSE]])
    _, states = np.linalg.eigh(_dense(matrix, chosen))
    vectors = np.zeros((min(number, len(chosen)), matrix.diagonal.shape[0]))
    vectors[:, chosen] = states[:, :number].T
    return vectors


def _guess_sectors(matrix, size, number):
    """The same for each sector of symmetry: configurations that no element couples, even by others."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    start = np.asarray(matrix.row_start)
    columns, elements = (np.asarray(x[: start[size]]) for x in matrix[1:3])
    rows = np.repeat(np.arange(size), np.diff(start[: size + 1]))
    kept = np.abs(elements) > _COUPLED
    edges = rows[kept], columns[kept]
    coupled = coo_matrix((np.ones(edges[0].size, bool), edges), shape=(size, size))
    sectors, label = connected_components(coupled, directed=False)
    lowest_of = np.full(sectors, np.inf)
    np.minimum.at(lowest_of, label, np.asarray(matrix.diagonal)[:size])
    guesses = []
    for sector in np.argsort(lowest_of, kind="stable")[:_SECTORS]:
        guesses.append(_guess_among(matrix, np.flatnonzero(label == sector), number))
    return np.concatenate(guesses)


@partial(jax.jit, donate_argnums=(1, 2))
def _append(matrix, basis, images, vectors, k, used):
    """Adds the k-th of some vectors to the basis, made orthogonal to it. Also: how much of the vector was left, and the
    overlaps of the basis with its image."""
    vector = vectors[k]
    vector = vector / jnp.maximum(jnp.linalg.norm(vector), 1e-300)
    left = jnp.ones(())
    for _ in range(3):
        vector = vector - _inner(basis, vector) @ basis
        norm = jnp.linalg.norm(vector)
        left = left * norm
        vector = vector / jnp.maximum(norm, 1e-300)
    vector = jnp.where(left > 1e-8, vector, 0.0)
    basis, image = basis.at[used].set(vector), product(matrix, vector)
    return basis, images.at[used].set(image), left, _inner(basis, image)


def _inner(basis, vector):
    # Few long sums, for which a matrix product would use a small part of a GPU.
    return jnp.sum(basis * vector, axis=1)


@jax.jit
def _corrections(diagonal, basis, images, turn):
    """Norms of the residuals of the Ritz vectors, and what Davidson's preconditioner makes of them."""
    vectors, image = turn.T @ basis, turn.T @ images
    energies = jnp.sum(vectors * image, axis=1)
    residual = image - energies[:, None] * vectors
    gap = energies[:, None] - diagonal
    gap = jnp.where(jnp.abs(gap) < 1e-3, jnp.where(gap < 0, -1e-3, 1e-3), gap)
    return jnp.linalg.norm(residual, axis=1), residual / gap


@partial(jax.jit, donate_argnums=(0, 1))
def _restart(basis, images, turn):
    rows = turn.shape[1]
    kept = turn.T @ basis, turn.T @ images
    return jnp.zeros_like(basis).at[:rows].set(kept[0]), jnp.zeros_like(images).at[:rows].set(kept[1])
