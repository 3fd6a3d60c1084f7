"""Pulay's commutator DIIS with a history of fixed size (doi:10.1002/jcc.540030413)."""

from typing import NamedTuple

import jax.numpy as jnp


class DIISState(NamedTuple):
    """History of the last `space` Fock matrices and their errors; `count` were pushed so far."""

    focks: jnp.ndarray  # (space, nset, nao, nao)
    errors: jnp.ndarray  # (space, nset, nao, nao)
    count: jnp.ndarray  # ()


def diis_init(space, nset, nao):
    """An empty history."""
    zeros = jnp.zeros((space, nset, nao, nao))
    return DIISState(zeros, zeros, jnp.asarray(0))


def diis_push(state, fock, error):
    """Puts one Fock matrix and its error in the place of the oldest."""
    slot = state.count % state.focks.shape[0]
    return DIISState(state.focks.at[slot].set(fock), state.errors.at[slot].set(error), state.count + 1)


def diis_weights(errors, count):
    """Weights c that minimise |sum_i c_i e_i| under sum_i c_i = 1.

    Errors are scaled to norm 1 first, so that old large ones do not hide new small ones. Then c is proportional to the
    inverse of their Gram matrix times the scales; eigenvalues below 1e-14 count as 1e-14: dependent errors are what
    DIIS looks for, so their combinations must not be dropped.

    Args:
        errors: (space, nset, nao, nao).
        count: (), number of errors pushed so far.

    Returns:
        (space,) weights; those of empty slots are 0.
    """
    space = errors.shape[0]
    filled = jnp.arange(space) < count
    flat = errors.reshape(space, -1)
    norms = jnp.sqrt(jnp.sum(flat * flat, axis=1))
    scale = jnp.where(filled, 1.0 / jnp.maximum(norms, 1e-30), 0.0)
    unit = flat * scale[:, None]
    gram = unit @ unit.T + jnp.diag(jnp.where(filled & (norms > 1e-30), 0.0, 1.0))
    values, vectors = jnp.linalg.eigh(gram)
    inverse = 1.0 / jnp.maximum(values, 1e-14)
    # The largest scale is divided out: only ratios matter, and 1e30 squared would still be finite but needless.
    scale = scale / jnp.maximum(jnp.max(scale), 1e-300)
    weights = scale * (vectors @ (inverse * (vectors.T @ scale)))
    return weights / jnp.sum(weights)


def diis_extrapolate(state):
    """The extrapolated Fock matrix, (nset, nao, nao)."""
    weights = diis_weights(state.errors, state.count)
    return jnp.einsum("k,ksij->sij", weights, state.focks)
